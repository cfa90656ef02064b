"""What a task is. `finetuning/run_task.py` calls the methods of a `Task` in the order below,
and those that a `TrainedTask` adds between `build` and `score`.

A task reads tables into columns, encodes columns as a model's inputs, and scores predictions. On the way it collects
facts (`data.protocol`): a dict of what decides whether scores can be compared. A kind that is trained and evaluated by
language extends `LanguageTask` (`by_language.py`), and one that evaluates the vectors of an unchanged model extends
`VectorTask` (`vectors/base.py`). `registry.py` names them.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from crosslingual_zoo.finetuning.data.task_tables import Data
from crosslingual_zoo.finetuning.models import Start, describe_start
from crosslingual_zoo.finetuning.recipe import TaskRecipe, TrainedRecipe
from crosslingual_zoo.finetuning.run_folder import Predictions

R = TypeVar("R", bound=TaskRecipe)
T = TypeVar("T", bound=TrainedRecipe)
Facts = dict[str, Any]


class Scored(NamedTuple):
    """The evaluation of a seed."""

    scores: list[dict[str, Any]]  # rows of results.json: `language`, `metric` and `value`, perhaps `method` and `layer`
    predictions: Predictions
    metric: Facts  # `module` and `version` of what computed the scores, perhaps `signatures`
    facts: Facts  # what the model and its predictions add to the facts


class Task(ABC, Generic[R]):
    """A task: its recipe, and how it is read, built and scored."""

    start: Start  # the model that the recipe starts from, once it is opened

    def __init__(self, recipe: R):
        self.recipe = recipe

    def open(self) -> Start:
        """Sets and returns `start`; checks that the task can be run with it. No weights are loaded."""
        self.start = describe_start(self.recipe)
        return self.start

    @abstractmethod
    def read(self) -> Data:
        """Reads and checks every table of the recipe."""

    def encode(self, data: Data) -> Data:
        """Converts the rows to the model's inputs with the tokenizer of `start`; completes the facts."""
        return data

    def check_run(self, data: Data) -> None:
        """Raises ValueError for what can only be checked with the data, before the run begins."""

    @abstractmethod
    def build(self, seed: int, data: Data) -> torch.nn.Module:
        """Loads the model of one seed."""

    @abstractmethod
    def score(self, predictor: Any, data: Data) -> Scored:
        """Predicts and scores all evaluated rows, once, with the model or, of a task that trains, with its Trainer."""


class TrainedTask(Task[T]):
    """A task that fine-tunes the model first."""

    @abstractmethod
    def trainer(self, seed: int, model: torch.nn.Module, data: Data, checkpoints: Path) -> Any:
        """Returns the Trainer of a seed, with checkpoints in this folder."""

    @abstractmethod
    def describe(self, model: torch.nn.Module, data: Data) -> str:
        """Returns a line about what is trained on what."""

    @abstractmethod
    def select(self, trainer: Any, data: Data) -> int | list[int]:
        """Gives the model the weights to evaluate; returns the step that they are of, or the steps whose mean it is."""


def scores_of(scores_by_language: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """The rows of a record's `scores`, of {language: {metric: score in percent}}."""
    rows = []
    for language, scores in scores_by_language.items():
        for metric, value in scores.items():
            rows.append({"language": language, "metric": metric, "value": value})
    return rows
