"""ERNIE-M's checkpoints in this zoo's form, and back to transformers 4's: configuration, weights, tokenizer.

The layouts are in `convert_ernie_m_layouts`, Paddle's files in `convert_paddle`.
"""

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedTokenizerBase

from .configuration_ernie_m import ErnieMConfig
from .convert_ernie_m_layouts import (
    CLASSES,
    HEADS,
    LAYOUTS,
    Layout,
    detect_head,
    detect_layout,
    in_our_form,
    transformers4_names,
    without_unread,
)
from .convert_files import load_zoo, read_checkpoint, read_json, require_new, save_weights, written_aside
from .convert_paddle import read_npz, read_pdparams, read_variables
from .convert_vocabulary import load_tokenizer, save_tokenizer
from .convert_weights import (
    Names,
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
from .tokenization_ernie_m import FILES, ErnieMTokenizer

XLM_R = "FacebookAI/xlm-roberta-base"  # all sizes of XLM-R have one vocabulary
# weights in a folder, in the order they are looked for
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model_state.pdparams",
)
CONFIGS = ("config.json", "model_config.json", "ernie_m_config.json", "ernie_config.json")
# fields of a foreign configuration that are not ours to keep: written anew, or of no effect here
NOT_KEPT = (
    "architectures",
    "auto_map",
    "model_type",
    "transformers_version",
    "_name_or_path",
    "act_dropout",
    "use_cache",
)
# what transformers 4's ErnieMConfig holds
TRANSFORMERS4_FIELDS = (
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "hidden_act",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "layer_norm_eps",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "pad_token_id",
    "vocab_size",
)
# of the fields of every configuration, those that its heads read; written where they are not the default
TRANSFORMERS4_LABELS = ("id2label", "label2id", "problem_type")
# of tokenizer_config.json: what this zoo's tokenizer or the load added
NOT_OF_THE_TOKENIZER = ("auto_map", "backend", "is_local", "local_files_only", "tokenizer_class")


def to_zoo(
    source: str,
    output: str,
    tokenizer: str | None = None,
    tokenizer_type: str | None = None,
    head: str | None = None,
    num_attention_heads: int | None = None,
    ignore_keys: Sequence[str] = (),
) -> list[str]:
    """A checkpoint in one of ERNIE-M's layouts -> a folder that every Auto class loads, with its tokenizer.

    Args:
        source: a folder that transformers 4 or PaddleNLP saved, one of static-graph variables, or a file of weights,
            beside which configuration and tokenizer are looked for.
        tokenizer, tokenizer_type: see `choose_tokenizer`.
        head: a key of `HEADS`; by default as the configuration or the keys say.
        num_attention_heads: where there is no configuration that tells.
        ignore_keys: patterns of keys to leave out.

    Returns what was found and done, a sentence each.

    Raises ValueError for all keys that are missing, left over or of the wrong shape at once, and for what
    `convert_files`, `convert_paddle` and `convert_vocabulary` refuse; nothing is written then.
    """
    require_new(output)
    notes: list[str] = []
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    state = read_source(source, notes)
    config_file = next((folder / name for name in CONFIGS if (folder / name).is_file()), None)
    settings = read_config(config_file) if config_file else {}
    notes.append(f"configuration: {config_file or 'none'}")
    state = leave_out(state, ignore_keys, notes)
    layout = detect_layout(state, source)
    notes.append(f"layout: {layout.name}")
    state = in_our_form(state, layout, notes)
    architecture = (settings.get("architectures") or [None])[0]
    head = detect_head(state, layout, architecture, head, notes)
    state = without_unread(state, head, notes)
    prefix = "ernie_m." if any(key.startswith("ernie_m.") for key in state) else ""
    names = partial(layout.names, prefix=prefix, head=head)
    config = make_config(state, settings, config_file, layout, names, head, num_attention_heads, notes)
    cls = HEADS[head]
    weights = fit(state, cls, config, names, f"{source} and {layout.name}", notes)

    chosen, notes_of_tokenizer = choose_tokenizer(folder, layout, tokenizer, tokenizer_type)
    notes += notes_of_tokenizer
    check_vocabulary(chosen, config, folder)
    config.bos_token_id, config.eos_token_id = chosen.cls_token_id, chosen.sep_token_id
    model = assemble(cls, config, weights)
    with written_aside(output) as new:
        model.save_pretrained(new)
        if isinstance(chosen, ErnieMTokenizer):
            chosen.save_pretrained(new)
        else:
            save_tokenizer(chosen, torch.arange(len(chosen)), new)
    return [f"{cls.__name__} of {model.num_parameters():,} parameters: {output}", *notes]


