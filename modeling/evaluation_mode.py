# SPDX-License-Identifier: Apache-2.0
"""A model without its dropout, for a while."""

from contextlib import contextmanager

from torch import nn


@contextmanager
def without_dropout(model: nn.Module):
    """The model in evaluation mode, for this block only."""
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in was_training.items():
            module.training = training
