"""The definition of a suite: the tasks of a benchmark, with a recipe each, and how their scores become one table."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from zoo_core.recipes import load_recipe, nearest, option

SUITES = Path(__file__).parents[1] / "suites"


@dataclass
class SuiteTask:
    """One column of the table."""

    name: str = option(MISSING, "name of the task and its folder; also before its own overrides, as in xnli.max_length")
    category: str = option(MISSING, "category of the task; the table has its average")
    recipe: str = option(MISSING, "recipe, relative to the suite's file")
    overrides: list[str] = option([], "fields of the recipe that this suite sets, as field=value")
    scores: list[str] = option(
        [],
        "names of the scores in results.json to show and average, as in [f1, exact_match]; default: the main one",
    )
    init_from: str | None = option(None, "task of this suite whose fine-tuned model this one starts from")


@dataclass
class PublishedRow:
    """A row of a published table whose columns are tasks."""

    paper: str = option(MISSING, "file of finetuning/published, such as veco")
    table: str = option(MISSING, "table, such as Table 2")
    row: str = option(MISSING, "row: the model and its setting")


@dataclass
class Suite:
    """The tasks of a benchmark, in the order of the table's columns."""

    name: str = option(MISSING, "name of the benchmark in the results")
    tasks: list[SuiteTask] = option([], "the tasks")
    published: list[PublishedRow] = option([], "rows to show below ours")
    note: str | None = option(None, "caveat about the scores, which the results show as a warning")

    def task(self, name: str) -> SuiteTask:
        """Returns the task of this name."""
        return next(task for task in self.tasks if task.name == name)


def load_suite(name: str) -> tuple[Suite, Path]:
    """Reads a suite: the name of a file in finetuning/suites, or a path. Returns the suite and the path.

    Raises ValueError for a suite that does not exist, for two tasks with one name, and for a task that starts from an
    unknown task or, directly or not, from itself.
    """
    known = sorted(path.stem for path in SUITES.glob("*.yaml"))
    path = Path(name)
    if not path.is_file():
        path = SUITES / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"--suite {name} is neither a file nor one of {', '.join(known)}. {nearest(name, known)}")
    suite = load_recipe(Suite, str(path), [])
    names = [task.name for task in suite.tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{path} has the tasks {', '.join(names) or '(none)'}. Name at least one, and each only once.")
    in_order(suite)
    return suite, path


def in_order(suite: Suite) -> list[SuiteTask]:
    """Returns the tasks so that each comes after the one it starts from. Raises ValueError if that is impossible."""
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
