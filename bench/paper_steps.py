"""Each paper's pre-training step against one TLM step on the same rows: `python -m bench.paper_steps`.

Forward and backward of one model on one batch, without dropout, rounds interleaved: VECO's CA-MLM of pairs, with TLM
(its bilingual step), and of adjacent segments; ERNIE-M's CAMLM, which is TLM with a block mask, and BTMLM, which writes
pseudo tokens before it reads them; XLM-Align's TLM and DWA in one forward, its self-labeling apart, and TLM and DWA in
a forward each. Rows have the lengths of news. Prints time as a ratio to TLM, with padding computed and skipped, beside
what counting FLOPs predicts here and at the papers' large size, and memory at the peak beside what counting kept
numbers predicts; writes bench/results/paper_steps.json.

Legend: `P` pairs of a batch, `N` positions of a side, `T` of a row.
"""

import argparse
import importlib
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from bench._common import (
    check_sizes,
    device_name,
    in_fresh_process,
    interleaved,
    make_parser,
    median_ratio,
    peak_bytes,
    show,
    write_results,
)
from bench._flops import LARGE, Size
from bench._lengths import read_lengths
from modeling.attention_masks import btmlm_generation_mask, camlm_mask
from modeling.masked_lm import LOGITS_AT_ONCE
from zoo_core.command_line import user_errors

NAME = "paper_steps"
PAIRS_PREDICTED, SEGMENTS_PREDICTED = 0.25, 0.15  # VECO, Table 8
PREDICTED, PSEUDO_SHARE = 0.15, 0.2  # of the others; BTMLM: pseudo tokens for each token of its text (Figure 5)
LARGE_PAIRS, LARGE_SEGMENTS = 128, 512  # positions of a side (VECO, Table 8)
SHORTEST = 8  # tokens of a side: fewer leave nothing to read, or to predict


class Step(NamedTuple):
    """Forward and backward of `sub_batches`, one after the other; `against` is the TLM it is compared with.

    `weights` are those of the losses, for each call. Without one, it is XLM-Align's labeling.
    """

    sub_batches: tuple[str, ...]
    against: str | None = None
    weights: tuple[dict[str, float], ...] = ({},)


# model -> name in the table -> step; a sub-batch `a of b` is the objective `a` on rows b
STEPS: dict[str, dict[str, Step]] = {
    "veco": {
        "tlm": Step(("tlm",)),
        "ca_mlm_pairs": Step(("ca_mlm_pairs",), "tlm"),
        "ca_mlm_pairs + tlm": Step(("ca_mlm_pairs", "tlm"), "tlm"),
        "ca_mlm_segments": Step(("ca_mlm_segments",), "tlm"),
    },
    "ernie_m": {
        "tlm": Step(("tlm",)),
        "camlm": Step(("camlm",), "tlm"),
        "tlm of btmlm's rows": Step(("tlm of btmlm's rows",)),
        "btmlm": Step(("btmlm",), "tlm of btmlm's rows"),
    },
    "xlm_align": {
        "tlm": Step(("tlm",), None, ({"dwa": 0.0},)),
        "tlm + dwa": Step(("tlm",), "tlm"),
        "labeling": Step(("tlm",), "tlm", ()),
        "tlm, then dwa": Step(("tlm",), "tlm", ({"dwa": 0.0}, {"tlm": 0.0})),
    },
}
CLASSES = {"veco": "VecoForPreTraining", "ernie_m": "ErnieMForPreTraining", "xlm_align": "XlmAlignForPreTraining"}
CONFIGS = {"veco": "VecoConfig", "ernie_m": "ErnieMConfig", "xlm_align": "XlmAlignConfig"}


