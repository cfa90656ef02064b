"""One run of a recipe: every seed, then its results; by language, by pair of languages, or by layer of a model."""

from collections.abc import Callable
from typing import Any

from accelerate import PartialState

from finetuning.checkpoints import describe_model
from finetuning.data.data_report import print_labels
from finetuning.experiments.compare_runs import read_others, write_beside
from finetuning.experiments.sweep import sweep_facts
from finetuning.results.report import build_results, print_results, write_results
from finetuning.run_folder import RunFolder
from finetuning.seeds import SeedProgress
from finetuning.tasks.features import models as feature_models
from finetuning.tasks.registry import recipe_module, task_module
from finetuning.tasks.translation import task as translation
from finetuning.tasks.translation import trainer as translation_trainer
from finetuning.tasks.translation.model import build_model, check_architecture
from finetuning.tasks.translation.recipe import check_recipe
from finetuning.trainer import load_model, open_run, run_seed, task_arguments
from zoo_core.recording import check_recording


def run_by_language(recipe: Any, resume: bool, command: list[str], evaluate: bool = True) -> list[dict[str, Any]]:
    """Texts with something to tell of them, every language evaluated by itself: all kinds that are trained but
    translation. Returns the seeds' records.

    Without `evaluate` only the development rows are scored, and no results are written: a sweep selects by them.
    """
    kind, path, config, tokenizer, identity = open_run(recipe)
    folder = RunFolder(recipe, identity, resume)
    check_recording(recipe.tracker, recipe.push_to_hub)
    data = kind.encode(kind.read(recipe), tokenizer, recipe)
    data.protocol["selection"].update(sweep_facts(recipe, identity, data.protocol))
    if evaluate and PartialState().is_main_process:
        print_labels(recipe, data, most_languages=5)
    task_arguments(recipe, kind, recipe.seeds[0], folder.path)  # what the Trainer refuses, it refuses here
    before = list(getattr(config, "fine_tuned_on", None) or [])

    def build(seed: int) -> Any:
        setting = recipe.setting + (", plug-in" if recipe.plug_in else "")
        trained_on = [*before, f"{recipe.task} ({setting})"]
        return load_model(kind, data, path, seed, trained_on, recipe.plug_in, recipe.trust_remote_code)

    def train(seed: int, model: Any) -> dict[str, Any]:
        with SeedProgress(recipe, seed) as progress:
            return run_seed(recipe, kind, seed, data, model, tokenizer, folder.of_seed(seed), progress, evaluate)

    records = each_seed(recipe.seeds, folder, lambda: folder.begin(data.protocol, command, data.lists), build, train)
    if evaluate:
        report(recipe, folder, identity, data, before, records)
    return records


def run_translation(recipe: Any, resume: bool, command: list[str]) -> None:
    """Pairs of sentences; every pair of languages evaluated by itself."""
    check_recipe(recipe)
    check_architecture(recipe)
    path, config, tokenizer, identity = describe_model(
        recipe.model, recipe.tokenizer, recipe.hub_root, recipe.max_length, recipe.trust_remote_code
    )
    folder = RunFolder(recipe, identity, resume)
    check_recording(recipe.tracker, recipe.push_to_hub)
    data = translation.encode(translation.read(recipe), tokenizer, recipe)
    translation_trainer.check_run(recipe, data)
    before = list(getattr(config, "fine_tuned_on", None) or [])

    def build(seed: int) -> Any:
        model = build_model(recipe, path, config, seed)
        model.config.fine_tuned_on = [*before, f"{recipe.task} (translation)"]
        return model

    def train(seed: int, model: Any) -> dict[str, Any]:
        with SeedProgress(recipe, seed) as progress:
            return translation_trainer.run_seed(recipe, seed, data, model, tokenizer, folder.of_seed(seed), progress)

    records = each_seed(recipe.seeds, folder, lambda: folder.begin(data.protocol, command), build, train)
    report(recipe, folder, identity, data, before, records)


def run_features(recipe: Any, resume: bool, command: list[str]) -> None:
    """What is read from models as they are, by layer; every pair of languages evaluated by itself."""
    recipe_module(recipe.kind).check_recipe(recipe)
    task = task_module(recipe.kind)
    models = feature_models.describe_models(recipe)
    first = models[recipe.seeds[0]]
    identity = feature_models.identity_of(recipe, models)
    folder = RunFolder(recipe, identity, resume)
    data = task.read(recipe)
    task.complete_protocol(data, recipe, first.config.num_hidden_layers)
    others = read_others(recipe)
    feature_models.check_finished(folder, models)

    def build(seed: int) -> Any:
        return task.load(recipe, models[seed])

    def evaluate(seed: int, loaded: Any) -> dict[str, Any]:
        return task.run_seed(seed, data, loaded, models[seed], folder.of_seed(seed))

    records = each_seed(recipe.seeds, folder, lambda: folder.begin(data.protocol, command), build, evaluate)
    before = list(getattr(first.config, "fine_tuned_on", None) or [])
    report(recipe, folder, identity, data, before, records)
    if others:
        write_beside(recipe, others)


def each_seed(
    seeds: list[int],
    folder: Any,
    begin: Callable[[], None],
    build: Callable[[int], Any],
    train: Callable[[int, Any], dict[str, Any]],
) -> list[dict[str, Any]]:
    """The records of all seeds; a seed that was run to its end is not run again.

    The first model is built before the run begins, so that one that cannot be built leaves nothing in the folder.
    """
    records = {seed: folder.finished(seed) for seed in seeds}
    waiting = [seed for seed, record in records.items() if record is None]
    models = [build(waiting[0])] if waiting else []
    begin()
    for seed in waiting:
        folder.check_is_there()
        try:
            records[seed] = train(seed, models.pop() if models else build(seed))
        finally:  # the Trainer makes its folders anew, or fails by whatever it was writing
            folder.check_is_there()
    return list(records.values())


def report(recipe, folder, identity, data, before, records) -> None:
    """Results in the run's folder and on the screen, by the main process."""
    if PartialState().is_main_process:
        protocol = {**data.protocol, "fine_tuned_before": before}
        results = build_results(recipe, identity, protocol, records, data.warnings)
        write_results(results, folder.path)
        print_results(results, folder.path)
