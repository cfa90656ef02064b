"""Draws for each objective who predicts what from whom: `python -m bench.objective_figures`.

The masks are those of the collators' batches, the links of DWA those of its labeling, and the matches those of
vocabulary matching. Special tokens are left out, and each word is one token. Made up are the pseudo tokens of BTMLM,
the states that DWA aligns, the gold links, and the vocabularies and the dictionary that are matched.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from modeling.denoising_word_alignment import dwa_labels
from pretraining.objectives import OBJECTIVES
from pretraining.recipe import Dictionary
from pretraining.rows import inputs_of
from pretraining.start.vocabulary_matching import match_vocabularies
from zoo_core.command_line import CommandParser
from zoo_core.masking import IGNORED

ENGLISH, GERMAN = "The house is small.", "Das Haus ist klein."
PAIR = {"source": ENGLISH, "target": GERMAN}
PSEUDO = ("Haus", "klein.")
SPECIALS = dict(bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>", mask_token="<mask>")
LINE, FILL, DARK = ("#1f6fb4", "#c8620a"), ("#d6e6f5", "#fbe3c8"), "#444444"  # of the first side and of the second
WIDTH, HEIGHT, SIZE, DPI = 5.6, 1.75, 7.5, 250  # inches of a panel, points of the text
SLOTS = 8.4  # widths of a box in a panel: two sides of four words, and what is between them


class Word(NamedTuple):
    """A box: its text, its side, and what the model predicts there."""

    text: str
    side: int
    predicted: str = ""


@dataclass
class Panel:
    """A row of a figure: words, the predictions above them, and a grid on the right."""

    title: str
    words: Sequence[Word]
    grid: np.ndarray  # whether a row sees a column, or belongs to it
    sides: Sequence[str] = ("English", "German")
    note: str = "row sees column"
    rows: Sequence[Word] = ()  # of the grid; default: the words
    columns: Sequence[Word] = ()
    above: dict[int, str] | None = None  # by place of the word; default: the predicted tokens
    links: Sequence[tuple[int, int]] = ()  # arcs between places
    pointer: tuple[int, int] | None = None  # from a prediction to the word that it points at
    new: list[tuple[Word, str]] = field(default_factory=list)  # words above, that a row of the grid is of, and why


def tokenizer_of(text: str) -> PreTrainedTokenizerFast:
    """A tokenizer that takes each word of the text for one token."""
    words = {word: number for number, word in enumerate(dict.fromkeys([*SPECIALS.values(), *text.split()]))}
    backend = Tokenizer(models.WordPiece(words, unk_token=SPECIALS["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIALS)


TOKENIZER = tokenizer_of(f"{ENGLISH} {GERMAN}")


def words_of(fields: dict[str, Any], side: int = 0) -> list[Word]:
    """The words of a batch's only row; `side` is that of its first segment."""
    labels = fields.get("labels", torch.full_like(fields["input_ids"], IGNORED))
    columns = (values[0, places_of(fields)].tolist() for values in (fields["input_ids"], fields["segment_ids"], labels))
    text = {TOKENIZER.mask_token_id: "mask", IGNORED: ""}
    return [Word(text.get(number) or TOKENIZER.decode([number]), side + segment,
                 text[label] if label in text else TOKENIZER.decode([label]))
            for number, segment, label in zip(*columns, strict=True)]  # fmt: skip


def places_of(fields: dict[str, Any]) -> torch.Tensor:
    return (~fields["special_tokens_mask"][0].bool()).nonzero()[:, 0]


def mask_of(fields: dict[str, Any], name: str = "attention_mask") -> np.ndarray:
    """Which word of a batch's only row may see which."""
    mask, places = fields[name][0].bool(), places_of(fields)
    return (mask if mask.dim() == 2 else mask.expand(len(mask), -1))[places][:, places].numpy()