def make_model(name: str, size: Size, longest: int, **fields: Any) -> Any:
    """A model with random weights and without dropout; gradients as in training."""
    torch.manual_seed(0)
    if name == "ernie_m":
        fields |= {"num_languages": 2, "mask_token_id": size.vocab - 1}
    config = getattr(importlib.import_module(f"modeling.configuration_{name}"), CONFIGS[name])
    model = getattr(importlib.import_module(f"modeling.modeling_{name}"), CLASSES[name])
    return model(config(**size.config(longest, **fields))).eval()


def make_batches(lengths_P2: np.ndarray, vocab: int, device: str) -> dict[str, dict]:
    """The rows `<s> x </s></s> y </s>` of sides with so many tokens, as a sub-batch of each objective.

    TLM, CAMLM and CA-MLM have the same tokens. Predicted ones are all <mask>: TLM and CAMLM have the same input and
    labels. BTMLM has texts as long as a pair, with pseudo positions behind them, and so has the TLM beside it.
    """
    torch.manual_seed(0)
    lengths_P2 = torch.as_tensor(lengths_P2, device=device)
    texts_P1 = lengths_P2.sum(1, keepdim=True)
    pseudo_P1 = (PSEUDO_SHARE * texts_P1).round().long()
    of_pairs, place_PT = _rows(lengths_P2, vocab, PREDICTED)
    of_texts, _ = _rows(torch.cat([texts_P1, pseudo_P1], dim=1), vocab, PREDICTED)
    is_pseudo_PT = of_texts["segment_ids"] == 1
    texts = of_texts | {"labels": of_texts["labels"].masked_fill(is_pseudo_PT, -100)}
    is_written_PT = is_pseudo_PT & ~of_texts["special_tokens_mask"].bool()
    tlm = _masked(of_pairs, vocab)
    camlm = camlm_mask(tlm["attention_mask"], tlm["segment_ids"], tlm["labels"] != -100)
    generation = btmlm_generation_mask(of_texts["attention_mask"], of_texts["segment_ids"])
    sides = {share: _sides(of_pairs, place_PT, vocab, share) for share in (PAIRS_PREDICTED, SEGMENTS_PREDICTED)}
    return {
        "tlm": tlm,
        "camlm": tlm | {"attention_mask": camlm},
        "ca_mlm_pairs": sides[PAIRS_PREDICTED],
        "ca_mlm_segments": sides[SEGMENTS_PREDICTED],
        "tlm of btmlm's rows": _masked(texts, vocab),
        "btmlm": _masked(texts | {"input_ids": texts["input_ids"].masked_fill(is_written_PT, vocab - 1)}, vocab)
        | {"generation_mask": generation},
    }


def _rows(lengths_P2, vocab: int, share: float) -> tuple[dict, Any]:
    """Fields of rows whose sides have these lengths, unmasked, with the labels of those predicted; (P, T) places."""
    device = lengths_P2.device
    ends_P2 = (lengths_P2 + 2).cumsum(1)
    place_T = torch.arange(int(ends_P2.max()), device=device)
    is_real_PT = place_T < ends_P2[:, 1:]
    segments_PT = (place_T >= ends_P2[:, :1]).long().where(is_real_PT, -1)
    gold_PT = torch.randint(5, vocab - 1, is_real_PT.shape, device=device)
    is_special_PT = (place_T == 0) | (place_T == ends_P2[:, :1] - 1) | (place_T == ends_P2[:, :1])
    is_special_PT |= (place_T == ends_P2[:, 1:] - 1) | ~is_real_PT
    gold_PT = gold_PT.masked_fill(is_special_PT, 2).masked_fill(place_T == 0, 0).masked_fill(~is_real_PT, 1)
    is_predicted_PT = (torch.rand(gold_PT.shape, device=device) < share) & ~is_special_PT
    # the first token of each side is there to be read
    is_predicted_PT &= (place_T != 1) & (place_T != ends_P2[:, :1] + 1)
    fields = {
        "input_ids": gold_PT,
        "labels": gold_PT.where(is_predicted_PT, -100),
        "attention_mask": is_real_PT.long(),
        "segment_ids": segments_PT,
        "special_tokens_mask": is_special_PT.long(),
        "language_ids": segments_PT.clamp(min=0),
    }
    return fields, place_T.expand_as(gold_PT)


