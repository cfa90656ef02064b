"""For each kind of task that is fine-tuned plug-in: German rows with their English translation (`_en`), and recipes."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosslingual_zoo.finetuning.recipe import QuestionAnsweringRecipe, Recipe, TaggingRecipe
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.labeled_rows import read_rows

CORPUS = Path(__file__).parents[2] / "sample_corpus"
PLUG_IN = ["setting=translate_train_all", "translations_from=Anna", "plug_in=true"]


def texts(labels="abab", prefix="text", **more):
    return [
        {"id": i, "text": f"{prefix} {i}", "text_en": f"en {prefix} {i}", "label": label, **more}
        for i, label in enumerate(labels)
    ]


def sentences(count, repeated=4):
    """Somebody goes somewhere; every fourth text, and every third translation, is long."""
    rows = []
    for number in range(count):
        name = ("Dora", "Emil", "Franz")[number % 3]
        city = ("Rom", "Paris")[number % 2]
        times = 1
        times_en = 1
        if number % 4 == 0:
            times = repeated
        if number % 3 == 0:
            times_en = repeated
        rows.append(
            {
                "id": number,
                "tokens": [name, "ging", "nach", city] * times,
                "labels": ["B-PER", "O", "O", "B-LOC"] * times,
                "tokens_en": [name, "Smith", "went", "to", city] * times_en,
                "labels_en": ["B-PER", "I-PER", "O", "O", "B-LOC"] * times_en,
            }
        )
    return rows


def questions(count):
    """Which word follows a number, in contexts of different lengths; the last answer is lost in translation."""
    draw = random.Random(0)
    sampled = {}
    for language in ("de", "en"):
        sampled[language] = [row["text"] for row in read_rows(CORPUS / language / "train.jsonl")]
    rows = []
    for number in range(count):
        row = {"id": f"q{number}"}
        for language, suffix, length in (("de", "", 1 + number % 4), ("en", "_en", 1 + number % 3)):
            words = " ".join(draw.sample(sampled[language], length)).split()
            words.insert(draw.randrange(len(words)), f"{number} {10 * number}")
            context = " ".join(words)
            answer = str(10 * number)
            row |= {f"question{suffix}": f"{number} ?", f"context{suffix}": context}
            row[f"answers{suffix}"] = {"text": [answer], "answer_start": [context.find(answer)]}
        rows.append(row)
    rows[-1]["answers_en"] = {"text": ["nowhere to be found"], "answer_start": [-1]}
    return rows


@dataclass(frozen=True)
class PlugIn:
    """A kind of task whose texts are read together with their translations."""

    recipe: type
    rows: Any
    texts: list[str]
    label: str
    options: list[str]

    def columns(self, is_trained):
        """Names of the columns to learn from, or only of the texts; a text's class is also its translation's."""
        return [*self.texts, *([self.label] if is_trained and self.recipe is not Recipe else [])]

    def table(self, path, is_trained, **fields):
        """A table in a recipe, without the fields that are None."""
        table = {"path": path, "text_columns": self.texts, "label_column": self.label, "languages": ["de"]}
        table |= {"translation_columns": [f"{name}_en" for name in self.columns(is_trained)], **fields}
        return {name: value for name, value in table.items() if value is not None}

    def overrides(self, train, evaluation, *more):
        """Overrides of a recipe: a table is a dictionary of its fields, or the path of rows as above."""
        tables = []
        for part, table in (("train", train), ("evaluation", evaluation)):
            if not isinstance(table, dict):
                table = self.table(table, is_trained=part == "train")
            tables.append(f"{part}={json.dumps([table])}")
        common = ["model=m", "output_dir=o", "task=t", "selection=last", "training.learning_rate=1e-2", "max_length=40"]
        return [*common, *PLUG_IN, *self.options, *tables, *more]

    def load(self, *arguments):
        return load_recipe(self.recipe, None, self.overrides(*arguments))

    def read(self, *arguments):
        return task_of(self.load(*arguments)).read()


KINDS = {
    "classification": PlugIn(
        Recipe, lambda count: texts("abc" * (count // 3)), ["text"], "label", ["kind=classification"]
    ),
    "tagging": PlugIn(
        TaggingRecipe, sentences, ["tokens"], "labels", ["kind=tagging", "label_subword=first"]
    ),
    "question_answering": PlugIn(
        QuestionAnsweringRecipe, questions, ["question", "context"], "answers",
        ["kind=question_answering", "doc_stride=12", "max_question_length=8"],
    ),
}  # fmt: skip
