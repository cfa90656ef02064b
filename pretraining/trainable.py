"""Which parameters a phase trains, and their optimizer."""

from fnmatch import fnmatchcase

import torch
from torch import nn

from modeling.masked_lm import ForPreTraining
from pretraining.recipe import Phase, Recipe
from pretraining.start.meta_pretrained import of_body
from zoo_core.recipes import nearest


def check_trainable(model: nn.Module, phases: list[Phase]) -> None:
    """Raises `ValueError` for a pattern of `trainable` that matches no parameter, and for a phase that trains none."""
    names = [name for name, _ in model.named_parameters()]
    for phase in phases:
        for pattern in phase.trainable:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"phase {phase.name!r}: no parameter is called {pattern!r}. {nearest(pattern, names)}")
        if not any(is_trainable(name, phase) for name in names):
            patterns = ", ".join(phase.trainable) or "empty"
            raise ValueError(
                f"phase {phase.name!r} trains nothing: trainable {patterns}, freeze_body {phase.freeze_body}."
            )


def is_trainable(name: str, phase: Phase) -> bool:
    """Returns whether a parameter trains in a phase; others are frozen."""
    if phase.freeze_body and of_body(name):
        return False
    return any(fnmatchcase(name, pattern) for pattern in phase.trainable)


def may_lack_gradients(model: nn.Module, phase: Phase) -> bool:
    """Returns whether a batch may leave trained parameters without gradient, so that DDP has to search for them.

    MLM and TLM read all layers and the head, also if a batch has no masked token. They do not read other parts, such as
    cross-attention.
    """
    plain = ("roberta.embeddings.", "roberta.encoder.", "lm_head.")
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    others = [name for name in trained if not name.startswith(plain) or ".crossattention." in name]
    shared = [one for name, one in phase.objectives.items() if name in ForPreTraining.objectives]
    return bool(others) or not any(objective.weight for objective in shared)


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
