"""A teacher of one language for a cross-lingual model (MetaXLM's baseline XLM+KD; Chi et al. 2021, section 5.3).

The teacher reads masked text with its own tokenizer and predicts the masked words; `MetaXlmForPreTraining` learns from
these predictions. The teacher is not part of the model: it is neither trained nor saved.

Legend: `B` rows, `T` positions of the model's tokens, `S` of the teacher's; `N` positions that the teacher predicts;
`C` tokens that the two vocabularies have in common.
"""

import functools
import itertools
import logging
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from crosslingual_zoo.modeling.configuration_encoder import longest_input
from crosslingual_zoo.pretraining.objectives import Objective
from crosslingual_zoo.pretraining.recipe import Teacher
from crosslingual_zoo.pretraining.start.pretrained import Pretrained
from crosslingual_zoo.pretraining.start.token_texts import UNSPACED, Subword, read_vocabulary, script_of
from crosslingual_zoo.pretraining.start.vocabulary_matching import match_vocabularies
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.provenance import model_fingerprint, tokenizer_fingerprint
from crosslingual_zoo.zoo_core.token_offsets import untrimmed_offsets

logger = logging.getLogger(__name__)

UNKNOWN = "\ufffd"  # the teacher reads it in place of a student's token that is no text


class Question(NamedTuple):
    """A row as the teacher reads it, with the words of the masked positions masked, and the positions to predict."""

    input_ids_S: np.ndarray
    columns_N: list[int]  # positions of the row (of T)
    places_N: list[int]  # positions of the same tokens in `input_ids_S`


class TeacherModel:
    """The teacher of a recipe; it adds its predictions to a sub-batch of masked texts as `teacher`.

    It predicts in examples of `teacher.language`, at the positions that the model predicts, if their word is one token
    in both segmentations and the two tokens are the same. If the model predicts a token of a word, the teacher reads a
    mask for every token of this word, also if the model reads the word itself or another one. The teacher's
    distribution is renormalized over the common tokens, at `teacher.temperature`.

    The common tokens are those that match exactly (`vocabulary_matching`). If several tokens of the model match one of
    the teacher's (`,` and `▁,` match BERT's `,`), the lowest id is used, of the most frequent one.

    Deviations from the paper: it does not specify how to compare a RoBERTa and an XLM-R, which cut words differently,
    at which positions, and with which temperature; these choices are ours. Text beyond the teacher's positions gets no
    predictions.

    Raises ValueError for a teacher without masked-LM head or mask token, and for one that cannot be compared.
    """

    def __init__(self, teacher: Teacher, tokenizer, hub_root: str | None = None, trust_remote_code: bool = False):
        """`tokenizer` is the student's."""
        checkpoint = Pretrained(teacher.path, "teacher.path", hub_root, trust_remote_code)
        config = checkpoint.config()
        self.settings, self.path, self.tokenizer = teacher, checkpoint.path, checkpoint.tokenizer(config)
        if self.tokenizer.mask_token_id is None:
            raise ValueError(f"the tokenizer of {checkpoint} has no mask token. Use a masked language model.")
        self.model = checkpoint.masked_lm(config, is_whole=True)[0].eval().requires_grad_(False)
        self.longest_input = min(longest_input(config), self.tokenizer.model_max_length)
        vocabulary = read_vocabulary(tokenizer)
        # WordPiece's unknown token is a whole word; SentencePiece's does not include the mark of the word's start
        unknown = Subword(UNKNOWN, vocabulary.kind == "wordpiece")
        self.subwords = [unknown if subword is None else subword for subword in vocabulary.subwords]
        matching = match_vocabularies(self.tokenizer, tokenizer)
        exact = [(source, own) for own, source in enumerate(matching.sources) if matching.routes[own] == "exact"]
        # {id of the student: id of the teacher}, one to one: of several, the student's lowest id
        self.partners = {own: their for their, own in dict(reversed(exact)).items()}
        if not self.partners:
            raise ValueError(f"{checkpoint} has no common token with the student. Use a teacher of its script.")
        self.own_C, self.theirs_C = torch.tensor(sorted(self.partners.items())).T
        logger.info("the student has %d of the %d tokens of its teacher", len(self.partners), len(self.tokenizer))

    def answer(self, batch: dict[str, dict], objectives: Mapping[str, Objective], weights: Mapping[str, float]) -> None:
        """Adds `teacher` to the sub-batches that objectives with a teacher learn from, unless their weight is 0."""
        for name, objective in objectives.items():
            fields = batch.get(objective.reads)
            if objective.has_teacher and fields is not None and weights.get(name, 1.0):
                fields["teacher"] = self.answers(fields)

    def answers(self, fields: dict) -> dict:
        """Returns the teacher's predictions for a sub-batch of masked texts, on its device."""
        device, length = fields["input_ids"].device, fields["input_ids"].shape[1]
        # the name of a corpus is its language, or language/source
        languages = [name.partition("/")[0] for name in fields["corpus_names"]]
        rows = [row for row, language in enumerate(languages) if language == self.settings.language]
        asked = [(row, question) for row, question in self.questions(fields, rows) if question.columns_N]
        positions = [row * length + column for row, question in asked for column in question.columns_N]
        return {
            "positions_N": torch.tensor(positions, dtype=torch.long, device=device),
            "tokens_C": self.own_C.to(device),
            "log_probabilities_NC": self._log_probabilities([question for _, question in asked], device),
            "temperature": self.settings.temperature,
        }

    def facts(self) -> dict:
        """Returns the facts of the teacher for run.json."""
        return {
            "path": self.settings.path,
            "fingerprint": model_fingerprint(self.path),
            "tokenizer_fingerprint": tokenizer_fingerprint(self.tokenizer),
            "language": self.settings.language,
            "common_tokens": len(self.partners),
        }

    def questions(self, fields: dict, rows: list[int]) -> list[tuple[int, Question]]:
        """Returns (row, question to the teacher) of some rows of a sub-batch."""
        names = ("special_tokens_mask", "labels", "input_ids")
        special_BT, labels_BT, ids_BT = (fields[name].cpu().numpy() for name in names)
        predicted_BT = labels_BT != IGNORED
        gold_BT = np.where(predicted_BT, labels_BT, ids_BT)
        columns = {row: np.flatnonzero(special_BT[row] == 0) for row in rows}
        return [(row, self._question(gold_BT[row, at], predicted_BT[row, at], at)) for row, at in columns.items()]

    def _question(self, gold_T: np.ndarray, predicted_T: np.ndarray, columns_T: np.ndarray) -> Question:
        """Here, `T` are the ordinary tokens of a row: their ids, whether they are predicted, and their positions."""
        text, offsets_T = text_of([self.subwords[token] for token in gold_T])
        start = int(text.startswith(" "))  # the space before the first word is not part of the text
        options = {"truncation": True, "max_length": self.longest_input, "return_offsets_mapping": True}
        # a text may contain the names of special tokens
        with untrimmed_offsets(self.tokenizer):
            encoded = self.tokenizer(
                text[start:], **options, return_special_tokens_mask=True, split_special_tokens=True
            )
        input_ids_S, special_S = np.array(encoded["input_ids"]), encoded["special_tokens_mask"]
        word_of = words_of_text(text, offsets_T)
        own = [_words(word_of, *offsets) for offsets in offsets_T]
        theirs = [_words(word_of, begin + start, end + start) for begin, end in encoded["offset_mapping"]]
        theirs = [set() if special else words for words, special in zip(theirs, special_S, strict=True)]
        alone, places = _single_tokens(own), _single_tokens(theirs)
        found = {
            int(columns_T[place]): places[word]
            for word, place in alone.items()
            if predicted_T[place] and word in places
            if self.partners.get(gold_T[place]) == input_ids_S[places[word]]
        }
        masked = set().union(*itertools.compress(own, predicted_T))
        input_ids_S[[not masked.isdisjoint(words) for words in theirs]] = self.tokenizer.mask_token_id
        return Question(input_ids_S, [*found], [*found.values()])

    @torch.no_grad()
    def _log_probabilities(self, questions: list[Question], device: torch.device) -> torch.Tensor:
        """(N, C) log-probabilities of the common tokens, float32."""
        if not questions:
            return torch.zeros(0, len(self.partners), device=device)
        self.model.to(device)
        asked = {"input_ids": [question.input_ids_S.tolist() for question in questions]}
        padded = self.tokenizer.pad(asked, padding_side="right", return_tensors="pt").to(device)
        places = [(row, place) for row, question in enumerate(questions) for place in question.places_N]
        rows_N, places_N = torch.tensor(places, device=device).T
        # logits of every position would be the largest tensor of the step
        decoder = self.model.get_output_embeddings()
        hook = decoder.register_forward_pre_hook(lambda _, inputs: inputs[0][rows_N, places_N])
        try:
            logits = self.model(**padded).logits
        finally:
            hook.remove()
        if logits.dim() == 3:  # of a head that does not call its decoder
            logits = logits[rows_N, places_N]
        return (logits[:, self.theirs_C.to(device)].float() / self.settings.temperature).log_softmax(-1)


