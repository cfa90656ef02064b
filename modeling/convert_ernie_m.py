# SPDX-License-Identifier: Apache-2.0
"""Converts ERNIE-M's checkpoints into folders of this zoo.

python -m modeling.convert_ernie_m saved_by_transformers_4 runs/ernie_m

The layouts are known from public code:
- transformers 4: `encoder.layers.0.self_attn.self_attn.q_proj.weight`, behind `ernie_m.` where there is a head;
- PaddleNLP: the same without the doubled `self_attn`, weights (in, out), and all heads above a pooler.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from .configuration_ernie_m import ErnieMConfig
from .convert_common import (
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
    names_of,
    pairs,
    read_state,
    require_new,
    run,
    save_tokenizer,
    sizes,
    written_aside,
)
from .convert_paddle import transposed
from .modeling_ernie_m import (
    ErnieMForQuestionAnswering,
    ErnieMForSequenceClassification,
    ErnieMForTokenClassification,
    ErnieMModel,
)
from .tokenization_ernie_m import FILES, ErnieMTokenizer

HEADS = {
    "base": ErnieMModel,
    "sequence": ErnieMForSequenceClassification,
    "token": ErnieMForTokenClassification,
    "question_answering": ErnieMForQuestionAnswering,
}
HEADS_OF_CLASSES = {cls.__name__: head for head, cls in HEADS.items()}  # as transformers 4 and PaddleNLP name them

# ours -> transformers 4's
MODULES = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.LayerNorm": "embeddings.layer_norm",
    "pooler.dense": "pooler.dense",
    "encoder.layer.#.attention.self.query": "encoder.layers.#.self_attn.self_attn.q_proj",
    "encoder.layer.#.attention.self.key": "encoder.layers.#.self_attn.self_attn.k_proj",
    "encoder.layer.#.attention.self.value": "encoder.layers.#.self_attn.self_attn.v_proj",
    "encoder.layer.#.attention.output.dense": "encoder.layers.#.self_attn.out_proj",
    "encoder.layer.#.attention.output.LayerNorm": "encoder.layers.#.norm1",
    "encoder.layer.#.intermediate.dense": "encoder.layers.#.linear1",
    "encoder.layer.#.output.dense": "encoder.layers.#.linear2",
    "encoder.layer.#.output.LayerNorm": "encoder.layers.#.norm2",
}
# names of the layers in each layout
LAYERS = {
    "transformers 4": r"(?:ernie_m\.)?encoder\.layers\.(\d+)\.self_attn\.self_attn\..+",
    "PaddleNLP": r"(?:ernie_m\.)?encoder\.layers\.(\d+)\.self_attn\.[qkv]_proj\..+",
}
XLM_R = "FacebookAI/xlm-roberta-base"  # all sizes of XLM-R have one vocabulary
# weights in a folder, in the order they are looked for
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "*.pdparams")
CONFIGS = ("config.json", "model_config.json", "ernie_config.json")
# fields of a foreign configuration that are not ours to keep: written anew, or of no effect here
NOT_KEPT = (
    "architectures auto_map model_type transformers_version _name_or_path act_dropout use_cache position_embedding_type"
).split()


def make_table(layout: str, prefix: str) -> Table:
    """The names of a layout; `prefix` precedes those of the base model (`ernie_m.`, or nothing)."""
    table = pairs("classifier", "classifier") | pairs("qa_outputs", "qa_outputs")
    for ours, theirs in MODULES.items():
        table |= pairs(ours, prefix + theirs)
    if layout == "PaddleNLP":
        table = {ours: [name.replace("self_attn.self_attn", "self_attn") for name in table[ours]] for ours in table}
        table |= pairs("qa_outputs", "classifier")
    return table


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

    `source` is a folder that transformers 4 or PaddleNLP saved, or a file of weights with configuration and tokenizer
    in the same folder; the others are the options of the command line.

    Returns what was found and done. Raises ValueError, for all keys at once that are missing, left over or of the wrong
    shape, before anything is written.
    """
    require_new(output)
    weights_file = find_weights(source)
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    config_file = next((folder / name for name in CONFIGS if (folder / name).is_file()), None)
    notes = [f"weights: {weights_file}", f"configuration: {config_file or 'none'}"]
    state = leave_out(read_state(weights_file)[0], ignore_keys, notes)
    settings = read_config(config_file) if config_file else {}
    layout = detect_layout(state, source)
    notes.append(f"layout: {layout}")
    state = transposed(state) if layout == "PaddleNLP" else state
    head = detect_head(state, layout, next(iter(settings.get("architectures") or ()), None), head, notes)
    if head in ("token", "question_answering"):
        # PaddleNLP keeps the pooler below every head
        pooler = [key for key in state if "pooler.dense." in key]
        state = {key: tensor for key, tensor in state.items() if key not in pooler}
        if pooler:
            notes.append(f"left out, since a {HEADS[head].__name__} does not read it: pooler")
    prefix = "ernie_m." if any(key.startswith("ernie_m.") for key in state) else ""
    table = make_table(layout, prefix)
    config = configure(state, settings, layout, table, head, num_attention_heads, notes)
    cls = HEADS[head]
    weights = fit(state, cls, config, table, source)

    chosen = choose_tokenizer(folder, layout, tokenizer, tokenizer_type, notes)
    check_vocabulary(chosen, config, folder)
    config.bos_token_id, config.eos_token_id = chosen.cls_token_id, chosen.sep_token_id
    model = assemble(cls, config, weights)
    with written_aside(output) as new:
        model.save_pretrained(new)
        if isinstance(chosen, ErnieMTokenizer):
            chosen.save_pretrained(new)
        else:
            save_tokenizer(chosen, new)
    return [f"{cls.__name__} of {model.num_parameters():,} parameters: {output}", *notes]


