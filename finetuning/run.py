"""Fine-tunes a checkpoint on a task and evaluates it, once per seed.

    accelerate launch finetuning/run.py --config finetuning/recipes/xlm_align/xnli.yaml model=runs/xlm_align/model
    accelerate launch finetuning/run.py --config finetuning/recipes/veco/wmt14_en_de.yaml model=runs/veco/model

A recipe's `kind` says which fields it has: classification (the default), tagging, question_answering, translation, or
word_alignment, retrieval and mining, which train nothing.
`--help` shows those of classification, `--help kind=translation` those of translation, and with --config those of the
file's kind.

    accelerate launch finetuning/run.py --suite xtreme model=runs/xlm_align/model

runs every task of a benchmark, each by its recipe, and makes one table of them: see `--suite xtreme --help`.

Writes into output_dir: results.json, results.md, results.csv and a plot; recipe.yaml and run.json; seed-N/model.
A run that was interrupted goes on with --resume: finished seeds are kept, the current one from its last checkpoint.
"""

import importlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

from finetuning.results.published_rows import complete_published
from zoo_core.recipes import nearest, parse_command_line, read_yaml, user_errors

FLAGS = {
    "--resume": dict(action="store_true", help="go on with the run in output_dir; finished seeds are kept"),
    "--sweep": dict(
        action="store_true",
        help="first try the values of the recipe's `sweep` with each other, one seed each, by their development scores "
        "alone; then run the best",
    ),
    "--check_data": dict(
        action="store_true",
        help="read and encode all data, say by language what is cut, split or left out, and stop before training",
    ),
}


def main(argv: list[str] | None = None) -> None:
    given = sys.argv[1:] if argv is None else argv
    if any(argument.partition("=")[0] == "--suite" for argument in given):
        from finetuning.experiments import suite

        return suite.main(given)
    with user_errors():
        module, name, run = KINDS[kind_of(given)]
    recipe_class = getattr(importlib.import_module(module), name)
    recipe, arguments = parse_command_line(recipe_class, __doc__, FLAGS, argv)
    command = sys.argv if argv is None else ["finetuning/run.py", *argv]
    with user_errors():
        complete_published(recipe)
        # torch and transformers take seconds to import: after --help and the recipe's errors
        from zoo_core.processes import start_processes

        start_processes()
        from finetuning.seeds import check_hardware

        # where nothing is trained, precision is a field of the recipe itself
        check_hardware(getattr(recipe, "training", recipe).precision)
        if arguments.check_data:
            from finetuning.data.data_report import report_data

            return report_data(recipe)
        if arguments.sweep:
            from finetuning.experiments import sweep

            return sweep.run(recipe, arguments.resume, command, run)
        run(recipe, arguments.resume, command)


def kind_of(argv: list[str]) -> str:
    """The kind that a command line asks for: the last override `kind=`, else the config file's, else the first.

    Raises ValueError for a kind that is none.
    """
    kind = next(iter(KINDS))
    for argument, following in itertools.zip_longest(argv, argv[1:]):
        flag, has_value, file = argument.partition("=")
        if len(flag) > 2 and "--config".startswith(flag):  # argparse takes --conf as well
            file = file if has_value else following
            kind = read_yaml(file).get("kind", kind) if file else kind
    kind = next((argument[len("kind=") :] for argument in reversed(argv) if argument.startswith("kind=")), kind)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(
            f"kind is {kind!r}, which is no kind of task here. The kind says which fields a recipe has. "
            f"{nearest(str(kind), KINDS)}"
        )
    return kind


def run_by_language(recipe: Any, resume: bool, command: list[str], evaluate: bool = True) -> list[dict[str, Any]]:
    """Texts with something to tell of them, every language evaluated by itself: all kinds that are trained but
    translation. Returns the seeds' records.

    Without `evaluate` only the development rows are scored, and no results are written: a sweep selects by them.
    """
    from finetuning.experiments import sweep
    from finetuning.results.by_language import build_results, print_results, write_results
    from finetuning.run_folder import RunFolder
    from finetuning.trainer import load_model, open_run, run_seed, task_arguments

    kind, path, config, tokenizer, identity = open_run(recipe)
    folder = RunFolder(recipe, identity, resume)
    data = kind.encode(kind.read(recipe), tokenizer, recipe)
    data.protocol["selection"].update(sweep.stamp(recipe, identity, data.protocol))
    task_arguments(recipe, kind, recipe.seeds[0], folder.path)  # what the Trainer refuses, it refuses here
    before = list(getattr(config, "fine_tuned_on", None) or [])

    def build(seed: int) -> Any:
        setting = recipe.setting + (", plug-in" if recipe.plug_in else "")
        return load_model(kind, data, path, seed, [*before, f"{recipe.task} ({setting})"], recipe.plug_in)

    def train(seed: int, model: Any) -> dict[str, Any]:
        return run_seed(recipe, kind, seed, data, model, tokenizer, folder.of_seed(seed), evaluate)

    records = each_seed(recipe.seeds, folder, lambda: folder.begin(data.protocol, command, data.lists), build, train)
    if evaluate:
        report(recipe, folder, identity, data, before, records, build_results, write_results, print_results)
    return records


