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
from transformers import PreTrainedTokenizerBase

from modeling.model_types import longest_input
from pretraining.data.tokenized import tokenizer_fingerprint
from pretraining.objectives import Objective
from pretraining.recipe import Teacher
from pretraining.rows import pad_rows
from pretraining.start.pretrained import Pretrained
from pretraining.start.token_texts import UNSPACED, Subword, read_vocabulary, script_of
from pretraining.start.vocabulary_matching import match_vocabularies
from zoo_core.masking import IGNORED
from zoo_core.provenance import model_fingerprint
from zoo_core.vocabularies import check_vocabulary

logger = logging.getLogger(__name__)

UNKNOWN = "\ufffd"  # the teacher reads it in place of a student's token that is no text
NAMES = ("of the teacher", "of the student")  # in error messages


class RowText(NamedTuple):
    """A row of tokens as text, cut into words at spaces and punctuation. In scripts without spaces, each token is a
    word."""

    text: str
    words_T: list[int]  # the word of each token
    words_of_text: np.ndarray  # the word of each character; -1: a space


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
    distribution is renormalized over the common tokens, at `teacher.temperature`. The fields of its answers are those
    of `MetaXlmForPreTraining`.

    The common tokens are those that match exactly (`vocabulary_matching`). If several tokens of the model match one of
    the teacher's (`,` and `▁,` match BERT's `,`), the first is used: in a vocabulary sorted by frequency it is the most
    frequent one.

    Deviations from the paper: it does not specify how to compare a RoBERTa and an XLM-R, which cut words differently,
    at which positions, and with which temperature; these choices are ours. Text beyond the teacher's positions gets no
    predictions.

    Raises ValueError for a teacher that does not exist or has no masked-LM head, for a tokenizer that does not belong
    to it, has no mask token or is of a kind that cannot be compared, and for vocabularies without a common token.
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
        self.settings, self.path = teacher, checkpoint.path
        self.tokenizer, self.model = _load(checkpoint, teacher.tokenizer)
        self.longest_input = min(longest_input(self.model.config), self.tokenizer.model_max_length)
        vocabulary = read_vocabulary(tokenizer, NAMES[1])
        # WordPiece's unknown token is a whole word; SentencePiece's does not include the mark of the word's start
        unknown = Subword(UNKNOWN, vocabulary.kind == "wordpiece")
        self.subwords = [unknown if subword is None else subword for subword in vocabulary.subwords]
        self.partners = _common_tokens(self.tokenizer, tokenizer)
        if not self.partners:
            raise ValueError(
                f"the teacher {teacher.path!r} and the student's tokenizer have no common token. Use a teacher of a "
                "script that the student has."
            )
        self.own_C, self.theirs_C = torch.tensor(sorted(self.partners.items())).T
        logger.info(
            f"teacher {teacher.path}: {self.model.num_parameters():,} parameters; the student has "
            f"{len(self.partners):,} of its {len(self.tokenizer):,} tokens; it labels text in {teacher.language}"
        )

    def answer(self, batch: dict[str, dict], objectives: Mapping[str, Objective], weights: Mapping[str, float]) -> None:
        """Adds `teacher` to the sub-batches that objectives with a teacher learn from, unless their weight is 0."""
        for name, objective in objectives.items():
            fields = batch.get(objective.sub_batch())
            if objective.has_teacher and fields is not None and weights.get(name, 1.0):
                fields["teacher"] = self.answers(fields)

    def answers(self, fields: dict) -> dict:
        """Returns the teacher's predictions for a sub-batch of masked texts, on its device."""
        device, length = fields["input_ids"].device, fields["input_ids"].shape[1]
        # the name of a corpus is its language, or language/source
        rows = [row for row, name in enumerate(fields["languages"]) if name.partition("/")[0] == self.settings.language]
        questions = list(zip(rows, self._questions(fields, rows), strict=True))
        questions = [(row, question) for row, question in questions if question.columns_N]
        positions = [row * length + column for row, question in questions for column in question.columns_N]
        return {
            "positions_N": torch.tensor(positions, dtype=torch.long, device=device),
            "tokens_C": self.own_C.to(device),
            "log_probabilities_NC": self._answers([question for _, question in questions], device),
            "temperature": self.settings.temperature,
        }

    def facts(self) -> dict:
        """Returns the facts of the teacher for run.json."""
        return {
            "path": self.settings.path,
            "fingerprint": model_fingerprint(self.path),
            "tokenizer_fingerprint": tokenizer_fingerprint(self.tokenizer),
            "parameters": self.model.num_parameters(),
            "language": self.settings.language,
            "common_tokens": len(self.partners),
        }

    def _questions(self, fields: dict, rows: list[int]) -> list[Question]:
        """Returns the questions to the teacher in some rows of a sub-batch."""
        if not rows:
            return []
        ordinary_RT = fields["special_tokens_mask"][rows].cpu().numpy() == 0
        labels_RT, ids_RT = (fields[name][rows].cpu().numpy() for name in ("labels", "input_ids"))
        gold_RT = np.where(labels_RT == IGNORED, ids_RT, labels_RT)
        texts = [
            text_of([self.subwords[token] for token in gold_T[ordinary_T]])
            for gold_T, ordinary_T in zip(gold_RT, ordinary_RT, strict=True)
        ]
        encoded = self.tokenizer(
            [text.text for text in texts],
            truncation=True,
            max_length=self.longest_input,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            split_special_tokens=True,  # a text may contain their names
        )
        questions = []
        for row, (text, ordinary_T) in enumerate(zip(texts, ordinary_RT, strict=True)):
            own = (gold_RT[row][ordinary_T], labels_RT[row][ordinary_T] != IGNORED, np.flatnonzero(ordinary_T))
            theirs = (encoded[name][row] for name in ("input_ids", "offset_mapping", "special_tokens_mask"))
            questions.append(self._question(text, *own, *theirs))
        return questions

    def _question(
        self,
        text: RowText,
        gold_T: np.ndarray,
        predicted_T: np.ndarray,
        columns_T: np.ndarray,
        ids_S: Sequence[int],
        offsets_S: Sequence[tuple[int, int]],
        special_S: Sequence[int],
    ) -> Question:
        """`T` here are the ordinary tokens of the row, at its positions `columns_T`."""
        masked = {word for word, predicted in zip(text.words_T, predicted_T, strict=True) if predicted}
        own_count, their_count = Counter(text.words_T), Counter()
        input_ids_S, place_of = np.array(ids_S), {}
        for place, ((begin, end), special) in enumerate(zip(offsets_S, special_S, strict=True)):
            if special:
                continue
            # a token that is only a space belongs to the word behind it
            words = set(text.words_of_text[begin:end].tolist()) - {-1} or set(
                text.words_of_text[end : end + 1].tolist()
            )
            # a token that covers two words is not the single token of either
            their_count.update({word: len(words) for word in words})
            if masked & words:
                input_ids_S[place] = self.tokenizer.mask_token_id
            place_of |= dict.fromkeys(words, place)
        found = [
            (int(column), place_of[word])
            for word, token, predicted, column in zip(text.words_T, gold_T, predicted_T, columns_T, strict=True)
            if predicted
            and own_count[word] == their_count[word] == 1
            and self.partners.get(int(token)) == ids_S[place_of[word]]
        ]
        return Question(input_ids_S, [column for column, _ in found], [place for _, place in found])

    @torch.no_grad()
    def _answers(self, questions: list[Question], device: torch.device) -> torch.Tensor:
        """(N, C) log-probabilities of the common tokens, float32."""
        if not questions:
            return torch.zeros(0, len(self.partners), device=device)
        self.model.to(device)
        padded = pad_rows([question.input_ids_S for question in questions], self.tokenizer.pad_token_id)
        rows_N = torch.tensor([row for row, question in enumerate(questions) for _ in question.places_N], device=device)
        places_N = torch.tensor([place for question in questions for place in question.places_N], device=device)
        decoder = self.model.get_output_embeddings()
        # logits of every position would be the largest tensor of the step
        hooks = [decoder.register_forward_pre_hook(lambda _, inputs: inputs[0][rows_N, places_N])] if decoder else []
        try:
            logits = self.model(**{name: field.to(device) for name, field in padded.items()}).logits
        finally:
            for hook in hooks:
                hook.remove()
        if logits.dim() == 3:  # of a head that does not call its decoder
            logits = logits[rows_N, places_N]
        return (logits[:, self.theirs_C.to(device)].float() / self.settings.temperature).log_softmax(-1)