def find_weights(source: str) -> Path:
    """The file of weights in a folder, or the file itself. Raises ValueError for none."""
    path = Path(source)
    if path.is_file():
        return path
    for pattern in WEIGHTS:
        if found := sorted(path.glob(pattern)):
            return found[0]
    raise ValueError(f"{source} has no weights: it must have one of {', '.join(WEIGHTS)}.")


def read_json(path: Path) -> dict:
    """The object in a JSON file. Raises ValueError for a file that holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a JSON object.")
    return content


def read_config(path: Path) -> dict:
    """The fields of a configuration in one of the forms, with `architectures`.

    PaddleNLP's older ones hold the class in `init_class`, and the fields of the base model in `init_args`.
    """
    fields = read_json(path)
    for base in fields.pop("init_args", ()):
        if isinstance(base, dict):
            fields = base | fields
    if "init_class" in fields:
        fields.setdefault("architectures", [fields.pop("init_class")])
    # PaddleNLP's names
    for theirs, ours in {"dropout": "classifier_dropout", "num_classes": "num_labels"}.items():
        if theirs in fields:
            fields.setdefault(ours, fields.pop(theirs))
    return fields


def detect_layout(state: State, source: str) -> str:
    """The layout, a key of `LAYERS`, that the names of the layers are of. Raises ValueError for none of them."""
    for layout, pattern in LAYERS.items():
        if layer_count(state, pattern):
            return layout
    raise ValueError(
        f"{source} has no layer of {', '.join(LAYERS)}: its keys are {', '.join(list(state)[:3])}, ... A folder of "
        "this zoo needs no conversion."
    )


def detect_head(state: State, layout: str, cls: str | None, asked: str | None, notes: list[str]) -> str:
    """The head of a checkpoint, a key of `HEADS`: as asked for, as the configuration names its class, or by the keys.

    Raises ValueError for an unknown class, and where the keys may be of two heads.
    """
    if asked:
        head, why = asked, "as asked for"
    elif cls is not None:
        if cls not in HEADS_OF_CLASSES:
            raise ValueError(
                f"the configuration names the class {cls!r}, none of {', '.join(HEADS_OF_CLASSES)}: --head base "
                "converts the encoder."
            )
        head, why = HEADS_OF_CLASSES[cls], f"the configuration names {cls}"
    elif layout == "PaddleNLP" and "classifier.weight" in state:
        raise ValueError(
            "PaddleNLP's classifiers share their weights' names: give --head sequence, token or question_answering."
        )
    else:
        has_pooler = any(key.endswith("pooler.dense.weight") for key in state)
        by_key = {"qa_outputs.weight": "question_answering"}
        by_key["classifier.weight"] = "sequence" if has_pooler else "token"
        head, why = next((head for key, head in by_key.items() if key in state), "base"), "by its keys"
    notes.append(f"head: {HEADS[head].__name__}, {why}")
    return head


def configure(
    state: State, settings: dict, layout: str, table: Table, head: str, num_heads: int | None, notes: list[str]
) -> ErnieMConfig:
    """The configuration: what its file says, and where it does not, what the shapes do. Raises as `make_config`."""
    fields = {
        "num_hidden_layers": layer_count(state, LAYERS[layout]),
        **sizes(state, table),
        **{name: value for name, value in settings.items() if name not in NOT_KEPT},
    }
    classifier = names_of("classifier.weight", table)
    if head in ("sequence", "token") and "id2label" not in fields and classifier[0] in state:
        fields.setdefault("num_labels", len(state[classifier[0]]))
    given = {} if num_heads is None else {"num_attention_heads": num_heads}
    config = make_config(ErnieMConfig, fields | given)
    assumed = [name for name in ("num_attention_heads", "hidden_act", "layer_norm_eps") if name not in settings | given]
    if assumed:
        notes.append(f"assumed: {', '.join(f'{name} {getattr(config, name)}' for name in assumed)}")
    config.add_pooling_layer = head != "base" or any(name in state for name in names_of("pooler.dense.weight", table))
    if not config.add_pooling_layer:
        notes.append("pooler: the checkpoint has none; config.add_pooling_layer is false")
    return config


def choose_tokenizer(
    source: Path, layout: str, tokenizer: str | None, tokenizer_type: str | None, notes: list[str]
) -> PreTrainedTokenizerBase:
    """The tokenizer of the new folder, by default from that of the checkpoint, `source`.

    A folder of transformers 4 that brings its tokenizer keeps it, unless a type is given, since a fine-tuned model was
    made with its ids; everything else gets XLM-R's, the default of the zoo.

    Raises ValueError where a tokenizer of the type cannot be found.
    """
    model_file = FILES["sentencepiece_model_ckpt"]
    if tokenizer_type is None:
        keeps = tokenizer is None and layout == "transformers 4" and (source / model_file).is_file()
        tokenizer_type = "ernie_m" if keeps else "xlm_roberta"
    origin = tokenizer or (XLM_R if tokenizer_type == "xlm_roberta" else source)
    notes.append(f"tokenizer: {tokenizer_type}, of {origin}")
    if tokenizer_type == "xlm_roberta":
        return load_tokenizer(origin)
    if not (Path(origin) / model_file).is_file():
        raise ValueError(f"{origin} has no {model_file}: give --tokenizer a folder with it.")
    return ErnieMTokenizer.from_pretrained(origin)


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, config: ErnieMConfig, source: Path) -> None:
    """Raises ValueError for more tokens than embeddings, another padding id, and rows that belong to other tokens.

    The last is known only where the source has a vocab.txt and gets XLM-R's tokenizer: the ordinary tokens have to be
    the same in both, one by one.
    """
    if len(tokenizer) > config.vocab_size or tokenizer.pad_token_id != config.pad_token_id:
        raise ValueError(
            f"the tokenizer has {len(tokenizer):,} tokens and padding id {tokenizer.pad_token_id}, the checkpoint "
            f"{config.vocab_size:,} embeddings and padding id {config.pad_token_id}: give its own as --tokenizer."
        )
    vocabulary = source / FILES["vocab_file"]
    if isinstance(tokenizer, ErnieMTokenizer) or not vocabulary.is_file():
        return
    special, tokens = tokenizer.all_special_ids, vocabulary.read_text(encoding="utf-8").split("\n")
    for index, ours in enumerate(tokenizer.convert_ids_to_tokens(range(min(len(tokens), len(tokenizer))))):
        if index not in special and ours != tokens[index]:
            raise ValueError(
                f"row {index} is {tokens[index]!r} in {vocabulary} and {ours!r} in the tokenizer: give "
                "--tokenizer_type ernie_m."
            )


DESCRIPTION = """Converts ERNIE-M checkpoints, which transformers 5 no longer loads, into folders of this zoo.

  python -m modeling.convert_ernie_m saved_by_transformers_4 runs/ernie_m

