"""Reasons to end a run between two steps: a signal, unreadable data, and a loss or gradient that is not finite."""

import signal
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.utils.data import DataLoader

from pretraining.recipe import Recipe
from zoo_core.processes import Stopped, at_once, received

AFTER_DIVERGENCE = (
    "A resumed run would reach the same batch. Start a new run from that state (model.start_from=<that folder>/model, "
    "another output_dir) with a lower learning_rate, a longer warm-up or a lower optimizer.max_grad_norm."
)


class Stops:
    """The reasons of this process to stop, and the agreement of all processes on them between two steps."""

    def __init__(self, accelerator: Accelerator):
        self.accelerator = accelerator
        self.error: str | None = None  # why this process has no batch
        self.batches: Iterator[dict] = iter(())

    def __enter__(self) -> "Stops":
        return self

    def __exit__(self, *exception) -> None:
        self.batches = iter(())  # ends the workers: a traceback would keep the loader, and Python would wait for them

    def read(self, loader: DataLoader) -> None:
        """Starts the loader of a phase, whose batches `fetch` returns."""
        handler = signal.getsignal(signal.SIGCHLD)
        self.batches = iter(loader)
        if signal.getsignal(signal.SIGCHLD) is not handler:
            signal.signal(signal.SIGCHLD, handler)  # torch's would raise an error for a killed worker during a step

    def fetch(self, recipe: Recipe) -> list[dict]:
        """Returns the micro-batches of the next step; none if the phase ends, a signal came or reading failed.

        It raises no error, because the process is in the middle of a step, and others wait for it.
        """
        try:
            # a signal while it waits for workers is only noted: raised inside the loader, it could leave a lock
            with nullcontext() if recipe.num_workers else at_once():
                return list(islice(self.batches, recipe.gradient_accumulation_steps))
        except Stopped:
            pass
        except Exception as error:
            if received() is None:  # else a signal may have ended a worker
                self.error = (str(error).strip() or repr(error)).splitlines()[-1]  # of a worker's traceback
        return []

    def reasons(self) -> torch.Tensor:
        """Returns (3,) SIGTERM, SIGINT, no batch: 1 if this process has the reason, to be summed over all processes."""
        reasons = [received() == signal.SIGTERM, received() == signal.SIGINT, self.error is not None]
        return torch.tensor(reasons, dtype=torch.float64, device=self.accelerator.device)

    def agreed(self, reasons: list[float]) -> Stopped | ValueError | None:
        """Returns why all processes have to stop, from the sum of their `reasons`."""
        terminated, interrupted, has_no_batch = reasons
        if has_no_batch:
            errors = gather_object([self.error])
            number, error = next((number, error) for number, error in enumerate(errors) if error)
            return ValueError(f"process {number}: {error}" if len(errors) > 1 else error)
        if terminated or interrupted:
            return Stopped(signal.SIGTERM if terminated else signal.SIGINT)
        return None


def random_states(device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns the states of torch's generators, of the CPU and of a GPU."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_states(states: tuple[torch.Tensor, torch.Tensor | None], device: torch.device) -> None:
    """Restores what `random_states` returned, for the checkpoint after a step that failed."""
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1], device)
