"""VECO's original checkpoints in this zoo's form, and back: the four conversions, each to a folder or a file.

The layouts are in `convert_veco_layouts`, the rows of the vocabulary in `convert_vocabulary`.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from .configuration_veco import VecoConfig
from .convert_files import load_zoo, read_checkpoint, require_new, save_weights, written_aside
from .convert_veco_layouts import (
    POSITIONS,
    TOKEN_TYPES,
    WORDS,
    decoder_origin,
    fairseq_names,
    is_of_encoder,
    native_names,
    native_prefix,
    not_this_layout,
)
from .convert_vocabulary import (
    check_scale,
    choose_scale,
    complete_rows,
    load_tokenizer,
    read_vocabulary_map,
    save_tokenizer,
    times,
    tokens_of_rows,
)
from .convert_weights import (
    State,
    assemble,
    attention_heads,
    fit,
    known_activation,
    layer_count,
    leave_out,
    rows_of,
    widths,
)
from .modeling_veco import (
    VecoForConditionalGeneration,
    VecoForMaskedLM,
    VecoForPreTraining,
    VecoForQuestionAnswering,
    VecoForSequenceClassification,
    VecoForTokenClassification,
    VecoModel,
)

FAIRSEQ_EPS = 1e-5  # of its LayerNorm; it has no option for it
CLASSES = (
    VecoModel,
    VecoForPreTraining,
    VecoForMaskedLM,
    VecoForSequenceClassification,
    VecoForTokenClassification,
    VecoForQuestionAnswering,
    VecoForConditionalGeneration,
)
NO_HEAD = "LM head: none in the layout; logits are states times embeddings, config.lm_head_transform is false"


@dataclass
class Vocabulary:
    """What the tokens of a checkpoint are: see the options of the command line."""

    tokenizer: str
    map: str | None = None
    fill: bool = False
    reference: str | None = None


def from_native(
    checkpoint: str,
    output: str,
    vocabulary: Vocabulary,
    num_attention_heads: int | None = None,
    ignore_keys: Sequence[str] = (),
) -> list[str]:
    """Native checkpoint -> folder of a VecoForMaskedLM, which every Auto class loads.

    The original has no LM head of its own: `lm_head_transform` is false then, and logits are states times embeddings.
    XLM-R's is taken where it is there. Word embeddings are kept as they are, and compared with those of a reference
    (`check_scale`). Returns what was found and done, a sentence each.

    Raises ValueError for all keys that are missing, left over or of the wrong shape at once, and for what
    `convert_vocabulary` and `convert_files` refuse; nothing is written then.
    """
    require_new(output)
    notes: list[str] = []
    state, settings = read_checkpoint(checkpoint)
    state = leave_out(state, ignore_keys, notes)
    prefix = native_prefix(state, checkpoint)
    has_head = any(key.startswith("lm_head.") for key in state)
    layer = rf"{re.escape(prefix)}encoder\.layer\.(\d+)\."
    has_cross = layer_count(state, rf"{layer}cross_attention\..+") > 0
    if not has_cross:
        notes.append("cross-attention: the checkpoint has none; config.cross_attention is false")
    if not has_head:
        notes.append(NO_HEAD)
    fields = {
        "vocab_size": rows_of(state, prefix + WORDS, 250002),
        "max_position_embeddings": rows_of(state, prefix + POSITIONS, 514),
        "type_vocab_size": rows_of(state, prefix + TOKEN_TYPES, 1),
        "cross_attention": has_cross,
        "lm_head_transform": has_head,
        "num_hidden_layers": layer_count(state, rf"{layer}.+"),
        **widths(state, r".+\.intermediate\.dense\.weight"),
    }
    config = make_config(fields, settings, num_attention_heads)
    names = partial(native_names, prefix=prefix, has_head=has_head)
    weights = fit(state, VecoForMaskedLM, config, names, f"{checkpoint} and the native layout", notes)
    return write_folder(VecoForMaskedLM, config, weights, output, vocabulary, notes, partial(check_scale, notes=notes))


def from_fairseq(
    checkpoint: str,
    output: str,
    vocabulary: Vocabulary,
    model: str | None = None,
    embedding_scale: str = "auto",
    num_attention_heads: int | None = None,
    ignore_keys: Sequence[str] = (),
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
    state, settings = read_checkpoint(checkpoint)
    state = leave_out(state, ignore_keys, notes)
    depth, decoder_depth = (layer_count(state, rf"{side}\.layers\.(\d+)\..+") for side in ("encoder", "decoder"))
    if not depth:
        raise not_this_layout(state, checkpoint, "fairseq's, encoder.layers.0.self_attn.q_proj.weight, ...")
    indices, is_tied = decoder_origin(state, depth, decoder_depth)
    model = model or ("translation" if decoder_depth else "encoder")
    if model == "translation" and not decoder_depth:
        raise ValueError(
            f"{checkpoint} has no decoder: no translation model can be made of it. Leave --model out to get its "
            "encoder."
        )
    is_released_form = is_tied and indices == list(range(depth))
    decoder_is_encoder = model == "encoder" and is_released_form
    if decoder_depth:
        equal = "equal to" if is_tied else "not equal to, nearest to,"
        notes.append(f"decoder: {decoder_depth} layers, all but cross-attention {equal} encoder layers {indices}")
        if model == "encoder" and not decoder_is_encoder:
            state = {key: tensor for key, tensor in state.items() if not key.startswith("decoder.")}
            notes.append("decoder: left out; config.cross_attention is false")
    fields = {
        "vocab_size": rows_of(state, "encoder.embed_tokens.weight", 250002),
        "max_position_embeddings": rows_of(state, "encoder.embed_positions.weight", 514),
        "cross_attention": decoder_is_encoder,
        "lm_head_transform": False,
        "num_hidden_layers": depth,
        **widths(state, r".+\.fc1\.weight"),
    }
    if model == "translation":
        fields |= {"decoder_layers": decoder_depth, "decoder_layer_indices": indices, "tie_decoder": is_tied}
        fields |= {"is_encoder_decoder": True}
    config = make_config(fields, settings, num_attention_heads)
    cls = VecoForConditionalGeneration if model == "translation" else VecoForMaskedLM
    names = partial(fairseq_names, decoder_is_encoder=decoder_is_encoder)
    weights = fit(state, cls, config, names, f"{checkpoint} and fairseq's layout", notes)
    notes.append(NO_HEAD)

    multiplies = None if "no_scale_embedding" not in settings else not settings["no_scale_embedding"]
    trained_in_fairseq = bool(decoder_depth) and not is_released_form
    if is_released_form and multiplies:
        trained_in_fairseq = None  # VECO ties its decoders when it fine-tunes (ACL paper, section 6.1): either

    def scale(*rows):
        factor = choose_scale(embedding_scale, *rows, trained_in_fairseq, multiplies, notes)
        if model == "translation" and factor != 1 and trained_in_fairseq is not False:
            scale_last_norm(weights, decoder_depth, 1 / factor)
            notes.append(f"logits: fairseq's; the decoder's last LayerNorm was divided by {factor:.4g} in return")
            if is_tied:
                config.tie_decoder = False
                notes.append("decoder: untied, config.tie_decoder is false; that LayerNorm is no longer the encoder's")
        elif model == "translation" and factor != 1:
            notes.append(f"logits: {factor:.4g} times fairseq's, since the embeddings are also the output layer")
        return factor

    return write_folder(cls, config, weights, output, vocabulary, notes, scale)


def to_native(folder: str, output: str, prefix: str = "bert.") -> list[str]:
    """Folder of any VECO model -> native checkpoint (.bin, .pt or .safetensors) of its encoder and its LM head.

    What the layout has no place for (task heads, a decoder) is left out. Returns and raises as `from_native`.
    """
    require_new(output)
    if prefix and not prefix.endswith("."):
        raise ValueError(
            f"--prefix {prefix!r} does not end with a dot: it stands before 'encoder.layer.0. ...' as it is. Write "
            f"{prefix + '.'!r}, or '' for none."
        )
    model = load_zoo(folder, CLASSES, "VECO")
    state, left_out = {}, []
    for key, tensor in trained(model).items():
        if is_of_encoder(key) or (key.startswith("lm_head.") and model.config.lm_head_transform):
            state[native_names(key, prefix, has_head=True)[0]] = tensor
        else:
            left_out.append(key)
    save_weights(state, output)
    notes = [f"{len(state)} parameters: {output}", *describe_left_out(left_out)]
    usual = {"num_attention_heads": model.config.hidden_size // 64, "layer_norm_eps": 1e-5, "hidden_act": "gelu"}
    if lost := {name: getattr(model.config, name) for name in usual if getattr(model.config, name) != usual[name]}:
        notes.append(f"not in the file, and to be told to whoever reads it: {lost}")
    return notes


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
        raise ValueError(
            f"{output} is named as safetensors: a fairseq checkpoint also holds settings, which that format cannot. "
            "Name it .pt."
        )
    zoo = load_zoo(folder, CLASSES, "VECO")
    config, notes = zoo.config, []
    is_translation = isinstance(zoo, VecoForConditionalGeneration)
    model = model or ("translation" if is_translation or config.cross_attention else "encoder")
    if model == "translation":
        check_translation(zoo, folder, is_translation)
    if config.layer_norm_eps != FAIRSEQ_EPS:
        raise ValueError(
            f"{folder} has layer_norm_eps {config.layer_norm_eps}: fairseq's LayerNorm always takes {FAIRSEQ_EPS}, and "
            "would compute other states. Such a model cannot be converted."
        )
    ours = trained(zoo)
    prefix = "" if isinstance(zoo, VecoModel) else "roberta."
    root = config.hidden_size**0.5
    if embedding_scale == "divide":
        ours[prefix + WORDS] = times(ours[prefix + WORDS], 1 / root)
        notes.append(f"embedding scale: divided by {root:.4g}, for fairseq without --no-scale-embedding")
        if model == "translation" and is_translation:
            scale_last_norm(ours, config.decoder_layers, root)
            notes.append(f"logits: the model's; the decoder's last LayerNorm was multiplied by {root:.4g} in return")
    else:
        notes.append("embedding scale: kept; run fairseq with --no-scale-embedding")
    constant_H = ours[prefix + TOKEN_TYPES][0]
    if constant_H.any():
        ours[prefix + POSITIONS] = ours[prefix + POSITIONS] + constant_H
        notes.append("token type: fairseq has none; the constant was added to the position embeddings")
    if config.type_vocab_size > 1:
        notes.append(f"token types: only the first of {config.type_vocab_size} was taken, fairseq has none")

    state = {f"{side}.version": torch.tensor([3.0]) for side in ("encoder", "decoder")}
    decoder_is_encoder = model == "translation" and not is_translation
    left_out = []
    for key, tensor in ours.items():
        if is_of_encoder(key) or (key.startswith("decoder.") and model == "translation"):
            state |= dict.fromkeys(fairseq_names(key, decoder_is_encoder), tensor)
        else:
            left_out.append(key)
    if model == "encoder":
        left_out += [key for key in ours if ".crossattention." in key and is_of_encoder(key)]
        state = {key: tensor for key, tensor in state.items() if not key.startswith("decoder.")}
    save_weights({"model": state, "args": fairseq_arguments(config, model, embedding_scale == "keep")}, output)
    return [f"{len(state)} parameters: {output}", *notes, *describe_left_out(left_out)]


def trained(model: PreTrainedModel) -> State:
    """The weights without those that are others' under a second name, and without an LM head's bias of zero."""
    weights = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith("lm_head.decoder.")}
    if "lm_head.bias" in weights and not weights["lm_head.bias"].any() and not model.config.lm_head_transform:
        del weights["lm_head.bias"]
    return weights


def make_config(fields: dict, settings: dict, num_attention_heads: int | None) -> VecoConfig:
    """The configuration: shapes do not tell the heads, which are fairseq's own or one for 64 dimensions, as in XLM-R.

    Raises ValueError for heads that do not divide the hidden size, and for an unknown activation.
    """
    hidden = fields.get("hidden_size", VecoConfig.hidden_size)
    heads = attention_heads(hidden, num_attention_heads or settings.get("encoder_attention_heads"))
    activation = known_activation(settings.get("activation_fn", "gelu"))
    return VecoConfig(**fields, num_attention_heads=heads, hidden_act=activation)


def write_folder(
    cls,
    config: VecoConfig,
    weights: State,
    output: str,
    vocabulary: Vocabulary,
    notes: list[str],
    scale: Callable[..., float],
) -> list[str]:
    """Fits the word embeddings to the tokenizer, and writes model and tokenizer. Returns the notes.

    Args:
        scale: factor of the words, from the words, the positions and the reference's rows or None.
    """
    words, positions = weights["roberta." + WORDS], weights["roberta." + POSITIONS]
    tokenizer = load_tokenizer(vocabulary.tokenizer)
    size = len(tokenizer)
    tokens = tokens_of_rows(len(words), size, read_vocabulary_map(vocabulary.map, size) if vocabulary.map else None)
    reference = None
    if vocabulary.reference:
        reference = reference_words(vocabulary.reference, (size, words.shape[1]))
    factor = scale(words, positions, None if reference is None else reference[tokens])
    words = words if factor == 1 else times(words, factor)
    words, all_tokens = complete_rows(words, tokens, size, reference, vocabulary.fill, notes)
    config.vocab_size = len(words)
    bias = weights["lm_head.bias"].new_zeros(len(words))  # it stays 0 for tokens that were added
    bias[torch.searchsorted(all_tokens, tokens)] = weights["lm_head.bias"]
    weights |= dict.fromkeys(("lm_head.bias", "lm_head.decoder.bias"), bias)
    weights |= dict.fromkeys(("roberta." + WORDS, "lm_head.decoder.weight"), words)
    model = assemble(cls, config, weights)
    with written_aside(output) as folder:
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, all_tokens, folder)
    return [f"{cls.__name__} of {model.num_parameters():,} parameters: {output}", *notes]


def reference_words(name: str, shape: tuple[int, int]) -> torch.Tensor:
    """Word embeddings (V, H) of an XLM-R or VECO folder."""
    try:
        model, report = VecoModel.from_pretrained(name, cross_attention=False, output_loading_info=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(
            f"the reference {name!r} cannot be loaded: {str(error).splitlines()[0]} Rows are compared with it. Give an "
            "XLM-R or VECO folder, or a Hub id that can be reached."
        ) from error
    if report["missing_keys"]:
        raise ValueError(
            f"the reference {name!r} lacks {', '.join(sorted(report['missing_keys'])[:3])}, ...: it is no model of "
            "XLM-R's shape, and its rows mean nothing here. Give an XLM-R or VECO folder."
        )
    rows = model.embeddings.word_embeddings.weight.detach()
    if tuple(rows.shape) != shape:
        raise ValueError(
            f"the reference {name!r} has word embeddings {tuple(rows.shape)}, and tokenizer and checkpoint {shape}: "
            "rows of the two are not those of the same tokens. Give the XLM-R checkpoint that VECO started from."
        )
    return rows


def scale_last_norm(weights: State, decoder_depth: int, factor: float) -> None:
    """Multiplies the decoder's states by a factor: with words divided by it, the logits stay what they were."""
    for kind in ("weight", "bias"):
        key = f"decoder.layer.{decoder_depth - 1}.output.LayerNorm.{kind}"
        weights[key] = times(weights[key], factor)


