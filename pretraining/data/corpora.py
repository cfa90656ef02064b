"""The corpora of a recipe as token ids on disk: their examples, the lengths, and the held-out examples.

`load_corpora` makes a `Corpus` of each entry: sources.py opens the tables, tokenized.py tokenizes them once.

Legend: `R` rows, `N` examples, `S` sides of an example, `M` requested examples.
"""

import logging
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from transformers import PreTrainedTokenizerBase

from crosslingual_zoo.pretraining.data.examples import SPECIALS_OF_PAIR, SPECIALS_OF_TEXT, Example, Texts, cut_pair
from crosslingual_zoo.pretraining.data.languages import corpus_probabilities
from crosslingual_zoo.pretraining.data.sources import Source, held_out_below, open_sources
from crosslingual_zoo.pretraining.data.tokenized import TokenColumn, tokenized_column, tokenizer_fingerprint
from crosslingual_zoo.pretraining.recipe import Recipe

logger = logging.getLogger(__name__)

WINDOWS_OF_A_ROW = 1 << 20  # numbers per row, so that the id of a pair of segments determines row and window


def load_corpora(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, num_processes: int = 1) -> list["Corpus"]:
    """Loads every corpus of a checked recipe, monolingual ones first. Text is tokenized once and kept on disk.

    Texts are cut into windows, and pairs are cut, to the largest max_length of the objectives that read them. How often
    a corpus is drawn, and how many of its rows are dropped, windowed, cut, unmatched or held out, is logged.

    Raises ValueError as `open_sources`, for a corpus without text, and a batch_size below processes x accumulation.
    """
    objectives, shares = [], num_processes * recipe.gradient_accumulation_steps
    for index, phase in enumerate(recipe.phases):
        for name, objective in phase.with_examples.items():
            objectives.append(objective)
            if objective.batch_size < shares:
                place = f"phases.{index}.objectives.{name}.batch_size"
                raise ValueError(f"{place} must be at least {shares}: processes x accumulation.")
    fingerprint, corpora = tokenizer_fingerprint(tokenizer), []
    for source in open_sources(recipe.named_corpora(), recipe.hub_root):
        columns = [tokenized_column(side, tokenizer, fingerprint, source.name) for side in source.sides]
        reading = [objective for objective in objectives if objective.text == source.corpus.kind]
        longest = max(reading or objectives, key=lambda objective: objective.text_length)
        form = longest.text_length, longest.apart and bool(reading)
        held_out = recipe.evaluation.held_out_fraction, recipe.evaluation.max_examples
        corpora.append(Corpus(source, columns, *form, *held_out))
    for kind in dict.fromkeys(corpus.kind for corpus in corpora):
        group = [corpus for corpus in corpora if corpus.kind == kind]
        if 0 < len(declared := [corpus.name for corpus in group if corpus.source.corpus.size]) < len(group):
            logger.info("%s: sizes of %s are declared, those of the others counted", kind, ", ".join(declared))
        for corpus, share in zip(group, corpus_probabilities(group, recipe.alpha), strict=True):
            numbers = corpus.counts | {"held_out": len(corpus.evaluated.ids)}  # those that are evaluated
            counts = ", ".join(f"{name} {count:,}" for name, count in numbers.items() if count)
            logger.info("%s: drawn %.1f%%; %s", corpus.name, 100 * share, counts)
    return corpora


@dataclass
class Parts:
    """Examples as parts of rows: each side is the tokens from `starts` to below `stops` of a row."""

    ids: np.ndarray  # (N,) the same in all runs, held out or not
    rows: np.ndarray  # (S, N)
    starts: np.ndarray  # (S, N)
    stops: np.ndarray  # (S, N)

    def __getitem__(self, examples: np.ndarray) -> "Parts":
        return Parts(self.ids[examples], *(of[:, examples] for of in (self.rows, self.starts, self.stops)))

    def small(self) -> "Parts":
        """Returns it in as few bytes as the numbers need: a corpus may have hundreds of millions of examples."""
        return Parts(*(of.astype(np.min_scalar_type(of.max(initial=0))) for of in vars(self).values()))


