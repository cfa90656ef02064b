"""Each paper's pre-training step against one TLM step on the same pairs: `python -m bench.paper_steps`.

A step is forward and backward of one model on one batch, with padding skipped and without dropout. Rounds are
interleaved. The steps are:
- VECO: CA-MLM of pairs with TLM (its bilingual step), and CA-MLM of adjacent segments;
- ERNIE-M: CAMLM, which is TLM with a block mask, and BTMLM, which writes pseudo tokens before it reads them;
- XLM-Align: TLM and DWA in one forward pass, its self-labeling by itself, and TLM and DWA in a forward pass each.

Pairs have the lengths of news, and collators of pre-training make the batches. Prints time as a ratio to TLM, and the
ratio that FLOPs predict; writes bench/results/paper_steps.json.

Legend: `P` pairs of a batch.
"""

import argparse
import importlib
import statistics
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import send_to_device

from bench._common import (
    check_sizes,
    device_name,
    in_fresh_process,
    interleaved,
    make_parser,
    median_ratio,
    show,
    write_results,
)
from bench._flops import Size
from bench._lengths import read_lengths
from bench._steps import made_up_examples, made_up_tokenizer, our_batch
from modeling.attention_masks import camlm_mask
from pretraining.data.examples import Texts
from pretraining.objectives.btmlm import BtmlmCollator
from zoo_core.command_line import user_errors

NAME = "paper_steps"
CA_MLM_PREDICTED = {"ca_mlm_pairs": 0.25, "ca_mlm_segments": 0.15}  # VECO, Table 8
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
PREFIXES = {"veco": "Veco", "ernie_m": "ErnieM", "xlm_align": "XlmAlign"}


def make_model(name: str, size: Size, longest: int, **fields: Any) -> Any:
    """A model with random weights and without dropout; gradients as in training."""
    torch.manual_seed(0)
    if name == "ernie_m":
        fields |= {"num_languages": 2, "mask_token_id": size.vocab - 1}
    cls = getattr(importlib.import_module(f"modeling.modeling_{name}"), f"{PREFIXES[name]}ForPreTraining")
    return cls(cls.config_class(**size.config(longest, **fields))).eval()


def make_batches(lengths_P2: np.ndarray, vocab: int, device: str) -> dict[str, dict]:
    """A sub-batch of each objective, of pairs whose sides have so many tokens.

    TLM, CAMLM and CA-MLM read the same pairs; TLM and CAMLM have the same input and labels. BTMLM has texts as long as
    a pair, with pseudo positions behind them, and so has the TLM that it is compared with.
    """
    tokenizer, rng = made_up_tokenizer(vocab), np.random.default_rng(0)
    pairs, texts = (made_up_examples(lengths, vocab, rng) for lengths in (lengths_P2, lengths_P2.sum(1)))
    batches = our_batch(tokenizer, pairs)
    for name, share in CA_MLM_PREDICTED.items():
        batches |= our_batch(tokenizer, pairs, name, share)
    tlm = batches["tlm"]
    tlm["language_ids"] = tlm["segment_ids"].clamp(min=0)
    block_mask = camlm_mask(tlm["attention_mask"], tlm["segment_ids"], tlm["labels"] != -100)
    batches["camlm"] = tlm | {"attention_mask": block_mask}
    btmlm = BtmlmCollator(tokenizer, languages=("xx", "yy"))
    batches["btmlm"] = btmlm.sub_batch(Texts.of(texts), ("bench",), codes=[("xx",)] * len(texts))
    # the model refuses it as masked LM with a mask of another step
    batches["tlm of btmlm's rows"] = {k: v for k, v in batches["btmlm"].items() if k != "generation_mask"}
    return send_to_device(batches, device)


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


