"""Records of a run: events.jsonl, run.json, curves.png and the progress bar."""

import json
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas
from accelerate import Accelerator

from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.zoo_core.console import RunBar
from crosslingual_zoo.zoo_core.plots import figure_of, line_styles
from crosslingual_zoo.zoo_core.provenance import PROJECT, read_json, run_facts, write_json, write_rows
from crosslingual_zoo.zoo_core.recording import CheckpointUploads

# titles of the panels by kind of figure, as in `link_aer/en-de`
TITLES = {"link_aer": "AER of held-out links (%), lower is better", "learning_rate": "learning rate"}
TITLES |= {"grad_norm": "gradient norm", "tokens_per_second": "tokens/s"}
LOSSES = ("loss", "held_out", "unigram_entropy")  # by objective and corpus, as in `held_out/mlm/en`


class RunReport:
    """Writes events.jsonl, run.json and curves.png, and shows progress: a bar on a terminal, else a line per log step.

    The figures also go to the recipe's tracker, and checkpoints to its Hub repository. In processes other than the main
    one, all methods do nothing.

    A line of events.jsonl is a JSON object with `step` (steps done in all phases) and `phase`. Training lines have the
    figures of `Meter.line`: `loss/<objective>/<corpus>` is in nats per prediction, the mean since the line before.
    Evaluation lines have those of `evaluate`.
    """

    def __init__(
        self, recipe: Recipe, accelerator: Accelerator, argv: list[str], checkpoint: Path | None, step: int, facts: dict
    ):
        """`step` is that of the `checkpoint` from which the run is resumed, else 0; `facts` go into run.json:
        `parameters` of the model, the checkpoint that was `meta_pretrained`, and the `data_facts`."""
        self.accelerator = accelerator
        self.folder = Path(recipe.output_dir)
        self.started = time.time()
        self.is_main = accelerator.is_main_process
        self.bar = RunBar(self.is_main)
        self.say = self.bar.say
        self.uploads = CheckpointUploads(recipe.push_to_hub, self.say)
        config = asdict(recipe)
        options = {
            "tensorboard": {"purge_step": step + 1},  # a resumed run repeats the later steps
            "wandb": {"name": self.folder.name, "config": config, "dir": recipe.output_dir},
            "trackio": {"name": self.folder.name, "config": config},
        }
        # of tensorboard, the project is a folder of the run
        project = "tensorboard" if recipe.tracker == "tensorboard" else PROJECT
        accelerator.init_trackers(project, init_kwargs=options)
        self.bar.begin(sum(phase.steps for phase in recipe.phases), step)
        if self.is_main:
            _keep_events(self.folder, step)
            before = read_json(self.folder / "run.json", {})
            session = run_facts(argv) | {"resumed_from": checkpoint.name if checkpoint else None}
            self.record: dict[str, Any] = {
                "sessions": [*before.get("sessions", []), session],
                "model_type": recipe.model.type,
                "start_from": recipe.model.start_from,
                **facts,
            }
            if checkpoint:  # the run has read it at its start
                self.record["meta_pretrained"] = before.get("meta_pretrained")
            write_json(self.folder / "run.json", self.record)
        if checkpoint:
            self.say(f"resumed from {checkpoint}")

    def log(self, step: int, phase: str, figures: dict, learning_rate: float) -> None:
        """Writes the figures of a log line, and shows them."""
        self._write(step=step, phase=phase, **figures, learning_rate=learning_rate)
        loss = f"loss {figures['loss']:.3f}" if "loss" in figures else "no predictions"
        self.bar.note(f"{loss}  {figures['tokens_per_second']:,.0f} tokens/s")

    def evaluation(self, step: int, phase: str, figures: dict) -> None:
        """Writes the figures of an evaluation, and shows their means over corpora."""
        if not figures:
            self.say(f"step {step}  the held-out text has no masked token: nothing was evaluated")
            return
        self._write(step=step, phase=phase, **figures)
        # by `held_out/<loss>`, `unigram_entropy/<loss>` or the kind of another figure
        values_by_name = defaultdict(list)
        for key, value in figures.items():
            kind, *rest = key.split("/")
            name = f"{kind}/{rest[0]}" if kind in LOSSES else kind
            values_by_name[name].append(value)
        means = {name: fmean(values) for name, values in values_by_name.items()}
        texts = [f"step {step}"]
        for name, mean in means.items():
            if name.startswith("unigram_entropy/"):
                continue
            text = f"{name} {mean:.3f}"
            entropy = means.get(f"unigram_entropy/{name.removeprefix('held_out/')}")
            if entropy is not None:
                text += f" (token frequencies alone: {entropy:.3f})"
            texts.append(text)
        self.say("  ".join(texts))

    def saved(self, step: int) -> None:
        """Uploads the new checkpoint of this step, if the recipe has `push_to_hub`, and draws curves.png again."""
        self.uploads.push(self.folder / "checkpoints" / f"step-{step}" / "model", f"step {step}")
        if self.is_main:
            plot_curves(self.folder)

    def finish(self, step: int, stopped_by: str | None = None) -> None:
        """Reports the end of the run at `step`; `stopped_by`: the signal that stopped it, if any."""
        if self.is_main:
            session = self.record["sessions"][-1]
            session["seconds"] = round(time.time() - self.started, 1)
            if stopped_by:
                session |= {"stopped_by": stopped_by, "stopped_at": step}
            else:
                self.record["steps"] = step
                plot_curves(self.folder)
            write_json(self.folder / "run.json", self.record)
        self.say(f"step {step}" if stopped_by else f"model: {self.folder / 'model'}")

    def _write(self, **fields: Any) -> None:
        if self.is_main:
            with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(fields, allow_nan=False) + "\n")
            step = fields.pop("step")
            figures = {name: value for name, value in fields.items() if isinstance(value, (int, float))}
            self.accelerator.log(figures, step=step)