class Corpus:
    """Text of one language, or translation pairs, as token ids; `read` reads examples from disk.

    name: `en`, `en-de` or `en-de/ntrex`; languages: its one or two; lengths: (N,) tokens of each training example;
    size: the declared size, or N times `scale`, if more text is there than was read; counts: how many rows were
    dropped, windowed, cut, unmatched or held out; held_out: the examples for evaluation, the first `max_held_out` in
    the order of their rows' hashes.
    """

    def __init__(
        self,
        source: Source,
        columns: list[TokenColumn],
        max_length: int,
        apart: bool,
        held_out_fraction: float,
        max_held_out: int,
        scale: float = 1.0,
    ):
        self.source, self.columns, self.max_length, self.apart = source, columns, max_length, apart
        self.scale = scale
        self.forms: dict[tuple[int, bool], Corpus] = {}
        self.name, self.languages, self.kind = source.name, source.corpus.codes, source.corpus.kind
        self.held_out_fraction, self.max_held_out = held_out_fraction, max_held_out
        below = held_out_below(held_out_fraction)
        if len(columns) > 1:
            training, evaluated, counts = _pairs(columns, source.alignment, max_length, apart, below)
        else:
            divide = _segments if apart else _windows
            training, evaluated, counts = divide(columns[0], max_length - SPECIALS_OF_TEXT, below)
        if len(training.ids) == 0:
            hint = "no adjacent segments: set its `document_column`" if apart else "every row is empty or held out"
            raise ValueError(f"Corpus {self.name} has no text to train on: {hint}.")
        keys = columns[0].keys[evaluated.rows[0]]
        self.training = training.small()
        self.evaluated = evaluated[np.lexsort((evaluated.ids, keys))[:max_held_out]]
        self.lengths = (training.stops - training.starts)[:2].sum(0).astype(np.int32)
        self.size = source.corpus.size or int(len(self.lengths) * scale)
        self.counts = source.counts | counts | {"examples": len(self.lengths)}

    def with_form(self, max_length: int, apart: bool = False) -> "Corpus":
        """Returns the same text, cut to another length, or with its sides apart, without tokenizing it again."""
        form = max_length, apart
        if form == (self.max_length, self.apart):
            return self
        if form not in self.forms:  # for the next evaluation, too
            held_out = self.held_out_fraction, self.max_held_out
            self.forms[form] = Corpus(self.source, self.columns, *form, *held_out, self.scale)
        return self.forms[form]

    def scaled(self, scale: float) -> "Corpus":
        """Returns the same text as a part of `scale` times as much."""
        form = self.max_length, self.apart
        return Corpus(self.source, self.columns, *form, self.held_out_fraction, self.max_held_out, scale)

    @property
    def tokens(self) -> int:
        """The number of tokens of all rows, which take 4 bytes each on disk."""
        return sum(len(chunk) for column in self.columns[:2] for chunk in column.chunks)

    @property
    def held_out(self) -> list[Example]:
        sides = zip(*self._sides(self.evaluated), strict=True)
        return [Example([*of], self.name, int(one)) for of, one in zip(sides, self.evaluated.ids, strict=True)]

    def read(self, epochs_M: np.ndarray, indices_M: np.ndarray) -> Texts:
        """Returns training examples by their indices below len(lengths); their masks depend on the epoch."""
        parts = self.training[indices_M]
        return Texts(self._sides(parts), [self.name] * len(indices_M), parts.ids.astype(np.int64), epochs_M)

    def facts(self) -> dict:
        """Returns the facts of the corpus for run.json."""
        return self.source.facts() | {"size": self.size, "held_out": len(self.evaluated.ids), "counts": self.counts}

    def _sides(self, parts: Parts) -> list[list[np.ndarray]]:
        # both sides of a pair of segments are of one column
        sides = zip(cycle(self.columns), parts.rows, parts.starts, parts.stops, strict=False)
        return [column.slices(*of_side) for column, *of_side in sides]


def _counts(lengths_R: np.ndarray, held_out_R: np.ndarray) -> dict[str, int]:
    """Counts rows, those without text, and those of text that are held out."""
    usable = lengths_R > 0
    held_out = int((usable & held_out_R).sum())
    return {"rows": len(usable), "empty": int((~usable).sum()), "held_out": held_out}


