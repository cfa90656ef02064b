"""Losses by corpus, and the figures of a log line: since the line before, over all processes."""

import itertools
import math
import resource
import time
from collections import Counter

import torch
from accelerate import Accelerator

from pretraining.data.corpora import Corpus
from pretraining.objectives import OBJECTIVES
from pretraining.rows import inputs_of


class Meter:
    """Sums of token losses by loss (an objective or one of its terms) and corpus, on the device until they are read."""

    def __init__(self, losses: list[str], corpora: list[Corpus], accelerator: Accelerator, phase_step: int = 0):
        """`losses`: `Phase.losses`; `phase_step`: the number of steps already done in the phase."""
        self.accelerator, self.shortened = accelerator, Counter()
        self.slots = {key: slot for slot, key in enumerate(itertools.product(losses, (one.name for one in corpora)))}
        # row 0: sum of losses in nats, row 1: number of predictions
        self.sums_2K = torch.zeros(2, len(self.slots), dtype=torch.float64, device=accelerator.device)
        self.tokens = self.sums_2K.new_zeros(())
        self.restart(phase_step)

    def restart(self, phase_step: int) -> None:
        """Starts the clock of a line again after evaluating and saving, which do not count as training time."""
        self.since, self.seconds = phase_step, time.perf_counter()

    def add(self, batch: dict, output) -> None:
        """Adds a micro-batch on the device and its `PreTrainingOutput`. `languages` of a sub-batch names each row's
        corpus."""
        for loss, losses_N in output.token_losses.items():
            objective = loss.partition(".")[0]
            names = batch[OBJECTIVES[objective].reads or objective]["languages"]
            slots_B = torch.tensor([self.slots[loss, name] for name in names], device="cpu")
            slots_N = slots_B.to(losses_N.device, non_blocking=True)[output.batch_rows[loss]]
            self.sums_2K[0].index_add_(0, slots_N, losses_N.double())
            self.sums_2K[1].index_add_(0, slots_N, torch.ones_like(losses_N, dtype=torch.float64))
        for name, sub_batch in batch.items():
            self.tokens += sum((fields["segment_ids"] >= 0).sum() for fields in inputs_of(sub_batch))
            self.shortened[name] += sub_batch.get("shortened", 0)

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
        device, (means, loss) = self.accelerator.device, self.means()
        counts = torch.tensor([float(self.tokens), *self.shortened.values()], dtype=torch.float64, device=device)
        tokens, *shortened = self.accelerator.reduce(counts).tolist()
        seconds = time.perf_counter() - self.seconds
        # the peak, of the GPU or, on a CPU, of this process; Linux counts in KiB
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        line = {
            **({} if loss is None else {"loss": loss}),
            **{f"loss/{key}": value for key, value in means.items()},
            # fp16 skips a step whose norm is not finite; a step without predictions has none
            "grad_norm": grad_norm if math.isfinite(grad_norm) else None,
            "predictions": int(predictions),
            "tokens_per_second": tokens / seconds,
            "steps_per_second": (phase_step - self.since) / seconds,
            "memory_gib": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else memory,
            **{f"shortened/{name}": int(of) for name, of in zip(self.shortened, shortened, strict=True) if of},
        }
        self.tokens.zero_()
        self.shortened.clear()
        return line
