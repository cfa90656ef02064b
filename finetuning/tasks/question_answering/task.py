"""Extractive question answering: converts rows of question, context and answers to windows, by language; F1.

The tables are SQuAD's, and MLQA's, XQuAD's and TyDiQA-GoldP's of XTREME: every question has an answer in its context.
"""

import functools
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
        sides = zip((outputs["start_logits"], outputs["end_logits"]), labels.unbind(-1), strict=True)
        return sum(cross_entropy(logits_BT, gold_B, reduction="sum") for logits_BT, gold_B in sides) / items

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
        kept = np.flatnonzero(np.asarray(data.train["start"][:]) >= 0)
        trained = data.train["language"][:]
        left_out = Counter(trained) - Counter(trained[row] for row in kept)
        if left_out:
            data.warnings.append(f"{left_out.total()} training rows without an answer in their context were left out")
        data.protocol.update(training_rows=len(kept), left_out_rows=dict(left_out), n_best=N_BEST)
        return replace(data, train=data.train.select(kept))

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

        def records() -> Iterator[dict[str, Any]]:
            rows = data.as_read[language].select_columns(["row", "id", "question"]).to_list()
            for row, gold, answer in zip(rows, golds, answers, strict=True):
                identity = {"row": row["row"]} | ({} if row["id"] is None else {"id": row["id"]})
                yield {**identity, "question": row["question"], "gold": gold, "prediction": answer}

        return Outcome(self.measure(language, answers, golds), records())

    def measure(self, language: str, answers: list[str], golds: list[list[str]]) -> dict[str, float]:
        """F1 and exact match of the recipe's metric."""
        tokens = {"squad": squad_tokens, "mlqa": functools.partial(mlqa_tokens, language=language)}
        return score_answers(answers, golds, tokens[self.recipe.metric])


def _examples(rows: Rows, warnings: list[str]) -> Dataset:
    """The columns of `read`, checked."""
    columns, count = both_sides(rows, functools.partial(_side, warnings=warnings)), len(rows.dataset)
    ids = rows.dataset["id"][:] if "id" in rows.dataset.column_names else [None] * count
    named = [None if name is None else str(name) for name in ids]
    return Dataset.from_dict({**columns, "language": [rows.language] * count, "row": rows.numbers, "id": named})


def _side(rows: Rows, warnings: list[str]) -> dict[str, list]:
    """Returns the columns of a text, or of its translation; without a label column, no row has an answer.

    Raises ValueError for columns of other types, and rows that are not as in SQuAD 1.1.
    """
    columns = named_texts(rows, ("question", "context"))
    if not (column := rows.table.label_column):
        count = len(rows.dataset)
        return {**columns, "answers": [[]] * count, "start": [-1] * count, "end": [-1] * count}
    feature = rows.dataset.features.get(column)
    if isinstance(getattr(feature, "feature", None), dict):  # a list of objects, not an object of lists
        objects, names = rows.dataset[column][:], feature.feature
        lists = {f"{column}.{name}": [[one[name] for one in own or ()] for own in objects] for name in names}
        rows = replace(rows, dataset=Dataset.from_dict(lists))
    answers = typed_column(rows.dataset, f"{column}.text", rows.name, is_list=True)[:]
    starts = typed_column(rows.dataset, f"{column}.answer_start", rows.name, "int", is_list=True)[:]
    faults = {
        row: f"it has the answers {texts} and answer_start {own}"
        for row, (texts, own) in enumerate(zip(answers, starts, strict=True))
        if not texts or not all(text and text.strip() for text in texts) or len(own or []) != len(texts) or None in own
    }
    rows.report(faults, "Give each question an answer, and each answer its start.")
    spans, moved = [], 0
    for context, texts, own in zip(columns["context"], answers, starts, strict=True):
        found = [place(context, text, start) for text, start in zip(texts, own, strict=True)]
        moved += any(where not in (-1, start) for where, start in zip(found, own, strict=True))
        text, where = next((one for one in zip(texts, found, strict=True) if one[1] >= 0), ("", -1))
        spans.append((where + len(text) - len(text.lstrip()), where + len(text.rstrip())))
    absent = spans.count((-1, -1))
    if absent == len(spans):
        raise ValueError(
            f"{rows.place}: none of its {absent} rows has an answer that is in its context. Check that text_columns "
            f"{rows.table.text_columns} are question and context, in this order."
        )
    if moved or absent:
        warnings.append(
            f"{rows.place}: of {len(spans)} rows, {moved} have an answer that is not at its answer_start (the "
            f"nearest place with its text is used), {absent} none in the context"
        )
    begins, ends = map(list, zip(*spans, strict=True))
    return {**columns, "answers": answers, "start": begins, "end": ends}


def place(context: str, answer: str, start: int) -> int:
    """Returns the place of the answer in the context: `start`, else the nearest place with its text, else -1.

    Published and translated data have offsets in bytes, and offsets into texts that were cleaned later.
    """
    if start >= 0 and context.startswith(answer, start):
        return start
    behind, before = context.find(answer, max(start, 0)), context.rfind(answer, 0, max(start, 0) + len(answer))
    found = [where for where in (before, behind) if where >= 0]
    return min(found, key=lambda where: abs(where - start), default=-1)
