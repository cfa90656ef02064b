# SPDX-License-Identifier: Apache-2.0
"""Converts the original checkpoints of VECO and ERNIE-M, whose code no longer runs, into folders of this zoo.

  python -m crosslingual_zoo.hub_cards.convert veco model.pt runs/veco --tokenizer FacebookAI/xlm-roberta-large
  python -m crosslingual_zoo.hub_cards.convert ernie_m saved_by_transformers_4 runs/ernie_m

A layout is a table: patterns of its names -> ours, replaced one after the other. Known from public code are
- VECO, native: BERT's names or XLM-R's, `cross_attention` in each layer, LayerNorm perhaps `gamma` and `beta`;
- VECO, fairseq: an encoder, and a decoder whose `encoder_attn` is VECO's cross-attention. Its words may lack the row of
  <mask>, or be pruned by the authors' `resized_dict_map.txt`;
- ERNIE-M, transformers 4: `encoder.layers.0.self_attn.self_attn.q_proj.weight`, behind `ernie_m.` if there is a head;
- ERNIE-M, PaddleNLP: the same without the doubled `self_attn`, weights (in, out), all heads above a pooler;
- ERNIE-M, static graph, the authors' own: a file a variable, `encoder_layer_0_multi_head_att_query_fc.w_0`, (in, out).

Files are read without Paddle, and no code in them runs. For weights that do not fit, nothing is written.
"""

import argparse
import json
import math
import pickle
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

if __name__ == "__main__":  # before the imports, which take seconds
    print("loading libraries", file=sys.stderr, flush=True)

import numpy as np
import safetensors.torch
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from crosslingual_zoo.modeling.configuration_encoder import EncoderConfig
from crosslingual_zoo.modeling.configuration_ernie_m import ErnieMConfig
from crosslingual_zoo.modeling.configuration_veco import VecoConfig
from crosslingual_zoo.modeling.layer_states import check_finite
from crosslingual_zoo.modeling.modeling_ernie_m import (
    ErnieMForQuestionAnswering,
    ErnieMForSequenceClassification,
    ErnieMForTokenClassification,
    ErnieMModel,
)
from crosslingual_zoo.modeling.modeling_veco import VecoForConditionalGeneration, VecoForMaskedLM
from crosslingual_zoo.modeling.tokenization_ernie_m import FILES, ErnieMTokenizer

State = dict[str, Tensor]
Names = dict[str, str]
Config = TypeVar("Config", bound=EncoderConfig)

WORDS = "roberta.embeddings.word_embeddings.weight"
POSITIONS = "roberta.embeddings.position_embeddings.weight"
TOKEN_TYPES = "roberta.embeddings.token_type_embeddings.weight"
ATTENTION: Names = {
    r"attention\.q_proj\.": "attention.self.query.",
    r"attention\.k_proj\.": "attention.self.key.",
    r"attention\.v_proj\.": "attention.self.value.",
    r"attention\.out_proj\.": "attention.output.dense.",
}
VECO_NATIVE: Names = {
    r"^(\w+\.)*?(?=(embeddings|encoder)\.)": "roberta.",
    r"\.cross_attention\.": ".crossattention.",
    r"\.LayerNorm\.gamma$": ".LayerNorm.weight",
    r"\.LayerNorm\.beta$": ".LayerNorm.bias",
    r"^lm_head\.decoder\.weight$": WORDS,
    r"^lm_head\.decoder\.bias$": "lm_head.bias",
}
VECO_FAIRSEQ: Names = {
    r"^((en|de)coder\.embed_tokens|decoder\.output_projection)\.": "roberta.embeddings.word_embeddings.",
    r"^(en|de)coder\.embed_positions\.": "roberta.embeddings.position_embeddings.",
    r"^(en|de)coder\.layernorm_embedding\.": "roberta.embeddings.LayerNorm.",
    r"^encoder\.layers\.": "roberta.encoder.layer.",
    r"^decoder\.layers\.": "decoder.layer.",
    r"\.self_attn(?=[._])": ".attention",
    r"\.encoder_attn(?=[._])": ".crossattention",
    **ATTENTION,
    r"attention_layer_norm\.": "attention.output.LayerNorm.",
    r"\.fc1\.": ".intermediate.dense.",
    r"\.fc2\.": ".output.dense.",
    r"\.final_layer_norm\.": ".output.LayerNorm.",
}
# for a file that has the encoder's layers twice: the decoder's are the same, and have cross-attention
VECO_ONE_STACK: Names = {r"^decoder\.layer\.": "roberta.encoder.layer."}
ERNIE_M: Names = {
    r"^(ernie_m\.)?(?=(embeddings|encoder|pooler)\.)": "roberta.",
    r"\.layer_norm\.": ".LayerNorm.",
    r"\.layers\.": ".layer.",
    r"(\.self_attn)+\.": ".attention.",
    **ATTENTION,
    r"\.norm1\.": ".attention.output.LayerNorm.",
    r"\.linear1\.": ".intermediate.dense.",
    r"\.linear2\.": ".output.dense.",
    r"\.norm2\.": ".output.LayerNorm.",
}
ERNIE_M_STATIC: Names = {
    r"^word_embedding$": WORDS,
    r"^pos_embedding$": POSITIONS,
    r"^pre_encoder_layer_norm": "roberta.embeddings.LayerNorm",
    r"^pooled_fc": "roberta.pooler.dense",
    r"^encoder_layer_(\d+)_": r"roberta.encoder.layer.\1.",
    r"\.multi_head_att_(query|key|value)_fc": r".attention.self.\1",
    r"\.multi_head_att_output_fc": ".attention.output.dense",
    r"\.post_att_layer_norm": ".attention.output.LayerNorm",
    r"\.ffn_fc_0": ".intermediate.dense",
    r"\.ffn_fc_1": ".output.dense",
    r"\.post_ffn_layer_norm": ".output.LayerNorm",
    r"^cls(_seq_label)?_out": "classifier",
    r"^cls_mrc_out": "qa_outputs",
    r"(\.w_0|_scale|_w)$": ".weight",
    r"(\.b_0|_bias|_b)$": ".bias",
}
# PaddleNLP has one name for the last map of every head
PADDLE_SPANS: Names = {r"^classifier\.": "qa_outputs."}


