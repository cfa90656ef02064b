"""The output folder of a run. It holds one run only, and a run is resumed seed by seed."""

import re
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import PartialState

from crosslingual_zoo.finetuning.recipe import TaskRecipe
from crosslingual_zoo.zoo_core.provenance import read_json, run_facts, write_json, write_rows
from crosslingual_zoo.zoo_core.recipes import load_recipe, recipe_differences, save_recipe
from crosslingual_zoo.zoo_core.run_folders import FAILURE, not_own

# Fields that change no score; seeds may be added to a finished run. What a path names is compared by its fingerprint.
MAY_CHANGE = {"seeds", "output_dir", "num_workers", "published", "sweep", "tracker", "licenses", "save_models"}
MAY_CHANGE |= {"model", "tokenizer", "init_from", "hub_root", "skip_missing", "trust_remote_code"}
# what a start that is killed leaves half written, the sweep that chose the run's values, and the traceback of a failed
# start (`runs.py`)
BEFORE_START = rf"\.(run\.json|recipe\.yaml)\.\d+\.tmp|sweep|{re.escape(FAILURE)}"

# fields of tables in lines of `recipe_differences`: where a table is, and what a page says of it
UNCOMPARED = r"\S*\.(path|differs): "

Predictions = dict[str, Iterable[dict[str, Any]]]  # by language or pair: the rows of its file


class RunFolder:
    """recipe.yaml, run.json and seed-N/ of a run of any kind of recipe."""

    def __init__(self, recipe: TaskRecipe, model: dict[str, Any], resume: bool):
        """Raises ValueError for a folder that is not empty without `resume`, or holds another run."""
        self.path = Path(recipe.output_dir)
        self.recipe = recipe
        self.model = model
        self.facts: dict[str, Any] | None = None
        was_killed = False
        if not (self.path / "recipe.yaml").exists():
            advice = "Remove the file: the run had not begun."
            was_killed = "sessions" in read_json(self.path / "run.json", {}, advice=advice)
        allowed = BEFORE_START
        if was_killed:
            allowed += r"|run\.json"
        held = not_own(self.path, allowed)
        if not held:
            if resume and PartialState().is_main_process:
                print(f"nothing to resume in {self.path}: a new run starts.", file=sys.stderr)
            return
        if not resume:
            raise not_empty(self.path, held)
        if not (self.path / "recipe.yaml").is_file() or not (self.path / "run.json").is_file():
            raise ValueError(f"{self.path} holds no run (no recipe.yaml and run.json). Name another folder.")
        before = load_recipe(type(recipe), self.path / "recipe.yaml", [])
        self._check_same("recipe", lasting_fields(before), lasting_fields(recipe))
        self.facts = read_json(self.path / "run.json", needs=("sessions", "model", "data"))
        self._check_same("model", fingerprints(self.facts["model"]), fingerprints(model))

    def _check_same(self, what: str, before: dict[str, Any], now: dict[str, Any]) -> None:
        changed = [line for line in recipe_differences(before, now) if not re.match(UNCOMPARED, line)]
        if changed:
            raise ValueError(
                f"{self.path} was started with another {what}: {'; '.join(changed)}. Use that one, or name another "
                "output_dir."
            )

    def begin(self, facts: dict[str, Any], argv: list[str]) -> None:
        """Writes recipe.yaml and run.json, with facts that a resumed run needs. Raises ValueError for changed data."""
        names = ("training_data", "evaluation_data")
        data = {name: facts[name] for name in names} | {"selection_data": facts["selection"].get("data")}
        if self.facts is not None:
            self._check_same("state of the data", self.facts["data"], data)
        state = PartialState()
        state.wait_for_everyone()  # every process has looked at the folder before the first file appears
        if state.is_main_process:
            self.path.mkdir(parents=True, exist_ok=True)
            earlier = self.facts["sessions"] if self.facts else []
            run = {"sessions": [*earlier, run_facts(argv)], "model": self.model, "data": data}
            write_json(self.path / "run.json", run | {"sweep": facts["selection"].get("sweep")})
            save_recipe(self.recipe, self.path / "recipe.yaml")
        state.wait_for_everyone()

    def finished(self, seed: int) -> dict[str, Any] | None:
        """Returns the scores of a finished seed, or None; a line says where a model that is asked for is missing."""
        folder = self.path / f"seed-{seed}"
        record = read_json(folder / "scores.json", None, advice="Restore the file, or remove it to run the seed again.")
        if record and seed in self.without_model() and PartialState().is_main_process:
            print(
                f"{folder} is finished, and its model was not kept. Remove it to train the seed again.", file=sys.stderr
            )
        return record

    def without_model(self) -> list[int]:
        """Returns the seeds whose model is asked for and is not there."""
        if not getattr(self.recipe, "save_models", False):
            return []
        return [seed for seed in self.recipe.seeds if not (self.path / f"seed-{seed}" / "model").is_dir()]


def lasting_fields(recipe: TaskRecipe) -> dict[str, Any]:
    """The fields of a recipe that a resumed run must share."""
    return {name: value for name, value in asdict(recipe).items() if name not in MAY_CHANGE}


def fingerprints(model: dict[str, Any]) -> dict[str, Any]:
    """What decides the numbers of a run in the identity of its model, wherever the model is."""
    names = ("fingerprint", "tokenizer_fingerprint")
    prints = {name: model.get(name) for name in names}
    return prints | {"init_from": model.get("init_from", {}).get("fingerprint")}


def not_empty(path: Path, held: list[str]) -> ValueError:
    """Returns the error for a new run whose folder is not empty."""
    return ValueError(f"output_dir {path} holds {held[0]}. Add --resume to resume the run in it, or name another.")


def finish_seed(folder: Path, record: dict[str, Any], predictions: Predictions) -> None:
    """Writes `predictions/<language>.jsonl` and then scores.json, with which the seed counts as finished."""
    for language, rows in predictions.items():
        # a table may name languages freely: `pt/BR` must not become a folder
        name = re.sub(r'^\.|[%/\\:*?"<>|\x00-\x1f]', lambda match: f"%{ord(match[0]):02X}", language)
        write_rows(folder / "predictions" / f"{name}.jsonl", ({"language": language, **row} for row in rows))
    record["processes"] = PartialState().num_processes
    write_json(folder / "scores.json", record)
