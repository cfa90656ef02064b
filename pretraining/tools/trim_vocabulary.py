"""Remove tokens that do not occur in the text of a recipe from a model and its tokenizer.

  python -m crosslingual_zoo.pretraining.tools.trim_vocabulary --config RECIPE output_dir=runs/trimmed

The command reads model.start_from and writes output_dir/model, a checkpoint for only the languages of this text. It
cuts the text into the same tokens and gives the same hidden states. Two languages use about ten thousand of XLM-R's
250,002 tokens. The checkpoint is much smaller, and a translation model predicts among fewer tokens.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.tools import require_empty
from crosslingual_zoo.zoo_core.command_line import parse_command_line, user_errors
from crosslingual_zoo.zoo_core.console import say_loading


def trim_tokenizer(definition: dict[str, Any], kept_C: np.ndarray) -> dict[str, Any]:
    """Returns a unigram tokenizer.json with only these ids, in their order.

    It cuts text of kept tokens as before: the best segmentation remains the best if all of its tokens are kept.
    Raises ValueError for a tokenizer of another type.
    """
    model = definition["model"]
    new_ids = _new_ids(kept_C)
    if model["type"] != "Unigram":
        raise ValueError(f"the tokenizer is a {model['type']} model. Start from a model with a tokenizer like XLM-R's.")
    vocabulary = [model["vocab"][old] for old in new_ids if old < len(model["vocab"])]
    added_tokens = [token | {"id": new_ids[token["id"]]} for token in definition["added_tokens"]]
    processor = definition["post_processor"]
    special_tokens = {}
    for name, token in processor["special_tokens"].items():
        special_tokens[name] = token | {"ids": [new_ids[old] for old in token["ids"]]}
    return definition | {
        "model": model | {"vocab": vocabulary, "unk_id": new_ids[model["unk_id"]]},
        "added_tokens": added_tokens,
        "post_processor": processor | {"special_tokens": special_tokens},
    }


def _new_ids(kept_C: np.ndarray) -> dict[int, int]:
    """{old id: new id} of the tokens that stay."""
    return {int(old): new for new, old in enumerate(kept_C)}


def trim_model(model: Any, kept_C: np.ndarray) -> Any:
    """Returns a model of the zoo with only the rows of these ids, in their order."""
    import torch

    from crosslingual_zoo.pretraining.start.meta_pretrained import token_rows

    config = type(model.config).from_dict(_trimmed(model.config.to_dict(), kept_C))
    small = type(model)(config)
    names_of_rows = token_rows(model)
    weights = model.state_dict()
    for name in names_of_rows:
        weights[name] = weights[name][torch.from_numpy(kept_C)]
    small.load_state_dict(weights)
    return small


def _trimmed(fields: dict[str, Any], kept_C: np.ndarray) -> dict[str, Any]:
    """The fields of a configuration for the tokens that stay."""
    from crosslingual_zoo.pretraining.start.meta_pretrained import SPECIAL_IDS

    new_ids = _new_ids(kept_C)
    trimmed = fields | {"vocab_size": len(kept_C)}
    for name in SPECIAL_IDS:
        if fields.get(name) is not None:
            trimmed[name] = new_ids[fields[name]]
    if fields.get("special_token_ids"):
        trimmed["special_token_ids"] = [new_ids[old] for old in fields["special_token_ids"]]
    if fields.get("backbone_config"):
        trimmed["backbone_config"] = _trimmed(fields["backbone_config"], kept_C)
    return trimmed


def main(argv: list[str] | None = None) -> None:
    """Runs the command; `argv` defaults to the command line."""
    recipe, _ = parse_command_line(Recipe, __doc__, {}, argv)
    with user_errors():
        recipe.check()
        if not recipe.model.start_from:
            raise ValueError("model.start_from is empty. Set it to the model to trim.")
        folder = Path(recipe.output_dir) / "model"
        require_empty(folder)
        say_loading(recipe.model.start_from)
        from crosslingual_zoo.pretraining.checkpoints import save_model_folder
        from crosslingual_zoo.pretraining.data.batches import load_corpora
        from crosslingual_zoo.pretraining.data.corpora import tokens_of_text
        from crosslingual_zoo.pretraining.start.initialization import Start
        from crosslingual_zoo.pretraining.start.pretrained import tokenizer_of
        from crosslingual_zoo.zoo_core.console import quiet_libraries

        quiet_libraries()
        start = Start(recipe)
        tokenizer = tokenizer_of(recipe)
        config = start.build_config(tokenizer)
        kept_C = np.union1d(tokens_of_text(load_corpora(recipe, tokenizer)), tokenizer.all_special_ids)
        definition = trim_tokenizer(json.loads(tokenizer.backend_tokenizer.to_str()), kept_C)
        save_model_folder(trim_model(start.build_model(config), kept_C), tokenizer, folder)
        (folder / "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False), encoding="utf-8")
        print(f"{len(kept_C):,} of {len(tokenizer):,} tokens kept: {folder}")


if __name__ == "__main__":
    main()
