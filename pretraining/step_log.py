"""The figures of a log line: what was trained since the one before, over all processes."""

import math
import time
from collections import Counter

import torch

from pretraining.data.corpora import Corpus
from pretraining.recipe import Phase, loss_names
from pretraining.rows import inputs_of
from pretraining.tracking import LossMeter


class StepLog:
    """Collects micro-batches; `line` gives the figures of events.jsonl."""

    def __init__(self, phase: Phase, corpora: list[Corpus], accelerator, update: int):
        """`update`: the number of steps already done in the phase."""
        self.accelerator = accelerator
        self.meter = LossMeter(loss_names(phase.objectives), [corpus.name for corpus in corpora], accelerator.device)
        self.restart(update)

    def restart(self, update: int) -> None:
        """From here on, so that evaluating and saving do not count as training time."""
        self.tokens, self.shortened, self.since, self.seconds = 0, Counter(), update, time.perf_counter()

    def add(self, batch: dict, output) -> None:
        """Add a micro-batch and its `PreTrainingOutput`."""
        self.meter.add(batch, output)
        inputs = [fields for sub_batch in batch.values() for fields in inputs_of(sub_batch)]
        self.tokens += sum(int((fields["segment_ids"] >= 0).sum()) for fields in inputs)
        self.shortened.update({name: sub_batch.get("shortened", 0) for name, sub_batch in batch.items()})

    def line(self, update: int, predictions: float, grad_norm: float) -> dict:
        """The figures up to `update`. All processes have to ask for them together."""
        device = self.accelerator.device
        counts = self.accelerator.reduce(
            torch.tensor(list(self.shortened.values()), dtype=torch.float64, device=device)
        )
        means, loss = self.meter.means(self.accelerator)
        tokens = self.accelerator.reduce(torch.tensor(float(self.tokens), device=device)).item()
        seconds = time.perf_counter() - self.seconds
        shortened = zip(self.shortened, counts, strict=True)
        return {
            "loss": loss,
            **{f"loss/{key}": value for key, value in means.items()},
            "grad_norm": grad_norm if math.isfinite(grad_norm) else None,  # fp16 skips such a step
            "predictions": int(predictions),
            "tokens_per_second": tokens / seconds,
            "steps_per_second": (update - self.since) / seconds,
            "memory_gib": memory_gib(device),
            **{f"shortened/{name}": int(count) for name, count in shortened if count},
        }


def memory_gib(device: torch.device) -> float:
    """Peak memory so far: of the GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
