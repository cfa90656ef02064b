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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # before the imports, which take seconds
    print("loading libraries", file=sys.stderr, flush=True)

import numpy as np
import safetensors.torch
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

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

State = dict[str, torch.Tensor]
Names = dict[str, str]

WORDS, POSITIONS, TOKEN_TYPES = (
    f"roberta.embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")
)
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
CONFIGS = ("config.json", "model_config.json", "ernie_config.json")
# fields of a foreign configuration that are written anew, or of no effect here
NOT_KEPT = ("architectures", "auto_map", "model_type", "transformers_version", "_name_or_path", "act_dropout")
NOT_KEPT += ("use_cache", "position_embedding_type")
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

    def find_class(self, module: str, name: str):
        module = module.replace("numpy.core.", "numpy._core.")  # its name before numpy 2
        if name not in ALLOWED.get(module, ()):
            raise pickle.UnpicklingError(f"objects of {module}.{name}")
        return super().find_class(module, name)


def read_pdparams(path: Path) -> State:
    """Names and tensors of a `.pdparams` file, a pickle. Raises TypeError for entries that are no arrays of numbers."""
    with open(path, "rb") as file:
        content = ArrayUnpickler(file).load()
    content.pop("StructuredToParameterName@@", None)  # Paddle's own names
    arrays = {key: value[1] if isinstance(value, tuple) else value for key, value in content.items()}
    return {key: torch.from_numpy(array).contiguous() for key, array in arrays.items()}


def read_variable(path: Path) -> torch.Tensor | None:
    """The tensor of a variable of Paddle's static graph; None for a file of another format.

    The format: a 32-bit version, a 64-bit number of levels, again a version, all 0; the length of a protobuf message
    with type (field 1) and sizes (field 2); the message; the numbers. Raises ValueError for a damaged one.
    """
    with open(path, "rb") as file:
        if file.read(16) != bytes(16):
            return None
        message, content = file.read(int.from_bytes(file.read(4), "little")), file.read()
    numbers, value, shift = [], 0, 0
    for byte in message:  # seven bits a byte, the lowest first; the last has no eighth bit
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(value)
            value = shift = 0
    fields = list(zip(numbers[::2], numbers[1::2], strict=False))
    kind, shape = dict(fields).get(0x08, -1), [size for tag, size in fields if tag == 0x10]
    if not 0 <= kind < len(PADDLE_TYPES) or math.prod(shape) * np.dtype(PADDLE_TYPES[kind]).itemsize != len(content):
        raise ValueError(f"{path.name}, a variable of type {kind} and shape {shape}, is damaged")
    return torch.from_numpy(np.frombuffer(bytearray(content), PADDLE_TYPES[kind]).reshape(shape))


def read_state(source: str | Path) -> tuple[State, dict[str, Any]]:
    """A state dict and the settings in its file: `args` of fairseq's {"model": ..., "args": ...}, else none.

    Read are .safetensors, Paddle's .pdparams, a folder of Paddle's static variables, and what torch.save wrote. Raises
    ValueError for a file that cannot be read, and for one that holds other things than tensors and settings.
    """
    path, settings = Path(source), {}
    try:
        if path.is_dir():
            content = {file.name: read_variable(file) for file in sorted(path.iterdir()) if file.is_file()}
            content = {name: value for name, value in content.items() if value is not None}
        elif path.suffix == ".pdparams":
            content = read_pdparams(path)
        elif path.suffix == ".safetensors":
            content = safetensors.torch.load_file(path)
        else:  # a Namespace is a plain holder of attributes, in which fairseq keeps its command line
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpicklers raise anything
        objects = re.search(r"(?:GLOBAL|objects of) (\S+)", str(error))
        why = f"it holds objects of {objects[1]}, which could run code" if objects else str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read: {type(error).__name__}, {why}") from error
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        settings, content = content.get("args"), content["model"]
    if not isinstance(content, dict) or not content or not all(torch.is_tensor(value) for value in content.values()):
        raise ValueError(f"{path} must be a state dict of tensors only.")
    return content, vars(settings) if isinstance(settings, argparse.Namespace) else {}


