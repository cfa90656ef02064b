"""What a suite is: the tasks of a benchmark, each by its recipe, and how their scores become one table."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from zoo_core.recipes import load_recipe, nearest, option

SUITES = Path(__file__).parents[1] / "suites"


@dataclass
class SuiteTask:
    """One column of the table."""

    name: str = option(MISSING, "name of the task, of its folder, and before its own overrides, as in xnli.max_length")
    category: str = option(MISSING, "category that its score is averaged with")
    recipe: str = option(MISSING, "recipe, relative to the suite's file")
    overrides: list[str] = option([], "fields of the recipe that this suite sets, as field=value")
    scores: list[str] = option(
        [],
        "names of the scores in results.json that are shown and averaged, as [f1, exact_match]; default: the main one",
    )
    init_from: str | None = option(None, "task of this suite whose fine-tuned model this one starts from")


@dataclass
class PublishedRow:
    """A row of a published table whose columns are tasks."""

    paper: str = option(MISSING, "file of hub_cards/published, such as veco")
    table: str = option(MISSING, "table, such as Table 2")
    row: str = option(MISSING, "row: the model and its setting")


@dataclass
class Suite:
    """The tasks of a benchmark, in the order of the table's columns."""

    name: str = option(MISSING, "name of the benchmark in the results")
    tasks: list[SuiteTask] = option([], "the tasks")
    published: list[PublishedRow] = option([], "rows that are shown below ours")
    note: str | None = option(None, "what a reader of the table must know; it becomes a warning of the results")

    def task(self, name: str) -> SuiteTask:
        """The task of this name."""
        return next(task for task in self.tasks if task.name == name)


def load_suite(name: str) -> tuple[Suite, Path]:
    """A suite that is shipped (finetuning/suites/<name>.yaml) or a file, and the file.

    Raises ValueError for a suite that is not there, for two tasks of one name, and for a task that starts from one that
    the suite does not have, or from itself in the end.
    """
    known = sorted(path.stem for path in SUITES.glob("*.yaml"))
    path = Path(name)
    if not path.is_file():
        path = SUITES / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"--suite {name} is no file, and no suite of {', '.join(known)}. {nearest(name, known)}")
    suite = load_recipe(Suite, str(path), [])
    names = [task.name for task in suite.tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{path} has the tasks {', '.join(names) or '(none)'}. Name one or more, and each once.")
    in_order(suite)
    return suite, path


def in_order(suite: Suite) -> list[SuiteTask]:
    """The tasks in an order in which each comes after the one it starts from. Raises ValueError where there is none."""
    names = [task.name for task in suite.tasks]
    waiting, found = list(suite.tasks), []
    while waiting:
        ready = [task for task in waiting if task.init_from in (None, *(done.name for done in found))]
        if not ready:
            task = waiting[0]
            raise ValueError(
                f"Task {task.name} of suite {suite.name} starts from {task.init_from!r}, which is no task that can be "
                f"run before it. {nearest(str(task.init_from), names)}"
            )
        found += ready[:1]
        waiting.remove(ready[0])
    return found