def read_source(source: str, notes: list[str]) -> State:
    """The weights of a file or folder. Raises ValueError for a folder without, or where it is not clear which."""
    path = Path(source)
    if path.is_file():
        return read_weights(path)
    if not path.is_dir():
        raise ValueError(
            f"{source} is neither a file nor a folder: there is nothing to convert. Give the folder that transformers "
            "4 or PaddleNLP saved, or the file of the weights; relative paths start at the current folder."
        )
    found = [path / name for name in WEIGHTS if (path / name).is_file()] or sorted(path.glob("*.pdparams"))
    if len(found) > 1 and found[0].name not in WEIGHTS:
        raise ValueError(
            f"{source} holds {len(found)} files of weights ({', '.join(file.name for file in found)}): nothing tells "
            "which is the model. Give the file itself."
        )
    if found:
        notes.append(f"weights: {found[0]}")
        return read_weights(found[0])
    if (path / "word_embedding").is_file():
        return read_variables(path)
    raise ValueError(
        f"{source} holds no weights: none of {', '.join(WEIGHTS)}, no other .pdparams and no variable word_embedding. "
        "Give the folder that has them, or the file itself."
    )


def read_weights(path: Path) -> State:
    """Names and tensors of a file of any of the formats, or of all files that an index names.

    Raises ValueError for an index that names none.
    """
    if path.suffix == ".json":
        found = read_json(path).get("weight_map")
        found = list(found.values()) if isinstance(found, dict) else []
        if not found or not all(isinstance(file, str) and Path(file).name == file for file in found):
            raise ValueError(
                f"{path} has no weight_map of names and the files beside it that hold them: without one, it is not "
                "known where the weights are. Copy it again, or give a file of weights itself."
            )
        files = sorted(set(found))
        return {key: tensor for file in files for key, tensor in read_checkpoint(path.with_name(file))[0].items()}
    if path.suffix == ".pdparams":
        return read_pdparams(path)
    if path.suffix == ".npz":
        return read_npz(path)
    return read_checkpoint(path)[0]


def read_config(path: Path) -> dict:
    """The fields of a configuration in one of the forms, with `architectures`.

    PaddleNLP's older ones hold the class in `init_class`, and the fields of the base model in `init_args`.

    Raises ValueError for a file that is no JSON object, and for classes or arguments that are no lists.
    """
    fields = read_json(path, "Copy it again, or remove it and let the shapes tell.")
    cls = fields.pop("init_class", None)
    arguments = list_of(fields.pop("init_args", None), "init_args", path)
    for base in arguments:
        if isinstance(base, dict):
            base.pop("init_class", None)
            fields = base | fields
    if cls and not fields.get("architectures"):
        fields["architectures"] = [cls]
    classes = list_of(fields.get("architectures"), "architectures", path)
    if not all(isinstance(cls, str) for cls in classes):
        raise ValueError(
            f"{path} says architectures {classes!r}: a class is told by its name. Correct it, or remove it and let the "
            "keys tell."
        )
    # PaddleNLP's names, and transformers 4's aliases
    for theirs, ours in {"dropout": "classifier_dropout", "num_classes": "num_labels"}.items():
        if theirs in fields:
            fields.setdefault(ours, fields.pop(theirs))
    return fields


def list_of(value, name: str, path: Path) -> list:
    """A list in a configuration, empty where it is null or missing. Raises ValueError for anything else."""
    if value is not None and not isinstance(value, list):
        raise ValueError(
            f"{path} says {name} {value!r}: it has to be a list. Correct it, or remove it and let the keys tell."
        )
    return value or []


