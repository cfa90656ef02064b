"""What a task is. `finetuning/training.py` calls the methods of a `Task` in the order below.

A task reads tables into columns, encodes columns as a model's inputs, and scores predictions. On the way it collects
facts (`data.protocol`): a dict of what decides whether scores can be compared. A kind that is trained and evaluated by
language extends `LanguageTask` (`by_language.py`), and one that evaluates the vectors of an unchanged model extends
`VectorTask` (`vectors/base.py`). `registry.py` names them.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from crosslingual_zoo.finetuning.data.task_tables import Data
from crosslingual_zoo.finetuning.facts import OF_PROTOCOL, lines_of
from crosslingual_zoo.finetuning.models import Start, describe_start
from crosslingual_zoo.finetuning.recipe import TaskRecipe
from crosslingual_zoo.finetuning.results import FORMAT, Results

R = TypeVar("R", bound=TaskRecipe)
Facts = dict[str, Any]
# Of a seed's scores.json: `seed`, `parameters`, `metric` (its name, module and version), `scores` (rows as in
# results.json), and what else a kind needs
Record = dict[str, Any]


class Task(ABC, Generic[R]):
    """A task: its recipe, and how it is read, run and reported."""

    metrics: ClassVar[tuple[str, ...]] = ()  # those that results show; default: all
    is_higher_better: ClassVar[bool] = True
    notes: ClassVar[tuple[str, ...]] = ()  # lines for the page, of what the facts do not say

    def __init__(self, recipe: R):
        self.recipe = recipe

    def begin(self) -> Start:
        """Checks the recipe, and sets `start` to the model that it starts from."""
        self.recipe.check()
        self.start = self.open()
        return self.start

    def open(self) -> Start:
        """Reads and checks the model that the recipe starts from. No weights are loaded."""
        return describe_start(self.recipe)

    @abstractmethod
    def read(self) -> Data:
        """Reads and checks every table of the recipe."""

    def encode(self, data: Data) -> Data:
        """Converts the rows to the model's inputs with the tokenizer of `start`; completes the facts."""
        return data

    def check_run(self, data: Data) -> None:
        """Raises ValueError for what can only be checked with the data, before the run begins."""

    @abstractmethod
    def build(self, seed: int, data: Data) -> Any:
        """The model of one seed."""

    @abstractmethod
    def run_seed(self, seed: int, model: Any, data: Data, folder: Path, evaluate: bool = True) -> Record:
        """Trains, if the kind does, and evaluates; writes scores.json and predictions/ with `finish_seed`.

        Without `evaluate`, only development rows are scored.
        """

    def results(self, model: dict[str, Any], facts: Facts, records: list[Record], warnings: list[str]) -> Results:
        """results.json of the task (ARCHITECTURE.md, "Results")."""
        recipe, seeds = self.recipe, [record["seed"] for record in records]
        facts["evaluated_split"] = ", ".join(dict.fromkeys(table["split"] for table in facts["evaluation_data"]))
        facts["metric"] = {**records[0]["metric"], "unit": "percent", "greater_is_better": self.is_higher_better}
        if "selected_step" in records[0]:
            facts["selection"] |= {
                "selected_steps": [record["selected_step"] for record in records],
                "scores": [record["selection_score"] for record in records],
                "losses": [record.get("selection_loss") for record in records],
            }
        fields = self.fields(facts, records)
        scores = [
            {**row, "seed": record["seed"], "split": facts["evaluated_split"]}
            for record in records
            for row in record["scores"]
            if not self.metrics or row["metric"] in self.metrics
        ]
        results = Results(
            {
                "format": FORMAT,
                "task": recipe.task,
                "kind": recipe.kind,
                "seeds": seeds,
                "processes": [record.get("processes") for record in records],
                **fields,
                "model": {**model, "parameters": records[0]["parameters"]},
                "protocol": facts,
                "published": recipe.references,
                "scores": scores,
                "warnings": warnings,
            }
        )
        results["lines"] = self.lines(results)
        return results

    @abstractmethod
    def fields(self, facts: Facts, records: list[Record]) -> dict[str, Any]:
        """Fields of results.json: setting, hyperparameters, and others of the kind. Completes the facts."""

    def lines(self, results: Results) -> list[str]:
        """How the scores were computed, one fact a line, for the page and the card."""
        settings = {name: results["hyperparameters"].get(name) for name in OF_PROTOCOL}
        return [*lines_of({"setting": results.setting, **results["protocol"], **settings}), *self.notes]

    def data_lines(self, facts: Facts) -> list[dict[str, Any]]:
        """Rows, and what is cut or left out of them, by part and language: the table of --check_data.

        Facts that count these are {"train": {"all": number}, "dev": {language: number}, "evaluation": ...}.
        """
        rows = {"train": {"all": facts["training_rows"]}, "dev": facts["selection"].get("rows", {})}
        counts = {"rows": rows | {"evaluation": facts["evaluated_rows"]}}
        counts |= {name.replace("_", " "): of for name, of in facts.items() if isinstance(of, dict) and "train" in of}
        return [
            {"part": part, "language": name} | {shown: of.get(part, {}).get(name, 0) for shown, of in counts.items()}
            for part, by_language in counts["rows"].items()
            for name, count in by_language.items()
            if count
        ]


def scores_of(found: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """The rows of a record's `scores`, of {language: {metric: score in percent}}."""
    return [
        {"language": language, "metric": metric, "value": value}
        for language, scores in found.items()
        for metric, value in scores.items()
    ]
