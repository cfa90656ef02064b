"""Draws for each objective who predicts what from whom, as a matrix: `python -m bench.objective_figures`.

The masks are those of the collators' batches, the links of DWA those of its labeling, and the matches those of
vocabulary matching. Special tokens are left out, and each word is one token. Made up are the pseudo tokens of BTMLM,
the states that DWA aligns, the gold links, and the vocabularies and the dictionary that are matched.

With `--attention MODEL`, it draws VECO's Figure 1 instead (Luo et al., ACL 2021, appendix B): the attention of a model
between two sentences, averaged over the heads of the middle layer. It also prints the AER of the links that each
layer's attention gives, of the gold links of a recipe:

  python -m bench.objective_figures --attention runs/e5_small \
    --pairs finetuning/recipes/xlm_align/word_alignment.yaml hub_root=../shared/hub
"""

import itertools
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModel, PreTrainedTokenizerFast

from crosslingual_zoo.finetuning.align.score import score
from crosslingual_zoo.finetuning.tasks.vectors.recipe import WordAlignmentRecipe
from crosslingual_zoo.finetuning.tasks.vectors.word_alignment import WordAlignmentTask
from crosslingual_zoo.modeling.checkpoints import load_tokenizer, load_whole
from crosslingual_zoo.modeling.denoising_word_alignment import dwa_labels
from crosslingual_zoo.pretraining.objectives import OBJECTIVES
from crosslingual_zoo.pretraining.recipe import Dictionary
from crosslingual_zoo.pretraining.rows import inputs_of
from crosslingual_zoo.pretraining.start.vocabulary_matching import match_vocabularies
from crosslingual_zoo.zoo_core.command_line import CommandParser, user_errors
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.recipes import load_recipe