class Layout(NamedTuple):
    """A layout: a pattern that one of its names has (`mark`), its table; and are matrices (in, out), as Paddle's?"""

    name: str
    mark: str
    names: Names
    is_paddle: bool = False


# the first whose mark is found
VECO_LAYOUTS = (Layout("fairseq", r"^encoder\.layers\.\d+\.fc1\.", VECO_FAIRSEQ), Layout("native", "", VECO_NATIVE))
ERNIE_M_LAYOUTS = (
    Layout("static graph", r"^word_embedding$", ERNIE_M_STATIC, is_paddle=True),
    Layout("transformers 4", r"\.self_attn\.self_attn\.", ERNIE_M),
    Layout("PaddleNLP", "", ERNIE_M, is_paddle=True),
)
# what libraries and optimizers keep for themselves
BOOKKEEPING = re.compile(
    r"(encoder|decoder)\.(version|embed_positions\._float_tensor)|(.+\.)?embeddings\.position_ids"
    r"|.*_moment[12]_0|.*_beta[12]_pow_acc_0|(scheduled_)?learning_rate.*|@.*@|.*loss_scaling.*|num_(good|bad).*"
)
ERNIE_M_HEADS = {
    "base": ErnieMModel,
    "sequence": ErnieMForSequenceClassification,
    "token": ErnieMForTokenClassification,
    "question_answering": ErnieMForQuestionAnswering,
}
# PaddleNLP keeps the pooler below every head
HEADS_WITHOUT_POOLER = ("token", "question_answering")
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "*.pdparams")
CONFIGS = ("config.json", "model_config.json", "ernie_config.json")
# fields of a foreign configuration that are written anew, or of no effect here
NOT_KEPT = (
    "architectures",
    "auto_map",
    "model_type",
    "transformers_version",
    "_name_or_path",
    "act_dropout",
    "use_cache",
    "position_embedding_type",
)
ASSUMED = ("num_attention_heads", "hidden_act", "layer_norm_eps")  # where no configuration says it
XLM_R = "FacebookAI/xlm-roberta-base"  # all sizes of XLM-R have one vocabulary
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3 in XLM-R; <mask> is the last
NEVER = -1e4  # logit of a token that a model cannot predict

