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

from crosslingual_zoo.modeling.symmetrization import wide, wide_type
from crosslingual_zoo.pretraining.data.batches import Feed, phase_corpora
from crosslingual_zoo.pretraining.data.corpora import Corpus, unigram_entropy
from crosslingual_zoo.pretraining.objectives import OBJECTIVES
from crosslingual_zoo.pretraining.recipe import Phase
from crosslingual_zoo.pretraining.rows import inputs_of
from crosslingual_zoo.pretraining.start.teacher import TeacherModel
from crosslingual_zoo.zoo_core.provenance import resident_bytes


class Meter:
    """Sums of token losses by loss (an objective or one of its terms) and corpus, on the device until they are read."""

    def __init__(self, losses: list[str], corpora: list[Corpus], accelerator: Accelerator, phase_step: int = 0):
        """`losses`: `Phase.losses`; `phase_step`: the number of steps already done in the phase."""
        self.accelerator = accelerator
        self.slots = {key: slot for slot, key in enumerate(product(losses, (one.name for one in corpora)))}
        # row 0: sum of losses in nats, row 1: number of predictions
        dtype = wide_type(accelerator.device)
        self.sums_2K = torch.zeros(2, len(self.slots), dtype=dtype, device=accelerator.device)
        self.tokens = self.sums_2K.new_zeros(())
        self.restart(phase_step)

    def restart(self, phase_step: int) -> None:
        """Starts the clock of a line again after evaluating and saving, which do not count as training time."""
        self.since, self.seconds = phase_step, time.perf_counter()

    def add(self, batch: dict, output) -> None:
        """Adds a micro-batch on the device and its `PreTrainingOutput`. `corpus_names` of a sub-batch has each row's
        corpus."""
        for loss, losses_N in output.token_losses.items():
            objective = loss.partition(".")[0]
            names = batch[OBJECTIVES[objective].reads or objective]["corpus_names"]
            slots_B = torch.tensor([self.slots[loss, name] for name in names], device="cpu")
            slots_N = slots_B.to(losses_N.device, non_blocking=True)[output.batch_rows[loss]]
            wide_losses_N = wide(losses_N)
            self.sums_2K[0].index_add_(0, slots_N, wide_losses_N)
            self.sums_2K[1].index_add_(0, slots_N, torch.ones_like(wide_losses_N))
        for sub_batch in batch.values():
            self.tokens += sum((fields["segment_ids"] >= 0).sum() for fields in inputs_of(sub_batch))

    def means(self) -> tuple[dict[str, float], float | None]:
        """Returns means by `<objective>/<corpus>` and the mean of all, over all processes, and starts again.

        Without predictions there is no mean.
        """
        sums, counts = self.accelerator.reduce(self.sums_2K).tolist()
        self.sums_2K.zero_()
        rows = zip(self.slots, sums, counts, strict=True)
        means = {f"{loss}/{corpus}": total / count for (loss, corpus), total, count in rows if count}
        return means, sum(sums) / sum(counts) if any(counts) else None

    def line(self, phase_step: int, predictions: float, grad_norm: float) -> dict:
        """Returns the figures of events.jsonl up to `phase_step`. All processes must call this together."""
        device = self.accelerator.device
        means, loss = self.means()
        tokens = float(self.accelerator.reduce(self.tokens))
        seconds = time.perf_counter() - self.seconds
        line = {} if loss is None else {"loss": loss}
        line |= {f"loss/{key}": value for key, value in means.items()} | {
            # fp16 skips a step whose norm is not finite; a step without predictions has none
            "grad_norm": grad_norm if math.isfinite(grad_norm) else None,
            "predictions": int(predictions),
            "tokens_per_second": tokens / seconds,
            "steps_per_second": (phase_step - self.since) / seconds,
            "memory_gib": peak_bytes(device) / 2**30,
        }
        self.tokens.zero_()
        return line


def peak_bytes(device: torch.device) -> int:
    """Returns the most memory held up to now: of a GPU or, on a CPU, by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident_bytes(resource.getrusage(resource.RUSAGE_SELF))


@torch.no_grad()
def evaluate(
    model: Any, accelerator: Accelerator, feed: Feed, phase: Phase, batch_size: int, teacher: TeacherModel | None
) -> dict[str, float]:
    """Returns held-out losses in nats by objective and corpus, with unigram entropies, and the objectives' own figures.

    The masks are the same at every call. If a loss is below the unigram entropy of the same text, the model has
    learned more than the frequency of each token. The batches are divided among the processes.
    """
    corpora, collators = phase_corpora(feed.corpora, phase), feed.collators(phase).values()
    was_training = model.training
    model.eval()
    unused, meter = phase.unused_losses(model), Meter(phase.losses(model), corpora, accelerator)
    for collator in collators:
        batches = feed.held_out(phase, collator, batch_size)
        for batch in islice(batches, accelerator.process_index, None, accelerator.num_processes):
            batch = send_to_device(batch, accelerator.device)
            with accelerator.autocast():
                if teacher:
                    teacher.answer(batch, phase.objectives, unused)
                meter.add(batch, model(**batch, objective_weights=unused))
    figures = {f"held_out/{key}": value for key, value in meter.means()[0].items()}
    for corpus, collator in product(corpora, (one for one in collators if one.mask_probability)):
        losses = [f"{loss}/{corpus.name}" for loss in model.losses_of_objective(collator.name)]
        if evaluated := [loss for loss in losses if f"held_out/{loss}" in figures]:
            entropy = unigram_entropy(feed.held_out_examples(corpus, collator))
            figures |= {f"unigram_entropy/{loss}": entropy for loss in evaluated}
    for corpus, collator in product(corpora, collators):
        figures |= collator.measure(model, accelerator, corpus, batch_size)
    model.train(was_training)
    return figures
