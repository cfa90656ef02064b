"""The batches of a run: training batches of one process, and batches of held-out text.

sampling.py draws the examples of a step; the collators of `pretraining/objectives/` mask them.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from crosslingual_zoo.pretraining.data.corpora import Corpus
from crosslingual_zoo.pretraining.data.examples import Example, Texts
from crosslingual_zoo.pretraining.data.languages import Languages
from crosslingual_zoo.pretraining.data.sampling import Draw, ObjectivePlan, UpdateSampler
from crosslingual_zoo.pretraining.objectives import Collator
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.recipe_corpora import is_selected
from crosslingual_zoo.pretraining.recipe_phases import Phase


@dataclass
class MaskedExamples(Dataset):
    """The data set of a `DataLoader`: turns the draws of a micro-batch into a batch, in any process.

    `corpora` are those of each objective by their index in the phase, because each objective has its own lengths. `key`
    is (seed, index of the phase).
    """

    corpora: dict[str, dict[int, Corpus]]
    collators: dict[str, Collator]
    key: tuple[int, int]

    def __getitem__(self, draws: list[Draw]) -> dict[str, dict]:
        """Returns the masked sub-batches of a micro-batch by objective."""
        own: dict[str, list[Draw]] = {}
        for draw in draws:
            own.setdefault(draw.objective, []).append(draw)
        return {name: self.collators[name].sub_batch(self._texts(name, some), self.key) for name, some in own.items()}

    def _texts(self, objective: str, draws: list[Draw]) -> Texts:
        """Returns the texts of some draws, in their order."""
        corpus_D, epoch_D, row_D = np.array([(draw.corpus, draw.epoch, draw.row) for draw in draws]).T
        places = [np.flatnonzero(corpus_D == index) for index in dict.fromkeys(corpus_D.tolist())]
        parts = [self.corpora[objective][corpus_D[own[0]]].read(epoch_D[own], row_D[own]) for own in places]
        return Texts.joined(parts, np.argsort(np.concatenate(places)))


class Feed:
    """The text of a run, as batches for one of its processes.

    A batch is a dict of the collators' results by objective, on the CPU. `config` is the model's, whose <mask> may
    carry a language.
    """

    def __init__(
        self,
        recipe: Recipe,
        corpora: list[Corpus],
        tokenizer: PreTrainedTokenizerBase,
        config: PreTrainedConfig | None = None,
        num_processes: int = 1,
        process_index: int = 0,
    ):
        self.recipe, self.corpora, self.tokenizer = recipe, corpora, tokenizer
        self.languages = Languages.of(config, corpora, recipe.alpha)
        self.num_processes, self.process_index = num_processes, process_index

    def training(self, phase: Phase, phase_index: int, start_update: int = 0) -> DataLoader:
        """Returns the micro-batches of a phase after its first `start_update` updates.

        The loader divides the text among the processes itself, so do not pass it to `Accelerator.prepare`. It does not
        use torch's global generator, so that dropout is the same in a resumed run.
        """
        corpora, collators, seed = phase_corpora(self.corpora, phase), self.collators(phase), self.recipe.seed
        views, plans = {}, []
        for name, one in collators.items():
            read = [(index, corpus) for index, corpus in enumerate(corpora) if one.reads_corpus(corpus)]
            views[name] = {index: corpus.with_form(one.text_length, one.apart) for index, corpus in read}
            plans.append(ObjectivePlan(seed, phase_index, one, views[name], self.recipe.alpha))
        if self.recipe.num_workers:
            # tokenizers' threads do not work after the fork of a worker; without this, each worker warns
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        share = (self.num_processes, self.process_index, self.recipe.gradient_accumulation_steps)
        return DataLoader(
            MaskedExamples(views, collators, (seed, phase_index)),
            batch_size=None,  # an item is already a batch
            sampler=UpdateSampler(plans, phase, start_update, *share),
            num_workers=self.recipe.num_workers,
            pin_memory=torch.cuda.is_available(),
            worker_init_fn=_ignore_signals,
            generator=torch.Generator(),
        )

    def held_out(self, phase: Phase, collator: Collator, batch_size: int) -> Iterator[dict[str, dict]]:
        """Yields batches of the held-out text that `collator` reads, corpus by corpus, sorted by length.

        The masks depend only on the example and mask_probability, so they are the same in every call, phase and run.
        """
        for corpus in phase_corpora(self.corpora, phase):
            examples = self.held_out_examples(corpus, collator)
            examples = sorted(examples, key=lambda example: sum(map(len, example.sides)))
            for start in range(0, len(examples), batch_size):
                chunk = Texts.of(examples[start : start + batch_size])
                yield {collator.name: collator.sub_batch(chunk, ("held out",), training=False)}

    def held_out_examples(self, corpus: Corpus, collator: Collator) -> list[Example]:
        """Returns the held-out text of a corpus as a collator reads it; nothing if it does not read the corpus."""
        if not collator.reads_corpus(corpus):
            return []
        return corpus.with_form(collator.text_length, collator.apart).held_out

    def collators(self, phase: Phase) -> dict[str, Collator]:
        """Returns the objectives of a phase that read their own examples, with the run's tokenizer and languages."""
        drawn = {reader.reads for reader in phase.objectives.values() if reader.reads_draws}
        return {
            name: replace(objective, tokenizer=self.tokenizer, languages=self.languages, draws=name in drawn)
            for name, objective in phase.with_examples.items()
        }


def _ignore_signals(worker: int) -> None:
    """In a data-loading worker: a signal to the whole process group must not end it before the run has saved."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def phase_corpora(corpora: list[Corpus], phase: Phase) -> list[Corpus]:
    """Returns the corpora that a phase reads."""
    return [corpus for corpus in corpora if is_selected(corpus.name, phase.corpora)]