# What pickles of arrays are made with, by module. Anything else could run code.
ALLOWED = {
    "numpy": ("ndarray", "dtype"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.numeric": ("_frombuffer",),
    "collections": ("OrderedDict",),
    "builtins": ("tuple",),  # (name, array), as newer versions of Paddle write a parameter
    "__builtin__": ("tuple",),
    "_codecs": ("encode",),  # how protocol 2 holds bytes
}
# Paddle's VarType.Type, by number
PADDLE_TYPES = (np.bool_, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64)


class ArrayUnpickler(pickle.Unpickler):
    """Loads arrays, numbers, texts and their containers; any other object is refused before it is made."""

    def find_class(self, module: str, name: str) -> Any:
        """The library's, for what `ALLOWED` lists. Raises UnpicklingError for anything else."""
        module = module.replace("numpy.core.", "numpy._core.")  # its name before numpy 2
        if name not in ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f"objects of {module}.{name}")
        return super().find_class(module, name)


def read_pdparams(path: Path) -> State:
    """Names and tensors of a `.pdparams` file, a pickle. Raises TypeError for entries that are no arrays of numbers."""
    with open(path, "rb") as file:
        content = ArrayUnpickler(file).load()
    content.pop("StructuredToParameterName@@", None)  # Paddle's own names
    state = {}
    for key, value in content.items():
        array = value[1] if isinstance(value, tuple) else value
        state[key] = torch.from_numpy(array).contiguous()
    return state


def read_variable(path: Path) -> Tensor | None:
    """The tensor of a variable of Paddle's static graph; None for a file of another format.

    The format: a 32-bit version, a 64-bit number of levels, again a version, all 0; the length of a protobuf message
    with type (field 1) and sizes (field 2); the message; the numbers. Raises ValueError for a damaged one.
    """
    with open(path, "rb") as file:
        if file.read(16) != bytes(16):
            return None
        length = int.from_bytes(file.read(4), "little")
        numbers = read_varints(file.read(length))
        content = file.read()
    fields = list(zip(numbers[::2], numbers[1::2], strict=False))  # tag, value
    kind = dict(fields).get(0x08, -1)
    shape = [value for tag, value in fields if tag == 0x10]
    is_known = 0 <= kind < len(PADDLE_TYPES)
    if not is_known or math.prod(shape) * np.dtype(PADDLE_TYPES[kind]).itemsize != len(content):
        raise ValueError(f"{path.name}, a variable of type {kind} and shape {shape}, is damaged")
    return torch.from_numpy(np.frombuffer(bytearray(content), PADDLE_TYPES[kind]).reshape(shape))


def read_varints(message: bytes) -> list[int]:
    """Protobuf's numbers: seven bits a byte, the lowest first; the last byte of a number has no eighth bit."""
    numbers = []
    value = 0
    shift = 0
    for byte in message:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(value)
            value = 0
            shift = 0
    return numbers


def read_state(source: str | Path) -> tuple[State, dict[str, Any]]:
    """A state dict and the settings in its file: `args` of fairseq's {"model": ..., "args": ...}, else none.

    Read are .safetensors, Paddle's .pdparams, a folder of Paddle's static variables, and what torch.save wrote. Raises
    ValueError for a file that cannot be read, and for one that holds other things than tensors and settings.
    """
    path = Path(source)
    try:
        content = read_content(path)
    except Exception as error:  # unpicklers raise anything
        objects = re.search(r"(?:GLOBAL|objects of) (\S+)", str(error))
        why = f"it holds objects of {objects[1]}, which could run code" if objects else str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read: {type(error).__name__}, {why}") from error
    settings = None
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        settings = content.get("args")
        content = content["model"]
    if not isinstance(content, dict) or not content or not all(torch.is_tensor(value) for value in content.values()):
        raise ValueError(f"{path} must be a state dict of tensors only.")
    return content, vars(settings) if isinstance(settings, argparse.Namespace) else {}


def read_content(path: Path) -> Any:
    """What a file, or a folder of static variables, holds."""
    if path.is_dir():
        variables = {file.name: read_variable(file) for file in sorted(path.iterdir()) if file.is_file()}
        return {name: variable for name, variable in variables.items() if variable is not None}
    if path.suffix == ".pdparams":
        return read_pdparams(path)
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    # a Namespace is a plain holder of attributes, in which fairseq keeps its command line
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def rename(state: State, names: Names, ignore_keys: Sequence[str] = ()) -> State:
    """The weights under our names, without bookkeeping and keys that one of `ignore_keys` matches as a whole.

    Raises ValueError for a pattern that matches none, and for two weights that the model shares and that differ.
    """
    for pattern in ignore_keys:
        if not any(re.fullmatch(pattern, key) for key in state):
            raise ValueError(f"--ignore_keys {pattern!r} matches no key: it must match a whole key.")
    renamed: State = {}
    for key, tensor in state.items():
        if BOOKKEEPING.fullmatch(key) or any(re.fullmatch(pattern, key) for pattern in ignore_keys):
            continue
        name = key
        for pattern, ours in names.items():
            name = re.sub(pattern, ours, name)
        if name in renamed and not renamed[name].equal(tensor):
            raise ValueError(f"{key} differs from another weight that becomes {name}, with which the model shares it.")
        renamed[name] = tensor
    return renamed


