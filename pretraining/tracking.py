"""What a run shows of itself: events.jsonl, curves.png and a progress line.

`python -m pretraining.tracking RUN_FOLDER` draws curves.png anew from events.jsonl.
"""

import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pretraining.recipe import OBJECTIVES


class Events:
    """events.jsonl: one JSON object a line, each with `step` (updates done in all phases) and `phase`.

    Training lines carry `loss` and `loss/<objective>/<corpus>` in nats a prediction (mean since the line before; an
    objective of several terms has `<objective>.<term>`),
    `learning_rate`, `grad_norm`, `tokens_per_second` (real tokens, padding left out), `predictions` and `memory_gib`;
    evaluation lines `held_out/<objective>/<corpus>`, `unigram_entropy/<objective>/<corpus>`, `retrieval/<pair>`,
    `alignment_joint/<pair>`, `alignment_separate/<pair>`, `alignment_cross/<pair>` (best layers; of all layers in
    `<figure>_by_layer/<pair>`), `self_labels/<pair>`, `self_labels_per_token/<pair>`,
    `back_translation/<source>-><target>`. A pair of several corpora has a figure for each: `retrieval/en-de/ntrex`,
    `back_translation/en->de/ntrex`. `shortened/btmlm` counts the texts that had room
    for fewer pseudo tokens than they should have.
    """

    def __init__(self, folder: Path, keep_until: int = 0, evaluation_due: bool = False):
        """Continue the file; lines after step `keep_until` belong to steps that a resumed run does again, and so does
        the evaluation of that step where it is due."""
        self.path = folder / "events.jsonl"
        kept = [line for line in read_events(folder) if line["step"] <= keep_until] if keep_until else []
        if evaluation_due:
            kept = [line for line in kept if line["step"] < keep_until or "loss" in line]
        aside = folder / ".events.jsonl.tmp"
        aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        aside.replace(self.path)

    def write(self, **fields) -> None:
        """Append a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields, allow_nan=False) + "\n")


def read_events(folder: Path) -> list[dict]:
    """All whole lines of events.jsonl; a last line cut off by a kill is left out."""
    path = Path(folder) / "events.jsonl"
    events = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return events


class LossMeter:
    """Sums of token losses by loss (an objective or one of its terms) and corpus, on the device until a line is due."""

    def __init__(self, losses: list[str], corpora: list[str], device: torch.device):
        self.keys = [(loss, corpus) for loss in losses for corpus in corpora]
        self.slots = {key: slot for slot, key in enumerate(self.keys)}
        # row 0: sum of losses in nats, row 1: number of predictions
        self.sums_2K = torch.zeros(2, len(self.keys), dtype=torch.float64, device=device)

    def add(self, batch: dict, output) -> None:
        """Add the token losses of a `PreTrainingOutput`; `batch[objective]["languages"]` names each row's corpus."""
        for loss, losses_N in output.token_losses.items():
            objective = loss.partition(".")[0]
            languages = batch[OBJECTIVES[objective].reads or objective]["languages"]
            slots_B = torch.tensor([self.slots[loss, name] for name in languages], device=losses_N.device)
            slots_N = slots_B[output.batch_rows[loss]]
            self.sums_2K[0].index_add_(0, slots_N, losses_N.double())
            self.sums_2K[1].index_add_(0, slots_N, torch.ones_like(losses_N, dtype=torch.float64))

    def means(self, accelerator) -> tuple[dict[str, float], float]:
        """Means by `<objective>/<corpus>` and the mean of all, over all processes; then start anew."""
        sums, counts = accelerator.reduce(self.sums_2K, reduction="sum").tolist()
        self.sums_2K.zero_()
        means = {
            f"{loss}/{corpus}": total / count
            for (loss, corpus), total, count in zip(self.keys, sums, counts, strict=True)
            if count
        }
        return means, sum(sums) / max(1.0, sum(counts))


