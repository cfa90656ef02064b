# SPDX-License-Identifier: Apache-2.0
"""Converts VECO's original checkpoints into folders of this zoo.

python -m modeling.convert_veco from-fairseq model.pt runs/veco --tokenizer FacebookAI/xlm-roberta-large

VECO's authors (AliceMind, VECO/NLG and VECO/NLU) released
- a fairseq translation model: an encoder, and a decoder whose `encoder_attn` is VECO's cross-attention. The decoder has
  a layer for each encoder layer, and all but the cross-attention is meant to be the encoder's;
- an encoder without cross-attention, in XLM-R's names;
- the map from their native names (issue 14): BERT's, `cross_attention` in each layer, LayerNorm `gamma` and `beta`.
"""

import argparse
import math
import re
from collections import Counter
from collections.abc import Sequence

from transformers import PreTrainedModel

from .configuration_veco import VecoConfig
from .convert_common import (
    KINDS,
    POSITIONS,
    WORDS,
    State,
    Table,
    add_reading_options,
    assemble,
    fit,
    layer_count,
    leave_out,
    load_tokenizer,
    make_config,
    make_parser,
    pairs,
    read_state,
    require_new,
    run,
    save_tokenizer,
    sizes,
    written_aside,
)
from .modeling_veco import VecoForConditionalGeneration, VecoForMaskedLM

NO_HEAD = "LM head: none in the layout; logits are states times embeddings, config.lm_head_transform is false"

# ours -> fairseq's; of an embedding, the first is always there
FAIRSEQ_EMBEDDINGS = {
    "embeddings.word_embeddings": ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"),
    "embeddings.position_embeddings": ("encoder.embed_positions", "decoder.embed_positions"),
    "embeddings.LayerNorm": ("encoder.layernorm_embedding", "decoder.layernorm_embedding"),
}
FAIRSEQ_LAYER = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
FAIRSEQ_CROSS = {
    f"cross{ours}": theirs.replace("self_attn", "encoder_attn")
    for ours, theirs in FAIRSEQ_LAYER.items()
    if ours.startswith("attention")
}


