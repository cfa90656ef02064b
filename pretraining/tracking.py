"""Records of a run: events.jsonl, run.json, curves.png and the progress bar."""

import json
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

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
            self.record = {
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
            return self.say(f"step {step}  the held-out text has no masked token: nothing was evaluated")
        self._write(step=step, phase=phase, **figures)
        means = defaultdict(list)  # by `held_out/<loss>`, `unigram_entropy/<loss>` or the kind of another figure
        for key, value in figures.items():
            kind, *rest = key.split("/")
            means["/".join([kind, rest[0]]) if kind in LOSSES else kind].append(value)
        texts = []
        for name in filter(lambda name: not name.startswith("unigram_entropy/"), means):
            texts.append(f"{name} {fmean(means[name]):.3f}")
            entropies = means.get(f"unigram_entropy/{name.removeprefix('held_out/')}")
            if entropies:
                texts[-1] += f" (token frequencies alone: {fmean(entropies):.3f})"
        self.say(f"step {step}  " + "  ".join(texts))

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
    kept = [line for line in events if line["step"] < step or line["step"] == step and "learning_rate" in line]
    write_rows(folder / "events.jsonl", kept)


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


def is_evaluation(name: str) -> bool:
    """Returns whether a figure of events.jsonl is a result on held-out text, such as `link_aer/en-de`."""
    kind, slash, _ = name.partition("/")
    return bool(slash) and kind not in ("loss", "unigram_entropy")


def plot_curves(folder: Path) -> None:
    """Draws curves.png from events.jsonl: losses with unigram entropies, held-out figures, rates.

    A language, or its pair with English, has one color in all panels.
    """
    events = pandas.DataFrame(read_events(folder))
    panels: dict[str, list[tuple[str, str, pandas.Series]]] = defaultdict(list)  # by title: kind, name, values by step
    for column in sorted(
        events.columns, key=lambda column: ("/" not in column, column.partition("/")[0] not in LOSSES)
    ):
        kind, slash, name = column.partition("/")
        title = TITLES.get(kind, kind if is_evaluation(column) else None)
        if kind in LOSSES and slash:
            objective, _, name = name.partition("/")
            title = f"{objective} loss (nats)"
        if title and len(values := events.set_index("step")[column].dropna().astype(float)):
            panels[title].append((kind, name, values))
    if not panels:
        return
    styles = line_styles(name for panel in panels.values() for _, name, _ in panel)
    styles[""] = {"color": "black", "marker": "."}
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (max(6.0, 3.3 * columns), 2.6 * rows + 0.5 + 0.1 * len(styles))
    note = (
        "with markers: evaluations, or training without them; thin: training; dotted: loss of token frequencies alone"
    )
    title = f"{folder.name}: losses and evaluations during training"
    with figure_of(folder / "curves.png", title, rows, columns, size, note) as grid:
        for axes, (title, panel) in zip(grid.flat, panels.items(), strict=False):
            is_evaluated = any(kind == "held_out" for kind, *_ in panel)
            for kind, name, values in panel:
                style = styles[name] | {"markevery": max(1, len(values) // 20), "label": name}
                if kind == "unigram_entropy":
                    style = {"color": style["color"], "linestyle": ":", "linewidth": 1.2}
                elif kind == "loss" and is_evaluated:
                    style = {"color": style["color"], "linewidth": 0.8, "alpha": 0.6}
                axes.plot(values, **style)
            axes.set_title(title, fontsize=9)
            axes.set_xlabel("step")
            axes.ticklabel_format(scilimits=(-3, 5), useMathText=True)
            axes.grid(alpha=0.3)
