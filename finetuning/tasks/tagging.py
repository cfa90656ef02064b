"""Tagging: words with a label each. Rows of words become windows of subwords, and the F1 is that of chunks.

Named entities (CoNLL, PAN-X, MasakhaNER) are chunks of words, marked in a scheme of `finetuning.data.label_schemes`.
All are read as IOB2, which changes neither chunks nor F1; the model predicts IOB2. Other labels (parts of speech) are
not changed. A word with the label `_` has no label: the model reads it, but it is neither learned nor scored.

A word's label is that of its first subword, or of the first that holds text (`label_subword`): XLM-R's tokenizer splits
most Chinese words into `▁`, the mark of a word's beginning, and the word itself. A sentence that is too long becomes
several windows, cut between words; chunks are joined over all windows. A word without subwords is read as the unknown
subword.

Plug-in, a translation is one window, which is cut at the limit and counted.
"""

import bisect
import functools
import importlib.metadata
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from crosslingual_zoo.finetuning.data.label_schemes import OUTSIDE, UNLABELED, form_of, iob2_names, to_iob2
from crosslingual_zoo.finetuning.data.labels import (
    UNLABELED_WORDS,
    LabelColumn,
    label_ids,
    label_names,
    refuse_one_label,
)
from crosslingual_zoo.finetuning.data.rows import Rows, text_lists
from crosslingual_zoo.finetuning.data.task_tables import (
    LABELED_BY,
    TRANSLATION,
    TaskData,
    gather,
    open_tables,
    translation_of,
)
from crosslingual_zoo.finetuning.recipe import TaggingRecipe
from crosslingual_zoo.finetuning.tasks.by_language import LanguageTask, Windows, both_sides
from crosslingual_zoo.finetuning.trainer import Outcome
from crosslingual_zoo.modeling.word_tokens import InputFormat
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.tables import require_column

WORD_MARKS = "▁Ġ"  # of SentencePiece and of byte-level BPE


