"""Records of a run: events.jsonl, curves.png and the progress bar."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from io import BytesIO
from itertools import islice
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow
import pyarrow.json
from accelerate import Accelerator

from pretraining.objectives import OBJECTIVES
from pretraining.recipe import Recipe
from pretraining.run_record import RunRecord
from zoo_core.console import RunBar
from zoo_core.plots import figure_of, line_styles
from zoo_core.provenance import written_aside
from zoo_core.recording import PROJECT, CheckpointUploads

# {beginning of a column: title} of the main figures of an evaluation; other columns are their parts
MEASURED = {
    "retrieval/": "retrieval accuracy, best layer",
    **{prefix: title for objective in OBJECTIVES.values() for prefix, title in objective.panels.items()},
}
EVALUATIONS = ("held_out/", *MEASURED)
RATES = {"learning_rate": "learning rate", "grad_norm": "gradient norm", "tokens_per_second": "tokens/s"}
PANELS = MEASURED | RATES  # of curves.png besides losses
TRAINING = ("loss/", *RATES)
LEVELS = ("unigram_entropy/", *(prefix.removesuffix("/") + "_chance/" for prefix in MEASURED))
DRAWN = (*TRAINING, *EVALUATIONS, *LEVELS)
MOST_POINTS = 2000  # of a training curve: a panel has some 500 pixels
LINES_AT_ONCE = 10_000  # of events.jsonl


class RunReport:
    """Writes events.jsonl, run.json and curves.png, and shows progress: a bar on a terminal, else a line per log step.

    The figures also go to the recipe's tracker, and checkpoints to its Hub repository. In processes other than the main
    one, all methods do nothing.

    Each line of events.jsonl is a JSON object with `step` (steps done in all phases) and `phase`. Training lines have

    - `loss` and `loss/<objective>/<corpus>` in nats per prediction: the mean since the line before, left out without
      predictions; an objective of several terms has `<objective>.<term>`;
    - `learning_rate`, `grad_norm`, `predictions`, `memory_gib`, and `tokens_per_second` (without padding);
    - `shortened/<objective>`: the number of texts without room for all their pseudo tokens.

    Evaluation lines have

    - `held_out/<objective>/<corpus>` and `unigram_entropy/<objective>/<corpus>`;
    - `retrieval/<pair>` of the best layer, `retrieval_chance/<pair>`, and `retrieval_by_layer/<pair>` of all layers; a
      pair of several corpora has a figure for each, such as `retrieval/en-de/ntrex`;
    - the figures of `Objective.measure`.
    """

    def __init__(
        self,
        recipe: Recipe,
        accelerator: Accelerator,
        argv: list[str],
        checkpoint: Path | None,
        progress: dict,
        facts: dict,
    ):
        """`progress` is that of the `checkpoint` from which the run is resumed; `facts` go into run.json."""
        self.accelerator, self.folder = accelerator, Path(recipe.output_dir)
        self.is_main = is_main = accelerator.is_main_process
        self.bar = RunBar(is_main)
        self.uploads = CheckpointUploads(recipe.push_to_hub, self.folder, self.say)
        start_tracker(recipe, accelerator, progress["step"])
        self.bar.begin(sum(phase.steps for phase in recipe.phases), progress["step"])
        if is_main:
            _keep_events(self.folder, progress["step"])
            self.record = RunRecord(recipe, argv, checkpoint, facts)
        if checkpoint:
            self.say(f"resumed from {checkpoint}")

    def __enter__(self) -> "RunReport":
        self.bar.__enter__()
        return self

    def __exit__(self, *exception) -> None:
        self.bar.__exit__(*exception)

    def step(self, step: int, phase: str) -> None:
        """Shows that one more step is done."""
        self.bar.step(step, phase)

    def log(self, step: int, phase: str, figures: dict, learning_rate: float) -> None:
        """Writes the figures of a log line, and shows them."""
        self._write(step=step, phase=phase, **figures, learning_rate=learning_rate)
        loss = f"loss {figures['loss']:.3f}" if "loss" in figures else "no predictions"
        self.bar.note(f"{loss}  {figures['tokens_per_second']:,.0f} tokens/s")

    def evaluation(self, step: int, phase: str, figures: dict) -> None:
        """Writes the figures of an evaluation, and shows their means over corpora."""
        if not figures:
            return self.say(f"step {step}  the held-out text has no masked token: nothing was evaluated")
        self._write(step=step, phase=phase, **figures)
        shown = defaultdict(list)
        for key, value in figures.items():
            if key.startswith(EVALUATIONS):
                kind, rest = key.split("/", 1)
                shown[f"{kind}/{rest.partition('/')[0]}" if kind == "held_out" else kind].append(value)
        self.say(f"step {step}  " + "  ".join(f"{name} {fmean(values):.3f}" for name, values in shown.items()))

    def say(self, text: str) -> None:
        """Prints a line."""
        self.bar.say(text)

    def saved(self, step: int) -> None:
        """Uploads the new checkpoint of this step, if the recipe has `push_to_hub`, and draws curves.png again."""
        self.uploads.push(self.folder / "checkpoints" / f"step-{step}" / "model", f"step {step}")
        self._draw()

    def _draw(self) -> None:
        if self.is_main:
            plot_curves(self.folder)

    def finish(self, step: int, stopped_by: str | None = None, is_kept: bool = True, empty_steps: int = 0) -> None:
        """Reports the end of the run at `step`; `is_kept`: there is a checkpoint to resume after a signal stopped it.

        `empty_steps`: how many steps of the run, before and after resuming, predicted nothing.
        """
        if self.is_main:
            self.record.finish(step, stopped_by)
        if stopped_by:
            nothing = "" if is_kept else ", with nothing to save"
            self.say(f"step {step}{nothing}")
        else:
            self._draw()
            if empty_steps:
                self.say(f"{empty_steps:,} of {step:,} steps predicted nothing and changed no weights")
            self.say(f"model: {self.folder / 'model'}\ncurves: {self.folder / 'curves.png'}")

    def upload(self, step: int) -> None:
        """Uploads the finished model, if the recipe has `push_to_hub`, and waits until it is there."""
        self.uploads.finish(self.folder / "model", f"the model of step {step}")

    def _write(self, **fields) -> None:
        if self.is_main:
            with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(fields, allow_nan=False) + "\n")
            step = fields.pop("step")
            figures = {name: value for name, value in fields.items() if isinstance(value, (int, float))}
            self.accelerator.log(figures, step=step)


def start_tracker(recipe: Recipe, accelerator: Accelerator, step: int) -> None:
    """Starts the recipe's tracker, if it has one, at `step`; TensorBoard's files are in the run folder."""
    name, config = Path(recipe.output_dir).name, asdict(recipe)
    options = {
        "tensorboard": {"purge_step": step + 1},  # a resumed run repeats the later steps
        "wandb": {"name": name, "config": config, "dir": recipe.output_dir},
        "trackio": {"name": name, "config": config},
    }
    project = "tensorboard" if recipe.tracker == "tensorboard" else PROJECT
    accelerator.init_trackers(project, init_kwargs=options)


def _keep_events(folder: Path, step: int) -> None:
    """Removes the lines of events that a run resumed at `step` repeats: later steps, and an evaluation of this step."""
    with written_aside(folder / "events.jsonl") as file:
        for line in iterate_events(folder) if step else ():
            if line["step"] < step or line["step"] == step and "learning_rate" in line:
                file.write(json.dumps(line) + "\n")


def iterate_events(folder: Path) -> Iterator[dict]:
    """Yields the lines of events.jsonl; a last line that is cut off, after a kill, is left out.

    Raises ValueError, with the line's number, for any other line that is not an event.
    """
    path = Path(folder) / "events.jsonl"
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                event = json.loads(line)
                if not isinstance(event["step"], int):
                    raise TypeError
            except (ValueError, TypeError, KeyError, RecursionError):
                if line.endswith(b"\n"):
                    raise ValueError(f"{path}, line {number}: not an event of a run. Remove the line.") from None
                return
            yield event


def read_events(folder: Path) -> list[dict]:
    """Returns the list of `iterate_events`."""
    return list(iterate_events(folder))


def _drawn(events: Path) -> dict[str, np.ndarray]:
    """Reads the curves for curves.png from events.jsonl: (2, N) steps and values of each figure.

    Training figures of a long run are means over equal windows of lines. Only the result is kept in memory.
    """
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    with events.open("rb") as file:
        window = max(1, -(-sum(1 for _ in file) // MOST_POINTS))
        file.seek(0)
        while lines := b"".join(islice(file, window * max(1, LINES_AT_ONCE // window))):
            lines = lines[: lines.rfind(b"\n") + 1]  # a kill may have cut off the last one
            if not lines:
                break
            table = pyarrow.json.read_json(BytesIO(lines), pyarrow.json.ReadOptions(block_size=len(lines)))
            windows_L = np.arange(len(table)) // window
            for name in table.column_names:
                column_L = table.column(name)
                if not name.startswith(DRAWN) or pyarrow.types.is_null(column_L.type):
                    continue
                is_there_L = column_L.is_valid().to_numpy()
                points_2N = np.stack([table.column("step").to_numpy(), column_L.to_numpy()])[:, is_there_L]
                if window > 1 and name.startswith(TRAINING):
                    starts, counts = np.unique(windows_L[is_there_L], return_index=True, return_counts=True)[1:]
                    points_2N = np.add.reduceat(points_2N, starts, axis=1) / counts
                found[name].append(points_2N)
    return {name: np.concatenate(points, axis=1) for name, points in found.items()}


def plot_curves(folder: Path) -> None:
    """Draws curves.png from events.jsonl: losses with unigram entropies, retrieval with chance, rates.

    A language, or its pair with English, has one color in all panels.
    """
    drawn = _drawn(folder / "events.jsonl")

    def curves(prefix: str) -> dict[str, np.ndarray]:
        return {name[len(prefix) :]: points_2N for name, points_2N in drawn.items() if name.startswith(prefix)}

    objectives = dict.fromkeys(name.split("/")[1] for name in drawn if name.startswith(("loss/", "held_out/")))
    panels = {}  # by title: what was evaluated, the same in training, and levels to compare with
    for name in objectives:
        prefixes = (f"held_out/{name}/", f"loss/{name}/", f"unigram_entropy/{name}/")
        panels[f"{name} loss (nats)"] = tuple(map(curves, prefixes))
    for prefix, title in PANELS.items():
        panels[title] = curves(prefix), {}, curves(prefix.removesuffix("/") + "_chance/")
    found = {title: of for title, of in panels.items() if of[0] or of[1]}
    if not found:
        return
    # a single point is not a curve
    found = {
        t: of for t, of in found.items() if max(c.shape[1] for curves in of[:2] for c in curves.values()) > 1
    } or found
    styles = line_styles(name for of in found.values() for curves in of for name in curves)
    styles[""] = {"color": "black", "marker": "."}
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    size = (max(6.0, 3.3 * columns), 2.6 * rows + 0.5 + 0.1 * len(styles))
    has_both = any(training and evaluated for evaluated, training, _ in found.values())
    note = "lines with markers in color: evaluations" if has_both else ""
    with figure_of(folder / "curves.png", folder.name, rows, columns, size, note) as (_, grid):
        for axes, (title, (evaluated, training, levels)) in zip(grid.flat, found.items(), strict=False):
            if not evaluated:
                evaluated, training = training, {}
            for name, curve in training.items():
                axes.plot(*curve, color=styles[name]["color"], linewidth=0.8, alpha=0.6)
            for name, curve in evaluated.items():
                axes.plot(*curve, markevery=max(1, curve.shape[1] // 20), label=name, **styles[name])
            for name, level in levels.items():
                axes.axhline(level[1, -1], color=styles[name]["color"], linestyle=":", linewidth=1.2)
            axes.set_title(title, fontsize=9)
            axes.set_xlabel("step")
            axes.ticklabel_format(scilimits=(-3, 5), useMathText=True)
            axes.grid(alpha=0.3)
        if has_both:
            grid[-1, 0].plot([], [], color="gray", linewidth=0.8, label="in training")
        if any(levels for *_, levels in found.values()):
            grid[-1, 0].plot([], [], color="gray", linestyle=":", label="unigram entropy, chance")
