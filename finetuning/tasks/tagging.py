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
from crosslingual_zoo.finetuning.models import Start
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
    def kept(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
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
        sides = [side for rows in tables.train for side in (rows, translation_of(rows)) if side]
        columns = [_label_column(side) for side in sides if side.table.label_column]
        refuse_one_label(columns, "words of the training rows")
        names = label_names(columns)
        form = form_of(names, lambda label: columns[0].rows.place)
        names = iob2_names(names, form) if form else names
        for rows in tables.all_rows():
            rows.examples = _examples(rows, names, form, warnings)
        data = gather(self.recipe, tables, warnings, names)
        if form is None:
            data.warnings.append(
                "the labels mark no chunks: a run of equal labels counts as one, as in XTREME; compare token_accuracy"
            )
        return data

    def open(self) -> Start:
        start = super().open()
        if not start.tokenizer.is_fast:
            raise ValueError(
                f"{type(start.tokenizer).__name__} does not say which word a token is of. Name a fast tokenizer, one "
                "with a tokenizer.json, as `tokenizer`."
            )
        return start

    def windows_of(self, batch: dict[str, list], numbers: list[int], is_train: bool, is_translation: bool) -> Windows:
        max_length, label_subword = self.recipe.max_length, self.recipe.label_subword
        return windows_of(batch, numbers, self.start.tokenizer, max_length, label_subword, is_translation)

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

        def records() -> Iterator[dict[str, Any]]:
            for row, labels, predicted_labels in zip(data.as_read[language].to_list(), gold, predicted, strict=True):
                yield {
                    "row": row["row"],
                    "words": row["words"],
                    "gold": _with_gaps(row["tags"], labels),
                    "prediction": _with_gaps(row["tags"], predicted_labels),
                }

        return Outcome(chunk_scores(gold, predicted, names), records())


def _named(ids_by_sentence: list[list[int]], names: list[str]) -> list[list[str]]:
    return [[names[id] for id in ids] for ids in ids_by_sentence]


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
    missing = {label for label in dict.fromkeys(values) if reading.is_missing(label)}
    return [[UNLABELED if label in missing else label for label in labels] for labels in labels_by_row]


def _examples(rows: Rows, names: list[str], form: str | None, warnings: list[str]) -> Dataset:
    """Columns `words`, `tags` (ids in `names`) and `row`, checked, and those of the translations."""
    columns = both_sides(rows, functools.partial(_side, names=names, form=form))
    columns["row"] = rows.numbers
    words = columns["words"]
    translated = columns.get(TRANSLATION + "words", words)
    without_translation = [row for row, sentence in enumerate(words) if sentence and not translated[row]]
    rows.report(dict.fromkeys(without_translation, "its translation has no words"), "Fill or remove it.")
    labeled = [row for row, tags in enumerate(columns["tags"]) if any(tag != IGNORED for tag in tags)]
    if not labeled:
        raise ValueError(f"{rows.place}: none of its {len(words)} rows has a word with a label.")
    if len(labeled) < len(words):
        warnings.append(f"{rows.place}: {len(words) - len(labeled)} rows without words or labels left out")
    return Dataset.from_dict({name: [values[row] for row in labeled] for name, values in columns.items()})


def _side(rows: Rows, names: list[str], form: str | None) -> dict[str, list]:
    """Returns the words and tags of each row, of a text or of its translation; without a label column, all are -100."""
    (column,) = rows.table.text_columns
    words = text_lists(rows.dataset, column, rows.place, "word", may_be_blank=True, numbers=rows.numbers)
    if not rows.table.label_column or not any(words):
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
    tags = [[IGNORED if label == UNLABELED else next(ids) for label in labels] for labels in labels_by_row]
    return {"words": words, "tags": tags}


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

    `sentence` is the number of a window's sentence. `cut` counts words that are longer than a window, and `split` is 1
    at the second window of a sentence. A translation is one window of the words that begin within it, and `cut` is 1 if
    it has more.
    """
    before, behind = special = InputFormat.of(tokenizer)
    room = max_length - special.size

    @functools.cache
    def has_text(subword: int) -> bool:
        return label_subword == "first" or bool(tokenizer.convert_ids_to_tokens(subword).strip(WORD_MARKS))

    def window(subwords: list[list[int]], tags: list[int]) -> dict[str, Any]:
        ids, labels = list(before), [IGNORED] * len(before)
        for own, tag in zip(subwords, tags, strict=True):
            labels += [IGNORED] * len(own)
            labels[len(ids) + next((place for place, subword in enumerate(own) if has_text(subword)), 0)] = tag
            ids += own
        labels += [IGNORED] * len(behind)
        fields = {"input_ids": [*ids, *behind], "attention_mask": [1] * len(labels), "labels": labels}
        return fields | {"length": len(labels)}

    windows = []
    subwords_of = words_as_subwords(tokenizer, batch["words"])
    for number, subwords, tags in zip(numbers, subwords_of, batch["tags"], strict=True):
        if is_translation:
            begins = list(itertools.accumulate(map(len, subwords), initial=0))
            kept = [own[: room - begin] for own, begin in zip(subwords, begins, strict=False) if begin < room]
            windows.append([window(kept, tags[: len(kept)]) | {"cut": int(begins[-1] > room)}])
            continue
        kept = [own[:room] for own in subwords]
        of_row = []
        for place, (begin, end) in enumerate(_bounds(kept, room)):
            counts = {"cut": sum(len(own) > room for own in subwords[begin:end]), "split": int(place == 1)}
            of_row.append(window(kept[begin:end], tags[begin:end]) | counts | {"sentence": number})
        windows.append(of_row)
    return windows


def words_as_subwords(tokenizer: Any, sentences: list[list[str]]) -> list[list[list[int]]]:
    """The subwords of each word of each sentence; of a word that has none, the unknown one."""
    encoded = tokenizer(sentences, is_split_into_words=True, add_special_tokens=False, verbose=False)
    subwords: list[list[list[int]]] = [[[] for _ in sentence] for sentence in sentences]
    for row, words in enumerate(subwords):
        for subword, word in zip(encoded["input_ids"][row], encoded.word_ids(row), strict=True):
            words[word].append(subword)
    return [[own or [tokenizer.unk_token_id] for own in words] for words in subwords]


def _bounds(subwords: list[list[int]], room: int) -> list[tuple[int, int]]:
    """Returns the first word and the word after the last one, for each window of at most `room` subwords."""
    starts, size = [0], 0
    for word, own in enumerate(subwords):
        if size + len(own) > room:
            starts, size = [*starts, word], 0
        size += len(own)
    return list(itertools.pairwise([*starts, len(subwords)]))


def words_of_sentences(rows: Dataset, values: Any) -> list[list[Any]]:
    """Returns one value per word, by sentence: `values` (W, T) of windows, in their order, at the labeled subwords."""
    sentences: dict[int, list[Any]] = {}
    for number, labels, own in zip(rows["sentence"][:], rows["labels"][:], values, strict=True):
        # the values of a batch are padded to its longest window
        pairs = zip(labels, own, strict=False)
        sentences.setdefault(number, []).extend(value for tag, value in pairs if tag != IGNORED)
    return list(sentences.values())


def chunk_scores(gold: list[list[str]], found: list[list[str]], names: Iterable[str] | None = None) -> dict[str, float]:
    """Precision, recall and F1 of chunks over all sentences (micro average), and the share of right words, in percent.

    names: all labels of the task, which decide whether they mark chunks; default: those that occur.

    A chunk is right where its first word, its last word and its type are. Labels of all schemes are first read as IOB2,
    as conlleval does. Labels that mark no chunks (parts of speech) are read as chunks of equal neighbors, as XTREME
    does with seqeval 0.0.12: a label that begins with S is a chunk of its own. Compare their token accuracy.
    """
    if names is None:
        names = itertools.chain(*gold, *found)
    form = form_of(names)
    gold_chunks = [_as_chunks(labels, form) for labels in gold]
    found_chunks = [_as_chunks(labels, form) for labels in found]
    precision, recall, f1, _ = precision_recall_fscore_support(
        gold_chunks, found_chunks, average="micro", zero_division=0
    )
    pairs = zip(itertools.chain(*gold), itertools.chain(*found), strict=True)
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
