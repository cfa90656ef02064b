"""The entrance: from the text of a recipe to batches. Start to read here.

`load_corpora` opens the tables (sources.py), turns each column of text into token ids on disk (readings.py, store.py),
and makes a `Corpus` (corpora.py) with an index of its examples (example_index.py). `training_batches` draws the
examples of each step (sampling.py, languages.py), reads them as `Texts` (examples.py), and lets the objectives mask
them. `held_out_batches` does the same with held-out text.

Objectives come with the recipe: a `Collator` of objectives/base.py. Used here are its `name`, `batch_size`, the kind of
corpora that it reads (`text`, `reads_corpus`), the form of its rows (`text_length`, `apart`), and `sub_batch`.
"""

import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from crosslingual_zoo.pretraining.data.corpora import Corpus
from crosslingual_zoo.pretraining.data.examples import Texts
from crosslingual_zoo.pretraining.data.languages import Languages, corpus_probabilities
from crosslingual_zoo.pretraining.data.readings import reading_fingerprint
from crosslingual_zoo.pretraining.data.sampling import BatchSampler, Drawn, micro_batches
from crosslingual_zoo.pretraining.data.sources import Source, open_sources
from crosslingual_zoo.pretraining.data.store import tokenize_column
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.recipe_corpora import is_selected
from crosslingual_zoo.pretraining.recipe_phases import Phase

logger = logging.getLogger(__name__)


def load_corpora(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, num_processes: int = 1) -> list[Corpus]:
    """Loads every corpus of a checked recipe, monolingual ones first. Text is tokenized once and kept on disk.

    Texts are cut into windows, and pairs are cut, to the largest max_length of the objectives that read them. How often
    a corpus is drawn, and how many of its rows are dropped, windowed, cut, unmatched or held out, is logged.

    Raises ValueError as `open_sources`, for a corpus without text, and a batch_size below processes x accumulation.
    """
    readers = _readers(recipe, num_processes)
    fingerprint = reading_fingerprint(tokenizer)
    corpora = []
    for source in open_sources(recipe.named_corpora(), recipe.hub_root):
        columns = [tokenize_column(side, tokenizer, fingerprint, source.name) for side in source.sides]
        max_length, apart = _longest_form(source, readers)
        held_out = recipe.evaluation
        corpora.append(Corpus(source, columns, max_length, apart, held_out.held_out_fraction, held_out.max_examples))
    _log_shares(corpora, recipe.alpha)
    return corpora


def _readers(recipe: Recipe, num_processes: int) -> list[Any]:
    """Returns the objectives of all phases that read text. Raises ValueError for a batch too small to be divided."""
    shares = num_processes * recipe.gradient_accumulation_steps
    readers = []
    for index, phase in enumerate(recipe.phases):
        for name, objective in phase.with_examples.items():
            if objective.batch_size < shares:
                option = f"phases.{index}.objectives.{name}.batch_size"
                raise ValueError(f"{option} must be at least {shares}: processes x accumulation.")
            readers.append(objective)
    return readers


def _longest_form(source: Source, readers: list[Any]) -> tuple[int, bool]:
    """Returns the positions of the longest rows that are made of a corpus, and whether its sides are apart in them."""
    readers_of_kind = [reader for reader in readers if reader.text == source.corpus.kind]
    if readers_of_kind:
        longest = max(readers_of_kind, key=lambda reader: reader.text_length)
        return longest.text_length, longest.apart
    return max(reader.text_length for reader in readers), False


def _log_shares(corpora: list[Corpus], alpha: float) -> None:
    """Logs how often each corpus is drawn, and what was done to its rows."""
    for kind in dict.fromkeys(corpus.kind for corpus in corpora):
        corpora_of_kind = [corpus for corpus in corpora if corpus.kind == kind]
        declared = [corpus.name for corpus in corpora_of_kind if corpus.source.corpus.size]
        if 0 < len(declared) < len(corpora_of_kind):
            logger.info("%s: sizes of %s are declared, those of the others counted", kind, ", ".join(declared))
        shares = corpus_probabilities(corpora_of_kind, alpha)
        for corpus, share in zip(corpora_of_kind, shares, strict=True):
            numbers = corpus.counts | {"held_out": len(corpus.evaluated)}  # examples that are evaluated
            counts = ", ".join(f"{name} {count:,}" for name, count in numbers.items() if count)
            logger.info("%s: drawn %.1f%%; %s", corpus.name, 100 * share, counts)


def phase_corpora(corpora: list[Corpus], phase: Phase) -> list[Corpus]:
    """Returns the corpora that a phase reads."""
    return [corpus for corpus in corpora if is_selected(corpus.name, phase.corpora)]


