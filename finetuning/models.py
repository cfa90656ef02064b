"""Finds, describes and loads the models that a user names."""

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from crosslingual_zoo.modeling.checkpoints import check_vocabulary, download_pinned, load_config, load_tokenizer
from crosslingual_zoo.modeling.configuration_encoder import longest_input
from crosslingual_zoo.zoo_core.processes import main_first
from crosslingual_zoo.zoo_core.provenance import (
    folder_fingerprint,
    model_files,
    model_fingerprint,
    tokenizer_fingerprint,
)
from crosslingual_zoo.zoo_core.tables import looks_like_missing_folder, resolve_hub_path

if TYPE_CHECKING:  # it imports pandas, which `word-align` does not need
    from crosslingual_zoo.finetuning.recipe import TaskRecipe


FINE_TUNED = re.compile("For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice)$")


class Start(NamedTuple):
    """A model to start from, before its weights are loaded."""

    path: str
    config: Any
    tokenizer: Any
    identity: dict[str, Any]  # folder, fingerprint and type, for results.json


def describe_model(
    model: str,
    tokenizer: str | None = None,
    hub_root: str | None = None,
    max_length: int | None = None,
    trust_remote_code: bool = False,
) -> Start:
    """Returns the path, configuration, tokenizer and identity of a model, without its weights.

    `model` and `tokenizer` are folders or Hub ids (`owner/name@revision`), `hub_root` a folder that mirrors the Hub.
    Raises ValueError if the model is not found, has no tokenizer, has another vocabulary than the tokenizer, has fewer
    positions than `max_length`, or needs code and `trust_remote_code` is false.
    """
    path = find_model(model, hub_root)
    if Path(path).is_dir():
        model_files(Path(path))  # raises ValueError if it holds no weights or no config.json
    tokenizer_path = find_model(tokenizer, hub_root, "Tokenizer") if tokenizer else path
    with main_first(), readable_errors(model):
        config = load_config(path, trust_remote_code)
        loaded = load_tokenizer(tokenizer_path, trust_remote_code)

    check_vocabulary(loaded, config, path)
    positions = longest_input(config)
    if positions is not None and max_length is not None and max_length > positions:
        raise ValueError(f"max_length is {max_length}, and the model of {path} has {positions} positions. Lower it.")
    identity = {"folder": model, "fingerprint": model_fingerprint(path), "type": config.model_type}
    return Start(path, config, loaded, identity)


def fine_tuned_on(config: Any) -> list[str]:
    """Returns the tasks that a model was fine-tuned on, as its configuration names them.

    Other projects' models do not name them: their head says that there was one.
    """
    named = getattr(config, "fine_tuned_on", None)
    if named:
        return list(named)
    architectures = getattr(config, "architectures", None) or []
    return [f"an unknown task ({name})" for name in architectures if FINE_TUNED.search(name)]


def describe_start(recipe: "TaskRecipe") -> Start:
    """Returns `describe_model` of the model that a recipe starts from: its `model`, or the one that `init_from` made.

    The identity is that of `model`, with the fingerprint of the tokenizer, and `init_from` in it names the fine-tuned
    model. Raises ValueError as `describe_model` and `best_seed`.
    """
    options = recipe.hub_root, recipe.longest_input, recipe.trust_remote_code
    start = describe_model(recipe.model, recipe.tokenizer, *options)
    identity = start.identity
    if recipe.init_from is not None:
        folder, facts = best_seed(recipe.init_from, recipe.model, identity["fingerprint"])
        start = describe_model(str(folder), recipe.tokenizer, *options)
        identity["init_from"] = {**facts, "fingerprint": folder_fingerprint(folder)}
    identity["tokenizer_fingerprint"] = tokenizer_fingerprint(start.tokenizer)
    return start._replace(identity=identity)


def best_seed(run: str, model: str, fingerprint: str) -> tuple[Path, dict[str, Any]]:
    """Returns the model folder of the seed with the best development score, and the facts that results show of it.

    It is the first seed of a run without selection. `fingerprint` is that of `model`, from which the run must start.
    Raises ValueError for a run without results, or from another model.
    """
    from crosslingual_zoo.finetuning.results import read_results  # it imports pandas

    results = read_results(run)
    start = results["model"]
    if start["fingerprint"] != fingerprint:
        raise ValueError(
            f"init_from is {run}, which was fine-tuned from {start['folder']} ({start['fingerprint'][:19]}), and model "
            f"is {model} ({fingerprint[:19]}). Use the same model for both."
        )
    seed = best_of(results["seeds"], results["protocol"]["selection"])
    folder = Path(run) / f"seed-{seed}" / "model"  # of a run with save_models
    return folder, {"run": run, "task": results["task"], "setting": results["setting"], "seed": seed}


def best_of(seeds: list[int], selection: dict[str, Any]) -> int:
    """Returns the seed with the best development score and, of equal scores, the lowest loss; else the first one."""
    if None in selection["scores"]:
        return seeds[0]
    losses = [math.inf if loss is None else loss for loss in selection["losses"]]  # None: not finite
    figures = zip(selection["scores"], losses, seeds, strict=True)
    _, _, seed = min(figures, key=lambda row: (-round(row[0], 6), row[1]))
    return seed


def find_model(model: str, hub_root: str | None = None, what: str = "Model") -> str:
    """Returns the path of a model: an existing folder or a Hub id; `owner/name@revision` is downloaded.

    Raises ValueError for a missing folder or revision.
    """
    path = download_pinned(resolve_hub_path(model, hub_root))
    folder = Path(path)
    if looks_like_missing_folder(path) or folder.is_file():
        raise ValueError(f"{what} folder not found: {model}. Name one of save_pretrained, or an id of the Hub.")
    return path


@contextlib.contextmanager
def readable_errors(name: str) -> Iterator[None]:
    """Turns transformers' error for an unreadable checkpoint into a ValueError that names the model."""
    try:
        yield
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        taken = "" if Path(name).exists() else " There is no such folder, so it was taken for an id of the Hub."
        raise ValueError(f"The model {name} cannot be loaded: {reason}{taken}") from error
