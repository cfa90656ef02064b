"""What a vocabulary of 250,002 tokens costs in a training step: `python -m bench.vocabulary`.

Parts:
- shares: the tokens of one update, each timed alone on the same batch: layers, head (the product that gives logits,
  softmax and cross-entropy, the two products of its gradient), gradient of the embedding, scaling and clipping, AdamW;
  and the memory that embedding and head hold beside the rest.
- adamw: fused AdamW, as here, against torch's default.
- cross-entropy: `modeling.masked_lm.linear_cross_entropy` against `torch.nn.functional.linear_cross_entropy` (with its
  own chunks, and with all rows in one) and `cross_entropy` of all logits: loss, time and memory, forward and backward.
- compile: forward and backward of the compiled model against the same one as it is.

Writes bench/results/vocabulary.json. Legend: `N` predictions, `H` hidden size, `V` vocabulary.
"""

import argparse
import statistics
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import nn

from bench._common import (
    check_sizes,
    compared,
    device_name,
    in_fresh_process,
    interleaved,
    make_parser,
    median_ratio,
    peak_bytes,
    show,
    write_results,
)
from bench._flops import Size
from bench._steps import OurStep, made_up_examples, made_up_tokenizer, metaxlm, missing_gradients, our_batch
from modeling.masked_lm import LOGITS_AT_ONCE, linear_cross_entropy
from pretraining.trainable import clear_gradients
from zoo_core.command_line import user_errors

NAME = "vocabulary"
PARTS = ("shares", "adamw", "cross-entropy", "compile")
FUSED, DEFAULT = "fused AdamW (ours)", "torch's default AdamW"
OURS, FULL = "ours", "all logits"
WHOLE, COMPILED = "as it is", "torch.compile"


def full_rows(size: Size, flags: argparse.Namespace) -> Any:
    """An MLM batch of rows without padding, and the tokenizer that masked it."""
    tokenizer = made_up_tokenizer(size.vocab)
    lengths = np.full((flags.rows, 1), flags.length - 2)
    examples = made_up_examples(lengths, size.vocab, np.random.default_rng(0))
    return our_batch(tokenizer, examples, "mlm"), tokenizer


