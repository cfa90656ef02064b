"""From start and end logits to the text of the answer: the best span over all windows of a question.

Legend: `W` windows, `T` positions, `N` likeliest starts and ends that are tried, `Q` questions.
"""

import unicodedata
from typing import Any

import numpy as np


def best_spans(
    start_WT: np.ndarray,
    end_WT: np.ndarray,
    first_W: np.ndarray,
    tokens_W: np.ndarray,
    rows_W: np.ndarray,
    n_best: int,
    max_answer_length: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The span with the highest start logit + end logit among all windows of a question.

    In each window the `n_best` starts and the `n_best` ends with the highest logits are paired; the end may not be
    before the start, nor `max_answer_length` tokens or more behind it. Only positions of the context count, `tokens_W`
    of them from `first_W` on: positions of question, special tokens and padding are never candidates.
    Among equal spans, the one in the earlier window counts, then the one that begins, then ends first. BERT's script
    differs in two places: its candidates come from all positions, and a start counts only in the window where its token
    is farthest from the edges.

    Windows may be in any order. `rows_W` is the row of each. By rising row, returns the window (Q,) of the best span,
    -1 where none is allowed, and its first and last token (Q,), counted in the window's part of the context.
    """
    positions_T, first_W1 = np.arange(start_WT.shape[1]), first_W[:, None]
    in_context_WT = (positions_T >= first_W1) & (positions_T < first_W1 + tokens_W[:, None])
    starts_WN, start_scores_WN = _likeliest(start_WT, in_context_WT, n_best)
    ends_WN, end_scores_WN = _likeliest(end_WT, in_context_WT, n_best)
    length_WNN = ends_WN[:, None, :] - starts_WN[:, :, None] + 1
    scores_WNN = start_scores_WN[:, :, None] + end_scores_WN[:, None, :]
    scores_WNN[(length_WNN < 1) | (length_WNN > max_answer_length)] = -np.inf
    flat = scores_WNN.reshape(len(scores_WNN), -1)
    best_W, chosen_W, each_W = flat.max(1), flat.argmax(1), np.arange(len(flat))
    begin_W = starts_WN[each_W, chosen_W // starts_WN.shape[1]]
    end_W = ends_WN[each_W, chosen_W % ends_WN.shape[1]]

    # by row, the best window first; stable, so that of equal ones the earlier is
    order_W = np.lexsort((-best_W, rows_W))
    windows_Q = order_W[np.unique(rows_W[order_W], return_index=True)[1]]
    first_Q, last_Q = begin_W[windows_Q] - first_W[windows_Q], end_W[windows_Q] - first_W[windows_Q]
    return np.where(np.isfinite(best_W[windows_Q]), windows_Q, -1), first_Q, last_Q


def _likeliest(logits_WT: np.ndarray, in_context_WT: np.ndarray, n_best: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions (W, N), rising, and logits (W, N) of the highest logits in the context; -inf outside of it."""
    allowed_WT = np.where(in_context_WT & np.isfinite(logits_WT), logits_WT, -np.inf).astype(np.float64)
    n_best = min(n_best, allowed_WT.shape[1])
    # stable: of equal logits the earlier positions
    positions_WN = np.sort(np.argsort(-allowed_WT, axis=1, kind="stable")[:, :n_best], axis=1)
    return positions_WN, np.take_along_axis(allowed_WT, positions_WN, axis=1)


def predicted_answers(windows: Any, logits: tuple[np.ndarray, np.ndarray], n_best: int, max_answer_length: int) -> Any:
    """Answers and gold answers of all questions: (list of str, list of lists of str).

    `windows` is a `datasets.Dataset` of the columns that `encode_windows` gives rows that are not trained on, `logits`
    are start and end logits (W, T) of its rows in their order. An answer is the text of the context from the first
    token's first character to the last one's last; "" where a window has no token of the context.
    """
    columns = windows.with_format("arrow")
    first_W, rows_W = (columns[name][:].to_numpy() for name in ("first", "row"))
    tokens_W = np.asarray([len(ends) for ends in columns["ends"][:]])
    windows_Q, *span_2Q = best_spans(*logits, first_W, tokens_W, rows_W, n_best, max_answer_length)
    # a question without a span takes its gold answers from any window
    some_Q = np.unique(rows_W, return_index=True)[1]
    chosen = windows.select(np.where(windows_Q < 0, some_Q, windows_Q))
    chosen = chosen.select_columns(["context", "answers", "begins", "ends"])
    texts, golds = [], []
    for row, window, first, last in zip(chosen, windows_Q, *span_2Q, strict=True):
        golds.append(row["answers"])
        texts.append(text_of(row["context"], row["begins"], row["ends"], first, last) if window >= 0 else "")
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
