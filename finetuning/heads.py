"""The head of a model that a task starts from: kept where its labels are those of the data, and else drawn again.

A row of a head has learned the label of its name; its number says nothing. So the rows of a kept head follow the names.
If the names are others, or those that transformers gives to labels without one (`LABEL_0`), nobody knows what a row has
learned.
"""

import re
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import set_seed

GENERATED = re.compile(r"LABEL_\d+")
MOST_NAMES = 8  # labels that a line lists


class FittedHead(NamedTuple):
    """What became of the head of a checkpoint."""

    drawn: list[str]
    """Names of its parameters, if they were drawn again."""

    note: str
    """What was changed, and why: one line, or empty."""


def fit_head(model: nn.Module, report: dict[str, Any], before: list[str], labels: list[str], seed: int) -> FittedHead:
    """Puts the rows of the model's head into the order of `labels`, or draws the whole head again, from the seed.

    `before` are the labels of the checkpoint, and `report` is from_pretrained's. A head that the checkpoint does not
    have stays as it is, and so does one without names of labels (`labels` is empty), as for answers.
    """
    output = output_layer(model)
    if not labels or output is None or f"{output}.weight" in report["missing_keys"]:
        return FittedHead([], "")
    reason = reason_to_draw(model, report, before, labels)
    if reason:
        return FittedHead(draw_head(model, seed), f"new, because {reason}")
    if before == labels:
        return FittedHead([], "")
    order = [before.index(label) for label in labels]
    reorder_rows(model.get_submodule(output), order)
    return FittedHead([], "kept, its rows in the order of the data's labels, which have the same names")


def reason_to_draw(model: nn.Module, report: dict[str, Any], before: list[str], labels: list[str]) -> str:
    """Why the head of the checkpoint cannot be kept; empty if it can."""
    if any(map(GENERATED.fullmatch, before)):
        return f"the names of its labels ({listed(before)}) say nothing"
    if sorted(before) != sorted(labels):
        return f"its labels ({listed(before)}) are not those of the data ({listed(labels)})"
    mismatched = {key[0] for key in report["mismatched_keys"]}
    if mismatched & {*head_parameters(model)}:  # such as a plug-in head, which reads more features
        return f"{min(mismatched)} has another shape"
    return ""


def output_layer(model: nn.Module) -> str | None:
    """Returns the name of the head's last linear layer, which has a row for each label."""
    base = f"{model.base_model_prefix}."
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return next((name for name in reversed(layers) if not name.startswith(base)), None)


def reorder_rows(layer: nn.Linear, order: list[int]) -> None:
    """Makes row `order[i]` of a layer its i-th row."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(parameter[order])


def draw_head(model: nn.Module, seed: int) -> list[str]:
    """Replaces all that is not the encoder by new modules; returns the names of their parameters."""
    set_seed(seed)
    drawn = type(model)(model.config)
    for name, module in drawn.named_children():
        if name != model.base_model_prefix:
            setattr(model, name, module.train(model.training))
    return head_parameters(model)


def head_parameters(model: nn.Module) -> list[str]:
    """Returns the names of the parameters that are not the encoder's."""
    base = f"{model.base_model_prefix}."
    return [name for name, _ in model.named_parameters() if not name.startswith(base)]


def label_names(config: Any) -> list[str]:
    """Returns the names of a configuration's labels, in the order of the rows."""
    return [str(config.id2label[number]) for number in sorted(config.id2label)]


def listed(names: list[str]) -> str:
    """Returns the first of the names as text."""
    text = ", ".join(names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        text += ", ..."
    return text
