"""What tests of tasks do without a run."""

from finetuning.checkpoints import Start
from finetuning.tasks.registry import task_of


def task_with(recipe, tokenizer, path=""):
    """The task of a recipe, as if a model with this tokenizer had been opened."""
    task = task_of(recipe)
    task.start = Start(str(path), None, tokenizer, {})
    return task


def encode(recipe, data, tokenizer):
    """The data, encoded as the recipe says."""
    return task_with(recipe, tokenizer).encode(data)