def layout_of(state: State, layouts: Sequence[Layout]) -> Layout:
    """The layout of these weights."""
    return next(layout for layout in layouts if has_name(state, layout.mark))


def has_name(state: State, pattern: str) -> bool:
    """Whether a name of these weights matches, in any part of it."""
    return any(re.search(pattern, key) for key in state)


def make_config(cls: type[Config], state: State, source: str, fields: dict[str, Any]) -> Config:
    """The configuration: `fields`, and what the shapes say; heads of 64 dimensions where no field says how many.

    Raises ValueError as the class does, for weights of another layout, and for a hidden size that no such heads divide.
    """
    layers = [int(match[1]) for key in state if (match := re.match(r"roberta\.encoder\.layer\.(\d+)\.", key))]
    if WORDS not in state or not layers:
        raise ValueError(f"{source} is of no layout that is known: its first name is {next(iter(state))}.")
    matrices = {
        "vocab_size": WORDS,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": TOKEN_TYPES,
        "intermediate_size": "roberta.encoder.layer.0.intermediate.dense.weight",
    }
    rows = {field: len(state[name]) for field, name in matrices.items() if name in state}
    size = state[WORDS].shape[-1]
    fields = {**rows, "hidden_size": size, "num_hidden_layers": max(layers) + 1, **fields}
    if not fields.get("num_attention_heads"):
        if size % 64:
            raise ValueError(f"hidden size {size} does not fit heads of 64: give --num_attention_heads.")
        fields["num_attention_heads"] = size // 64
    return cls.from_dict(fields)


def build(cls: type[PreTrainedModel], config: EncoderConfig, state: State, source: str) -> PreTrainedModel:
    """The model of these weights in their own type.

    Raises ValueError for weights that are missing, left over, of another shape, or no finite numbers.
    """
    with torch.device("meta"):
        model = cls(config)
    if WORDS not in model.state_dict():  # the encoder by itself
        state = {name.removeprefix("roberta."): tensor for name, tensor in state.items()}
    try:
        left = model.load_state_dict(state, strict=False, assign=True).unexpected_keys
    except RuntimeError as error:
        raise ValueError(f"{source} does not fit: {' '.join(str(error).split())}") from error
    model.tie_weights()
    if left:
        raise ValueError(f"{source} has {len(left)} weights, {left[0]}, ..., not in {cls.__name__}: see --ignore_keys.")
    missing = [name for name, weight in model.named_parameters() if weight.is_meta]
    if missing:
        raise ValueError(f"{source} lacks {len(missing)} weights of {cls.__name__}: {missing[0]}, ...")
    check_finite(model, source)
    return model


def xlm_r_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """XLM-R's tokenizer. Raises ValueError for one whose special tokens have other ids than XLM-R's."""
    # a tokenizer needs no code of the folder; without this argument, transformers asks the user to run it
    tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(name, trust_remote_code=False))
    vocabulary = tokenizer.get_vocab()
    expected = {token: index for index, token in enumerate(SPECIAL_TOKENS)} | {"<mask>": len(tokenizer) - 1}
    ids = {token: vocabulary.get(token) for token in expected}
    if ids != expected:
        raise ValueError(f"the tokenizer {name!r} has the special tokens {ids}, an XLM-R tokenizer {expected}.")
    return tokenizer


def require_new(output: str) -> None:
    """Raises ValueError for an output that exists, except for an empty folder."""
    path = Path(output)
    if path.is_file() or path.is_dir() and any(path.iterdir()):
        raise ValueError(f"{output} exists and is not empty: name another output, or remove it.")


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output: str) -> str:
    """Writes the folder; returns a sentence about it."""
    for trace in ("is_local", "local_files_only"):  # of the load, which would follow the tokenizer to the Hub
        tokenizer.init_kwargs.pop(trace, None)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return f"{type(model).__name__} of {model.num_parameters():,} parameters: {output}"