class TaggingTask(LanguageTask[TaggingRecipe]):
    """Words with a label each."""

    settings = ("max_length", "label_subword")
    auto_class = AutoModelForTokenClassification
    collator = DataCollatorForTokenClassification
    metric = ("seqeval", f"1.2.0 (seqeval {importlib.metadata.version('seqeval')})")  # its releases differ

    @staticmethod
    def preprocess_logits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Ids (B, T) of the highest logits (B, T, L)."""
        return logits.argmax(-1)

    def read(self) -> TaskData:
        """Rows have `words`, `tags`, an id for each word, and `row`, their number in the table.

        Rows without labels are left out.
        """
        warnings: list[str] = []
        tables = open_tables(self.recipe)
        for rows in tables.evaluation.values():
            if LABELED_BY in rows.dataset.column_names:  # by `label_text`
                raise ValueError(
                    f"{rows.place}: its labels are those of a model ({rows.dataset[LABELED_BY][0]}), not gold labels. "
                    f"If they have been corrected since, remove the column {LABELED_BY}."
                )
            refuse_one_label([_label_column(rows)], "words")
        columns = []
        for rows in tables.train:
            for side in (rows, translation_of(rows)):
                if side and side.table.label_column:
                    columns.append(_label_column(side))
        refuse_one_label(columns, "words of the training rows")
        names = label_names(columns)
        form = form_of(names, lambda label: columns[0].rows.place)
        if form:
            names = iob2_names(names, form)
        for rows in tables.all_rows():
            rows.examples = _examples(rows, names, form, warnings)
        data = gather(self.recipe, tables, warnings, names)
        if form is None:
            data.warnings.append(
                "the labels mark no chunks: a run of equal labels counts as one, as in XTREME; compare token_accuracy"
            )
        return data

    def windows_of(self, batch: dict[str, list], numbers: list[int], is_train: bool, is_translation: bool) -> Windows:
        recipe = self.recipe
        return windows_of(batch, numbers, self.start.tokenizer, recipe.max_length, recipe.label_subword, is_translation)

    def load_model(self, path: str, seed: int, data: TaskData) -> torch.nn.Module:
        model = super().load_model(path, seed, data)
        model.config.label_subword = self.recipe.label_subword  # readers of the labels must know their places
        return model

    def outcome(self, data: TaskData, part: str, language: str, predictions: np.ndarray) -> Outcome:
        """Returns the outcome of whole sentences; `predictions` are the label ids (W, T) of the windows."""
        windows = getattr(data, part)[language]
        names = data.label_names
        gold = _named(words_of_sentences(windows, windows["labels"][:]), names)
        predicted = _named(words_of_sentences(windows, predictions), names)
        return Outcome(chunk_scores(gold, predicted, names), _records(data.as_read[language], gold, predicted))


def _records(rows: Dataset, gold: list[list[str]], predicted: list[list[str]]) -> Iterator[dict[str, Any]]:
    """The rows of the predictions file."""
    for row, labels, predicted_labels in zip(rows.to_list(), gold, predicted, strict=True):
        yield {
            "row": row["row"],
            "words": row["words"],
            "gold": _with_gaps(row["tags"], labels),
            "prediction": _with_gaps(row["tags"], predicted_labels),
        }


def _named(ids_by_sentence: list[list[int]], names: list[str]) -> list[list[str]]:
    names_by_sentence = []
    for ids in ids_by_sentence:
        names_by_sentence.append([names[id] for id in ids])
    return names_by_sentence


def _with_gaps(tags: list[int], labels: list[str]) -> list[str]:
    """The labels, with `UNLABELED` at the words whose tag is -100, which are not predicted either."""
    remaining = iter(labels)
    return [UNLABELED if tag == IGNORED else next(remaining) for tag in tags]


def _label_column(rows: Rows) -> LabelColumn:
    """Returns the labels of the words of all rows that have one."""
    labels_by_row = _labels_by_row(rows)
    values = []
    ends = []
    for labels in labels_by_row:
        values += [label for label in labels if label != UNLABELED]
        ends.append(len(values))
    if not values:
        raise ValueError(f"{rows.place}: no word has a label in column {rows.table.label_column}.")
    feature = rows.dataset.features[rows.table.label_column].feature
    row_of = functools.partial(bisect.bisect_right, ends)
    return LabelColumn(rows, feature, values, row_of, UNLABELED_WORDS)


def _labels_by_row(rows: Rows) -> list[list[Any]]:
    """Returns the labels of each row as in the table, with `UNLABELED` for a word without one."""
    column = rows.table.label_column
    feature = getattr(require_column(rows.dataset, column, rows.name), "feature", None)
    if feature is None or isinstance(feature, dict):
        raise ValueError(f"{rows.name}: column {column} does not hold lists of labels.")
    labels_by_row = [labels or [] for labels in rows.dataset[column][:]]
    values = list(itertools.chain.from_iterable(labels_by_row))
    reading = LabelColumn(rows, feature, values, unlabeled=UNLABELED_WORDS)
    name_of = {label: UNLABELED if reading.is_missing(label) else label for label in dict.fromkeys(values)}
    return [list(map(name_of.get, labels)) for labels in labels_by_row]


def _examples(rows: Rows, names: list[str], form: str | None, warnings: list[str]) -> Dataset:
    """Columns `words`, `tags` (ids in `names`) and `row`, checked, and those of the translations."""
    columns = both_sides(rows, functools.partial(_side, names=names, form=form))
    columns["row"] = rows.numbers
    words = columns["words"]
    translated = columns.get(TRANSLATION + "words", words)
    without_translation = [row for row, sentence in enumerate(words) if sentence and not translated[row]]
    rows.report(dict.fromkeys(without_translation, "its translation has no words"), "Fill or remove it.")
    labeled = [row for row, tags in enumerate(columns["tags"]) if {*tags} - {IGNORED}]
    if len(labeled) < len(words):
        warnings.append(f"{rows.place}: {len(words) - len(labeled)} rows without words or labels left out")
    return Dataset.from_dict(columns).select(labeled)


def _side(rows: Rows, names: list[str], form: str | None) -> dict[str, list]:
    """Returns the words and tags of each row, of a text or of its translation; without a label column, all are -100."""
    (column,) = rows.table.text_columns
    words = text_lists(rows.dataset, column, rows.place, "word", may_be_blank=True, numbers=rows.numbers)
    if not rows.table.label_column:
        return {"words": words, "tags": [[IGNORED] * len(sentence) for sentence in words]}
    reading = _label_column(rows)
    labels_by_row = _labels_by_row(rows)
    unequal = {}
    for row, (sentence, labels) in enumerate(zip(words, labels_by_row, strict=True)):
        if len(sentence) != len(labels):
            unequal[row] = f"{len(sentence)} words and {len(labels)} labels"
    rows.report(unequal, "Correct the row.")
    if form:  # labels of another form stay what they are, and are unknown
        reading = replace(reading, values=_iob2_labels(reading, labels_by_row, form))
    ids = iter(label_ids(reading, names))
    tags_by_row = []
    for labels in labels_by_row:
        tags_by_row.append([IGNORED if label == UNLABELED else next(ids) for label in labels])
    return {"words": words, "tags": tags_by_row}


def _iob2_labels(reading: LabelColumn, labels_by_row: list[list[Any]], form: str) -> list[str]:
    """Returns the names of all labels in IOB2, without those of words that have none."""
    name_of = {label: str(reading.name_of(label) or label) for label in dict.fromkeys(reading.values)}
    converted = []
    for labels in labels_by_row:
        names = [name_of.get(label, UNLABELED) for label in labels]
        for name, iob2_name in zip(names, to_iob2(names, form), strict=True):
            if name != UNLABELED:
                converted.append(iob2_name)
    return converted


def windows_of(
    batch: dict[str, list],
    numbers: list[int],
    tokenizer: Any,
    max_length: int,
    label_subword: str,
    is_translation: bool = False,
) -> Windows:
    """Windows of at most `max_length` tokens; labels are -100 except at one token of each word.

    `sentence` is the number of a window's sentence. `cut` is 1 in a window of a single word that is longer, and `split`
    is 1 in the second window of a sentence. A translation is one window of the words that begin within it, and `cut` is
    1 if it has more.
    """
    special = InputFormat.of(tokenizer)
    room = max_length - special.size
    sentences = words_as_subwords(tokenizer, batch["words"])
    blank: set[int] = set()
    if label_subword == "first_with_text":
        blank = _blank_subwords(tokenizer, sentences)
    windows_by_row = []
    for number, words, tags in zip(numbers, sentences, batch["tags"], strict=True):
        bounds = _bounds(words, room)
        if is_translation:
            bounds = [(0, len(words))]
        windows = []
        for begin, end in bounds:
            window = _window(words[begin:end], tags[begin:end], special, room, blank)
            windows.append(window | {"split": int(len(windows) == 1), "sentence": number})
        windows_by_row.append(windows)
    return windows_by_row


def words_as_subwords(tokenizer: Any, sentences: list[list[str]]) -> list[list[list[int]]]:
    """The subwords of each word of each sentence; of a word that has none, the unknown one."""
    encoded = tokenizer(sentences, is_split_into_words=True, add_special_tokens=False, verbose=False)
    subwords_of_sentences = []
    for row, sentence in enumerate(sentences):
        subwords: list[list[int]] = [[] for _ in sentence]
        for id, word in zip(encoded["input_ids"][row], encoded.word_ids(row), strict=True):
            subwords[word].append(id)
        subwords_of_sentences.append([ids or [tokenizer.unk_token_id] for ids in subwords])
    return subwords_of_sentences


def _blank_subwords(tokenizer: Any, sentences: list[list[list[int]]]) -> set[int]:
    """The subwords of the sentences that are nothing but the mark of a word's beginning."""
    words = itertools.chain.from_iterable(sentences)
    ids = set(itertools.chain.from_iterable(words))
    return {id for id in ids if not tokenizer.convert_ids_to_tokens(id).strip(WORD_MARKS)}


