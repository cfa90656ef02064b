"""Fine-tuned and tested in one language and domain: MetaXLM (2021), section 4.3 and Table 2, for any labeled text.

    python -m finetuning.experiments.supervised --config finetuning/recipes/metaxlm/amazon_supervised.yaml \\
      --languages en de fr ja --domains books dvd music \\
      --model XLM=runs/xlm/model --model MetaXLM=runs/metaxlm/model --output runs/supervised

Each model is fine-tuned for each language and, with --domains, each domain, and tested on the same. The recipe names
them by `{language}` (or a `language_column`) and `{domain}`, in path, config or `where` of its tables. Writes
supervised.json, supervised.md, supervised.csv and supervised.png; figures that the recipe has as `published`, by
language or by `<language> <domain>`, stand beside ours. The same command again goes on: see
finetuning/experiments/grid.py.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from finetuning.experiments import grid
from finetuning.experiments.grid import GridRun
from finetuning.results.files import markdown_table, summary, with_deviation, write_files
from finetuning.results.layer_curves import MARKERS
from zoo_core.recipes import user_errors

DOMAIN = "{domain}"


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = grid.parser_of(__doc__)
    grid.add_models(parser)
    parser.add_argument("--domains", nargs="+", default=[], metavar="DOMAIN", help="what `{domain}` stands for")
    with user_errors():
        fixed = {"model": "--model", "source_language": "--languages", "setting": "this command"}
        asked = grid.parse(parser, argv, fixed, "supervised")
        models, languages, domains = grid.named_models(asked.options), asked.options.languages, asked.options.domains
        grid.check_values("--languages", languages)
        grid.check_values("--domains", domains)
        grid.check_kind(asked)
        cells = {
            " ".join(cell): cell for cell in [(a, *b) for a in languages for b in ([(d,) for d in domains] or [()])]
        }
        runs = {
            (name, cell): GridRun(
                f"{name}, {cell}",
                asked.output / name / cell.replace(" ", "-"),
                path,
                functools.partial(in_one, parts=parts),
            )
            for name, path in models.items()
            for cell, parts in cells.items()
        }
        published = grid.read_recipe(asked, next(iter(runs.values()))).published  # for the whole table
        results = grid.run_all(asked, list(runs.values()))
        found = {name: {cell: results[runs[name, cell].name] for cell in cells} for name in models}
        write(found, results, published, asked.output)


def in_one(recipe: Any, parts: tuple[str, ...]) -> None:
    """Makes a recipe one of a single language and domain, with the published figure of these alone.

    Raises ValueError where `{domain}` is in the recipe or --domains given, and not both.
    """
    language, *domain = parts
    filled = False
    for tables in (recipe.train, recipe.evaluation):
        for table in tables:
            filled |= _fill_domain(table, domain[0] if domain else None)
    if domain and not filled:
        raise ValueError(
            f"--domains is given, and no table of the recipe has {DOMAIN} in path, config or where. Every domain would "
            f"be the same rows. Write {DOMAIN} there, as in where: {{domain: '{DOMAIN}'}}, or leave --domains out."
        )
    recipe.setting = "supervised"
    grid.train_in(recipe, language)
    grid.evaluate_in(recipe, [language])
    if recipe.published:
        figure = recipe.published.languages.get(" ".join(parts))
        figures = {} if figure is None else {language: figure}
        own = dataclasses.replace(recipe.published, languages=figures, further={}, average=None, average_over=[])
        recipe.published = own if figures else None


def _fill_domain(table: Any, domain: str | None) -> bool:
    """Puts the domain where `{domain}` stands; whether it stood there."""
    texts = [table.path, table.config or "", *table.where.values()]
    if not any(DOMAIN in text for text in texts):
        return False
    if domain is None:
        raise ValueError(
            f"The recipe has {DOMAIN} in the table {table.path}, and no --domains are given. Which rows are meant "
            "cannot be told. Name them, as in --domains books dvd music."
        )
    table.path = table.path.replace(DOMAIN, domain)
    table.config = table.config and table.config.replace(DOMAIN, domain)
    table.where = {column: text.replace(DOMAIN, domain) for column, text in table.where.items()}
    return True


def write(
    found: dict[str, dict[str, dict[str, Any]]], results: dict[str, dict[str, Any]], published: Any, folder: Path
) -> None:
    """Writes supervised.{json,md,csv,png} and shows the table; the main process. `found`: by model and cell."""
    from accelerate import PartialState

    from finetuning.experiments.compare_runs import title_of

    if not PartialState().is_main_process:
        return
    first = next(iter(results.values()))
    scores = {name: {cell: run["average"] for cell, run in runs.items()} for name, runs in found.items()}
    averages = {name: average_of(cells) for name, cells in scores.items()}
    title = f"{title_of({'': [first]})}, trained and tested alike"
    # those of one language and domain have to be alike but for the model
    groups = [{f"{name}, {cell}": runs[cell] for name, runs in found.items()} for cell in next(iter(scores.values()))]
    warnings, differing = grid.remarks(groups)
    table = table_of(scores, averages, published)
    record = {
        **grid.head_of(first),
        "setting": "supervised",
        "models": {name: next(iter(runs.values()))["model"] for name, runs in found.items()},
        "scores": scores,
        "averages": averages,
        "published": dataclasses.asdict(published) if published else None,
        "warnings": warnings,
        "differing": differing,
    }
    rows = grid.rows_of(found, "cell")
    text = grid.page(title, [markdown_table(table)], warnings, differing, "![scores](supervised.png)")
    write_files(record, text, rows, folder, "supervised")
    plot(scores, averages, published, folder / "supervised.png", title)
    written = f"{folder}/supervised.json, supervised.md, supervised.csv, supervised.png"
    grid.show(title, {"": table}, [f"warning: {line}" for line in warnings], differing, written, names=1)


def average_of(cells: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The mean over languages and domains, seed by seed."""
    by_seed = zip(*(entry["scores"] for entry in cells.values()), strict=True)
    return summary([sum(seeds) / len(seeds) for seeds in by_seed])