def flops_of(name: str, size: Size, batches: dict[str, dict], labeling_layers: int = 0, queries: float = 0) -> float:
    """Useful FLOPs of a row of the table; `queries` of DWA are known once it has run."""
    predicted = {key: predictions(batch) for key, batch in batches.items()}
    x, y = lengths_of_sides(batches["tlm"])
    text = sum(lengths_of_sides(batches["btmlm"]))
    is_pseudo = (batches["btmlm"]["segment_ids"] == 1) & (batches["btmlm"]["special_tokens_mask"] == 0)
    tlm = size.mlm(x + y, predicted["tlm"])
    ca_mlm = {key: size.ca_mlm(x, y, predicted[key]) for key in CA_MLM_PREDICTED}
    return {
        "tlm": tlm,
        "camlm": tlm,
        **ca_mlm,
        "ca_mlm_pairs + tlm": ca_mlm["ca_mlm_pairs"] + tlm,
        "tlm of btmlm's rows": size.mlm(text, predicted["btmlm"]),
        "btmlm": size.btmlm(text, predicted["btmlm"], int(is_pseudo.sum())),
        "tlm + dwa": size.tlm_and_dwa(x, y, predicted["tlm"], queries, labeling_layers),
        "labeling": size.labeling(x, y, labeling_layers),
        "tlm, then dwa": tlm + size.tlm_and_dwa(x, y, 0, queries, labeling_layers),
    }[name]


def lengths_of_sides(batch: dict) -> tuple[np.ndarray, np.ndarray]:
    """(P,) positions of x and of y in the rows of a sub-batch, special tokens included."""
    return tuple((batch["segment_ids"] == side).sum(1).cpu().numpy() for side in (0, 1))


def predictions(batch: dict) -> int:
    """Labels of a sub-batch, of both sides where they are apart."""
    sides = [batch[side] for side in "xy"] if "x" in batch else [batch]
    return sum(int(side["labels"].ne(-100).sum()) for side in sides)


def measure(name: str, size: Size, lengths_P2: np.ndarray, rounds: int, device: str) -> dict[str, dict]:
    """The steps of one model: seconds, and ratios to TLM."""
    model = make_model(name, size, int(1.2 * lengths_P2.sum(1).max()) + 16).to(device)
    model.set_skip_padding(True)
    batches, steps = make_batches(lengths_P2, size.vocab, device), STEPS[name]
    # also the warm-up, after which every parameter has its gradient
    losses = {key: run(model, step, batches) for key, step in steps.items()}
    ways = {key: lambda number, step=step: run(model, step, batches) for key, step in steps.items()}
    seconds = interleaved(ways, rounds, warm_up=False)
    queries = len(losses["tlm + dwa"]["dwa"]) if name == "xlm_align" else 0
    flops = partial(flops_of, size=size, batches=batches, queries=queries)
    flops = partial(flops, labeling_layers=getattr(model.config, "labeling_layer", 0))
    found: dict[str, dict] = {}
    for key, step in steps.items():
        found[key] = {
            "predictions": {loss: len(values) for loss, values in losses[key].items()},
            "seconds": statistics.median(seconds[key]),
        }
        if step.against:
            found[key] |= {
                "against": step.against,
                "ratio": median_ratio(seconds[key], seconds[step.against]),
                "ratio_by_flops": flops(key) / flops(step.against),
            }
    return found


COLUMNS = {"step": "", "seconds": "s", "ratio": "ratio", "ratio_by_flops": "by FLOPs", "against": "to"}


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Sizes, and where the measurements are written."""
    sizes = {
        "layers": (4, "layers"),
        "hidden": (256, "hidden size, a multiple of 64"),
        "vocab": (16_000, "tokens of the vocabulary"),
        "pairs": (16, "pairs in a batch"),
        "length": (64, "tokens of each side at most"),
        "rounds": (7, "interleaved rounds"),
    }
    flags = make_parser(__doc__, NAME, sizes).parse_args(argv)
    check_sizes(flags)
    return flags


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        size, device = Size(flags.layers, flags.hidden, flags.vocab), device_name()
        pairs_M2, _ = read_lengths()
        drawn = np.random.default_rng(0).integers(len(pairs_M2), size=flags.pairs)
        lengths_P2 = pairs_M2[drawn].clip(SHORTEST, flags.length)
        models = {}
        for name in STEPS:
            models[name] = in_fresh_process(measure, name, size, lengths_P2, flags.rounds, device)
            title = f"{name}: {flags.pairs} pairs of {lengths_P2.sum(1).mean():.0f} tokens, {size.layers} layers of "
            title += f"{size.hidden}, |V| = {size.vocab:,}, fp32, {device}, medians of {flags.rounds} rounds"
            show(title, COLUMNS, [{"step": step, **row} for step, row in models[name].items()])
        results = {"model": size._asdict(), "device": device, "lengths": lengths_P2.tolist(), "models": models}
        write_results(flags, NAME, argv, results)


if __name__ == "__main__":
    main()
