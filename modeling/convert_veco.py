# SPDX-License-Identifier: Apache-2.0
"""Converts VECO's original checkpoints into folders of this zoo, and back.

python -m modeling.convert_veco from-fairseq model.pt runs/veco --tokenizer FacebookAI/xlm-roberta-large

The two layouts are known from public code and from VECO's authors, who published the map between them (AliceMind,
issue 14):
- native: BERT's names behind an optional prefix, `cross_attention` in each layer, LayerNorm `gamma` and `beta`;
- fairseq's translation models: an encoder, and a decoder whose `encoder_attn` is VECO's cross-attention. The released
  one has a decoder layer for each encoder layer; all but the cross-attention is meant to be the encoder's.
"""

import argparse
import math
import re
from collections import Counter
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from .configuration_veco import VecoConfig
from .convert_common import (
    POSITIONS,
    WORDS,
    State,
    Table,
    add_reading_options,
    add_token_type,
    assemble,
    fit,
    layer_count,
    leave_out,
    load_zoo,
    make_config,
    pairs,
    read_state,
    rename,
    require_new,
    run,
    save_weights,
    sizes,
    written_aside,
)
from .convert_vocabulary import (
    Vocabulary,
    check_scale,
    choose_scale,
    complete_rows,
    read_vocabulary,
    save_tokenizer,
    times,
)
from .modeling_veco import VecoForConditionalGeneration, VecoForMaskedLM, VecoModel

FAIRSEQ_EPS = 1e-5  # of its LayerNorm; it has no option for it
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


