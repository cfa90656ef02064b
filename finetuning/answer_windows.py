"""Questions and contexts as the windows that a model reads, and where in a window the answer is.

A context that is too long is read in overlapping windows `<s> question </s></s> part of the context </s>`. As in BERT's
SQuAD script, which XTREME and MLQA's baselines follow, each window begins `stride` pieces of the context after the one
before it, so that the overlap is what the question leaves; every window is a training example, and where it does not
hold the whole answer its label is `<s>`.

Offsets are character positions in the context, of the tokenizer; of a piece they are [begin, end). A piece may share
characters with its neighbours: a lone `▁` has those of the piece after it, and the pieces of a character that the
normaliser takes apart all have that character's.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

START = 0  # position of `<s>`, the label where the answer is not in the window


@dataclass(frozen=True)
class Windowing:
    """How contexts are cut into windows, in pieces."""

    max_length: int
    stride: int
    max_question_length: int
    before: int  # special tokens of a pair in front of the context's first piece
    after: int  # and behind its last one

    def room(self, question_length: int) -> int:
        """Pieces of the context in a window beside a question of this many."""
        return self.max_length - question_length - self.before - self.after


def windowing(tokenizer: Any, max_length: int, stride: int, max_question_length: int) -> Windowing:
    """What a tokenizer's windows are like.

    Raises ValueError for a tokenizer without offsets, and where the longest question leaves less room than a stride:
    pieces between two windows would be in none.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"The tokenizer ({type(tokenizer).__name__}) does not say which characters a piece stands for. Answers "
            "are characters of the context, and could be neither labelled nor read off. Name the folder of a fast "
            "tokenizer, one with a tokenizer.json, with the same pieces as `tokenizer`."
        )
    sides = tokenizer("a", "a").sequence_ids(0)
    question = sides.count(0)
    before, after = sides.index(1) - question, sides[::-1].index(1)
    found = Windowing(max_length, stride, max_question_length, before, after)
    if stride > (room := found.room(max_question_length)):
        raise ValueError(
            f"doc_stride is {stride}, and beside a question of max_question_length={max_question_length} pieces and "
            f"{before + after} special tokens max_length={max_length} leaves room for {max(room, 0)} pieces of the "
            f"context. Windows {stride} apart would leave pieces out. Lower doc_stride or max_question_length, or "
            "raise max_length."
        )
    return found


def shorten(question: str, tokenizer: Any, limit: int) -> tuple[str, int]:
    """A question of at most `limit` pieces, cut at a piece's end, and how many pieces it has."""
    while True:
        encoded = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        if (length := len(encoded["input_ids"])) <= limit:
            return question, length
        # the pieces of one character have its end: at least one character goes each time
        question = question[: min(encoded["offset_mapping"][limit - 1][1], len(question) - 1)]


def encode_windows(
    batch: dict[str, list], numbers: list[int], tokenizer: Any, cutting: Windowing, is_train: bool
) -> dict[str, list]:
    """The windows of a batch of rows, row by row: the model's inputs, `length`, `labels`, `cut` and `split`.

    `batch` has `question`, `context`, and `start` and `end`, the characters of the answer, -1 where it is not known;
    `numbers` are the rows'. `labels` are the first and last piece of the answer, as positions in the window. `cut` is 1
    in the first window of a row whose question was cut, `split` where the row has several windows.

    Rows that are not trained on also have `row`, `context`, `answers`, `first` (position of the context's first piece)
    and `begins` and `ends`, the offsets of its pieces.
    """
    questions, contexts = [question.lstrip() for question in batch["question"]], batch["context"]
    pieces = tokenizer(questions, add_special_tokens=False, verbose=False)["input_ids"]
    lengths = [len(ids) for ids in pieces]
    is_cut = [length > cutting.max_question_length for length in lengths]
    for row in np.flatnonzero(is_cut):
        questions[row], lengths[row] = shorten(questions[row], tokenizer, cutting.max_question_length)

    windows: list[list[dict[str, Any]]] = [[] for _ in questions]
    for length in sorted(set(lengths)):  # the tokenizer's overlap is one for all rows of a call
        rows = [row for row, other in enumerate(lengths) if other == length]
        encoded = tokenizer(
            [questions[row] for row in rows],
            [contexts[row] for row in rows],
            truncation="only_second",
            max_length=cutting.max_length,
            stride=cutting.room(length) - cutting.stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        origin, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
        first = cutting.before + length
        for number, (position, spans) in enumerate(zip(origin, offsets, strict=True)):
            row = rows[position]
            window = {name: values[number] for name, values in encoded.items()}
            spans = np.asarray(spans[first : len(spans) - cutting.after], dtype=np.int32).reshape(-1, 2)
            window |= {"length": len(spans) + first + cutting.after, "first": first, "spans": spans}
            windows[row].append(window)

    columns: dict[str, list] = {}
    for row, of_row in enumerate(windows):
        found = label(of_row, cutting.stride, batch["start"][row], batch["end"][row])
        for number, (window, labels) in enumerate(zip(of_row, found, strict=True)):
            spans, first = window.pop("spans"), window.pop("first")
            is_first = number == 0
            window |= {
                "labels": labels,
                "cut": int(is_first and is_cut[row]),
                "split": int(is_first and len(found) > 1),
            }
            if not is_train:
                window |= {"row": numbers[row], "context": contexts[row], "answers": batch["answers"][row]}
                window |= {"first": first, "begins": spans[:, 0], "ends": spans[:, 1]}
            for name, value in window.items():
                columns.setdefault(name, []).append(value)
    return columns


def label(windows: list[dict[str, Any]], stride: int, start: int, end: int) -> list[list[int]]:
    """Positions of the first and last piece of the characters [start, end), in each window of one row.

    `START` twice where the window does not hold them all, or the characters are not known (-1). `spans` of a window
    are the offsets of its pieces, from the position `first` on.
    """
    nowhere = [[START, START] for _ in windows]
    if start < 0:
        return nowhere
    # each window begins a stride after the one before: together they are the whole context
    whole = np.concatenate([window["spans"][:stride] for window in windows[:-1]] + [windows[-1]["spans"]])
    first_piece = int(np.searchsorted(whole[:, 1], start, side="right"))  # the first that ends behind `start`
    last_piece = int(np.searchsorted(whole[:, 0], end, side="left")) - 1  # the last that begins before `end`
    if first_piece > last_piece:  # characters that the normaliser removes
        return nowhere
    labels = []
    for number, (window, none) in enumerate(zip(windows, nowhere, strict=True)):
        first, last = first_piece - number * stride, last_piece - number * stride
        is_inside = first >= 0 and last < len(window["spans"])
        labels.append([window["first"] + first, window["first"] + last] if is_inside else none)
    return labels
