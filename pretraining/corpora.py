"""The corpora of a recipe, from its tables to the batches of an update.

`load_corpora` gives each `Monolingual` and `Bitext` a `Corpus` of piece ids, `training_batches` the batches of a phase,
`held_out_batches` those of an evaluation. Where rows come from is in sources.py, which are drawn in sampling.py.
"""

import copy
import logging
import os
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerBase

from pretraining.collators import Collator, MaskedExample, Masker
from pretraining.recipe import OBJECTIVES, Phase, Recipe
from pretraining.sampling import Draw, UpdateSampler, check_batch_sizes, plan_phase, sampling_probabilities
from pretraining.sources import Source, corpus_name, held_out_below, match_corpora, open_sources
from pretraining.streams import StreamCursor, StreamedCorpus, no_text
from pretraining.tokenised import (
    SPECIALS_OF_PAIR,
    SPECIALS_OF_TEXT,
    Example,
    TokenisedColumn,
    cut_pair,
    tokenizer_fingerprint,
)

logger = logging.getLogger(__name__)

KINDS = {1: "monolingual", 2: "bitext"}  # by the number of languages
LOSSES = {
    "empty": "rows dropped, because they or one side are empty",
    "windowed": "texts longer than max_length, read in windows",
    "cut": "pairs cut to max_length",
    "held_out": "rows held out",
}


