"""VECO's pre-training steps against one TLM step on the same tokens: `python -m bench.veco_step`.

Forward and backward of one model and one set of pairs, rounds interleaved, without dropout and padding: CA-MLM of pairs
(`ca_mlm_pairs`), with TLM on the same pairs (VECO's bilingual step), CA-MLM of adjacent segments (its monolingual one).
Prints time and memory as ratios to TLM beside what counting predicts, and how often each encoder layer ran; writes
bench/results/veco_step.json. Memory is the peak above what is always there: weights, gradients and Adam's moments.

Legend: `L` layers, `d` hidden size, `V` vocabulary, `n` pieces of a side, `r` share of pieces that is predicted.
"""

import argparse
import os
import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from common.provenance import run_facts, write_json
from common.recipes import user_errors

PAIRS_PREDICTED, SEGMENTS_PREDICTED = 0.25, 0.15  # 001, Table 8
STEPS = {
    "tlm": ("tlm",),
    "ca_mlm_pairs": ("ca_mlm_pairs",),
    "ca_mlm_pairs + tlm": ("ca_mlm_pairs", "tlm"),
    "ca_mlm_segments": ("ca_mlm_segments",),
}


class Size(NamedTuple):
    """Of a model and its sentences."""

    layers: int
    hidden: int
    vocab: int
    length: int


LARGE_PAIRS, LARGE_SEGMENTS = Size(24, 1024, 250_002, 128), Size(24, 1024, 250_002, 512)  # 001, Table 8


def flops_per_token(size: Size) -> dict[str, float]:
    """Useful FLOPs of forward and backward, by objective, for each of the 2 n pieces of a pair.

    A matrix of m weights costs 6 m (2 forward, 2 for its own gradient, 2 for that of its input), attention to s pieces
    12 d s a layer; a layer has 12 d^2 weights (attention 4, feed-forward 8), and cross-attention 4 more.

    - TLM: 72 L d^2 + 12 L d (2 n) + r head, with head = 6 d V + 6 d^2; it attends to both sides.
    - H pass: 72 L d^2 + 12 L d n, each side by itself.
    - S pass: 92 L d^2 + 24 L d n: self- and cross-attention. 6 x 16 would be 96: H is detached, so that keys and values
      of the cross-attention have no gradient of their input to compute, 2 x 2 d^2 less.
    - CA-MLM: H pass + S pass + 2 r head; `inner` and `cross` predict the same pieces.
    """
    layers, d, vocab, n = size
    weights, to_a_side = layers * d * d, 12 * layers * d * n
    head = 6 * d * vocab + 6 * d * d
    both_passes = (72 + 92) * weights + (1 + 2) * to_a_side
    return {
        "tlm": 72 * weights + 2 * to_a_side + PAIRS_PREDICTED * head,
        "ca_mlm_pairs": both_passes + 2 * PAIRS_PREDICTED * head,
        "ca_mlm_segments": both_passes + 2 * SEGMENTS_PREDICTED * head,
    }


def floats_kept(size: Size, pairs: int) -> dict[str, float]:
    """Numbers in memory at the peak, in the LM head, by step, beside weights, gradients and Adam's moments.

    For each of the 2 n pieces of a pair a layer keeps 16 d: queries, keys, values, context, the input and output of two
    LayerNorms (4), and the feed-forward before and after GELU (8). Cross-attention keeps 6 d more: queries, keys,
    values, context, its LayerNorm's two. Embeddings keep 2 d. A prediction keeps 4 d: its state, the head before and
    after GELU, the gradient of its state. Attention weights are not kept (sdpa). The head holds its (V, d)
    gradient and, for a moment, logits: `LOGITS_AT_ONCE` of them at most.
    """
    from modeling.masked_lm import LOGITS_AT_ONCE

    layers, d = size.layers, size.hidden
    both_passes = ((16 + 22) * layers + 2 * 2) * d
    share = {"tlm": PAIRS_PREDICTED, "ca_mlm_pairs": 2 * PAIRS_PREDICTED, "ca_mlm_segments": 2 * SEGMENTS_PREDICTED}
    per_token = {
        "tlm": (16 * layers + 2 + 4 * share["tlm"]) * d,
        "ca_mlm_pairs": both_passes + 4 * share["ca_mlm_pairs"] * d,
        "ca_mlm_segments": both_passes + 4 * share["ca_mlm_segments"] * d,
    }
    tokens = pairs * 2 * size.length
    logits = {
        step: min(LOGITS_AT_ONCE, int(tokens * sum(share[name] for name in names)) * size.vocab)
        for step, names in STEPS.items()
    }
    return {
        step: tokens * sum(per_token[name] for name in names) + size.vocab * d + logits[step]
        for step, names in STEPS.items()
    }


