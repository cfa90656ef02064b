"""The recipe of extractive question answering: what it has beside the fields of every task."""

from dataclasses import dataclass
from typing import Literal

from finetuning.data.table_checks import named_tables
from finetuning.recipe import Recipe
from zoo_core.recipes import option


@dataclass
class QuestionAnsweringRecipe(Recipe):
    """Fine-tuning of one model to find answers in a context, evaluated in every language.

    Tables name two `text_columns`, question and context, and as `label_column` one with the fields `text` and
    `answer_start`, lists of as many entries, as SQuAD, MLQA, XQuAD and TyDiQA-GoldP have it.
    """

    main_score, task_type = "f1", "question-answering"
    kind: Literal["question_answering"] = option("question_answering", "kind of task")
    metric: Literal["squad", "mlqa"] = option(
        "squad", "squad: SQuAD's F1 in every language, as for XQuAD and TyDiQA; mlqa: MLQA's, by language"
    )
    max_length: int = option(384, "positions of a window: question, a part of the context, special tokens", low=8)
    doc_stride: int = option(128, "tokens of the context by which a window begins after the one before it", low=1)
    max_question_length: int = option(64, "tokens of a question; longer ones are cut and counted", low=1)
    n_best: int = option(20, "likeliest starts, and ends, of a window that are tried with each other", low=1)
    max_answer_length: int = option(30, "tokens of an answer", low=1)

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
                    f"{where}.label_names is {table.label_names}. Answers are parts of the context, not names: it "
                    "would be ignored. Leave it out."
                )
