"""What VECO-large's published recipe needs on many GPUs: `python -m bench.large_recipe [--mfu 0.4] [--memory 80]`.

Arithmetic, no measurement: FLOPs and bytes are counted from the recipe (pretraining/recipes/veco/large.yaml), whose
examples are taken to fill max_length; at base size likewise. What is assumed and what was measured stands in the notes.
`--markdown pretraining/SCALE.md` writes the page anew, which holds the tables of the command without options.

Legend: `L` layers, `d` hidden size, `V` vocabulary, `n` positions of a side.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench._common import number, show
from bench._flops import BASE, LARGE, Size
from bench._lengths import read_lengths
from modeling.masked_lm import LOGITS_AT_ONCE
from pretraining.recipe import Objective, Phase, Recipe, learned_terms
from zoo_core.recipes import load_recipe, user_errors

RECIPE = Path("pretraining/recipes/veco/large.yaml")
PAGE = Path("pretraining/SCALE.md")
SIZES = {"large": LARGE, "base": BASE}
PEAKS = {"A100": 312e12, "H100": 989e12}  # dense bf16 FLOP/s of the data sheets; an H200's is the H100's
FASTEST = "H100"
# What autograd keeps for the backward of a layer under bf16, in bytes a position and unit of d, without attention
# weights: counted by tests/bench/test_counts.py.
KEPT, KEPT_BY_CROSS = 44, 20
GIB = 2**30


class Work(NamedTuple):
    """Of a step, or of a part of one: FLOPs, positions of text that are read, and what the layers keep, in bytes."""

    flops: float
    tokens: float
    kept: float

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


class Section(NamedTuple):
    """A table and what has to be said of it."""

    title: str
    columns: dict[str, str]
    rows: list[dict]
    notes: list[str]


def parameters(size: Size, cross_alone: bool = False) -> int:
    """Of VECO with its LM head, or of its cross-attention alone."""
    d = size.hidden
    cross = 4 * d * d + 6 * d
    if cross_alone:
        return size.layers * cross
    embeddings = (size.vocab + 514 + 1 + 2) * d  # words, positions, the token type, LayerNorm
    return embeddings + size.layers * (12 * d * d + 13 * d + cross) + d * d + 3 * d + size.vocab


def work_of(name: str, objective: Objective, size: Size, frozen: bool) -> Work:
    """Of all examples of an objective in a step. `frozen`: cross-attention alone is trained, by `cross`."""
    n, rows = objective.max_length, objective.batch_size
    predicted = objective.mask_probability
    layer_positions = size.layers * size.hidden
    if name == "tlm":
        return Work(rows * size.mlm([n], predicted * n), 0, rows * n * layer_positions * KEPT)  # the pairs of ca_mlm
    sides = 2 * n
    of_cross = rows * sides * layer_positions * (KEPT + KEPT_BY_CROSS)
    if frozen:
        return Work(rows * cross_alone(size, n, predicted), rows * sides, of_cross)
    flops = rows * size.ca_mlm([n], [n], predicted * sides)
    return Work(flops, rows * sides, of_cross + rows * sides * layer_positions * KEPT)


def cross_alone(size: Size, n: int, predicted: float) -> float:
    """A pair's FLOPs where cross-attention alone is trained, by `cross` alone.

    The H pass is a forward, a third of its cost. Of the S pass, frozen weights have no gradient of their own: 4 x 12
    for them; cross-attention has 6 x 4 less the gradients of the other side's states, 2 x 2; 68 L d^2. Attention, self
    and cross, costs what it does; the frozen head its forward and the gradient of its input.
    """
    sides = [n, n]
    s_pass = size.body(sides, weights=68) + 24 * size.layers * size.hidden * n * n
    return size.body(sides) / 3 + s_pass + 2 * predicted * sum(sides) * size.logits


def work_of_phase(phase: Phase, size: Size) -> Work:
    """Of one step of a phase. Raises ValueError for objectives and terms that VECO's recipe does not have."""
    total, frozen = Work(0, 0, 0), phase.trainable != ["*"]
    for name, objective in phase.objectives.items():
        terms = learned_terms(name, objective)
        if name not in ("tlm", "ca_mlm_segments", "ca_mlm_pairs") or (terms != ("cross",)) == frozen:
            raise ValueError(
                f"phase {phase.name!r} has the objective {name} with the terms {', '.join(terms) or 'none'} and trains "
                f"{', '.join(phase.trainable)}: its FLOPs are not counted here. Count those of VECO's two phases."
            )
        total += work_of(name, objective, size, frozen)
    return total


