"""Writes the files with which sentence-transformers computes the vectors of the retrieval task from a model.

    python -m hub_cards.sentence_transformer --model runs/xlm_align/model
    python -m hub_cards.sentence_transformer --model runs/xlm_align/model --results runs/xlm_align/tatoeba/results.json

`SentenceTransformer(folder, trust_remote_code=True)` then takes the mean of the states of one layer, without those of
special tokens. It uses three modules of sentence-transformers and no other code. The weights, config.json and the
fingerprint of the folder do not change, and AutoModel and pipelines load the same model as before. No layer is removed.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetuning.results.table import load_results
from finetuning.tasks.retrieval.recipe import POOLINGS, RetrievalRecipe
from hub_cards.record import FOLDER, RESULTS
from modeling.model_types import longest_input
from zoo_core.command_line import CommandParser, user_errors
from zoo_core.provenance import folder_fingerprint, write_json
from zoo_core.recipes import TRUST_REMOTE_CODE

# the first release with MultiVectorMask, which leaves tokens out of the mean
REQUIRES = ">=6.0"
KINDS = ("retrieval", "mining")  # of results that say how sentences become vectors, in the order of preference


@dataclass
class Vectors:
    """How a sentence becomes a vector: the states of a layer, pooled."""

    layer: int
    pooling: str
    max_length: int | None  # None: as many positions as the model has
    why: str  # in words, where layer and pooling come from


def write_modules(
    model_dir: str | os.PathLike,
    layer: int | None = None,
    results_file: str | os.PathLike | None = None,
    pooling: str | None = None,
    overwrite: bool = False,
    trust_remote_code: bool = False,
) -> Vectors:
    """Writes modules.json and the files that it names into a model folder, and returns how vectors are computed.

    Layer, pooling and length are those of `results_file`, a results.json of a retrieval or mining task on the weights.
    Without it and without `layer` and `pooling`, they are those of the results in the folder's record, or else the
    retrieval task's defaults.

    Raises ValueError, before anything is written, for invalid values and, without `overwrite`, for existing files with
    other content.
    """
    from finetuning.models import describe_model

    folder = Path(model_dir)
    is_chosen = layer is not None or pooling is not None
    if results_file is not None and is_chosen:
        raise ValueError("The results have a layer and a pooling. Give either --results, or --layer and --pooling.")
    fingerprint = folder_fingerprint(folder)  # raises if it is no model folder
    vectors = None
    if results_file is not None:
        vectors = vectors_of_results(Path(results_file), fingerprint)
    elif not is_chosen:
        vectors = vectors_of_record(folder, fingerprint)
    max_length = vectors.max_length if vectors else None
    _, config, tokenizer, _ = describe_model(str(folder), max_length=max_length, trust_remote_code=trust_remote_code)
    vectors = vectors or chosen_vectors(layer, pooling, config.num_hidden_layers)
    if not 0 <= vectors.layer <= config.num_hidden_layers:
        raise ValueError(f"layer is {vectors.layer}. Give 0 (the embeddings) to {config.num_hidden_layers}.")
    files = module_files(vectors, config, tokenizer)
    changed = [name for name, content in files.items() if _content(folder / name) not in (None, content)]
    if changed and not overwrite:
        raise ValueError(f"{folder} has other files named {', '.join(changed)}. Add --overwrite to replace them.")
    # modules.json last, when all files that it names exist
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_json(folder / name, content)
    return vectors


def chosen_vectors(layer: int | None, pooling: str | None, depth: int) -> Vectors:
    """The given layer and pooling, or the defaults of the retrieval task."""
    from finetuning.tasks.features.task import reported_layer

    default = RetrievalRecipe()
    pooling = pooling or default.pooling
    if pooling not in POOLINGS:
        raise ValueError(f"pooling is {pooling!r}. Give one of {', '.join(POOLINGS)}.")
    if layer is not None:
        return Vectors(layer, pooling, None, "as given")
    layer, _, rule = reported_layer(default.layer, default.layers, depth)
    return Vectors(layer, pooling, None, f"{rule}, without results")


def vectors_of_results(path: Path, fingerprint: str) -> Vectors:
    """How the sentences of a results file became vectors. Raises ValueError if it is not of these weights."""
    if not path.is_file():
        raise ValueError(f"{path} is no results file.")
    results = load_results(path)
    kind = results.get("kind") if isinstance(results, dict) else None
    if kind not in KINDS:
        raise ValueError(f"{path} has the kind {kind}. Name results of a retrieval or mining task.")
    protocol, model = results.protocol, results["model"]
    # the vectors are those of the fine-tuned model, not of its start
    measured = (model.get("init_from") or {}).get("fingerprint") or model["fingerprint"]
    if fingerprint not in measured.split("+"):
        raise ValueError(f"{path} is of the weights {measured[:19]}, and these are {fingerprint[:19]}.")
    if protocol.pooling not in POOLINGS:
        raise ValueError(f"{path} has the pooling {protocol.pooling!r}, which is not one of {', '.join(POOLINGS)}.")
    why = f"as in {path.name} of {results['task']}: {protocol.selection.rule}"
    return Vectors(protocol.layer, protocol.pooling, protocol.max_length, why)


def vectors_of_record(folder: Path, fingerprint: str) -> Vectors | None:
    """How the sentences of the results in the folder's record became vectors; None if there are none.

    Retrieval precedes mining, because XTREME's scripts pool them in two ways. Raises ValueError if they disagree.
    """
    kinds = {path: load_results(path).get("kind") for path in sorted((folder / RESULTS).glob("*.json"))}
    for kind in KINDS:
        found = [vectors_of_results(path, fingerprint) for path in kinds if kinds[path] == kind]
        if len({(of.layer, of.pooling, of.max_length) for of in found}) > 1:
            reasons = "; ".join(of.why for of in found)
            raise ValueError(
                f"The {kind} results in {FOLDER}/ differ in layer, pooling or length ({reasons}). Name one."
            )
        if found:
            return found[0]
    return None


def module_files(vectors: Vectors, config: Any, tokenizer: Any) -> dict[str, Any]:
    """Returns the content of the files by name; a file follows the files that it names."""
    is_last = vectors.layer == config.num_hidden_layers
    states = "last_hidden_state" if is_last else ["hidden_states", vectors.layer]
    left_out = dict.fromkeys(tokenizer.all_special_tokens) if vectors.pooling == "mean" else []
    mask = {
        "skiplist_words": [token for token in left_out if token != tokenizer.unk_token],
        "skiplist_tasks": ["query", "document"],  # of encode_query, and of all else
        "keep_only_token_ids": None,
    }
    mode = "cls" if vectors.pooling == "cls" else "mean"
    pooling = {"embedding_dimension": config.hidden_size, "pooling_mode": mode, "include_prompt": True}
    modules = {
        "": "base.modules.transformer.Transformer",
        "1_MultiVectorMask": "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
        "2_Pooling": "sentence_transformer.modules.pooling.Pooling",
    }
    return {
        "1_MultiVectorMask/config.json": mask,
        "2_Pooling/config.json": pooling,
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": states}},
            "module_output_name": "token_embeddings",
            "max_seq_length": vectors.max_length or longest_input(config),
        },
        "config_sentence_transformers.json": {
            "model_type": "SentenceTransformer",
            "requirements": {"sentence-transformers": REQUIRES},
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{name}"}
            for index, (path, name) in enumerate(modules.items())
        ],
    }


def _content(file: Path) -> Any:
    """The content of a JSON file; None if it does not exist, and its bytes if they are not JSON."""
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return file.read_bytes()


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(prog="python -m hub_cards.sentence_transformer", description=__doc__)
    parser.add_argument("--model", required=True, metavar="DIR", help="the model folder")
    parser.add_argument(
        "--layer",
        type=int,
        metavar="N",
        help="layer whose states are pooled, 0: embeddings; default: that of the retrieval or mining results in the "
        "folder's record, or else three fifths of the layers",
    )
    parser.add_argument(
        "--results",
        metavar="FILE",
        help="results.json of a retrieval or mining task on this model, whose layer, pooling and length to use",
    )
    pooling_help = f"{', '.join(POOLINGS)}; default: mean, without special tokens"
    parser.add_argument("--pooling", metavar="NAME", help=pooling_help)
    parser.add_argument("--overwrite", action="store_true", help="replace files with other content")
    parser.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    args = parser.parse_args(argv)
    with user_errors():
        vectors = write_modules(
            args.model, args.layer, args.results, args.pooling, args.overwrite, args.trust_remote_code
        )
    print(f"{args.model}: layer {vectors.layer} ({vectors.why}), {POOLINGS[vectors.pooling]}")
    print(f"SentenceTransformer({str(args.model)!r}, trust_remote_code=True)")
    if (Path(args.model) / "README.md").is_file():
        print(f"To show it in the card: python -m hub_cards.card --model {args.model}")


if __name__ == "__main__":
    sys.exit(main())
