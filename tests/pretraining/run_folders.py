"""What tests read from the folders of runs."""

from pathlib import Path

import torch
from safetensors.torch import load_file


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a run's or a checkpoint's model."""
    return load_file(folder / "model" / "model.safetensors")


def changed_weights(folder: Path, later: Path) -> set[str]:
    """The names of the weights that differ in the models of two folders."""
    later_weights = weights_of(later)
    return {name for name, weight in weights_of(folder).items() if not torch.equal(weight, later_weights[name])}


def adam_of(run: Path, step: int) -> dict:
    """The optimizer's state in a checkpoint."""
    return torch.load(run / "checkpoints" / f"step-{step}" / "optimizer.bin", weights_only=True)


def losses_of(event: dict) -> set[str]:
    """The objectives, or their terms, of which an event has losses."""
    return {name.split("/")[1] for name in event if name.startswith("loss/")}