def _keep_events(folder: Path, step: int) -> None:
    """Removes the lines of events that a run resumed at `step` repeats: later steps, and an evaluation of this step."""
    events = []
    for event in read_events(folder) if step else []:
        is_log_line = "learning_rate" in event
        if event["step"] < step or (event["step"] == step and is_log_line):
            events.append(event)
    write_rows(folder / "events.jsonl", events)


def read_events(folder: Path) -> list[dict]:
    """Returns the lines of events.jsonl; a last line that is cut off, after a kill, is left out.

    Raises ValueError, with the line's number, for any other line that is not an event.
    """
    path = Path(folder) / "events.jsonl"
    if not path.exists():
        return []
    events = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        try:
            event = json.loads(line)
            if not isinstance(event["step"], int):
                raise TypeError
            events.append(event)
        except (ValueError, TypeError, KeyError, RecursionError):
            if line.endswith(b"\n"):
                raise ValueError(f"{path}, line {number}: not an event of a run. Remove the line.") from None
    return events


def is_evaluation(name: str) -> bool:
    """Returns whether a figure of events.jsonl is a result on held-out text, such as `link_aer/en-de`."""
    kind, slash, _ = name.partition("/")
    return bool(slash) and kind not in ("loss", "unigram_entropy")


class Curve(NamedTuple):
    """A figure of a run: its kind, such as `held_out`, the corpus or language that it is of, and its values by step."""

    kind: str
    name: str
    values: pandas.Series


def plot_curves(folder: Path) -> None:
    """Draws curves.png from events.jsonl: losses with unigram entropies, held-out figures, rates.

    A language, or its pair with English, has one color in all panels.
    """
    panels = _panels(pandas.DataFrame(read_events(folder)))
    if not panels:
        return
    styles = line_styles(curve.name for curves in panels.values() for curve in curves)
    styles[""] = {"color": "black", "marker": "."}
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (max(6.0, 3.3 * columns), 2.6 * rows + 0.5 + 0.1 * len(styles))
    note = (
        "with markers: evaluations, or training without them; thin: training; dotted: loss of token frequencies alone"
    )
    title = f"{folder.name}: losses and evaluations during training"
    with figure_of(folder / "curves.png", title, rows, columns, size, note) as grid:
        for axes, (panel_title, curves) in zip(grid.flat, panels.items(), strict=False):
            is_evaluated = any(curve.kind == "held_out" for curve in curves)
            for curve in curves:
                axes.plot(curve.values, **_style_of(curve, styles[curve.name], is_evaluated))
            axes.set_title(panel_title, fontsize=9)
            axes.set_xlabel("step")
            axes.ticklabel_format(scilimits=(-3, 5), useMathText=True)
            axes.grid(alpha=0.3)


def _panels(events: pandas.DataFrame) -> dict[str, list[Curve]]:
    """Returns the curves of each panel by its title: losses first, figures without corpora last."""

    def position(column: str) -> tuple[bool, bool]:
        kind, slash, _ = column.partition("/")
        return not slash, kind not in LOSSES

    panels: dict[str, list[Curve]] = defaultdict(list)
    for column in sorted(events.columns, key=position):
        kind, slash, name = column.partition("/")
        title = TITLES.get(kind)
        if kind in LOSSES and slash:
            objective, _, name = name.partition("/")
            title = f"{objective} loss (nats)"
        elif title is None and is_evaluation(column):
            title = kind
        if title is None:
            continue
        values = events.set_index("step")[column].dropna().astype(float)
        if len(values):
            panels[title].append(Curve(kind, name, values))
    return panels


def _style_of(curve: Curve, style: dict[str, Any], is_evaluated: bool) -> dict[str, Any]:
    """Returns the style of a curve in a panel with or without held-out losses, from that of its corpus."""
    if curve.kind == "unigram_entropy":
        return {"color": style["color"], "linestyle": ":", "linewidth": 1.2}
    if curve.kind == "loss" and is_evaluated:
        return {"color": style["color"], "linewidth": 0.8, "alpha": 0.6}
    return style | {"markevery": max(1, len(curve.values) // 20), "label": curve.name}
