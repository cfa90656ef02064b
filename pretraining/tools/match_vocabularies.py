"""Matches a new vocabulary to that of a model of one language (MetaXLM, section 3.2), and writes the initial model.

python -m pretraining.tools.match_vocabularies --config RECIPE
"""

from dataclasses import dataclass, field
from pathlib import Path

from pretraining.recipe import ModelStart, Recipe
from pretraining.recipe_checks import check_meta_pretrained, check_recipe
from zoo_core.command_line import parse_command_line, user_errors
from zoo_core.recipes import option
from zoo_core.tables import require_empty

DESCRIPTION = """Match a new vocabulary to that of a model of one language, and report which tokens match (MetaXLM).

  python -m pretraining.tools.match_vocabularies --config RECIPE [model.meta_pretrained.rows=subwords]
  python -m pretraining.tools.match_vocabularies model.meta_pretrained.path=roberta-base tokenizer=xlm-roberta-base

If the recipe has corpora, the report also has the share of each language's text that the matched tokens cover."""

FLAGS = {
    "--output": {
        "metavar": "DIR",
        "help": "folder to write: the initial model with the tokenizer (model/), and vocabulary_matching.json; "
        "default: print the report and write nothing",
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
            check_recipe(recipe)
        if recipe.model.meta_pretrained is None:
            raise ValueError("model.meta_pretrained is empty. Set model.meta_pretrained.path to a folder or a Hub id.")
        check_meta_pretrained(recipe)
        if flags.output:
            require_empty(flags.output)
        # after --help: the libraries take seconds to import
        from pretraining.checkpoints import save_model_folder
        from pretraining.data.corpora import CorpusReader
        from pretraining.start.initialization import Start
        from pretraining.start.matching_report import report, to_text
        from zoo_core.console import quiet_libraries
        from zoo_core.provenance import write_json

        quiet_libraries()
        start = Start.of(recipe)
        tokenizer, source = start.load_tokenizer(), start.source
        config = start.build_config(tokenizer)
        if not source.carries_rows:
            initialize = source.settings.initialize
            print(f"initialize is {initialize}: all rows are random. With both or embeddings the match would be:\n")
        matching = source.match(tokenizer, as_if_carried=True)
        found = report(matching, source.tokenizer, tokenizer, CorpusReader.of(recipe).token_counts(tokenizer))
        print(to_text(found), end="")
        if flags.output:
            folder = Path(flags.output)
            save_model_folder(start.build_model(config, matching), tokenizer, folder / "model")
            if source.carries_rows:
                write_json(folder / "vocabulary_matching.json", found)
            print(f"\nwritten: {folder}")


if __name__ == "__main__":
    main()
