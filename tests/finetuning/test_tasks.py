"""The registry of tasks."""

import subprocess
import sys

import pytest

from finetuning.tasks.base import Task
from finetuning.tasks.registry import KINDS


@pytest.mark.parametrize("name", KINDS)
def test_kinds_have_a_recipe_and_a_task(name):
    recipe_class, task_class = KINDS[name].recipe_class, KINDS[name].task_class
    assert recipe_class.kind == name and recipe_class.main_score and recipe_class.task_type
    assert issubclass(task_class, Task) and not task_class.__abstractmethods__
    assert KINDS[name].is_trained == hasattr(recipe_class, "save_models")


def test_help_needs_no_torch():
    code = "import sys, finetuning.run; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
