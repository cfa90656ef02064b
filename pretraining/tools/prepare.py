"""Tokenize the corpora of a recipe ahead of a run, into the cache of `datasets`.

  python -m crosslingual_zoo.pretraining.tools.prepare --config RECIPE.yaml
  accelerate launch pretraining/run.py --config RECIPE.yaml

A run does the same when it starts. Use this command to do it on another machine, which has no GPU but shares the folder
HF_DATASETS_CACHE (default: ~/.cache/huggingface/datasets). If it is interrupted, run it again: finished corpora, and
finished parts of one, are kept.
"""

from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.zoo_core.command_line import parse_command_line, user_errors
from crosslingual_zoo.zoo_core.console import say_loading
from crosslingual_zoo.zoo_core.processes import stop_signals


def main(argv: list[str] | None = None) -> None:
    """Runs the command; `argv` defaults to the command line."""
    recipe, _ = parse_command_line(Recipe, __doc__, {}, argv)
    with stop_signals("run the same command to continue: finished parts are kept"), user_errors():
        recipe.check()
        say_loading("the corpora")
        # after --help: the libraries take seconds to import
        from crosslingual_zoo.pretraining.data.batches import load_corpora
        from crosslingual_zoo.pretraining.start.pretrained import tokenizer_of
        from crosslingual_zoo.zoo_core.console import quiet_libraries

        quiet_libraries()
        for corpus in load_corpora(recipe, tokenizer_of(recipe)):
            print(f"{corpus.name}: {corpus.counts['rows']:,} rows, {corpus.num_tokens:,} tokens")


if __name__ == "__main__":
    main()