def run_translation(recipe: Any, resume: bool, command: list[str]) -> None:
    """Pairs of sentences; every pair of languages evaluated by itself."""
    from finetuning.checkpoints import describe_model
    from finetuning.run_folder import RunFolder
    from finetuning.tasks.translation import task as translation
    from finetuning.tasks.translation.model import build_model, check_architecture
    from finetuning.tasks.translation.recipe import check_recipe
    from finetuning.tasks.translation.results import build_results, print_results, write_results
    from finetuning.tasks.translation.trainer import check_run, run_seed

    check_recipe(recipe)
    check_architecture(recipe)
    path, config, tokenizer, identity = describe_model(
        recipe.model, recipe.tokenizer, recipe.hub_root, recipe.max_length
    )
    folder = RunFolder(recipe, identity, resume)
    data = translation.encode(translation.read(recipe), tokenizer, recipe)
    check_run(recipe, data)
    before = list(getattr(config, "fine_tuned_on", None) or [])

    def build(seed: int) -> Any:
        model = build_model(recipe, path, config, seed)
        model.config.fine_tuned_on = [*before, f"{recipe.task} (translation)"]
        return model

    def train(seed: int, model: Any) -> dict[str, Any]:
        return run_seed(recipe, seed, data, model, tokenizer, folder.of_seed(seed))

    records = each_seed(recipe.seeds, folder, lambda: folder.begin(data.protocol, command), build, train)
    report(recipe, folder, identity, data, before, records, build_results, write_results, print_results)


def run_features(recipe: Any, resume: bool, command: list[str]) -> None:
    """What is read from models as they are, by layer; every pair of languages evaluated by itself."""
    from finetuning.experiments import compare_runs as compare
    from finetuning.run_folder import RunFolder
    from finetuning.tasks.features import models as feature_models

    importlib.import_module(KINDS[recipe.kind][0]).check_recipe(recipe)
    task, shown = importlib.import_module(f"finetuning.tasks.{recipe.kind}.task"), compare.MODULES[recipe.kind]
    models = feature_models.describe_models(recipe)
    first = models[recipe.seeds[0]]
    identity = feature_models.identity_of(recipe, models)
    folder = RunFolder(recipe, identity, resume)
    data = task.read(recipe)
    task.complete_protocol(data, recipe, first.config.num_hidden_layers)
    others = compare.read_others(recipe)
    feature_models.check_finished(folder, models)

    def build(seed: int) -> Any:
        return task.load(recipe, models[seed])

    def evaluate(seed: int, loaded: Any) -> dict[str, Any]:
        return task.run_seed(seed, data, loaded, models[seed], folder.of_seed(seed))

    records = each_seed(recipe.seeds, folder, lambda: folder.begin(data.protocol, command), build, evaluate)
    before = list(getattr(first.config, "fine_tuned_on", None) or [])
    arguments = (recipe, folder, identity, data, before, records)
    report(*arguments, shown.build_results, shown.write_results, shown.print_results)
    if others:
        compare.write_beside(recipe, others)


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
        records[seed] = train(seed, models.pop() if models else build(seed))
    return list(records.values())


def report(recipe, folder, identity, data, before, records, build: Callable, write: Callable, show: Callable) -> None:
    """Results in the run's folder and on the screen, by the main process."""
    from accelerate import PartialState

    if PartialState().is_main_process:
        results = build(recipe, identity, {**data.protocol, "fine_tuned_before": before}, records, data.warnings)
        write(results, folder.path)
        show(results, folder.path)


# kind of task -> module and name of its recipe class, and what runs it
KINDS = {
    "classification": ("finetuning.recipe", "Recipe", run_by_language),
    "tagging": ("finetuning.recipe", "TaggingRecipe", run_by_language),
    "question_answering": (
        "finetuning.tasks.question_answering.recipe",
        "QuestionAnsweringRecipe",
        run_by_language,
    ),
    "translation": ("finetuning.tasks.translation.recipe", "TranslationRecipe", run_translation),
    "word_alignment": ("finetuning.tasks.word_alignment.recipe", "WordAlignmentRecipe", run_features),
    "retrieval": ("finetuning.tasks.retrieval.recipe", "RetrievalRecipe", run_features),
    "mining": ("finetuning.tasks.mining.recipe", "MiningRecipe", run_features),
}

if __name__ == "__main__":
    main()
