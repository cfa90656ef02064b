"""Useful FLOPs of a training step, forward and backward, counted from the lengths of its rows.

A matrix of m weights costs 6 m a position (2 forward, 2 for its own gradient, 2 for that of its input). Attention to s
positions costs 12 d s a layer. A layer has 12 d^2 weights (attention 4, feed-forward 8), and cross-attention 4 more.
Padding and logits that nobody reads are no useful FLOPs.

Legend: `L` layers, `d` hidden size, `V` vocabulary; `n` positions of a row, special tokens included, `x` and `y` those
of its sides; sums go over rows. With r the share of predicted positions and S = E[n^2] / E[n], MLM costs
F = 72 L d^2 + 12 L d S + r (6 d V + 6 d^2) a position.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bench._common import HEAD_SIZE

Lengths = Sequence[int] | np.ndarray


class Size(NamedTuple):
    """Of a model."""

    layers: int
    hidden: int
    vocab: int

    @property
    def logits(self) -> int:
        """FLOPs of the head's forward for one prediction: the (d, V) product and the dense layer before it."""
        return 2 * self.hidden * self.vocab + 2 * self.hidden**2

    def body(self, lengths: Lengths, weights: int = 72) -> float:
        """The layers, by rows that attend to themselves: (weights) L d^2 sum n + 12 L d sum n^2."""
        n = np.asarray(lengths, dtype=np.float64)
        return float(weights * self.layers * self.hidden**2 * n.sum() + 12 * self.layers * self.hidden * (n**2).sum())

    def mlm(self, lengths: Lengths, predicted: float) -> float:
        """MLM, TLM, CAMLM: 72 L d^2 sum n + 12 L d sum n^2 + predicted (6 d V + 6 d^2)."""
        return self.body(lengths) + predicted * 3 * self.logits

    def btmlm(self, lengths: Lengths, predicted: float, written: float) -> float:
        """TLM, and before it a forward pass, a third of the layers, with the head's forward on what is written."""
        return self.mlm(lengths, predicted) + self.body(lengths) / 3 + written * self.logits

    def ca_mlm(self, x: Lengths, y: Lengths, predicted: float) -> float:
        """VECO's two passes over the sides; `inner` and `cross` each predict the `predicted` tokens.

        H pass: 72 L d^2 sum n + 12 L d sum n^2. S pass: 92 L d^2 sum n + 12 L d sum n^2 + 24 L d sum x y, of self- and
        cross-attention. 6 x 16 would be 96: H is detached, so that keys and values of the cross-attention have no
        gradient of their input to compute, 2 x 2 d^2 less.
        """
        x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        sides = np.concatenate([x, y])
        both = self.body(sides) + self.body(sides, weights=92)
        return both + 24 * self.layers * self.hidden * float((x * y).sum()) + 2 * predicted * 3 * self.logits

    def labeling(self, x: Lengths, y: Lengths, layers: int) -> float:
        """XLM-Align's self-labeling: a forward pass of so many layers, and the similarities of the sides' words."""
        x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        similarities = 2 * self.hidden * float(((x - 2) * (y - 2)).sum())  # without the special tokens
        return self._replace(layers=layers).body(x + y) / 3 + similarities

    def tlm_and_dwa(self, x: Lengths, y: Lengths, predicted: float, queries: float, labeling_layers: int) -> float:
        """One forward for TLM and the pointer network, whose maps read each word once, and each query; labeling."""
        n = np.asarray(x, dtype=np.float64) + np.asarray(y, dtype=np.float64)
        words = float((n - 4).sum())
        pointer = 6 * self.hidden**2 * (words + queries) + 6 * self.hidden * queries * float((n - 4).mean()) / 2
        return self.mlm(n, predicted) + self.labeling(x, y, labeling_layers) + pointer

    def config(self, longest: int, **fields: Any) -> dict[str, Any]:
        """Fields that XLM-R's configuration and ours have in common; `fields` add to them."""
        return dict(
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // HEAD_SIZE,
            intermediate_size=4 * self.hidden,
            max_position_embeddings=longest + 2,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            **fields,
        )


BASE, LARGE = Size(12, 768, 250_002), Size(24, 1024, 250_002)
