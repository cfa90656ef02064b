"""Losses by corpus, and evaluation of a model in training on held-out text.

Legend: `B` sequences, `N` predictions, `K` losses by corpus.
"""

import math
import resource
import time
from itertools import islice, product
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device

from crosslingual_zoo.modeling.masked_lm import ForPreTraining, PreTrainingOutput
from crosslingual_zoo.modeling.symmetrization import wide, wide_type
from crosslingual_zoo.pretraining.data.batches import held_out_batches
from crosslingual_zoo.pretraining.data.corpora import Corpus, unigram_entropy
from crosslingual_zoo.pretraining.objectives import OBJECTIVES, Collator
from crosslingual_zoo.pretraining.recipe_phases import Phase
from crosslingual_zoo.pretraining.rows import inputs_of
from crosslingual_zoo.pretraining.start.teacher import TeacherModel
from crosslingual_zoo.zoo_core.provenance import resident_bytes


class Meter:
    """Sums of token losses by loss (an objective or one of its terms) and corpus, on the device until they are read."""

    def __init__(self, losses: list[str], corpora: list[Corpus], accelerator: Accelerator, phase_step: int = 0):
        """`losses`: `Phase.losses`; `phase_step`: the number of steps already done in the phase."""
        self.accelerator = accelerator
        self.slots: dict[tuple[str, str], int] = {}
        for loss, corpus in product(losses, corpora):
            self.slots[loss, corpus.name] = len(self.slots)
        # row 0: sum of losses in nats, row 1: number of predictions
        dtype = wide_type(accelerator.device)
        self.sums_2K = torch.zeros(2, len(self.slots), dtype=dtype, device=accelerator.device)
        self.tokens = self.sums_2K.new_zeros(())
        self.restart(phase_step)

    def restart(self, phase_step: int) -> None:
        """Starts the clock of a line again after evaluating and saving, which do not count as training time."""
        self.since = phase_step
        self.seconds = time.perf_counter()

    def add(self, batch: dict, output: PreTrainingOutput) -> None:
        """Adds a micro-batch on the device and its output. `corpus_names` of a sub-batch has each row's corpus."""
        for loss, losses_N in output.token_losses.items():
            objective = loss.partition(".")[0]
            corpus_names = batch[OBJECTIVES[objective].reads or objective]["corpus_names"]
            slots_B = torch.tensor([self.slots[loss, name] for name in corpus_names], device="cpu")
            slots_N = slots_B.to(losses_N.device, non_blocking=True)[output.batch_rows[loss]]
            wide_losses_N = wide(losses_N)
            self.sums_2K[0].index_add_(0, slots_N, wide_losses_N)
            self.sums_2K[1].index_add_(0, slots_N, torch.ones_like(wide_losses_N))
        for sub_batch in batch.values():
            for fields in inputs_of(sub_batch):
                self.tokens += (fields["segment_ids"] >= 0).sum()

    def means(self) -> tuple[dict[str, float], float | None]:
        """Returns means by `<objective>/<corpus>` and the mean of all, over all processes, and starts again.

        Without predictions there is no mean.
        """
        sums, counts = self.accelerator.reduce(self.sums_2K).tolist()
        self.sums_2K.zero_()
        means = {}
        for (loss, corpus), total, count in zip(self.slots, sums, counts, strict=True):
            if count:
                means[f"{loss}/{corpus}"] = total / count
        mean = sum(sums) / sum(counts) if means else None
        return means, mean

    def line(self, phase_step: int, predictions: float, grad_norm: float) -> dict[str, float | None]:
        """Returns the figures of events.jsonl up to `phase_step`. All processes must call this together."""
        means, mean = self.means()
        tokens = float(self.accelerator.reduce(self.tokens))
        seconds = time.perf_counter() - self.seconds
        line: dict[str, float | None] = {}
        if mean is not None:
            line["loss"] = mean
        for key, value in means.items():
            line[f"loss/{key}"] = value
        # fp16 skips a step whose norm is not finite; a step without predictions has none
        line["grad_norm"] = grad_norm if math.isfinite(grad_norm) else None
        line["predictions"] = int(predictions)
        line["tokens_per_second"] = tokens / seconds
        line["steps_per_second"] = (phase_step - self.since) / seconds
        line["memory_gib"] = peak_bytes(self.accelerator.device) / 2**30
        self.tokens.zero_()
        return line


def peak_bytes(device: torch.device) -> int:
    """Returns the most memory held up to now: of a GPU or, on a CPU, by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident_bytes(resource.getrusage(resource.RUSAGE_SELF))


@torch.no_grad()
def evaluate(
    model: ForPreTraining,
    accelerator: Accelerator,
    phase: Phase,
    corpora: list[Corpus],
    collators: dict[str, Collator],
    batch_size: int,
    teacher: TeacherModel | None,
) -> dict[str, float]:
    """Returns held-out losses in nats by objective and corpus, with unigram entropies, and the objectives' own figures.

    `corpora` are the phase's corpora, `collators` its `phase_collators`. The masks are the same at every call.
    If a loss is below the unigram entropy of the same text, the model has learned more than the frequency of each
    token. The batches are divided among the processes.
    """
    was_training = model.training
    model.eval()
    unused = phase.unused_losses(model)
    meter = Meter(phase.losses(model), corpora, accelerator)
    for collator in collators.values():
        batches = held_out_batches(corpora, collator, batch_size)
        for batch in islice(batches, accelerator.process_index, None, accelerator.num_processes):
            batch: Any = send_to_device(batch, accelerator.device)
            with accelerator.autocast():
                if teacher:
                    teacher.answer(batch, phase.objectives, unused)
                meter.add(batch, model(**batch, objective_weights=unused))
    losses, _ = meter.means()
    figures = {f"held_out/{key}": value for key, value in losses.items()}
    for corpus, collator in product(corpora, collators.values()):
        if collator.mask_probability:
            figures |= _unigram_entropies(corpus, collator, model.losses_of_objective(collator.name), losses)
    for corpus, collator in product(corpora, collators.values()):
        figures |= collator.measure(model, accelerator, corpus, batch_size)
    model.train(was_training)
    return figures


def _unigram_entropies(
    corpus: Corpus, collator: Collator, names: list[str], losses: dict[str, float]
) -> dict[str, float]:
    """Returns the unigram entropy of a corpus' held-out text for each of the named losses that was evaluated on it."""
    keys = [f"{name}/{corpus.name}" for name in names]
    evaluated = [key for key in keys if key in losses]
    if not evaluated:
        return {}
    entropy = unigram_entropy(corpus.with_form(collator.text_length, collator.apart).held_out)
    return {f"unigram_entropy/{key}": entropy for key in evaluated}
