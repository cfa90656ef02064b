"""The masked-LM training step against transformers' `XLMRobertaForMaskedLM`: `python -m bench.masked_lm_step`.

Same weights, same batch, same loss; forward and backward, rounds interleaved. Prints the median ratio and writes
bench/results/masked_lm_step.json.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

from common.provenance import run_facts, write_json
from modeling.configuration_metaxlm import MetaXlmConfig
from modeling.modeling_metaxlm import MetaXlmForMaskedLM


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8, help="sentences in a batch (default 8)")
    parser.add_argument("--length", type=int, default=128, help="pieces in a sentence (default 128)")
    parser.add_argument("--layers", type=int, default=12, help="layers of width 768 (default 12: base)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--output", type=Path, default=Path("bench/results/masked_lm_step.json"))
    arguments = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    torch.manual_seed(0)
    shared = dict(
        vocab_size=250002,
        num_hidden_layers=arguments.layers,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    peer = XLMRobertaForMaskedLM(XLMRobertaConfig(**shared)).to(device)
    ours = MetaXlmForMaskedLM(MetaXlmConfig(**shared)).to(device)
    ours.load_state_dict(peer.state_dict())
    input_ids = torch.randint(5, 250001, (arguments.rows, arguments.length), device=device)
    labels = input_ids.where(torch.rand(input_ids.shape, device=device) < 0.15, -100)
    models = {"transformers": peer.eval(), "ours": ours.eval()}  # without dropout the losses can be compared

    def step(model):
        started = time.perf_counter()
        loss = model(input_ids, labels=labels).loss
        loss.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - started
        model.zero_grad()
        return elapsed, loss.item()

    losses = {name: step(model)[1] for name, model in models.items()}  # also the warm-up
    seconds = {name: [] for name in models}
    for _ in range(arguments.rounds):
        for name, model in models.items():
            seconds[name].append(step(model)[0])
    ratios = [a / b for a, b in zip(seconds["transformers"], seconds["ours"], strict=True)]
    result = {
        "what": f"forward and backward of masked-LM, {arguments.rows} x {arguments.length}, {arguments.layers} layers, "
        "|V| = 250,002, 15% predicted, fp32",
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "losses": losses,
        "facts": run_facts(["bench.masked_lm_step"]),
    }
    table = Table(title=result["what"], title_justify="left")
    for column in ("", "median seconds", "loss"):
        table.add_column(column)
    for name in models:
        table.add_row(name, f"{result['seconds'][name]:.2f}", f"{losses[name]:.5f}")
    Console().print(table, f"ours is {result['ratio']:.2f}x as fast (median of {arguments.rounds} interleaved rounds)")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(arguments.output, result)


if __name__ == "__main__":
    main()
