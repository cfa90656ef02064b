"""Matches a new vocabulary to that of a model of one language (MetaXLM, section 3.2), and writes the initial model.

python -m pretraining.tools.match_vocabularies --config RECIPE
"""

from dataclasses import dataclass, field
from pathlib import Path

from pretraining.recipe import ModelStart, Recipe
from zoo_core.command_line import parse_command_line, user_errors
from zoo_core.recipes import option
from zoo_core.tables import require_empty

DESCRIPTION = """Match a new vocabulary to that of a model of one language, and count the rows that match (MetaXLM).

  python -m pretraining.tools.match_vocabularies --config RECIPE [model.meta_pretrained.rows=subwords]
  python -m pretraining.tools.match_vocabularies model.meta_pretrained.path=roberta-base tokenizer=xlm-roberta-base

The table has a line for each script, that of a token's first letter, and a column for each way to fill a row."""

FLAGS = {
    "--output": {
        "metavar": "DIR",
        "help": "folder to write: the initial model with the tokenizer (model/); default: print the table and write "
        "nothing",
    },
}


@dataclass
class MatchingRecipe(Recipe):
    """A pre-training recipe. This command needs only model.meta_pretrained and tokenizer."""

    output_dir: str = option("", "folder of the training run; this command does not write to it")
    model: ModelStart = field(default_factory=lambda: ModelStart(type="metaxlm"))


def main(argv: list[str] | None = None) -> None:
    """Runs the command; `argv` defaults to the command line."""
    recipe, flags = parse_command_line(MatchingRecipe, DESCRIPTION, FLAGS, argv)
    with user_errors():
        if recipe.phases:
            recipe.check()
        if recipe.model.meta_pretrained is None:
            raise ValueError("model.meta_pretrained is empty. Set model.meta_pretrained.path to a folder or a Hub id.")
        recipe.check_dictionaries()
        if flags.output:
            require_empty(flags.output)
        # after --help: the libraries take seconds to import
        import pandas

        from pretraining.checkpoints import save_model_folder
        from pretraining.start.initialization import Start
        from pretraining.start.token_texts import read_vocabulary, script_of
        from zoo_core.console import quiet_libraries

        quiet_libraries()
        start = Start.of(recipe)
        tokenizer, source = start.load_tokenizer(), start.source
        config = start.build_config(tokenizer)
        if not source.carries_rows:
            initialize = source.settings.initialize
            print(f"initialize is {initialize}: all rows are random. With both or embeddings the match would be:\n")
        matching = source.match(tokenizer, as_if_carried=True)
        texts = [getattr(subword, "text", "") for subword in read_vocabulary(tokenizer, "of the recipe").subwords]
        scripts = [next(filter(None, map(script_of, text)), "no letter") for text in texts]
        routes = [pandas.Series(scripts, name="script"), pandas.Series(matching.routes, name="route")]
        print(pandas.crosstab(*routes, margins=True, margins_name="all"))
        for read in matching.dictionaries:
            skipped = ", ".join(f"{count:,} {reason}" for reason, count in read.skipped.items()) or "none"
            print(f"{read.path} ({read.language}): {read.pairs:,} pairs of {read.lines:,} lines; skipped: {skipped}")
        if flags.output:
            folder = Path(flags.output)
            save_model_folder(start.build_model(config, matching), tokenizer, folder / "model")
            print(f"\nwritten: {folder}")


if __name__ == "__main__":
    main()
