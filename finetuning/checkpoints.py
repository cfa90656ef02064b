"""Checkpoints of a run, whatever the kind of task: the one it starts from, and the one it resumes from."""

import contextlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from finetuning.recipe import TaskRecipe
from finetuning.results.protocol import Protocol
from modeling.checkpoints import check_weights, download_pinned, load_auto_model, load_config, load_tokenizer
from modeling.fresh_weights import fresh_weights
from zoo_core.console import without_load_report
from zoo_core.provenance import folder_fingerprint, read_json
from zoo_core.recipes import nearest
from zoo_core.tables import looks_like_missing_folder, resolve_hub_path
from zoo_core.vocabularies import check_vocabulary, longest_input

CHECKPOINT = rf"{PREFIX_CHECKPOINT_DIR}-[0-9]+"  # the names of the Trainer's


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
    """The model to start from.

    `model` is a folder or a Hub id (`owner/name@revision` pins it), `tokenizer` likewise (default: the model's),
    `hub_root` a folder that mirrors the Hub. Code of theirs runs with `trust_remote_code` alone.

    Raises ValueError for a model that cannot be found, without tokenizer, whose vocabulary is not the tokenizer's, or
    with fewer positions than `max_length`, and for code that would have to run.
    """
    path = find_model(model, hub_root)
    folder = Path(path)
    fingerprint = folder_fingerprint(folder) if folder.is_dir() else None
    tokenizer_path = find_model(tokenizer, hub_root, "Tokenizer") if tokenizer else path
    check_weights(path)
    with PartialState().main_process_first(), readable_errors(model):
        config = load_config(path, trust_remote_code)
        loaded = load_tokenizer(tokenizer_path, trust_remote_code)

    check_vocabulary(loaded, config, tokenizer_path, path, "Name the model's own tokenizer.")
    if max_length is not None:
        check_positions(max_length, config, path)
    identity = {
        "folder": model,
        "fingerprint": fingerprint or f"hub:{getattr(config, '_commit_hash', None)}",
        "type": config.model_type,
    }
    return Start(path, config, loaded, identity)


def fine_tuned_on(config: Any) -> list[str]:
    """The tasks that a model was fine-tuned on, as its configuration names them."""
    return list(getattr(config, "fine_tuned_on", None) or [])


def check_positions(max_length: int, config: Any, path: str) -> None:
    """Raises ValueError where the model of `path` has fewer positions than `max_length`."""
    positions = longest_input(config)
    if max_length > positions:
        raise ValueError(
            f"max_length is {max_length}, and the model of {path} has {positions} positions. Set max_length to "
            f"{positions} or less."
        )


def describe_start(recipe: TaskRecipe, max_length: int | None = None) -> Start:
    """As `describe_model`, of the model that a recipe starts from: its `model`, or what `init_from` made of that.

    Identity and fingerprint are those of `model`; `init_from` of the identity says which fine-tuned model it became.
    Raises ValueError as `describe_model` and `best_seed`, and where the run kept no models.
    """
    described = describe_model(recipe.model, recipe.tokenizer, recipe.hub_root, max_length, recipe.trust_remote_code)
    if recipe.init_from is None:
        return described
    identity = described.identity
    folder, facts = best_seed(recipe.init_from, recipe.model, identity["fingerprint"])
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"init_from is {recipe.init_from}, and {folder} is not there: that run kept no models. Name a run that "
            "trains, and run it with save_models=true."
        )
    facts["fingerprint"] = folder_fingerprint(folder)
    tuned = describe_model(str(folder), recipe.tokenizer, recipe.hub_root, max_length, recipe.trust_remote_code)
    return tuned._replace(identity={**identity, "init_from": facts})


