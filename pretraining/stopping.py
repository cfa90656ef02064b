"""Reasons to end a run between two steps: a signal, unreadable data, and a loss or gradient that is not finite.

Legend: `B` rows of a sub-batch, `N` predictions.
"""

import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from pretraining.objectives import OBJECTIVES
from pretraining.recipe import Recipe
from zoo_core.interruption import Stopped, at_once, received
from zoo_core.provenance import write_json

SHOWN = 5  # examples in the message; the file lists all
REPORT = "not_finite.json"
AFTER_DIVERGENCE = (
    "A resumed run would reach the same batch. Start a new run from that state (model.start_from=<that folder>/model, "
    "another output_dir) with a lower learning_rate, a longer warm-up or a lower optimizer.max_grad_norm."
)


class Stops:
    """The reasons of this process to stop, and the agreement of all processes on them between two steps."""

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self.error: Exception | None = None  # why this process has no batch

    def fetch(self, batches: Iterator[dict], recipe: Recipe) -> list[dict]:
        """Returns the micro-batches of the next step; none if the phase ends, a signal came or reading failed.

        It raises no error, because the process is in the middle of a step, and others wait for it.
        """
        try:
            with nullcontext() if recipe.num_workers else at_once():  # loading.py looks while it waits for workers
                return list(islice(batches, recipe.gradient_accumulation_steps))
        except Stopped:
            pass
        except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: a data-loading worker was killed
            self.error = error
        return []

    def reasons(self) -> torch.Tensor:
        """Returns (3,) SIGTERM, SIGINT, no batch: 1 if this process has the reason, to be summed over all processes."""
        reasons = [received() == signal.SIGTERM, received() == signal.SIGINT, self.error is not None]
        return torch.tensor(reasons, dtype=torch.float64, device=self.accelerator.device)

    def agreed(self, reasons: torch.Tensor) -> Stopped | ValueError | None:
        """Returns why all processes have to stop, from the sum of their `reasons`."""
        terminated, interrupted, has_no_batch = reasons.bool().tolist()
        if has_no_batch:
            errors = gather_object([self.error and (str(self.error) or repr(self.error))])
            number, error = next((number, error) for number, error in enumerate(errors) if error)
            return ValueError(f"process {number}: {error}" if len(errors) > 1 else error)
        if terminated or interrupted:
            return Stopped(signal.SIGTERM if terminated else signal.SIGINT)
        return None


class LossTrace:
    """The losses of one step of this process, kept on the device until they are needed."""

    def __init__(self, accelerator: Accelerator):
        self.accelerator, self.micro_batches = accelerator, []

    def start_step(self) -> None:
        """Clears the losses of the step before, and keeps the random state for the checkpoint after a failed step."""
        self.micro_batches.clear()
        device = self.accelerator.device
        self.random_state = torch.get_rng_state()
        self.cuda_random_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def add(self, batch: dict, output) -> None:
        """Keeps the losses of a micro-batch and its `PreTrainingOutput`."""
        losses = []
        for loss, losses_N in output.token_losses.items():
            objective = loss.partition(".")[0]
            sub_batch = batch[OBJECTIVES[objective].sub_batch()]
            where = (output.batch_rows[loss], sub_batch["languages"], sub_batch["examples"])
            losses.append((loss, losses_N.detach(), *where))
        self.micro_batches.append(losses)

    def report(self, what: str, folder: Path) -> str:
        """Writes the batch of all processes to `<folder>/not_finite.json`, and restores the random state before the
        step.

        Returns `what` happened, with the first examples whose loss is not finite.
        """
        torch.set_rng_state(self.random_state)
        if self.cuda_random_state is not None:
            torch.cuda.set_rng_state(self.cuda_random_state, self.accelerator.device)
        processes = gather_object([{"first": self._first(), "examples": self._examples()}])
        if self.accelerator.is_main_process:
            write_json(folder / REPORT, {"what": what, "processes": processes})
        for number, first in enumerate(process["first"] for process in processes):
            if first:
                examples = [f"{corpus} {example}" for corpus, ids in first["examples"].items() for example in ids]
                more = f" and {len(examples) - SHOWN} more" if len(examples) > SHOWN else ""
                process = f" in process {number}" if len(processes) > 1 else ""
                found = f"{first['loss']} ({first['value']}) of example {', '.join(examples[:SHOWN])}{more}{process}"
                return f"{what}; the first loss that is not finite is {found}. See {REPORT} for the batch."
        return f"{what}; each single loss is finite. See {REPORT} for the batch."

    def _first(self) -> dict | None:
        """Returns the first loss that is not finite, one of its values, and its examples by corpus."""
        for micro, losses in enumerate(self.micro_batches):
            for loss, losses_N, rows_N, names, ids_B in losses:
                bad_N = ~torch.isfinite(losses_N)
                if bad_N.any():
                    examples = _by_corpus(rows_N[bad_N].unique().tolist(), names, ids_B)
                    value = str(losses_N[bad_N][0].item())
                    return {"loss": loss, "micro_batch": micro, "value": value, "examples": examples}
        return None

    def _examples(self) -> list[dict]:
        """Returns {loss: {corpus: [example ids]}} of each micro-batch."""
        return [
            {loss: _by_corpus(range(len(names)), names, ids_B) for loss, _, _, names, ids_B in losses}
            for losses in self.micro_batches
        ]


def _by_corpus(rows, names: list[str], ids_B: torch.Tensor) -> dict[str, list[int]]:
    ids, found = ids_B.tolist(), defaultdict(list)
    for row in rows:
        found[names[row]].append(ids[row])
    return dict(found)