def native_table(prefix: str, norm: tuple[str, str] = (".gamma", ".beta"), has_head: bool = True) -> Table:
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
    num_attention_heads: int | None = None,
    ignore_keys: Sequence[str] = (),
    **vocabulary,
) -> list[str]:
    """Native checkpoint -> folder of a VecoForMaskedLM, which every Auto class loads.

    The original has no LM head of its own: `lm_head_transform` is false then, and logits are states times embeddings.
    XLM-R's is taken where it is there. Word embeddings are kept as they are, and compared with those of a reference.

    Args:
        vocabulary: the arguments of `read_vocabulary`.

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
        **sizes(state, table, r".+\.intermediate\.dense\.weight"),
    }
    config = make_config(VecoConfig, fields)
    weights = fit(state, VecoForMaskedLM, config, table, checkpoint, notes)
    words, positions = weights["roberta." + WORDS], weights["roberta." + POSITIONS]
    tokens = read_vocabulary(words, **vocabulary)
    check_scale(words, positions, tokens.reference_RH, notes)
    return write_folder(VecoForMaskedLM, config, weights, output, tokens, notes)


def from_fairseq(
    checkpoint: str,
    output: str,
    model: str | None = None,
    embedding_scale: str = "auto",
    num_attention_heads: int | None = None,
    ignore_keys: Sequence[str] = (),
    **vocabulary,
) -> list[str]:
    """fairseq's checkpoint -> folder of a translation model or of an encoder.

    Args:
        model: `translation`, a VecoForConditionalGeneration, tied where each decoder layer equals an encoder layer; or
            `encoder`, a VecoForMaskedLM, with cross-attention where the decoder is all of the encoder's layers. By
            default what there is.
        embedding_scale: what to do to the word embeddings; see `choose_scale`. A decoder that was trained in fairseq
            keeps its logits: what the words gain, the decoder's last LayerNorm loses. Since the encoder's must not, a
            tied decoder is untied then. Trained in fairseq is every decoder but the released pre-trained one, which is
            all encoder layers again; and that form too where the checkpoint says that fairseq multiplies.

    Returns and raises as `from_native`; ValueError also for a decoder with embeddings of its own.
    """
    require_new(output)
    notes: list[str] = []
    state, settings = read_state(checkpoint)
    state = leave_out(state, ignore_keys, notes)
    depth, decoder_depth = (layer_count(state, rf"{side}\.layers\.(\d+)\..+") for side in ("encoder", "decoder"))
    if not depth:
        raise ValueError(
            f"{checkpoint} has no layer of fairseq's layout: its keys are {', '.join(list(state)[:3])}, ..."
        )
    model = model or ("translation" if decoder_depth else "encoder")
    if model == "translation" and not decoder_depth:
        raise ValueError(f"{checkpoint} has no decoder: leave --model out to get its encoder.")
    indices, is_tied = decoder_origin(state, depth, decoder_depth)
    is_released_form = is_tied and indices == list(range(depth))
    decoder_is_encoder = model == "encoder" and is_released_form
    if decoder_depth:
        equal = "equal to" if is_tied else "not equal to, nearest to,"
        notes.append(f"decoder: {decoder_depth} layers, all but cross-attention {equal} encoder layers {indices}")
        if model == "encoder" and not decoder_is_encoder:
            state = {key: tensor for key, tensor in state.items() if not key.startswith("decoder.")}
            notes.append("decoder: left out; config.cross_attention is false")
    table = fairseq_table(decoder_is_encoder)
    fields = {
        "num_attention_heads": num_attention_heads or settings.get("encoder_attention_heads"),
        "hidden_act": settings.get("activation_fn", "gelu"),
        "cross_attention": decoder_is_encoder,
        "lm_head_transform": False,
        "num_hidden_layers": depth,
        **sizes(state, table, r".+\.fc1\.weight"),
    }
    if model == "translation":
        fields |= {"decoder_layers": decoder_depth, "decoder_layer_indices": indices, "tie_decoder": is_tied}
        fields |= {"is_encoder_decoder": True}
    config = make_config(VecoConfig, fields)
    cls = VecoForConditionalGeneration if model == "translation" else VecoForMaskedLM
    weights = fit(state, cls, config, table, checkpoint, notes)
    notes.append(NO_HEAD)

    multiplies = None if "no_scale_embedding" not in settings else not settings["no_scale_embedding"]
    trained_in_fairseq = bool(decoder_depth) and not is_released_form
    if is_released_form and multiplies:
        trained_in_fairseq = None  # VECO ties its decoders when it fine-tunes (ACL paper, section 6.1): either
    words, positions = weights["roberta." + WORDS], weights["roberta." + POSITIONS]
    tokens = read_vocabulary(words, **vocabulary)
    factor = choose_scale(embedding_scale, words, positions, tokens.reference_RH, trained_in_fairseq, multiplies, notes)
    if factor != 1:
        weights["roberta." + WORDS] = times(words, factor)
    if model == "translation" and factor != 1 and trained_in_fairseq is not False:
        scale_last_norm(weights, decoder_depth, 1 / factor)
        notes.append(f"logits: fairseq's; the decoder's last LayerNorm was divided by {factor:.4g} in return")
        if is_tied:
            config.tie_decoder = False
            notes.append("decoder: untied, config.tie_decoder is false; that LayerNorm is no longer the encoder's")
    elif model == "translation" and factor != 1:
        notes.append(f"logits: {factor:.4g} times fairseq's, since the embeddings are also the output layer")
    return write_folder(cls, config, weights, output, tokens, notes)


def to_native(folder: str, output: str, prefix: str = "bert.") -> list[str]:
    """Folder of any VECO model -> native checkpoint (.bin, .pt or .safetensors) of its encoder and its LM head.

    What the layout has no place for (task heads, a decoder) is left out. Returns and raises as `from_native`.
    """
    require_new(output)
    if prefix and not prefix.endswith("."):
        raise ValueError(f"--prefix {prefix!r} does not end with a dot: write {prefix + '.'!r}.")
    model, notes = load_zoo(folder, VecoModel), []
    state = rename(trained(model), native_table(prefix, has_head=model.config.lm_head_transform), notes)
    save_weights(state, output)
    usual = {"num_attention_heads": model.config.hidden_size // 64, "layer_norm_eps": 1e-5, "hidden_act": "gelu"}
    if lost := {name: getattr(model.config, name) for name in usual if getattr(model.config, name) != usual[name]}:
        notes.append(f"not in the file: {lost}")
    return [f"{len(state)} parameters: {output}", *notes]


def to_fairseq(folder: str, output: str, model: str | None = None, embedding_scale: str = "keep") -> list[str]:
    """Folder of any VECO model -> fairseq checkpoint: `model`, and `args` with the sizes.

    Args:
        model: `translation`: encoder and decoder, of an encoder's folder all layers in both, as in the released one;
            or `encoder`: the encoder alone. By default the first where there is cross-attention.
        embedding_scale: `keep`, for fairseq with --no-scale-embedding; or `divide` the words by sqrt(hidden size), for
            fairseq without it. A translation model keeps its logits: its last LayerNorm is multiplied in return.

    Returns and raises as `from_native`; ValueError also for what fairseq cannot compute.
    """
    require_new(output)
    if output.endswith(".safetensors"):
        raise ValueError(f"{output}: safetensors cannot hold fairseq's settings, name it .pt.")
    zoo, notes = load_zoo(folder, VecoModel), []
    config = zoo.config
    is_translation = isinstance(zoo, VecoForConditionalGeneration)
    model = model or ("translation" if is_translation or config.cross_attention else "encoder")
    if model == "translation" and not is_translation and not config.cross_attention:
        raise ValueError(f"{folder} has no cross-attention to make a decoder of: leave --model out.")
    if model == "translation" and is_translation and (config.lm_head_transform or zoo.lm_head.bias.any()):
        raise ValueError(f"{folder} has an LM head of its own, which fairseq has not: say --model encoder.")
    if config.layer_norm_eps != FAIRSEQ_EPS:
        raise ValueError(f"{folder} has layer_norm_eps {config.layer_norm_eps}, fairseq always {FAIRSEQ_EPS}.")
    weights = trained(zoo)
    root = math.sqrt(config.hidden_size)
    if embedding_scale == "divide":
        words = WORDS if WORDS in weights else "roberta." + WORDS
        weights[words] = times(weights[words], 1 / root)
        notes.append(f"embedding scale: divided by {root:.4g}, for fairseq without --no-scale-embedding")
        if model == "translation" and is_translation:
            scale_last_norm(weights, config.decoder_layers, root)
            notes.append(f"logits: the model's; the decoder's last LayerNorm was multiplied by {root:.4g} in return")
    else:
        notes.append("embedding scale: kept; run fairseq with --no-scale-embedding")
    add_token_type(weights, notes)
    table = fairseq_table(decoder_is_encoder=model == "translation" and not is_translation)
    if model == "encoder":
        table = {ours: [name for name in names if name.startswith("encoder.")] for ours, names in table.items()}
    sides = ("encoder", "decoder") if model == "translation" else ("encoder",)
    versions = {f"{side}.version": torch.tensor([3.0]) for side in sides}
    state = versions | rename(weights, table, notes)
    save_weights({"model": state, "args": fairseq_arguments(config, model, embedding_scale == "keep")}, output)
    return [f"{len(state)} parameters: {output}", *notes]


def native_prefix(state: State, checkpoint: str) -> str:
    """What stands before `encoder.layer` in the names: `bert.`, `roberta.`, nothing, ..."""
    anchors = (re.fullmatch(r"((?:\w+\.)*?)encoder\.layer\.\d+\..+", key) for key in state)
    prefixes = Counter(match[1] for match in anchors if match)
    if not prefixes:
        raise ValueError(
            f"{checkpoint} has no layer of the native layout: its keys are {', '.join(list(state)[:3])}, ..."
        )
    return prefixes.most_common(1)[0][0]


def decoder_origin(state: State, depth: int, decoder_depth: int) -> tuple[list[int], bool]:
    """The encoder layer that each decoder layer is nearest to, and whether all are equal to theirs.

    Compared is what the two share, by squared distance; of equal ones the last n are preferred, as VECO's decoders
    are made.
    """
    shared = [f"{module}.{kind}" for module in FAIRSEQ_LAYER.values() for kind in ("weight", "bias")]

    def distance(layer: int, decoder_layer: int) -> float:
        total = 0.0
        for name in shared:
            one = state.get(f"encoder.layers.{layer}.{name}")
            other = state.get(f"decoder.layers.{decoder_layer}.{name}")
            if one is None or other is None or one.shape != other.shape:
                continue  # reported with all other keys that do not fit
            if not torch.equal(one, other):
                total += (one.float() - other.float()).square().sum().item()
        return total

    indices, is_tied = [], True
    for index in range(decoder_depth):
        usual = depth - decoder_depth + index
        nearest, least = 0, math.inf
        for layer in sorted(range(depth), key=lambda layer: abs(layer - usual)):
            if (found := distance(layer, index)) < least:
                nearest, least = layer, found
            if least == 0:
                break
        indices.append(nearest)
        is_tied = is_tied and least == 0
    return indices, is_tied


def trained(model: PreTrainedModel) -> State:
    """The weights without those that are others' under a second name, and without an LM head's bias of zero."""
    weights = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith("lm_head.decoder.")}
    if "lm_head.bias" in weights and not weights["lm_head.bias"].any() and not model.config.lm_head_transform:
        del weights["lm_head.bias"]
    return weights


def write_folder(
    cls, config: VecoConfig, weights: State, output: str, vocabulary: Vocabulary, notes: list[str]
) -> list[str]:
    """Completes the word embeddings, and writes model and tokenizer. Returns the notes."""
    words, ids = complete_rows(weights["roberta." + WORDS], vocabulary, notes)
    config.vocab_size = len(words)
    bias = weights["lm_head.bias"].new_zeros(len(words))  # it stays 0 for tokens that were added
    bias[torch.searchsorted(ids, vocabulary.ids)] = weights["lm_head.bias"]
    weights |= dict.fromkeys(("lm_head.bias", "lm_head.decoder.bias"), bias)
    weights |= dict.fromkeys(("roberta." + WORDS, "lm_head.decoder.weight"), words)
    model = assemble(cls, config, weights)
    with written_aside(output) as folder:
        model.save_pretrained(folder)
        save_tokenizer(vocabulary.tokenizer, ids, folder)
    return [f"{cls.__name__} of {model.num_parameters():,} parameters: {output}", *notes]


def scale_last_norm(weights: State, decoder_depth: int, factor: float) -> None:
    """Multiplies the decoder's states by a factor: with words divided by it, the logits stay what they were."""
    for kind in ("weight", "bias"):
        key = f"decoder.layer.{decoder_depth - 1}.output.LayerNorm.{kind}"
        weights[key] = times(weights[key], factor)


