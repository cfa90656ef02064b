"""Writes the files with which sentence-transformers computes the vectors of the retrieval task from a model.

    python -m crosslingual_zoo.hub_cards.sentence_transformer --model runs/xlm_align/model --layer 8

`SentenceTransformer(folder, trust_remote_code=True)` then takes the mean of the states of one layer, without those of
special tokens. It uses three modules of sentence-transformers and no other code. The weights, config.json and the
fingerprint of the folder do not change, and AutoModel and pipelines load the same model as before. No layer is removed.
"""

import os
import sys
from pathlib import Path
from typing import Any

from crosslingual_zoo.finetuning.tasks.vectors.recipe import POOLINGS, RetrievalRecipe
from crosslingual_zoo.zoo_core.command_line import TRUST_REMOTE_CODE, CommandParser, user_errors
from crosslingual_zoo.zoo_core.console import say_loading
from crosslingual_zoo.zoo_core.provenance import write_json

# the first release with MultiVectorMask, which leaves tokens out of the mean
REQUIRES = ">=6.0"
MODULES = {  # by folder; other modules of that library may name code of their own
    "": "sentence_transformers.base.modules.transformer.Transformer",
    "1_MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "2_Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
}


def write_modules(
    model_dir: str | os.PathLike,
    layer: int | None = None,
    pooling: str | None = None,
    overwrite: bool = False,
    trust_remote_code: bool = False,
) -> tuple[int, str]:
    """Writes modules.json and the files that it names into a model folder. Returns the layer and the pooling.

    Raises ValueError, before anything is written, for invalid values and, without `overwrite`, for existing modules.
    """
    from crosslingual_zoo.finetuning.models import describe_model
    from crosslingual_zoo.modeling.layer_states import default_layer

    folder = Path(model_dir)
    _, config, tokenizer, _ = describe_model(str(folder), max_length=None, trust_remote_code=trust_remote_code)
    pooling = pooling or RetrievalRecipe().pooling
    if layer is None:
        layer = default_layer(config.num_hidden_layers)
    if not 0 <= layer <= config.num_hidden_layers:
        raise ValueError(f"layer is {layer}. Give 0 (the embeddings) to {config.num_hidden_layers}.")
    if (folder / "modules.json").exists() and not overwrite:
        raise ValueError(f"{folder} has modules.json. Add --overwrite to replace it and the files that it names.")
    # modules.json last, when all files that it names exist
    for name, content in module_files(layer, pooling, config, tokenizer).items():
        write_json(folder / name, content)
    return layer, pooling


def module_files(layer: int, pooling: str, config: Any, tokenizer: Any) -> dict[str, Any]:
    """Returns the content of the files by name; a file follows the files that it names."""
    from crosslingual_zoo.modeling.configuration_encoder import longest_input

    states: str | list[str | int] = ["hidden_states", layer]
    if layer == config.num_hidden_layers:
        states = "last_hidden_state"
    left_out = []
    if pooling == "mean":
        tokens = dict.fromkeys(tokenizer.all_special_tokens)
        left_out = [token for token in tokens if token != tokenizer.unk_token]
    modules = []
    for index, (path, name) in enumerate(MODULES.items()):
        modules.append({"idx": index, "name": str(index), "path": path, "type": name})
    return {
        "1_MultiVectorMask/config.json": {
            "skiplist_words": left_out,
            "skiplist_tasks": ["query", "document"],  # of encode_query, and of all else
            "keep_only_token_ids": None,
        },
        "2_Pooling/config.json": {
            "embedding_dimension": config.hidden_size,
            "pooling_mode": {"cls": "cls", "mean": "mean", "mean_with_special_tokens": "mean"}[pooling],
            "include_prompt": True,
        },
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": states}},
            "module_output_name": "token_embeddings",
            "max_seq_length": longest_input(config),
        },
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "requirements": {"sentence-transformers": REQUIRES},
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "modules.json": modules,
    }


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(prog="python -m crosslingual_zoo.hub_cards.sentence_transformer", description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="the model folder")
    about = "layer whose states are pooled, 0: embeddings (default: three fifths of the layers)"
    parser.add_argument("--layer", type=int, metavar="N", help=about)
    parser.add_argument("--pooling", choices=POOLINGS, help="default: mean, without special tokens")
    parser.add_argument("--overwrite", action="store_true", help="replace modules that exist")
    parser.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    args = parser.parse_args(argv)
    with user_errors():
        say_loading(args.model)
        layer, pooling = write_modules(args.model, args.layer, args.pooling, args.overwrite, args.trust_remote_code)
        print(f"{args.model}: layer {layer}, {POOLINGS[pooling]}")


if __name__ == "__main__":
    sys.exit(main())