Read are folders and files of transformers 4's ErnieM (.safetensors, .bin) and of PaddleNLP (.pdparams).

Files are read without running code in them. Keys that are missing, left over, of the wrong shape or no finite numbers
are all listed, and nothing is written then. What was found, assumed and done is printed, a line each.

Padding on the left moves positions in transformers 4 and not here: give position_ids=torch.arange(length)[None] + 2 to
have the same."""


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exit code 2 and a message where the user has to act."""
    parser = make_parser("convert_ernie_m", DESCRIPTION)
    parser.add_argument("source", metavar="SOURCE", help="folder or file to convert")
    parser.add_argument("output", metavar="FOLDER", help="what to write; must not exist")
    parser.add_argument(
        "--tokenizer",
        metavar="DIR|ID",
        help="where the tokenizer is taken from (default: SOURCE for ernie_m, XLM-R's on the Hub for xlm_roberta)",
    )
    parser.add_argument(
        "--tokenizer_type",
        choices=["ernie_m", "xlm_roberta"],
        help="ernie_m: the tokens and ids of transformers 4's ErnieMTokenizer (vocab.txt, sentencepiece.bpe.model). "
        "xlm_roberta: XLM-R's (default: ernie_m where a folder of transformers 4 brings it, else xlm_roberta)",
    )
    parser.add_argument(
        "--head", choices=list(HEADS), help="what the checkpoint is (default: as its configuration or its names say)"
    )
    add_reading_options(parser)
    arguments = vars(parser.parse_args(argv))
    source, output = (arguments.pop(name) for name in ("source", "output"))
    run("convert_ernie_m", lambda: to_zoo(source, output, **arguments))


if __name__ == "__main__":
    main()