def fairseq_arguments(config: VecoConfig, model: str, no_scale_embedding: bool) -> argparse.Namespace:
    """What fairseq's `veco_large` would have been called with."""
    sides = {"encoder": config.num_hidden_layers}
    if model == "translation":
        sides["decoder"] = config.decoder_layers or config.num_hidden_layers
    arguments = {"arch": "veco_large", "activation_fn": config.hidden_act, "no_scale_embedding": no_scale_embedding}
    for side, layers in sides.items():
        arguments |= {
            f"{side}_layers": layers,
            f"{side}_embed_dim": config.hidden_size,
            f"{side}_ffn_embed_dim": config.intermediate_size,
            f"{side}_attention_heads": config.num_attention_heads,
            f"{side}_learned_pos": True,
        }
    arguments |= dict.fromkeys(("layernorm_embedding", "share_all_embeddings"), True)
    arguments |= dict.fromkeys(("max_source_positions", "max_target_positions"), config.longest_input)
    return argparse.Namespace(**arguments)


DESCRIPTION = """Converts VECO's original checkpoints into folders of this zoo, and back.

Files are read without running code in them. Keys that are missing, left over or of the wrong shape are all listed, and
nothing is written then. What was found and done is printed, a line each."""

FROM_NATIVE = """native names (encoder.layer.0.cross_attention.self.query.weight, ...) -> folder of an encoder

  python -m modeling.convert_veco from-native pytorch_model.bin runs/veco --tokenizer FacebookAI/xlm-roberta-large

A pooler has no place in the folder: --ignore_keys 'bert\\.pooler\\..*'. Word embeddings are kept as they are; with
--reference, rows of another scale, or of other tokens, are an error."""