def text_of(subwords: Sequence[Subword | bytes]) -> RowText:
    """Returns the text of a row of tokens, and the word of each token and each character.

    A run of byte tokens is decoded as one text; invalid bytes become U+FFFD.
    """
    text, words_T, words_of_text = [], [], []
    word, before = -1, ""  # the last character written of this word
    for is_bytes, run in itertools.groupby(subwords, lambda subword: isinstance(subword, bytes)):
        tokens = [(token, 1) for token in run]
        if is_bytes:
            content = b"".join(token for token, _ in tokens).decode(errors="replace")
            tokens = [(Subword(content.removeprefix(" "), content.startswith(" ")), len(tokens))]
        for token, count in tokens:
            if token.starts_word:
                text.append(" ")
                words_of_text.append(-1)
                word, before = word + 1, ""
            elif word < 0 or (before and token.text and _is_apart(before, token.text[0])):
                word += 1
            words_T += [word] * count
            words_of_text += [word] * len(token.text)
            text.append(token.text)
            before = token.text[-1:] or before
    # the space before the first word is not part of the text
    start = int(bool(text) and text[0] == " ")
    return RowText("".join(text)[start:], words_T, np.array(words_of_text[start:], dtype=np.int64))


@functools.lru_cache(maxsize=1 << 16)
def _kind(character: str) -> str:
    if script_of(character) in UNSPACED:
        return "unspaced"
    return "word" if unicodedata.category(character)[0] in "LMN" else "other"


