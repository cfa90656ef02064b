"""Word alignment learned from links by people and by the model itself: trains the aligner's probabilities
(modeling/word_probabilities.py).

The loss is that of `modeling/modeling_xlm_align.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from crosslingual_zoo.pretraining.data.examples import SPECIALS_OF_TEXT
from crosslingual_zoo.pretraining.data.readings import SURE, links_of, tokens_of_words, words_of_tokens
from crosslingual_zoo.pretraining.objectives.base import Collator
from crosslingual_zoo.pretraining.rows import SIDES, as_tensors, lay_out

NO_WORD = -1


@dataclass(kw_only=True)
class LinksCollator(Collator):
    """XLM-Align's learning from links between words of the recipe's `linked` pairs, made by people or by the model.

    Each side is a separate input, as the aligner reads it, and nothing is masked. The equation is that of
    `XlmAlignForPreTraining`.

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
    whether the example has any link, cut off or not. Options: see `Collator`.

    Raises ValueError for options out of range, an example without its keys, a side without words, and links that cannot
    be read.

    Source: this zoo (finetuning/align_words.md, "Learn to align").
    """

    mask_probability: ClassVar[float] = 0.0  # nothing is masked

    name, text = "word_links", "linked"
    keys = ("source", "target", "links")
    apart = True
    is_masked_lm = False

    def predictions(self, sub_batch: Mapping[str, Any]) -> int:
        """Returns the number of source words, as each is a prediction."""
        return int((sub_batch["x"]["words"].amax(1) + 1).sum())

    def rows(self, sides, keys_B, language_rows_SB):
        import torch

        texts, words, links = sides[:2], sides[2:4], [np.reshape(of_row, (-1, 3)) for of_row in sides[4]]
        links_K4 = np.concatenate([np.insert(of_row, 0, row, axis=1) for row, of_row in enumerate(links)])
        fields = {"has_links": torch.from_numpy(np.array([len(of_row) > 0 for of_row in links]))}
        for side, name in enumerate(SIDES):
            rows = lay_out([texts[side]], self.tokenizer)
            words_BT = np.full(rows.input_ids.shape, NO_WORD)
            places = {}  # (row, word of the text) -> its number among those of the row that have tokens
            for row, (ids, own) in enumerate(zip(texts[side], words[side], strict=True)):
                known, words_BT[row, rows.tokens[row]] = np.unique(own[: len(ids)], return_inverse=True)
                places |= {(row, word): number for number, word in enumerate(known.tolist())}
            linked = links_K4[:, [0, 1 + side]].tolist()
            links_K4[:, 1 + side] = [places.get((row, word), NO_WORD) for row, word in linked]
            fields[name] = rows.fields() | as_tensors(words=words_BT)
        fields["links"] = torch.from_numpy(links_K4[(links_K4 != NO_WORD).all(1)].astype(np.int64))
        return fields

    def _read(self, examples: Sequence[Mapping[str, Any]], seed: int) -> list[list[np.ndarray]]:
        source, target, links = (self._values(examples, key) for key in self.keys)
        if not_text := [value for value in (*source, *target, *links) if not isinstance(value, str)]:
            raise ValueError(f"{', '.join(self.keys)} of an example must be texts, got {not_text[0]!r}.")
        tokens = [tokens_of_words(side, self.tokenizer) for side in (source, target)]
        for key, side in zip(self.keys, tokens, strict=False):
            if [] in side:
                raise ValueError(f"{key!r} of example {side.index([])} has no tokens. Leave such examples out.")
        words = [words_of_tokens(side, self.tokenizer) for side in (source, target)]
        room = self.max_length - SPECIALS_OF_TEXT
        sides = [[np.array(ids[:room], dtype=np.int64) for ids in column] for column in (*tokens, *words)]
        return [*sides, [np.array(of_row, dtype=np.int64) for of_row in links_of(links)]]

    def measure(self, model: Any, accelerator: Any, corpus: Any, batch_size: int) -> dict[str, float]:
        """Returns the AER of the model's links in held-out pairs, in percent (Och and Ney 2003)."""
        if corpus.kind != self.text:
            return {}
        from accelerate.utils import send_to_device

        right, sure, found, examples = 0, 0, 0, corpus.with_form(self.text_length, self.apart).held_out
        for start in range(0, len(examples), batch_size):
            texts = examples[start : start + batch_size]
            batch = send_to_device(self.sub_batch(texts, ("held out",)), accelerator.device)
            with accelerator.autocast():
                logits_BST, cells_BST = model.word_logits(batch)
            links_BST = (logits_BST >= 0) & cells_BST
            row_K, source_K, target_K, is_sure_K = batch["links"].unbind(1)
            hits_K = links_BST[row_K, source_K, target_K]
            right += int(hits_K.sum()) + int(hits_K[is_sure_K == SURE].sum())
            sure, found = sure + int((is_sure_K == SURE).sum()), found + int(links_BST.sum())
        return {f"link_aer/{corpus.name}": 100 - 100 * right / (sure + found)} if sure else {}
