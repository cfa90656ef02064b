"""The corpora of a recipe, from its tables to token ids.

`load_corpora` makes a `Corpus` of each `Monolingual` and `Bitext`. sources.py opens the tables, sampling.py chooses the
rows, and batches.py makes batches of them.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from pretraining.data.examples import Example
from pretraining.data.prepared import prepared_corpora
from pretraining.data.sampling import check_batch_sizes, corpus_probabilities
from pretraining.data.sources import Source, match_corpora, open_sources
from pretraining.data.stored import Corpus, stored_corpus
from pretraining.data.streams import StreamedCorpus
from pretraining.data.tokenized import TokenColumn, tokenized_column, tokenizer_fingerprint
from pretraining.recipe import Phase, Recipe
from pretraining.recipe_corpora import Bitext, Corpora, Monolingual, is_selected, languages_of
from zoo_core.recipes import nearest

logger = logging.getLogger(__name__)

LOSSES = {
    "empty": "rows dropped because the text or one side is empty",
    "windowed": "texts longer than max_length, read in windows",
    "alone": "texts of one token without a neighbor in their document",
    "halved": "texts without a neighbor in their document, read as two halves",
    "cut": "pairs cut to max_length",
    "held_out": "rows held out",
}


def load_corpora(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, num_processes: int = 1) -> list[Corpus]:
    """Loads every corpus of the recipe, monolingual ones first. Text is tokenized once and kept on disk; streams are
    opened. If the recipe names prepared shards, these are read, and nothing is tokenized or streamed.

    Texts are cut into windows, and pairs are cut, to the largest max_length of the objectives that read them. The
    numbers of dropped, windowed, cut, unmatched and held-out rows are logged once for each corpus.

    Raises ValueError as `open_sources` or `prepared_corpora`, for a corpus without text, a pattern of a phase that
    matches no corpus, an objective without text in its phase or without text for its teacher, and a batch_size below
    processes x accumulation.
    """
    reader = CorpusReader.of(recipe)
    reader.check(num_processes * recipe.gradient_accumulation_steps)
    return reader.read(tokenizer)


@dataclass(frozen=True)
class CorpusReader:
    """Reads the corpora of a recipe, in the form in which its phases need them."""

    corpora: Corpora
    phases: Sequence[Phase]
    teacher_language: str | None
    hub_root: str | None
    prepared: Path | None  # folder of the shards
    held_out: tuple[float, int]  # share of the rows, and maximum of examples of a corpus
    shuffle_buffer: int
    seed: int
    alpha: float

    @classmethod
    def of(cls, recipe: Recipe) -> "CorpusReader":
        """Makes the reader of a recipe."""
        return cls(
            recipe.named_corpora(),
            recipe.phases,
            recipe.teacher and recipe.teacher.language,
            recipe.hub_root,
            None if recipe.prepared is None else Path(recipe.prepared),
            (recipe.evaluation.held_out_fraction, recipe.evaluation.max_examples),
            recipe.shuffle_buffer,
            recipe.seed,
            recipe.alpha,
        )

    def check(self, shares: int) -> None:
        """Raises ValueError for a phase that finds no text for an objective, or too few examples for `shares`."""
        kinds = {name: corpus.kind for name, corpus in self.corpora.items()}
        for index, phase in enumerate(self.phases):
            where = f"phases.{index}"
            _check_texts({name: kinds[name] for name in match_corpora(phase.corpora, list(kinds), where)}, phase, where)
            check_batch_sizes(phase, where, shares)
            self._check_languages(phase, where)

    def read(self, tokenizer: PreTrainedTokenizerBase) -> list[Corpus]:
        """Reads all corpora, and logs once what each contains."""
        found = []
        for source, columns in self._opened(tokenizer):
            form = _longest_form(self.phases, source.kind)
            if source.streaming:
                order = (self.shuffle_buffer, self.seed)
                found.append(StreamedCorpus(source, tokenizer, *form, *self.held_out, *order))
            else:
                found.append(stored_corpus(source, columns, *form, *self.held_out))
        self._report(found)
        return found

    def _opened(self, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[Source, Sequence[TokenColumn]]]:
        """Yields the sources with their columns of tokens, from prepared shards or from tables; streams have none."""
        fingerprint = tokenizer_fingerprint(tokenizer)
        if self.prepared is not None:
            yield from prepared_corpora(self.corpora, self.prepared, fingerprint, self.hub_root)
            return
        for source in open_sources(self.corpora, self.hub_root):
            sides = [] if source.streaming else source.sides
            yield source, [tokenized_column(side, tokenizer, fingerprint, source.name) for side in sides]

    def _check_languages(self, phase: Phase, where: str) -> None:
        """Raises ValueError if an objective, or the teacher, has no text in a language that it can use."""
        selected = [corpus for name, corpus in self.corpora.items() if is_selected(name, phase.corpora)]
        read = list(dict.fromkeys(corpus.language for corpus in selected if isinstance(corpus, Monolingual)))
        pairs = [languages_of(corpus) for corpus in self.corpora.values() if isinstance(corpus, Bitext)]
        for name, objective in phase.objectives.items():
            objective.check_text(f"{where}.objectives.{name}", read, pairs)
            if objective.has_teacher and self.teacher_language not in read:
                raise ValueError(
                    f"teacher.language is {self.teacher_language!r}, but {where} ({phase.name}), which learns {name}, "
                    f"has monolingual corpora of {', '.join(read)}. {nearest(self.teacher_language, read)}"
                )

    def _report(self, corpora: list[Corpus]) -> None:
        """Logs once for each corpus its size, how often it is drawn, and how much text was dropped or cut."""
        for kind in dict.fromkeys(corpus.kind for corpus in corpora):
            group = [corpus for corpus in corpora if corpus.kind == kind]
            declared = [corpus.name for corpus in group if corpus.source.declared_size]
            if 0 < len(declared) < len(group):
                logger.info("%s: sizes of %s are declared, those of the others counted", kind, ", ".join(declared))
            shares = corpus_probabilities(group, self.alpha)
            for corpus, share in zip(group, shares, strict=True):
                lost = [f"{number:,} {text}" for name, text in LOSSES.items() if (number := corpus.counts.get(name, 0))]
                lost += [
                    f"{number:,} rows of {name.removeprefix('unmatched_')} without a partner"
                    for name, number in corpus.counts.items()
                    if name.startswith("unmatched_") and number
                ]
                counts = f"streamed, N {corpus.size:,}"
                if not corpus.streaming:
                    counts = f"{corpus.counts['examples']:,} examples"
                losses = "".join(f"; {item}" for item in lost)
                logger.info("%s: %s, drawn %.1f%%%s", corpus.name, counts, 100 * share, losses)


def tokens_of_text(corpora: list[Corpus]) -> np.ndarray:
    """Returns (C,): the sorted ids of the tokens that occur in the corpora. Raises ValueError for a stream."""
    if streamed := [corpus.name for corpus in corpora if corpus.streaming]:
        raise ValueError(
            f"{streamed[0]} is streamed: its tokens are not known. Prepare the corpora first "
            "(`python -m pretraining.tools.prepare`)."
        )
    chunks = [chunk for corpus in corpora for column in corpus.columns for chunk in column.chunks]
    return np.unique(np.concatenate([np.unique(chunk) for chunk in chunks]))


def unigram_entropy(examples: list[Example]) -> float:
    """Returns the entropy of the tokens in `examples`, in nats: the loss of a model that knows only frequencies."""
    counts = np.unique(np.concatenate([side for example in examples for side in example.sides]), return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _longest_form(phases: Sequence[Phase], kind: str) -> tuple[int, bool]:
    """Returns (max_length, apart) of the objective with the longest texts of a kind, or of all if none reads it."""
    objectives = [objective for phase in phases for objective in phase.with_examples.values()]
    reading = [objective for objective in objectives if objective.text == kind]
    longest = max(reading or objectives, key=lambda objective: objective.text_length)
    return longest.text_length, longest.apart and bool(reading)


def _check_texts(kinds: dict[str, str], phase: Phase, where: str) -> None:
    """Raises ValueError if an objective has no corpus of its kind among `kinds` (corpus name -> kind)."""
    for name, objective in phase.objectives.items():
        if objective.text not in kinds.values():
            raise ValueError(
                f"{where} ({phase.name}) has the objective {name}, which reads {objective.text} text, but its corpora "
                f"are {', '.join(kinds) or 'none'}. Add a pattern to {where}.corpora, or remove {name}."
            )