def flops_of_steps(size: Size) -> dict[str, float]:
    """Useful FLOPs by step, for each of the 2 n pieces of a pair."""
    per_token = flops_per_token(size)
    return {step: sum(per_token[name] for name in names) for step, names in STEPS.items()}


def make_batches(size: Size, pairs: int, device: str) -> dict[str, dict]:
    """The same pieces as a sub-batch of each objective: `pairs` rows, sides of `length` pieces, no padding."""
    import torch

    ids_2PN = torch.randint(5, size.vocab - 1, (2, pairs, size.length), device=device)
    ids_2PN[:, :, 0], ids_2PN[:, :, -1] = 0, 2

    def masked(ids, share):
        chosen = (torch.rand(ids.shape, device=device) < share) & (ids > 4)
        labels = ids.where(chosen, -100)
        return {
            "input_ids": ids.masked_fill(chosen, size.vocab - 1),
            "labels": labels,
            "attention_mask": torch.ones_like(ids),
        }

    def sides(share):
        return {"x": masked(ids_2PN[0], share), "y": masked(ids_2PN[1], share)}

    second = ids_2PN[1].clone()
    second[:, 0] = 2  # `<s> x </s></s> y </s>`
    return {
        "tlm": masked(torch.cat([ids_2PN[0], second], dim=1), PAIRS_PREDICTED),
        "ca_mlm_pairs": sides(PAIRS_PREDICTED),
        "ca_mlm_segments": sides(SEGMENTS_PREDICTED),
    }


@contextmanager
def layer_calls(model):
    """Counts encoder-layer calls while it is open: (rows, with cross-attention?) -> number of calls."""
    calls: dict[tuple[int, bool], int] = {}

    def count(layer, inputs, has_cross_attention):
        rows = inputs[0].shape[0]
        if has_cross_attention:  # a hook of the layer has counted this call as one without
            calls[rows, False] -= 1
        calls[rows, has_cross_attention] = calls.get((rows, has_cross_attention), 0) + 1

    handles = []
    for layer in model.roberta.encoder.layer:
        handles.append(layer.register_forward_pre_hook(lambda layer, inputs: count(layer, inputs, False)))
        cross = layer.crossattention
        handles.append(cross.register_forward_pre_hook(lambda layer, inputs: count(layer, inputs, True)))
    yield calls
    for handle in handles:
        handle.remove()