def rename(state: State, names: Names, ignore_keys: Sequence[str] = ()) -> State:
    """The weights under our names, without bookkeeping and keys that one of `ignore_keys` matches as a whole.

    Raises ValueError for a pattern that matches none, and for two weights that the model shares and that differ.
    """
    for pattern in ignore_keys:
        if not any(re.fullmatch(pattern, key) for key in state):
            raise ValueError(f"--ignore_keys {pattern!r} matches no key: it must match a whole key.")
    found = {}
    for key, tensor in state.items():
        if BOOKKEEPING.fullmatch(key) or any(re.fullmatch(pattern, key) for pattern in ignore_keys):
            continue
        name = key
        for pattern, ours in names.items():
            name = re.sub(pattern, ours, name)
        if name in found and not found[name].equal(tensor):
            raise ValueError(f"{key} differs from another weight that becomes {name}, with which the model shares it.")
        found[name] = tensor
    return found


def layout_of(state: State, layouts: Sequence[Layout]) -> Layout:
    """The layout of these weights."""
    return next(layout for layout in layouts if any(re.search(layout.mark, key) for key in state))


def make_config(cls: type[PreTrainedConfig], state: State, source: str, fields: dict[str, Any]) -> PreTrainedConfig:
    """The configuration: `fields`, and what the shapes say; heads of 64 dimensions where no field says how many.

    Raises ValueError as the class does, for weights of another layout, and for a hidden size that no such heads divide.
    """
    layers = [int(found[1]) for key in state if (found := re.match(r"roberta\.encoder\.layer\.(\d+)\.", key))]
    if WORDS not in state or not layers:
        raise ValueError(f"{source} is of no layout that is known: its first name is {next(iter(state))}.")
    rows = {"vocab_size": WORDS, "max_position_embeddings": POSITIONS, "type_vocab_size": TOKEN_TYPES}
    rows["intermediate_size"] = "roberta.encoder.layer.0.intermediate.dense.weight"
    found = {field: len(state[name]) for field, name in rows.items() if name in state}
    size = state[WORDS].shape[-1]
    found |= {"hidden_size": size, "num_hidden_layers": max(layers) + 1} | fields
    if not found.get("num_attention_heads"):
        found["num_attention_heads"], rest = divmod(size, 64)
        if rest:
            raise ValueError(f"hidden size {size} does not fit heads of 64: give --num_attention_heads.")
    return cls.from_dict(found)


def build(cls: type[PreTrainedModel], config: PreTrainedConfig, state: State, source: str) -> PreTrainedModel:
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
    if missing := [name for name, weight in model.named_parameters() if weight.is_meta]:
        raise ValueError(f"{source} lacks {len(missing)} weights of {cls.__name__}: {missing[0]}, ...")
    check_finite(model, source)
    return model


def xlm_r_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """XLM-R's tokenizer. Raises ValueError for one whose special tokens have other ids than XLM-R's."""
    # a tokenizer needs no code of the folder; without this argument, transformers asks the user to run it
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    expected = {token: index for index, token in enumerate(SPECIAL_TOKENS)} | {"<mask>": len(tokenizer) - 1}
    found = {token: tokenizer.get_vocab().get(token) for token in expected}
    if found != expected:
        raise ValueError(f"the tokenizer {name!r} has the special tokens {found}, an XLM-R tokenizer {expected}.")
    return tokenizer


