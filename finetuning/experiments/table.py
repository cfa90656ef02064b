"""The table of a grid: scores of all runs in one long table, pivots of it, and plots."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas

from finetuning.experiments.engine import RecipeJob
from finetuning.experiments.grid import Grid, Keys, filled
from finetuning.results.differences import check_alike, differences, warnings_of
from finetuning.results.files import markdown_list, markdown_table, pivot, print_table
from finetuning.results.plots import plot_bars, plot_heat_maps, plot_lines
from finetuning.results.report import shown
from finetuning.results.table import AVERAGE, FORMAT, Results, Summary, mean_of, summary
from zoo_core.provenance import write_csv, write_json

Cells = dict[str, dict[str, dict[str, Summary]]]  # by table, column and row
FIGURES = {"others": "mean of others", "gap": "transfer gap"}


def write_grid(grid: Grid, jobs: Sequence[RecipeJob], results: list[Results], published: Any, folder: Path) -> None:
    """Writes <name>.{json,md,csv,png} into the folder and shows the tables.

    Runs with the same values on all axes except the model's should differ only in their models; the page lists other
    differences. The JSON has the joined long table as `scores`.
    """
    named = {job.name: found for job, found in zip(jobs, results, strict=True)}
    groups: dict[tuple, dict[str, Results]] = {}
    for job in jobs:
        groups.setdefault(tuple(job.keys[name] for name in grid.alike), {})[job.name] = named[job.name]
    for group in groups.values():
        check_alike(group)
    lines = dict.fromkeys(line for group in groups.values() for line in differences(group))
    differing = [line for line in lines if not line.startswith("model:")]
    warnings = warnings_of(named)
    cells = cells_of(grid, jobs, results)
    next_columns, figures = published_column(grid, published, cells)
    changes = minus_first(cells) if grid.table.differences else {}
    tables = {heading: pivot(grid.table.corner, {**columns, **next_columns}) for heading, columns in cells.items()}
    for name, columns in changes.items():
        points = [entry["mean"] for rows in columns.values() for entry in rows.values()]
        heading = f"{name}: higher in {sum(value > 0 for value in points)} of {len(points)} cells"
        signed = {c: {row: f"{entry['mean']:+.1f}" for row, entry in rows.items()} for c, rows in columns.items()}
        tables[heading] = pivot(grid.table.corner, signed)
    title = f"{results[0].title}, {grid.title}"
    pictures = draw(grid, jobs, cells, changes, figures, folder, title)
    table = pandas.concat([found.frame(**job.keys) for job, found in zip(jobs, results, strict=True)])
    content = {
        "format": FORMAT,
        **{field: results[0][field] for field in ("task", "kind", "seeds")},
        "metric": results[0].protocol.metric.as_json(),
        "models": {name: found["model"] for name, found in named.items()},
        "table": cells,
        "published": dataclasses.asdict(published) if figures else None,
        "scores": table.drop(columns=["model", "task"]).to_dict("records"),
        "warnings": warnings,
        "differing": differing,
    }
    page = [f"# {title}", ""]
    for heading, found in tables.items():
        page += [*([f"## {heading}", ""] if heading else []), *markdown_table(found), ""]
    page += [*markdown_list("Warnings", warnings), *markdown_list("What differs between the runs", differing)]
    page += ["The results.md in a run's own folder has its protocol.", ""]
    page += [line for picture in pictures for line in (f"![{title}]({picture})", "")]
    (folder / f"{grid.name}.md").write_text("\n".join(page), encoding="utf-8")
    write_csv(folder / f"{grid.name}.csv", table)
    write_json(folder / f"{grid.name}.json", content)
    for heading, found in tables.items():
        print_table(heading or title, found, [])
    for line in [*(f"warning: {line}" for line in warnings), *(f"differs: {line}" for line in differing)]:
        print(line)
    print(f"written: {folder}/{grid.name}.json, md, csv, {', '.join(pictures)}")


def figures_of(results: Results, names: Sequence[str]) -> dict[str, Summary]:
    """Returns the scores of a run that a table shows, or the average if the run has none of them."""
    found = {}
    for name in names:
        if name == "languages":
            found |= results.languages
        elif name == "average":
            found[AVERAGE] = results.average
        elif name in results.transfer:
            found[FIGURES.get(name) or results["source_language"]] = results.transfer[name]
    return found or {AVERAGE: results.average}


def cells_of(grid: Grid, jobs: Sequence[RecipeJob], results: list[Results]) -> Cells:
    """Returns the cells of the tables; runs in one cell, such as seeds of pre-training, are pooled."""
    table = grid.table
    cells: dict[str, dict[str, dict[str, list[float]]]] = {}
    for job, found in zip(jobs, results, strict=True):
        heading = str(job.keys[table.tables]) if table.tables else ""
        for figure, entry in figures_of(found, table.figures).items():
            column = str(job.keys[table.columns]) if table.columns else figure
            rows = cells.setdefault(heading, {}).setdefault(column, {})
            rows.setdefault(filled(table.rows, job.keys), []).extend(entry["scores"])
    pooled: Cells = {
        heading: {column: {row: summary(scores) for row, scores in rows.items()} for column, rows in columns.items()}
        for heading, columns in cells.items()
    }
    for columns in pooled.values() if table.average else ():
        for rows in columns.values():
            rows[AVERAGE] = mean_of(rows.values())
    return pooled


def minus_first(cells: Cells) -> Cells:
    """Returns each table minus the first one, in points, for the columns that all rows have."""
    (first, base), *others = cells.items()
    found: Cells = {}
    for name, columns in others:
        kept = {column: rows for column, rows in columns.items() if column not in FIGURES.values()}
        found[f"{name} - {first}"] = {
            # rounded: means that were summed in another order differ in their last digits
            column: {
                row: summary([round(entry["mean"] - base[column][row]["mean"], 6) + 0.0]) for row, entry in rows.items()
            }
            for column, rows in kept.items()
        }
    return found


def published_column(grid: Grid, published: Any, cells: Cells) -> tuple[dict[str, dict[str, str]], dict[str, float]]:
    """Returns the published scores as a column, and by row; the average only if it is over the same rows."""
    if not grid.published or not published:
        return {}, {}
    rows = list(dict.fromkeys(row for columns in cells.values() for column in columns.values() for row in column))
    figures = {row: published.languages[row] for row in rows if row in published.languages}
    is_same = set(published.average_over or published.languages) == set(rows) - {AVERAGE}
    if is_same and published.average is not None:
        figures[AVERAGE] = published.average
    heading = f"{published.paper}, {published.table}, {published.row}"
    return {heading: {row: shown(figure) for row, figure in figures.items()}}, figures


def draw(
    grid: Grid,
    jobs: Sequence[RecipeJob],
    cells: Cells,
    changes: Cells,
    published: dict[str, float],
    folder: Path,
    title: str,
) -> list[str]:
    """Draws the plots of the grid; returns the names of the files."""
    plot, pictures = grid.plot, [f"{grid.name}.png"]
    if plot is None:
        return []
    if plot.kind == "lines":
        keys: dict[str, Keys] = {filled(grid.table.rows, job.keys): job.keys for job in jobs}
        panels: dict[str, dict[str, dict[Any, Summary]]] = {}
        for heading, columns in cells.items():
            for column, rows in columns.items():
                lines = panels.setdefault(f"{heading} {column}".strip(), {})
                for row, entry in sorted(rows.items(), key=lambda item: keys[item[0]][plot.x]):
                    lines.setdefault(str(keys[row][plot.lines]), {})[keys[row][plot.x]] = entry
        plot_lines(panels, folder / pictures[0], title, plot.x_label or plot.x, "score (%)", same_scale=False)
    elif plot.kind == "bars":
        groups = {f"{heading} {column}".strip(): rows for heading, of in cells.items() for column, rows in of.items()}
        marks = {"published": published} if published else None
        plot_bars(groups, folder / pictures[0], title, "score (%)", marks=marks)
    else:
        axes = dict(x_label=plot.x_label, y_label=plot.y_label)
        plot_heat_maps(means(cells), folder / pictures[0], title, "score (%)", **axes)
        if changes:
            pictures.append(f"{grid.name}-differences.png")
            plot_heat_maps(means(changes), folder / pictures[1], title, "points", **axes, around_zero=True)
    return pictures


def means(cells: Cells) -> dict[str, dict[str, dict[str, float]]]:
    """Returns means by table, row and column, except for columns that are computed from others."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for heading, columns in cells.items():
        for column, rows in columns.items():
            for row, entry in rows.items() if column not in FIGURES.values() else ():
                found.setdefault(heading, {}).setdefault(row, {})[column] = entry["mean"]
    return found