def _bounds(words: list[list[int]], room: int) -> list[tuple[int, int]]:
    """Returns the first word and the word after the last one, for each window of at most `room` subwords."""
    starts = [0]
    size = 0
    for number, subwords in enumerate(words):
        length = min(len(subwords), room)
        if size + length > room:
            starts.append(number)
            size = 0
        size += length
    return list(itertools.pairwise([*starts, len(words)]))


def _window(
    words: list[list[int]], tags: list[int], special: InputFormat, room: int, blank: set[int]
) -> dict[str, Any]:
    """The window of the first `room` subwords of the words; `cut` is 1 if they have more."""
    ids = list(special.before)
    labels = [IGNORED] * len(ids)
    end = len(ids) + room
    for word, tag in zip(words, tags, strict=True):
        subwords = word[: end - len(ids)]
        if subwords:
            ids += subwords
            labels += _labels_of_word(subwords, tag, blank)
    ids += special.behind
    labels += [IGNORED] * len(special.behind)
    is_cut = sum(map(len, words)) > room
    mask = [1] * len(ids)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "length": len(ids), "cut": int(is_cut)}


def _labels_of_word(subwords: list[int], tag: int, blank: set[int]) -> list[int]:
    """The tag at the word's first subword that is not blank, or at the first one; -100 at the others."""
    labels = [IGNORED] * len(subwords)
    position = next((position for position, id in enumerate(subwords) if id not in blank), 0)
    labels[position] = tag
    return labels