def main_phase(recipe: Recipe) -> Phase:
    """The phase of all parameters, the longest."""
    return max(recipe.phases, key=lambda phase: phase.steps)


def state_bytes(size: Size, processes: int) -> dict[str, float]:
    """Weights, gradients and Adam's moments of a GPU, float32, with what their journey takes, and bf16 copies.

    DDP: 16 bytes a parameter, and 4 for the gradients on their way. FSDP2: a part of the 16; whole are the weights of
    head and embeddings, their gradient and what is sent of it, and two layers of the same, one at work and one on its
    way.
    """
    every, d = parameters(size), size.hidden
    root = size.vocab * d
    copies = 2 * (every - root)
    gathered = 12 * root + 2 * 12 * 16 * d * d
    return {"ddp": 20 * every + copies, "fsdp2": 16 * every / processes + gathered + copies}


def head_bytes(size: Size) -> float:
    """The head's own gradient before it joins the embeddings', its bf16 weights, and logits."""
    return (4 + 2) * size.vocab * size.hidden + (4 + 2 + 2) * LOGITS_AT_ONCE


def activation_bytes(work: Work, phase: Phase, size: Size, parts: int) -> dict[str, float]:
    """Of one of `parts` micro-batches: all that is kept, or with checkpointing each layer's input and one layer."""
    passes = sum(
        objective.batch_size * objective.max_length * (1 if name == "tlm" else 4)  # two sides, twice
        for name, objective in phase.objectives.items()
    )
    inputs = 4 * passes * size.layers * size.hidden
    return {"whole": work.kept / parts, "checkpointed": (inputs + work.kept / size.layers) / parts}


def steps_section(recipe: Recipe, name: str, size: Size) -> Section:
    """What the recipe adds up to."""
    rows = []
    for phase in recipe.phases:
        work = work_of_phase(phase, size)
        rows.append(
            {
                "phase": phase.name,
                "steps": phase.steps,
                "tokens": work.tokens / 1e6,
                "all_tokens": work.tokens * phase.steps / 1e9,
                "flops": work.flops / 1e15,
                "all_flops": work.flops * phase.steps / 1e21,
            }
        )
    columns = {
        "phase": "phase",
        "steps": "updates",
        "tokens": "tokens of text a step, millions",
        "all_tokens": "in all, 1e9",
        "flops": "FLOPs a step, 1e15",
        "all_flops": "in all, 1e21",
    }
    notes = [f"{parameters(size):,} parameters."]
    if name == "large":
        segments, pairs, joint = (
            main_phase(recipe).objectives[key] for key in ("ca_mlm_segments", "ca_mlm_pairs", "tlm")
        )
        mean = read_lengths()[0].mean()
        notes += [
            f"A step holds {segments.batch_size:,} pairs of segments, {segments.max_length} tokens a side, and "
            f"{pairs.batch_size:,} translation pairs, {pairs.max_length} a side; TLM reads the latter once more, both "
            f"sides in one input of {joint.max_length}.",
            "FLOPs are useful ones, of forward and backward: 164 L d^2 + 36 L d n + 2 r (6 d V + 6 d^2) a token for "
            "CA-MLM, 72 L d^2 + 24 L d n + r (6 d V + 6 d^2) for TLM; r, the share that is predicted, is "
            f"{segments.mask_probability:g} in segments and {pairs.mask_probability:g} in pairs (bench/_flops.py). The "
            "first phase trains cross-attention alone; how long is this project's decision.",
            "Assumed: all examples are full. Sentences are shorter: those of news have "
            f"{mean:.0f} tokens a side (bench/_lengths.py), and what a pair costs goes with them, since padding is not "
            "computed (model.skip_padding).",
            "Another reading of the paper: its batches of segments and of pairs alternate, and a step is one of the "
            "two. Then its steps are half as many of these steps, and time is half of what stands below.",
        ]
    return Section(f"VECO, {name} size: what the recipe adds up to", columns, rows, notes)


