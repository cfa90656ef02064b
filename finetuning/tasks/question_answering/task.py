"""Extractive question answering: converts rows of question, context and answers to windows, by language; F1.

The tables are SQuAD's, and MLQA's, XQuAD's and TyDiQA-GoldP's of XTREME: every question has an answer in its context.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding

from crosslingual_zoo.finetuning.data.rows import Rows, named_texts, typed_column
from crosslingual_zoo.finetuning.data.task_tables import TaskData, gather, open_tables
from crosslingual_zoo.finetuning.models import Start
from crosslingual_zoo.finetuning.recipe import QuestionAnsweringRecipe
from crosslingual_zoo.finetuning.tasks.by_language import LanguageTask, Windows, both_sides
from crosslingual_zoo.finetuning.tasks.question_answering.scores import mlqa_tokens, score_answers, squad_tokens
from crosslingual_zoo.finetuning.tasks.question_answering.spans import predicted_answers
from crosslingual_zoo.finetuning.tasks.question_answering.windows import BEHIND, encode_windows, windowing
from crosslingual_zoo.finetuning.trainer import Outcome
from crosslingual_zoo.zoo_core.masking import IGNORED

N_BEST = 20  # starts, and ends, that are combined in each window: as in the benchmarks' scripts


class QuestionAnsweringTask(LanguageTask[QuestionAnsweringRecipe]):
    """Questions with an answer in their context."""

    auto_class = AutoModelForQuestionAnswering
    collator = DataCollatorWithPadding
    settings = ("max_length", "doc_stride", "max_question_length", "max_answer_length")
    loss_reads_padding = True  # start and end are predicted among all positions

    @staticmethod
    def loss(outputs: Any, labels: torch.Tensor, items: torch.Tensor | int) -> torch.Tensor:
        """Sum of the cross-entropies of start and end over `items`, two a window: logits (B, T), labels (B, 2)."""
        start_B, end_B = labels.unbind(-1)
        start_loss = cross_entropy(outputs["start_logits"], start_B, reduction="sum")
        end_loss = cross_entropy(outputs["end_logits"], end_B, reduction="sum")
        return (start_loss + end_loss) / items

    @property
    def metric(self) -> tuple[str, str]:
        return self.recipe.metric, "1.0.0"

    def open(self) -> Start:
        start = super().open()
        windowing(start.tokenizer, self.recipe)  # which checks both
        return start

    def read(self) -> TaskData:
        """Rows have `question`, `context` and `answers` (texts).

        `start` and `end` are the characters of the first answer that is in the context, -1 if there is none: such
        training rows are left out. `row` is the number in the table, `id` that of the table, if it has one.
        """
        recipe = self.recipe
        warnings: list[str] = []
        tables = open_tables(recipe)
        scored = [*tables.evaluation, *tables.dev]
        if recipe.selection != "last":
            scored.append(recipe.source_language)
        for language in dict.fromkeys(scored):
            self.measure(language, ["a"], [["a"]])  # before hours of training
        for rows in tables.all_rows():
            rows.examples = _examples(rows, warnings)
        data = gather(recipe, tables, warnings, [])
        answered = np.flatnonzero(np.asarray(data.train["start"][:]) >= 0)
        languages = data.train["language"][:]
        left_out = Counter(languages) - Counter(languages[row] for row in answered)
        if left_out:
            data.warnings.append(f"{left_out.total()} training rows without an answer in their context were left out")
        data.protocol.update(training_rows=len(answered), left_out_rows=dict(left_out), n_best=N_BEST)
        return replace(data, train=data.train.select(answered))

    def windows_of(self, batch: dict[str, list], numbers: list[int], is_train: bool, is_translation: bool) -> Windows:
        tokenizer = self.start.tokenizer
        cutting = windowing(tokenizer, self.recipe)
        return encode_windows(batch, numbers, tokenizer, cutting, is_train or is_translation)

    @staticmethod
    def label_fields(labels: torch.Tensor) -> dict[str, torch.Tensor]:
        start_B, end_B = labels.masked_fill(labels == IGNORED, BEHIND).unbind(-1)
        return {"start_positions": start_B, "end_positions": end_B}

    def head(self, data: TaskData) -> dict[str, Any]:
        return {"num_labels": 2}  # start and end; a folder may have a classifier's number

    def outcome(self, data: TaskData, part: str, language: str, predictions: Any) -> Outcome:
        """F1 and exact match of the best spans; `predictions` are start and end logits (W, T) of windows."""
        windows = getattr(data, part)[language]
        answers, golds = predicted_answers(windows, predictions, N_BEST, self.recipe.max_answer_length)
        return Outcome(self.measure(language, answers, golds), _records(data.as_read[language], golds, answers))

    def measure(self, language: str, answers: list[str], golds: list[list[str]]) -> dict[str, float]:
        """F1 and exact match of the recipe's metric."""
        tokens = {"squad": squad_tokens, "mlqa": functools.partial(mlqa_tokens, language=language)}
        return score_answers(answers, golds, tokens[self.recipe.metric])