def convert_veco(
    source: str,
    output: str,
    tokenizer: str,
    model: str = "translation",
    embedding_scale: str | None = None,
    dict_map: str | None = None,
    num_attention_heads: int | None = None,
    ignore_keys: Sequence[str] = (),
) -> list[str]:
    """VECO's original checkpoint, a file -> a folder that every Auto class loads.

    A native checkpoint becomes a VecoForMaskedLM. fairseq's becomes (`model`) a VecoForConditionalGeneration, tied
    where each decoder layer equals an encoder layer; or, where the decoder is all of the encoder's layers, a
    VecoForMaskedLM with cross-attention. `embedding_scale`: see `scale_words`; `dict_map`: see `all_rows`.

    Returns what the converter recognized and did, a sentence each. Raises ValueError for weights that do not fit; see
    `build`.
    """
    require_new(output)
    state, settings = read_state(source)
    layout = layout_of(state, VECO_LAYOUTS)
    words = xlm_r_tokenizer(tokenizer)
    names = layout.names
    if layout.name == "fairseq" and model == "encoder":
        names = names | VECO_ONE_STACK
    state = rename(state, names, ignore_keys)
    fields = {
        "lm_head_transform": "lm_head.dense.weight" in state,
        "num_attention_heads": num_attention_heads or settings.get("encoder_attention_heads"),
    }
    if layout.name == "fairseq":
        fields |= {"vocab_size": len(words), "hidden_act": settings.get("activation_fn", "gelu")}
        if embedding_scale is None and settings.get("no_scale_embedding"):
            embedding_scale = "keep"
        converted, notes = veco_of_fairseq(state, source, fields, model == "translation", embedding_scale, dict_map)
    else:
        converted = veco_of_native(state, source, fields, len(words))
        notes = []
    return [save(converted, words, output), f"layout: {layout.name}", *notes]


def veco_of_native(state: State, source: str, fields: dict[str, Any], tokens: int) -> PreTrainedModel:
    """The encoder. Raises ValueError for another number of words than the tokenizer's (`tokens`)."""
    fields = {"cross_attention": any(".crossattention." in name for name in state), **fields}
    config = make_config(VecoConfig, state, source, fields)
    if not config.lm_head_transform:
        state.setdefault("lm_head.bias", state[WORDS].new_zeros(config.vocab_size))
    if tokens != config.vocab_size:
        raise ValueError(f"{source} has {config.vocab_size:,} words, and --tokenizer {tokens:,}: give its own.")
    return build(VecoForMaskedLM, config, state, source)


def veco_of_fairseq(
    state: State, source: str, fields: dict[str, Any], translates: bool, scale: str | None, dict_map: str | None
) -> tuple[PreTrainedModel, list[str]]:
    """The translation model, or the encoder with the decoder's cross-attention, and what was done."""
    model_class = VecoForMaskedLM
    fields = {"cross_attention": True, **fields}
    notes = []
    if translates:
        model_class = VecoForConditionalGeneration
        layers, is_tied = decoder_origin(state, source)
        fields |= {"decoder_layers": len(layers), "decoder_layer_indices": layers, "tie_decoder": is_tied}
        notes.append(f"decoder: from the encoder's layers {layers}, {'tied' if is_tied else 'not equal, not tied'}")
    config = make_config(VecoConfig, state, source, fields)
    state |= all_rows(state[WORDS], config.vocab_size, dict_map)
    notes.append(scale_words(state, config, scale))
    state[TOKEN_TYPES] = state[WORDS].new_zeros(1, config.hidden_size)
    return build(model_class, config, state, source), notes


def decoder_origin(state: State, source: str) -> tuple[list[int], bool]:
    """The encoder layer that each decoder layer equals except for cross-attention, and whether each has one.

    If one has none, the last encoder layers, from which VECO's decoders are made. Raises ValueError for no decoder.
    """
    stacks: dict[str, dict[int, State]] = {"roberta.encoder": {}, "decoder": {}}
    for key in sorted(state):
        match = re.fullmatch(r"(roberta\.encoder|decoder)\.layer\.(\d+)\.(.+)", key)
        if match and "cross" not in match[3]:
            stack, layer, name = match.groups()
            stacks[stack].setdefault(int(layer), {})[name] = state[key]
    encoder = dict(sorted(stacks["roberta.encoder"].items()))
    decoder = dict(sorted(stacks["decoder"].items()))
    if not encoder or not decoder:
        raise ValueError(f"{source} has not both encoder and decoder layers, as fairseq's layout has.")
    origins = []
    for weights in decoder.values():
        origin = next((layer for layer in encoder if are_equal(encoder[layer], weights)), None)
        if origin is None:
            return list(encoder)[-len(decoder) :], False
        origins.append(origin)
    return origins, True