def time_section(recipe: Recipe, name: str, size: Size, flags: argparse.Namespace) -> Section:
    """Days by number and kind of GPU."""
    flops = sum(work_of_phase(phase, size).flops * phase.steps for phase in recipe.phases)
    works, rows = {phase.name: work_of_phase(phase, size) for phase in recipe.phases}, []
    work = works[main_phase(recipe).name]
    for gpus in flags.gpus:
        row = {"gpus": gpus}
        for kind, peak in PEAKS.items():
            rate = flags.mfu * peak * gpus
            row |= {f"{kind} days": flops / rate / 86400, f"{kind} seconds": work.flops / rate}
        # an all-reduce sends every number away and gets the sum back
        journeys = {
            phase.name: 2 * 4 * parameters(size, phase.trainable != ["*"]) / (flags.network * 1e9)
            for phase in recipe.phases
        }
        paced = sum(
            phase.steps * max(works[phase.name].flops / (flags.mfu * PEAKS[FASTEST] * gpus), journeys[phase.name])
            for phase in recipe.phases
        )
        row |= {"read": work.tokens / row[f"{FASTEST} seconds"] / gpus, "paced": paced / 86400}
        row["journey"] = journeys[main_phase(recipe).name]
        rows.append(row)
    columns = {"gpus": "GPUs"}
    for kind in PEAKS:
        columns |= {f"{kind} days": f"{kind}: days", f"{kind} seconds": "s a step"}
    columns |= {"journey": "gradients' journey, s", "paced": f"{FASTEST}: days at its pace", "read": "tokens/s a GPU"}
    notes = [
        f"Assumed: MFU {flags.mfu:g} of the data sheet's dense bf16 peak ("
        + "; ".join(f"{kind}: {peak / 1e12:.0f}e12" for kind, peak in PEAKS.items())
        + " FLOP/s), at every number of GPUs; days go with 1 / MFU. `python -m bench.mfu` measures it on a GPU. "
        "Measured on an H200: 790e12 FLOP/s for products of large matrices; 0.4 of the data sheet is half of that.",
        f"Assumed: {flags.network:g} GB/s between machines for each GPU, a network card of {8 * flags.network:g} "
        "Gbit/s. The journey, twice the float32 gradients once a step, runs beside the last micro-batch's backward; "
        "where it is longer than a step's computation, it sets the pace. Inside a machine (NVLink) it is shorter.",
        "tokens/s a GPU: what has to be read and masked to keep an H100 busy. Gradient checkpointing computes the "
        "forward once more: 4/3 of the days.",
    ]
    return Section(f"VECO, {name} size: time", columns, rows, notes)


