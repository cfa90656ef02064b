"""Fine-tuned and tested in one language and domain: MetaXLM (2021), section 4.3 and Table 2, for any labeled text.

    python -m finetuning.experiments.supervised --config finetuning/recipes/metaxlm/amazon_supervised.yaml \\
      --languages en de fr ja --domains books dvd music \\
      --model XLM=runs/xlm/model --model MetaXLM=runs/metaxlm/model --output runs/supervised

Each model is fine-tuned for each language and, with --domains, each domain, and tested on the same. The recipe names
them by `{language}` (or a `language_column`) and `{domain}`, in path, config or `where` of its tables. Writes
supervised.json, supervised.md, supervised.csv and supervised.png; figures that the recipe has as `published`, by
language or by `<language> <domain>`, stand beside ours. The same command again goes on.
"""

import dataclasses
import itertools
import sys
from typing import Any

from finetuning.experiments import runs as many
from finetuning.experiments.runs import Run
from finetuning.recipe import Recipe
from finetuning.results.files import pivot
from finetuning.results.plots import plot_bars
from finetuning.results.report import shown
from finetuning.results.table import AVERAGE, Results, mean_of
from zoo_core.command_line import user_errors

DOMAIN = "{domain}"


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = many.parser_of(__doc__)
    many.add_models(parser)
    parser.add_argument("--domains", nargs="+", default=[], metavar="DOMAIN", help="what `{domain}` stands for")
    with user_errors():
        fixed = {"model": "--model", "source_language": "--languages", "setting": "this command"}
        options = many.parse(parser, argv, fixed)
        models = many.named_models(options)
        for flag, values in (("--languages", options.languages), ("--domains", options.domains)):
            many.check_names(flag, values)
        many.check_has_languages(options)
        runs = []
        for (name, path), *cell in itertools.product(models.items(), options.languages, options.domains or [None]):
            language, domain = cell
            parts = [part for part in cell if part]
            recipe = many.recipe_of(options, path, options.output / name / "-".join(parts))
            published = recipe.published  # for the whole table
            make_supervised(recipe, language, domain)
            runs.append(Run(f"{name}, {' '.join(parts)}", recipe, {"run": name, "cell": " ".join(parts)}))
        results = many.run_all(runs, options.output, sys.argv if argv is None else argv)
        write(runs, results, published, options.output)


def make_supervised(recipe: Recipe, language: str, domain: str | None) -> None:
    """Makes a recipe one of a single language and domain, with the published figure of these alone.

    Raises ValueError where `{domain}` is in the recipe or --domains given, and not both.
    """
    tables = [*recipe.train, *recipe.evaluation]
    if domain and not any(DOMAIN in text for table in tables for text in _texts(table)):
        raise ValueError(f"--domains is given, and no table of the recipe has {DOMAIN} in path, config or where.")
    for table in tables:
        if domain is None and any(DOMAIN in text for text in _texts(table)):
            raise ValueError(f"The table {table.path} has {DOMAIN}, and no --domains are given.")
        table.path = table.path.replace(DOMAIN, domain or "")
        table.config = table.config and table.config.replace(DOMAIN, domain or "")
        table.where = {column: text.replace(DOMAIN, domain or "") for column, text in table.where.items()}
    recipe.setting = "supervised"
    many.train_in(recipe, language)
    many.evaluate_in(recipe, [language])
    if recipe.published:
        figure = recipe.published.languages.get(" ".join(filter(None, (language, domain))))
        own = dict(languages={language: figure}, further={}, average=None, average_over=[])
        recipe.published = None if figure is None else dataclasses.replace(recipe.published, **own)


def _texts(table: Any) -> list[str]:
    return [table.path, table.config or "", *table.where.values()]


def write(runs: list[Run], results: list[Results], published: Any, folder: Any) -> None:
    """Writes supervised.{json,md,csv,png} and shows the table; the main process."""
    from accelerate import PartialState

    if not PartialState().is_main_process:
        return
    scores: dict[str, dict[str, Any]] = {}
    for run, found in zip(runs, results, strict=True):
        scores.setdefault(run.keys["run"], {})[run.keys["cell"]] = found.average
    cells = list(next(iter(scores.values())))
    for by_cell in scores.values():
        by_cell[AVERAGE] = mean_of(by_cell.values())
    figures = published_of(published, cells)
    source = f"{published.paper}, {published.table}, {published.row}" if published else ""
    columns = {**scores, **({source: {cell: shown(figure) for cell, figure in figures.items()}} if figures else {})}
    title = f"{results[0].title}, trained and tested alike"
    marks = {f"published: {published.row}": figures} if figures else None
    plot_bars(scores, folder / "supervised.png", title, "score (%)", marks=marks)
    table = pivot("trained and tested on", columns)
    facts = {"published": dataclasses.asdict(published) if published else None}
    many.write_experiment(
        folder, "supervised", title, {"": table}, runs, results, ["supervised.png"], alike="cell", **facts
    )


def published_of(published: Any, cells: list[str]) -> dict[str, float]:
    """The published figures of these cells, and their average where it is over the very same."""
    if not published:
        return {}
    figures = {cell: published.languages[cell] for cell in cells if cell in published.languages}
    is_same = set(published.average_over or published.languages) == set(cells)
    return figures | ({AVERAGE: published.average} if is_same and published.average is not None else {})


if __name__ == "__main__":
    main()
