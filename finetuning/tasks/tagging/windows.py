"""Converts sentences to the windows that a model reads, cut between words, and joins the words' values again."""

from typing import Any

import numpy as np
from datasets import Dataset

from finetuning.data.task_tables import TRANSLATION
from finetuning.models import names_as_text
from zoo_core.masking import IGNORED

WORD_MARKS = "▁Ġ"  # of SentencePiece and of byte-level BPE


def windows_of(
    batch: dict[str, list],
    numbers: list[int],
    tokenizer: Any,
    max_length: int,
    label_subword: str,
    is_train: bool = False,
) -> dict[str, list[Any]]:
    """The windows of some sentences: columns `words` and `tags`, and perhaps those of their translations.

    `is_further` is 1 at a sentence's second window; `cut`, `without_tokens`, `blank_first` and `translation_cut` are
    counts.
    """
    tokenizer = names_as_text(tokenizer)
    first, last = _frame(tokenizer)
    room = max_length - len(first) - len(last)
    has_tags = is_train and TRANSLATION + "tags" in batch

    def window(subwords: list[list[int]], tags: list[int]) -> dict[str, list[int]]:
        ids, labels = list(first), [IGNORED] * len(first)
        for own, tag in zip(subwords, tags, strict=True):
            ids += own
            place = first_with_text(own) if label_subword == "first_with_text" else 0
            labels += [tag if number == place else IGNORED for number in range(len(own))]
        labels += [IGNORED] * len(last)
        return {"input_ids": [*ids, *last], "attention_mask": [1] * len(labels), "labels": labels}

    def subwords_of(sentences: list[list[str]]) -> list[list[list[int]]]:
        encoded = tokenizer(sentences, is_split_into_words=True, add_special_tokens=False, verbose=False)
        subwords: list[list[list[int]]] = [[[] for _ in sentence] for sentence in sentences]
        for row, words in enumerate(subwords):
            for subword, word in zip(encoded["input_ids"][row], encoded.word_ids(row), strict=True):
                words[word].append(subword)
        return subwords

    def first_with_text(own: list[int]) -> int:
        return next((number for number, subword in enumerate(own) if subword not in blank), 0)

    texts = subwords_of(batch["words"])
    translations = subwords_of(batch[TRANSLATION + "words"]) if TRANSLATION + "words" in batch else None
    firsts = list({own[0] for sentence in [*texts, *(translations or [])] for own in sentence if own})
    tokens = tokenizer.convert_ids_to_tokens(firsts)
    blank = {subword for subword, token in zip(firsts, tokens, strict=True) if not token.strip(WORD_MARKS)}
    windows: list[dict[str, Any]] = []
    for row, (subwords, tags) in enumerate(zip(texts, batch["tags"], strict=True)):
        kept = [own[:room] or [tokenizer.unk_token_id] for own in subwords]
        side = {}
        if translations:
            own, is_cut = _cut([own or [tokenizer.unk_token_id] for own in translations[row]], room)
            own_tags = batch[TRANSLATION + "tags"][row] if has_tags else [0] * len(own)
            side = {TRANSLATION + name: values for name, values in window(own, own_tags[: len(own)]).items()}
            if not has_tags:
                del side[TRANSLATION + "labels"]
        for number, (begin, end) in enumerate(_bounds(kept, room)):
            fields = window(kept[begin:end], tags[begin:end])
            windows.append(
                {
                    **fields,
                    **side,
                    "length": len(fields["input_ids"]) + len(side.get(TRANSLATION + "input_ids", [])),
                    "sentence": numbers[row],
                    "first_word": begin,
                    "cut": sum(len(own) > room for own in subwords[begin:end]),
                    "without_tokens": sum(not own for own in subwords[begin:end]),
                    "blank_first": sum(first_with_text(own) > 0 for own in subwords[begin:end]),
                    "is_further": int(number == 1),
                    "translation_cut": int(bool(translations) and number == 0 and is_cut),
                }
            )
            if has_tags:  # learned with the first window
                side = {**side, TRANSLATION + "labels": [IGNORED] * len(side[TRANSLATION + "labels"])}
    return {name: [window[name] for window in windows] for name in windows[0]}


def _bounds(subwords: list[list[int]], room: int) -> list[tuple[int, int]]:
    """Returns the first word and the word after the last one, for each window of at most `room` subwords."""
    start, size, bounds = 0, 0, []
    for word, own in enumerate(subwords):
        if size + len(own) > room:
            bounds.append((start, word))
            start, size = word, 0
        size += len(own)
    return [*bounds, (start, len(subwords))]


def _cut(subwords: list[list[int]], room: int) -> tuple[list[list[int]], bool]:
    """Returns the words that begin within `room` subwords, the last one perhaps cut, and whether anything was cut."""
    kept: list[list[int]] = []
    for own in subwords:
        if room <= 0:
            return kept, True
        kept.append(own[:room])
        room -= len(own)
    return kept, room < 0


def _frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    whole, inner = (tokenizer("a", add_special_tokens=added)["input_ids"] for added in (True, False))
    start = next(place for place in range(len(whole)) if whole[place : place + len(inner)] == inner)
    return whole[:start], whole[start + len(inner) :]


def labels_of_sentences(
    rows: Dataset, predictions: np.ndarray, names: list[str]
) -> tuple[list[list[str]], list[list[str]]]:
    """The predicted and the gold label of every word, sentence by sentence, from windows in any order."""
    found, gold = (words_of_sentences(rows, values) for values in (predictions, rows["labels"][:]))
    return tuple([[names[number] for number in sentence] for sentence in side] for side in (found, gold))


def words_of_sentences(rows: Dataset, values: Any) -> list[list[Any]]:
    """Returns one value per word, by sentence: `values` (W, T) of windows in any order, at the labeled subwords."""
    sentences: dict[int, list[Any]] = {}
    numbers, first_words, labels = (rows[name][:] for name in ("sentence", "first_word", "labels"))
    for window in np.lexsort((first_words, numbers)):
        found = sentences.setdefault(numbers[window], [])
        # the values of a batch are padded to its longest window
        pairs = zip(labels[window], values[window], strict=False)
        found += [value for tag, value in pairs if tag != IGNORED]
    return list(sentences.values())