def check_translation(zoo, folder: str, is_translation: bool) -> None:
    """Raises ValueError for a model that fairseq's decoder cannot be made of, or whose logits it cannot compute."""
    advice = "--model encoder converts the encoder alone."
    if not is_translation and not zoo.config.cross_attention:
        raise ValueError(
            f"{folder} has no cross-attention: a decoder cannot be made of it. Leave --model out, or say encoder."
        )
    if is_translation and (zoo.config.lm_head_transform or zoo.lm_head.bias.any()):
        part = "dense and LayerNorm" if zoo.config.lm_head_transform else "a bias"
        raise ValueError(
            f"{folder} has {part} in its LM head: fairseq multiplies states and embeddings, and nothing else, and "
            f"would compute other logits. {advice}"
        )


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
    longest = config.longest_input
    return argparse.Namespace(
        **arguments,
        layernorm_embedding=True,
        share_all_embeddings=True,
        max_source_positions=longest,
        max_target_positions=longest,
    )


def describe_left_out(keys: list[str]) -> list[str]:
    """One sentence that names the modules the layout has no place for."""
    parts = {"cross-attention" if is_of_encoder(key) else key.split(".")[0] for key in keys}
    return [f"left out, since the layout has no place for it: {', '.join(sorted(parts))}"] if parts else []