def text_of(subwords: Sequence[Subword | bytes]) -> tuple[str, list[tuple[int, int]]]:
    """Returns the text of a row of tokens, and where each token is in it (T).

    A run of byte tokens is decoded as one text, in which each of them covers the run; invalid bytes become U+FFFD.
    """
    text, offsets_T = "", []
    for is_bytes, run in itertools.groupby(subwords, lambda subword: isinstance(subword, bytes)):
        run = list(run)
        parts = [b"".join(run).decode(errors="replace")] if is_bytes else [" " * word + part for part, word in run]
        for part in parts:
            begin = len(text) + len(part) - len(part.lstrip(" "))
            text += part
            offsets_T += [(begin, len(text))] * (len(run) if is_bytes else 1)
    return text, offsets_T


def words_of_text(text: str, offsets_T: list[tuple[int, int]]) -> list[int]:
    """Returns the word of each character, -1 for a space. Words end at spaces, and between tokens at punctuation; in
    scripts without spaces, each token is a word. BERT's and GPT-2's tokenizers cut at the same places."""
    words, word, starts = [], -1, {begin for begin, _ in offsets_T}
    for place, character in enumerate(text):
        if place in starts and character != " ":
            before, kind = _kind(text[place - 1]) if place else "space", _kind(character)
            word += before != kind or kind == "unspaced"
        words.append(-1 if character == " " else word)
    return words


@functools.lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    if script_of(character) in UNSPACED:
        return "unspaced"
    return "space" if character == " " else "word" if unicodedata.category(character)[0] in "LMN" else "other"


def _words(word_of: list[int], begin: int, end: int) -> set[int]:
    """Returns the words of a token. One that is only a space belongs to the word behind it."""
    return ({*word_of[begin:end]} - {-1}) or ({*word_of[end : end + 1]} - {-1})


def _single_tokens(words: list[set[int]]) -> dict[int, int]:
    """Returns {word: its token} of the words that are one token; one that covers two words is not that of either."""
    count = Counter(itertools.chain.from_iterable(words))
    return {word: place for place, found in enumerate(words) for word in found if len(found) == count[word] == 1}
