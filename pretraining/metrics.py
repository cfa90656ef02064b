"""Losses by corpus, and the figures of a log line: since the line before, over all processes."""

import math
import resource
import time
from collections import Counter

import torch

from pretraining.data.corpora import Corpus
from pretraining.objectives import OBJECTIVES
from pretraining.rows import inputs_of


class LossMeter:
    """Sums of token losses by loss (an objective or one of its terms) and corpus, on the device until a line is due."""

    def __init__(self, losses: list[str], corpora: list[str], device: torch.device):
        self.keys = [(loss, corpus) for loss in losses for corpus in corpora]
        self.slots = {key: slot for slot, key in enumerate(self.keys)}
        # row 0: sum of losses in nats, row 1: number of predictions
        self.sums_2K = torch.zeros(2, len(self.keys), dtype=torch.float64, device=device)

    def add(self, batch: dict, output) -> None:
        """Adds the token losses of a `PreTrainingOutput`; `batch[objective]["languages"]` names each row's corpus."""
        for loss, losses_N in output.token_losses.items():
            objective = loss.partition(".")[0]
            languages = batch[OBJECTIVES[objective].reads or objective]["languages"]
            slots_B = torch.tensor([self.slots[loss, name] for name in languages], device=losses_N.device)
            slots_N = slots_B[output.batch_rows[loss]]
            self.sums_2K[0].index_add_(0, slots_N, losses_N.double())
            self.sums_2K[1].index_add_(0, slots_N, torch.ones_like(losses_N, dtype=torch.float64))

    def means(self, accelerator) -> tuple[dict[str, float], float | None]:
        """Returns means by `<objective>/<corpus>` and the mean of all, over all processes; then starts again.

        Without predictions there is no mean.
        """
        sums, counts = accelerator.reduce(self.sums_2K, reduction="sum").tolist()
        self.sums_2K.zero_()
        rows = zip(self.keys, sums, counts, strict=True)
        means = {f"{loss}/{corpus}": total / count for (loss, corpus), total, count in rows if count}
        return means, sum(sums) / sum(counts) if any(counts) else None


class StepLog:
    """Collects micro-batches; `line` gives the figures of events.jsonl."""

    def __init__(self, losses: list[str], corpora: list[Corpus], accelerator, phase_step: int):
        """`losses`: `Phase.losses`; `phase_step`: the number of steps already done in the phase."""
        self.accelerator = accelerator
        self.meter = LossMeter(losses, [corpus.name for corpus in corpora], accelerator.device)
        self.restart(phase_step)

    def restart(self, phase_step: int) -> None:
        """Starts a new line after evaluating and saving, which do not count as training time."""
        self.tokens, self.shortened, self.since, self.seconds = 0, Counter(), phase_step, time.perf_counter()

    def count(self, batch: dict) -> None:
        """Counts the tokens of a micro-batch, which is on the CPU."""
        inputs = [fields for sub_batch in batch.values() for fields in inputs_of(sub_batch)]
        self.tokens += sum(int((fields["segment_ids"] >= 0).sum()) for fields in inputs)
        self.shortened.update({name: sub_batch.get("shortened", 0) for name, sub_batch in batch.items()})

    def add(self, batch: dict, output) -> None:
        """Adds the `PreTrainingOutput` of a micro-batch."""
        self.meter.add(batch, output)

    def line(self, phase_step: int, predictions: float, grad_norm: float) -> dict:
        """Returns the figures up to `phase_step`. All processes must call this together."""
        device = self.accelerator.device
        means, loss = self.meter.means(self.accelerator)
        counts = torch.tensor([self.tokens, *self.shortened.values()], dtype=torch.float64, device=device)
        tokens, *shortened = self.accelerator.reduce(counts).tolist()
        seconds = time.perf_counter() - self.seconds
        return {
            **({} if loss is None else {"loss": loss}),
            **{f"loss/{key}": value for key, value in means.items()},
            # fp16 skips a step whose norm is not finite; a step without predictions has none
            "grad_norm": grad_norm if math.isfinite(grad_norm) else None,
            "predictions": int(predictions),
            "tokens_per_second": tokens / seconds,
            "steps_per_second": (phase_step - self.since) / seconds,
            # the peak, of the GPU or, on a CPU, of this process; Linux counts in KiB
            "memory_gib": torch.cuda.max_memory_allocated(device) / 2**30
            if device.type == "cuda"
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            **{f"shortened/{name}": int(of) for name, of in zip(self.shortened, shortened, strict=True) if of},
        }
