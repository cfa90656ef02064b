"""Tagging: converts rows of words with labels to windows of subwords, by language, and computes the F1 of chunks.

Named entities (CoNLL, PAN-X, MasakhaNER) are chunks of words, marked in a scheme of `finetuning.data.label_schemes`.
All are read as IOB2, so that tables of different schemes can be used together. This does not change chunks or F1, and
the model predicts IOB2. Other labels (parts of speech) are not changed. A word with the label `_` has no label: the
model reads it, but it is neither learned nor scored.

A word's label is that of its first subword, or of the first that holds text (`label_subword`): XLM-R's tokenizer splits
most Chinese words into `▁`, the mark of a word's beginning, and the word itself. A sentence that is too long becomes
several windows, cut between words, so that every word is predicted. A word without subwords is read as the unknown
subword. Chunks are joined over all windows of a sentence.

Plug-in (VECO, ACL 2021, section 3.1): a row also has the words of a translation y. In training it also has their
labels, since heads learn from [H_x:S_x] and [H_y:S_y]; a teacher (`label_text`) has made the labels of one side. The
paper does not describe windows. Our decisions: each window of x is read with the whole of y, which is cut at the limit
and counted; y's labels are learned only with the first window of x, so that each word counts once.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from finetuning.data.label_schemes import FORMS, OUTSIDE, UNLABELED, form_of, join_label, split_label, to_iob2
from finetuning.data.labels import LabelColumn, check_label_names, label_ids, label_names, refuse_placeholders
from finetuning.data.rows import Rows
from finetuning.data.table_checks import check_tables, check_translation_columns, named_tables, translation_of
from finetuning.data.task_tables import LABELED_BY, TRANSLATION, TaskData, encode_parts, gather, open_tables
from finetuning.data.word_lists import count_invisible, text_lists
from finetuning.results import LABEL_SCORES, LabelScores
from finetuning.seeds import load_metric
from finetuning.tasks.by_language import (
    LanguageTask,
    by_label,
    label_options,
    likeliest,
    mean_cross_entropy,
    named_scores,
)
from finetuning.tasks.tagging.recipe import TaggingRecipe
from finetuning.tasks.tagging.windows import labels_of_sentences, windows_of
from finetuning.trainer import Outcome
from zoo_core.masking import IGNORED
from zoo_core.tables import require_column

LABELED = {"first": "its first subword", "first_with_text": "its first subword that holds text"}
MANY = 0.3  # results name languages with this share of blank first subwords (punctuation: 8% to 14%; Chinese: 84%)


class TaggingTask(LanguageTask[TaggingRecipe]):
    """Words with a label each."""

    auto_class = AutoModelForTokenClassification
    collator = DataCollatorForTokenClassification
    metric = "seqeval"
    loss = staticmethod(mean_cross_entropy)
    kept = staticmethod(likeliest)
    counts = LanguageTask.counts | {
        "words_without_tokens": "words without tokens",
        "words_with_blank_first_token": "blank first tokens",
    }

    def read(self) -> TaskData:
        """Rows have `words`, `tags`, an id for each word, and `row`, their number in the table.

        Plug-in, they also have those of the translation, with `translation_` before their names; tags only in
        training. Rows without words or labels are left out.
        """
        recipe = self.recipe
        check_tables(recipe)
        _check_columns(recipe)
        tables = open_tables(recipe)
        for rows in tables.evaluation.values():
            _refuse_labels_of_a_model(rows)
        sides = [
            side for rows in tables.train for side in (rows, translation_of(rows)) if side and side.table.label_column
        ]
        labels = _labels([_label_column(rows) for rows in sides])
        warnings: list[str] = []
        changed: dict[str, int] = {}
        normalize = functools.partial(_normalize, labels=labels, changed=changed, warnings=warnings)
        evaluation = {language: normalize(rows) for language, rows in tables.evaluation.items()}
        for language, dataset in evaluation.items():
            if len(used := _used(dataset)) < 2:
                words = sum(map(len, dataset["tags"][:]))
                refuse_placeholders(tables.evaluation[language], words, "words", labels.names[used[0]])
        data = gather(recipe, tables, evaluation, normalize, warnings, labels.names)
        if len(used := _used(data.train)) < 2:
            raise ValueError(
                f"All words of the {len(data.train)} training rows have the label {labels.names[used[0]]!r}. Check the "
                f"label column {recipe.train[0].label_column}."
            )
        if labels.form is None:
            data.warnings.append(
                "the labels are not IOB1, IOB2, IOBES, BILOU or BMES: a run of equal labels counts as a chunk, as "
                "in XTREME (seqeval 0.0.12); compare token_accuracy"
            )
        data.protocol.read_as_iob2 = changed
        return data

    def encode(self, data: TaskData) -> TaskData:
        """Sentences to windows of at most `max_length` tokens: input_ids, attention_mask and labels.

        Labels are -100 except at one token of each word, according to `label_subword`. `sentence` and `first_word`
        identify the sentence and the first word of a window.

        A word that is longer than a window loses its last subwords, which have no label. The protocol counts, by
        language, such words, words without subwords, words whose first subword has no text but a later one does, and
        sentences of several windows. Plug-in, the fields of the translation have `translation_` before their names, and
        cut translations are counted, too, once per sentence.
        """
        tokenizer, recipe, protocol = self.start.tokenizer, self.recipe, data.protocol
        label_subword = recipe.label_subword
        if not tokenizer.is_fast:
            raise ValueError(
                f"{type(tokenizer).__name__} is not a fast tokenizer: it does not say which word a token belongs to, "
                "which labels of words need. Use one with a tokenizer.json, such as XLM-R's."
            )
        words = {language: sum(map(len, rows["words"][:])) for language, rows in data.evaluation.items()}
        counted = ["cut", "without_tokens", "blank_first", "is_further", "translation_cut"]
        arguments = {"tokenizer": tokenizer, "max_length": recipe.max_length, "label_subword": label_subword}
        encoded, counts = encode_parts(data, windows_of, counted, **arguments)
        changed = sum(protocol.read_as_iob2.values())
        empty = sum(sum(parts.values()) for parts in counts["without_tokens"].values())
        facts = [
            "f1, precision, recall: over chunks in all sentences; first word, last word and label of a chunk must be "
            "right",
            "token_accuracy: share of words with the right label; words outside of chunks count",
            f"label of a word: that of {LABELED[label_subword]}; a chunk may span two windows of a long sentence",
        ]
        facts += [f"schemes: {changed:,} labels of other schemes were read as IOB2's"] if changed else []
        facts += [f"unknown words: {empty:,} without a subword were read as {tokenizer.unk_token}"] if empty else []
        tables = protocol.training_data
        for teacher in dict.fromkeys(teacher for table in tables for teacher in table.get(LABELED_BY, [])):
            languages = [
                name for table in tables if teacher in table.get(LABELED_BY, []) for name in table["languages"]
            ]
            facts.append(f"training labels in {', '.join(dict.fromkeys(languages))}: those of a model, {teacher}")
        shares = {language: count / words[language] for language, count in counts["blank_first"]["evaluation"].items()}
        blank = [f"{language} {share:.0%}" for language, share in shares.items() if share >= MANY]
        warning = (
            "words whose label is at a first subword without text, so that only their neighbors show what they are: "
            f"{', '.join(blank)}; label_subword=first_with_text labels the first subword with text"
        )
        if blank and label_subword == "first" and warning not in data.warnings:
            encoded.warnings.append(warning)
        protocol.max_length, protocol.label_subword = recipe.max_length, label_subword
        protocol.label_unit = "chunks" if form_of(data.label_names) else "words"
        protocol.cut_texts, protocol.split_texts = counts["cut"], counts["is_further"]
        protocol.words_without_tokens = counts["without_tokens"]
        protocol.words_with_blank_first_token = counts["blank_first"]
        protocol.facts = facts
        if any(TRANSLATION + "input_ids" in rows.column_names for rows in encoded.evaluation.values()):
            protocol.cut_translations = counts["translation_cut"]
        return encoded

    def head(self, data: TaskData) -> dict[str, Any]:
        return label_options(data)

    def load_model(self, path: str, seed: int, data: TaskData) -> torch.nn.Module:
        model = super().load_model(path, seed, data)
        model.config.label_subword = self.recipe.label_subword  # readers of the labels must know their places
        return model

    def score(self, data: TaskData, part: str, language: str, predictions: np.ndarray) -> Outcome:
        """Returns the outcome of whole sentences; `predictions` are the label ids (W, T) of the windows."""
        found, gold = labels_of_sentences(getattr(data, part)[language], predictions, data.label_names)

        def records() -> Iterator[dict[str, Any]]:
            for row, *sides in zip(data.as_read[language].to_list(), gold, found, strict=True):
                own, predicted = (_beside_words(row["tags"], side) for side in sides)
                yield {"row": row["row"], "words": row["words"], "gold": own, "prediction": predicted}

        def label_scores() -> LabelScores:
            if form_of(data.label_names):
                return _by_type(gold, found, data.label_names)
            numbers = {name: number for number, name in enumerate(data.label_names)}
            ids = ([numbers[label] for sentence in side for label in sentence] for side in (gold, found))
            return by_label(*ids, data.label_names)

        return Outcome(load_metric("seqeval").compute(predictions=found, references=gold), records, label_scores)


@dataclass
class Labels:
    """The labels of a run: as the training data name them, and with B- and I- of every type of chunk in IOB2.

    form: of the training data; None where the labels mark no chunks, and `names` are `raw`.
    """

    raw: list[str]
    is_order_declared: bool
    form: str | None
    kinds: list[str]
    names: list[str]


def _labels(columns: list[LabelColumn]) -> Labels:
    """Returns the labels of the training data. IOB1 may lack the B- of a type, and IOBES its I-."""
    raw, is_declared = label_names(columns)
    forms = [_form_of(column) for column in columns]
    if None in forms:  # a single table may lack the labels that show the form
        forms = [_form_of(*columns)] * len(columns)
    if forms[0] is None:
        return Labels(raw, is_declared, None, [], raw)
    named = {name: form for column, form in zip(columns, forms, strict=True) for name in _names(column)}
    parts = [split_label(name, named[name]) for name in raw]
    kinds = list(dict.fromkeys(kind for mark, kind in parts if mark != OUTSIDE))
    names = [OUTSIDE if mark == OUTSIDE else join_label("B" if mark in "BS" else "I", kind) for mark, kind in parts]
    names += [join_label(mark, kind) for kind in kinds for mark in "BI"]
    return Labels(raw, is_declared, forms[0], kinds, list(dict.fromkeys(names)))


def _names(column: LabelColumn) -> list[str]:
    """The names of the labels that a column declares or has."""
    return column.declared or [
        str(name) for name in dict.fromkeys(column.values) if name is not None and str(name).strip()
    ]


def _form_of(*columns: LabelColumn) -> str | None:
    """The form of the labels of these columns together. Raises ValueError as `form_of`."""

    def place_of(label: str) -> str:
        found = ((column, column.values.index(label)) for column in columns if label in column.values)
        column, number = next(found, (columns[0], None))
        row = "" if number is None else f", row {column.rows.numbers[column.row_of(number)]} (from 0)"
        return f"{column.rows.place}{row}"

    return form_of(itertools.chain.from_iterable(map(_names, columns)), place_of)


def _check_columns(recipe: TaggingRecipe) -> None:
    check_translation_columns(recipe)
    for where, table in named_tables(recipe).items():
        if len(table.text_columns) != 1:
            raise ValueError(f"{where}.text_columns is {table.text_columns}. Name the one column of lists of words.")
        check_label_names(where, table.label_names)


def _label_column(rows: Rows) -> LabelColumn:
    """Returns the labels of the words of all rows."""
    column = rows.table.label_column
    item = getattr(require_column(rows.dataset, column, rows.name), "feature", None)
    if item is None or isinstance(item, dict):
        raise ValueError(f"{rows.name}: column {column} does not hold lists of labels.")
    kept = [[label for label in labels or () if label != UNLABELED] for labels in rows.dataset[column][:]]
    ends = np.cumsum([len(labels) for labels in kept])
    values = list(itertools.chain.from_iterable(kept))
    if not values:
        raise ValueError(f"{rows.place}: no word has a label in column {column}.")
    return LabelColumn(rows, item, values, lambda number: int(np.searchsorted(ends, number, side="right")))


def _refuse_labels_of_a_model(rows: Rows) -> None:
    """Raises ValueError for evaluated rows that `label_text` has labeled."""
    if LABELED_BY in rows.dataset.column_names:
        raise ValueError(
            f"{rows.place}: its labels are those of a model ({rows.dataset[LABELED_BY][0]}), not gold labels. Evaluate "
            f"labeled text, or remove the column {LABELED_BY} if its labels have been corrected since."
        )


def _normalize(rows: Rows, labels: Labels, changed: dict[str, int], warnings: list[str]) -> Dataset:
    """Columns `words`, `tags` (ids) and `row`, checked, and those of the translations.

    `changed` counts labels that became IOB2's, by language.
    """
    words, tags = _side(rows, labels, changed, warnings)
    columns = {"words": words, "tags": tags, "row": rows.numbers}
    if translation := translation_of(rows):
        own, own_tags = _side(translation, labels, changed, warnings)
        fault = f"its translation, column {translation.table.text_columns[0]}, has no words"
        rows.report({row: fault for row in range(len(words)) if words[row] and not own[row]}, "Fill or remove it.")
        if own == words:
            warnings.append(f"{rows.place}: the translation of each text is the text itself")
        columns |= {TRANSLATION + "words": own} | ({TRANSLATION + "tags": own_tags} if own_tags else {})
    kept = [row for row, sentence in enumerate(tags) if any(tag != IGNORED for tag in sentence)]
    if not kept:
        raise ValueError(
            f"{rows.place}: none of its {len(words)} rows has a word. Check column {rows.table.text_columns[0]}."
        )
    if len(kept) < len(words):
        warnings.append(f"{rows.place}: {len(words) - len(kept)} rows without words or labels left out")
    return Dataset.from_dict({name: [values[row] for row in kept] for name, values in columns.items()})


def _side(
    rows: Rows, labels: Labels, changed: dict[str, int], warnings: list[str]
) -> tuple[list[list[str]], list[list[int]]]:
    """Returns the words and tags of each row, of a text or of its translation; no tags without a label column."""
    (column,), label_column = rows.table.text_columns, rows.table.label_column
    words = text_lists(rows.dataset, column, rows.place, "word", may_be_blank=True, numbers=rows.numbers)
    if invisible := count_invisible(words):
        warnings.append(f"{rows.place}: {invisible}")
    if not label_column:
        return words, []
    if not any(words):
        return words, [[] for _ in words]
    read = _label_column(rows)
    lists = [own or [] for own in rows.dataset[label_column][:]]
    faults = {
        row: f"{len(sentence)} words in column {column} and {len(own)} labels in column {label_column}"
        for row, (sentence, own) in enumerate(zip(words, lists, strict=True))
        if len(sentence) != len(own)
    }
    rows.report(faults, "Correct or remove the row.")
    form = labels.form and (_form_of(read) or labels.form)
    known = [*labels.raw, *labels.names] if form == labels.form else [OUTSIDE] if OUTSIDE in labels.names else []
    if form:
        known += [name for name in _names(read) if _is_of(name, form, labels.kinds)]
    known = list(dict.fromkeys(known))
    ids = iter(label_ids(read, known, labels.is_order_declared, warnings))
    places = {name: place for place, name in enumerate(labels.names)}
    tags = []
    for sentence in lists:
        own = [UNLABELED if label == UNLABELED else known[next(ids)] for label in sentence]
        pairs = list(zip(own, to_iob2(own, form) if form else own, strict=True))
        tags.append([IGNORED if label == UNLABELED else places[name] for label, name in pairs])
        if form:
            count = sum(label not in (name, UNLABELED) for label, name in pairs)
            changed[rows.language] = changed.get(rows.language, 0) + count
    return words, tags


def _is_of(label: str, form: str, kinds: list[str]) -> bool:
    """Whether a label marks a span of one of these types."""
    return bool(re.fullmatch(FORMS[form], label)) and split_label(label, form)[1] in kinds


def _used(dataset: Dataset) -> list[int]:
    """The ids of labels that occur."""
    return sorted(set(itertools.chain.from_iterable(dataset["tags"][:])) - {IGNORED})


def _by_type(gold: list[list[str]], found: list[list[str]], names: list[str]) -> LabelScores:
    """The scores of each type of chunk, such as PER, of the sentences' labels."""
    # seqeval scores the types that occur, in this order
    seen = _types(itertools.chain(*gold, *found))
    scores = named_scores(seen, precision_recall_fscore_support(gold, found, average=None, zero_division=0))
    absent = {**dict.fromkeys(LABEL_SCORES, 0.0), "support": 0}
    return {name: scores.get(name, absent) for name in _types(names)}


def _types(labels: Iterable[str]) -> list[str]:
    """The types of chunks, sorted; `_` of labels without a type, as in seqeval."""
    return sorted({label[2:] or UNLABELED for label in labels if label != OUTSIDE})


def _beside_words(tags: list[int], labels: list[str]) -> list[str]:
    """Returns the labels of all words of a sentence: `_` for a word without one, which is not predicted either."""
    of_labeled = iter(labels)
    return [UNLABELED if tag == IGNORED else next(of_labeled) for tag in tags]
