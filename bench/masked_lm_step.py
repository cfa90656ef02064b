"""The whole training step against transformers and accelerate: `python -m bench.masked_lm_step`.

Ours is this package's update (`MetaXlmForPreTraining`, padding skipped, head on the predicted positions, fused AdamW).
The peer is transformers' masked LM of the same encoder (`--encoder`) with `DataCollatorForLanguageModeling` in a plain
accelerate loop with `torch.optim.AdamW`, all unmodified. Of XLM-R, a second peer is the same model in a loop written
with care: rows packed by first fit under a block mask, the head on the masked positions only, fused AdamW. All collate,
compute forward and backward, clip and update, on the same sentences, which are new in each round. All use sdpa
attention with dropout if the encoder supports it. The last way is ours without dropout of attention weights
(`model.config.attention_probs_dropout_prob=0` in a recipe), because sdpa has no fast kernel with dropout on a CPU.

Parts: TLM on news pairs in random batches, fp32 and bf16; TLM with the peer's batches grouped by length, as the Trainer
groups them; MLM on rows full of text. Times are per real token, without padding. Memory is the peak of one update in a
process of its own, as torch's allocator counts it, without weights, gradients and Adam's moments. If the peer's logits
do not fit into this machine's memory, lower `--pairs`. With `--mfu`, the table has model FLOP utilization, too: useful
FLOPs (`Size.mlm`) a second, over those of a product of two large matrices in the same precision. Writes
bench/results/masked_lm_step.json.
"""

import argparse
import statistics
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers.trainer_pt_utils import get_length_grouped_indices

from bench._common import (
    device_name,
    in_fresh_process,
    interleaved,
    make_parser,
    matrix_peak,
    max_resident_bytes,
    median_ratio,
    peak_bytes,
    show,
    write_results,
)
from bench._steps import (
    DROPOUT,
    ENCODERS,
    PREDICTED,
    Contest,
    OurStep,
    PeerStep,
    Size,
    made_up_examples,
    made_up_tokenizer,
    masked_lm,
    missing_gradients,
    ours_of,
    read_lengths,
    set_attention_dropout,
)
from zoo_core.command_line import user_errors

NAME = "masked_lm_step"
PEER, PACKED, OURS = "transformers", "transformers, packed", "ours"
WITHOUT = "ours, no attention dropout"
LONGEST = 512  # positions of a packed row, and of the model
MEGABATCH = 50  # batches that the Trainer's group_by_length sorts at a time
MEMORY_AIM = 5.0
ENCODER_AIM = 3.0  # of another encoder than XLM-R, with a vocabulary of its size
TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}  # between the losses of both


class Part(NamedTuple):
    """What is measured: rows by `batching`, of pairs (TLM) or of texts (MLM)."""

    batching: str
    precision: str
    pairs: int
    aim: float

    @property
    def objective(self) -> str:
        return "mlm" if self.batching == "packed" else "tlm"


