"""The interface of a task: what it reads, encodes, builds, runs for each seed and reports.

`finetuning/running.py` calls the methods of a `Task` in the order below; only --check_data uses `data_lines`.
A kind that is trained and evaluated by language extends `LanguageTask` (`by_language.py`), and one that evaluates the
vectors of an unchanged model extends `FeatureTask` (`features/task.py`). `registry.py` names its recipe and its Task.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, Required, TypedDict, TypeVar

from finetuning.data.task_tables import Data
from finetuning.models import Start
from finetuning.recipe import TaskRecipe
from finetuning.results.protocol import Metric, Protocol
from finetuning.results.report import Report
from finetuning.results.table import FORMAT, Results, labels_of_record, rows_of_record
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

    report: ClassVar[type[Report]] = Report
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
        """Fields of results.json: setting, hyperparameters, protocol, published, warnings, and others of the kind."""

    def results(self, model: dict[str, Any], protocol: Protocol, records: list[Record], warnings: list[str]) -> Results:
        """results.json of the task (ARCHITECTURE.md, "Results")."""
        facts = self.facts(protocol, records)
        # a kind that names its metrics reports only these; others, such as a length ratio, are for its warnings
        metrics = self.report.titles or None
        of_labels = [row for record in records for row in labels_of_record(record)]
        split = protocol.evaluated_split
        return Results(
            {
                "format": FORMAT,
                "task": self.recipe.task,
                "kind": self.recipe.kind,
                "seeds": [record["seed"] for record in records],
                "processes": [record.get("processes") for record in records],
                **facts,
                # with one model per seed, `facts` have the fingerprints
                "model": {**model, "parameters": records[0]["parameters"]} | facts.get("model", {}),
                "scores": [row for record in records for row in rows_of_record(record, split, metrics)],
                **({"label_scores": of_labels} if of_labels else {}),
                "warnings": [*warnings, *facts["warnings"]],
            }
        )

    @abstractmethod
    def data_lines(self, read: Data, encoded: Data) -> list[Line]:
        """Rows, and what is cut or left out of them, by part and language: the table of --check_data."""


def add_outcomes(protocol: Protocol, records: list[Record], **of_the_metric: Any) -> None:
    """Adds the checkpoints that the seeds selected, and the metric, to the protocol."""
    protocol.selection.selected_steps = [record["selected_step"] for record in records]
    protocol.selection.scores = [record["selection_score"] for record in records]
    protocol.metric = Metric(**records[0]["metric"], unit="percent", **of_the_metric)
