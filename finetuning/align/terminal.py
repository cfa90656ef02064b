"""The links of a pair as text that people read: a grid of the words, or a list where the grid does not fit."""

import shutil
import unicodedata
from typing import Any

from finetuning.align.formats import Format

# of links that are right with at least this probability
SHADES = {0.9: "█", 0.75: "▓", 0.5: "▒", 0.0: "░"}


class Drawing(Format):
    """For a terminal, see `draw`."""

    has_probabilities = True

    def __init__(self, is_calibrated: bool, as_list: bool):
        self.is_calibrated, self.as_list = is_calibrated, as_list

    def record(self, number: int, pair: Any, found: Any) -> str:
        return draw(found, self.is_calibrated, self.as_list) + "\n"


def draw(alignment: Any, is_calibrated: bool, as_list: bool = False) -> str:
    """Draws source words in rows and target words in columns, with a mark at each link; otherwise one line per link.

    is_calibrated: whether `alignment.probabilities` are calibrated: they then shade the marks, or are in the list.
    as_list: no grid even if it fits the terminal.
    """
    from rich.console import Console

    size = shutil.get_terminal_size()  # with TERM=dumb, rich ignores COLUMNS and uses 80
    console = Console(width=size.columns, height=size.lines, markup=False, highlight=False, emoji=False)
    grid = _grid(alignment, is_calibrated)
    words = "".join(alignment.source + alignment.target)
    # a terminal reverses a line with right-to-left words, and with it the columns
    runs_from_left = not any(unicodedata.bidirectional(character) in ("R", "AL") for character in words)
    unbounded = console.options.update(max_width=10_000)  # otherwise rich shortens words to fit
    fits = console.measure(grid, options=unbounded).maximum <= console.width
    is_grid = alignment.source and alignment.target and fits and runs_from_left and not as_list
    with console.capture() as drawn:
        console.print(grid if is_grid else _list(alignment, is_calibrated))
        if is_grid and is_calibrated and alignment.links:
            used = {_shade(probability) for probability in alignment.probabilities}
            shown = [f"{shade * 2} {f'from {least:g}' if least else 'less'}"
                     for least, shade in SHADES.items() if shade in used]  # fmt: skip
            console.print(f"\nprobability: {'   '.join(shown)}", style="dim")
    return drawn.get().rstrip("\n")


def _shade(probability: float) -> str:
    return next(shade for least, shade in SHADES.items() if probability >= least)


def _grid(alignment: Any, is_calibrated: bool) -> Any:
    from rich.table import Table

    marks = {
        link: (_shade(probability) if is_calibrated else "█") * 2
        for link, probability in zip(alignment.links, alignment.probabilities, strict=True)
    }
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(justify="right", no_wrap=True, style="bold")
    for word in alignment.target:
        table.add_column(word, justify="center", no_wrap=True, min_width=2)
    for i, word in enumerate(alignment.source):
        table.add_row(word, *(marks.get((i, j), "·") for j in range(len(alignment.target))))
    return table


def _list(alignment: Any, is_calibrated: bool) -> Any:
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for (i, j), probability in zip(alignment.links, alignment.probabilities, strict=True):
        shown = [f"{probability:.2f}"] if is_calibrated else []
        table.add_row(alignment.source[i], alignment.target[j], *shown)
    for side, words in enumerate((alignment.source, alignment.target)):
        for number in sorted(set(range(len(words))) - {link[side] for link in alignment.links}):
            table.add_row(*(["–", words[number]] if side else [words[number], "–"]))
    return table
