"""What tests read from the folders of runs, and settings of several runs."""

from pathlib import Path

import torch
from safetensors.torch import load_file

# both objectives of VECO in the first phase
CA_MLM = [
    f"phases.0.objectives.ca_mlm_{kind}={{batch_size: 8, max_length: 48, mask_probability: 0.25}}"
    for kind in ("segments", "pairs")
]


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
