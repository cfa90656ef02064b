"""Which share of the device's arithmetic a training step uses: `python -m bench.mfu`.

Model FLOP utilization = useful FLOPs / (seconds x peak FLOP/s). Useful FLOPs are those of real tokens and of
predictions that the model learns from (bench/_flops.py): F = 72 L d^2 + 12 L d E[n^2]/E[n] + 0.15 (6 d V + 6 d^2) a
token. The peak is measured with a product of two large matrices in the same precision; for a known GPU, that of its
data sheet is shown, too. Steps are whole updates of this package: MLM on rows full of text, TLM on pairs of real
lengths cut to `--bitext` positions. `--profile` writes the operators that take the most time. Writes
bench/results/mfu.json.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from bench._common import (
    check_sizes,
    device_name,
    in_fresh_process,
    interleaved,
    make_parser,
    matrix_peak,
    sheet_peak,
    show,
    write_results,
)
from bench._flops import BASE, LARGE, Size
from bench._lengths import read_lengths
from bench._steps import OurStep, made_up_examples, made_up_tokenizer, metaxlm, our_batch
from zoo_core.command_line import user_errors

NAME = "mfu"
SIZES = {"base": BASE, "large": LARGE}
MEASURED_AIM, SHEET_AIM = {"large": 0.5}, {"base": 0.4}  # of the peak, on a GPU
OPERATORS = 30  # rows of --profile's tables


def row_lengths(objective: str, flags: argparse.Namespace, rng: np.random.Generator) -> np.ndarray:
    """(M, 1) tokens of full rows for MLM, or (M, 2) of news pairs for TLM, without special tokens."""
    if objective == "mlm":
        return np.full((flags.rows, 1), flags.packed - 2)
    pairs_M2, _ = read_lengths()
    pairs_M2 = pairs_M2[rng.integers(len(pairs_M2), size=flags.pairs)]
    room = flags.bitext - 4
    cut_M2 = np.minimum(pairs_M2, room // 2)
    return np.maximum(cut_M2, np.minimum(pairs_M2, room - cut_M2[:, ::-1]))


def measure(size: Size, objective: str, flags: argparse.Namespace, profile_file: Path | None) -> dict[str, Any]:
    """Tokens a second of one objective, their FLOPs, and the device's peak."""
    tokenizer, precision = made_up_tokenizer(size.vocab), flags.precision
    step = OurStep(metaxlm(size, max(flags.packed, flags.bitext), 0.0), tokenizer, precision, objective)
    rng = np.random.default_rng(0)
    drawn = {number: row_lengths(objective, flags, rng) for number in range(-1, flags.rounds)}
    batches = {
        number: our_batch(tokenizer, made_up_examples(lengths, size.vocab, rng), objective)
        for number, lengths in drawn.items()
    }
    predicted = {number: int(batch[objective]["labels"].ne(-100).sum()) for number, batch in batches.items()}
    rows = {number: lengths.sum(1) + 2 * lengths.shape[1] for number, lengths in drawn.items()}
    seconds = interleaved({"step": lambda number: step.on_batch(batches[number])}, flags.rounds)["step"]
    flops = [size.mlm(rows[number], predicted[number]) for number in range(flags.rounds)]
    rates = np.array(flops) / np.array(seconds)
    if profile_file:
        write_profile(profile_file, lambda: step.on_batch(batches[0]))
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    peak = matrix_peak(flags.matrix, dtype)
    rate = float(np.median(rates))
    return {
        "tokens": float(np.mean([n.sum() for n in rows.values()])),
        "tokens_per_second": float(np.median([rows[i].sum() / seconds[i] for i in range(flags.rounds)])),
        "share_predicted": sum(predicted.values()) / sum(n.sum() for n in rows.values()),
        "flops_per_token": sum(flops) / sum(rows[i].sum() for i in range(flags.rounds)),
        "tera_flops_per_second": rate / 1e12,
        "of_measured_peak": rate / peak,
        "measured_peak_tera": peak / 1e12,
        "of_data_sheet": rate / sheet_peak() if sheet_peak() else None,
    }


def write_profile(path: Path, step: Any) -> None:
    """The operators of one step, by the time that they took themselves."""
    on_gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        step()
    key = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=key, row_limit=OPERATORS, max_name_column_width=60)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table + "\n", encoding="utf-8")


COLUMNS = {
    "step": "",
    "tokens_per_second": "tokens/s",
    "mflop": "MFLOP a token",
    "tera_flops_per_second": "TFLOP/s",
    "of_measured_peak": "of measured peak",
    "aim": "aim",
    "of_data_sheet": "of data sheet",
    "sheet_aim": "aim",
}


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Sizes; a GPU's are larger."""
    on_gpu = device_name() == "cuda"
    parser = make_parser(
        __doc__,
        NAME,
        {
            "rows": (64 if on_gpu else 4, "full rows of an MLM batch"),
            "pairs": (256 if on_gpu else 16, "pairs of a TLM batch"),
            "packed": (512, "positions of a full row"),
            "bitext": (128, "positions of a pair at most"),
            "matrix": (8192 if on_gpu else 2048, "rows of the matrices whose product is the peak"),
            "rounds": (10 if on_gpu else 5, "updates"),
        },
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="models (default: both)")
    parser.add_argument("--layers", type=int, help="layers of the models (default: their own)")
    parser.add_argument("--hidden", type=int, help="their hidden size (default: their own)")
    parser.add_argument("--vocab", type=int, help="their vocabulary (default: 250,002)")
    parser.add_argument(
        "--precision", choices=("bf16", "fp32"), default="bf16", help="precision of the step (default: bf16)"
    )
    parser.add_argument("--profile", type=Path, metavar="DIR", help="folder for each step's operators, sorted by time")
    flags = parser.parse_args(argv)
    check_sizes(flags, {"packed": 16, "bitext": 16})
    return flags


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        device, steps = device_name(), {}
        for name in flags.sizes:
            given = {field: getattr(flags, field) for field in Size._fields if getattr(flags, field) is not None}
            size = SIZES[name]._replace(**given)
            for objective, what in (("mlm", f"packed {flags.packed}"), ("tlm", f"bitext {flags.bitext}")):
                title = f"{name}, {objective.upper()} {what}"
                file = flags.profile and flags.profile / f"{name}-{objective}.txt"
                steps[title] = {
                    **in_fresh_process(measure, size, objective, flags, file),
                    "model": size._asdict(),
                    "aim": MEASURED_AIM.get(name) if device == "cuda" else None,
                    "sheet_aim": SHEET_AIM.get(name) if device == "cuda" else None,
                }
        rows = [{"step": title, **row, "mflop": row["flops_per_token"] / 1e6} for title, row in steps.items()]
        peak = max(row["measured_peak_tera"] for row in rows)
        title = f"model FLOP utilization, {flags.precision}, {device}"
        show(title, COLUMNS, rows, [f"measured peak: a product of {flags.matrix}^3, {peak:.2f} TFLOP/s"])
        write_results(flags, NAME, argv, {"device": device, "steps": steps})


if __name__ == "__main__":
    main()