def batch_of(name: str, example: dict[str, str], *predicted: str, **options: Any) -> Any:
    """The sub-batch of the first seed with which only these words are predicted, in this order, and are <mask>."""
    count = len(" ".join(example[key] for key in ("text", "source", "target") if key in example).split())
    collate = OBJECTIVES[name](TOKENIZER, mask_probability=len(predicted) / count, **options)
    for seed in range(10_000):
        torch.manual_seed(seed)
        batch = collate([example])[name]
        found = [word for fields in inputs_of(batch) for word in words_of(fields) if word.predicted]
        if [(word.text, word.predicted) for word in found] == [("mask", answer) for answer in predicted]:
            return batch
    raise AssertionError(f"no batch of {name} predicts {predicted}")


def unmasked(words: Sequence[Word]) -> list[Word]:
    return [Word(word.predicted or word.text, word.side) for word in words]


def panel_of_two(title: str, x: dict[str, Any], y: dict[str, Any], cross: bool = False) -> Panel:
    """Two inputs, which see each other or do not."""
    x_sees, y_sees = mask_of(x), mask_of(y)
    # to what the other side's own mask shows, as the cross-attention does
    to_y, to_x = (cross & np.tile(of[:1], (len(own), 1)) for own, of in ((x_sees, y_sees), (y_sees, x_sees)))
    return Panel(title, [*words_of(x), *words_of(y, 1)], np.block([[x_sees, to_y], [to_x, y_sees]]))


def mlm() -> list[Panel]:
    x, y = batch_of("mlm", {"text": ENGLISH}, "house"), batch_of("mlm", {"text": GERMAN}, "klein.")
    return [panel_of_two("MLM: a masked word is predicted from its own text", x, y)]


def tlm() -> list[Panel]:
    batch = batch_of("tlm", PAIR, "house", "klein.")
    return [Panel("TLM: a masked word is predicted from both languages", words_of(batch), mask_of(batch))]


def camlm() -> list[Panel]:
    batch = batch_of("camlm", PAIR, "house", "klein.")
    return [Panel("CAMLM: a masked word is predicted from the other language only", words_of(batch), mask_of(batch))]


def btmlm() -> list[Panel]:
    options = dict(languages=["en", "de"], pseudo_share=0.5, target_languages="all")
    batch = batch_of("btmlm", {"text": ENGLISH, "language": "en"}, "house", **options)
    words = words_of(batch)
    written = dict(zip([place for place, word in enumerate(words) if word.side], PSEUDO, strict=True))
    filled = [word._replace(text=written.get(place, word.text)) for place, word in enumerate(words)]
    return [
        Panel("BTMLM, step 1: the model writes pseudo tokens (no gradient)", unmasked(words),
              mask_of(batch, "generation_mask"), sides=("English", "German, to be written"), above=written),
        Panel("Step 2: a masked word is predicted from its text and the pseudo tokens", filled, mask_of(batch),
              sides=("English", "pseudo tokens")),
    ]  # fmt: skip


def ca_mlm() -> list[Panel]:
    batch = batch_of("ca_mlm_pairs", PAIR, "house", "klein.")
    inner = panel_of_two("CA-MLM, stream H: a masked word is predicted from its own side", batch["x"], batch["y"])
    cross = panel_of_two("Stream S: from its own side and the other side's last H states", batch["x"], batch["y"], True)
    return [inner, cross]


def linked(title: str, words: Sequence[Word], links: np.ndarray, note: str) -> Panel:
    x, y = ([word for word in words if word.side == side] for side in (0, 1))
    arcs = [(source, len(x) + target) for source, target in np.argwhere(links).tolist()]
    return Panel(title, words, links, note=note, rows=x, columns=y, above={}, links=arcs)