class ProgressLine:
    """A bar with loss, tokens/s and the time left on a terminal; a line per log step anywhere else."""

    def __init__(self, total_steps: int, done: int, enabled: bool):
        self.console = Console(stderr=True)
        self.enabled = enabled
        self.total, self.started, self.first = total_steps, time.monotonic(), done
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not (enabled and self.console.is_terminal),
        )
        self.task = self.bar.add_task("starting", total=total_steps, completed=done, note="")

    def __enter__(self):
        self.bar.start()
        return self

    def __exit__(self, *exception):
        self.bar.stop()

    def step(self, step: int, phase: str) -> None:
        """One more step is done."""
        self.bar.update(self.task, completed=step, description=phase)

    def log(self, step: int, phase: str, loss: float, tokens_per_second: float) -> None:
        """Show the figures of a log line."""
        note = f"loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s"
        self.bar.update(self.task, note=note)
        if self.enabled and not self.console.is_terminal:
            rate = (time.monotonic() - self.started) / max(1, step - self.first)
            left = time.strftime("%H:%M:%S", time.gmtime(rate * (self.total - step)))
            print(f"{phase}  step {step}/{self.total}  {note}  left {left}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.enabled:
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)


def plot_curves(folder: Path) -> Path | None:
    """Draw curves.png from events.jsonl: held-out losses over unigram entropies, training losses, retrieval, rates."""
    events = read_events(folder)
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in events:
        for key, value in event.items():
            if isinstance(value, (int, float)) and key != "step":
                series[key].append((event["step"], value))
    if not series:
        return None

    def named(prefix):
        return {key.removeprefix(prefix): points for key, points in series.items() if key.startswith(prefix)}

    held_out = named("held_out/")
    panels = [
        (f"held-out {objective} loss (nats)", _of(held_out, objective), _of(named("unigram_entropy/"), objective))
        for objective in sorted({key.split("/")[0] for key in held_out})
    ]
    panels += [
        ("training loss (nats)", named("loss/"), {}),
        ("retrieval accuracy of held-out sentences, best layer", named("retrieval/"), {}),
        ("word alignment accuracy, best layer, sides in one input", named("alignment_joint/"), {}),
        ("word alignment accuracy, best layer, sides apart", named("alignment_separate/"), {}),
        ("word alignment accuracy, best layer, cross-attention", named("alignment_cross/"), {}),
        ("share of the self-labeled links that are right", named("self_labels/"), {}),
        ("share of pseudo tokens in the translation, less in another", named("back_translation/"), {}),
        ("learning rate", {"": series.get("learning_rate", [])}, {}),
        ("gradient norm", {"": series.get("grad_norm", [])}, {}),
        ("tokens/s", {"": series.get("tokens_per_second", [])}, {}),
    ]
    panels = [panel for panel in panels if any(panel[1].values())]

    import matplotlib
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.6 * rows), layout="constrained")
    colors = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    for place, (title, curves, floors) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1)
        for number, (name, points) in enumerate(sorted(curves.items())):
            color = colors[number % len(colors)]
            axes.plot(*zip(*points, strict=True), label=name, color=color, marker="." if len(points) < 40 else None)
            if name in floors:
                axes.axhline(floors[name][-1][1], color=color, linestyle="--", linewidth=0.8)
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
        if floors:
            axes.plot([], [], color="gray", linestyle="--", linewidth=0.8, label="unigram entropy")
        if len(curves) > 1 or floors:
            axes.legend(fontsize=7, ncols=1 + len(curves) // 16, loc="upper left", bbox_to_anchor=(1, 1))
    path = Path(folder) / "curves.png"
    aside = path.with_name(".curves.png.tmp")
    figure.savefig(aside, dpi=110, format="png")
    aside.replace(path)
    return path


def _of(curves: dict, objective: str) -> dict:
    return {key.split("/", 1)[1]: value for key, value in curves.items() if key.split("/")[0] == objective}


def main() -> None:
    """Command line: draw the curves of a run folder."""
    if len(sys.argv) != 2 or not (path := plot_curves(Path(sys.argv[1]))):
        sys.exit("usage: python -m pretraining.tracking RUN_FOLDER   (a folder with a non-empty events.jsonl)")
    print(path)


if __name__ == "__main__":
    main()
