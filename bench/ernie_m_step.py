"""ERNIE-M's pre-training steps against one TLM step on the same rows: `python -m bench.ernie_m_step`.

Forward and backward of one model, rounds interleaved, without dropout: CAMLM is TLM with a block mask, so that what it
costs more is the mask; BTMLM is TLM after a forward pass that writes the pseudo tokens. Sentences have lengths of their
own, so that TLM has padding to mask as well. Prints time as a ratio to TLM, under eager and sdpa attention, beside what
counting FLOPs predicts, and writes bench/results/ernie_m_step.json.

Legend: `L` layers, `d` hidden size, `V` vocabulary, `T` positions of a row, `r` share of positions that is predicted.
"""

import argparse
import statistics
import time
from pathlib import Path

from bench.veco_step import check_flags, read_flags
from common.provenance import run_facts, write_json
from common.recipes import user_errors

PREDICTED, PSEUDO_SHARE = 0.15, 0.2  # BTMLM: pseudo tokens for each piece of its text (Figure 5)
ATTENTION = ("eager", "sdpa")
SHORTEST = 8  # pieces of a side


def flops_ratio(layers: int, hidden: int, vocab: int, length: int, predicted: float, written: float) -> float:
    """FLOPs of a BTMLM step over those of TLM on the same rows of T = `length` positions.

    TLM: 72 L d^2 + 12 L d T in the layers of a position, 6 d V + 6 d^2 in the head of a prediction. BTMLM adds a
    forward pass, a third of the former, and the head's forward, 2 d V + 2 d^2, on what is written. `predicted` and
    `written` are shares of the positions.
    """
    in_layers = 72 * layers * hidden**2 + 12 * layers * hidden * length
    head = 2 * hidden * vocab + 2 * hidden**2
    tlm = in_layers + predicted * 3 * head
    return (tlm + in_layers / 3 + written * head) / tlm


def make_batches(pairs: int, length: int, vocab: int, device: str) -> dict[str, dict]:
    """Rows `<s> x </s></s> y </s>` of sides with `SHORTEST` to `length` pieces, padded: one sub-batch an objective.

    TLM and CAMLM have the same input and the same labels, all <mask>. BTMLM has texts as long as a pair, with pseudo
    positions behind them, and so has the TLM that it is compared with.
    """
    import torch

    lengths_P2 = torch.randint(SHORTEST, length + 1, (pairs, 2), device=device)
    texts_P1 = lengths_P2.sum(1, keepdim=True)
    pseudo_P1 = (PSEUDO_SHARE * texts_P1).round().long()
    of_pairs, is_masked_PT, labels_PT = _rows(lengths_P2, vocab)
    of_texts, is_text_masked_PT, _ = _rows(torch.cat([texts_P1, pseudo_P1], dim=1), vocab)
    is_text_masked_PT &= of_texts["segment_ids"] == 0
    gold_PT = of_texts["input_ids"]
    is_pseudo_PT = (of_texts["segment_ids"] == 1) & ~of_texts["special_tokens_mask"].bool()
    pairs_batch = of_pairs | {
        "input_ids": of_pairs["input_ids"].masked_fill(is_masked_PT, vocab - 1),
        "labels": labels_PT,
    }
    texts = of_texts | {"labels": gold_PT.where(is_text_masked_PT, -100)}
    return {
        "tlm": pairs_batch,
        "camlm": pairs_batch,
        "btmlm": texts | {"input_ids": gold_PT.masked_fill(is_text_masked_PT | is_pseudo_PT, vocab - 1)},
        "tlm of btmlm's rows": texts | {"input_ids": gold_PT.masked_fill(is_text_masked_PT, vocab - 1)},
    }


def _rows(lengths_P2, vocab: int):
    """Fields of rows whose sides have these lengths, unmasked; which positions are predicted, and their labels."""
    import torch

    device = lengths_P2.device
    ends_P2 = (lengths_P2 + 2).cumsum(1)
    place_T = torch.arange(int(ends_P2.max()), device=device)
    is_real_PT = place_T < ends_P2[:, 1:]
    segments_PT = (place_T >= ends_P2[:, :1]).long().where(is_real_PT, -1)
    gold_PT = torch.randint(5, vocab - 1, is_real_PT.shape, device=device)
    is_special_PT = (place_T == 0) | (place_T == ends_P2[:, :1] - 1) | (place_T == ends_P2[:, :1])
    is_special_PT |= (place_T == ends_P2[:, 1:] - 1) | ~is_real_PT
    gold_PT = gold_PT.masked_fill(is_special_PT, 2).masked_fill(~is_real_PT, 1)
    is_predicted_PT = (torch.rand(gold_PT.shape, device=device) < PREDICTED) & ~is_special_PT
    is_predicted_PT &= place_T != 1  # a piece of x to be read; y's second `</s>` comes before its first
    is_predicted_PT &= place_T != ends_P2[:, :1] + 1
    fields = {
        "input_ids": gold_PT,
        "attention_mask": is_real_PT.long(),
        "segment_ids": segments_PT,
        "special_tokens_mask": is_special_PT.long(),
        "language_ids": segments_PT.clamp(min=0),
    }
    return fields, is_predicted_PT, gold_PT.where(is_predicted_PT, -100)


