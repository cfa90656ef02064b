"""Converts questions and contexts to the windows that a model reads, with the place of the answer in each window.

A context that is too long is read in overlapping windows `<s> question </s></s> part of the context </s>`. As in BERT's
SQuAD script, which XTREME and MLQA's baselines follow, each window begins `stride` tokens of the context after the one
before it; every window is a training example, and where it does not hold the whole answer its label is `<s>`.

Offsets are character positions in the context; of a token they are [begin, end). A token may share characters with its
neighbors: a lone `▁` has those of the token after it. It may begin with the white space before a word.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from crosslingual_zoo.finetuning.recipe import QuestionAnsweringRecipe
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.token_offsets import check_offsets, untrimmed_offsets

START = 0  # position of `<s>`, the label where the answer is not in the window
BEHIND = 2**20  # a position after any input, which models ignore


@dataclass(frozen=True)
class Windowing:
    """How contexts are cut into windows; all lengths are in tokens."""

    max_length: int
    stride: int
    max_question_length: int
    before: int  # special tokens of a pair in front of the context's first token
    after: int  # and behind its last one

    def room(self, question_length: int) -> int:
        """Returns how many tokens of the context fit in a window with a question of this many."""
        return self.max_length - question_length - self.before - self.after


def nearest_span(offsets_P2: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Returns the first and last token of the characters [start, end) of a context; None for removed ones.

    `offsets_P2` are begin and end of each token, rising. Tokens may share characters: all that do are in the span.
    """
    first = int(np.searchsorted(offsets_P2[:, 1], start, side="right"))  # the first that ends after `start`
    last = int(np.searchsorted(offsets_P2[:, 0], end, side="left")) - 1  # the last that begins before `end`
    return (first, last) if first <= last else None


def windowing(tokenizer: Any, recipe: QuestionAnsweringRecipe) -> Windowing:
    """Returns how a tokenizer's windows are cut. Raises ValueError for windows that would leave tokens out."""
    check_offsets(tokenizer)
    sides = tokenizer("a", "a").sequence_ids(0)
    question = sides.count(0)
    before = sides.index(1) - question
    after = sides[::-1].index(1)
    cutting = Windowing(recipe.max_length, recipe.doc_stride, recipe.max_question_length, before, after)
    room = cutting.room(recipe.max_question_length)
    if recipe.doc_stride > room:
        raise ValueError(
            f"doc_stride is {recipe.doc_stride}, and max_length={recipe.max_length} leaves room for {max(room, 0)} "
            f"tokens of the context next to max_question_length={recipe.max_question_length}. Lower one of the two, "
            "or raise max_length."
        )
    return cutting


def shorten(question: str, tokenizer: Any, limit: int) -> tuple[str, int]:
    """Returns the question, cut to at most `limit` tokens at a token's end, and its number of tokens."""
    while True:
        encoded = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        length = len(encoded["input_ids"])
        if length <= limit:
            return question, length
        # all tokens of a character end with it, so each pass removes at least one character
        _, end = encoded["offset_mapping"][limit - 1]
        question = question[: min(end, len(question) - 1)]


class Part(NamedTuple):
    """A window before it has labels."""

    inputs: dict[str, Any]  # of the model
    first: int  # position of the context's first token
    spans_P2: np.ndarray  # begin and end of each of the context's tokens


def encode_windows(
    batch: dict[str, list], numbers: list[int], tokenizer: Any, cutting: Windowing, is_train: bool
) -> list[list[dict[str, Any]]]:
    """Returns the windows of each row of a batch (`QuestionAnsweringTask.read`), whose numbers are `numbers`.

    Windows have the model's inputs, `length`, and `labels`, the positions of the answer's first and last token, -100
    if a row to train on has no answer. In the first window of a row, `cut` is 1 if the question was cut, and `split` is
    1 if there are several windows. In the other windows they are 0.

    Rows that are not trained on also have `row`, `context`, `answers`, `first` (position of the context's first token)
    and `begins` and `ends`, the offsets of its tokens. `begins` has one more, that of the token after the window, or
    the context's length.
    """
    contexts = batch["context"]
    questions = [question.lstrip() for question in batch["question"]]
    lengths = [len(ids) for ids in tokenizer(questions, add_special_tokens=False, verbose=False)["input_ids"]]
    is_cut = [length > cutting.max_question_length for length in lengths]
    for row in np.flatnonzero(is_cut):
        questions[row], lengths[row] = shorten(questions[row], tokenizer, cutting.max_question_length)

    windows_by_row = []
    for row, parts in enumerate(_cut(questions, contexts, lengths, tokenizer, cutting)):
        # each window begins one stride after the one before: together they cover the whole context
        overlapped = [part.spans_P2[: cutting.stride] for part in parts[:-1]]
        spans_P2 = np.concatenate([*overlapped, parts[-1].spans_P2])
        begins = np.append(spans_P2[:, 0], np.int32(len(contexts[row])))
        start = batch["start"][row]
        answer = nearest_span(spans_P2, start, batch["end"][row]) if start >= 0 else None
        absent = IGNORED if is_train and start < 0 else START  # a translation may have lost its answer
        windows = []
        for number, part in enumerate(parts):
            begin = number * cutting.stride
            end = begin + len(part.spans_P2)
            window = {**part.inputs, "length": part.first + len(part.spans_P2) + cutting.after}
            window["labels"] = [absent, absent]
            if answer and answer[0] >= begin and answer[1] < end:
                window["labels"] = [part.first + token - begin for token in answer]
            window["cut"] = int(is_cut[row] and number == 0)
            window["split"] = int(len(parts) > 1 and number == 0)
            if not is_train:
                window |= {"row": numbers[row], "context": contexts[row], "answers": batch["answers"][row]}
                window |= {"first": part.first, "begins": begins[begin : end + 1], "ends": part.spans_P2[:, 1]}
            windows.append(window)
        windows_by_row.append(windows)
    return windows_by_row


def _cut(
    questions: list[str], contexts: list[str], lengths: list[int], tokenizer: Any, cutting: Windowing
) -> list[list[Part]]:
    """Returns the windows of each question, of `lengths` tokens, and its context."""
    parts_by_row: list[list[Part]] = [[] for _ in questions]
    for length in sorted(set(lengths)):  # a call of the tokenizer has one overlap for all its rows
        rows = [row for row, other in enumerate(lengths) if other == length]
        with untrimmed_offsets(tokenizer):
            encoded = tokenizer(
                [questions[row] for row in rows],
                [contexts[row] for row in rows],
                truncation="only_second",
                max_length=cutting.max_length,
                stride=cutting.room(length) - cutting.stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
        positions = encoded.pop("overflow_to_sample_mapping")
        offsets = encoded.pop("offset_mapping")
        first = cutting.before + length
        for number, position in enumerate(positions):
            inputs = {name: values[number] for name, values in encoded.items()}
            spans = offsets[number][first : len(offsets[number]) - cutting.after]
            part = Part(inputs, first, np.asarray(spans, dtype=np.int32).reshape(-1, 2))
            parts_by_row[rows[position]].append(part)
    return parts_by_row