FROM_FAIRSEQ = """fairseq's names (encoder.layers.0.fc1.weight, ...) -> folder of a translation model or an encoder

  python -m modeling.convert_veco from-fairseq model.pt runs/veco --model encoder \\
      --tokenizer FacebookAI/xlm-roberta-large

The released pre-trained file has all layers in encoder and decoder: with --model encoder it becomes an encoder with
cross-attention, which VecoForConditionalGeneration.from_encoder makes translation models of, of any depth.

fairseq multiplies word embeddings by sqrt(hidden size) when it looks them up, XLM-R and this zoo do not. A decoder that
was trained in fairseq (any but all encoder layers again) is converted as the file's args say, and keeps its logits. The
rows of the pre-trained file are examined for which of the two they are made for; --reference makes that certain."""

TO_NATIVE = """folder -> native names

  python -m modeling.convert_veco to-native runs/veco/model pytorch_model.bin"""

TO_FAIRSEQ = """folder -> a fairseq checkpoint, {"model": ..., "args": ...}

  python -m modeling.convert_veco to-fairseq runs/veco/model model.pt

An encoder with cross-attention becomes a translation model with all layers in encoder and decoder, as the released one.
fairseq itself was not run on what is written."""


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exit code 2 and a message where the user has to act."""
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(prog="python -m modeling.convert_veco", description=DESCRIPTION, **style)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    reading = argparse.ArgumentParser(add_help=False)
    add_option = reading.add_argument
    add_option("--tokenizer", required=True, metavar="DIR|ID", help="XLM-R's tokenizer, copied into the folder")
    add_option("--reference", metavar="DIR|ID", help="XLM-R or VECO checkpoint, for comparison and for missing rows")
    add_option(
        "--vocabulary_map",
        metavar="FILE",
        help="of a pruned vocabulary: 0 or 1 a line, for all tokens or for those of fairseq's dict.txt",
    )
    add_option("--fill_vocabulary", action="store_true", help="take rows that the file lacks from --reference")
    add_reading_options(reading)
    kind = argparse.ArgumentParser(add_help=False)
    kind.add_argument(
        "--model",
        choices=["translation", "encoder"],
        help="what the result is (default: translation where there is a decoder or cross-attention for one)",
    )

    def command(convert, description: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        name, files = convert.__name__.replace("_", "-"), ["FOLDER", "FILE"]
        source, target = files[::-1] if reading in parents else files
        short = description.splitlines()[0]
        added = commands.add_parser(name, help=short, description=description, parents=parents, **style)
        added.set_defaults(convert=convert)
        added.add_argument("source", metavar=source, help="what to convert")
        added.add_argument("output", metavar=target, help="what to write; must not exist")
        return added

    command(from_native, FROM_NATIVE, reading)
    command(from_fairseq, FROM_FAIRSEQ, reading, kind).add_argument(
        "--embedding_scale",
        choices=["auto", "keep", "multiply", "divide"],
        default="auto",
        help="what to do to the word embeddings, by sqrt(hidden size); auto: as the file shows, or an error where it "
        "does not (default: auto)",
    )
    command(to_native, TO_NATIVE).add_argument(
        "--prefix", default="bert.", help="what the names begin with, '' for nothing (default: bert.)"
    )
    command(to_fairseq, TO_FAIRSEQ, kind).add_argument(
        "--embedding_scale",
        choices=["keep", "divide"],
        default="keep",
        help="keep: for fairseq with --no-scale-embedding. divide: by sqrt(hidden size), for fairseq without "
        "(default: keep)",
    )
    arguments = vars(parser.parse_args(argv))
    name, convert, source, output = (arguments.pop(key) for key in ("command", "convert", "source", "output"))
    run(f"convert_veco {name}", lambda: convert(source, output, **arguments))


if __name__ == "__main__":
    main()