PARTS = {
    "random-fp32": Part("random", "fp32", 16, 5.0),
    "random-bf16": Part("random", "bf16", 32, 8.0),
    "grouped-fp32": Part("grouped", "fp32", 16, 2.3),
    "packed-fp32": Part("packed", "fp32", 4, 2.6),
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
    mixed = rng.permutation(np.concatenate(peers))
    return peers, np.split(mixed, batches)


def row_lengths(batch: np.ndarray) -> np.ndarray:
    """Positions of the rows of a batch, special tokens included: two for each side."""
    return batch.sum(1) + 2 * batch.shape[1]


def ways_of(encoder: str) -> tuple[str, ...]:
    """The packed peer needs XLM-R's parts; dropout of attention weights is compared where the architecture has it."""
    return (PEER, PACKED, OURS, WITHOUT) if encoder == "xlm-roberta" else (PEER, OURS)


def measure_time(
    encoder: str, size: Size, part: Part, pairs_M2: np.ndarray, rounds: int, batches: int
) -> dict[str, Any]:
    """Seconds of every way for the real tokens of each round, and what the losses were on one batch."""
    contest = Contest.of(encoder, size, LONGEST, part.precision, part.objective)
    data, real = {}, []
    for number in range(-1, rounds):
        sides = round_batches(part, pairs_M2, number, batches)
        rng = np.random.default_rng(number + 1)
        data[number] = [[made_up_examples(batch, size.vocab, rng) for batch in side] for side in sides]
        if number >= 0:
            real.append(int(sum(row_lengths(batch).sum() for batch in sides[0])))
    losses = contest.losses(data[-1][0][0][:4])
    losses = {name: losses[name] for name in ways_of(encoder) if name != WITHOUT}
    difference = max(losses.values()) - min(losses.values())
    assert difference <= TOLERANCE[part.precision], f"not the same loss: {losses}"
    contest.peer(data[-1][0][0][:1])  # makes Adam's moments
    contest.share_moments()

    def peer(number: int, step: PeerStep) -> None:
        for batch in data[number][0]:
            step(batch)

    def ours(number: int, dropout: float) -> None:
        set_attention_dropout(contest.ours.model, dropout)
        for batch in data[number][1]:
            contest.ours(batch)

    ways = {PEER: lambda number: peer(number, contest.peer), PACKED: lambda number: peer(number, contest.packed)}
    ways |= {OURS: lambda number: ours(number, DROPOUT), WITHOUT: lambda number: ours(number, 0.0)}
    ways = {name: ways[name] for name in ways_of(encoder)}
    seconds = interleaved(ways, rounds, before=lambda name: contest.ours.model.zero_grad())
    return {"seconds": seconds, "real": real, "losses": losses}


def measure_memory(encoder: str, size: Size, part: Part, pairs_M2: np.ndarray, way: str) -> dict[str, float]:
    """MiB of one way's step at its peak: above weights, gradients and moments, and of the whole process."""
    tokenizer, peer = (
        made_up_tokenizer(size.vocab),
        masked_lm(encoder, size, LONGEST, 0.0 if way == WITHOUT else DROPOUT),
    )
    if way in (PEER, PACKED):
        step: Any = PeerStep(peer, tokenizer, part.precision, way == PACKED)
    else:
        step = OurStep(ours_of(peer), tokenizer, part.precision, part.objective)
    batch = made_up_examples(round_batches(part, pairs_M2, 0, 1)[0][0], size.vocab, np.random.default_rng(0))
    step(batch[:1])  # makes the moments
    missing = missing_gradients(step.model)
    above = peak_bytes(lambda: step(batch), device_name()) - missing
    return {"above_mib": above / 2**20, "process_mib": max_resident_bytes() / 2**20}


def flops_ratio(size: Size, peers: list[np.ndarray]) -> float:
    """FLOPs of the peer, which computes padding and all logits, over the useful ones, on the same sentences."""
    useful = padded = 0.0
    for batch in peers:
        lengths = row_lengths(batch)
        whole = np.full(len(lengths), lengths.max())
        useful += size.mlm(lengths, PREDICTED * batch.sum())
        padded += size.mlm(whole, whole.sum())
    return padded / useful


def measure(size: Size, part: Part, pairs_M2: np.ndarray, flags: argparse.Namespace) -> dict[str, Any]:
    """One part: its rows of the table, and what it was measured on."""
    drawn = [round_batches(part, pairs_M2, number, flags.batches)[0] for number in range(flags.rounds)]
    lengths = [row_lengths(batch) for batches in drawn for batch in batches]
    timed = in_fresh_process(measure_time, flags.encoder, size, part, pairs_M2, flags.rounds, flags.batches)
    memory = {
        way: in_fresh_process(measure_memory, flags.encoder, size, part, pairs_M2, way) for way in timed["seconds"]
    }
    useful = [sum(size.mlm(row_lengths(batch), PREDICTED * batch.sum()) for batch in batches) for batches in drawn]
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[part.precision]
    peak = matrix_peak(flags.mfu, dtype) if flags.mfu else None
    rows = []
    for way, seconds in timed["seconds"].items():
        ours = way in (OURS, WITHOUT)
        packed = timed["seconds"].get(PACKED)
        above = memory[way]["above_mib"]
        rows.append(
            {
                "way": way,
                "milliseconds_per_token": 1000
                * statistics.median(a / n for a, n in zip(seconds, timed["real"], strict=True)),
                "ratio": median_ratio(timed["seconds"][PEER], seconds) if way != PEER else None,
                "packed_ratio": median_ratio(packed, seconds) if ours and packed else None,
                "aim": (part.aim if flags.encoder == "xlm-roberta" else ENCODER_AIM) if ours else None,
                "memory_mib": above,
                "memory_ratio": memory[PEER]["above_mib"] / above if way != PEER else None,
                "memory_aim": MEMORY_AIM if ours else None,
                "process_mib": memory[way]["process_mib"],
                "mfu": peak and statistics.median(n / a for n, a in zip(useful, seconds, strict=True)) / peak,
                "seconds": seconds,
            }
        )
    return {
        **part._asdict(),
        "objective": part.objective,
        "useful_share_of_the_peer": float(sum(n.sum() for n in lengths) / sum(len(n) * n.max() for n in lengths)),
        "ratio_by_flops": flops_ratio(size, [batch for batches in drawn for batch in batches]),
        "real_tokens_a_round": timed["real"],
        "losses": timed["losses"],
        "ways": rows,
    }


COLUMNS = {
    "way": "",
    "milliseconds_per_token": "ms a real token",
    "ratio": "faster by",
    "packed_ratio": "than packed",
    "aim": "aim",
    "memory_mib": "MiB above",
    "memory_ratio": "less by",
    "memory_aim": "aim",
    "mfu": "of the peak",
}


def show_part(name: str, found: dict[str, Any]) -> None:
    """Prints one part."""
    rows = "rows of 512" if found["batching"] == "packed" else "pairs"
    title = f"{name}: {found['objective'].upper()}, {found['pairs']} {rows} a batch, {found['precision']}"
    notes = [
        f"of the peer's positions {found['useful_share_of_the_peer']:.2f} are no padding; by FLOPs ours is "
        f"{found['ratio_by_flops']:.2f} times faster; losses {found['losses'][PEER]:.5f} and "
        f"{found['losses'][OURS]:.5f}"
    ]
    show(title, COLUMNS, found["ways"], notes)


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Sizes, parts, and where lengths come from."""
    parser = make_parser(
        __doc__,
        NAME,
        {
            "layers": (12, "layers"),
            "hidden": (768, "hidden size, a multiple of 64"),
            "vocab": (250_002, "tokens of the vocabulary"),
            "rounds": (5, "interleaved rounds"),
            "batches": (2, "batches of a round"),
        },
    )
    parser.add_argument(
        "--encoder", choices=ENCODERS, default="xlm-roberta", help="architecture (default: %(default)s)"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--pairs", type=int, help="pairs of a batch, or packed rows (default: that of each part)")
    parser.add_argument(
        "--mfu", type=int, metavar="N", help="also show the share of the peak, that of a product of N x N matrices"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        size = Size(flags.layers, flags.hidden, flags.vocab)
        pairs_M2, _ = read_lengths()
        parts = {}
        for name in flags.parts:
            part = PARTS[name] if flags.pairs is None else PARTS[name]._replace(pairs=flags.pairs)
            parts[name] = measure(size, part, pairs_M2, flags)
            show_part(name, parts[name])
        write_results(flags, NAME, argv, {"model": size._asdict(), "device": device_name(), "parts": parts})


if __name__ == "__main__":
    main()
