"""The interface of tasks: the registry, and the protocol that tasks fill in."""

import subprocess
import sys

import pytest

from finetuning.results.protocol import LanguageProtocol, Metric, Protocol, Selection
from finetuning.results.report import Report
from finetuning.tasks.base import Task
from finetuning.tasks.registry import KINDS


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_has_a_recipe_a_task_and_a_report(name):
    recipe_class, task_class = KINDS[name].recipe_class, KINDS[name].task_class
    assert recipe_class.kind == name and recipe_class.main_score and recipe_class.task_type
    assert issubclass(task_class, Task) and not task_class.__abstractmethods__
    assert issubclass(task_class.report, Report) and issubclass(task_class.report.protocol_class, Protocol)
    assert KINDS[name].is_trained == hasattr(recipe_class, "save_models")


def test_help_needs_no_torch():
    code = "import sys, finetuning.run; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_protocol_is_the_object_of_what_was_set_in_its_order():
    protocol = LanguageProtocol(training_rows=3, selection=Selection(rule="last", data=None))
    protocol.labels = ["a", "b"]
    protocol.selection.scores = [1.0]
    protocol.metric = Metric(name="f1")
    content = protocol.as_json()
    assert list(content) == ["training_rows", "selection", "labels", "metric"]
    assert content["selection"] == {"rule": "last", "data": None, "scores": [1.0]}
    read = Protocol.of({**content, "of_a_kind": 1})
    assert (read.selection.rule, read.metric.name, read.layer, read.metric.greater_is_better) == (
        "last",
        "f1",
        None,
        True,
    )
    assert read.as_json() == {**content, "of_a_kind": 1}


def test_a_name_that_is_no_fact_cannot_be_set():
    with pytest.raises(AssertionError, match="label"):
        LanguageProtocol(label=["a"])