def are_equal(layer: State, other: State) -> bool:
    """Whether two layers have the same weights."""
    return layer.keys() == other.keys() and all(layer[name].equal(other[name]) for name in layer)


def all_rows(words_RH: Tensor, tokens: int, dict_map: str | None) -> State:
    """Word embeddings of all tokens, where a checkpoint lacks the row of <mask>, or those that the authors pruned.

    A line of `resized_dict_map.txt` is 1 for a token that stayed and 0 for another, in the order of ids from 4 on;
    special tokens stayed, <mask> perhaps. A lacking token is what fairseq reads in its place, <unk>, and is never
    predicted.

    Raises ValueError for a map that does not fit, and for none where there are fewer rows.
    """
    if dict_map is None:
        has_row = [1] * len(words_RH)
    else:
        lines = Path(dict_map).read_text(encoding="utf-8").split()
        has_row = [1] * len(SPECIAL_TOKENS) + [int(line) for line in lines]
    if len(has_row) == tokens - 1:
        has_row.append(int(sum(has_row) < len(words_RH)))
    if len(has_row) != tokens or sum(has_row) != len(words_RH):
        pruned = f"--dict_map {dict_map} ({sum(has_row):,} of {len(has_row):,} tokens stayed)"
        raise ValueError(f"{len(words_RH):,} word embeddings and {pruned} do not fit a tokenizer of {tokens:,} tokens.")
    has_row_V = torch.tensor(has_row).bool()
    words_VH = words_RH[SPECIAL_TOKENS.index("<unk>")].repeat(tokens, 1)
    words_VH[has_row_V] = words_RH
    bias_V = words_RH.new_zeros(tokens).masked_fill(~has_row_V, NEVER)
    return {WORDS: words_VH, "lm_head.bias": bias_V}


def scale_words(state: State, config: VecoConfig, setting: str | None) -> str:
    """Multiplies the word embeddings by sqrt(hidden size), where they are stored to be multiplied when looked up.

    fairseq does that, XLM-R and this zoo do not, and pre-training did not. If no setting says it, the rows do: words
    are 1.0 to 2.4 times as long as positions (median length, in this project's models), or that much shorter. fairseq
    does not scale its output layer, which is tied: `config.lm_head_scale` divides by the same root.
    """
    words = median_length(state[WORDS])
    positions = median_length(state[POSITIONS])
    root = math.sqrt(config.hidden_size)
    if setting is None:
        setting = "multiply" if words * math.sqrt(root) < positions else "keep"
    if setting == "multiply":
        state[WORDS] = state[WORDS] * root
        config.lm_head_scale = 1 / root
    return f"embedding scale: word rows are {words:.3g} long, position rows {positions:.3g}: {setting}"


def median_length(rows_RH: Tensor) -> float:
    """The median of the rows' Euclidean lengths."""
    return rows_RH.float().norm(dim=1).median().item()


