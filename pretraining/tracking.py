"""Records of a run: events.jsonl, curves.png and the progress bar."""

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

import pandas
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
MOST_POINTS = 2000  # of a training curve: a panel has some 500 pixels


class RunReport:
    """Writes events.jsonl, run.json and curves.png, and shows progress: a bar on a terminal, else a line per log step.

    The figures also go to the recipe's tracker, and checkpoints to its Hub repository. In processes other than the main
    one, all methods do nothing.

    A line of events.jsonl is a JSON object with `step` (steps done in all phases) and `phase`. Training lines have the
    figures of `StepLog.line`: `loss/<objective>/<corpus>` is in nats per prediction, the mean since the line before.
    Evaluation lines have those of `evaluate`.
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
        self.is_main = accelerator.is_main_process
        self.bar = RunBar(self.is_main)
        self.say = self.bar.say
        self.uploads = CheckpointUploads(recipe.push_to_hub, self.say)
        name, config = self.folder.name, asdict(recipe)
        options = {
            "tensorboard": {"purge_step": progress["step"] + 1},  # a resumed run repeats the later steps
            "wandb": {"name": name, "config": config, "dir": recipe.output_dir},
            "trackio": {"name": name, "config": config},
        }
        project = "tensorboard" if recipe.tracker == "tensorboard" else PROJECT  # the former is a folder of the run
        accelerator.init_trackers(project, init_kwargs=options)
        self.bar.begin(sum(phase.steps for phase in recipe.phases), progress["step"])
        if self.is_main:
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
                shown["/".join(key.split("/")[: 1 + key.startswith("held_out/")])].append(value)
        self.say(f"step {step}  " + "  ".join(f"{name} {fmean(values):.3f}" for name, values in shown.items()))

    def saved(self, step: int) -> None:
        """Uploads the new checkpoint of this step, if the recipe has `push_to_hub`, and draws curves.png again."""
        self.uploads.push(self.folder / "checkpoints" / f"step-{step}" / "model", f"step {step}")
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
            return self.say(f"step {step}{nothing}")
        if self.is_main:
            plot_curves(self.folder)
        if empty_steps:
            self.say(f"{empty_steps:,} of {step:,} steps predicted nothing and changed no weights")
        self.say(f"model: {self.folder / 'model'}\ncurves: {self.folder / 'curves.png'}")

    def upload(self, step: int) -> None:
        """Uploads the finished model, if the recipe has `push_to_hub`, and waits until it is there."""
        self.uploads.push(self.folder / "model", f"the model of step {step}")

    def _write(self, **fields) -> None:
        if self.is_main:
            with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(fields, allow_nan=False) + "\n")
            step = fields.pop("step")
            figures = {name: value for name, value in fields.items() if isinstance(value, (int, float))}
            self.accelerator.log(figures, step=step)


def _keep_events(folder: Path, step: int) -> None:
    """Removes the lines of events that a run resumed at `step` repeats: later steps, and an evaluation of this step."""
    events = read_events(folder) if step else []
    with written_aside(folder / "events.jsonl") as file:
        for line in events:
            if line["step"] < step or line["step"] == step and "learning_rate" in line:
                file.write(json.dumps(line) + "\n")


def read_events(folder: Path) -> list[dict]:
    """Returns the lines of events.jsonl; a last line that is cut off, after a kill, is left out.

    Raises ValueError, with the line's number, for any other line that is not an event.
    """
    path, events = Path(folder) / "events.jsonl", []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True) if path.exists() else (), start=1):
        try:
            events.append(json.loads(line))
            if not isinstance(events[-1]["step"], int):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            if line.endswith(b"\n"):
                raise ValueError(f"{path}, line {number}: not an event of a run. Remove the line.") from None
    return events


def plot_curves(folder: Path) -> None:
    """Draws curves.png from events.jsonl: losses with unigram entropies, retrieval with chance, rates.

    A language, or its pair with English, has one color in all panels. In a long run, a point of a training curve is the
    mean of several lines.
    """
    frame = pandas.DataFrame(read_events(folder))
    if frame.empty:
        return
    window = -(-len(frame) // MOST_POINTS)

    def curves(prefix: str, is_training: bool = False) -> dict[str, pandas.DataFrame]:
        found = {}
        for name in frame.columns[frame.columns.str.startswith(prefix)]:
            points = frame[["step", name]].dropna().astype(float)
            if is_training and window > 1:
                points = points.groupby(points.index // window).mean()
            if len(points):
                found[name[len(prefix) :]] = points
        return found

    objectives = dict.fromkeys(name.split("/")[1] for name in frame if name.startswith(("loss/", "held_out/")))
    panels = {}  # by title: what was evaluated, the same in training, and levels to compare with
    for name in objectives:
        trained = curves(f"loss/{name}/", is_training=True)
        panels[f"{name} loss (nats)"] = curves(f"held_out/{name}/"), trained, curves(f"unigram_entropy/{name}/")
    for prefix, title in MEASURED.items():
        panels[title] = curves(prefix), {}, curves(prefix.removesuffix("/") + "_chance/")
    panels |= {title: ({}, curves(name, is_training=True), {}) for name, title in RATES.items()}
    longest = {title: max(map(len, [*of[0].values(), *of[1].values()]), default=0) for title, of in panels.items()}
    least = min(2, max(longest.values(), default=0))  # a single point is not a curve, if there are others
    panels = {title: of for title, of in panels.items() if longest[title] >= max(1, least)}
    if not panels:
        return
    styles = line_styles(name for of in panels.values() for curves in of for name in curves)
    styles[""] = {"color": "black", "marker": "."}
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (max(6.0, 3.3 * columns), 2.6 * rows + 0.5 + 0.1 * len(styles))
    has_both = any(evaluated and trained for evaluated, trained, _ in panels.values())
    note = "lines with markers in color: evaluations" if has_both else ""
    with figure_of(folder / "curves.png", folder.name, rows, columns, size, note) as (_, grid):
        for axes, (title, (evaluated, trained, levels)) in zip(grid.flat, panels.items(), strict=False):
            for name, curve in (trained if evaluated else {}).items():
                axes.plot(*curve.to_numpy().T, color=styles[name]["color"], linewidth=0.8, alpha=0.6)
            for name, curve in (evaluated or trained).items():
                axes.plot(*curve.to_numpy().T, markevery=max(1, len(curve) // 20), label=name, **styles[name])
            for name, level in levels.items():
                axes.axhline(level.iloc[-1, 1], color=styles[name]["color"], linestyle=":", linewidth=1.2)
            axes.set_title(title, fontsize=9)
            axes.set_xlabel("step")
            axes.ticklabel_format(scilimits=(-3, 5), useMathText=True)
            axes.grid(alpha=0.3)
        if has_both:
            grid[-1, 0].plot([], [], color="gray", linewidth=0.8, label="in training")
        if any(levels for *_, levels in panels.values()):
            grid[-1, 0].plot([], [], color="gray", linestyle=":", label="unigram entropy, chance")