def _masked(fields: dict, vocab: int) -> dict:
    """The sub-batch with <mask> wherever there is a label."""
    return fields | {"input_ids": fields["input_ids"].masked_fill(fields["labels"] != -100, vocab - 1)}


def _sides(rows: dict, place_PT: Any, vocab: int, share: float) -> dict[str, dict]:
    """The sides of unmasked rows apart, `<s> x </s>` and `<s> y </s>`, each masked anew."""
    sides = {}
    for number, side in enumerate("xy"):
        is_side_PT = rows["segment_ids"] == number
        longest = int(is_side_PT.sum(1).max())
        order_PN = (~is_side_PT).byte().argsort(dim=1, stable=True)[:, :longest]
        ids, special, attended = (
            rows[name].gather(1, order_PN) for name in ("input_ids", "special_tokens_mask", "attention_mask")
        )
        attended = attended * is_side_PT.gather(1, order_PN)
        ids = ids.masked_fill(attended == 0, 1)
        ids[:, 0] = 0
        chosen = (torch.rand(ids.shape, device=ids.device) < share) & (special == 0) & (attended == 1)
        chosen[:, 1] = False
        sides[side] = _masked(
            {
                "input_ids": ids,
                "labels": ids.where(chosen, -100),
                "attention_mask": attended,
                "special_tokens_mask": special.masked_fill(attended == 0, 1),
            },
            vocab,
        )
    return sides


def run(model: Any, step: Step, batches: dict[str, dict]) -> dict[str, Any]:
    """The step, gradients added up; its losses by name."""
    given = {name.partition(" of ")[0]: batches[name] for name in step.sub_batches}
    if not step.weights:
        model.self_label(given["tlm"])
        return {}
    losses = {}
    for weights in step.weights:
        output = model(**given, objective_weights=weights)
        output.loss_sum.backward()
        losses |= output.token_losses
    return losses


def lengths_of_sides(batch: dict) -> tuple[np.ndarray, np.ndarray]:
    """(P,) positions of x and of y in the rows of a sub-batch, special tokens included."""
    segments = batch["segment_ids"]
    return tuple((segments == side).sum(1).cpu().numpy() for side in (0, 1))


def flops_of(name: str, size: Size, batches: dict[str, dict], labeling_layers: int = 0, queries: float = 0) -> float:
    """Useful FLOPs of a row of the table."""
    predicted = {key: predictions(batch) for key, batch in batches.items()}
    x, y = lengths_of_sides(batches["tlm"])
    text = sum(lengths_of_sides(batches["btmlm"]))
    vocab = size.vocab
    is_written = (batches["btmlm"]["segment_ids"] == 1) & (batches["btmlm"]["input_ids"] == vocab - 1)
    tlm = size.mlm(x + y, predicted["tlm"])
    dwa_alone = size.tlm_and_dwa(x, y, 0, queries, labeling_layers)
    return {
        "tlm": lambda: tlm,
        "camlm": lambda: tlm,
        "ca_mlm_pairs": lambda: size.ca_mlm(x, y, predicted["ca_mlm_pairs"]),
        "ca_mlm_segments": lambda: size.ca_mlm(x, y, predicted["ca_mlm_segments"]),
        "ca_mlm_pairs + tlm": lambda: size.ca_mlm(x, y, predicted["ca_mlm_pairs"]) + tlm,
        "tlm of btmlm's rows": lambda: size.mlm(text, predicted["btmlm"]),
        "btmlm": lambda: size.btmlm(text, predicted["btmlm"], int(is_written.sum())),
        "tlm + dwa": lambda: size.tlm_and_dwa(x, y, predicted["tlm"], queries, labeling_layers),
        "labeling": lambda: size.labeling(x, y, labeling_layers),
        "tlm, then dwa": lambda: tlm + dwa_alone,
    }[name]()