def peak_bytes(step, device: str) -> int:
    """How far memory rises during `step()` above where it was before: what torch's allocators hand out."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def measure(size: Size, pairs: int, rounds: int, device: str) -> dict[str, dict]:
    """Time, memory and layer calls by step, each with its ratio to TLM and the predicted one."""
    import torch

    from modeling.configuration_veco import VecoConfig
    from modeling.modeling_veco import VecoForPreTraining

    torch.manual_seed(0)
    config = VecoConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=2 * size.length + 2,
    )
    model = VecoForPreTraining(config).to(device).eval()  # without dropout; gradients as in training
    batches = make_batches(size, pairs, device)

    def step(name):
        started = time.perf_counter()
        model(**{objective: batches[objective] for objective in STEPS[name]}).loss.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    calls = {}
    for name in STEPS:  # also the warm-up, after which every parameter has its gradient
        with layer_calls(model) as calls[name]:
            step(name)
    memory = {name: peak_bytes(lambda name=name: step(name), device) for name in STEPS}
    seconds = {name: [] for name in STEPS}
    for _ in range(rounds):
        for name in STEPS:
            seconds[name].append(step(name))
    flops, floats = flops_of_steps(size), floats_kept(size, pairs)
    rows = {}
    for name, values in seconds.items():
        large = flops_of_steps(LARGE_SEGMENTS if "segments" in name else LARGE_PAIRS)
        rows[name] = {
            "seconds": statistics.median(values),
            "time_ratio": statistics.median(a / b for a, b in zip(values, seconds["tlm"], strict=True)),
            "time_ratio_predicted": flops[name] / flops["tlm"],
            "time_ratio_predicted_at_large": large[name] / large["tlm"],
            "memory_mib": memory[name] / 2**20,
            "memory_mib_predicted": floats[name] * 4 / 2**20,
            "memory_ratio": memory[name] / memory["tlm"],
            "memory_ratio_predicted": floats[name] / floats["tlm"],
            "layer_calls": [
                {"calls": number, "rows": count, "cross_attention": cross}
                for (count, cross), number in calls[name].items()
                if number
            ],
        }
        if name != "tlm":  # every layer has to see each of the 2 x pairs sides once; TLM has `pairs` rows
            of_h = [call for call in rows[name]["layer_calls"] if call["rows"] > pairs and not call["cross_attention"]]
            seen = sum(call["calls"] * call["rows"] for call in of_h)
            rows[name]["times_each_h_is_computed"] = seen / (size.layers * 2 * pairs)
    return rows


def show(what: str, rows: dict[str, dict]) -> None:
    """Print the measured steps."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True, width=100)  # what the table needs
    table = Table(title=what, title_justify="left")
    table.add_column("", no_wrap=True)
    for column in ("s", "ratio", "FLOPs", "large", "MiB", "count", "ratio", "count"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in rows.items():
        ratios = [f"{row[key]:.2f}" for key in ("time_ratio", "time_ratio_predicted", "time_ratio_predicted_at_large")]
        memory = [f"{row[key]:.0f}" for key in ("memory_mib", "memory_mib_predicted")]
        memory += [f"{row[key]:.2f}" for key in ("memory_ratio", "memory_ratio_predicted")]
        table.add_row(name, f"{row['seconds']:.3f}", *ratios, *memory)
    console.print(table)
    console.print(
        "ratio: to tlm; FLOPs, large: what counting FLOPs predicts, here and at the paper's large size; "
        "count: what counting kept numbers predicts"
    )
    for name, row in rows.items():
        counted = [
            f"{call['calls']} on {call['rows']} rows with{'' if call['cross_attention'] else 'out'} cross-attention"
            for call in row["layer_calls"]
        ]
        once = f"; each H computed {row['times_each_h_is_computed']:g} time(s)" if name != "tlm" else ""
        console.print(f"{name}: encoder layers ran {', '.join(counted)}{once}")


def read_flags(description: str, output: Path, argv: list[str] | None) -> argparse.Namespace:
    """Sizes of a step, and where its measurements are written."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4, help="layers (default 4)")
    parser.add_argument("--hidden", type=int, default=256, help="hidden size, a multiple of 64 (default 256)")
    parser.add_argument("--vocab", type=int, default=16000, help="pieces of the vocabulary (default 16000)")
    parser.add_argument("--pairs", type=int, default=16, help="pairs in a batch (default 16)")
    parser.add_argument("--length", type=int, default=64, help="pieces of each side, or of the longest (default 64)")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    where = f"where the measurements are written (default {output})"
    parser.add_argument("--output", type=Path, metavar="FILE", default=output, help=where)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    flags = read_flags(__doc__, Path("bench/results/veco_step.json"), argv)
    with user_errors():
        check_flags(flags)
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own lines; read when torch is imported
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        size = Size(flags.layers, flags.hidden, flags.vocab, flags.length)
        rows = measure(size, flags.pairs, flags.rounds, device)
        what = (
            f"forward and backward of {flags.pairs} pairs of 2 x {size.length} pieces, {size.layers} layers of "
            f"{size.hidden}, |V| = {size.vocab:,}, fp32, {device}, medians of {flags.rounds} rounds"
        )
        show(what, rows)
        flags.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(flags.output, {"what": what, "steps": rows, "facts": run_facts(["bench.veco_step"])})


def check_flags(flags: argparse.Namespace) -> None:
    """Raises ValueError for sizes of which there is no model, no batch, or nothing to predict."""
    for name, least, why in (
        ("layers", 1, "There would be no encoder."),
        ("hidden", 64, "A head has 64 dimensions."),
        ("vocab", 10, "Special pieces take six."),
        ("pairs", 1, "There would be nothing to read."),
        ("length", 8, "Of fewer pieces too few are drawn for prediction."),
        ("rounds", 1, "Nothing would be measured."),
    ):
        if (value := getattr(flags, name)) < least:
            raise ValueError(f"--{name} is {value}. {why} Give {least} or more.")
    if flags.hidden % 64:
        raise ValueError(
            f"--hidden is {flags.hidden}, no multiple of 64. A head has 64 dimensions, as in the paper's models. Give "
            f"{flags.hidden // 64 * 64} or {(flags.hidden // 64 + 1) * 64}."
        )


if __name__ == "__main__":
    main()
