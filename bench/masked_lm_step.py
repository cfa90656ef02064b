"""The whole training step against transformers and accelerate: `python -m bench.masked_lm_step`.

Ours is this package's update (`MetaXlmForPreTraining`, padding skipped, head on the predicted positions, fused AdamW).
The peer is transformers' masked LM of the same encoder (`--encoder`) with `DataCollatorForLanguageModeling` in a plain
accelerate loop with `torch.optim.AdamW`, all unmodified. Of XLM-R, a second peer is the same model in a loop written
with care: rows packed by first fit under a block mask, the head on the masked positions only, fused AdamW. All collate,
compute forward and backward, clip and update, on the same sentences, which are new in each round, with sdpa attention
and its dropout if the encoder supports it.

Parts: TLM on news pairs in random batches, fp32 and bf16; TLM with the peer's batches grouped by length, as the Trainer
groups them; MLM on rows full of text. Times are per real token, without padding. Memory is the peak of one update in a
process of its own, as torch's allocator counts it, without weights, gradients and Adam's moments. If the peer's logits
do not fit into this machine's memory, lower `--pairs`. With `--mfu`, the table has model FLOP utilization, too: useful
FLOPs (`Size.mlm`) a second, over those of a product of two large matrices in the same precision.
"""

import argparse
import statistics
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.trainer_pt_utils import get_length_grouped_indices

from bench._common import (
    DEVICE,
    in_fresh_process,
    interleaved,
    make_parser,
    matrix_peak,
    median_ratio,
    peak_bytes,
    seconds_of,
    show,
    write_results,
)
from bench._steps import (
    ENCODERS,
    LONGEST,
    OURS,
    PACKED,
    PEER,
    PREDICTED,
    Size,
    losses_of,
    made_up_examples,
    read_lengths,
    steps_of,
)
from zoo_core.command_line import user_errors

NAME = "masked_lm_step"
MEGABATCH = 50  # batches that the Trainer's group_by_length sorts at a time
TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}  # between the losses of all ways
COLUMNS = {
    "way": "way",
    "milliseconds_per_token": "ms a real token",
    "ratio": "faster by",
    "packed_ratio": "than packed",
    "memory_mib": "MiB above",
    "memory_ratio": "less by",
    "mfu": "of the peak",
}


class Part(NamedTuple):
    """What is measured: rows by `batching`, of pairs (TLM) or of texts (MLM)."""

    batching: str
    precision: str
    pairs: int

    @property
    def objective(self) -> str:
        return "mlm" if self.batching == "packed" else "tlm"


PARTS = {
    "random-fp32": Part("random", "fp32", 16),
    "random-bf16": Part("random", "bf16", 32),
    "grouped-fp32": Part("grouped", "fp32", 16),
    "packed-fp32": Part("packed", "fp32", 4),
}


def round_batches(part: Part, pairs_M2: np.ndarray, number: int, batches: int) -> tuple[list, list]:
    """Lengths of the batches of a round, the peer's and ours: the same sentences, each side's own batching."""
    rng = np.random.default_rng([part.pairs, number + 1])
    if part.batching == "packed":
        full = [np.full((part.pairs, 1), LONGEST - 2)] * batches
        return full, full
    if part.batching == "random":
        drawn = [pairs_M2[rng.integers(len(pairs_M2), size=part.pairs)] for _ in range(batches)]
        return drawn, drawn
    pool = pairs_M2[rng.integers(len(pairs_M2), size=MEGABATCH * part.pairs)]
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    order = get_length_grouped_indices(pool.sum(1).tolist(), part.pairs, generator=generator)
    # the requested number of sorted batches, evenly spread from long to short
    chosen = ((np.arange(batches) + rng.random(batches)) * MEGABATCH / batches).astype(int)
    peers = [pool[order[index * part.pairs : (index + 1) * part.pairs]] for index in chosen]
    return peers, np.split(rng.permutation(np.concatenate(peers)), batches)


def row_lengths(batch: np.ndarray) -> np.ndarray:
    """Positions of the rows of a batch, special tokens included: two for each side."""
    return batch.sum(1) + 2 * batch.shape[1]


