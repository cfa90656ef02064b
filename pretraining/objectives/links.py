"""Word alignment learned from links by people and by the model itself: trains the aligner's probabilities
(modeling/word_probabilities.py).

The loss is that of `modeling/modeling_xlm_align.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pretraining.data.examples import SPECIALS_OF_TEXT, Texts
from pretraining.data.links import SURE, links_of, tokens_of_words, words_of_tokens
from pretraining.objectives.base import SHORTEST, Collator, ExampleObjective, Sides
from pretraining.rows import SIDES, as_tensors, lay_out

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from pretraining.held_out import Evaluator

NO_WORD = -1


class LinksCollator(Collator):
    """Linked pairs: each side is a separate input, as the aligner reads it, and nothing is masked.

              a a a             b b
        a     x x x         b   x x
        a     x x x         b   x x
        a     x x x

    Examples: `{"source": "The house is small .", "target": "Das Haus ist klein .", "links": "0-0 1-1 2-2 3-3 4-4"}`:
    words separated by spaces, and links between them, from 0; `0p0` is a possible link, which the model does not learn.
    The model labels a row without links itself.

    The sub-batch has `x` and `y`, each with `words` (B, T): the number of a token's word among those of its row that
    have tokens, -1 elsewhere. It also has `links` (K, 4): row, source word, target word, and whether the link is sure.
    Sides are cut to `max_length` positions, and links to words that are cut off are left out. `has_links` (B,) tells
    whether the example has any link, cut off or not.

    Raises ValueError for options out of range, an example without its keys, a side without words, and links that cannot
    be read.

    Source: this zoo (finetuning/align_words.md, "Learn to align").
    """

    name = "word_links"
    keys = ("source", "target", "links")
    apart = True

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        max_length: int = 128,
    ):
        """
        Args:
            tokenizer: that of the model.
            max_length: positions of a side, with special tokens; longer sides are cut.
        """
        if not isinstance(max_length, int) or max_length < SHORTEST:
            raise ValueError(f"max_length must be a whole number of at least {SHORTEST}, got {max_length!r}.")
        self.tokenizer, self.max_length, self.languages = tokenizer, max_length, None

    def rows(self, sides: Sides, keys_B: np.ndarray, language_rows_SB: np.ndarray) -> dict:
        """Returns the fields of the sub-batch; see the class."""
        import torch

        links = [np.reshape(of_row, (-1, 3)) for of_row in sides.tokens[4]]
        links_K4 = np.concatenate([np.insert(of_row, 0, row, axis=1) for row, of_row in enumerate(links)])
        fields = {"has_links": torch.from_numpy(np.array([len(of_row) > 0 for of_row in links]))}
        for side, name in enumerate(SIDES):
            rows = lay_out([sides.tokens[side]], sides.lengths_SB[side : side + 1], self.tokenizer)
            words_BT = np.full(rows.input_ids.shape, NO_WORD)
            for row, (tokens, words) in enumerate(zip(sides.tokens[side], sides.tokens[2 + side], strict=True)):
                known, words_BT[row, rows.tokens[row]] = np.unique(words[: len(tokens)], return_inverse=True)
                of_row = np.flatnonzero(links_K4[:, 0] == row)
                place = {word: number for number, word in enumerate(known.tolist())}
                found = [place.get(word, NO_WORD) for word in links_K4[of_row, 1 + side].tolist()]
                links_K4[of_row, 1 + side] = found
            fields[name] = rows.fields() | as_tensors(words=words_BT)
        fields["links"] = torch.from_numpy(links_K4[(links_K4 != NO_WORD).all(1)].astype(np.int64))
        return fields

    def _read(self, examples: Sequence[Mapping[str, Any]], seed: int) -> tuple[Texts, list[tuple[str, ...]]]:
        self._check(examples)
        columns = [[example[key] for example in examples] for key in self.keys]
        kind = type(self).__name__
        for key, column in zip(self.keys, columns, strict=True):
            for number, value in enumerate(column):
                if not isinstance(value, str):
                    raise ValueError(
                        f"{kind}: {key!r} of example {number} must be a text, got a {type(value).__name__}."
                    )
        try:
            links = links_of(columns[2])
        except ValueError as error:
            raise ValueError(f"{kind}: {error}") from None
        read = [of(column, self.tokenizer) for of in (tokens_of_words, words_of_tokens) for column in columns[:2]]
        for key, side in zip(self.keys, read[:2], strict=False):
            if empty := [number for number, tokens in enumerate(side) if not tokens]:
                raise ValueError(f"{kind}: {key!r} of example {empty[0]} has no tokens. Leave such examples out.")
        room = self.max_length - SPECIALS_OF_TEXT
        sides = [[np.array(ids[:room], dtype=np.int64) for ids in column] for column in read]
        sides.append([np.array(of, dtype=np.int64) for of in links])
        ids = np.arange(len(examples), dtype=np.int64)
        return Texts(sides, ["und-und"] * len(ids), ids, np.zeros_like(ids)), []


@dataclass
class Links(ExampleObjective):
    """XLM-Align's learning from links between words of the recipe's `linked` pairs, made by people or by the model."""

    name = LinksCollator.name
    text = "linked"
    collator_class = LinksCollator
    predicts_tokens = False
    panels: ClassVar[dict[str, str]] = {"link_aer/": "AER of held-out pairs with gold links (%), lower is better"}

    def predictions(self, fields: Mapping[str, Any]) -> int:
        """Returns the number of source words, as each is a prediction."""
        return int((fields["words"].amax(1) + 1).sum())

    @staticmethod
    def measure(evaluator: "Evaluator", corpus: Any) -> dict[str, float | list[float]]:
        """Returns the AER of the model's links in held-out pairs, in percent (Och and Ney 2003)."""
        if corpus.kind != Links.text:
            return {}
        from accelerate.utils import send_to_device

        collator = LinksCollator(evaluator.tokenizer, corpus.max_length)
        right, sure, found = 0, 0, 0
        for start in range(0, len(corpus.held_out), evaluator.batch_size):
            texts = Texts.of(corpus.held_out[start : start + evaluator.batch_size])
            batch = send_to_device(collator.sub_batch(texts, ("held out",)), evaluator.accelerator.device)
            with evaluator.accelerator.autocast():
                logits_BST, cells_BST = evaluator.model.word_logits(batch)
            links_BST = (logits_BST >= 0) & cells_BST
            row_K, source_K, target_K, is_sure_K = batch["links"].unbind(1)
            hits_K = links_BST[row_K, source_K, target_K]
            right += int(hits_K.sum()) + int(hits_K[is_sure_K == SURE].sum())
            sure, found = sure + int((is_sure_K == SURE).sum()), found + int(links_BST.sum())
        return {f"link_aer/{corpus.name}": 100 - 100 * right / (sure + found)} if sure else {}