def table_of(
    scores: dict[str, dict[str, Any]], averages: dict[str, Any], published: Any
) -> tuple[list[str], list[list[str]]]:
    """Header and rows: languages and domains, with a column a model, then the published figures; the average last."""
    rows = []
    cells = list(next(iter(scores.values())))
    figures = published_of(published, cells)
    for cell in cells:
        figure = [_shown(figures.get(cell))] if published else []
        rows.append([cell, *(with_deviation(found[cell]) for found in scores.values()), *figure])
    figure = [_shown(figures.get("average"))] if published else []
    rows.append(["**average**", *map(with_deviation, averages.values()), *figure])
    source = [f"{published.paper}, {published.table}, {published.row}"] if published else []
    return ["trained and tested on", *scores, *source], rows


def published_of(published: Any, cells: list[str]) -> dict[str, float]:
    """The published figures of these cells, and their `average` where it is over the very same."""
    if not published:
        return {}
    figures = {cell: published.languages[cell] for cell in cells if cell in published.languages}
    over = set(published.average_over or published.languages)
    is_same = published.average is not None and over == set(cells)
    return figures | ({"average": published.average} if is_same else {})


def _shown(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.1f}"


def plot(scores: dict[str, dict[str, Any]], averages: dict[str, Any], published: Any, path: Path, title: str) -> None:
    """Points by language and domain, and the average, with standard deviations over seeds; a marker a model."""
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt

    cells = [*next(iter(scores.values())), "average"]
    figure, axes = plt.subplots(figsize=(max(6.4, 2.4 + 0.6 * len(cells)), 3.8), layout="constrained")
    for number, (name, found) in enumerate(scores.items()):
        entries = [*found.values(), averages[name]]
        places = [place + (number - (len(scores) - 1) / 2) * 0.6 / len(scores) for place in range(len(cells))]
        deviations = [entry["sd"] or 0.0 for entry in entries]
        style = dict(marker=MARKERS[number % len(MARKERS)], linestyle="none", markersize=5, capsize=2)
        axes.errorbar(places, [entry["mean"] for entry in entries], deviations, label=name, **style)
    figures = published_of(published, cells[:-1])
    if shown := {place: figures[cell] for place, cell in enumerate(cells) if cell in figures}:
        label = f"published: {published.row}"
        axes.plot(list(shown), list(shown.values()), marker="_", linestyle="none", color="black", ms=14, label=label)
    axes.axvline(len(cells) - 1.5, color="black", linewidth=0.6)
    axes.set_xticks(range(len(cells)), [cell.replace(" ", "\n") for cell in cells])
    axes.set_ylabel("score (%)")
    axes.grid(axis="y", linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
