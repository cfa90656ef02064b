"""From start and end logits to the text of the answer: the best span over all windows of a question.

Legend: `W` windows, `T` positions, `N` likeliest starts and ends that are tried, `Q` questions.
"""

import unicodedata
from typing import Any, NamedTuple

import numpy as np


class Spans(NamedTuple):
    """Of each question, its best span."""

    window_Q: np.ndarray
    """Number of the window; -1 where no span is allowed."""

    first_Q: np.ndarray
    """First token, counted in the window's part of the context."""

    last_Q: np.ndarray
    """Last token, counted likewise."""


class Likeliest(NamedTuple):
    """Of each window, the positions with the highest logits in the context, rising."""

    positions_WN: np.ndarray

    logits_WN: np.ndarray
    """-inf outside of the context."""


def best_spans(
    start_WT: np.ndarray,
    end_WT: np.ndarray,
    first_W: np.ndarray,
    tokens_W: np.ndarray,
    rows_W: np.ndarray,
    n_best: int,
    max_answer_length: int,
) -> Spans:
    """The span with the highest start logit + end logit among all windows of a question.

    In each window the `n_best` starts and the `n_best` ends with the highest logits are paired; the end may not be
    before the start, nor `max_answer_length` tokens or more behind it. Only positions of the context count, `tokens_W`
    of them from `first_W` on: positions of question, special tokens and padding are never candidates.
    Among equal spans, the one in the earlier window counts, then the one that begins, then ends first. BERT's script
    differs in two places: its candidates come from all positions, and a start counts only in the window where its token
    is farthest from the edges.

    Windows may be in any order. `rows_W` is the row of each; the questions are returned by rising row.
    """
    positions_T = np.arange(start_WT.shape[1])
    first_W1 = first_W[:, None]
    in_context_WT = (positions_T >= first_W1) & (positions_T < first_W1 + tokens_W[:, None])
    starts = _likeliest(start_WT, in_context_WT, n_best)
    ends = _likeliest(end_WT, in_context_WT, n_best)
    length_WNN = ends.positions_WN[:, None, :] - starts.positions_WN[:, :, None] + 1
    scores_WNN = starts.logits_WN[:, :, None] + ends.logits_WN[:, None, :]
    scores_WNN[(length_WNN < 1) | (length_WNN > max_answer_length)] = -np.inf
    windows, n_starts, n_ends = scores_WNN.shape
    pair_scores = scores_WNN.reshape(windows, n_starts * n_ends)
    best_W = pair_scores.max(1)
    chosen_W = pair_scores.argmax(1)
    each_W = np.arange(windows)
    begin_W = starts.positions_WN[each_W, chosen_W // n_ends]
    end_W = ends.positions_WN[each_W, chosen_W % n_ends]

    # by row, the best window first; stable, so that of equal ones the earlier is
    order_W = np.lexsort((-best_W, rows_W))
    _, first_of_row_Q = np.unique(rows_W[order_W], return_index=True)
    window_Q = order_W[first_of_row_Q]
    first_Q = begin_W[window_Q] - first_W[window_Q]
    last_Q = end_W[window_Q] - first_W[window_Q]
    return Spans(np.where(np.isfinite(best_W[window_Q]), window_Q, -1), first_Q, last_Q)


def _likeliest(logits_WT: np.ndarray, in_context_WT: np.ndarray, n_best: int) -> Likeliest:
    allowed_WT = np.where(in_context_WT & np.isfinite(logits_WT), logits_WT, -np.inf).astype(np.float64)
    n_best = min(n_best, allowed_WT.shape[1])
    # stable: of equal logits the earlier positions
    positions_WN = np.sort(np.argsort(-allowed_WT, axis=1, kind="stable")[:, :n_best], axis=1)
    return Likeliest(positions_WN, np.take_along_axis(allowed_WT, positions_WN, axis=1))


def predicted_answers(
    windows: Any, logits: tuple[np.ndarray, np.ndarray], n_best: int, max_answer_length: int
) -> tuple[list[str], list[list[str]]]:
    """Answers and gold answers of all questions: (list of str, list of lists of str).

    `windows` is a `datasets.Dataset` of the columns that `encode_windows` gives rows that are not trained on, `logits`
    are start and end logits (W, T) of its rows in their order. An answer is the text of the context from the first
    token's first character to the last one's last; "" where a window has no token of the context.
    """
    columns = windows.with_format("arrow")
    first_W = columns["first"][:].to_numpy()
    rows_W = columns["row"][:].to_numpy()
    tokens_W = np.asarray([len(ends) for ends in columns["ends"][:]])
    spans = best_spans(*logits, first_W, tokens_W, rows_W, n_best, max_answer_length)
    # a question without a span takes its gold answers from any window
    _, any_window_Q = np.unique(rows_W, return_index=True)
    chosen = windows.select(np.where(spans.window_Q < 0, any_window_Q, spans.window_Q))
    chosen = chosen.select_columns(["context", "answers", "begins", "ends"])
    texts = []
    golds = []
    for row, window, first, last in zip(chosen, *spans, strict=True):
        text = ""
        if window >= 0:
            text = text_of(row["context"], row["begins"], row["ends"], first, last)
        texts.append(text)
        golds.append(row["answers"])
    return texts, golds


def text_of(context: str, begins: list[int], ends: list[int], first: int, last: int) -> str:
    """The characters of the tokens `first` to `last`, without white space around them.

    Following marks that no token has are included: if the normalizer makes one character of a letter and its
    accents or vowel signs, the offsets are only the letter's. `begins` also has that of the token after the last one.
    """
    end = ends[last]
    while end < begins[last + 1] and unicodedata.category(context[end]).startswith("M"):
        end += 1
    return context[begins[first] : end].strip()
