"""The interface of a task: what it reads, encodes, builds, runs for each seed and reports.

`finetuning/running.py` calls the methods of a `Task` in the order below; only --check_data uses `data_lines`.
A kind that is trained and evaluated by language extends `LanguageTask` (`by_language.py`), and one that evaluates the
vectors of an unchanged model extends `FeatureTask` (`features/task.py`). `registry.py` names its recipe and its Task.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, Required, TypedDict, TypeVar

from finetuning.data.task_tables import Data
from finetuning.models import Start
from finetuning.recipe import TaskRecipe
from finetuning.results import FORMAT, Protocol, Results
from finetuning.run_folder import RunFolder

R = TypeVar("R", bound=TaskRecipe)
Line = dict[str, Any]  # of the table of --check_data, by column


class Record(TypedDict, total=False):
    """The content of a seed's scores.json; kinds add further keys."""

    seed: Required[int]
    parameters: Required[int]
    metric: Required[dict[str, str]]
    scores: Required[dict[str, Any]]  # by language or pair
    processes: int  # number for the seed, or for its last session; the records of the example cards lack it
    steps: int  # this and the following only if the model is trained
    selected_step: int
    selection_score: float | None


class Task(ABC, Generic[R]):
    """A task: its recipe, and how it is read, run and reported."""

    metrics: ClassVar[tuple[str, ...]] = ()  # those that results show; default: all
    start: Start  # what `open` returned

    def __init__(self, recipe: R):
        self.recipe = recipe

    def check(self) -> None:
        """Raises ValueError for values of the recipe that cannot be run."""
        self.recipe.check()

    def begin(self) -> Start:
        """Checks the recipe, and sets `start` to the model that it starts from."""
        self.check()
        self.start = self.open()
        return self.start

    @abstractmethod
    def open(self) -> Start:
        """Reads and checks the model that the recipe starts from. No weights are loaded."""

    @abstractmethod
    def read(self) -> Data:
        """Reads and checks every table of the recipe."""

    def encode(self, data: Data) -> Data:
        """Converts the rows to the model's inputs with the tokenizer of `start`; completes `data.protocol`."""
        return data

    def check_run(self, data: Data, folder: RunFolder | None = None) -> None:
        """Raises ValueError for what can only be checked with the data, and the folder of a run, before it begins."""

    @abstractmethod
    def build(self, seed: int, data: Data) -> Any:
        """The model of one seed."""

    @abstractmethod
    def run_seed(self, seed: int, model: Any, data: Data, folder: Path, evaluate: bool = True) -> Record:
        """Trains, if the kind does, and evaluates; writes scores.json and predictions/ with `seeds.finish_seed`.

        Without `evaluate`, only development rows are scored.
        """

    @abstractmethod
    def facts(self, protocol: Protocol, records: list[Record]) -> dict[str, Any]:
        """Fields of results.json: setting, hyperparameters, warnings, and others of the kind. Completes `protocol`."""

    @abstractmethod
    def lines(self, results: Results) -> list[str]:
        """Returns how the scores were computed, one fact a line, for the page and the card."""

    def results(self, model: dict[str, Any], protocol: Protocol, records: list[Record], warnings: list[str]) -> Results:
        """results.json of the task (ARCHITECTURE.md, "Results")."""
        facts = self.facts(protocol, records)
        of_labels = [row for record in records for row in labels_of_record(record)]
        results = Results(
            {
                "format": FORMAT,
                "task": self.recipe.task,
                "kind": self.recipe.kind,
                "seeds": [record["seed"] for record in records],
                "processes": [record.get("processes") for record in records],
                **facts,
                # with one model per seed, `facts` have the fingerprints
                "model": {**model, "parameters": records[0]["parameters"]} | facts.get("model", {}),
                "protocol": protocol,
                "published": self.recipe.references,
                "scores": [row for r in records for row in rows_of_record(r, protocol.evaluated_split, self.metrics)],
                **({"label_scores": of_labels} if of_labels else {}),
                "warnings": [*warnings, *facts["warnings"]],
            }
        )
        results["lines"] = self.lines(results)
        return results

    @abstractmethod
    def data_lines(self, read: Data, encoded: Data) -> list[Line]:
        """Rows, and what is cut or left out of them, by part and language: the table of --check_data."""


def add_outcomes(protocol: Protocol, records: list[Record], **of_the_metric: Any) -> None:
    """Adds the checkpoints that the seeds selected, and the metric, to the protocol."""
    protocol.selection.selected_steps = [record["selected_step"] for record in records]
    protocol.selection.scores = [record["selection_score"] for record in records]
    protocol.metric = Protocol(**records[0]["metric"], unit="percent", **of_the_metric)


def rows_of_record(record: dict[str, Any], split: str, metrics: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The rows of a seed's scores.json.

    That holds scores by language, by language and metric, or by language, method, layer and metric; `metrics` are those
    that are kept, by default all.
    """
    rows = []
    for language, found in (record.get("all_scores") or record["scores"]).items():
        if not isinstance(found, dict):
            found = {record["metric"]["name"]: found}
        places: list[tuple[dict[str, Any], dict[str, float]]] = [({}, found)]
        if isinstance(next(iter(found.values())), dict):
            places = [
                ({"method": method, "layer": int(layer)}, scores)
                for method, by_layer in found.items()
                for layer, scores in by_layer.items()
            ]
        rows += [
            {"language": language, **place, "seed": record["seed"], "split": split, "metric": metric, "value": value}
            for place, scores in places
            for metric, value in scores.items()
            if not metrics or metric in metrics
        ]
    return rows


def labels_of_record(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of `label_scores` that a seed's scores.json gives."""
    return [
        {"language": language, "label": label, "seed": record["seed"], **scores}
        for language, labels in record.get("label_scores", {}).items()
        for label, scores in labels.items()
    ]
