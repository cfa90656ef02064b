"""Fine-tunes a checkpoint on a task and evaluates it in every language, once per seed.

    accelerate launch finetuning/run.py --config finetuning/recipes/xlm_align/xnli.yaml model=runs/xlm_align/model

Writes into output_dir: results.json, results.md, results.csv, scores.png; recipe.yaml and run.json; seed-N/model.
A run that was interrupted goes on with --resume: finished seeds are kept, the current one from its last checkpoint.
"""

import sys

from common.recipes import parse_command_line, user_errors
from finetuning.recipe import Recipe

FLAGS = {"--resume": dict(action="store_true", help="go on with the run in output_dir; finished seeds are kept")}


def main(argv: list[str] | None = None) -> None:
    recipe, arguments = parse_command_line(Recipe, __doc__, FLAGS, argv)
    # torch and transformers take seconds to import: after --help and the recipe's errors
    from common.processes import start_processes
    from finetuning.results import build_results, print_results, write_results
    from finetuning.run_folder import RunFolder
    from finetuning.tasks import classification
    from finetuning.trainer import check_setting, describe_model, load_model, run_seed

    with user_errors():
        processes = start_processes()
        check_setting(recipe)
        path, config, tokenizer, identity = describe_model(recipe)
        folder = RunFolder(recipe, identity, arguments.resume)
        data = classification.encode(classification.read(recipe), tokenizer, recipe.max_length)
        folder.begin(data.protocol, sys.argv if argv is None else ["finetuning/run.py", *argv])

        before = list(getattr(config, "fine_tuned_on", None) or [])
        records = []
        for seed in recipe.seeds:
            record = folder.finished(seed)
            if record is None:
                model = load_model(path, data.label_names, seed, [*before, f"{recipe.task} ({recipe.setting})"])
                record = run_seed(recipe, seed, data, model, tokenizer, folder.of_seed(seed))
            records.append(record)

        if processes.is_main_process:
            protocol = {**data.protocol, "fine_tuned_before": before}
            results = build_results(recipe, identity, protocol, records, data.warnings)
            write_results(results, folder.path)
            print_results(results, folder.path)


if __name__ == "__main__":
    main()
