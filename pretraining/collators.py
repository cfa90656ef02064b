"""One collator for each objective: it chooses which tokens are predicted, and builds the mask of who sees whom.

Nothing downstream decides either: the model takes `input_ids`, `labels` and `attention_mask` as they come. Random
numbers are keyed by (seed, phase, objective, corpus, epoch, example), so that the same examples get the same masks
however they are batched. In the pictures a row attends to the columns marked `x`; `m` is a masked token, `a`, `b` the
tokens of the two sides, and special tokens belong to their side.

Legend: `B` rows of a micro-batch, `T` positions of its longest row, `S` sides of an example (1 or 2), `N` rows of a
block and `W` positions of its longest row.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from modeling.attention_masks import btmlm_generation_mask, camlm_mask
from modeling.modeling_xlm_align import DRAWS
from pretraining.data.sampling import Languages
from pretraining.data.tokenized import SPECIALS_OF_PAIR, Texts
from pretraining.recipe import Objective
from pretraining.rows import (
    SIDES,
    Block,
    Fields,
    blocks_of,
    lay_out,
    padding_values,
    row_lengths,
    set_layout,
    side_lengths,
)
from zoo_core.masking import IGNORED, bits_of, key_stream, mask_rows, row_keys, short_seed, uniform_of

# streams of a row's random numbers: which side comes first, the language of its pseudo tokens, what DWA draws; the
# masks of the two sides that are masked one by one; whether <mask> says its language
ORDER, TARGET, DRAW, X_MASKS, Y_MASKS, LANGUAGE = range(1, 7)


@dataclass
class Sides:
    """The examples of a micro-batch, as the rows are going to hold them."""

    tokens: list[list[np.ndarray]]  # of each side, those of B examples
    lengths_SB: np.ndarray
    codes: list[tuple[str, ...]]  # the language of each side of each example; empty where <mask> says none


@dataclass
class Collator:
    """What all objectives share: rows laid out, masked 80/10/10 (BERT section 3.1) and padded.

    `key`, such as (seed, phase), is part of what random numbers are keyed by. `languages` are those of a model whose
    <mask> carries one. `draws`: rows get a random number a position as well, which DWA reads.
    """

    tokenizer: PreTrainedTokenizerBase
    key: tuple[int | str, ...]
    languages: Languages | None = None
    draws: bool = False

    name = ""
    language_share = 0.0
    """Share of the training rows in which <mask> says its language; 1: of the held-out rows too."""

    @cached_property
    def vocabulary(self) -> np.ndarray:
        """(K,) ids of ordinary tokens: what may stand at random in a masked position's place."""
        return np.setdiff1d(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids).astype(np.int32)

    def __call__(self, texts: Texts, objective: Objective, training: bool = True) -> dict:
        """The sub-batch: {input_ids, labels, attention_mask, segment_ids, special_tokens_mask, languages, examples}.

        Tensors are (B, T) int64, but `examples` (B,), the examples' ids, and block masks, (B, T, T) boolean;
        `languages` is a list of B corpus names. Rows are not packed, and the model counts the positions of padded rows
        itself. A row without predictions is valid. The unknown token is never predicted: it tells nothing.
        """
        keys_B = self._keys(texts)
        sides, facts = self.arrange(self._sides(texts, training), keys_B, objective, training)
        fields = self.rows(sides, keys_B, self._language_rows(sides, keys_B), objective.mask_probability)
        return fields | {"languages": texts.names, "examples": torch.from_numpy(texts.ids)} | facts

    def arrange(self, sides: Sides, keys_B: np.ndarray, objective: Objective, training: bool) -> tuple[Sides, dict]:
        """What stands in the rows, in its order; and what else the sub-batch says."""
        return sides, {}

    def rows(self, sides: Sides, keys_B: np.ndarray, language_rows_SB: np.ndarray, probability: float) -> dict:
        """The (B, T) fields: laid out, masked and padded."""
        fillings = padding_values(self.tokenizer) | {"labels": IGNORED}
        if len(language_rows_SB):
            fillings["language_ids"] = 0  # any: padding is no <mask>
        if self.draws:
            fillings["draws"] = 0
        totals_B = row_lengths(sides.lengths_SB, self.tokenizer)
        fields = Fields(fillings, len(totals_B), int(totals_B.max()))
        for rows in blocks_of(totals_B):
            block = lay_out([side[rows] for side in sides.tokens], sides.lengths_SB[:, rows], self.tokenizer)
            if len(language_rows_SB):
                of_sides_SN1 = language_rows_SB[:, rows, None]
                language_ids = np.where(block.segment_ids == 1, of_sides_SN1[-1], of_sides_SN1[0])
                fields.set("language_ids", rows, np.where(block.segment_ids < 0, 0, language_ids))
            if self.draws:
                bits_NW = bits_of(key_stream(keys_B[rows], DRAW), block.input_ids.shape[1])
                fields.set("draws", rows, np.where(block.segment_ids < 0, 0, bits_NW % DRAWS))
            fields.set("labels", rows, self.mask(block, probability, keys_B[rows]))
            set_layout(fields, rows, block)
        return fields.tensors

    def mask(self, block: Block, probability: float, keys_N: np.ndarray) -> np.ndarray:
        """(N, W) labels of a block, whose `input_ids` get what stands in the predicted places."""
        return self.masked(block, block.tokens, probability, keys_N)

    def masked(self, block: Block, candidates_NW: np.ndarray, probability: float, keys_N: np.ndarray) -> np.ndarray:
        """(N, W) labels where some of the candidates are predicted, 80/10/10."""
        labels = np.full_like(block.input_ids, IGNORED)
        known = candidates_NW & (block.input_ids != self.tokenizer.unk_token_id)
        mask_rows(block.input_ids, labels, known, probability, keys_N, self.tokenizer.mask_token_id, self.vocabulary)
        return labels

    def _keys(self, texts: Texts) -> np.ndarray:
        seeds = {corpus: short_seed(*self.key, self.name, corpus) for corpus in set(texts.names)}
        seeds_B = np.fromiter(map(seeds.__getitem__, texts.names), np.uint64, len(texts.names))
        return row_keys(seeds_B, texts.epochs, texts.ids)

    def _sides(self, texts: Texts, training: bool) -> Sides:
        # evaluated as in use, where <mask> of a text or pair says no language
        says_languages = self.languages and self.language_share and (training or self.language_share == 1)
        codes = [self.languages.of_corpus[corpus] for corpus in texts.names] if says_languages else []
        return Sides(texts.sides, side_lengths(texts.sides), codes)

    def _language_rows(self, sides: Sides, keys_B: np.ndarray) -> np.ndarray:
        """(S, B) rows of the language embedding, -1 where <mask> carries none; empty where no row's does."""
        rows_SB = np.array([[self.languages.rows[code] for code in codes] for codes in sides.codes]).T
        if len(rows_SB) and self.language_share < 1:
            rows_SB = np.where(uniform_of(key_stream(keys_B, LANGUAGE)) < self.language_share, rows_SB, -1)
        return rows_SB


