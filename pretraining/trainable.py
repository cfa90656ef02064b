"""Which parameters a phase trains, and their optimizer."""

from fnmatch import fnmatchcase

import torch
from torch import nn

from pretraining.recipe import Phase, Recipe
from pretraining.start.meta_pretrained import of_body
from zoo_core.recipes import nearest


def check_trainable(model: nn.Module, phases: list[Phase]) -> None:
    """Raises `ValueError` for a pattern of `trainable` that matches no parameter, and for a phase that trains none."""
    names = [name for name, _ in model.named_parameters()]
    for phase in phases:
        for pattern in phase.trainable:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"phase {phase.name!r}: trainable pattern {pattern!r} matches no parameter. "
                    f"{nearest(pattern, names)}"
                )
        if not any(is_trainable(name, phase) for name in names):
            patterns = ", ".join(phase.trainable) or "empty"
            raise ValueError(
                f"phase {phase.name!r} trains nothing: trainable is {patterns}, freeze_body {phase.freeze_body}. Widen "
                "its `trainable`, or take freeze_body out."
            )


def is_trainable(name: str, phase: Phase) -> bool:
    """Returns whether a parameter trains in a phase; others are frozen."""
    if phase.freeze_body and of_body(name):
        return False
    return any(fnmatchcase(name, pattern) for pattern in phase.trainable)


def make_optimizer(model: nn.Module, phase: Phase, recipe: Recipe) -> torch.optim.AdamW:
    """Makes a fused AdamW of the trainable parameters; biases and LayerNorms have no weight decay."""
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for _, p in trainable if p.dim() > 1], "weight_decay": recipe.optimizer.weight_decay},
        {"params": [p for _, p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=phase.learning_rate,
        betas=tuple(recipe.optimizer.betas),
        eps=recipe.optimizer.epsilon,
        fused=True,
    )
