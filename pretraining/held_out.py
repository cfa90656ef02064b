"""Held-out translation pairs, encoded by a model in training, for all measurements on them.

Legend: `B` sequences, `T` positions, `H` hidden size.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device

from pretraining.rows import encode_rows


@dataclass
class Evaluator:
    """A model, and the settings to measure it on held-out pairs."""

    model: Any
    tokenizer: Any
    accelerator: Any
    batch_size: int

    def encode(self, rows: list[list[np.ndarray]]) -> tuple[dict, tuple[torch.Tensor]]:
        """Returns the padded batch and the states (B, T, H) of all layers, for rows of one or two sides."""
        batch = send_to_device(encode_rows(rows, self.tokenizer), self.accelerator.device)
        with self.accelerator.autocast():
            output = self.model.roberta(
                batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
            )
        return batch, output.hidden_states
