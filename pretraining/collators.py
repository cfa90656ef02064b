"""Batches of a model: masked examples, padded on the right, one sub-batch for each objective.

Legend: `B` rows of a micro-batch, `T` positions of its longest row. Fields are those of DESIGN.md, "Batch fields".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from common.masking import IGNORED, keyed_rng, mask_pieces
from modeling.modeling_xlm_align import DRAWS
from pretraining.recipe import OBJECTIVES, Objective, ObjectiveKind
from pretraining.sampling import Languages
from pretraining.tokenised import SPECIALS_OF_PAIR, Example

Row = dict[str, np.ndarray]  # (T,) arrays of one example: input_ids, special_tokens_mask, segment_ids, ...
MaskedExample = tuple[str, str, list[Row]]  # objective, corpus name, row with labels; two where the sides are apart
SIDES = ("x", "y")


def encode_pieces(sides: Sequence[np.ndarray], tokenizer: PreTrainedTokenizerBase) -> Row:
    """The row of a text `<s> x </s>` or a pair `<s> x </s></s> y </s>`: (T,) ids, special tokens and segments.

    Segment 0 is `<s> x </s>`, segment 1 is `</s> y </s>`: special tokens belong to their side.
    """
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    parts = [np.concatenate([[begin if i == 0 else end], pieces, [end]]) for i, pieces in enumerate(sides)]
    special = np.ones(sum(map(len, parts)), dtype=np.int64)
    start = 0
    for part in parts:
        special[start + 1 : start + len(part) - 1] = 0
        start += len(part)
    return {
        "input_ids": np.concatenate(parts).astype(np.int64),
        "special_tokens_mask": special,
        "segment_ids": np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
    }


def encode_side(pieces: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Row:
    """The row of one side of an example on its own, unmasked: `<s> x </s>`, for encoding sentences apart."""
    return encode_pieces([pieces], tokenizer)


def pad_rows(rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Stacks rows of any lengths into (B, T), padded on the right to the longest, with their attention_mask.

    Padding is special, of segment -1, labelled -100, and not attended to.
    """
    padding = {
        "input_ids": tokenizer.pad_token_id,
        "language_ids": 0,  # any: padding is no <mask>
        "labels": IGNORED,
        "special_tokens_mask": 1,
        "draws": 0,
        "segment_ids": -1,
        "attention_mask": 0,
    }
    lengths = [len(row["input_ids"]) for row in rows]
    batch = {}
    for name in [*rows[0], "attention_mask"]:
        padded = np.full((len(rows), max(lengths)), padding[name], dtype=np.int64)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            padded[index, :length] = 1 if name == "attention_mask" else row[name]
        batch[name] = torch.from_numpy(padded)
    return batch


def pseudo_count(pieces: int, share: float) -> int:
    """Pseudo tokens that a text of so many pieces should get (ERNIE-M, section 4.3)."""
    return max(1, round(share * pieces))