def make_config(
    state: State,
    settings: dict,
    path: Path | None,
    layout: Layout,
    names: Names,
    head: str,
    num_attention_heads: int | None,
    notes: list[str],
) -> ErnieMConfig:
    """The configuration: what the file at `path` says, and where none does, what the shapes do.

    Raises ValueError for attention heads that are not known or do not divide the hidden size, for an unknown
    activation, for relative positions, for values of a wrong type, and for another number of layers than there is.
    """
    depth = layer_count(state, layout.layer)
    fields = {
        "vocab_size": rows_of(state, names("embeddings.word_embeddings.weight")[0], 250002),
        "max_position_embeddings": rows_of(state, names("embeddings.position_embeddings.weight")[0], 514),
        "num_hidden_layers": depth,
        **widths(state, layout.inner),
        **{name: value for name, value in settings.items() if name not in NOT_KEPT},
    }
    hidden = fields.get("hidden_size", ErnieMConfig.hidden_size)
    said = settings.get("num_attention_heads")
    stated = said if num_attention_heads is None else num_attention_heads
    if isinstance(hidden, int) and isinstance(stated, int | None):  # else the configuration says what is wrong
        fields["num_attention_heads"] = attention_heads(hidden, stated)
    kind = fields.pop("position_embedding_type", "absolute")
    if kind != "absolute":
        raise ValueError(
            f"the configuration says position_embedding_type {kind!r}: ERNIE-M and this zoo know absolute positions, "
            "and would compute something else. Such a checkpoint cannot be converted."
        )
    if dropout := settings.get("act_dropout"):
        notes.append(f"act_dropout {dropout}: not kept, this zoo has no dropout there; it matters in training only")
    if head in ("sequence", "token") and "id2label" not in fields:
        fields.setdefault("num_labels", rows_of(state, names("classifier.weight")[0], 2))
    try:
        config = ErnieMConfig.from_dict(fields)
    except (TypeError, AttributeError, StrictDataclassError) as error:
        raise ValueError(
            f"{path} cannot be used: {' '.join(str(error).split())}. A model cannot be made of a value of another "
            "type. Correct it, or leave it out and let the shapes tell."
        ) from error
    known_activation(config.hidden_act)
    if config.num_hidden_layers != depth:
        raise ValueError(
            f"{path} says {config.num_hidden_layers} layers, the weights have {depth}: a model would lack layers that "
            f"were trained, or have random ones. Correct {path.name}, or give the weights of all layers."
        )
    assumed = {
        "num_attention_heads": f"{config.num_attention_heads} heads of 64",
        "hidden_act": config.hidden_act,
        "layer_norm_eps": f"eps {config.layer_norm_eps}",
    }
    known = {name for name in assumed if settings.get(name) is not None}
    if num_attention_heads is not None:
        notes.append(f"num_attention_heads: {num_attention_heads}, as asked for")
        if said not in (None, num_attention_heads):
            notes[-1] += f"; {path} says {said}"
        known.add("num_attention_heads")
    if len(known) < len(assumed):
        notes.append(f"assumed: {', '.join(text for name, text in assumed.items() if name not in known)}")
    pooler = [*names("pooler.dense.weight"), *names("pooler.dense.bias")]
    config.add_pooling_layer = head != "base" or any(key in state for key in pooler)
    if not config.add_pooling_layer:
        notes.append(
            "pooler: the checkpoint has none; config.add_pooling_layer is false. Set it to true to fine-tune a "
            "sequence classifier, which starts with a new one"
        )
    return config


def choose_tokenizer(
    source: Path, layout: Layout, tokenizer: str | None, tokenizer_type: str | None
) -> tuple[PreTrainedTokenizerBase, list[str]]:
    """The tokenizer of the new folder, and why it is this one.

    Args:
        source: the folder of the checkpoint.
        tokenizer: folder (of XLM-R's also Hub id) to take it from; by default the source's, else XLM-R's.
        tokenizer_type: `ernie_m`, the tokens of transformers 4; or `xlm_roberta`. By default a folder of transformers 4
            that brings its tokenizer keeps it, since a fine-tuned model was made with its ids; everything else gets
            XLM-R's, the default of the zoo.

    Raises ValueError where a tokenizer of the type cannot be found.
    """
    model_file = FILES["sentencepiece_model_ckpt"]
    brings = (source / model_file).is_file() and layout is LAYOUTS[0]
    why = "as asked for"
    if tokenizer_type is None and brings and tokenizer is None:
        tokenizer_type, why = "ernie_m", "the folder brings it, and the model was made with its ids"
    elif tokenizer_type is None:
        tokenizer_type, why = "xlm_roberta", "the zoo's default"
    if tokenizer_type == "xlm_roberta":
        chosen = load_tokenizer(tokenizer or XLM_R)
        return chosen, [f"tokenizer: XLM-R's of {tokenizer or XLM_R}, tokenizer_type xlm_roberta, {why}"]
    folder = Path(tokenizer or source)
    if not (folder / model_file).is_file():
        raise ValueError(
            f"{folder} holds no {model_file}: without the SentencePiece model, ERNIE-M's tokenizer cannot be made. "
            f"Give --tokenizer a folder with {model_file} and {FILES['vocab_file']}, or say --tokenizer_type "
            "xlm_roberta."
        )
    chosen = ErnieMTokenizer.from_pretrained(folder)
    notes = [f"tokenizer: ERNIE-M's of {folder}, tokenizer_type ernie_m, {why}"]
    if chosen.lines is None:
        notes.append(f"no {FILES['vocab_file']} there: ids are those of the SentencePiece model, as in transformers 4")
    return chosen, notes


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, config: ErnieMConfig, source: Path) -> None:
    """Raises ValueError for more tokens than embeddings, another padding id, and rows that stand for other tokens.

    The last is known only where the source has a vocab.txt and gets XLM-R's tokenizer: the ordinary tokens have to be
    the same in both, one by one.
    """
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer):,} tokens and the checkpoint {config.vocab_size:,} embeddings: some "
            "tokens would have none. Give --tokenizer the checkpoint's own."
        )
    if tokenizer.pad_token_id != config.pad_token_id:
        raise ValueError(
            f"the padding id is {tokenizer.pad_token_id} in the tokenizer and {config.pad_token_id} in the checkpoint: "
            "they were not made for each other. Give --tokenizer the checkpoint's own."
        )
    vocabulary = source / FILES["vocab_file"]
    if isinstance(tokenizer, ErnieMTokenizer) or not vocabulary.is_file():
        return
    with open(vocabulary, encoding="utf-8") as file:
        tokens = [line.rstrip("\n") for line in file]
    special = set(tokenizer.all_special_ids)
    ordinary = [index for index in range(min(len(tokenizer), len(tokens))) if index not in special]
    found = tokenizer.convert_ids_to_tokens(ordinary)
    others = [index for index, token in zip(ordinary, found, strict=True) if token != tokens[index]]
    if others:
        ours = tokenizer.convert_ids_to_tokens(others[0])
        raise ValueError(
            f"{len(others):,} of {len(ordinary):,} rows stand for other tokens in {vocabulary} than in the tokenizer "
            f"(row {others[0]}: {tokens[others[0]]!r} and {ours!r}): the model would read other words than are "
            "written. Say --tokenizer_type ernie_m, or give --tokenizer one with the same tokens."
        )