def shares(batch: dict, mask_id: int) -> tuple[float, float]:
    """Predicted and written positions of a BTMLM batch, as shares of all."""
    is_written_PT = (batch["segment_ids"] == 1) & (batch["input_ids"] == mask_id)
    return batch["labels"].ne(-100).float().mean().item(), is_written_PT.float().mean().item()


STEPS = {"tlm": "tlm", "camlm": "camlm", "tlm of btmlm's rows": "tlm", "btmlm": "btmlm"}  # row of the table: objective
AGAINST = {"camlm": "tlm", "btmlm": "tlm of btmlm's rows"}


def measure(flags: argparse.Namespace, device: str) -> dict[str, dict]:
    """Median seconds of each step under each attention, and the median of its rounds' ratios to TLM."""
    import torch

    from modeling.configuration_ernie_m import ErnieMConfig
    from modeling.modeling_ernie_m import ErnieMForPreTraining

    torch.manual_seed(0)
    config = ErnieMConfig(
        vocab_size=flags.vocab,
        hidden_size=flags.hidden,
        num_hidden_layers=flags.layers,
        num_attention_heads=flags.hidden // 64,
        intermediate_size=4 * flags.hidden,
        max_position_embeddings=3 * flags.length + 8,
        num_languages=2,
        mask_token_id=flags.vocab - 1,
    )
    batches = make_batches(flags.pairs, flags.length, flags.vocab, device)
    model = ErnieMForPreTraining(config).to(device).eval()  # without dropout; gradients as in training

    def step(name, attention):
        model.set_attn_implementation(attention)
        started = time.perf_counter()
        model(**{STEPS[name]: batches[name]}).loss.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    seconds = {(name, attention): [] for attention in ATTENTION for name in STEPS}
    for key in seconds:  # the warm-up, after which every parameter has its gradient
        step(*key)
    for _ in range(flags.rounds):
        for key, values in seconds.items():
            values.append(step(*key))
    rows = {}
    for (name, attention), values in seconds.items():
        row = {"step": name, "attention": attention, "seconds": statistics.median(values)}
        if name in AGAINST:
            base = seconds[AGAINST[name], attention]
            row["ratio"] = statistics.median(a / b for a, b in zip(values, base, strict=True))
            row["against"] = AGAINST[name]
            row["ratio_by_flops"] = 1.0
        if name == "btmlm":
            shape = (flags.layers, flags.hidden, flags.vocab, batches[name]["labels"].shape[1])
            row["ratio_by_flops"] = flops_ratio(*shape, *shares(batches[name], flags.vocab - 1))
        rows[f"{name}, {attention}"] = row
    return rows


def show(what: str, rows: dict[str, dict]) -> None:
    """Print the measured steps."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=what, title_justify="left")
    for column, justify in (
        ("step", "left"),
        ("s", "right"),
        ("ratio", "right"),
        ("by FLOPs", "right"),
        ("to", "left"),
    ):
        table.add_column(column, justify=justify, no_wrap=True)
    for name, row in rows.items():
        ratios = [f"{row[key]:.2f}" if key in row else "" for key in ("ratio", "ratio_by_flops")]
        table.add_row(name, f"{row['seconds']:.3f}", *ratios, row.get("against", ""))
    Console(highlight=False, soft_wrap=True, width=100).print(table)


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    flags = read_flags(__doc__, Path("bench/results/ernie_m_step.json"), argv)
    with user_errors():
        check_flags(flags)
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        rows = measure(flags, device)
        what = (
            f"forward and backward of {flags.pairs} pairs of 2 x {SHORTEST} to {flags.length} pieces, {flags.layers} "
            f"layers of {flags.hidden}, |V| = {flags.vocab:,}, fp32, {device}, medians of {flags.rounds} rounds"
        )
        show(what, rows)
        flags.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(flags.output, {"what": what, "steps": rows, "facts": run_facts(["bench.ernie_m_step"])})


if __name__ == "__main__":
    main()
