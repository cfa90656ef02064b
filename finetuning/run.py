"""Fine-tunes a checkpoint on a task and evaluates it, once per seed.

    python finetuning/run.py --config finetuning/recipes/xlm_align/paper.yaml#xnli model=FacebookAI/xlm-roberta-base
    python finetuning/run.py --config finetuning/recipes/veco/wmt14_en_de.yaml model=runs/veco-large/model

The recipe's `kind` determines its fields: classification (the default), tagging, question_answering, translation,
word_alignment, retrieval or mining. The last three train nothing. `--help kind=translation` lists those of translation,
and --help with --config those of the file's kind.

    python finetuning/run.py --suite xtreme model=FacebookAI/xlm-roberta-base

This command runs every task of a benchmark with its recipe, and writes one table: see `--suite xtreme --help`.

A run writes into output_dir, by default runs/<model>/<task>: results.json, results.md, results.csv and a plot;
recipe.yaml and run.json; seed-N/model and seed-N/predictions, with one file per language.
Ctrl-C or SIGTERM finishes the current step and saves a checkpoint; a second one stops the run at once.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterator

from crosslingual_zoo.finetuning.recipe import TaskRecipe
from crosslingual_zoo.finetuning.tasks.registry import KINDS, kind_of
from crosslingual_zoo.zoo_core.command_line import RESUME, fail, parse_command_line, user_errors
from crosslingual_zoo.zoo_core.console import say_loading
from crosslingual_zoo.zoo_core.processes import stop_signals

LACK_OF_MEMORY = "out of memory|can't allocate memory|ALLOC_FAILED"  # in torch's errors, on any device
USAGE = "%(prog)s --config FILE | --suite NAME [field=value ...] [flags]"
FLAGS = {
    "--resume": dict(action="store_true", help="resume the run in output_dir, and keep its finished seeds"),
    "--sweep": dict(action="store_true", help="first try the values in the recipe's `sweep`, then run the best ones"),
    "--check_data": dict(action="store_true", help="read and encode all data, list what is cut or left out, and stop"),
}


def main(argv: list[str] | None = None) -> None:
    os.environ.setdefault("TQDM_DELAY", "2")  # seconds: libraries show a bar of what takes longer
    arguments = sys.argv[1:] if argv is None else argv
    options = {argument.partition("=")[0] for argument in arguments}
    if "--suite" in options:
        if "--config" in options:
            fail("finetuning/run.py: error: give --config or --suite, not both")
        from crosslingual_zoo.finetuning import suite

        return suite.main(arguments)
    with user_errors():
        recipe_class = KINDS[kind_of(arguments)]
    recipe, flags = parse_command_line(recipe_class, __doc__, FLAGS, argv, USAGE)
    command = sys.argv if argv is None else ["finetuning/run.py", *argv]
    with stop_signals(RESUME), user_errors(), enough_memory(recipe):
        say_loading(recipe.model)
        # torch and transformers take seconds to import: after --help and the recipe's errors
        from crosslingual_zoo.zoo_core.console import quiet_libraries
        from crosslingual_zoo.zoo_core.processes import start_processes
        from crosslingual_zoo.zoo_core.run_folders import run_lock

        quiet_libraries()
        start_processes()
        from crosslingual_zoo.finetuning import run_task

        run_task.check_hardware(recipe.precision)
        if flags.check_data:
            return run_task.check_data(recipe)
        with run_lock(recipe.output_dir):
            if flags.sweep:
                from crosslingual_zoo.finetuning.sweep import sweep

                return sweep(recipe, flags.resume, command)
            run_task.run_task(recipe, flags.resume, command)


@contextlib.contextmanager
def enough_memory(recipe: TaskRecipe) -> Iterator[None]:
    """Makes a lack of memory a ValueError that names the fields to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if not isinstance(error, MemoryError) and not re.search(LACK_OF_MEMORY, text):
            raise
        sentences = text.partition("\n")[0].split(". ")
        reason = ". ".join(sentences[:2]) or type(error).__name__  # further ones describe torch's allocator
        raise ValueError(f"{reason.rstrip('.')}. {recipe.memory_advice}, and name another output_dir.") from error


if __name__ == "__main__":
    main()