def measure_time(encoder: str, size: Size, part: Part, rounds: int, batches: int) -> dict[str, list[float]]:
    """Seconds of every way in each round. Raises ValueError if the ways have different losses on one batch."""
    steps, pairs_M2, data = steps_of(encoder, size, part.precision, part.objective), read_lengths(), {}
    for number in range(-1, rounds):
        rng, sides = np.random.default_rng(number + 1), round_batches(part, pairs_M2, number, batches)
        data[number] = [[made_up_examples(batch, size.vocab, rng) for batch in side] for side in sides]
    losses = losses_of(steps, data[-1][0][0][:4])
    if max(losses.values()) - min(losses.values()) > TOLERANCE[part.precision]:
        raise ValueError(f"The ways do not have the same loss: {losses}.")

    def step(way: str, number: int) -> None:
        for batch in data[number][way == OURS]:
            steps[way](batch)
        steps[way].model.zero_grad()  # of shared weights

    return interleaved({way: lambda n, way=way: seconds_of(lambda: step(way, n)) for way in steps}, rounds)


def measure_memory(encoder: str, size: Size, part: Part, way: str) -> float:
    """MiB of one way's step at its peak, above weights, gradients and moments."""
    step = steps_of(encoder, size, part.precision, part.objective)[way]
    lengths, rng = round_batches(part, read_lengths(), 0, 1)[0][0], np.random.default_rng(0)
    batch = made_up_examples(lengths, size.vocab, rng)
    step(batch[:1])  # makes the moments
    absent = sum(p.numel() * p.element_size() for p in step.model.parameters() if p.requires_grad and p.grad is None)
    return (peak_bytes(lambda: step(batch)) - absent) / 2**20


def measure(size: Size, part: Part, flags: argparse.Namespace) -> dict[str, Any]:
    """One part: its rows of the table, and what it was measured on."""
    rounds = [round_batches(part, read_lengths(), number, flags.batches)[0] for number in range(flags.rounds)]
    lengths = [[row_lengths(batch) for batch in batches] for batches in rounds]
    real = [int(sum(n.sum() for n in batches)) for batches in lengths]
    predicted = [PREDICTED * sum(batch.sum() for batch in batches) for batches in rounds]
    useful = [size.mlm(np.concatenate(n), words) for n, words in zip(lengths, predicted, strict=True)]
    peak = matrix_peak(flags.mfu, torch.bfloat16 if part.precision == "bf16" else torch.float32) if flags.mfu else None
    timed = in_fresh_process(measure_time, flags.encoder, size, part, flags.rounds, flags.batches)
    memory = {way: in_fresh_process(measure_memory, flags.encoder, size, part, way) for way in timed}
    rows = [
        {
            "way": way,
            "milliseconds_per_token": 1000 * statistics.median(a / n for a, n in zip(seconds, real, strict=True)),
            "ratio": median_ratio(timed[PEER], seconds) if way != PEER else None,
            "packed_ratio": median_ratio(timed[PACKED], seconds) if way == OURS and PACKED in timed else None,
            "memory_mib": memory[way],
            "memory_ratio": memory[PEER] / memory[way] if way != PEER else None,
            "mfu": peak and statistics.median(n / a for n, a in zip(useful, seconds, strict=True)) / peak,
            "seconds": seconds,
        }
        for way, seconds in timed.items()
    ]
    share = sum(real) / sum(len(n) * n.max() for batches in lengths for n in batches)
    return {**part._asdict(), "useful_share_of_the_peer": float(share), "real_tokens_a_round": real, "ways": rows}


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    sizes = {
        "layers": (12, "layers"),
        "hidden": (768, "hidden size, a multiple of 64"),
        "vocab": (250_002, "tokens of the vocabulary"),
        "rounds": (5, "interleaved rounds"),
        "batches": (2, "batches of a round"),
    }
    parser = make_parser(__doc__, NAME, sizes)
    about = "architecture (default: %(default)s)"
    parser.add_argument("--encoder", choices=ENCODERS, default="xlm-roberta", help=about)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--pairs", type=int, help="pairs of a batch, or packed rows (default: that of each part)")
    about = "also show the share of the peak, that of a product of N x N matrices"
    parser.add_argument("--mfu", type=int, metavar="N", help=about)
    flags = parser.parse_args(argv)
    size, parts = Size(flags.layers, flags.hidden, flags.vocab), {}
    with user_errors():
        for name in flags.parts:
            part = PARTS[name]._replace(pairs=flags.pairs or PARTS[name].pairs)
            found = parts[name] = measure(size, part, flags)
            share = f"{found['useful_share_of_the_peer']:.2f} of the peer's positions are no padding"
            show(f"{name}: {part.objective.upper()}, {part.pairs} rows a batch; {share}", COLUMNS, found["ways"])
        write_results(flags, NAME, argv, {"model": size._asdict(), "device": DEVICE, "parts": parts})


if __name__ == "__main__":
    main()