def require_new(output: str) -> None:
    """Raises ValueError for an output that exists, except for an empty folder."""
    if (path := Path(output)).is_file() or path.is_dir() and any(path.iterdir()):
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

    Returns what was found and done, a sentence each. Raises ValueError for weights that do not fit; see `build`.
    """
    require_new(output)
    state, settings = read_state(source)
    layout, words = layout_of(state, VECO_LAYOUTS), xlm_r_tokenizer(tokenizer)
    is_fairseq, cls = layout.name == "fairseq", VecoForMaskedLM
    one_stack = {r"^decoder\.layer\.": "roberta.encoder.layer."} if is_fairseq and model == "encoder" else {}
    state = rename(state, layout.names | one_stack, ignore_keys)
    fields = {"cross_attention": is_fairseq or any(".crossattention." in key for key in state)}
    fields["lm_head_transform"] = "lm_head.dense.weight" in state
    notes = [f"layout: {layout.name}"]
    fields["num_attention_heads"] = num_attention_heads or settings.get("encoder_attention_heads")
    if is_fairseq:
        fields |= {"vocab_size": len(words), "hidden_act": settings.get("activation_fn", "gelu")}
    if is_fairseq and model == "translation":
        cls, (layers, is_tied) = VecoForConditionalGeneration, decoder_origin(state, source)
        fields |= {"decoder_layers": len(layers), "decoder_layer_indices": layers, "tie_decoder": is_tied}
        notes.append(f"decoder: from the encoder's layers {layers}, {'tied' if is_tied else 'not equal, not tied'}")
    config = make_config(VecoConfig, state, source, fields)
    if is_fairseq:
        state |= all_rows(state[WORDS], len(words), dict_map)
        scale = embedding_scale or ("keep" if settings.get("no_scale_embedding") else None)
        notes.append(scale_words(state, config, scale))
        state[TOKEN_TYPES] = state[WORDS].new_zeros(1, config.hidden_size)
    elif not config.lm_head_transform:
        state.setdefault("lm_head.bias", state[WORDS].new_zeros(config.vocab_size))
    if len(words) != config.vocab_size:
        raise ValueError(f"{source} has {config.vocab_size:,} words, and {tokenizer} {len(words):,}: give its own.")
    return [save(build(cls, config, state, source), words, output), *notes]


def decoder_origin(state: State, source: str) -> tuple[list[int], bool]:
    """The encoder layer that each decoder layer equals except for cross-attention, and whether each has one.

    If one has none, the last encoder layers, from which VECO's decoders are made. Raises ValueError for no decoder.
    """
    layers: dict[str, dict[int, State]] = {"roberta.encoder": {}, "decoder": {}}
    for key in sorted(state):
        if (found := re.fullmatch(r"(roberta\.encoder|decoder)\.layer\.(\d+)\.(.+)", key)) and "cross" not in found[3]:
            layers[found[1]].setdefault(int(found[2]), {})[found[3]] = state[key]
    encoder, decoder = (dict(sorted(side.items())) for side in layers.values())
    if not encoder or not decoder:
        raise ValueError(f"{source} has not both encoder and decoder layers, as fairseq's layout has.")

    def equal(ours: State, theirs: State) -> bool:
        return ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)

    found = [next((i for i in encoder if equal(encoder[i], layer)), None) for layer in decoder.values()]
    return (list(encoder)[-len(decoder) :], False) if None in found else (found, True)


def all_rows(words_RH: torch.Tensor, tokens: int, dict_map: str | None) -> State:
    """Word embeddings of all tokens, where a checkpoint lacks the row of <mask>, or those that the authors pruned.

    A line of `resized_dict_map.txt` is 1 for a kept token and 0 for another, in the order of ids from 4 on; special
    tokens are kept, <mask> perhaps. A lacking token is what fairseq reads in its place, <unk>, and is never predicted.

    Raises ValueError for a map that does not fit, and for none where there are fewer rows.
    """
    kept = [1] * (len(words_RH) if dict_map is None else len(SPECIAL_TOKENS))
    if dict_map is not None:
        kept += [int(line) for line in Path(dict_map).read_text(encoding="utf-8").split()]
    if len(kept) == tokens - 1:
        kept.append(int(sum(kept) < len(words_RH)))
    if len(kept) != tokens or sum(kept) != len(words_RH):
        given = f"--dict_map {dict_map} ({sum(kept):,} of {len(kept):,} tokens kept)"
        raise ValueError(f"{len(words_RH):,} word embeddings and {given} do not fit a tokenizer of {tokens:,} tokens.")
    is_kept_V = torch.tensor(kept).bool()
    words_VH = words_RH[SPECIAL_TOKENS.index("<unk>")].repeat(tokens, 1)
    words_VH[is_kept_V] = words_RH
    return {WORDS: words_VH, "lm_head.bias": words_RH.new_zeros(tokens).masked_fill(~is_kept_V, NEVER)}


def scale_words(state: State, config: PreTrainedConfig, setting: str | None) -> str:
    """Multiplies the word embeddings by sqrt(hidden size), where they are stored to be multiplied when looked up.

    fairseq does that, XLM-R and this zoo do not, and pre-training did not. If no setting says it, the rows do: words
    are 1.0 to 2.4 times as long as positions (median length, in this project's models), or that much shorter. fairseq
    does not scale its output layer, which is tied: `config.lm_head_scale` divides by the same root.
    """
    words, positions = (state[name].float().norm(dim=1).median().item() for name in (WORDS, POSITIONS))
    root = math.sqrt(config.hidden_size)
    setting = setting or ("multiply" if words * math.sqrt(root) < positions else "keep")
    if setting == "multiply":
        state[WORDS], config.lm_head_scale = state[WORDS] * root, 1 / root
    return f"embedding scale: word rows are {words:.3g} long, position rows {positions:.3g}: {setting}"


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

    Returns what was found and done, a sentence each. Raises ValueError for weights that do not fit; see `build`.
    """
    require_new(output)
    folder = path if (path := Path(source)).is_dir() else path.parent
    saved = [file for of in ("model.safetensors", "pytorch_model.bin", "*.pdparams") for file in sorted(path.glob(of))]
    state, _ = read_state(saved[0] if saved else path)
    if any(key.startswith("roberta.") or ".layer.0." in key for key in state):
        raise ValueError(f"{source} is a folder of this zoo, which needs no conversion.")
    layout = layout_of(state, ERNIE_M_LAYOUTS)
    settings = next((read_settings(folder / name) for name in CONFIGS if (folder / name).is_file()), {})
    named = next(iter(settings.get("architectures") or ()), "ErnieMModel")
    head = head or next((name for name, cls in ERNIE_M_HEADS.items() if cls.__name__ == named), None)
    if head is None:
        raise ValueError(f"the configuration names the class {named!r}: --head base converts the encoder.")
    if layout.is_paddle:  # (in, out), except for the embeddings, whose rows are tokens or positions
        is_matrix = {key: tensor.dim() == 2 and "embedding" not in key for key, tensor in state.items()}
        state = {key: tensor.T.contiguous() if is_matrix[key] else tensor for key, tensor in state.items()}
    state = rename(state, layout.names, ignore_keys)
    if head in ("token", "question_answering"):  # PaddleNLP keeps the pooler below every head, and has one name for all
        names = {r"^classifier\.": "qa_outputs."} if head == "question_answering" else {}
        state = rename({key: of for key, of in state.items() if not key.startswith("roberta.pooler.")}, names)
    fields = {name: value for name, value in settings.items() if name not in NOT_KEPT}
    fields["add_pooling_layer"] = head != "base" or "roberta.pooler.dense.weight" in state
    fields["num_attention_heads"] = num_attention_heads or fields.get("num_attention_heads")
    if "id2label" not in fields and "classifier.weight" in state:
        fields.setdefault("num_labels", len(state["classifier.weight"]))
    config = make_config(ErnieMConfig, state, source, fields)
    state.setdefault(TOKEN_TYPES, state[WORDS].new_zeros(config.type_vocab_size, config.hidden_size))
    notes = [f"layout: {layout.name}; head: {head}"]
    notes += [f"assumed: {name} {getattr(config, name)}" for name in ASSUMED if name not in settings]
    model = build(ERNIE_M_HEADS[head], config, state, source)
    chosen = choose_tokenizer(folder, not layout.is_paddle, config, tokenizer, tokenizer_type)
    config.bos_token_id, config.eos_token_id = chosen.cls_token_id, chosen.sep_token_id
    return [save(model, chosen, output), *notes, f"tokenizer: {type(chosen).__name__}"]


def read_settings(path: Path) -> dict[str, Any]:
    """The fields of a configuration, with `architectures`. PaddleNLP's older ones hold the class in `init_class`, and
    the fields of the base model in `init_args`."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(fields, dict):
        raise ValueError(f"{path} holds a {type(fields).__name__}, not a JSON object.")
    for base in fields.pop("init_args", ()):
        fields = base | fields if isinstance(base, dict) else fields
    if "init_class" in fields:
        fields.setdefault("architectures", [fields.pop("init_class")])
    for theirs, ours in {"dropout": "classifier_dropout", "num_classes": "num_labels"}.items():
        if theirs in fields:
            fields.setdefault(ours, fields.pop(theirs))
    return fields


def choose_tokenizer(
    folder: Path, has_its_ids: bool, config: PreTrainedConfig, tokenizer: str | None, kind: str | None
) -> PreTrainedTokenizerBase:
    """The tokenizer: of a folder of transformers 4 its own, if it has one and no `kind` is given, since a fine-tuned
    model was made with its ids; else XLM-R's, the default of the zoo.

    Raises ValueError where there is none, for more tokens than embeddings, another padding id, and rows that belong to
    other tokens: where the source has a vocab.txt, the ordinary tokens of XLM-R's have to be the same, one by one.
    """
    if kind is None and tokenizer is None and has_its_ids and (folder / FILES["sentencepiece_model_ckpt"]).is_file():
        kind = "ernie_m"
    is_own, vocabulary = kind == "ernie_m", folder / FILES["vocab_file"]
    chosen = ErnieMTokenizer.from_pretrained(tokenizer or folder) if is_own else xlm_r_tokenizer(tokenizer or XLM_R)
    if len(chosen) > config.vocab_size or chosen.pad_token_id != config.pad_token_id:
        raise ValueError(
            f"the tokenizer has {len(chosen):,} tokens and padding id {chosen.pad_token_id}, the checkpoint "
            f"{config.vocab_size:,} embeddings and padding id {config.pad_token_id}: give its own as --tokenizer."
        )
    tokens = vocabulary.read_text(encoding="utf-8").split("\n") if vocabulary.is_file() and not is_own else []
    for index, ours in enumerate(chosen.convert_ids_to_tokens(range(min(len(tokens), len(chosen))))):
        if index not in chosen.all_special_ids and ours != tokens[index]:
            found = f"row {index} is {tokens[index]!r} in {vocabulary} and {ours!r} in the tokenizer"
            raise ValueError(f"{found}: give --tokenizer_type ernie_m.")
    return chosen


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exit code 2 and a message where the user has to act."""
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(prog="python -m crosslingual_zoo.hub_cards.convert", description=__doc__, **style)
    commands = parser.add_subparsers(dest="command", required=True, metavar="MODEL")
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("source", metavar="SOURCE", help="file or folder to convert")
    both.add_argument("output", metavar="FOLDER", help="what to write; must not exist, or be empty")
    both.add_argument("--num_attention_heads", type=int, help="default: what the file says, or hidden size / 64")
    both.add_argument("--ignore_keys", action="append", default=[], metavar="RE", help="whole keys to omit; repeatable")
    veco = commands.add_parser("veco", help=convert_veco.__doc__.partition("\n")[0], parents=[both], **style)
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
    ernie_m = commands.add_parser("ernie_m", help=convert_ernie_m.__doc__.partition("\n")[0], parents=[both], **style)
    ernie_m.add_argument("--tokenizer", metavar="DIR|ID", help="default: SOURCE for ernie_m, XLM-R's for xlm_roberta")
    type_help = "whose ids to use; default: ernie_m where a folder of transformers 4 has its files, else XLM-R's"
    ernie_m.add_argument("--tokenizer_type", choices=["ernie_m", "xlm_roberta"], help=type_help)
    ernie_m.add_argument("--head", choices=list(ERNIE_M_HEADS), help="default: as its configuration says, else base")
    arguments = vars(parser.parse_args(argv))
    convert = {"veco": convert_veco, "ernie_m": convert_ernie_m}[arguments.pop("command")]
    try:
        print("\n".join(convert(**arguments)))
    except (ValueError, OSError, StrictDataclassError, re.error) as error:
        parser.exit(2, f"convert: error: {error}\n")


if __name__ == "__main__":
    main()
