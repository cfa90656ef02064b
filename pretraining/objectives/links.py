"""Word alignment learned from links by people and by the model itself: trains the aligner's probabilities
(modeling/word_probabilities.py).

The loss is that of `modeling/modeling_xlm_align.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NamedTuple

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

    # pyrefly: ignore[bad-override]  # no option here: nothing is masked
    mask_probability: ClassVar[float] = 0.0

    name, text = "word_links", "linked"
    keys = ("source", "target", "links")
    apart = True
    is_masked_lm = False

    def predictions(self, sub_batch: dict[str, Any]) -> int:
        """Returns the number of source words, as each is a prediction."""
        return int((sub_batch["x"]["words"].amax(1) + 1).sum())

    def rows(self, sides: list[list[np.ndarray]], keys_B: np.ndarray, language_rows_SB: np.ndarray) -> dict:
        """Returns a set of fields for each side, `links` and `has_links`; nothing is masked."""
        import torch

        pairs = LinkedPairs(*sides)
        links_K4 = self._numbered_links(pairs.links)
        fields: dict[str, Any] = {"has_links": torch.tensor([len(links) > 0 for links in pairs.links], device="cpu")}
        columns = ((pairs.source_tokens, pairs.source_words), (pairs.target_tokens, pairs.target_words))
        for name, column, (tokens, words) in zip(SIDES, (1, 2), columns, strict=True):
            side = self._lay_out_side(tokens, words)
            fields[name] = side.fields
            linked_words = links_K4[:, [0, column]].tolist()
            links_K4[:, column] = [side.number_of_word.get((row, word), NO_WORD) for row, word in linked_words]
        is_whole_K = (links_K4 != NO_WORD).all(1)
        fields["links"] = torch.from_numpy(links_K4[is_whole_K])
        return fields

    def _numbered_links(self, links: list[np.ndarray]) -> np.ndarray:
        """Returns (K, 4) all links: their row, source word, target word, and whether they are sure."""
        links_K3 = np.concatenate(links).reshape(-1, 3)
        counts = [len(links_of_row) // 3 for links_of_row in links]
        row_K = np.repeat(np.arange(len(links)), counts)
        return np.column_stack([row_K, links_K3]).astype(np.int64)

    def _lay_out_side(self, tokens: list[np.ndarray], words: list[np.ndarray]) -> "Side":
        """Returns the rows of one side. Its words are numbered anew: those without tokens do not count."""
        rows = lay_out([tokens], self.tokenizer)
        words_BT = np.full(rows.input_ids.shape, NO_WORD)
        number_of_word = {}
        for row, words_of_row in enumerate(words):
            words_with_tokens, numbers = np.unique(words_of_row[: len(tokens[row])], return_inverse=True)
            words_BT[row, rows.tokens[row]] = numbers
            for number, word in enumerate(words_with_tokens.tolist()):
                number_of_word[row, word] = number
        return Side(rows.fields() | as_tensors(words=words_BT), number_of_word)

    def _read(self, examples: Sequence[Mapping[str, Any]], seed: int) -> list[list[np.ndarray]]:
        """Returns the columns of `LinkedPairs`, cut to a row's length."""
        columns = {key: self._values(examples, key) for key in self.keys}
        for value in chain.from_iterable(columns.values()):
            if not isinstance(value, str):
                raise ValueError(f"{', '.join(self.keys)} of an example must be texts, got {value!r}.")
        tokens = []
        words = []
        room = self.max_length - SPECIALS_OF_TEXT
        for key in ("source", "target"):
            tokens_of_side = tokens_of_words(columns[key], self.tokenizer)
            if [] in tokens_of_side:
                number = tokens_of_side.index([])
                raise ValueError(f"{key!r} of example {number} has no tokens. Leave such examples out.")
            tokens.append(cut_arrays(tokens_of_side, room))
            words.append(cut_arrays(words_of_tokens(columns[key], self.tokenizer), room))
        return [*tokens, *words, cut_arrays(links_of(columns["links"]), None)]

    def measure(self, model: Any, accelerator: Any, corpus: Any, batch_size: int) -> dict[str, float]:
        """Returns the AER of the model's links in held-out pairs, in percent (Och and Ney 2003)."""
        if corpus.kind != self.text:
            return {}
        from accelerate.utils import send_to_device

        examples = corpus.with_form(self.text_length, self.apart).held_out
        hits = 0  # found links that are possible or sure, and those that are sure
        sure = 0
        found_links = 0
        for start in range(0, len(examples), batch_size):
            texts = examples[start : start + batch_size]
            batch = send_to_device(self.sub_batch(texts, ("held out",)), accelerator.device)
            with accelerator.autocast():
                logits_BST, cells_BST = model.word_logits(batch)
            links_BST = (logits_BST >= 0) & cells_BST
            row_K, source_K, target_K, kind_K = batch["links"].unbind(1)
            is_found_K = links_BST[row_K, source_K, target_K]
            is_sure_K = kind_K == SURE
            hits += int(is_found_K.sum()) + int((is_found_K & is_sure_K).sum())
            sure += int(is_sure_K.sum())
            found_links += int(links_BST.sum())
        if not sure:
            return {}
        return {f"link_aer/{corpus.name}": 100 - 100 * hits / (sure + found_links)}


class LinkedPairs(NamedTuple):
    """The columns of linked pairs: token ids of both sides, the word of each token, and links as a flat array of source
    word, target word, and `SURE` or not."""

    source_tokens: list[np.ndarray]
    target_tokens: list[np.ndarray]
    source_words: list[np.ndarray]
    target_words: list[np.ndarray]
    links: list[np.ndarray]


class Side(NamedTuple):
    """One side as rows: its fields, and (row, word of the text) -> its number among those of the row with tokens."""

    fields: dict[str, Any]
    number_of_word: dict[tuple[int, int], int]


def cut_arrays(lists: list[list[int]], length: int | None) -> list[np.ndarray]:
    """Returns at most `length` numbers of each list, as arrays."""
    return [np.array(numbers[:length], dtype=np.int64) for numbers in lists]