def convert_ernie_m(
    source: str,
    output: str,
    tokenizer: str | None = None,
    tokenizer_type: str | None = None,
    head: str | None = None,
    num_attention_heads: int | None = None,
    ignore_keys: Sequence[str] = (),
) -> list[str]:
    """A checkpoint in one of ERNIE-M's layouts -> a folder that every Auto class loads, with its tokenizer.

    `source` is a folder that transformers 4 or PaddleNLP saved, one of static variables, or a file of weights with
    configuration and tokenizer in the same folder.

    Returns what the converter recognized and did, a sentence each. Raises ValueError for weights that do not fit; see
    `build`.
    """
    require_new(output)
    path = Path(source)
    folder = path if path.is_dir() else path.parent
    state, _ = read_state(find_weights(path))
    if any(key.startswith("roberta.") or ".layer.0." in key for key in state):
        raise ValueError(f"{source} is a folder of this zoo, which needs no conversion.")
    layout = layout_of(state, ERNIE_M_LAYOUTS)
    settings = find_settings(folder)
    head = head or head_of(settings)
    if layout.is_paddle:
        state = {key: transposed(key, tensor) for key, tensor in state.items()}
    state = rename(state, layout.names, ignore_keys)
    if head in HEADS_WITHOUT_POOLER:
        state = {name: tensor for name, tensor in state.items() if not name.startswith("roberta.pooler.")}
    if head == "question_answering":
        state = rename(state, PADDLE_SPANS)
    fields = ernie_m_fields(state, settings, head, num_attention_heads)
    config = make_config(ErnieMConfig, state, source, fields)
    state.setdefault(TOKEN_TYPES, state[WORDS].new_zeros(config.type_vocab_size, config.hidden_size))
    model = build(ERNIE_M_HEADS[head], config, state, source)
    if tokenizer_type is None and tokenizer is None and not layout.is_paddle:
        tokenizer_type = type_of_tokenizer(folder)
    words = choose_tokenizer(folder, config, tokenizer, tokenizer_type)
    config.bos_token_id = words.cls_token_id
    config.eos_token_id = words.sep_token_id
    notes = [f"layout: {layout.name}; head: {head}"]
    notes += [f"assumed: {name} {getattr(config, name)}" for name in ASSUMED if name not in settings]
    return [save(model, words, output), *notes, f"tokenizer: {type(words).__name__}"]


def find_weights(path: Path) -> Path:
    """The file of weights in a folder; the path itself where it is a file, or a folder of static variables."""
    for pattern in WEIGHTS:
        files = sorted(path.glob(pattern))
        if files:
            return files[0]
    return path


def find_settings(folder: Path) -> dict[str, Any]:
    """The fields of the folder's configuration; none where it has no file of it."""
    for name in CONFIGS:
        if (folder / name).is_file():
            return read_settings(folder / name)
    return {}


def head_of(settings: dict[str, Any]) -> str:
    """The head that a configuration names by its class. Raises ValueError for a class that is not known."""
    class_name = next(iter(settings.get("architectures") or ()), "ErnieMModel")
    for head, model_class in ERNIE_M_HEADS.items():
        if model_class.__name__ == class_name:
            return head
    raise ValueError(f"the configuration names the class {class_name!r}: --head base converts the encoder.")


def transposed(key: str, tensor: Tensor) -> Tensor:
    """A matrix (in, out) as (out, in). The rows of embeddings are tokens or positions, and stay."""
    is_matrix = tensor.dim() == 2 and "embedding" not in key
    return tensor.T.contiguous() if is_matrix else tensor


def ernie_m_fields(
    state: State, settings: dict[str, Any], head: str, num_attention_heads: int | None
) -> dict[str, Any]:
    """The fields of our configuration that do not follow from the shapes of the encoder."""
    fields = {name: value for name, value in settings.items() if name not in NOT_KEPT}
    fields["add_pooling_layer"] = head != "base" or "roberta.pooler.dense.weight" in state
    fields["num_attention_heads"] = num_attention_heads or fields.get("num_attention_heads")
    if "id2label" not in fields and "classifier.weight" in state:
        fields.setdefault("num_labels", len(state["classifier.weight"]))
    return fields


def read_settings(path: Path) -> dict[str, Any]:
    """The fields of a configuration, with `architectures`. PaddleNLP's older ones hold the class in `init_class`, and
    the fields of the base model in `init_args`."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(fields, dict):
        raise ValueError(f"{path} holds a {type(fields).__name__}, not a JSON object.")
    for base in fields.pop("init_args", ()):
        if isinstance(base, dict):
            fields = base | fields
    if "init_class" in fields:
        fields.setdefault("architectures", [fields.pop("init_class")])
    for theirs, ours in {"dropout": "classifier_dropout", "num_classes": "num_labels"}.items():
        if theirs in fields:
            fields.setdefault(ours, fields.pop(theirs))
    return fields


def type_of_tokenizer(folder: Path) -> str | None:
    """ERNIE-M's in a folder of transformers 4 that has its files: a fine-tuned model was made with its ids."""
    return "ernie_m" if (folder / FILES["sentencepiece_model_ckpt"]).is_file() else None


