"""The links of a pair as a list that people read."""

from typing import Any

from finetuning.align.formats import Format


class Drawing(Format):
    """For a terminal, see `draw`."""

    has_probabilities = True

    def __init__(self, is_calibrated: bool):
        self.is_calibrated = is_calibrated

    def record(self, number: int, found: Any) -> str:
        return draw(found, self.is_calibrated) + "\n"


def draw(alignment: Any, is_calibrated: bool) -> str:
    """Returns one line per link, with its probability if probabilities are calibrated, then words without a link."""
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for (i, j), probability in zip(alignment.links, alignment.probabilities, strict=True):
        shown = [f"{probability:.2f}"] if is_calibrated else []
        table.add_row(alignment.source[i], alignment.target[j], *shown)
    for side, words in enumerate((alignment.source, alignment.target)):
        for number in sorted(set(range(len(words))) - {link[side] for link in alignment.links}):
            table.add_row(*(["–", words[number]] if side else [words[number], "–"]))
    console = Console(markup=False, highlight=False, emoji=False)
    with console.capture() as drawn:
        console.print(table)
    return drawn.get().rstrip("\n")