def phase_collators(
    phase: Phase, tokenizer: PreTrainedTokenizerBase, languages: Languages | None = None
) -> dict[str, Any]:
    """Returns the objectives of a phase that read their own examples, with the run's tokenizer and languages."""
    # the rows of these need random numbers, because another objective reads them there (DWA those of TLM)
    with_draws = {objective.reads for objective in phase.objectives.values() if objective.reads_draws}
    collators = {}
    for name, objective in phase.with_examples.items():
        collators[name] = replace(objective, tokenizer=tokenizer, languages=languages, draws=name in with_draws)
    return collators


def training_batches(
    recipe: Recipe,
    phase_index: int,
    corpora: list[Corpus],
    tokenizer: PreTrainedTokenizerBase,
    config: PreTrainedConfig | None = None,
    first_step: int = 0,
    num_processes: int = 1,
    process_index: int = 0,
) -> DataLoader:
    """Returns the micro-batches of a phase from step `first_step` on, for one of the processes.

    A micro-batch is a dict of the collators' results by objective, on the CPU. `config` is the model's, whose <mask>
    may carry a language. The loader divides the text among the processes itself, so do not pass it to
    `Accelerator.prepare`. Iterate over it once. It does not use torch's global generator, so that dropout is the same
    in a resumed run.
    """
    phase = recipe.phases[phase_index]
    key = (recipe.seed, phase_index)
    collators = phase_collators(phase, tokenizer, Languages.of(config, corpora, recipe.alpha))
    corpora_by_objective = {}
    samplers = {}
    for name, collator in collators.items():
        corpora_read = {}
        for index, corpus in enumerate(phase_corpora(corpora, phase)):
            if collator.reads_corpus(corpus):
                corpora_read[index] = corpus.with_form(collator.text_length, collator.apart)
        corpora_by_objective[name] = corpora_read
        samplers[name] = BatchSampler(key, collator, corpora_read, recipe.alpha)
    steps = range(first_step, phase.steps)
    accumulation = recipe.gradient_accumulation_steps
    if recipe.num_workers:
        # tokenizers' threads do not work after the fork of a worker; without this, each worker warns
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return DataLoader(
        MaskedExamples(corpora_by_objective, collators, key),
        batch_size=None,  # an item is already a batch
        sampler=micro_batches(samplers, steps, num_processes, process_index, accumulation),
        num_workers=recipe.num_workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_ignore_signals,
        generator=torch.Generator(),
    )


def held_out_batches(corpora: list[Corpus], collator: Any, batch_size: int) -> Iterator[dict[str, dict]]:
    """Yields batches of the held-out text that `collator` reads, corpus by corpus, sorted by length.

    The masks depend only on the example and mask_probability, so they are the same in every call, phase and run.
    """
    for corpus in corpora:
        if collator.reads_corpus(corpus):
            texts = corpus.with_form(collator.text_length, collator.apart).held_out_by_length
            for start in range(0, len(texts), batch_size):
                batch = texts[start : start + batch_size]
                yield {collator.name: collator.sub_batch(batch, ("held out",), training=False)}


@dataclass
class MaskedExamples(Dataset):
    """The data set of a `DataLoader`: turns the examples of a micro-batch into a batch, in any process.

    `corpora` are those of each objective by their index in the phase, because each objective has its own lengths. `key`
    is (seed, index of the phase).
    """

    corpora: dict[str, dict[int, Corpus]]
    collators: dict[str, Any]
    key: tuple[int, int]

    # pyrefly: ignore[bad-override-param-name]  # only the loader calls it, with what the sampler yields
    def __getitem__(self, micro_batch: dict[str, Drawn]) -> dict[str, dict]:
        """Returns the masked sub-batches of a micro-batch by objective."""
        sub_batches = {}
        for name, drawn in micro_batch.items():
            texts = read_texts(self.corpora[name], drawn)
            sub_batches[name] = self.collators[name].sub_batch(texts, self.key)
        return sub_batches


def read_texts(corpora: dict[int, Corpus], drawn: Drawn) -> Texts:
    """Reads the examples of a batch from their corpora, and returns them in the batch's order."""
    num_examples = len(drawn.rows_B)
    examples: list[tuple[np.ndarray, ...]] = [()] * num_examples
    names = [""] * num_examples
    ids_B = np.empty(num_examples, dtype=np.int64)
    for index in np.unique(drawn.corpora_B).tolist():
        numbers = np.flatnonzero(drawn.corpora_B == index)
        texts = corpora[index].read(drawn.epochs_B[numbers], drawn.rows_B[numbers])
        ids_B[numbers] = texts.ids
        for number, sides in zip(numbers.tolist(), zip(*texts.sides, strict=True), strict=True):
            examples[number] = sides
            names[number] = corpora[index].name
    sides = [list(side) for side in zip(*examples, strict=True)]
    return Texts(sides, names, ids_B, drawn.epochs_B)


def _ignore_signals(worker: int) -> None:
    """In a data-loading worker: a signal to the whole process group must not end it before the run has saved."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
