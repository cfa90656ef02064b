"""Held-out translation pairs, encoded by a model in training, for all measurements on them.

Legend: `B` sequences, `T` positions, `S` positions of the other side, `H` hidden size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from accelerate.utils import send_to_device

from modeling.embeddings import position_ids_of
from pretraining.data.examples import SPECIALS_OF_PAIR, Example
from pretraining.data.languages import Languages
from pretraining.rows import encode_rows


class HeldOutPairs(Protocol):
    """The part of a corpus that measurements use."""

    name: str
    languages: Sequence[str]
    max_length: int
    held_out: list[Example]


@dataclass
class Evaluator:
    """A model, and the settings to measure it on held-out pairs."""

    model: Any
    tokenizer: Any
    accelerator: Any
    batch_size: int
    objectives: Sequence[Any]  # of the phase
    languages: Languages | None = None  # of a model whose <mask> carries one
    alignment: bool = False  # whether token i of a pair's sides translate each other, and alignment is measured
    back_translation: float = 0.0  # pseudo tokens for each token; 0: not measured

    def encode(self, rows: list[list[np.ndarray]], first: list[int] | None = None) -> tuple[dict, tuple[torch.Tensor]]:
        """Returns the padded batch and the states (B, T, H) of all layers, for rows of one or two sides.

        `first` is the first position of each row, by default 0.
        """
        batch = send_to_device(encode_rows(rows, self.tokenizer), self.accelerator.device)
        position_ids = None
        if first is not None:
            position_ids = position_ids_of(batch["input_ids"], self.model.config)
            position_ids += torch.tensor(first, device=self.accelerator.device)[:, None] * batch["attention_mask"]
        with self.accelerator.autocast():
            output = self.model.roberta(
                batch["input_ids"],
                attention_mask=batch["attention_mask"],
                position_ids=position_ids,
                output_hidden_states=True,
            )
        return batch, output.hidden_states

    def one_to_one_pairs(self, corpus: HeldOutPairs) -> Iterator[list[list[np.ndarray]]]:
        """Yields batches of held-out pairs whose tokens correspond, by length. Raises ValueError for other pairs."""
        room = corpus.max_length - SPECIALS_OF_PAIR
        pairs = sorted((_one_to_one(example, room) for example in corpus.held_out), key=lambda sides: len(sides[0]))
        for start in range(0, len(pairs), self.batch_size):
            yield pairs[start : start + self.batch_size]

    @staticmethod
    def best_layer(figure: str, corpus: HeldOutPairs, accuracy_L: list[float]) -> dict[str, float | list[float]]:
        """Returns the figures of an accuracy for events.jsonl: of the best layer, and by layer."""
        return {f"{figure}/{corpus.name}": max(accuracy_L), f"{figure}_by_layer/{corpus.name}": accuracy_L}


def ordinary(batch: dict) -> torch.Tensor:
    """Returns (B, T): True for tokens of the text, False for padding and special tokens."""
    return ~batch["special_tokens_mask"].bool()


def right_tokens(scores_BTS: torch.Tensor, own_BT: torch.Tensor, other_BS: torch.Tensor) -> torch.Tensor:
    """Counts tokens of one side whose best token on the other side has the same number."""
    best_BT = scores_BTS.masked_fill(~other_BS[:, None], -torch.inf).argmax(-1)
    return (own_BT & (other_BS.cumsum(1).gather(1, best_BT) == own_BT.cumsum(1))).sum()


def _one_to_one(example: Example, room: int) -> list[np.ndarray]:
    """Returns the sides of a pair whose tokens correspond one by one. Raises ValueError if they cannot."""
    lengths = sorted(len(side) for side in example.sides)
    # a pair that was cut to an odd room has one token without its partner
    if lengths[0] != lengths[1] and not (lengths[1] - lengths[0] == 1 and sum(lengths) == room):
        raise ValueError(
            f"evaluation.alignment is true, but a held-out pair of {example.name} has {len(example.sides[0])} and "
            f"{len(example.sides[1])} tokens, and only token i can be the translation of token i. Set it to false, or "
            "evaluate on pairs that `python -m pretraining.tools.controlled_pair` writes."
        )
    return [side[: lengths[0]] for side in example.sides]