def choose_tokenizer(
    folder: Path, config: ErnieMConfig, tokenizer: str | None, kind: str | None
) -> PreTrainedTokenizerBase:
    """The tokenizer: ERNIE-M's if it is of this `kind`, else XLM-R's, the default of the zoo.

    Raises ValueError where there is none, for more tokens than embeddings, another padding id, and rows that belong to
    other tokens: where the source has a vocab.txt, the ordinary tokens of XLM-R's have to be the same, one by one.
    """
    if kind == "ernie_m":
        words: PreTrainedTokenizerBase = ErnieMTokenizer.from_pretrained(tokenizer or folder)
    else:
        words = xlm_r_tokenizer(tokenizer or XLM_R)
    if len(words) > config.vocab_size or words.pad_token_id != config.pad_token_id:
        raise ValueError(
            f"the tokenizer has {len(words):,} tokens and padding id {words.pad_token_id}, the checkpoint "
            f"{config.vocab_size:,} embeddings and padding id {config.pad_token_id}: give its own as --tokenizer."
        )
    vocabulary = folder / FILES["vocab_file"]
    if kind != "ernie_m" and vocabulary.is_file():
        check_rows(vocabulary, words)
    return words


def check_rows(vocabulary: Path, words: PreTrainedTokenizerBase) -> None:
    """Raises ValueError for an ordinary token of the tokenizer that is not on its line of vocab.txt."""
    tokens = vocabulary.read_text(encoding="utf-8").split("\n")
    ids = list(range(min(len(tokens), len(words))))
    for index, ours in enumerate(words.convert_ids_to_tokens(ids)):
        if index not in words.all_special_ids and ours != tokens[index]:
            difference = f"row {index} is {tokens[index]!r} in {vocabulary} and {ours!r} in the tokenizer"
            raise ValueError(f"{difference}: give --tokenizer_type ernie_m.")


def make_parser() -> argparse.ArgumentParser:
    """The parser: a command for each model."""
    style: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(prog="python -m crosslingual_zoo.hub_cards.convert", description=__doc__, **style)
    commands = parser.add_subparsers(dest="command", required=True, metavar="MODEL")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("source", metavar="SOURCE", help="file or folder to convert")
    shared.add_argument("output", metavar="FOLDER", help="what to write; must not exist, or be empty")
    shared.add_argument("--num_attention_heads", type=int, help="default: what the file says, or hidden size / 64")
    ignore_help = "whole keys to omit; repeatable"
    shared.add_argument("--ignore_keys", action="append", default=[], metavar="RE", help=ignore_help)
    veco = commands.add_parser("veco", help=first_line(convert_veco), parents=[shared], **style)
    veco.add_argument("--tokenizer", required=True, metavar="DIR|ID", help="XLM-R's tokenizer")
    veco.add_argument(
        "--model",
        choices=["translation", "encoder"],
        default="translation",
        help="what fairseq's checkpoint becomes; encoder, with cross-attention, of the file that has all layers twice",
    )
    scale_help = "multiply fairseq's word embeddings by sqrt(hidden size), or not (default: by their length)"
    veco.add_argument("--embedding_scale", choices=["keep", "multiply"], help=scale_help)
    veco.add_argument("--dict_map", metavar="FILE", help="resized_dict_map.txt of a pruned fairseq checkpoint")
    ernie_m = commands.add_parser("ernie_m", help=first_line(convert_ernie_m), parents=[shared], **style)
    ernie_m.add_argument("--tokenizer", metavar="DIR|ID", help="default: SOURCE for ernie_m, XLM-R's for xlm_roberta")
    type_help = "whose ids to use; default: ernie_m where a folder of transformers 4 has its files, else XLM-R's"
    ernie_m.add_argument("--tokenizer_type", choices=["ernie_m", "xlm_roberta"], help=type_help)
    ernie_m.add_argument("--head", choices=list(ERNIE_M_HEADS), help="default: as its configuration says, else base")
    return parser


def first_line(function: Callable[..., Any]) -> str:
    """What a function's docstring says first."""
    return str(function.__doc__).partition("\n")[0]


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exit code 2 and a message where the user has to act."""
    parser = make_parser()
    arguments = vars(parser.parse_args(argv))
    convert = {"veco": convert_veco, "ernie_m": convert_ernie_m}[arguments.pop("command")]
    try:
        print("\n".join(convert(**arguments)))
    except (ValueError, OSError, StrictDataclassError, re.error) as error:
        parser.exit(2, f"convert: error: {error}\n")


if __name__ == "__main__":
    main()