def words_of_sentences(rows: Dataset, values: Any) -> list[list[Any]]:
    """Returns one value per word, by sentence: `values` (W, T) of windows, in their order, at the labeled subwords."""
    sentences: dict[int, list[Any]] = {}
    for number, labels, values_of_window in zip(rows["sentence"][:], rows["labels"][:], values, strict=True):
        sentence = sentences.setdefault(number, [])
        # the values of a batch are padded to its longest window
        for label, value in zip(labels, values_of_window, strict=False):
            if label != IGNORED:
                sentence.append(value)
    return list(sentences.values())


def chunk_scores(
    gold: list[list[str]], predicted: list[list[str]], names: Iterable[str] | None = None
) -> dict[str, float]:
    """Precision, recall and F1 of chunks over all sentences (micro average), and the share of right words, in percent.

    names: all labels of the task, which decide whether they mark chunks; default: those that occur.

    A chunk is right where its first word, its last word and its type are. Labels of all schemes are first read as IOB2,
    as conlleval does. Labels that mark no chunks (parts of speech) are read as chunks of equal neighbors, as XTREME
    does with seqeval 0.0.12: a label that begins with S is a chunk of its own. Compare their token accuracy.
    """
    if names is None:
        names = itertools.chain(*gold, *predicted)
    form = form_of(names)
    gold_chunks = [_as_chunks(labels, form) for labels in gold]
    predicted_chunks = [_as_chunks(labels, form) for labels in predicted]
    precision, recall, f1, _ = precision_recall_fscore_support(
        gold_chunks, predicted_chunks, average="micro", zero_division=0
    )
    pairs = zip(itertools.chain(*gold), itertools.chain(*predicted), strict=True)
    accuracy = np.mean([label == prediction for label, prediction in pairs])
    scores = {"f1": f1, "precision": precision, "recall": recall, "token_accuracy": accuracy}
    return {name: 100.0 * float(score) for name, score in scores.items()}


def _as_chunks(labels: list[str], form: str | None) -> list[str]:
    """The labels as seqeval reads them: in IOB2, or tags with the mark of a run of equal ones."""
    if form is not None:
        return to_iob2(labels, form)
    # seqeval 1.2.2 would take the first letter of a label for a mark: CCONJ and SCONJ would be equal
    chunks = []
    for label in labels:
        mark = "S" if label.startswith("S") else "I"
        chunks.append(label if label == OUTSIDE else f"{mark}-{label}")
    return chunks
