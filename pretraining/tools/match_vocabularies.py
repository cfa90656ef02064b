"""Match a new vocabulary to that of a model of one language, and count the rows that match (MetaXLM).

  python -m pretraining.tools.match_vocabularies --config RECIPE

The table has a line for each script, that of a token's first letter, and a column for each way to fill a row.
"""

from pathlib import Path

from pretraining.recipe import Recipe
from pretraining.tools import require_empty
from zoo_core.command_line import parse_command_line, user_errors

FLAGS = {"--output": {"metavar": "DIR", "help": "folder to write the initial model to (model/); default: only print"}}


def main(argv: list[str] | None = None) -> None:
    """Runs the command; `argv` defaults to the command line."""
    recipe, flags = parse_command_line(Recipe, __doc__, FLAGS, argv)
    with user_errors():
        recipe.check()
        if recipe.model.meta_pretrained is None:
            raise ValueError("model.meta_pretrained is empty. Set model.meta_pretrained.path to a folder or a Hub id.")
        if flags.output:
            require_empty(flags.output)
        # after --help: the libraries take seconds to import
        import pandas

        from pretraining.checkpoints import save_model_folder
        from pretraining.start.initialization import Start
        from pretraining.start.token_texts import read_vocabulary, script_of
        from zoo_core.console import quiet_libraries

        quiet_libraries()
        start = Start(recipe)
        tokenizer = start.load_tokenizer()
        config, matching = start.build_config(tokenizer), start.source.match(tokenizer)
        texts = [getattr(subword, "text", "") for subword in read_vocabulary(tokenizer).subwords]
        scripts = [next(filter(None, map(script_of, text)), "no letter") for text in texts]
        columns = [pandas.Series(scripts, name="script"), pandas.Series(matching.routes, name="route")]
        print(pandas.crosstab(*columns, margins=True, margins_name="all").to_string())
        for read in matching.dictionaries:
            print(f"{read.path} ({read.language}): {read.pairs:,} pairs, {read.skipped:,} lines skipped")
        if flags.output:
            folder = Path(flags.output) / "model"
            save_model_folder(start.build_model(config, matching), tokenizer, folder)
            print(f"written: {folder}")


if __name__ == "__main__":
    main()