def native_table(prefix: str, norm: tuple[str, str], has_head: bool) -> Table:
    """Native names behind `prefix`; XLM-R's LM head, where it is there, keeps XLM-R's names."""
    embeddings = (f"embeddings.{name}" for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"))
    layer = (f"encoder.layer.#.{module}" for module in (*FAIRSEQ_LAYER, *FAIRSEQ_CROSS))
    table = {}
    for module in (*embeddings, "embeddings.LayerNorm", *layer):
        ends = norm if module.endswith("LayerNorm") else (".weight", ".bias")
        table |= pairs(module, prefix + module.replace("crossattention", "cross_attention"), ends=ends)
    table["lm_head.decoder.weight"] = [prefix + WORDS, "lm_head.decoder.weight"]
    if has_head:
        table |= pairs("lm_head.dense", "lm_head.dense") | pairs("lm_head.layer_norm", "lm_head.layer_norm")
        table |= {"lm_head.bias": ["lm_head.bias"], "lm_head.decoder.bias": ["lm_head.bias", "lm_head.decoder.bias"]}
    return table


def fairseq_table(decoder_is_encoder: bool = False) -> Table:
    """fairseq's names.

    Args:
        decoder_is_encoder: all encoder layers are decoder layers too, and have the decoder's cross-attention.
    """
    table = {}
    for ours, theirs in FAIRSEQ_EMBEDDINGS.items():
        table |= pairs(ours, *theirs)
    for ours, theirs in FAIRSEQ_LAYER.items():
        sides = ("encoder", "decoder") if decoder_is_encoder else ("encoder",)
        table |= pairs(f"encoder.layer.#.{ours}", *(f"{side}.layers.#.{theirs}" for side in sides))
        table |= pairs(f"decoder.layer.#.{ours}", f"decoder.layers.#.{theirs}")
    for ours, theirs in FAIRSEQ_CROSS.items():
        for side in ("encoder", "decoder"):
            table |= pairs(f"{side}.layer.#.{ours}", f"decoder.layers.#.{theirs}")
    return table | {"lm_head.decoder.weight": table[WORDS]}


def from_native(
    checkpoint: str,
    output: str,
    tokenizer: str,
    num_attention_heads: int | None = None,
    ignore_keys: Sequence[str] = (),
) -> list[str]:
    """Native checkpoint -> folder of a VecoForMaskedLM, which every Auto class loads.

    The original has no LM head of its own: `lm_head_transform` is false then, and logits are states times embeddings.
    XLM-R's is taken where it is there.

    Returns what was found and done, a sentence each.

    Raises ValueError for all keys that are missing, left over or of the wrong shape at once; nothing is written then.
    """
    require_new(output)
    notes: list[str] = []
    state = leave_out(read_state(checkpoint)[0], ignore_keys, notes)
    prefix = native_prefix(state, checkpoint)
    layer = rf"{re.escape(prefix)}encoder\.layer\.(\d+)\."
    has_head = any(key.startswith("lm_head.") for key in state)
    has_cross = layer_count(state, rf"{layer}cross_attention\..+") > 0
    if not has_cross:
        notes.append("cross-attention: the checkpoint has none; config.cross_attention is false")
    if not has_head:
        notes.append(NO_HEAD)
    is_bert = any(key.endswith("LayerNorm.gamma") for key in state)
    table = native_table(prefix, (".gamma", ".beta") if is_bert else (".weight", ".bias"), has_head)
    fields = {
        "num_attention_heads": num_attention_heads,
        "cross_attention": has_cross,
        "lm_head_transform": has_head,
        "num_hidden_layers": layer_count(state, rf"{layer}.+"),
        **sizes(state, table),
    }
    config = make_config(VecoConfig, fields)
    weights = fit(state, VecoForMaskedLM, config, table, checkpoint)
    return write_folder(VecoForMaskedLM, config, weights, tokenizer, output, notes)


def from_fairseq(
    checkpoint: str,
    output: str,
    tokenizer: str,
    model: str = "translation",
    embedding_scale: str | None = None,
    num_attention_heads: int | None = None,
    ignore_keys: Sequence[str] = (),
) -> list[str]:
    """fairseq's checkpoint -> folder of a translation model or of an encoder.

    Args:
        model: `translation`, a VecoForConditionalGeneration, tied where each decoder layer equals an encoder layer; or
            `encoder`, a VecoForMaskedLM with cross-attention, where the decoder is all of the encoder's layers.
        embedding_scale: `keep` or `multiply` the word embeddings; see `scale_words`.

    Returns and raises as `from_native`; ValueError also for a decoder with embeddings of its own.
    """
    require_new(output)
    notes: list[str] = []
    state, settings = read_state(checkpoint)
    state = leave_out(state, ignore_keys, notes)
    depth, decoder_depth = (layer_count(state, rf"{side}\.layers\.(\d+)\..+") for side in ("encoder", "decoder"))
    if not depth or not decoder_depth:
        raise ValueError(
            f"{checkpoint} has no encoder and decoder of fairseq's layout: its keys are "
            f"{', '.join(list(state)[:3])}, ..."
        )
    is_translation = model == "translation"
    table = fairseq_table(decoder_is_encoder=not is_translation)
    fields = {
        "num_attention_heads": num_attention_heads or settings.get("encoder_attention_heads"),
        "hidden_act": settings.get("activation_fn", "gelu"),
        "cross_attention": not is_translation,
        "lm_head_transform": False,
        "num_hidden_layers": depth,
        **sizes(state, table),
    }
    if is_translation:
        indices, is_tied = decoder_origin(state, depth, decoder_depth)
        fields |= {"decoder_layers": decoder_depth, "decoder_layer_indices": indices, "tie_decoder": is_tied}
        fields |= {"is_encoder_decoder": True}
        equal = f"tied, equal to encoder layers {indices}" if is_tied else "not equal to encoder layers, and not tied"
        notes.append(f"decoder: {decoder_depth} layers, all but cross-attention {equal}")
    config = make_config(VecoConfig, fields)
    cls = VecoForConditionalGeneration if is_translation else VecoForMaskedLM
    weights = fit(state, cls, config, table, checkpoint)
    notes.append(NO_HEAD)
    if embedding_scale is None and settings.get("no_scale_embedding"):
        embedding_scale = "keep"
    scale_words(weights, config, embedding_scale, notes)
    return write_folder(cls, config, weights, tokenizer, output, notes)


def native_prefix(state: State, checkpoint: str) -> str:
    """What precedes `encoder.layer` in the names: `bert.`, `roberta.`, nothing, ..."""
    anchors = (re.fullmatch(r"((?:\w+\.)*?)encoder\.layer\.\d+\..+", key) for key in state)
    prefixes = Counter(match[1] for match in anchors if match)
    if not prefixes:
        raise ValueError(
            f"{checkpoint} has no layer of the native layout: its keys are {', '.join(list(state)[:3])}, ..."
        )
    return prefixes.most_common(1)[0][0]


def decoder_origin(state: State, depth: int, decoder_depth: int) -> tuple[list[int], bool]:
    """The encoder layer that each decoder layer equals except for cross-attention, and whether each has one.

    If one has none, the last encoder layers, from which VECO's decoders are made.
    """
    shared = [f"{module}.{kind}" for module in FAIRSEQ_LAYER.values() for kind in KINDS]

    def equal(layer: int, decoder_layer: int) -> bool:
        names = ((f"encoder.layers.{layer}.{name}", f"decoder.layers.{decoder_layer}.{name}") for name in shared)
        return all(one in state and other in state and state[one].equal(state[other]) for one, other in names)

    found = [next((layer for layer in range(depth) if equal(layer, index)), None) for index in range(decoder_depth)]
    return (list(range(depth))[-decoder_depth:], False) if None in found else (found, True)


def scale_words(weights: State, config: VecoConfig, setting: str | None, notes: list[str]) -> None:
    """Multiplies the word embeddings by sqrt(hidden size), where they are stored to be multiplied when looked up.

    fairseq does that, XLM-R and this zoo do not, and pre-training did not. If no setting says it, the rows do: words
    are 1.0 to 2.4 times as long as positions (median length, in this project's models), or that much shorter. fairseq
    does not scale its output layer, which is tied: `config.lm_head_scale` divides by the same root.
    """
    names = ("roberta." + WORDS, "lm_head.decoder.weight")
    rows = weights[names[0]], weights["roberta." + POSITIONS]
    words, positions = (tensor.float().norm(dim=1).median().item() for tensor in rows)
    root = math.sqrt(config.hidden_size)
    if setting is None:
        setting = "multiply" if words * math.sqrt(root) < positions else "keep"
    if setting == "multiply":
        weights |= dict.fromkeys(names, rows[0] * root)
        config.lm_head_scale = 1 / root
    done = f"multiplied by {root:.4g} for the lookup, not for the logits" if setting == "multiply" else "kept"
    notes.append(f"embedding scale: word rows are {words:.3g} long, position rows {positions:.3g}; {done}")


def write_folder(
    cls: type[PreTrainedModel], config: VecoConfig, weights: State, tokenizer: str, output: str, notes: list[str]
) -> list[str]:
    """Writes model and tokenizer, and returns the notes. Raises ValueError for other tokens than word embeddings."""
    loaded = load_tokenizer(tokenizer)
    if len(loaded) != config.vocab_size:
        raise ValueError(
            f"the checkpoint has {config.vocab_size:,} word embeddings, the tokenizer {len(loaded):,} tokens: give its "
            "own as --tokenizer."
        )
    model = assemble(cls, config, weights)
    with written_aside(output) as folder:
        model.save_pretrained(folder)
        save_tokenizer(loaded, folder)
    return [f"{cls.__name__} of {model.num_parameters():,} parameters: {output}", *notes]


DESCRIPTION = """Converts VECO's original checkpoints into folders of this zoo.

Files are read without running code in them. Keys that are missing, left over or of the wrong shape are all listed, and
nothing is written then. What was found and done is printed, a line each."""

FROM_NATIVE = """native names (encoder.layer.0.cross_attention.self.query.weight, ...) -> folder of an encoder

  python -m modeling.convert_veco from-native pytorch_model.bin runs/veco --tokenizer FacebookAI/xlm-roberta-large

A pooler has no place in the folder: --ignore_keys 'bert\\.pooler\\..*'."""

FROM_FAIRSEQ = """fairseq's names (encoder.layers.0.fc1.weight, ...) -> folder of a translation model or an encoder

  python -m modeling.convert_veco from-fairseq model.pt runs/veco --model encoder \\
      --tokenizer FacebookAI/xlm-roberta-large

The released pre-trained file has all layers in encoder and decoder: with --model encoder it becomes an encoder with
cross-attention, which VecoForConditionalGeneration.from_encoder makes translation models of, of any depth.

fairseq multiplies word embeddings by sqrt(hidden size) when it looks them up, XLM-R and this zoo do not. Which of the
two the rows are made for shows in their length, unless the file's args say no_scale_embedding."""


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exit code 2 and a message where the user has to act."""
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = make_parser("convert_veco", DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    for convert, description in ((from_native, FROM_NATIVE), (from_fairseq, FROM_FAIRSEQ)):
        name, short = convert.__name__.replace("_", "-"), description.splitlines()[0]
        added = commands.add_parser(name, help=short, description=description, **style)
        added.set_defaults(convert=convert)
        added.add_argument("source", metavar="FILE", help="what to convert")
        added.add_argument("output", metavar="FOLDER", help="what to write; must not exist")
        added.add_argument(
            "--tokenizer", required=True, metavar="DIR|ID", help="XLM-R's tokenizer, copied into the folder"
        )
        add_reading_options(added)
    added.add_argument(  # of from-fairseq
        "--model",
        choices=["translation", "encoder"],
        default="translation",
        help="what the result is (default: translation)",
    )
    added.add_argument(
        "--embedding_scale",
        choices=["keep", "multiply"],
        help="what to do to the word embeddings: multiply by sqrt(hidden size), or not (default: by their length)",
    )
    arguments = vars(parser.parse_args(argv))
    name, convert, source, output = (arguments.pop(key) for key in ("command", "convert", "source", "output"))
    run(f"convert_veco {name}", lambda: convert(source, output, **arguments))


if __name__ == "__main__":
    main()
