"""Translations by VECO's translation model against the library's encoder-decoder: `python -m bench.generation`.

Both translate greedily and with beam 5, with the same weights, sources and number of new tokens. The peer is
`EncoderDecoderModel` of `XLMRobertaModel` and `XLMRobertaForCausalLM` with cross-attention, whose layers are those of
an untied VECO decoder. At least nine of ten translations have to be equal, and the table shows the share. Not all are
equal, because the two round differently: where two tokens are nearly as likely, either may be written, and the rest of
the sentence follows from it. Tests compare the logits. Weights and sources are made up; the sources have the lengths of
sentences.

Writes bench/results/generation.json. Legend: `B` sentences, `S` source positions, `T` new tokens.
"""

import argparse
import statistics
from typing import Any

import torch
from transformers import EncoderDecoderModel, XLMRobertaConfig, XLMRobertaForCausalLM, XLMRobertaModel

from bench._common import check_sizes, device_name, interleaved, make_parser, median_ratio, show, write_results
from modeling.configuration_veco import VecoConfig
from modeling.modeling_veco import VecoForConditionalGeneration
from zoo_core.command_line import user_errors

NAME = "generation"
OURS, PEER = "ours", "transformers"
BEAMS = {"greedy": 1, "beam 5": 5}
START, PADDING, END = 0, 1, 2  # XLM-R's ids of <s>, <pad> and </s>
SAME = 0.9  # share of the sentences that have to be equal to the last token


def make_models(flags: argparse.Namespace) -> dict[str, Any]:
    """Both models, with the same random weights."""
    torch.manual_seed(0)
    shared = dict(
        vocab_size=flags.vocab,
        hidden_size=flags.hidden,
        num_attention_heads=flags.hidden // 64,
        intermediate_size=4 * flags.hidden,
        max_position_embeddings=max(flags.length, flags.new) + 4,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        initializer_range=0.05,  # what is said depends on the source
    )
    layers = range(flags.layers - flags.decoder_layers, flags.layers)
    decoder = dict(decoder_layers=flags.decoder_layers, decoder_layer_indices=list(layers), tie_decoder=False)
    ours = VecoForConditionalGeneration(VecoConfig(**shared, num_hidden_layers=flags.layers, **decoder))
    ours.set_skip_padding(True)
    ids = dict(bos_token_id=START, pad_token_id=PADDING, eos_token_id=END)
    as_decoder = dict(num_hidden_layers=flags.decoder_layers, is_decoder=True, add_cross_attention=True)
    peer = EncoderDecoderModel(
        encoder=XLMRobertaModel(
            XLMRobertaConfig(**shared, **ids, num_hidden_layers=flags.layers), add_pooling_layer=False
        ),
        decoder=XLMRobertaForCausalLM(XLMRobertaConfig(**shared, **ids, **as_decoder)),
    )
    peer.load_state_dict(peer_state(ours.state_dict()), strict=False)
    return {name: model.to(device_name()).eval() for name, model in ((OURS, ours), (PEER, peer))}


def peer_state(state: dict[str, Any]) -> dict[str, Any]:
    """Our weights by the peer's names."""
    renamed = {}
    for name, weight in state.items():
        if name.startswith("roberta."):
            renamed["encoder." + name.removeprefix("roberta.")] = weight
        if name.startswith("roberta.embeddings."):
            renamed["decoder." + name] = weight
        if name.startswith("decoder.layer."):
            renamed["decoder.roberta.encoder." + name.removeprefix("decoder.")] = weight
        if name.startswith("lm_head."):
            renamed["decoder." + name] = weight
    return renamed


def make_sources(flags: argparse.Namespace) -> dict[str, Any]:
    """A batch of `<s> x </s>`, from a third of `--length` to the whole."""
    generator = torch.Generator().manual_seed(0)
    input_ids_BS = torch.randint(4, flags.vocab - 1, (flags.sentences, flags.length), generator=generator)
    lengths_B1 = torch.randint(flags.length // 3, flags.length + 1, (flags.sentences, 1), generator=generator)
    place_S = torch.arange(flags.length)
    input_ids_BS[:, 0] = START
    input_ids_BS = input_ids_BS.where(place_S < lengths_B1 - 1, END).where(place_S < lengths_B1, PADDING)
    fields = {"input_ids": input_ids_BS, "attention_mask": (place_S < lengths_B1).long()}
    return {name: tensor.to(device_name()) for name, tensor in fields.items()}


def settings(flags: argparse.Namespace, beams: int) -> dict[str, Any]:
    """Of `generate`: exactly `--new` tokens, none of them padding."""
    ids = dict(decoder_start_token_id=END, bos_token_id=START, eos_token_id=END, pad_token_id=PADDING)
    length = dict(min_new_tokens=flags.new, max_new_tokens=flags.new, suppress_tokens=[PADDING])
    return dict(num_beams=beams, do_sample=False, **ids, **length)


def measure(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """New tokens a second of both models, greedy and with beams, and the ratio."""
    models, sources = make_models(flags), make_sources(flags)
    rows = []
    for search, beams in BEAMS.items():
        written: dict[str, Any] = {}

        def way(name: str, options: dict[str, Any], written: dict[str, Any] = written) -> Any:
            def run(number: int) -> None:
                written[name] = models[name].generate(**sources, **options)

            return run

        seconds = interleaved({name: way(name, settings(flags, beams)) for name in models}, flags.rounds)
        same = same_share(written[OURS], written[PEER], flags)
        for name, values in seconds.items():
            tokens = flags.sentences * flags.new / statistics.median(values)
            ratio = median_ratio(seconds[PEER], values)
            rows.append({"search": search, "model": name, "tokens_per_second": tokens, "ratio": ratio, "same": same})
    return rows


def same_share(ours_BT: Any, peer_BT: Any, flags: argparse.Namespace) -> float:
    """Share of the sentences that both models wrote alike; asserts that it is most of them, and none is shorter."""
    assert ours_BT.shape == peer_BT.shape == (flags.sentences, flags.new + 1), (ours_BT.shape, peer_BT.shape)
    share = float((ours_BT == peer_BT).all(1).double().mean())
    assert share >= SAME, f"only {share:.0%} of the sentences are the same"
    return share


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Sizes, and where the measurements are written."""
    sizes = {
        "layers": (6, "layers of the encoder"),
        "decoder_layers": (6, "of the decoder"),
        "hidden": (768, "hidden size, a multiple of 64"),
        "vocab": (250_002, "tokens of the vocabulary"),
        "sentences": (16, "sources in a batch"),
        "length": (32, "tokens of the longest source"),
        "new": (24, "tokens that are written"),
        "rounds": (5, "interleaved rounds"),
    }
    flags = make_parser(__doc__, NAME, sizes).parse_args(argv)
    check_sizes(flags)
    if flags.decoder_layers > flags.layers:
        raise ValueError(
            f"--decoder_layers is {flags.decoder_layers}, and --layers {flags.layers}. Give as many or fewer."
        )
    return flags


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        rows = measure(flags)
        title = f"{flags.sentences} sources to {flags.new} tokens each, {flags.layers} + {flags.decoder_layers} layers "
        title += f"of {flags.hidden}, |V| = {flags.vocab:,}, {device_name()}, medians of {flags.rounds} rounds"
        columns = {"search": "search", "model": "model", "tokens_per_second": "tokens/s", "ratio": "times the peer"}
        show(title, columns | {"same": "same sentences"}, rows)
        write_results(flags, NAME, argv, {"ways": rows})


if __name__ == "__main__":
    main()