def _is_apart(before: str, after: str) -> bool:
    """Returns whether a word ends between two characters; BERT's and GPT-2's tokenizers cut at the same places."""
    return _kind(before) != _kind(after) or _kind(after) == "unspaced"


def _common_tokens(teacher: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase) -> dict[int, int]:
    """Returns {id of the student: id of the teacher} of the tokens that match exactly, one to one."""
    matching = match_vocabularies(teacher, student, names=NAMES)
    theirs: dict[int, int] = {}
    for token, (route, source) in enumerate(zip(matching.routes, matching.sources, strict=True)):
        if route == "exact":
            theirs.setdefault(source[0], token)
    return {own: their for their, own in theirs.items()}


def _load(checkpoint: Pretrained, tokenizer_name: str | None) -> tuple[PreTrainedTokenizerBase, torch.nn.Module]:
    """Loads tokenizer and model of the teacher, in float32 and evaluation mode, without gradients."""
    given = checkpoint.with_tokenizer(tokenizer_name, "teacher.tokenizer")
    tokenizer = given.tokenizer()
    checkpoint.check_tokenizer(tokenizer, given)
    if tokenizer.mask_token_id is None:
        raise ValueError(f"the tokenizer of {given} has no mask token. Use a masked language model and its tokenizer.")
    config, remedy = checkpoint.config(), "Name the teacher's own tokenizer as teacher.tokenizer."
    check_vocabulary(tokenizer, config, given.name, checkpoint.name, remedy)
    model, _ = checkpoint.masked_lm(config, is_whole=True)
    return tokenizer, model.eval().requires_grad_(False)