class MlmCollator(Collator):
    """Masked language modeling of text in one language: every token sees every token.

        a m a
    a   x x x
    m   x x x
    a   x x x
    """

    name = "mlm"


class TlmCollator(Collator):
    """Translation language modeling (Conneau and Lample 2019): a masked token may be read off either side.

            a m b b
        a   x x x x
        m   x x x x
        b   x x x x
        b   x x x x

    With ERNIE-M's languages, half of the rows teach the language embedding from the first step on, the others the
    <mask> that is used later, which says none (hub_cards/models/ernie_m.md, "What differs from the paper"). XLM-Align's
    `dwa` reads these rows, and MetaXLM's `kd` those of `mlm`: they have no collators.
    """

    name = "tlm"
    language_share = 0.5


class CaMlmCollator(Collator):
    """VECO's cross-attention masked LM (ACL 2021, Figure 2): x and y are inputs of their own, masked one by one.

        H stream (`inner`)        S stream (`cross`)
              a m a                     a m a | b m      to the last H of the other side
          a   x x x                 a   x x x | x x
          m   x x x                 m   x x x | x x
          a   x x x                 a   x x x | x x

    The sub-batch holds `x` and `y`, each a full set of fields of its own length. Both streams see all of their own
    side; where `config.cross_stream` is causal (ICLR), the model narrows S to the positions before, because its
    decoder, which no collator feeds, does the same.
    """

    def rows(self, sides: Sides, keys_B: np.ndarray, language_rows_SB: np.ndarray, probability: float) -> dict:
        return {
            name: super(CaMlmCollator, self).rows(
                replace(sides, tokens=[sides.tokens[s]], lengths_SB=sides.lengths_SB[s : s + 1]),
                key_stream(keys_B, stream),
                language_rows_SB[s : s + 1],
                probability,
            )
            for s, (name, stream) in enumerate(zip(SIDES, (X_MASKS, Y_MASKS), strict=True))
        }


class CaMlmSegmentsCollator(CaMlmCollator):
    """CA-MLM of adjacent segments of a document; see `CaMlmCollator`."""

    name = "ca_mlm_segments"


class CaMlmPairsCollator(CaMlmCollator):
    """CA-MLM of translations; see `CaMlmCollator`."""

    name = "ca_mlm_pairs"