@dataclass
class Masker:
    """Masks examples; `key` (such as seed and phase) is part of what their random numbers are keyed by.

    With `languages`, of a model whose <mask> carries one, rows have `language_ids` too; rows of an objective that
    another one reads as well (`read_by_others`: TLM, where there is DWA) have `draws`, a random number a position.
    """

    tokenizer: PreTrainedTokenizerBase
    key: tuple[int | str, ...]
    languages: Languages | None = None
    read_by_others: frozenset[str] = frozenset()

    @cached_property
    def vocabulary(self) -> np.ndarray:
        """(K,) ids of ordinary pieces: what may stand at random in a masked position's place."""
        return np.setdiff1d(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids)

    def __call__(self, example: Example, name: str, objective: Objective) -> MaskedExample:
        """The row of an example with its labels, or its two rows where the objective reads the sides apart.

        The unknown piece is never predicted either: it tells nothing. One-sided, the sides are masked one by one, and
        each keeps a piece for the other side to be predicted from. A text that is to be back-translated gets its pseudo
        positions, as a second side.
        """
        kind = OBJECTIVES[name]
        rng = keyed_rng(*self.key, name, example.name, example.epoch, example.example_id)
        sides = [*example.sides]
        codes = self.languages.of_corpus[example.name] if self.languages else ()
        if kind.one_sided and rng.random() < 0.5:
            sides, codes = sides[::-1], codes[::-1]
        if kind.generates:
            room = objective.max_length - SPECIALS_OF_PAIR - len(sides[0])
            count = min(pseudo_count(len(sides[0]), objective.pseudo_share), max(0, room))
            sides.append(np.full(count, self.tokenizer.mask_token_id))
            targets, shares = self.languages.targets(codes[0], objective.target_languages)
            codes = (*codes, targets[rng.choice(len(targets), p=shares)])
        rows = [
            encode_pieces(pieces, self.tokenizer) for pieces in ([[side] for side in sides] if kind.apart else [sides])
        ]
        for number, row in enumerate(rows):
            self._mask(row, kind, objective.mask_probability, rng)
            if codes:
                row["language_ids"] = np.array([self.languages.rows[code] for code in codes])[
                    row["segment_ids"] + (number if kind.apart else 0)
                ]
            if name in self.read_by_others:
                row["draws"] = rng.integers(DRAWS, size=len(row["input_ids"]))
        return name, example.name, rows

    def _mask(self, row: Row, kind: ObjectiveKind, probability: float, rng: np.random.Generator) -> None:
        """Sets `labels` of a row, and what stands in the predicted places of its `input_ids`."""
        tokenizer, segments = self.tokenizer, row["segment_ids"]
        unpredictable = (row["special_tokens_mask"] == 1) | (row["input_ids"] == tokenizer.unk_token_id)
        common = (tokenizer.mask_token_id, self.vocabulary)
        if not kind.one_sided:
            unpredictable |= kind.generates & (segments == 1)
            row["input_ids"], row["labels"] = mask_pieces(row["input_ids"], unpredictable, probability, rng, *common)
            return
        row["labels"] = np.full_like(segments, IGNORED)
        for side in (0, 1):
            others = unpredictable | (segments != side)
            if (unpredictable | (segments == side)).all():  # the other side has no piece that tells anything
                continue
            row["input_ids"], labels = mask_pieces(
                row["input_ids"], others, probability, rng, *common, mask_share=1.0, leave=1
            )
            row["labels"] = np.where(segments == side, labels, row["labels"])


@dataclass
class Collator:
    """Turns masked examples into a batch: {objective: {input_ids, labels, attention_mask, ..., languages}}.

    Tensors are (B, T) int64; `languages` is a list of B corpus names. Where an objective reads the sides apart, its
    sub-batch holds `x` and `y`, each a full set of its own length. There are no position_ids: rows are not packed, and
    the model counts the positions of padded rows itself. A row without predictions is valid.

    With `objectives`, those of the phase by name, a sub-batch that generates says at which `temperature`, and how many
    of its texts had room for fewer pseudo tokens than they should have (`shortened`).
    """

    tokenizer: PreTrainedTokenizerBase
    objectives: dict[str, Objective] | None = None

    def __call__(self, examples: list[MaskedExample]) -> dict[str, dict]:
        batch = {}
        for objective in dict.fromkeys(objective for objective, _, _ in examples):
            own = [(name, rows) for other, name, rows in examples if other == objective]
            sides = [pad_rows(rows, self.tokenizer) for rows in zip(*(rows for _, rows in own), strict=True)]
            batch[objective] = dict(zip(SIDES, sides, strict=True)) if OBJECTIVES[objective].apart else sides[0]
            batch[objective]["languages"] = [name for name, _ in own]
            if OBJECTIVES[objective].generates and self.objectives:
                settings = self.objectives[objective]
                ordinary = (row["segment_ids"][row["special_tokens_mask"] == 0] for _, (row,) in own)
                counts = [np.bincount(segments, minlength=2) for segments in ordinary]
                batch[objective]["temperature"] = settings.temperature
                batch[objective]["shortened"] = sum(
                    int(pseudo < pseudo_count(pieces, settings.pseudo_share)) for pieces, pseudo in counts
                )
        return batch


def inputs_of(sub_batch: dict) -> list[dict[str, torch.Tensor]]:
    """The sets of (B, T) fields in a sub-batch: itself, or its two sides."""
    return [sub_batch[side] for side in SIDES] if SIDES[0] in sub_batch else [sub_batch]
