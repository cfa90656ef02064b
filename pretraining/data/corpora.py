"""The corpora of a recipe, from its tables to token ids.

`load_corpora` gives each `Monolingual` and `Bitext` a `Corpus`. Where rows come from is in sources.py, which are drawn
in sampling.py, and the batches that are made of them in batches.py.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from pretraining.data.batches import packings
from pretraining.data.examples import Example
from pretraining.data.prepared import prepared_corpora
from pretraining.data.sampling import check_batch_sizes, corpus_probabilities
from pretraining.data.sources import Source, match_corpora, open_sources
from pretraining.data.stored import Corpus, stored_corpus
from pretraining.data.streams import StreamedCorpus
from pretraining.data.tokenized import TokenColumn, tokenized_column, tokenizer_fingerprint
from pretraining.recipe import Bitext, Corpora, Monolingual, Phase, Recipe, is_selected, languages_of
from zoo_core.recipes import nearest

logger = logging.getLogger(__name__)

LOSSES = {
    "empty": "rows dropped, because they or one side are empty",
    "windowed": "texts longer than max_length, read in windows",
    "alone": "texts of one token without a neighbor in their document",
    "halved": "texts without a neighbor in their document, read as two halves",
    "cut": "pairs cut to max_length",
    "held_out": "rows held out",
}


def load_corpora(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, num_processes: int = 1) -> list[Corpus]:
    """Every corpus of the recipe, monolingual ones first, tokenized once and kept on disk; streams are opened. Where
    the recipe names prepared shards they are read, and nothing is tokenized or streamed.

    Texts are windowed or cut to the largest max_length of the objectives that read their kind. What was dropped,
    windowed, cut, unmatched or held out is logged once for each corpus.

    Raises ValueError for what `open_sources` or `prepared_corpora` list, a corpus without text, a pattern of a phase
    that matches no corpus, an objective for which its phase has no text, or none that its teacher reads, and a
    batch_size below processes x accumulation.
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
    held_out: tuple[float, int]  # share of the rows, and examples of a corpus that are used
    shuffle_buffer: int
    seed: int
    alpha: float

    @classmethod
    def of(cls, recipe: Recipe) -> "CorpusReader":
        """Of a recipe."""
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
        """All corpora; says once what each holds."""
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

    def token_counts(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, np.ndarray | None]:
        """{language: (V) int64 how often each token occurs in its text}, whatever trains on it; None for a language
        whose text is streamed, all of it: streams are not opened."""
        streamed: list[str] = []
        stored = dict(self.corpora)
        for name, corpus in self.corpora.items() if self.prepared is None else ():
            tables = [corpus.table, corpus.source, corpus.target] if isinstance(corpus, Bitext) else [corpus]
            tables = [table for table in tables if table is not None]
            if tables and all(table.streaming for table in tables):
                streamed += languages_of(stored.pop(name))
        counts: dict[str, np.ndarray] = {}
        seen = set()  # pairs are mostly made of the monolingual tables
        for source, columns in replace(self, corpora=stored)._opened(tokenizer):
            for language, column in zip(source.languages, columns, strict=False):  # links have more
                if column.fingerprint not in seen:
                    seen.add(column.fingerprint)
                    of_language = counts.setdefault(language, np.zeros(len(tokenizer), dtype=np.int64))
                    for tokens in column.chunks:
                        of_language += np.bincount(tokens, minlength=len(tokenizer))
        return dict.fromkeys(streamed) | counts

    def _opened(self, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[Source, Sequence[TokenColumn]]]:
        """The sources with their columns of tokens, from prepared shards or from tables; streams have none."""
        fingerprint = tokenizer_fingerprint(tokenizer)
        if self.prepared is not None:
            yield from prepared_corpora(self.corpora, self.prepared, fingerprint, self.hub_root)
            return
        for source in open_sources(self.corpora, self.hub_root):
            sides = [] if source.streaming else source.sides
            yield source, [tokenized_column(side, tokenizer, fingerprint, source.name) for side in sides]

    def _check_languages(self, phase: Phase, where: str) -> None:
        """Raises ValueError where an objective, or the teacher, finds no text in a language that it can use."""
        selected = [corpus for name, corpus in self.corpora.items() if is_selected(name, phase.corpora)]
        read = list(dict.fromkeys(corpus.language for corpus in selected if isinstance(corpus, Monolingual)))
        pairs = [languages_of(corpus) for corpus in self.corpora.values() if isinstance(corpus, Bitext)]
        for name, objective in phase.objectives.items():
            objective.check_text(f"{where}.objectives.{name}", read, pairs)
            if objective.has_teacher and self.teacher_language not in read:
                raise ValueError(
                    f"teacher.language is {self.teacher_language!r}, and the monolingual corpora of {where} "
                    f"({phase.name}), which learns {name}, are {', '.join(read)}. "
                    f"{nearest(self.teacher_language, read)}"
                )

    def _report(self, corpora: list[Corpus]) -> None:
        """Says once what each corpus holds, how often it is drawn, and what it lost."""
        for kind in dict.fromkeys(corpus.kind for corpus in corpora):
            group = [corpus for corpus in corpora if corpus.kind == kind]
            declared = [corpus.name for corpus in group if corpus.source.declared_size]
            if 0 < len(declared) < len(group):
                logger.info("%s: sizes are declared for %s and counted for the others", kind, ", ".join(declared))
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
        for phase in self.phases:
            for name, packed in packings(corpora, phase, self.seed):
                logger.info("%s: packed for %s (phase %s): %s", packed.name, name, phase.name, packed)


def tokens_of_text(corpora: list[Corpus]) -> np.ndarray:
    """(C,) ids of the tokens that the corpora hold, in order. Raises ValueError for a stream."""
    if streamed := [corpus.name for corpus in corpora if corpus.streaming]:
        raise ValueError(
            f"model.predict_among is text, and {streamed[0]} is streamed: its tokens are not known. Prepare the "
            "corpora first (`python -m pretraining.tools.prepare`), or predict among the vocabulary."
        )
    chunks = [chunk for corpus in corpora for column in corpus.columns for chunk in column.chunks]
    return np.unique(np.concatenate([np.unique(chunk) for chunk in chunks]))


def unigram_entropy(examples: list[Example]) -> float:
    """Entropy of the distribution of tokens in `examples`, in nats: the loss of a model that knows frequencies only."""
    counts = np.unique(np.concatenate([side for example in examples for side in example.sides]), return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _longest_form(phases: Sequence[Phase], kind: str) -> tuple[int, bool]:
    """(max_length, apart) of the objective that reads most of a kind of text, or of all where none reads it."""
    objectives = [objective for phase in phases for objective in phase.with_examples.values()]
    reading = [objective for objective in objectives if objective.text == kind]
    longest = max(reading or objectives, key=lambda objective: objective.text_length)
    return longest.text_length, longest.apart and bool(reading)


def _check_texts(kinds: dict[str, str], phase: Phase, where: str) -> None:
    """Raises ValueError where an objective finds no corpus of its kind among `kinds` (corpus name -> kind)."""
    for name, objective in phase.objectives.items():
        if objective.text not in kinds.values():
            raise ValueError(
                f"{where} ({phase.name}) has the objective {name}, which reads {objective.text} text, and its "
                f"corpora are {', '.join(kinds) or 'none'}: widen the patterns of {where}.corpora, or take {name} out."
            )