def memory_section(recipe: Recipe, name: str, size: Size, flags: argparse.Namespace) -> Section:
    """GiB of a GPU, by the fewest micro-batches that fit, without sharding and checkpointing."""
    phase = main_phase(recipe)
    work, rows = work_of_phase(phase, size), []
    segments, pairs = (phase.objectives[f"ca_mlm_{kind}"].batch_size for kind in ("segments", "pairs"))
    head, room = head_bytes(size), 0.9 * flags.memory * 1e9
    for gpus in flags.gpus:
        accumulation, state = 1, state_bytes(size, gpus)
        while True:
            kept = activation_bytes(work, phase, size, gpus * accumulation)
            fits = state["ddp"] + head + kept["whole"] <= room
            if fits or 2 * gpus * accumulation > segments:
                break
            accumulation *= 2
        row = {"gpus": gpus, "accumulation": accumulation}
        row |= {"segments": segments / gpus / accumulation, "pairs": pairs / gpus / accumulation}
        for way in state:
            row |= {f"{way} state": state[way] / GIB}
            row |= {f"{way} {how}": (state[way] + head + kept[how]) / GIB for how in kept}
        rows.append(row)
    columns = {"gpus": "GPUs", "accumulation": "micro-batches", "segments": "segments", "pairs": "pairs"}
    for way, called in (("ddp", "DDP"), ("fsdp2", "FSDP2")):
        columns |= {f"{way} state": f"{called}: state", f"{way} whole": "all", f"{way} checkpointed": "checkpointing"}
    notes = [
        "GiB of a GPU. micro-batches (gradient_accumulation_steps): as few as fit into nine tenths of "
        f"{flags.memory:g} GB with DDP and without checkpointing; segments, pairs: examples of each at once. State: "
        "float32 weights, gradients, Adam's two moments, bf16 copies of the layers' weights, and of DDP the gradients "
        f"on their way; of FSDP2 the GPU's part, and what is gathered. All: with {head / GIB:.1f} GiB of the head, and "
        "activations; checkpointing (model.gradient_checkpointing): with each layer's input and one layer.",
        f"Activations: {KEPT} d bytes a position and layer, {KEPT + KEPT_BY_CROSS} d with cross-attention, counted on "
        "a CPU under bf16; attention weights are not kept (sdpa). Fragments and the network's buffers come on top.",
    ]
    return Section(f"VECO, {name} size: memory", columns, rows, notes)


def sections(flags: argparse.Namespace) -> list[Section]:
    """All tables, large size first."""
    recipe = load_recipe(Recipe, str(RECIPE), [])
    made = []
    for name, size in SIZES.items():
        made.append(steps_section(recipe, name, size))
        made.append(time_section(recipe, name, size, flags))
        made.append(memory_section(recipe, name, size, flags))
    # what holds for both sizes is said once; how many parameters there are, of each
    return [section._replace(notes=section.notes if number < 4 else []) for number, section in enumerate(made)]


def markdown(made: Sequence[Section]) -> str:
    """The tables as a page."""
    lines = [
        "# What the published recipe needs",
        "",
        "Arithmetic of `pretraining/recipes/veco/large.yaml`, and of the same recipe at base size. Written by",
        f"`python -m bench.large_recipe --markdown {PAGE}`; `--help` lists what can be assumed otherwise.",
    ]
    for title, columns, rows, notes in made:
        lines += ["", f"## {title}", "", "| " + " | ".join(columns.values()) + " |", "|" + "---:|" * len(columns)]
        lines += ["| " + " | ".join(number(row[key]) for key in columns) + " |" for row in rows]
        for note in notes:
            lines += ["", note]
    return "\n".join(lines) + "\n"


def read_flags(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the data sheet's peak that is used (0.4)")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 512], help="numbers of GPUs (8 64 512)")
    parser.add_argument("--memory", type=float, default=80.0, help="GB of a GPU (80)")
    parser.add_argument("--network", type=float, default=50.0, help="GB/s between machines for each GPU (50)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    flags = parser.parse_args(argv)
    if not 0 < flags.mfu <= 1:
        raise ValueError(f"--mfu is {flags.mfu:g}: it is a share of the peak. Give a number above 0, at most 1.")
    for name, least in (("gpus", min(flags.gpus)), ("memory", flags.memory), ("network", flags.network)):
        if least <= 0:
            raise ValueError(f"--{name} is {least:g}: nothing can be shared out over it. Give a positive number.")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        made = sections(flags)
    if flags.markdown:
        flags.markdown.write_text(markdown(made), encoding="utf-8")
    for title, columns, rows, notes in made:
        show(title, columns, rows, notes)


if __name__ == "__main__":
    main()
