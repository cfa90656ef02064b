"""The output folder of a run. It holds one run only, and a run is resumed seed by seed."""

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from accelerate import PartialState

from finetuning.recipe import TaskRecipe
from finetuning.results import Protocol
from zoo_core.provenance import read_json, run_facts, write_json
from zoo_core.recipes import load_recipe, recipe_differences, save_recipe
from zoo_core.run_folders import not_own

# seeds may be added to a finished run; the others change no score
MAY_CHANGE = ("seeds", "output_dir", "num_workers", "published", "sweep")
MAY_CHANGE += ("tracker", "push_to_hub", "licenses")
# what a start that is killed leaves half written, and a sweep that chose the run's values (`runs.py`)
HALF_WRITTEN = r"\.(run\.json|sweep\.json|recipe\.yaml)\.\d+\.tmp"
SWEEP = r"sweep(\.json)?"


class RunFolder:
    """recipe.yaml, run.json and seed-N/ of a run of any kind of recipe."""

    def __init__(self, recipe: TaskRecipe, model: dict[str, Any], resume: bool):
        self.path = Path(recipe.output_dir)
        self.recipe, self.model = recipe, model
        self.facts: dict[str, Any] | None = None
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"output_dir {self.path} is a file. Name a folder.")
        was_killed = not (self.path / "recipe.yaml").exists() and "sessions" in read_json(self.path / "run.json", {})
        held = not_own(self.path, rf"{HALF_WRITTEN}|{SWEEP}" + r"|run\.json" * was_killed)
        if not held:
            if resume and PartialState().is_main_process:
                print(
                    f"nothing to resume in {self.path}: a new run starts. To resume another run, set output_dir to its "
                    "folder.",
                    file=sys.stderr,
                )
            return
        if not resume:
            raise not_empty(self.path, held)
        if not (self.path / "recipe.yaml").is_file() or not (self.path / "run.json").is_file():
            raise ValueError(
                f"{self.path} holds no run of finetuning/run.py (no recipe.yaml and run.json). Name another folder."
            )
        check_same_recipe(self.path, recipe)
        self.facts = read_json(self.path / "run.json", needs=("sessions", "model", "data"))
        check_same_weights(self.path, recipe.model, self.facts["model"]["fingerprint"], model["fingerprint"])
        check_same_start(self.path, self.facts["model"], model)

    def begin(self, protocol: Protocol, argv: list[str]) -> None:
        """Writes recipe.yaml and run.json."""
        data = data_of(protocol)
        if self.facts is not None:
            check_same_data(self.path, self.facts["data"], data)
        state = PartialState()
        state.wait_for_everyone()  # every process has looked at the folder before the first file appears
        if state.is_main_process:
            self.path.mkdir(parents=True, exist_ok=True)
            earlier = self.facts["sessions"] if self.facts else []
            facts = {"sessions": [*earlier, run_facts(argv)], "model": self.model, "data": data}
            write_json(self.path / "run.json", facts)
            save_recipe(self.recipe, self.path / "recipe.yaml")
        state.wait_for_everyone()

    def check_is_there(self) -> None:
        """Raises ValueError if the folder was removed or emptied since the run began."""
        if not (self.path / "run.json").is_file():
            raise ValueError(
                f"output_dir {self.path} was removed or emptied during the run: its recipe.yaml and run.json are gone. "
                "Remove what is left of it, and start the run again."
            )

    def of_seed(self, seed: int) -> Path:
        """Returns the folder of one seed."""
        folder = self.path / f"seed-{seed}"
        folder.mkdir(exist_ok=True)
        return folder

    def finished(self, seed: int) -> dict[str, Any] | None:
        """Returns the scores of a finished seed, or None."""
        advice = "Restore the file, or remove it to run the seed again."
        return read_json(self.path / f"seed-{seed}" / "scores.json", None, advice=advice)


def not_empty(path: Path, held: list[str]) -> ValueError:
    """Returns the error for a new run whose folder is not empty."""
    return ValueError(
        f"output_dir {path} is not empty: it holds {held[0]}. Add --resume to resume the run in it, or name another "
        "`output_dir`."
    )


def check_same_recipe(path: Path, recipe: TaskRecipe) -> None:
    """Raises ValueError if the run in `path` was started with another recipe, except for fields that may change."""
    before = load_recipe(type(recipe), path / "recipe.yaml", [])
    if changes := changes_that_count(dataclasses.asdict(before), dataclasses.asdict(recipe)):
        raise ValueError(
            f"{path} was started with another recipe: {'; '.join(changes)}. Use that recipe, or name another folder."
        )


def changes_that_count(before: dict[str, Any], now: dict[str, Any], swept: Iterable[str] = ()) -> list[str]:
    """Returns the differences of two recipes, except for fields that may change and those that are `swept`."""
    free = (*MAY_CHANGE, *swept)
    return [
        line
        for line in recipe_differences(before, now)
        if not any(f"{line.partition(':')[0]}.".startswith(f"{name}.") for name in free)
        and not line.partition(":")[0].endswith(".differs")  # marks published figures
    ]


def data_of(protocol: Protocol) -> dict[str, Any]:
    """Returns what run.json keeps of the data of training, selection and evaluation."""
    return {
        "training_data": protocol.training_data,
        "selection_data": protocol.selection.data,
        "evaluation_data": protocol.evaluation_data,
    }


def check_same_data(path: Path, before: dict[str, Any], now: dict[str, Any], advice: str = "Restore the data") -> None:
    """Raises ValueError if the data differ from those that the run in `path` was started with."""
    if changed := recipe_differences(before, now):
        raise ValueError(
            f"The data have changed since {path} was started: {'; '.join(changed)}. {advice}, or name another folder."
        )


def check_same_weights(path: Path, model: str, before: str | None, now: str | None) -> None:
    """Raises ValueError if the run in `path` was started with a model of another fingerprint."""
    if before != now:
        raise ValueError(
            f"The weights of {model} have changed since {path} was started: {str(before)[:15]} -> {str(now)[:15]}. "
            "Restore the model, or name another folder."
        )


def check_same_start(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ValueError if `init_from` gives another fine-tuned model than when the run was started.

    Without a `fingerprint`, only the seeds are compared.
    """
    then, today = ((model.get("init_from") or {}) for model in (before, now))
    if not then or not today:
        return
    if then["seed"] != today["seed"]:
        raise ValueError(
            f"{path} started from seed {then['seed']} of {today['run']}, whose best seed is now {today['seed']}, "
            "because seeds were added. Start this run again in another folder, or remove its folder."
        )
    if "fingerprint" in today:
        check_same_weights(path, today["run"], then["fingerprint"], today["fingerprint"])
