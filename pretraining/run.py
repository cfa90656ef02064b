"""Pre-train a model: `python pretraining/run.py --config pretraining/recipes/xlm_align/tiny.yaml`."""

import os
import sys

from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.zoo_core.command_line import RESUME, parse_command_line, user_errors
from crosslingual_zoo.zoo_core.console import say_loading
from crosslingual_zoo.zoo_core.processes import stop_signals

DESCRIPTION = """Pre-train one of the four encoders from a recipe.

  python pretraining/run.py --config pretraining/recipes/xlm_align/smoke.yaml
  python pretraining/run.py --config RECIPE.yaml phases.0.steps=100 output_dir=runs/short
  python pretraining/run.py --config RECIPE.yaml --dry_run     # print the plan: text, first batch, time and memory
  accelerate launch pretraining/run.py --config RECIPE.yaml --resume     # resume on several GPUs or processes

The run folder holds model/ (a Hub repository), checkpoints/, events.jsonl, curves.png, run.json and recipe.yaml."""

FLAGS = {
    "--dry_run": {"action": "store_true", "help": "print the plan, with time and memory, then stop"},
    "--resume": {"action": "store_true", "help": "continue the run in output_dir, if it has begun"},
}


def main(argv: list[str] | None = None) -> None:
    """Runs the command; `argv` defaults to the command line."""
    os.environ.setdefault("TQDM_DELAY", "2")  # seconds: libraries show a bar of what takes longer
    recipe, flags = parse_command_line(Recipe, DESCRIPTION, FLAGS, argv)
    with stop_signals(RESUME), user_errors():
        recipe.check()
        say_loading(recipe.model.start_from or "the corpora")
        # after --help: the libraries take seconds to import
        if flags.dry_run:
            from crosslingual_zoo.pretraining.plan import show_plan

            return show_plan(recipe)
        from crosslingual_zoo.pretraining.training import pretrain

        pretrain(recipe, resume=flags.resume, argv=argv or sys.argv)


if __name__ == "__main__":
    main()