def dwa() -> list[Panel]:
    batch = batch_of("tlm", PAIR, "house")
    words, states = words_of(batch), torch.zeros(*batch["input_ids"].shape, 4)
    states[0, places_of(batch)] = torch.eye(4).repeat(2, 1)  # the nth words of both sides mean the same
    links = dwa_labels(states, batch).links_PST[0].bool().numpy()
    first = linked("DWA, step 1: the model links the words of the unmasked pair (no gradient)", unmasked(words), links,
                   note="linked words")  # fmt: skip
    ((query, partner),) = [arc for arc in first.links if words[arc[0]].predicted]
    title = "Step 2: a masked word predicts the position of its partner"
    return [first, Panel(title, words, mask_of(batch), above={query: "pointer"}, pointer=(query, partner))]


def word_links() -> list[Panel]:
    collate, example = OBJECTIVES["word_links"](TOKENIZER), PAIR | {"links": "0-0 1-1 2-2 3-3"}
    batch = collate([example])["word_links"]
    words = [*words_of(batch["x"]), *words_of(batch["y"], 1)]
    links = np.zeros((4, 4), bool)
    links[tuple(batch["links"][:, 1:3].T.numpy())] = True
    return [linked("word_links: the model, which reads each side alone, predicts links", words, links, "gold links")]


def vocabulary_matching() -> list[Panel]:
    old, new = tokenizer_of("The house is small"), tokenizer_of("the Haus is klein ist")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "de-en.txt"
        path.write_text("haus\thouse\nklein\tsmall\n", encoding="utf-8")
        matching = match_vocabularies(old, new, dictionaries=[Dictionary("de", str(path))])
    olds, news = (of.convert_ids_to_tokens(range(len(SPECIALS), len(of))) for of in (old, new))
    rows, columns = [Word(name, int(name not in ("the", "is"))) for name in news], [Word(name, 0) for name in olds]
    grid = np.array([[old_id == source for old_id in range(len(SPECIALS), len(old))]
                     for source in matching.sources[len(SPECIALS) :]])  # fmt: skip
    text = batch_of("mlm", {"text": ENGLISH}, "house")
    last = mlm()[0]
    last.title = "Phase 2: MLM on many languages, with the copied layers and embeddings"
    return [
        Panel("MetaXLM, phase 1: MLM on one language", words_of(text), mask_of(text)),
        Panel("Vocabulary matching: new tokens start from embeddings of old ones", columns, grid,
              sides=("old vocabulary",), note="row copies column", rows=rows, columns=columns, above={},
              new=list(zip(rows, matching.routes[len(SPECIALS) :], strict=True))),
        last,
    ]  # fmt: skip


# each figure is called as its objective, or as the beginning of the names of several
FIGURES: dict[str, Callable[[], list[Panel]]] = {
    figure.__name__: figure for figure in (mlm, tlm, camlm, btmlm, ca_mlm, dwa, word_links, vocabulary_matching)
}


def draw_box(axes: Axes, x: float, y: float, word: Word) -> None:
    color, text_color = (DARK, "white") if word.text == "mask" else (FILL[word.side], "black")
    shape = dict(boxstyle="round,pad=0,rounding_size=0.12", facecolor=color, edgecolor=LINE[word.side])
    axes.add_patch(FancyBboxPatch((x - 0.46, y - 0.28), 0.92, 0.56, zorder=3, **shape))
    axes.text(x, y - 0.02, word.text, ha="center", va="center_baseline", size=SIZE, color=text_color, zorder=4)


def draw_line(axes: Axes, start: tuple, end: tuple, color: str, bend: float = 0, **style: Any) -> None:
    shape = dict(arrowstyle="-|>,head_length=2.4,head_width=1.3", linewidth=1, shrinkA=0, shrinkB=0) | style
    axes.add_patch(FancyArrowPatch(start, end, color=color, connectionstyle=f"arc3,rad={bend}", **shape))