def predictions(batch: dict) -> int:
    """Labels of a sub-batch, of both sides where they are apart."""
    sides = [batch[side] for side in "xy"] if "x" in batch else [batch]
    return sum(int(side["labels"].ne(-100).sum()) for side in sides)


def ratio_at_large(name: str, against: str) -> float | None:
    """What counting FLOPs predicts of VECO's steps at the paper's large size, 2 x 128 for pairs, 2 x 512 segments."""
    side = LARGE_SEGMENTS if "segments" in name else LARGE_PAIRS
    if "ca_mlm" not in name or against != "tlm":
        return None
    tlm = LARGE.mlm([2 * side], PAIRS_PREDICTED * 2 * side)
    share = SEGMENTS_PREDICTED if "segments" in name else PAIRS_PREDICTED
    own = LARGE.ca_mlm([side], [side], share * 2 * side) + (tlm if "+" in name else 0)
    return own / tlm


def floats_kept(name: str, size: Size, positions: int, predicted: dict[str, int]) -> float | None:
    """Numbers in memory at the peak of VECO's steps, in the LM head, beside weights, their gradients and moments.

    For each position of both sides a layer keeps 16 d: queries, keys, values, context, the input and output of two
    LayerNorms (4), and the feed-forward before and after GELU (8). Cross-attention keeps 6 d more: queries, keys,
    values, context, its LayerNorm's two. Embeddings keep 2 d. A prediction keeps 4 d: its state, the head before and
    after GELU, the gradient of its state. Attention weights are not kept (sdpa). The head holds logits,
    `LOGITS_AT_ONCE` at most, and a (V, d) gradient beside them where there are more. `predicted` are labels by
    sub-batch.
    """
    layers, d, vocab = size
    kept = {"tlm": 16 * layers + 2} | dict.fromkeys(("ca_mlm_pairs", "ca_mlm_segments"), (16 + 22) * layers + 4)
    sub_batches = STEPS["veco"][name].sub_batches
    number = sum(predicted[key] * (1 if key == "tlm" else 2) for key in sub_batches)
    logits = number * vocab if number * vocab <= LOGITS_AT_ONCE else LOGITS_AT_ONCE + vocab * d
    return positions * d * sum(kept[key] for key in sub_batches) + 4 * d * number + logits


def measure(name: str, size: Size, lengths_P2: np.ndarray, rounds: int, device: str) -> dict[str, dict]:
    """The steps of one model: time with padding and without, memory, and how often each H was computed."""
    torch.manual_seed(0)
    model = make_model(name, size, int(1.2 * lengths_P2.sum(1).max()) + 16).to(device)
    batches, steps = make_batches(lengths_P2, size.vocab, device), STEPS[name]
    paths = {"skipped": True, "padded": False}

    def way(step: Step, skip: bool) -> Callable[[int], Any]:
        def once(number: int) -> dict:
            model.set_skip_padding(skip)
            return run(model, step, batches)

        return once

    ways = {(key, path): way(step, skip) for path, skip in paths.items() for key, step in steps.items()}
    found: dict[str, dict] = {}
    for key in steps:  # also the warm-up, after which every parameter has its gradient
        skipped, padded = (ways[key, path](0) for path in paths)
        for loss in padded:
            assert torch.allclose(skipped[loss], padded[loss], atol=1e-3), (key, loss)
        found[key] = {"predictions": {loss: len(values) for loss, values in padded.items()}}
    memory = {key: peak_bytes(lambda key=key: ways[key](0), device) / 2**20 for key in ways}
    seconds = interleaved(ways, rounds, warm_up=False)
    queries = found.get("tlm + dwa", {"predictions": {"dwa": 0}})["predictions"].get("dwa", 0)
    layers = getattr(model.config, "labeling_layer", 0)
    predicted = {key: predictions(batch) for key, batch in batches.items()}
    for key, step in steps.items():
        row = found[key]
        for path in paths:
            row[f"seconds_{path}"] = statistics.median(seconds[key, path])
            row[f"memory_mib_{path}"] = memory[key, path]
            if step.against:
                row[f"ratio_{path}"] = median_ratio(seconds[key, path], seconds[step.against, path])
                row[f"memory_ratio_{path}"] = memory[key, path] / memory[step.against, path]
        row["padding_costs"] = median_ratio(seconds[key, "padded"], seconds[key, "skipped"])
        if step.against:
            row["against"] = step.against
            own, other = (flops_of(one, size, batches, layers, queries) for one in (key, step.against))
            row["ratio_by_flops"] = own / other
            row["ratio_by_flops_at_large"] = ratio_at_large(key, step.against)
        if name == "veco":
            real = int(lengths_P2.sum() + 4 * len(lengths_P2))
            row["memory_mib_counted"] = 4 * floats_kept(key, size, real, predicted) / 2**20
    return found