def _windows(column: TokenColumn, room: int, below: int) -> tuple[Parts, Parts, dict[str, int]]:
    """Texts as consecutive windows of at most `room` tokens, which have all tokens of a row.

    Returns training examples, held-out examples (rows with keys under `below`), and counts. An example's id is the
    number of the window in the corpus.
    """
    lengths, held_out = column.lengths, column.keys < below
    windows = -(-lengths // room)
    rows, numbers = _numbered(np.arange(len(lengths)), windows)
    parts = Parts(np.arange(len(rows)), rows[None], (numbers * room)[None], None)
    parts.stops = np.minimum(parts.starts + room, lengths[rows])
    counts = _counts(lengths, held_out) | {"windowed": int((windows > 1).sum())}
    return parts[~held_out[rows]], parts[held_out[rows]], counts


def _pairs(
    columns: list[TokenColumn], rows: np.ndarray | None, max_length: int, apart: bool, below: int
) -> tuple[Parts, Parts, dict[str, int]]:
    """Pairs with two sides that are not empty, and what further columns have in their rows. A long pair is cut, the
    longer side first, or each side to `max_length` if they are read `apart`. Returns the same as `_windows`."""
    if rows is None:
        rows = np.arange(len(columns[0].lengths))[None].repeat(2, axis=0)
    both = list(zip(columns[:2], rows, strict=True))
    lengths, keys = np.stack([of.lengths[r] for of, r in both]), np.stack([of.keys[r] for of, r in both])
    usable = np.flatnonzero(lengths.min(0) > 0)
    counts = _counts(lengths.min(0), (keys < below).any(0))
    room = max_length - (SPECIALS_OF_TEXT if apart else SPECIALS_OF_PAIR)
    kept = np.minimum(lengths, room) if apart else cut_pair(lengths, room)
    counts["cut"] = int((kept != lengths).any(0)[usable].sum())
    rows, stops, keys = rows[:, usable], kept[:, usable], keys[:, usable]
    for column in columns[2:]:
        rows, stops = np.vstack([rows, rows[0]]), np.vstack([stops, column.lengths[rows[0]]])
    parts = Parts(np.arange(len(usable)), rows, np.zeros_like(stops), stops)
    # The sides of a pair may have different identities (one has ids, the other line numbers). A pair is for training if
    # neither side is held out, and for evaluation if both are, so that no side is used for both.
    return parts[(keys >= below).all(0)], parts[(keys < below).all(0)], counts


def _segments(column: TokenColumn, room: int, below: int) -> tuple[Parts, Parts, dict[str, int]]:
    """Pairs of adjacent segments of one document (VECO, section 4 and footnote 9). Returns the same as `_windows`.

    A segment is a row, or one of the equal windows of a row longer than `room`. Two neighbors in a document are an
    example, so most segments are in two examples. Their order has no effect, because the loss (Eq. 1) is symmetric. A
    row without a neighbor gives its two halves. A held-out row does, too, because its neighbors are training text.
    """
    lengths, held_out = column.lengths.astype(np.int64), column.keys < below
    rows = np.flatnonzero((lengths > 0) & ~held_out)
    # a run: consecutive rows of a document, with only empty rows between them
    run_R = np.cumsum(column.new_documents() | held_out)[rows]
    alone = np.bincount(run_R)[run_R] == 1
    windows = np.maximum(-(-lengths[rows] // room), np.where(alone, 2, 1))
    too_short = lengths[rows] < windows  # a single token has no halves
    counts = _counts(lengths, held_out) | {"windowed": int((lengths > room).sum()), "alone": int(too_short.sum())}
    counts["halved"] = int((alone & ~too_short & (lengths[rows] <= room)).sum())
    places, numbers = _numbered(np.flatnonzero(~too_short), windows[~too_short])
    first = np.flatnonzero(run_R[places[1:]] == run_R[places[:-1]])
    both = np.stack([first, first + 1])
    rows_S, numbers_S, windows_S = rows[places[both]], numbers[both], windows[places[both]]
    length_S = lengths[rows_S]
    starts, stops = numbers_S * length_S // windows_S, (numbers_S + 1) * length_S // windows_S
    training = Parts(rows_S[0] * WINDOWS_OF_A_ROW + numbers_S[0], rows_S, starts, stops)
    rows = np.flatnonzero(held_out & (lengths > 1))
    half = lengths[rows] // 2
    starts, stops = [np.maximum(half - room, 0), half], [half, np.minimum(half + room, lengths[rows])]
    evaluated = Parts(rows * WINDOWS_OF_A_ROW, np.stack([rows, rows]), np.stack(starts), np.stack(stops))
    return training, evaluated, counts


def _numbered(items: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Repeats each item; returns also the number of each repetition among those of its item."""
    return np.repeat(items, counts), np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def tokens_of_text(corpora: list[Corpus]) -> np.ndarray:
    """Returns (C,): the sorted ids of the tokens that occur in the corpora."""
    chunks = [chunk for corpus in corpora for column in corpus.columns[:2] for chunk in column.chunks]
    return np.unique(np.concatenate([np.unique(chunk) for chunk in chunks]))


def unigram_entropy(examples: list[Example]) -> float:
    """Returns the entropy of the tokens in `examples`, in nats: the loss of a model that knows only frequencies."""
    counts = np.unique(np.concatenate([side for example in examples for side in example.sides]), return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