def draw_words(axes: Axes, panel: Panel) -> None:
    """The words in a row, the predictions above them, and lines to each prediction from what it may see."""
    x = [0.5 + place + 0.4 * word.side for place, word in enumerate(panel.words)]
    for side, name in enumerate(panel.sides):
        if of_side := [at for at, word in zip(x, panel.words, strict=True) if word.side == side]:
            axes.text(np.mean(of_side), -0.46, name, ha="center", va="top", size=SIZE, color=LINE[side])
    for at, word in zip(x, panel.words, strict=True):
        draw_box(axes, at, 0, word)
    predicted = {place: word.predicted for place, word in enumerate(panel.words) if word.predicted}
    for place, text in (predicted if panel.above is None else panel.above).items():
        draw_box(axes, x[place], 2, Word(text, panel.words[place].side))
        seen = np.flatnonzero(panel.grid[place])
        for end, other in zip(x[place] + np.linspace(-0.36, 0.36, len(seen)), seen, strict=True):
            draw_line(axes, (x[other], 0.28), (end, 1.7), LINE[panel.words[other].side])
    for start, end in panel.links:
        draw_line(axes, (x[start], 0.28), (x[end], 0.28), DARK, bend=-0.42, arrowstyle="-")
    if panel.pointer:
        start, end = (x[place] for place in panel.pointer)
        draw_line(axes, (start + 0.48, 2), (end, 0.3), DARK, bend=-0.4, linewidth=1.8)
    for number, (word, route) in enumerate(panel.new):
        at = 0.6 + 1.3 * number
        draw_box(axes, at, 2, word)
        axes.text(at, 2.4, route, ha="center", size=SIZE, color=DARK)
        for source in np.flatnonzero(panel.grid[number]):
            draw_line(axes, (x[source], 0.28), (at, 1.7), LINE[word.side])
    if panel.new:
        axes.text(1.3 * len(panel.new), 2, "new vocabulary", va="center_baseline", size=SIZE, color=LINE[1])
    axes.set(xlim=(0, SLOTS), ylim=(-0.95, 2.75))


def draw_grid(axes: Axes, panel: Panel) -> None:
    """A filled cell has the color of its column's side, a link is dark."""
    rows, columns = panel.rows or panel.words, panel.columns or panel.words
    for (row, column), marked in np.ndenumerate(panel.grid):
        color = (DARK if panel.links else LINE[columns[column].side]) if marked else "#eeeeee"
        axes.add_patch(Rectangle((column, row), 0.92, 0.92, facecolor=color))
    for words, place_of, style in (
        (rows, lambda place: (-0.25, place + 0.46), dict(ha="right", va="center")),
        (columns, lambda place: (place + 0.46, -0.25), dict(ha="center", va="bottom", rotation=90)),
    ):
        for place, word in enumerate(words):
            weight = "bold" if word.text == "mask" else "normal"
            axes.text(*place_of(place), word.text, size=SIZE - 1, weight=weight, **style)
    axes.text(0, len(rows) + 0.15, panel.note, va="top", size=SIZE - 1, color=DARK)
    axes.set(xlim=(-2.6, 8), ylim=(9, -2.6), aspect="equal", anchor="N")


def draw(name: str, folder: Path) -> None:
    """Writes the figure of this objective."""
    panels = FIGURES[name]()
    height = HEIGHT * len(panels)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    for number, panel in enumerate(panels):
        bottom = 1 - (number + 1) / len(panels)
        figure.text(0.012, bottom + (HEIGHT - 0.06) / height, panel.title, va="top", size=SIZE + 0.5, weight="bold")
        for left, width, draw_half in ((0.01, 0.69, draw_words), (0.71, 0.28, draw_grid)):
            axes = figure.add_axes((left, bottom, width, (HEIGHT - 0.2) / height))
            axes.set_axis_off()
            draw_half(axes, panel)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    picture.quantize(48).save(folder / f"objective_{name}.png", optimize=True)  # a third of the size


def read_flags(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(description=__doc__.partition("\n")[0])
    default = Path("hub_cards/models/figures")
    parser.add_argument("--output", type=Path, metavar="FOLDER", default=default, help=f"default {default}")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    folder = read_flags(argv).output
    folder.mkdir(parents=True, exist_ok=True)
    for name in FIGURES:
        draw(name, folder)


if __name__ == "__main__":
    main()
