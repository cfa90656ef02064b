"""The recipe of extractive question answering: the fields that it adds to those of every task."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from finetuning.data.table_checks import named_tables
from finetuning.recipe import Recipe
from zoo_core.recipes import LARGEST, Positive, option


@dataclass
class QuestionAnsweringRecipe(Recipe):
    """Fine-tuning of one model to find answers in a context, evaluated in every language.

    Each table names two `text_columns`, question and context. Its `label_column` has the fields `text` and
    `answer_start`, two lists of the same length, as in SQuAD, MLQA, XQuAD and TyDiQA-GoldP.
    """

    main_score, task_type = "f1", "question-answering"
    measures = "answers found in a text"
    kind: Literal["question_answering"] = option("question_answering", "kind of task")
    metric: Literal["squad", "mlqa"] = option(
        "squad",
        "squad: F1 of SQuAD in every language, as for XQuAD and TyDiQA; mlqa: F1 of MLQA, with rules by language",
    )
    max_length: Annotated[int, Ge(8), LARGEST] = option(
        384, "tokens of a window: the question, a part of the context and special tokens"
    )
    doc_stride: Positive = option(128, "tokens of the context from the start of a window to the start of the next")
    max_question_length: Positive = option(64, "tokens of a question; longer ones are cut, and the results count them")
    max_answer_length: Positive = option(30, "maximum tokens of an answer")

    def check(self) -> None:
        super().check()
        for where, table in named_tables(self).items():
            if len(table.text_columns) != 2:
                raise ValueError(
                    f"{where}.text_columns is {table.text_columns}. Name their two columns, as in text_columns: "
                    "[question, context]."
                )
            if table.label_names:
                raise ValueError(
                    f"{where}.label_names is {table.label_names}. Answers are parts of the context and have no names. "
                    "Leave label_names out."
                )