def best_seed(run: str, model: str, fingerprint: str) -> tuple[Path, dict[str, Any]]:
    """The seed of a finished run with the best development score: its model's folder, and what results say of it.

    Of a run that selected nothing (`selection: last`), the first seed. `fingerprint` is that of `model`.
    """
    results_file = Path(run) / "results.json"
    if not results_file.is_file():
        raise ValueError(
            f"init_from is {run}, and there is no results.json: it is no finished run of finetuning/run.py. Finish "
            "that run first, or leave init_from out."
        )
    results = read_json(results_file, needs=("model", "protocol", "seeds", "task", "setting"))
    if results["model"]["fingerprint"] != fingerprint:
        raise ValueError(
            f"init_from is {run}, which was fine-tuned from {results['model']['folder']} "
            f"({results['model']['fingerprint'][:19]}), and model is {model} ({fingerprint[:19]}). Give both the same "
            "model."
        )
    scores = Protocol.of(results["protocol"]).selection.scores or [None]
    best = 0 if None in scores else max(range(len(scores)), key=scores.__getitem__)
    seed = results["seeds"][best]
    facts = {"run": run, "task": results["task"], "setting": results["setting"], "seed": seed}
    return Path(run) / f"seed-{seed}" / "model", facts


def find_model(model: str, hub_root: str | None = None, what: str = "Model") -> str:
    """Resolved path of a model, a folder that is there or an id of the Hub; `owner/name@revision` is downloaded.

    Raises ValueError for a missing folder or revision.
    """
    path = download_pinned(resolve_hub_path(model, hub_root))
    folder = Path(path)
    if looks_like_missing_folder(path) or folder.is_file():
        parent = folder.parent
        names = sorted(item.name for item in parent.iterdir()) if parent.is_dir() else []
        raise ValueError(
            f"{what} folder not found: {model}. Name a folder that save_pretrained wrote, or an id of the Hub "
            f"(owner/name). {nearest(folder.name, names)}"
        )
    return path


def read_config(model: str, hub_root: str | None = None, trust_remote_code: bool = False) -> Any:
    """Returns the configuration of a model. Raises ValueError where it cannot be read."""
    path = find_model(model, hub_root)
    with PartialState().main_process_first(), readable_errors(model):
        return load_config(path, trust_remote_code)


def load_pretrained(auto_class: Any, path: str, name: str, trust_remote_code: bool = False, **options: Any) -> Any:
    """The model of a folder in evaluation mode, every weight read from it but a pooler's; `options`: from_pretrained's.

    It computes nothing at padding where it can. Raises ValueError as `fresh_weights`.
    """
    report = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    with readable_errors(name), without_load_report():
        model, info = load_auto_model(auto_class, path, trust_remote_code, **report, **options)
    fresh_weights(model, info, name, is_whole=True)
    if bad := [key for key, value in model.named_parameters() if not value.isfinite().all()]:
        raise ValueError(f"The weights of {name} are not finite ({bad[0]}): nothing they compute means anything.")
    return without_padding(model).eval()


def without_padding(model: Any) -> Any:
    """The model, which from now on computes nothing at padding where its code knows how, as that of this zoo does.

    Its numbers are the same at every token of text. A folder's own code may be older, and other libraries' models pad.
    """
    if hasattr(model, "set_skip_padding"):
        model.set_skip_padding(True)
    return model


@contextlib.contextmanager
def readable_errors(name: str):
    """What transformers raises where a checkpoint cannot be read, as a ValueError that names the recipe's model."""
    try:
        yield
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        is_there = Path(name).exists()
        taken = "" if is_there else f" There is no folder {name} in {Path.cwd()}, so it was taken for an id of the Hub."
        raise ValueError(
            f"The model {name} cannot be loaded: {reason}{taken} Check the name, and for an id of the Hub the "
            "connection."
        ) from error


def trainer_checkpoints(folder: Path) -> list[Path]:
    """The Trainer's checkpoints in a folder, the oldest first. `checkpoint-12.bak` is none of them."""
    found = (path for path in folder.glob("*") if re.fullmatch(CHECKPOINT, path.name) and path.is_dir())
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def last_complete_checkpoint(folder: Path) -> str | None:
    """The newest of the Trainer's checkpoints that was written to its end, which trainer_state.json marks."""

    def is_complete(checkpoint: Path) -> bool:
        try:
            return bool(read_json(checkpoint / "trainer_state.json"))
        except (OSError, ValueError):
            return False

    found = reversed(trainer_checkpoints(folder))
    return next((str(checkpoint) for checkpoint in found if is_complete(checkpoint)), None)