def measure_shares(size: Size, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """The tokens of a step, with their share of the time and memory of all."""
    model = metaxlm(size, flags.length, 0.0)
    batch, tokenizer = full_rows(size, flags)
    batch = send_to_device(batch, device_name())
    step = OurStep(model, tokenizer, "fp32", "mlm")
    mlm = batch["mlm"]
    labels_N = mlm["labels"][mlm["labels"] != -100]
    count = len(labels_N)
    weight_VH, bias_V = model.lm_head.decoder.weight, model.lm_head.decoder.bias
    hidden_NH = torch.randn(count, size.hidden, device=weight_VH.device)
    grad_VH = torch.zeros_like(weight_VH)
    # as many logits at once as the head holds: larger products would not be its own
    rows = max(1, min(count, LOGITS_AT_ONCE // size.vocab))
    chunks = [slice(start, min(start + rows, count)) for start in range(0, count, rows)]
    scores_NV = torch.rand(rows, size.vocab, device=weight_VH.device)
    embedded_BTH = torch.randn(*mlm["input_ids"].shape, size.hidden, device=weight_VH.device)

    def layers(number: int) -> None:
        states_BTH = model.roberta(inputs_embeds=embedded_BTH, attention_mask=mlm["attention_mask"]).last_hidden_state
        states_BTH.backward(torch.ones_like(states_BTH))

    def embedding(number: int) -> None:
        model.roberta.embeddings.word_embeddings(mlm["input_ids"]).backward(embedded_BTH)

    def head(number: int) -> None:
        states_NH = hidden_NH.detach().requires_grad_()
        linear_cross_entropy(states_NH, weight_VH, bias_V, labels_N)[0].backward()

    @torch.no_grad()
    def logits(number: int) -> None:
        for chunk in chunks:
            torch.addmm(bias_V, hidden_NH[chunk], weight_VH.T, out=scores_NV[: chunk.stop - chunk.start])

    @torch.no_grad()
    def products(number: int) -> None:
        for chunk in chunks:
            scores = scores_NV[: chunk.stop - chunk.start]
            torch.mm(scores, weight_VH)
            grad_VH.addmm_(scores.T, hidden_NH[chunk])

    def clip(number: int) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        scale = 1 / (nn.utils.get_total_norm(gradients) + 1e-6)
        torch._foreach_mul_(gradients, scale.clamp(max=1.0))

    ways = {
        "whole step": lambda number: step.on_batch(batch),
        "layers": layers,
        "embedding gradient": embedding,
        "head": head,
        "  logits": logits,
        "  gradient products": products,
    }
    # before each of them, gradients are as a step leaves them
    seconds = interleaved(ways, flags.rounds, before=lambda name: clear_gradients(model, step.optimizer))
    model(**batch).loss_sum.backward()
    seconds |= interleaved({"scale and clip": clip, "AdamW": lambda number: step.optimizer.step()}, flags.rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    medians["  softmax and rest"] = max(0.0, medians["head"] - medians["  logits"] - medians["  gradient products"])
    parts = ("layers", "embedding gradient", "head", "scale and clip", "AdamW")
    medians["collating, losses, rest"] = max(0.0, medians["whole step"] - sum(medians[name] for name in parts))
    order = ["layers", "head", "  logits", "  softmax and rest", "  gradient products", *parts[1:2], *parts[3:]]
    return [
        {"part": name, "seconds": medians[name], "share": medians[name] / medians["whole step"]}
        for name in [*order, "collating, losses, rest", "whole step"]
    ]


def measure_memory(size: Size, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """MiB that stay: weights, gradients and both moments, of embedding and head and of the rest; and the peak above."""
    model = metaxlm(size, flags.length, 0.0)
    batch, tokenizer = full_rows(size, flags)
    step = OurStep(model, tokenizer, "fp32", "mlm")
    batch = send_to_device(batch, device_name())
    step.on_batch(batch)
    of_vocabulary = sum(p.numel() for p in model.parameters() if size.vocab in p.shape)
    others = sum(p.numel() for p in model.parameters()) - of_vocabulary
    missing = missing_gradients(model)
    above = peak_bytes(lambda: step.on_batch(batch), device_name()) - missing
    rows = {"embedding and head": 16 * of_vocabulary, "layers and the rest": 16 * others, "above, at the peak": above}
    whole = sum(rows.values())
    return [{"part": name, "mib": value / 2**20, "share": value / whole} for name, value in rows.items()]


def measure_adamw(size: Size, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """An optimizer's step on the model's parameters; both in the same memory, one after the other."""
    model = metaxlm(size, flags.length, 0.0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-4)
    optimizers = {
        FUSED: torch.optim.AdamW(model.parameters(), fused=True),
        DEFAULT: torch.optim.AdamW(model.parameters()),
    }
    optimizers[FUSED].step()
    for parameter, state in optimizers[FUSED].state.items():
        step = state["step"].clone().cpu() if device_name() == "cuda" else state["step"]
        optimizers[DEFAULT].state[parameter] = state | {"step": step}
    seconds = interleaved(
        {name: lambda _, o=optimizer: o.step() for name, optimizer in optimizers.items()}, flags.rounds
    )
    return compared(seconds, FUSED)


def cross_entropies() -> dict[str, Any]:
    """Summed loss of (hidden, weight, bias, labels) by the ways that this torch has."""
    functions = {
        OURS: lambda h, w, b, y: linear_cross_entropy(h, w, b, y)[0],
        FULL: lambda h, w, b, y: nn.functional.cross_entropy(nn.functional.linear(h, w, b), y, reduction="sum"),
    }
    if hasattr(nn, "LinearCrossEntropyOptions"):  # torch 2.13
        for name, options in (("its own chunks", {}), ("one chunk", {"batch_chunk_size": 1 << 30})):

            def theirs(h, w, b, y, options=options):
                options = nn.LinearCrossEntropyOptions(
                    **{key: min(value, len(h)) for key, value in options.items()},
                    **({"chunking_method": None} if options else {}),
                )
                return nn.functional.linear_cross_entropy(h, w, y, linear_bias=b, reduction="sum", options=options)

            functions[f"torch's, {name}"] = theirs
    return functions


def measure_cross_entropy(size: Size, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """Loss, seconds and peak memory of forward and backward, on the same states."""
    torch.manual_seed(0)
    device = device_name()
    weight_VH = (0.02 * torch.randn(size.vocab, size.hidden, device=device)).requires_grad_()
    bias_V = torch.zeros(size.vocab, device=device, requires_grad=True)
    states_NH = torch.randn(flags.predictions, size.hidden, device=device)
    labels_N = torch.randint(size.vocab, (flags.predictions,), device=device)
    losses, gradients = {}, {}

    def way(name: str, function: Any) -> Any:
        def once(number: int) -> None:
            weight_VH.grad = bias_V.grad = None
            hidden_NH = states_NH.detach().requires_grad_()
            loss = function(hidden_NH, weight_VH, bias_V, labels_N)
            loss.backward()
            losses[name] = loss.item() / flags.predictions
            gradients[name] = hidden_NH.grad

        return once

    ways = {name: way(name, function) for name, function in cross_entropies().items()}
    seconds = interleaved(ways, flags.rounds)
    weight_VH.grad = bias_V.grad = None
    memory = {}
    for name, once in ways.items():
        once(0)
        weight_VH.grad = bias_V.grad = None
        memory[name] = peak_bytes(lambda once=once: once(0), device) / 2**20
    for name in ways:
        assert abs(losses[name] - losses[FULL]) < 1e-3, f"not the same loss: {losses}"
        assert torch.allclose(gradients[name], gradients[FULL], atol=1e-4), f"not the same gradient: {name}"
    return [row | {"mib": memory[row["way"]], "loss": losses[row["way"]]} for row in compared(seconds, OURS)]


def measure_compile(size: Size, flags: argparse.Namespace) -> list[dict[str, Any]]:
    """Forward and backward of one batch, compiled and not; the same weights."""
    model = metaxlm(size, flags.length, 0.0).eval()  # without dropout the losses can be compared
    batch, _ = full_rows(size, flags)
    batch = send_to_device(batch, device_name())
    batch["mlm"].pop("languages")
    models, losses = {WHOLE: model, COMPILED: torch.compile(model)}, {}

    def way(name: str) -> Any:
        def once(number: int) -> None:
            model.zero_grad()
            loss = models[name](**batch).loss
            loss.backward()
            losses[name] = loss.item()

        return once

    seconds = interleaved({name: way(name) for name in models}, flags.rounds)
    assert abs(losses[WHOLE] / losses[COMPILED] - 1) < 1e-3, f"not the same loss: {losses}"
    return [
        {
            "way": name,
            "seconds": statistics.median(values),
            "ratio": None if name == WHOLE else median_ratio(seconds[WHOLE], values),
        }
        for name, values in seconds.items()
    ]


TABLES = {
    "shares": ("a step, by its parts", {"part": "", "seconds": "s", "share": "share"}),
    "memory": ("memory of a step", {"part": "", "mib": "MiB", "share": "share"}),
    "adamw": ("AdamW", {"way": "", "seconds": "s", "ratio": "ours is faster by"}),
    "cross-entropy": (
        "linear cross-entropy, forward and backward",
        {"way": "", "seconds": "s", "ratio": "ours is faster by", "mib": "MiB at the peak"},
    ),
    "compile": ("torch.compile, forward and backward", {"way": "", "seconds": "s", "ratio": "faster by"}),
}
MEASURES = {
    "shares": measure_shares,
    "memory": measure_memory,
    "adamw": measure_adamw,
    "cross-entropy": measure_cross_entropy,
    "compile": measure_compile,
}


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Sizes and parts."""
    parser = make_parser(
        __doc__,
        NAME,
        {
            "layers": (12, "layers"),
            "hidden": (768, "hidden size, a multiple of 64"),
            "vocab": (250_002, "tokens of the vocabulary"),
            "rows": (4, "rows of a batch"),
            "length": (512, "positions of a row"),
            "predictions": (300, "predictions of the cross-entropies that are compared"),
            "rounds": (5, "interleaved rounds"),
        },
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    flags = parser.parse_args(argv)
    check_sizes(flags)
    return flags


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        size, parts = Size(flags.layers, flags.hidden, flags.vocab), {}
        chosen = [*flags.parts, *(["memory"] if "shares" in flags.parts else [])]
        for part in sorted(chosen, key=list(MEASURES).index):
            parts[part] = in_fresh_process(MEASURES[part], size, flags)
            what, columns = TABLES[part]
            on = f"{flags.predictions} predictions" if part == "cross-entropy" else f"{flags.rows} x {flags.length}"
            model = f"{size.layers} layers of {size.hidden}, |V| = {size.vocab:,}, {on}, fp32, {device_name()}"
            show(f"{what}: {model}", columns, parts[part])
        write_results(flags, NAME, argv, {"model": size._asdict(), "device": device_name(), "parts": parts})


if __name__ == "__main__":
    main()