class Corpus:
    """Text of one language, or translation pairs, as piece ids; `fetch` reads an example from disk.

    name: `en` or `en-de`; languages: its one or two; lengths: (N,) pieces of each training example; size: the declared
    size or N; counts: how many rows were dropped, windowed, cut, unmatched or held out; held_out: the examples of
    evaluation.

    A text longer than max_length becomes consecutive windows that keep all its pieces; the sides of a pair that is
    longer are cut, the longer one first. Empty texts, and pairs with an empty side, are dropped.
    """

    streaming = False

    def __init__(
        self,
        source: Source,
        columns: list[TokenisedColumn],
        max_length: int,
        held_out_fraction: float,
        max_held_out: int,
    ):
        self.source, self.columns, self.max_length = source, columns, max_length
        self.name, self.languages = source.name, source.languages
        self.held_out_below, self.max_held_out = held_out_below(held_out_fraction), max_held_out
        self._arrange()

    def with_max_length(self, max_length: int) -> "Corpus":
        """The same text, windowed or cut to another length; cheap, nothing is tokenised anew."""
        if max_length == self.max_length:
            return self
        other = copy.copy(self)
        other.max_length = max_length
        other._arrange()
        return other

    def _arrange(self) -> None:
        """Numbers the windows of all rows; an example's id is its window's number, held out or not."""
        counts = dict(self.source.counts)
        if len(self.columns) == 1:
            self.rows = np.arange(len(self.columns[0].lengths))[None]
        elif self.source.alignment is not None:
            self.rows = self.source.alignment
        else:
            self.rows = np.arange(len(self.columns[0].lengths))[None].repeat(2, axis=0)
        lengths = np.stack([column.lengths[rows] for column, rows in zip(self.columns, self.rows, strict=True)])
        keys = np.stack([column.keys[rows] for column, rows in zip(self.columns, self.rows, strict=True)])
        # The sides of a pair may be identified apart (one has ids, the other line numbers): a pair is trained on where
        # neither side is held out, and evaluated where both are, so that no evaluated side is trained on anywhere.
        held_out = (keys < self.held_out_below).any(0)
        evaluated = (keys < self.held_out_below).all(0)
        usable = lengths.min(0) > 0
        counts |= {"rows": lengths.shape[1], "empty": int((~usable).sum()), "held_out": int((usable & held_out).sum())}

        if len(self.columns) == 1:
            self.room = self.max_length - SPECIALS_OF_TEXT
            windows = -(-lengths[0] // self.room)
            counts["windowed"] = int((windows > 1).sum())
        else:
            self.room = self.max_length - SPECIALS_OF_PAIR
            windows = usable.astype(np.int64)
            self.kept = cut_pair(lengths, self.room)
            counts["cut"] = int((self.kept != lengths).any(0)[usable].sum())
        # window w of row r is number first[r] + w
        self.first = np.concatenate([[0], np.cumsum(windows, dtype=np.int64)])
        row_of = np.repeat(np.arange(len(windows)), windows)
        training = np.flatnonzero(~held_out[row_of])
        if len(training) == 0:
            raise ValueError(no_text(self.name))
        self.example_ids = training.astype(np.min_scalar_type(self.first[-1]))
        self.lengths = self._window_lengths(row_of, lengths)[training].astype(np.int32)
        by_hash = sorted(np.flatnonzero(evaluated[row_of]), key=lambda window: (keys[0, row_of[window]], window))
        self.held_out_ids = by_hash[: self.max_held_out]
        self.size = self.source.declared_size or len(training)
        self.counts = counts | {"examples": len(training)}

    def _window_lengths(self, row_of: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        if len(self.columns) == 2:
            return self.kept.sum(0)[row_of]
        number = np.arange(len(row_of)) - self.first[row_of]
        return np.minimum(lengths[0][row_of] - number * self.room, self.room)

    @property
    def held_out(self) -> list[Example]:
        """The first `evaluation.max_examples` held-out examples, in the order of their hashes."""
        return [self._read(int(window), 0) for window in self.held_out_ids]

    def fetch(self, epoch: int, index: int) -> Example:
        """Training example `index`, 0 <= index < len(lengths); the epoch keys its masks."""
        return self._read(int(self.example_ids[index]), epoch)

    def facts(self) -> dict:
        """What the corpus was made of, for run.json."""
        return self.source.facts() | {"size": self.size, "held_out": len(self.held_out_ids), "counts": self.counts}

    def _read(self, window: int, epoch: int) -> Example:
        row = int(np.searchsorted(self.first, window, side="right")) - 1
        if len(self.columns) == 2:
            sides = [
                column.ids(int(rows[row]))[: self.kept[side, row]]
                for side, (column, rows) in enumerate(zip(self.columns, self.rows, strict=True))
            ]
            return Example(sides, self.name, window, epoch)
        start = (window - int(self.first[row])) * self.room
        ids = self.columns[0].ids(row)[start : start + self.room]
        return Example([ids], self.name, window, epoch, self.columns[0].document(row))


def load_corpora(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, num_processes: int = 1) -> list[Corpus]:
    """Every corpus of the recipe, monolingual ones first, tokenised once and kept on disk; streams are opened.

    Texts are windowed or cut to the largest max_length of the objectives that read their kind. What was dropped,
    windowed, cut, unmatched or held out is logged once for each corpus.

    Raises ValueError for what `open_sources` lists, a corpus without text, a pattern of a phase that matches no corpus,
    an objective for which its phase has no text, and a batch_size below processes x accumulation.
    """
    names = {corpus_name(corpus): "monolingual" for corpus in recipe.monolingual}
    names |= {corpus_name(corpus): "bitext" for corpus in recipe.bitext}
    for index, phase in enumerate(recipe.phases):
        where = f"phases.{index}"
        _check_texts({name: names[name] for name in match_corpora(phase.corpora, list(names), where)}, phase, where)
        check_batch_sizes(phase, where, num_processes, recipe.gradient_accumulation_steps)

    fingerprint = tokenizer_fingerprint(tokenizer)
    corpora = []
    for source in open_sources(recipe):
        max_length = _longest(recipe, KINDS[len(source.languages)])
        common = (max_length, recipe.evaluation.held_out_fraction, recipe.evaluation.max_examples)
        if source.streaming:
            corpora.append(StreamedCorpus(source, tokenizer, *common, recipe.shuffle_buffer, recipe.seed))
        else:
            columns = [TokenisedColumn(side, tokenizer, fingerprint, source.name) for side in source.sides]
            corpora.append(Corpus(source, columns, *common))
    _report(corpora, recipe)
    return corpora


def phase_corpora(corpora: list[Corpus], phase: Phase) -> list[Corpus]:
    """The corpora that a phase reads. Raises ValueError for a pattern that matches none of them."""
    names = match_corpora(phase.corpora, [corpus.name for corpus in corpora], f"phase {phase.name}")
    return [corpus for corpus in corpora if corpus.name in names]


def unigram_entropy(examples: list[Example]) -> float:
    """Entropy of the distribution of pieces in `examples`, in nats: the loss of a model that knows frequencies only."""
    counts = np.unique(np.concatenate([side for example in examples for side in example.sides]), return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


class MaskedExamples(Dataset):
    """Draw -> masked example: what a `DataLoader` reads, in whichever process."""

    def __init__(
        self, corpora: dict[tuple[str, int], Corpus | StreamedCorpus], phase: Phase, index: int, masker: Masker
    ):
        """`corpora` by (objective, index among the corpora of the phase): objectives cut texts to their own lengths."""
        self.corpora, self.phase, self.phase_index, self.masker = corpora, phase, index, masker
        self.cursors: dict[tuple[str, int], StreamCursor] = {}

    def __getitem__(self, draw: Draw) -> MaskedExample:
        place = (draw.objective, draw.corpus)
        corpus = self.corpora[place]
        if corpus.streaming:
            if place not in self.cursors:
                self.cursors[place] = corpus.cursor(self.phase_index, draw.objective)
            example = self.cursors[place].fetch(draw.position)
        else:
            example = corpus.fetch(draw.epoch, draw.row)
        return self.masker(example, draw.objective, self.phase.objectives[draw.objective].mask_probability)


def training_batches(
    corpora: list[Corpus],
    phase: Phase,
    recipe: Recipe,
    phase_index: int,
    tokenizer: PreTrainedTokenizerBase,
    start_update: int = 0,
    num_processes: int = 1,
    process_index: int = 0,
) -> DataLoader:
    """The batches of one process in one phase: `gradient_accumulation_steps` consecutive ones make an update.

    `corpora` are those of the phase (`phase_corpora`); `start_update` is the number of updates already done in it. A
    batch is what `Collator` returns, on the CPU. The loader shares the text out itself: it must not be passed to
    `Accelerator.prepare`. It takes no number from torch's global generator, so that dropout is the same however a run
    was resumed.
    """
    where = f"phases.{phase_index}"
    kinds = {corpus.name: KINDS[len(corpus.languages)] for corpus in corpora}
    _check_texts(kinds, phase, where)
    views: dict[str, dict[int, Corpus]] = {
        name: {
            index: corpus.with_max_length(objective.max_length)
            for index, corpus in enumerate(corpora)
            if kinds[corpus.name] == OBJECTIVES[name]
        }
        for name, objective in phase.objectives.items()
    }
    plans = plan_phase(recipe.seed, phase_index, phase.objectives, views, recipe.alpha)
    accumulation = recipe.gradient_accumulation_steps
    sampler = UpdateSampler(plans, phase, where, start_update, num_processes, process_index, accumulation)
    examples = MaskedExamples(
        {(name, index): corpus for name, group in views.items() for index, corpus in group.items()},
        phase,
        phase_index,
        Masker(tokenizer, (recipe.seed, phase_index)),
    )
    if recipe.num_workers:
        # tokenizers' threads do not survive the fork of a worker; its own way out is a warning in each of them
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return DataLoader(
        examples,
        batch_sampler=sampler,
        collate_fn=Collator(tokenizer),
        num_workers=recipe.num_workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),
    )


def held_out_batches(
    corpora: list[Corpus], phase: Phase, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, objective: str
) -> Iterator[tuple[str, dict[str, dict]]]:
    """(corpus name, batch of one objective) of the held-out text that an objective reads, by length.

    The masks depend on the example and mask_probability alone: the same at every call, in every phase and run.
    """
    masker, collate = Masker(tokenizer, ("held out",)), Collator(tokenizer)
    probability, size = phase.objectives[objective].mask_probability, recipe.evaluation.batch_size
    for corpus in corpora:
        if KINDS[len(corpus.languages)] != OBJECTIVES[objective]:
            continue
        examples = sorted(corpus.held_out, key=lambda example: sum(map(len, example.sides)))
        for start in range(0, len(examples), size):
            yield corpus.name, collate([masker(e, objective, probability) for e in examples[start : start + size]])


def _longest(recipe: Recipe, kind: str) -> int:
    """The largest max_length of the objectives that read a kind of text, or of all where none does."""
    objectives = [item for phase in recipe.phases for item in phase.objectives.items()]
    reading = [objective for name, objective in objectives if OBJECTIVES[name] == kind]
    return max(objective.max_length for objective in reading or dict(objectives).values())


def _check_texts(kinds: dict[str, str], phase: Phase, where: str) -> None:
    """Raises ValueError where an objective finds no corpus of its kind among `kinds` (corpus name -> kind)."""
    for name in phase.objectives:
        if OBJECTIVES[name] not in kinds.values():
            raise ValueError(
                f"{where} ({phase.name}) has the objective {name}, which reads {OBJECTIVES[name]} text, and its "
                f"corpora are {', '.join(kinds) or 'none'}. Without text there is nothing to learn from. Widen the "
                f"patterns of {where}.corpora ({', '.join(phase.corpora)}), add such a corpus, or take {name} out."
            )


def _report(corpora: list[Corpus], recipe: Recipe) -> None:
    """Says once what each corpus holds, how often it is drawn, and what it lost."""
    for count, kind in KINDS.items():
        group = [corpus for corpus in corpora if len(corpus.languages) == count]
        if not group:
            continue
        declared = [corpus.name for corpus in group if corpus.source.declared_size]
        if 0 < len(declared) < len(group):
            logger.info("%s: sizes are declared for %s and counted for the others", kind, ", ".join(declared))
        shares = sampling_probabilities([corpus.size for corpus in group], recipe.alpha)
        for corpus, share in zip(group, shares, strict=True):
            lost = [f"{number:,} {text}" for name, text in LOSSES.items() if (number := corpus.counts.get(name, 0))]
            lost += [
                f"{number:,} rows of {name.removeprefix('unmatched_')} without a partner"
                for name, number in corpus.counts.items()
                if name.startswith("unmatched_") and number
            ]
            size = f"{corpus.counts['examples']:,} examples" if not corpus.streaming else f"streamed, N {corpus.size:,}"
            logger.info("%s: %s, drawn %.1f%%%s", corpus.name, size, 100 * share, "".join(f"; {item}" for item in lost))
