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
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

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

    def __init__(
        self,
        teacher: Teacher,
        tokenizer: PreTrainedTokenizerBase,
        hub_root: str | None = None,
        trust_remote_code: bool = False,
    ):
        """`tokenizer` is the student's."""
        checkpoint = Pretrained(teacher.path, "teacher.path", hub_root, trust_remote_code)
        config = checkpoint.config()
        self.settings = teacher
        self.path = checkpoint.path
        self.tokenizer: Any = checkpoint.tokenizer(config)
        if self.tokenizer.mask_token_id is None:
            raise ValueError(f"the tokenizer of {checkpoint} has no mask token. Use a masked language model.")
        model, _ = checkpoint.masked_lm(config, is_whole=True)
        self.model: Any = model.eval().requires_grad_(False)
        self.longest_input = self.tokenizer.model_max_length
        longest = longest_input(config)
        if longest is not None:
            self.longest_input = min(self.longest_input, longest)
        vocabulary = read_vocabulary(tokenizer)
        # WordPiece's unknown token is a whole word; SentencePiece's does not include the mark of the word's start
        unknown = Subword(UNKNOWN, vocabulary.kind == "wordpiece")
        self.subwords = [unknown if subword is None else subword for subword in vocabulary.subwords]
        matching = match_vocabularies(self.tokenizer, tokenizer)
        # one to one: of several, the student's lowest id
        student_ids: dict[int, int] = {}  # by the teacher's
        for student_id, (teacher_id, route) in enumerate(zip(matching.sources, matching.routes, strict=True)):
            if teacher_id is not None and route == "exact":
                student_ids.setdefault(teacher_id, student_id)
        if not student_ids:
            raise ValueError(f"{checkpoint} has no common token with the student. Use a teacher of its script.")
        self.partners = {student_id: teacher_id for teacher_id, student_id in student_ids.items()}
        self.student_ids_C, self.teacher_ids_C = torch.tensor(sorted(self.partners.items())).T
        logger.info("the student has %d of the %d tokens of its teacher", len(self.partners), len(self.tokenizer))

    def answer(self, batch: dict[str, dict], objectives: Mapping[str, Objective], weights: Mapping[str, float]) -> None:
        """Adds `teacher` to the sub-batches that objectives with a teacher learn from, unless their weight is 0."""
        for name, objective in objectives.items():
            fields = batch.get(objective.reads)
            if objective.has_teacher and fields is not None and weights.get(name, 1.0):
                fields["teacher"] = self.answers(fields)

    def answers(self, fields: dict) -> dict:
        """Returns the teacher's predictions for a sub-batch of masked texts, on its device."""
        device = fields["input_ids"].device
        length = fields["input_ids"].shape[1]
        rows = []
        for row, corpus in enumerate(fields["corpus_names"]):
            # the name of a corpus is its language, or language/source
            if corpus.partition("/")[0] == self.settings.language:
                rows.append(row)
        positions: list[int] = []
        questions = []
        for row, question in self.questions(fields, rows):
            if question.columns_N:
                positions += [row * length + column for column in question.columns_N]
                questions.append(question)
        return {
            "positions_N": torch.tensor(positions, dtype=torch.long, device=device),
            "tokens_C": self.student_ids_C.to(device),
            "log_probabilities_NC": self._log_probabilities(questions, device),
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
        is_special_BT = fields["special_tokens_mask"].cpu().numpy()
        labels_BT = fields["labels"].cpu().numpy()
        predicted_BT = labels_BT != IGNORED
        gold_BT = np.where(predicted_BT, labels_BT, fields["input_ids"].cpu().numpy())
        questions = []
        for row in rows:
            columns_T = np.flatnonzero(is_special_BT[row] == 0)
            questions.append((row, self._question(gold_BT[row, columns_T], predicted_BT[row, columns_T], columns_T)))
        return questions

    def _question(self, gold_T: np.ndarray, predicted_T: np.ndarray, columns_T: np.ndarray) -> Question:
        """Here, `T` are the ordinary tokens of a row: their ids, whether they are predicted, and their positions."""
        text, offsets_T = text_of([self.subwords[token] for token in gold_T])
        start = int(text.startswith(" "))  # the space before the first word is not part of the text
        with untrimmed_offsets(self.tokenizer):
            encoded = self.tokenizer(
                text[start:],
                truncation=True,
                max_length=self.longest_input,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                split_special_tokens=True,  # a text may contain the names of special tokens
            )
        input_ids_S = np.array(encoded["input_ids"])
        word_of_character = words_of_text(text, offsets_T)
        student_words_T = [_words(word_of_character, begin, end) for begin, end in offsets_T]
        teacher_words_S = []
        for (begin, end), is_special in zip(encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True):
            words = set() if is_special else _words(word_of_character, begin + start, end + start)
            teacher_words_S.append(words)
        teacher_tokens = _single_tokens(teacher_words_S)
        columns_N = []
        places_N = []
        for word, student_token in _single_tokens(student_words_T).items():
            if not predicted_T[student_token] or word not in teacher_tokens:
                continue
            teacher_token = teacher_tokens[word]
            if self.partners.get(gold_T[student_token]) == input_ids_S[teacher_token]:
                columns_N.append(int(columns_T[student_token]))
                places_N.append(teacher_token)
        masked_words = set().union(*itertools.compress(student_words_T, predicted_T))
        is_masked_S = [not masked_words.isdisjoint(words) for words in teacher_words_S]
        input_ids_S[is_masked_S] = self.tokenizer.mask_token_id
        return Question(input_ids_S, columns_N, places_N)

    @torch.no_grad()
    def _log_probabilities(self, questions: list[Question], device: torch.device) -> torch.Tensor:
        """(N, C) log-probabilities of the common tokens, float32."""
        if not questions:
            return torch.zeros(0, len(self.partners), device=device)
        self.model.to(device)
        unpadded = {"input_ids": [question.input_ids_S.tolist() for question in questions]}
        padded = self.tokenizer.pad(unpadded, padding_side="right", return_tensors="pt").to(device)
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
        logits_NC = logits[:, self.teacher_ids_C.to(device)].float()
        return (logits_NC / self.settings.temperature).log_softmax(-1)


def text_of(subwords: Sequence[Subword | bytes]) -> tuple[str, list[tuple[int, int]]]:
    """Returns the text of a row of tokens, and where each token is in it (T).

    A run of byte tokens is decoded as one text, in which each of them covers the run; invalid bytes become U+FFFD.
    """
    text = ""
    offsets_T: list[tuple[int, int]] = []
    for is_bytes, run in itertools.groupby(subwords, lambda subword: isinstance(subword, bytes)):
        tokens: list[Any] = list(run)
        if is_bytes:
            parts = [b"".join(tokens).decode(errors="replace")]
        else:
            parts = [f" {part}" if starts_word else part for part, starts_word in tokens]
        for part in parts:
            num_spaces = len(part) - len(part.lstrip(" "))
            span = (len(text) + num_spaces, len(text) + len(part))
            text += part
            offsets_T += [span] * len(tokens) if is_bytes else [span]
    return text, offsets_T


def words_of_text(text: str, offsets_T: list[tuple[int, int]]) -> list[int]:
    """Returns the word of each character, -1 for a space. Words end at spaces, and between tokens at punctuation; in
    scripts without spaces, each token is a word. BERT's and GPT-2's tokenizers cut at the same places."""
    words = []
    word = -1
    token_starts = {begin for begin, _ in offsets_T}
    kind_before = "space"
    for position, character in enumerate(text):
        kind = _kind(character)
        if kind == "space":
            words.append(-1)
        else:
            if position in token_starts and (kind != kind_before or kind == "unspaced"):
                word += 1
            words.append(word)
        kind_before = kind
    return words


@functools.lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    if script_of(character) in UNSPACED:
        return "unspaced"
    if character == " ":
        return "space"
    return "word" if unicodedata.category(character)[0] in "LMN" else "other"


def _words(word_of_character: list[int], begin: int, end: int) -> set[int]:
    """Returns the words of a token. One that is only a space belongs to the word behind it."""
    words = set(word_of_character[begin:end]) - {-1}
    return words or set(word_of_character[end : end + 1]) - {-1}


def _single_tokens(words: list[set[int]]) -> dict[int, int]:
    """Returns {word: its token} of the words that are one token; one that covers two words is not that of either."""
    count = Counter(itertools.chain.from_iterable(words))
    tokens = {}
    for token, words_of_token in enumerate(words):
        for word in words_of_token:
            if len(words_of_token) == 1 and count[word] == 1:
                tokens[word] = token
    return tokens
