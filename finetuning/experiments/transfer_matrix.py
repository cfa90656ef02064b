"""Transfer from each of several languages to all of them: MetaXLM (2021), section 5.2 and Figure 6.

    python -m finetuning.experiments.transfer_matrix --config finetuning/recipes/metaxlm/amazon.yaml \\
      --languages en de fr ja --model XLM=runs/xlm/model --model MetaXLM=runs/metaxlm/model --output runs/matrix

Each model is fine-tuned on each language as the source, and evaluated on all, with the same recipe. Its training table
has to name the language, as `{language}` in path or config or by a `language_column`; development rows are those of the
source. Writes matrix.json, matrix.md, matrix.csv, matrix.png (a heat map a model) and, of several models,
matrix-differences.png (each minus the first). Standard deviations are over seeds. The same command again goes on.
"""

import sys
from pathlib import Path
from typing import Any

from finetuning.experiments import runs as many
from finetuning.experiments.runs import Run
from finetuning.recipe import Recipe
from finetuning.results.files import pivot
from finetuning.results.plots import plot_heat_maps
from finetuning.results.table import Results
from zoo_core.command_line import user_errors

Matrix = dict[str, dict[str, float]]  # by source and target


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = many.parser_of(__doc__)
    many.add_models(parser)
    with user_errors():
        options = many.parse(parser, argv, {"model": "--model", "source_language": "--languages"})
        models = many.named_models(options)
        many.check_names("--languages", options.languages)
        many.check_has_languages(options)
        runs = []
        for name, path in models.items():
            for source in options.languages:
                recipe = many.recipe_of(options, path, options.output / name / f"from-{source}")
                make_transfer(recipe, source, options.languages)
                runs.append(Run(f"{name}, from {source}", recipe, {"run": name, "source": source}))
        results = many.run_all(runs, options.output, sys.argv if argv is None else argv)
        write(runs, results, options.output)


def make_transfer(recipe: Recipe, source: str, languages: list[str]) -> None:
    """Makes a recipe one of transfer from `source` to all `languages`. Raises ValueError for a setting without."""
    if recipe.setting != "zero_shot":
        raise ValueError(f"setting is {recipe.setting}, and a matrix is of transfer. Use setting=zero_shot.")
    recipe.published = None  # of another source
    many.train_in(recipe, source)
    many.evaluate_in(recipe, languages)


def write(runs: list[Run], results: list[Results], folder: Path) -> None:
    """Writes matrix.{json,md,csv,png} and shows the tables; the main process."""
    from accelerate import PartialState

    if not PartialState().is_main_process:
        return
    found: dict[str, dict[str, Results]] = {}
    for run, result in zip(runs, results, strict=True):
        found.setdefault(run.keys["run"], {})[run.keys["source"]] = result
    means = {
        name: {source: {to: entry["mean"] for to, entry in result.languages.items()} for source, result in row.items()}
        for name, row in found.items()
    }
    changes = minus_first(means)
    title = f"{results[0].title}, from each language to all"
    axes = dict(x_label="evaluated on", y_label="fine-tuned on")
    plot_heat_maps(means, folder / "matrix.png", title, "score (%)", **axes)
    pictures = ["matrix.png"]
    if changes:
        plot_heat_maps(changes, folder / "matrix-differences.png", title, "points", **axes, around_zero=True)
        pictures.append("matrix-differences.png")
    tables = {name: transfer_table(row) for name, row in found.items()}
    for name, matrix in changes.items():
        columns = {
            to: {source: f"{row[to]:+.1f}" for source, row in matrix.items()} for to in next(iter(matrix.values()))
        }
        cells = [value for row in matrix.values() for value in row.values()]
        heading = f"{name}: higher in {sum(value > 0 for value in cells)} of {len(cells)} directions"
        tables[heading] = pivot("from", columns)
    many.write_experiment(folder, "matrix", title, tables, runs, results, pictures, alike="source", differences=changes)


def minus_first(means: dict[str, Matrix]) -> dict[str, Matrix]:
    """Mean of each model minus that of the first, in points, by `<model> - <first>`, source and target."""
    (first, base), *others = means.items()
    return {
        f"{name} - {first}": {
            source: {to: round(value - base[source][to], 6) + 0.0 for to, value in row.items()}
            for source, row in matrix.items()
        }
        for name, matrix in others
    }


def transfer_table(by_source: dict[str, Results]) -> Any:
    """Sources, with the score on each target, the mean of the others and the transfer gap."""
    columns: dict[str, dict[str, Any]] = {}
    names = {"others": "mean of others", "gap": "gap"}
    for source, result in by_source.items():
        transfer = {names[key]: entry for key, entry in result.transfer.items() if key in names}
        for column, entry in {**result.languages, **transfer}.items():
            columns.setdefault(column, {})[source] = entry
    return pivot("from", columns)


if __name__ == "__main__":
    main()
