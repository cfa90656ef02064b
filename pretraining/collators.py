"""Batches of a model: examples laid out in padded rows and masked, one sub-batch for each objective.

Legend: `B` rows of a micro-batch, `T` positions of its longest row, `S` sides of an example (1 or 2), `N` rows of a
block and `W` positions of its longest row. Fields are those of DESIGN.md, "Batch fields".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from modeling.modeling_xlm_align import DRAWS
from pretraining.data.sampling import Languages
from pretraining.data.tokenized import SPECIALS_OF_PAIR, SPECIALS_OF_TEXT, Texts
from pretraining.recipe import OBJECTIVES, Objective, ObjectiveKind
from zoo_core.masking import IGNORED, bits_of, key_stream, mask_rows, row_keys, short_seed, uniform_of

SIDES = ("x", "y")
# streams of a row's random numbers: which side comes first, the language of its pseudo tokens, what DWA draws; the
# masks of the two sides that are masked one by one
ORDER, TARGET, DRAW, X_MASKS, Y_MASKS, LANGUAGE = range(1, 7)
POSITIONS_AT_ONCE = 1 << 15  # of a block: what is computed of them on the way stays in a core's cache


@dataclass(slots=True)
class _Block:
    """Rows `<s> x </s>` or `<s> x </s></s> y </s>`, padded on the right. Special tokens belong to their side: segment 0
    is `<s> x </s>`, segment 1 is `</s> y </s>`."""

    input_ids: np.ndarray  # (N, W) int32
    of_side: list[np.ndarray]  # (N, W) of each side: true at its tokens
    tokens: np.ndarray  # (N, W) true at the tokens of either side
    segment_ids: np.ndarray  # (N, W) int8, -1 at padding


def _lay_out(sides: list[list[np.ndarray]], lengths_SN: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> _Block:
    """`sides`: for one or two sides, the tokens of N rows."""
    totals_N = _row_lengths(lengths_SN)
    count, width = len(totals_N), int(totals_N.max())
    rows_N, columns_W = np.arange(count), np.arange(width, dtype=np.int32)
    bounds_SN1 = lengths_SN.astype(np.int32)[:, :, None]
    ids = np.full((count, width), tokenizer.pad_token_id, dtype=np.int32)
    ids[:, 0] = tokenizer.cls_token_id
    ids[rows_N, totals_N - 1] = tokenizer.sep_token_id
    segments = (columns_W < totals_N[:, None].astype(np.int32)).view(np.int8)
    of_side = [_between(columns_W, 1, bounds_SN1[0])]
    tokens, flat = of_side[0], sides[0]
    if len(sides) == 2:
        ids[rows_N, lengths_SN[0] + 1] = ids[rows_N, lengths_SN[0] + 2] = tokenizer.sep_token_id
        of_side.append(_between(columns_W - bounds_SN1[0], 3, bounds_SN1[1]))
        tokens, flat = tokens | of_side[1], [*chain.from_iterable(zip(*sides, strict=True))]
        segments *= np.int8(1) + (columns_W >= bounds_SN1[0] + SPECIALS_OF_TEXT)
    segments -= 1
    ids[tokens] = np.concatenate(flat)
    return _Block(ids, of_side, tokens, segments)


def _between(columns: np.ndarray, first: int, size_N1: np.ndarray) -> np.ndarray:
    """(N, W) first <= column < first + size, in one comparison: what is below `first` wraps around."""
    return (columns - np.int32(first)).view(np.uint32) < size_N1.view(np.uint32)


def _row_lengths(lengths_SB: np.ndarray) -> np.ndarray:
    """(B,) positions of rows with sides of so many tokens."""
    return lengths_SB.sum(0) + (SPECIALS_OF_TEXT, SPECIALS_OF_PAIR)[len(lengths_SB) - 1]


def _blocks(lengths_B: np.ndarray) -> Iterator[slice]:
    """Consecutive rows that have, padded, about `POSITIONS_AT_ONCE` positions."""
    start = 0
    while start < len(lengths_B):
        some = lengths_B[start : start + POSITIONS_AT_ONCE // 2]
        padded = np.maximum.accumulate(some) * np.arange(1, len(some) + 1)
        stop = start + max(1, int(np.searchsorted(padded, POSITIONS_AT_ONCE, side="right")))
        yield slice(start, stop)
        start = stop


class _Fields:
    """(B, T) int64 tensors of a sub-batch, filled block by block. They share one token of memory, which is quicker to
    get and to send to another process."""

    def __init__(self, fillings: dict[str, int], rows: int, width: int):
        """`fillings`: names, and what stands at padding."""
        self.tensors = dict(zip(fillings, torch.empty(len(fillings), rows, width, dtype=torch.int64), strict=True))
        self.arrays = {name: tensor.numpy() for name, tensor in self.tensors.items()}
        self.fillings = fillings

    def set(self, name: str, rows: slice, block_NW: np.ndarray) -> None:
        """A block of a field; what is longer than the block is padding."""
        width = block_NW.shape[1]
        array = self.arrays[name][rows]
        array[:, :width] = block_NW
        if width < array.shape[1]:
            array[:, width:] = self.fillings[name]


def _fillings(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """What stands at padding in the fields that every sub-batch has: it is special, and not attended to."""
    return {
        "input_ids": tokenizer.pad_token_id,
        "special_tokens_mask": 1,
        "segment_ids": -1,
        "attention_mask": 0,
    }


def _set_layout(fields: _Fields, rows: slice, block: _Block) -> None:
    fields.set("input_ids", rows, block.input_ids)
    fields.set("special_tokens_mask", rows, ~block.tokens)
    fields.set("segment_ids", rows, block.segment_ids)
    fields.set("attention_mask", rows, block.segment_ids >= 0)


def encode_rows(sides: Sequence[Sequence[np.ndarray]], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """Unmasked rows `<s> x </s>`, or `<s> x </s></s> y </s>` of examples with two sides, as padded (B, T) fields.

    Segment 0 is `<s> x </s>`, segment 1 is `</s> y </s>`: special tokens belong to their side.
    """
    of_sides = [list(side) for side in zip(*sides, strict=True)]
    lengths_SB = _lengths_of(of_sides)
    totals_B = _row_lengths(lengths_SB)
    fields = _Fields(_fillings(tokenizer), len(totals_B), int(totals_B.max()))
    for rows in _blocks(totals_B):
        _set_layout(fields, rows, _lay_out([side[rows] for side in of_sides], lengths_SB[:, rows], tokenizer))
    return fields.tensors


def pad_rows(ids: Sequence[np.ndarray], pad_id: int) -> dict[str, torch.Tensor]:
    """Rows of ids, padded on the right to (B, T) `input_ids`, with their `attention_mask`."""
    lengths_B = np.array([len(row) for row in ids])
    is_real_BT = np.arange(lengths_B.max()) < lengths_B[:, None]
    input_ids = np.full(is_real_BT.shape, pad_id)
    input_ids[is_real_BT] = np.concatenate(ids)
    return {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(is_real_BT.astype(np.int64))}


def pseudo_count(tokens: int | np.ndarray, share: float) -> int | np.ndarray:
    """Pseudo tokens that a text of so many tokens should get (ERNIE-M, section 4.3)."""
    return np.maximum(1, np.rint(share * tokens)).astype(np.int64)


@dataclass
class Masker:
    """Masks examples; `key` (such as seed and phase) is part of what their random numbers are keyed by.

    With `languages`, of a model whose <mask> carries one, rows of an objective in which it does (`languages` of its
    kind) have `language_ids` too; rows of an objective that another one reads as well (`read_by_others`: TLM, where
    there is DWA) have `draws`, a random number a position.
    """

    tokenizer: PreTrainedTokenizerBase
    key: tuple[int | str, ...]
    languages: Languages | None = None
    read_by_others: frozenset[str] = frozenset()

    @cached_property
    def vocabulary(self) -> np.ndarray:
        """(K,) ids of ordinary tokens: what may stand at random in a masked position's place."""
        return np.setdiff1d(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids).astype(np.int32)

    def __call__(self, texts: Texts, name: str, objective: Objective, training: bool = True) -> dict:
        """The sub-batch of an objective: {input_ids, labels, attention_mask, ..., languages, examples}.

        Tensors are (B, T) int64, but `examples` (B,), the examples' ids; `languages` is a list of B corpus names. Where
        an objective reads the sides apart, its sub-batch holds `x` and `y`, each a full set of its own length. There
        are no position_ids: rows are not packed, and the model counts the positions of padded rows itself. A row
        without predictions is valid.

        The unknown token is never predicted either: it tells nothing. One-sided, the sides are masked one by one, and
        each keeps a token for the other side to be predicted from. A text that is to be back-translated gets its pseudo
        positions, as a second side; in training its sub-batch says at which `temperature` they are filled, and how many
        of its texts had room for fewer than they should have (`shortened`).
        """
        kind = OBJECTIVES[name]
        seeds = {corpus: short_seed(*self.key, name, corpus) for corpus in set(texts.names)}
        seeds_B = np.fromiter(map(seeds.__getitem__, texts.names), np.uint64, len(texts.names))
        keys_B = row_keys(seeds_B, texts.epochs, texts.ids)
        sides, lengths_SB = texts.sides, _lengths_of(texts.sides)
        # evaluated as in use, where <mask> of a text or pair says no language
        has_languages = self.languages and kind.languages and (training or kind.languages == 1)
        codes_BS = [self.languages.of_corpus[corpus] for corpus in texts.names] if has_languages else []
        facts = {}
        if kind.one_sided:
            is_turned_B = uniform_of(key_stream(keys_B, ORDER)) < 0.5
            turned = is_turned_B.tolist()
            pairs = [(y, x) if turn else (x, y) for x, y, turn in zip(*sides, turned, strict=True)]
            sides = [list(side) for side in zip(*pairs, strict=True)]
            lengths_SB = np.where(is_turned_B, lengths_SB[::-1], lengths_SB)
            codes_BS = [codes[::-1] if turn else codes for codes, turn in zip(codes_BS, turned, strict=True)]
        if kind.generates:
            due_B = pseudo_count(lengths_SB[0], objective.pseudo_share)
            room_B = objective.max_length - SPECIALS_OF_PAIR - lengths_SB[0]
            count_B = np.minimum(due_B, room_B.clip(min=0))
            slots = np.full(count_B.max(), self.tokenizer.mask_token_id, dtype=np.int32)
            sides, lengths_SB = [*sides, [slots[:count] for count in count_B]], np.stack([lengths_SB[0], count_B])
            codes_BS = self._with_targets(codes_BS, keys_B, objective)
            if training:
                facts = {"temperature": objective.temperature, "shortened": int((count_B < due_B).sum())}
        language_rows_SB = np.array([[self.languages.rows[code] for code in codes] for codes in codes_BS]).T
        if has_languages and kind.languages < 1:
            carries_B = uniform_of(key_stream(keys_B, LANGUAGE)) < kind.languages
            language_rows_SB = np.where(carries_B, language_rows_SB, -1)
        inputs = [(sides, lengths_SB, keys_B, language_rows_SB)]
        if kind.apart:
            inputs = [
                ([sides[s]], lengths_SB[s : s + 1], key_stream(keys_B, stream), language_rows_SB[s : s + 1])
                for s, stream in enumerate((X_MASKS, Y_MASKS))
            ]
        has_draws = name in self.read_by_others
        batches = [self._inputs(kind, objective.mask_probability, has_draws, *each) for each in inputs]
        batch = dict(zip(SIDES, batches, strict=True)) if kind.apart else batches[0]
        return batch | {"languages": texts.names, "examples": torch.from_numpy(texts.ids)} | facts

    def _with_targets(self, codes_B1: list, keys_B: np.ndarray, objective: Objective) -> list[tuple[str, str]]:
        """The language of each text, and the one that it is back-translated into."""
        drawn_B = uniform_of(key_stream(keys_B, TARGET)).tolist()
        targets = {code: self.languages.targets(code, objective.target_languages) for code in {c for c, *_ in codes_B1}}
        return [
            (code, targets[code][0][int(np.searchsorted(targets[code][1].cumsum()[:-1], drawn, side="right"))])
            for (code, *_), drawn in zip(codes_B1, drawn_B, strict=True)
        ]

    def _inputs(
        self,
        kind: ObjectiveKind,
        probability: float,
        has_draws: bool,
        sides: list[list[np.ndarray]],
        lengths_SB: np.ndarray,
        keys_B: np.ndarray,
        language_rows_SB: np.ndarray,
    ) -> dict[str, torch.Tensor]:
        """The (B, T) fields of one input: laid out, masked and padded."""
        fillings = _fillings(self.tokenizer) | {"labels": IGNORED}
        if len(language_rows_SB):
            fillings["language_ids"] = 0  # any: padding is no <mask>
        if has_draws:
            fillings["draws"] = 0
        totals_B = _row_lengths(lengths_SB)
        fields = _Fields(fillings, len(totals_B), int(totals_B.max()))
        for rows in _blocks(totals_B):
            block = _lay_out([side[rows] for side in sides], lengths_SB[:, rows], self.tokenizer)
            if len(language_rows_SB):
                of_sides_SN1 = language_rows_SB[:, rows, None]
                language_ids = of_sides_SN1[0]
                if len(sides) == 2:
                    language_ids = np.where(block.segment_ids == 1, of_sides_SN1[1], language_ids)
                fields.set("language_ids", rows, np.where(block.segment_ids < 0, 0, language_ids))
            if has_draws:
                bits_NW = bits_of(key_stream(keys_B[rows], DRAW), block.input_ids.shape[1])
                fields.set("draws", rows, np.where(block.segment_ids < 0, 0, bits_NW % DRAWS))
            fields.set("labels", rows, self._mask(block, kind, probability, keys_B[rows]))
            _set_layout(fields, rows, block)
        return fields.tensors

    def _mask(self, block: _Block, kind: ObjectiveKind, probability: float, keys_N: np.ndarray) -> np.ndarray:
        """(N, W) labels of a block, whose `input_ids` get what stands in the predicted places."""
        known = block.input_ids != self.tokenizer.unk_token_id
        labels = np.full_like(block.input_ids, IGNORED)
        common = (self.tokenizer.mask_token_id, self.vocabulary)
        if not kind.one_sided:
            candidates = (block.of_side[0] if kind.generates else block.tokens) & known
            mask_rows(block.input_ids, labels, candidates, probability, keys_N, *common)
            return labels
        of_side = [tokens & known for tokens in block.of_side]
        for candidates, other, stream in zip(of_side, of_side[::-1], (X_MASKS, Y_MASKS), strict=True):
            # not where the other side has no token that tells anything
            share_N = np.where(other.any(1), probability, 0.0)
            keys = key_stream(keys_N, stream)
            mask_rows(block.input_ids, labels, candidates, share_N, keys, *common, mask_share=1.0, leave=1)
        return labels


def _lengths_of(sides: list[list[np.ndarray]]) -> np.ndarray:
    """(S, B) tokens of each side."""
    return np.array([[len(tokens) for tokens in side] for side in sides])


def inputs_of(sub_batch: dict) -> list[dict[str, torch.Tensor]]:
    """The sets of (B, T) fields in a sub-batch: itself, or its two sides."""
    return [sub_batch[side] for side in SIDES] if SIDES[0] in sub_batch else [sub_batch]