COLUMNS = {
    "step": "",
    "seconds_skipped": "s",
    "ratio_skipped": "ratio",
    "seconds_padded": "s, padded",
    "ratio_padded": "ratio",
    "ratio_by_flops": "by FLOPs",
    "ratio_by_flops_at_large": "large",
    "padding_costs": "skipping gains",
    "memory_mib_skipped": "MiB",
    "memory_ratio_skipped": "ratio",
    "memory_mib_counted": "counted",
    "against": "to",
}


def show_model(title: str, steps: dict[str, dict]) -> None:
    """Prints the steps of one model; columns that none of them has are left out."""
    rows = [{"step": name, **row} for name, row in steps.items()]
    columns = {key: heading for key, heading in COLUMNS.items() if any(row.get(key) is not None for row in rows)}
    notes = []
    if "tlm, then dwa" in steps:
        for path in ("skipped", "padded"):
            gain = steps["tlm, then dwa"][f"ratio_{path}"] / steps["tlm + dwa"][f"ratio_{path}"]
            notes.append(f"padding {path}: one forward for TLM and DWA is {gain:.2f} times as fast as one for each")
    show(title, columns, rows, notes)


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Sizes, and where the measurements are written."""
    parser = make_parser(
        __doc__,
        NAME,
        {
            "layers": (4, "layers"),
            "hidden": (256, "hidden size, a multiple of 64"),
            "vocab": (16_000, "tokens of the vocabulary"),
            "pairs": (16, "pairs in a batch"),
            "length": (64, "tokens of each side at most"),
            "rounds": (7, "interleaved rounds"),
        },
    )
    flags = parser.parse_args(argv)
    check_sizes(flags)
    return flags


def draw_lengths(pairs: int, longest: int) -> np.ndarray:
    """(P, 2) tokens of the sides of news pairs, drawn at random, none shorter than `SHORTEST`."""
    pairs_M2, _ = read_lengths()
    return pairs_M2[np.random.default_rng(0).integers(len(pairs_M2), size=pairs)].clip(SHORTEST, longest)


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        size, lengths_P2 = Size(flags.layers, flags.hidden, flags.vocab), draw_lengths(flags.pairs, flags.length)
        device = device_name()
        models = {}
        for name in STEPS:
            models[name] = in_fresh_process(measure, name, size, lengths_P2, flags.rounds, device)
            title = (
                f"{name}: forward and backward of {flags.pairs} pairs of {lengths_P2.sum(1).mean():.0f} tokens, "
                f"{size.layers} layers of {size.hidden}, |V| = {size.vocab:,}, fp32, {device}, medians of "
                f"{flags.rounds} rounds"
            )
            show_model(title, models[name])
        results = {"model": size._asdict(), "device": device, "lengths": lengths_P2.tolist(), "models": models}
        write_results(flags, NAME, argv, results)


if __name__ == "__main__":
    main()