def to_transformers4(folder: str, output: str) -> list[str]:
    """Folder of any ERNIE-M model of this zoo -> folder that ErnieM of transformers 4 loads.

    What it has no place for (a masked-LM head, language embeddings) is left out. Returns and raises as `to_zoo`.
    """
    require_new(output)
    model = load_zoo(folder, CLASSES, "ERNIE-M")
    config, ours, notes = model.config, dict(model.state_dict()), []
    head = next((head for head, cls in HEADS.items() if head != "masked_lm" and type(model) is cls), "base")
    base = "" if head == "base" else "ernie_m."
    inner = "" if isinstance(model, HEADS["base"]) else "roberta."
    constant_H = ours[f"{inner}embeddings.token_type_embeddings.weight"][0]
    if constant_H.any():
        positions = f"{inner}embeddings.position_embeddings.weight"
        ours[positions] = ours[positions] + constant_H
        notes.append("token type: the layout has none; the constant was added to the position embeddings")
    state, left_out = {}, set()
    for key, tensor in ours.items():
        names = transformers4_names(key, base, head)
        state |= dict.fromkeys(names, tensor)
        if not names and "token_type_embeddings" not in key:
            left_out.add(key.removeprefix("roberta.").split(".")[0])
    if left_out:
        notes.append(f"left out, since the layout has no place for it: {', '.join(sorted(left_out))}")
    if head == "base" and not any(key.startswith("pooler.") for key in state):
        notes.append("pooler: the model has none; transformers 4 makes a random one when it loads the folder")
    not_default = config.to_diff_dict()
    fields = {name: getattr(config, name) for name in TRANSFORMERS4_FIELDS}
    fields |= {name: not_default[name] for name in TRANSFORMERS4_LABELS if name in not_default}
    fields |= {"architectures": [HEADS[head].__name__], "torch_dtype": not_default.get("dtype"), "act_dropout": 0.0}
    with written_aside(output) as new:
        new.mkdir()
        save_weights(state, new / "model.safetensors")
        write_json(new / "config.json", fields)
        notes.append(write_tokenizer4(Path(folder), new))
    return [f"{HEADS[head].__name__} of {sum(t.numel() for t in state.values()):,} parameters: {output}", *notes]


def write_tokenizer4(folder: Path, new: Path) -> str:
    """The tokenizer's files as transformers 4 reads them. Returns which it is, in words."""
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return f"tokenizer: none, {folder} has none"
    settings = read_json(file)
    cls = settings.get("tokenizer_class")
    for name in (*FILES.values(), "tokenizer.json"):
        if (folder / name).is_file():
            shutil.copy(folder / name, new / name)
    settings = {name: value for name, value in settings.items() if name not in NOT_OF_THE_TOKENIZER}
    if isinstance(settings.get("extra_special_tokens"), list):  # there a dict of another meaning, and an error
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    write_json(new / file.name, settings | {"tokenizer_class": cls})
    return f"tokenizer: {cls}"


def write_json(path: Path, content: dict) -> None:
    """As the libraries write it."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