ENGLISH = "The house is small."
GERMAN = "Das Haus ist klein."
PAIR = {"source": ENGLISH, "target": GERMAN}
SEAT = "Take a seat and have a rest"  # the paper's
PLATZ = "Nimm Platz und ruh dich aus"
PSEUDO = ("Haus", "klein.")
SPECIALS = dict(bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>", mask_token="<mask>")
COLORS = ListedColormap(["#eeeeee", "#1f6fb4", "#c8620a"])  # not seen; a word of the first side, of the second
SIZE = 8  # points of the text


class Word(NamedTuple):
    """Its text, its side, and what the model predicts there."""

    text: str
    side: int
    predicted: str = ""


class Panel(NamedTuple):
    """A matrix: whether a row sees a column, or belongs to it. rows: default: the columns."""

    title: str
    grid: np.ndarray
    columns: Sequence[Word]
    rows: Sequence[Word] = ()
    note: str = "row sees column"


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


def places_of(fields: dict[str, Any]) -> torch.Tensor:
    """Where a batch's only row has words."""
    return (~fields["special_tokens_mask"][0].bool()).nonzero()[:, 0]


def words_of(fields: dict[str, Any], side: int = 0) -> list[Word]:
    """The words of a batch's only row; `side` is that of its first segment."""
    labels = fields.get("labels", torch.full_like(fields["input_ids"], IGNORED))
    texts = {number: word for word, number in TOKENIZER.get_vocab().items()}
    texts[TOKENIZER.mask_token_id] = "mask"
    texts[IGNORED] = ""
    words = []
    for position in places_of(fields):
        text = texts[int(fields["input_ids"][0, position])]
        predicted = texts[int(labels[0, position])]
        words.append(Word(text, side + int(fields["segment_ids"][0, position]), predicted))
    return words


def mask_of(fields: dict[str, Any], name: str = "attention_mask") -> np.ndarray:
    """Which word of a batch's only row may see which."""
    mask = fields[name][0].bool()
    if mask.dim() == 1:  # every word may see the same ones
        mask = mask.expand(len(mask), -1)
    places = places_of(fields)
    return mask[places][:, places].numpy()


def batch_of(name: str, example: dict[str, str], *predicted: str, **options: Any) -> Any:
    """The sub-batch of the first seed with which only these words are predicted, in this order, and are <mask>."""
    count = len(" ".join(example[key] for key in ("text", "source", "target") if key in example).split())
    collate = OBJECTIVES[name](TOKENIZER, mask_probability=len(predicted) / count, **options)
    for seed in range(10_000):
        torch.manual_seed(seed)
        batch = collate([example])[name]
        words = itertools.chain.from_iterable(map(words_of, inputs_of(batch)))
        answers = [(word.text, word.predicted) for word in words if word.predicted]
        if answers == [("mask", answer) for answer in predicted]:
            return batch
    raise AssertionError(f"no batch of {name} predicts {predicted}")


def panel_of_two(title: str, x: dict[str, Any], y: dict[str, Any], cross: bool = False) -> Panel:
    """Two inputs, which see each other or do not."""
    x_sees_x = mask_of(x)
    y_sees_y = mask_of(y)
    x_sees_y = np.zeros((len(x_sees_x), len(y_sees_y)), bool)
    if cross:  # to what the other side's own mask shows, as the cross-attention does
        x_sees_y[:] = y_sees_y[0]
    y_sees_x = np.zeros((len(y_sees_y), len(x_sees_x)), bool)
    if cross:
        y_sees_x[:] = x_sees_x[0]
    grid = np.block([[x_sees_x, x_sees_y], [y_sees_x, y_sees_y]])
    return Panel(title, grid, [*words_of(x), *words_of(y, 1)])


def mlm() -> list[Panel]:
    x = batch_of("mlm", {"text": ENGLISH}, "house")
    y = batch_of("mlm", {"text": GERMAN}, "klein.")
    return [panel_of_two("MLM: from its own text", x, y)]


def tlm() -> list[Panel]:
    batch = batch_of("tlm", PAIR, "house", "klein.")
    return [Panel("TLM: from both languages", mask_of(batch), words_of(batch))]


def camlm() -> list[Panel]:
    batch = batch_of("camlm", PAIR, "house", "klein.")
    return [Panel("CAMLM: from the other language", mask_of(batch), words_of(batch))]


def btmlm() -> list[Panel]:
    options = dict(languages=["en", "de"], pseudo_share=0.5, target_languages="all")
    batch = batch_of("btmlm", {"text": ENGLISH, "language": "en"}, "house", **options)
    english = [word for word in words_of(batch) if word.side == 0]
    masks = [word for word in words_of(batch) if word.side == 1]
    written = [mask._replace(predicted=text) for mask, text in zip(masks, PSEUDO, strict=True)]
    return [
        Panel("BTMLM 1: write pseudo tokens", mask_of(batch, "generation_mask"), [*map(unmasked, english), *written]),
        Panel("2: predict with their help", mask_of(batch), [*english, *map(unmasked, written)]),
    ]


def unmasked(word: Word) -> Word:
    return Word(word.predicted or word.text, word.side)


def ca_mlm() -> list[Panel]:
    batch = batch_of("ca_mlm_pairs", PAIR, "house", "klein.")
    inner = panel_of_two("CA-MLM, stream H: own side", batch["x"], batch["y"])
    return [inner, panel_of_two("S: also the other's last H states", batch["x"], batch["y"], cross=True)]


def dwa() -> list[Panel]:
    batch = batch_of("tlm", PAIR, "house")
    states = torch.zeros(*batch["input_ids"].shape, 4)
    states[0, places_of(batch)] = torch.eye(4).repeat(2, 1)  # the nth words of both sides mean the same
    links = dwa_labels(states, batch).links_PST[0].bool().numpy()
    x = [word for word in words_of(batch) if word.side == 0]
    y = [word for word in words_of(batch) if word.side == 1]
    queries = []
    for word, links_of_word in zip(x, links, strict=True):
        if word.predicted:
            partner = y[links_of_word.argmax()]
            word = word._replace(predicted=f"position of {partner.text}")
        queries.append(word)
    first = Panel("DWA 1: link the unmasked pair", links, y, list(map(unmasked, x)), "linked words")
    return [first, Panel("2: point at the partner", mask_of(batch), [*queries, *y])]


def word_links() -> list[Panel]:
    collate = OBJECTIVES["word_links"](TOKENIZER)
    batch = collate([PAIR | {"links": "0-0 1-1 2-2 3-3"}])["word_links"]
    links = np.zeros((4, 4), bool)
    links[tuple(batch["links"][:, 1:3].T.numpy())] = True
    read = panel_of_two("word_links: read each side alone", batch["x"], batch["y"])
    return [read, Panel("predict links", links, words_of(batch["y"], 1), words_of(batch["x"]), "gold links")]


def vocabulary_matching() -> list[Panel]:
    old = tokenizer_of("The house is small")
    new = tokenizer_of("the Haus is klein ist")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "de-en.txt"
        path.write_text("haus\thouse\nklein\tsmall\n", encoding="utf-8")
        matching = match_vocabularies(old, new, dictionaries=[Dictionary("de", str(path))])
    first = len(SPECIALS)
    old_tokens = old.convert_ids_to_tokens(range(first, len(old)))
    new_tokens = new.convert_ids_to_tokens(range(first, len(new)))
    grid = np.equal.outer(matching.sources[first:], range(first, len(old)))
    columns = [Word(token, 0) for token in old_tokens]
    rows = [Word(f"{token} ({route})", 1) for token, route in zip(new_tokens, matching.routes[first:], strict=True)]
    text = batch_of("mlm", {"text": ENGLISH}, "house")
    return [
        Panel("MetaXLM 1: MLM, one language", mask_of(text), words_of(text)),
        Panel("copy embeddings", grid, columns, rows, "new token copies old one"),
        mlm()[0]._replace(title="2: MLM, many languages"),
    ]


# each figure is called as its objective, or as the beginning of the names of several
FIGURES = {
    "mlm": mlm,
    "tlm": tlm,
    "camlm": camlm,
    "btmlm": btmlm,
    "ca_mlm": ca_mlm,
    "dwa": dwa,
    "word_links": word_links,
    "vocabulary_matching": vocabulary_matching,
}


def label_of(word: Word) -> str:
    """The text of a word, and what is predicted there."""
    if not word.predicted:
        return word.text
    return f"{word.text} → {word.predicted}"


def draw(name: str, folder: Path) -> None:
    """Writes the figure of this objective. The color of a cell is that of its column's side."""
    panels = FIGURES[name]()
    figure = Figure(figsize=(3.4 * len(panels), 3.2), dpi=150, layout="constrained")
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        columns = panel.columns
        rows = panel.rows or panel.columns
        axes.imshow(np.where(panel.grid, [1 + word.side for word in columns], 0), COLORS, vmin=0, vmax=2)
        axes.set_xticks(range(len(columns)), [word.text for word in columns], rotation=90, size=SIZE)
        axes.set_yticks(range(len(rows)), list(map(label_of, rows)), size=SIZE)
        axes.set_xticks(np.arange(len(columns)) + 0.5, minor=True)
        axes.set_yticks(np.arange(len(rows)) + 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="both", length=0, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(panel.note, size=SIZE)
        axes.set_title(panel.title, size=SIZE + 1, weight="bold")
    figure.savefig(folder / f"objective_{name}.png")


class Attention(NamedTuple):
    """Attention between the tokens of two sentences, x's S and then y's T, in L layers, averaged over the heads.
    weights: (L, S + T, S + T), from the row's token to the column's. words: each token's word."""

    weights: np.ndarray
    tokens: list[str]
    words: list[int]
    size: int  # S


@torch.no_grad()
def read_attention(model: Any, tokenizer: Any, x: list[str], y: list[str]) -> Attention:
    """Of VECO: its cross-attention, from each sentence to the last states of the other. Of any other encoder: its
    self-attention over both sentences in one input. Special tokens are left out."""
    split = partial(tokenizer, is_split_into_words=True, return_tensors="pt")
    if getattr(model.config, "cross_attention", False):
        inputs = [split(x), split(y)]
        states = [model(**batch).last_hidden_state for batch in inputs]
        x_reads = model(**inputs[0], encoder_hidden_states=states[1], output_attentions=True).cross_attentions
        y_reads = model(**inputs[1], encoder_hidden_states=states[0], output_attentions=True).cross_attentions
        x_length, y_length = x_reads[0].shape[2:]
        sides = [0] * x_length + [1] * y_length
        blocks = [torch.block_diag(x.mean(1)[0], y.mean(1)[0]) for x, y in zip(x_reads, y_reads, strict=True)]
        attentions_LTT = [block.roll(x_length, 1) for block in blocks]  # the columns of y came before those of x
    else:
        inputs = [split(x, y)]
        sides = inputs[0].sequence_ids()
        attentions_LTT = [layer.mean(1)[0] for layer in model(**inputs[0], output_attentions=True).attentions]
    positions = []
    tokens = []
    words = []
    size = 0
    word_ids = itertools.chain.from_iterable(batch.word_ids() for batch in inputs)
    all_tokens = itertools.chain.from_iterable(batch.tokens() for batch in inputs)
    for position, (word, token) in enumerate(zip(word_ids, all_tokens, strict=True)):
        if word is not None:
            positions.append(position)
            words.append(word)
            tokens.append(token)
            size += sides[position] == 0
    weights = torch.stack(attentions_LTT).numpy()[:, positions][:, :, positions]
    return Attention(weights, tokens, words, size)


def attention_links(attention: Attention, layer: int) -> list[tuple[int, int]]:
    """Links of the words that have tokens which give each other their largest weight, in a layer from 0."""
    size = attention.size
    words = attention.words
    forward = attention.weights[layer, :size, size:].argmax(1)
    backward = attention.weights[layer, size:, :size].argmax(1)
    return sorted({(words[i], words[size + j]) for i, j in enumerate(forward) if backward[j] == i})


def attention_scores(model: Any, tokenizer: Any, recipe: WordAlignmentRecipe) -> pandas.DataFrame:
    """AER in percent: a row for each layer, from 1, a column for each language pair, and their mean."""
    rows: dict[int, dict[str, float]] = {layer: {} for layer in range(1, model.config.num_hidden_layers + 1)}
    for name, (sentences, gold) in WordAlignmentTask(recipe).read().pairs.items():
        attentions = {number: read_attention(model, tokenizer, *map(list, sentences[number])) for number in gold}
        for layer, row in rows.items():
            links = {number: attention_links(attention, layer - 1) for number, attention in attentions.items()}
            row[name] = score(links, gold)["aer"]
    table = pandas.DataFrame.from_dict(rows, orient="index")
    return table.assign(mean=table.mean(axis=1))


def draw_attention(attention: Attention, path: Path) -> None:
    """Writes the attention of the middle layer as a heat map; rows attend to columns."""
    middle = len(attention.weights) // 2
    figure = Figure(figsize=(4.2, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(attention.weights[middle - 1], cmap="Blues", vmin=0)
    axes.set_xticks(range(len(attention.tokens)), attention.tokens, rotation=90, size=SIZE)
    axes.set_yticks(range(len(attention.tokens)), attention.tokens, size=SIZE)
    axes.axhline(attention.size - 0.5, color="#c8620a", linewidth=1)
    axes.axvline(attention.size - 0.5, color="#c8620a", linewidth=1)
    axes.set_title(f"Attention in layer {middle}, mean of the heads", size=SIZE + 1, weight="bold")
    figure.colorbar(image, shrink=0.6)
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__.partition("\n")[0])
    default = Path("hub_cards/models/figures")
    parser.add_argument("--output", type=Path, metavar="FOLDER", default=default, help=f"default {default}")
    parser.add_argument("--attention", metavar="DIR|ID", help="draw the attention of this model instead")
    sample = ["finetuning/recipes/xlm_align/sample_word_alignment.yaml"]
    parser.add_argument("--pairs", nargs="+", metavar="RECIPE", default=sample, help="gold links, with overrides")
    flags = parser.parse_args(argv)
    flags.output.mkdir(parents=True, exist_ok=True)
    if not flags.attention:
        for name in FIGURES:
            draw(name, flags.output)
        return
    with user_errors():
        recipe = load_recipe(
            WordAlignmentRecipe, flags.pairs[0], ["skip_missing=true", *flags.pairs[1:], f"model={flags.attention}"]
        )
        tokenizer = load_tokenizer(flags.attention)
        # the other implementations give no weights
        model = load_whole(AutoModel, flags.attention, flags.attention, attn_implementation="eager")
        sides = (SEAT.split(), PLATZ.split())
        draw_attention(read_attention(model, tokenizer, *sides), flags.output / "attention.png")
        print(attention_scores(model, tokenizer, recipe).round(1).to_string())


if __name__ == "__main__":
    main()