class CamlmCollator(Collator):
    """ERNIE-M's cross-attention masked LM (section 3.1, Figure 2): a side is predicted from the other one alone.

            a m b m'
        a   x . . .      what is not masked sees its own side, or its words would come back by the other side's states
        m   . x x .      a masked token sees the other side, and the masked of its own
        b   . . x .
        m'  x . . x

    Predicted tokens are <mask> always: one that is kept would be a word of its own side, which the other masks of that
    side could read. Each side keeps a token or more to be predicted from. Which side comes first is drawn: BTMLM writes
    behind a text, in either language.
    """

    name = "camlm"
    language_share = 1.0

    def arrange(self, sides: Sides, keys_B: np.ndarray, objective: Objective, training: bool) -> tuple[Sides, dict]:
        is_turned_B = uniform_of(key_stream(keys_B, ORDER)) < 0.5
        turned = is_turned_B.tolist()
        pairs = [(y, x) if turn else (x, y) for x, y, turn in zip(*sides.tokens, turned, strict=True)]
        codes = [codes[::-1] if turn else codes for codes, turn in zip(sides.codes, turned, strict=False)]
        lengths_SB = np.where(is_turned_B, sides.lengths_SB[::-1], sides.lengths_SB)
        return Sides([list(side) for side in zip(*pairs, strict=True)], lengths_SB, codes), {}

    def rows(self, sides: Sides, keys_B: np.ndarray, language_rows_SB: np.ndarray, probability: float) -> dict:
        fields = super().rows(sides, keys_B, language_rows_SB, probability)
        predicted_BT = fields["labels"].ne(IGNORED)
        return fields | {"attention_mask": camlm_mask(fields["attention_mask"], fields["segment_ids"], predicted_BT)}

    def mask(self, block: Block, probability: float, keys_N: np.ndarray) -> np.ndarray:
        labels = np.full_like(block.input_ids, IGNORED)
        known = block.input_ids != self.tokenizer.unk_token_id
        of_side, mask_id = [tokens & known for tokens in block.of_side], self.tokenizer.mask_token_id
        for candidates, other, stream in zip(of_side, of_side[::-1], (X_MASKS, Y_MASKS), strict=True):
            # not where the other side has no token that tells anything
            share_N = np.where(other.any(1), probability, 0.0)
            keys = key_stream(keys_N, stream)
            mask_rows(
                block.input_ids, labels, candidates, share_N, keys, mask_id, self.vocabulary, mask_share=1.0, leave=1
            )
        return labels


class BtmlmCollator(Collator):
    """ERNIE-M's back-translation masked LM (section 3.1, Figures 3 and 4): the model writes, then reads.

        first step, `generation_mask`      second step, `attention_mask`
              a a p p                            a m b b
          a   x x . .                        a   x x x x
          a   x x . .                        m   x x x x
          p   x x x .                        b   x x x x
          p   x x . x                        b   x x x x

    Behind a text of n tokens stand k = max(1, round(`pseudo_share` n)) pseudo positions p, <mask> in a language drawn
    from those that its own is translated into. The first step fills them without gradient, each from the unmasked text
    and itself; the second predicts masked tokens of the text. The sub-batch says at which `temperature` they are filled
    in training, and how many texts had room for fewer (`shortened`).
    """

    name = "btmlm"
    language_share = 1.0

    def arrange(self, sides: Sides, keys_B: np.ndarray, objective: Objective, training: bool) -> tuple[Sides, dict]:
        (length_B,) = sides.lengths_SB
        due_B = pseudo_count(length_B, objective.pseudo_share)
        count_B = np.minimum(due_B, (objective.max_length - SPECIALS_OF_PAIR - length_B).clip(min=0))
        slots = np.full(count_B.max(), self.tokenizer.mask_token_id, dtype=np.int32)
        tokens = [*sides.tokens, [slots[:count] for count in count_B]]
        codes = self._with_targets(sides.codes, keys_B, objective)
        facts = {"temperature": objective.temperature, "shortened": int((count_B < due_B).sum())} if training else {}
        return Sides(tokens, np.stack([length_B, count_B]), codes), facts

    def rows(self, sides: Sides, keys_B: np.ndarray, language_rows_SB: np.ndarray, probability: float) -> dict:
        fields = super().rows(sides, keys_B, language_rows_SB, probability)
        mask_BTT = btmlm_generation_mask(fields["attention_mask"], fields["segment_ids"])
        return fields | {"generation_mask": mask_BTT}

    def mask(self, block: Block, probability: float, keys_N: np.ndarray) -> np.ndarray:
        return self.masked(block, block.of_side[0], probability, keys_N)

    def _with_targets(self, codes_B1: list, keys_B: np.ndarray, objective: Objective) -> list[tuple[str, str]]:
        """The language of each text, and the one that it is back-translated into."""
        drawn_B = uniform_of(key_stream(keys_B, TARGET)).tolist()
        targets = {code: self.languages.targets(code, objective.target_languages) for code in {c for c, *_ in codes_B1}}
        return [
            (code, targets[code][0][int(np.searchsorted(targets[code][1].cumsum()[:-1], drawn, side="right"))])
            for (code, *_), drawn in zip(codes_B1, drawn_B, strict=False)
        ]


def pseudo_count(tokens: int | np.ndarray, share: float) -> int | np.ndarray:
    """Pseudo tokens that a text of so many tokens should get (ERNIE-M, section 4.3)."""
    return np.maximum(1, np.rint(share * tokens)).astype(np.int64)


COLLATORS = {
    collator.name: collator
    for collator in (
        MlmCollator,
        TlmCollator,
        CaMlmSegmentsCollator,
        CaMlmPairsCollator,
        CamlmCollator,
        BtmlmCollator,
    )
}