def _records(rows: Dataset, golds: list[list[str]], answers: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of the predictions file; `id` is in those whose table has one."""
    columns = rows.select_columns(["row", "id", "question"]).to_list()
    for row, gold, answer in zip(columns, golds, answers, strict=True):
        record = {"row": row["row"]}
        if row["id"] is not None:
            record["id"] = row["id"]
        yield {**record, "question": row["question"], "gold": gold, "prediction": answer}


def _examples(rows: Rows, warnings: list[str]) -> Dataset:
    """The columns of `read`, checked."""
    count = len(rows.dataset)
    columns = both_sides(rows, functools.partial(_side, warnings=warnings))
    columns["language"] = [rows.language] * count
    columns["row"] = rows.numbers
    columns["id"] = [None] * count
    if "id" in rows.dataset.column_names:
        columns["id"] = [None if id is None else str(id) for id in rows.dataset["id"][:]]
    return Dataset.from_dict(columns)


def _side(rows: Rows, warnings: list[str]) -> dict[str, list]:
    """Returns the columns of a text, or of its translation; without a label column, no row has an answer.

    Raises ValueError for columns of other types, and rows that are not as in SQuAD 1.1.
    """
    columns = named_texts(rows, ("question", "context"))
    count = len(rows.dataset)
    if not rows.table.label_column:
        return {**columns, "answers": [[]] * count, "start": [-1] * count, "end": [-1] * count}
    answers, starts_by_row = _answer_columns(rows)
    begins = []
    ends = []
    moved = 0
    for context, texts, starts in zip(columns["context"], answers, starts_by_row, strict=True):
        found_at = [find_answer(context, text, start) for text, start in zip(texts, starts, strict=True)]
        moved += any(begin not in (-1, start) for begin, start in zip(found_at, starts, strict=True))
        begin, end = _first_span(texts, found_at)
        begins.append(begin)
        ends.append(end)
    absent = begins.count(-1)
    if absent == count:
        raise ValueError(
            f"{rows.place}: none of its {absent} rows has an answer that is in its context. Check that text_columns "
            f"{rows.table.text_columns} are question and context, in this order."
        )
    if moved or absent:
        warnings.append(
            f"{rows.place}: of {count} rows, {moved} have an answer that is not at its answer_start (the "
            f"nearest place with its text is used), {absent} none in the context"
        )
    return {**columns, "answers": answers, "start": begins, "end": ends}


def _answer_columns(rows: Rows) -> tuple[list[list[str]], list[list[int]]]:
    """Returns the texts of each row's answers, and where they begin. Raises ValueError as `_side`."""
    column = rows.table.label_column
    dataset = rows.dataset
    fields = getattr(dataset.features.get(column), "feature", None)
    if isinstance(fields, dict):  # a list of objects, not an object of lists
        objects_by_row = dataset[column][:]
        lists = {}
        for name in fields:
            lists[f"{column}.{name}"] = [_values(objects or [], name) for objects in objects_by_row]
        dataset = Dataset.from_dict(lists)
    answers = typed_column(dataset, f"{column}.text", rows.name, is_list=True)[:]
    starts_by_row = typed_column(dataset, f"{column}.answer_start", rows.name, "int", is_list=True)[:]
    faults = {}
    for row, (texts, starts) in enumerate(zip(answers, starts_by_row, strict=True)):
        if not _are_answers(texts or [], starts or []):
            faults[row] = f"it has the answers {texts} and answer_start {starts}"
    rows.report(faults, "Give each question an answer, and each answer its start.")
    return answers, starts_by_row


def _values(objects: list[dict[str, Any]], name: str) -> list[Any]:
    """Returns a field of each of the objects."""
    return [item[name] for item in objects]


def _are_answers(texts: list[str | None], starts: list[int | None]) -> bool:
    """Whether there is an answer, and every answer has a text and a start."""
    have_text = texts and all(text and text.strip() for text in texts)
    return bool(have_text) and len(starts) == len(texts) and None not in starts


def find_answer(context: str, answer: str, start: int) -> int:
    """Returns where the answer is in the context: at `start`, else at the nearest place with its text, else -1.

    Published and translated data have offsets in bytes, and offsets into texts that were cleaned later.
    """
    if start >= 0 and context.startswith(answer, start):
        return start
    begins = [match.start() for match in re.finditer(f"(?={re.escape(answer)})", context)]
    return min(begins, key=lambda begin: abs(begin - start), default=-1)


def _first_span(texts: list[str], found_at: list[int]) -> tuple[int, int]:
    """Returns begin and end of the first answer that is in the context, without white space around it; else -1, -1."""
    for text, begin in zip(texts, found_at, strict=True):
        if begin >= 0:
            return begin + len(text) - len(text.lstrip()), begin + len(text.rstrip())
    return -1, -1
