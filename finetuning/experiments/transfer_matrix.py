"""Transfer from each of several languages to all of them: MetaXLM (2021), section 5.2 and Figure 6.

    python -m finetuning.experiments.transfer_matrix --config finetuning/recipes/metaxlm/amazon.yaml --languages en de
    fr ja \\
      --model XLM=runs/xlm/model --model MetaXLM=runs/metaxlm/model --output runs/matrix

Each model is fine-tuned on each language as the source, and evaluated on all, with the same recipe. Its training table
has to name the language, as `{language}` in path or config or by a `language_column`; development rows are those of the
source. Writes matrix.json, matrix.md, matrix.csv and matrix.png: a heat map a model, and the difference of each to the
first. Standard deviations are over seeds. The same command again goes on: see finetuning/experiments/grid.py.
"""

import functools
from pathlib import Path
from typing import Any

from finetuning.experiments import grid
from finetuning.experiments.grid import GridRun
from finetuning.results.files import markdown_table, with_deviation, write_files
from zoo_core.recipes import user_errors

Scores = dict[str, dict[str, dict[str, Any]]]  # by source and target: summary over seeds


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = grid.parser_of(__doc__)
    grid.add_models(parser)
    with user_errors():
        fixed = {"model": "--model", "source_language": "--languages"}
        asked = grid.parse(parser, argv, fixed, "transfer_matrix")
        models, languages = grid.named_models(asked.options), asked.options.languages
        grid.check_values("--languages", languages)
        grid.check_kind(asked)
        runs = {
            (name, source): GridRun(
                f"{name}, from {source}",
                asked.output / name / f"from-{source}",
                path,
                functools.partial(from_source, source=source, languages=languages),
            )
            for name, path in models.items()
            for source in languages
        }
        results = grid.run_all(asked, list(runs.values()))
        found = {name: {source: results[runs[name, source].name] for source in languages} for name in models}
        write(found, results, asked.output)


def from_source(recipe: Any, source: str, languages: list[str]) -> None:
    """Makes a recipe one of transfer from `source` to all `languages`. Raises ValueError for a setting without."""
    if recipe.setting != "zero_shot":
        raise ValueError(
            f"setting is {recipe.setting}: it trains on several languages, and none of them would be the source. A "
            "matrix is of zero-shot transfer. Use a recipe with setting=zero_shot."
        )
    recipe.published = None  # of another source
    grid.train_in(recipe, source)
    grid.evaluate_in(recipe, languages)


def write(found: dict[str, dict[str, dict[str, Any]]], results: dict[str, dict[str, Any]], folder: Path) -> None:
    """Writes matrix.{json,md,csv,png} and shows the tables; the main process. `found`: results by model and source."""
    from accelerate import PartialState

    from finetuning.experiments.compare_runs import title_of

    if not PartialState().is_main_process:
        return
    scores = {name: {source: run["languages"] for source, run in runs.items()} for name, runs in found.items()}
    differences = to_first(scores)
    first = next(iter(results.values()))
    title = f"{title_of({'': [first]})}, from each language to all"
    sources = list(next(iter(found.values())))
    # those of one source have to be alike but for the model
    groups = [{f"{name}, from {source}": runs[source] for name, runs in found.items()} for source in sources]
    warnings, differing = grid.remarks(groups)
    tables = {name: table_of(name, found[name]) for name in found}
    tables |= {name: table_of_differences(name, matrix) for name, matrix in differences.items()}
    record = {
        **grid.head_of(first),
        "models": {name: next(iter(runs.values()))["model"] for name, runs in found.items()},
        "scores": scores,
        "differences": differences,
        "better": better(differences),
        "warnings": warnings,
        "differing": differing,
    }
    rows = grid.rows_of(found, "source")
    blocks = [markdown_table(table) for table in tables.values()]
    blocks += [[f"- {line}"] for line in better(differences)]
    text = grid.page(title, blocks, warnings, differing, "![heat maps](matrix.png)")
    write_files(record, text, rows, folder, "matrix")
    plot(scores, differences, folder / "matrix.png", title)
    notes = [*better(differences), *(f"warning: {line}" for line in warnings)]
    grid.show(title, tables, notes, differing, f"{folder}/matrix.json, matrix.md, matrix.csv, matrix.png", names=1)


def to_first(scores: dict[str, Scores]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean of each model minus that of the first, in points, by `<model> - <first>`, source and target."""
    (first, base), *others = scores.items()
    return {
        f"{name} - {first}": {
            source: {
                target: round(entry["mean"] - base[source][target]["mean"], 6) + 0.0
                for target, entry in targets.items()
            }
            for source, targets in matrix.items()
        }
        for name, matrix in others
    }


def better(differences: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """In how many directions each model is above the first, a sentence each (the paper's: 15 of 16)."""
    lines = []
    for name, matrix in differences.items():
        cells = [value for targets in matrix.values() for value in targets.values()]
        lines.append(f"{name}: higher in {sum(value > 0 for value in cells)} of {len(cells)} directions")
    return lines


def table_of(name: str, runs: dict[str, dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: sources, with the score on each target, the mean of the others and the transfer gap."""
    targets = list(next(iter(runs.values()))["languages"])
    rows = []
    for source, run in runs.items():
        scores = grid.pooled([grid.transfer_by_seed(run)])
        cells = [run["languages"][target] for target in targets]
        cells += [scores[key] for key in ("others", "gap") if key in scores]
        rows.append([source, *map(with_deviation, cells)])
    further = ["mean of others", "gap"] if len(targets) > 1 else []
    return [f"{name}: from", *targets, *further], rows


def table_of_differences(name: str, matrix: dict[str, dict[str, float]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: sources, with the difference on each target."""
    targets = list(next(iter(matrix.values())))
    rows = [[source, *(f"{row[target]:+.1f}" for target in targets)] for source, row in matrix.items()]
    return [f"{name}: from", *targets], rows


def plot(
    scores: dict[str, Scores], differences: dict[str, dict[str, dict[str, float]]], path: Path, title: str
) -> None:
    """Heat maps with a number in every cell: the models on one scale, above the differences to the first on another."""
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt

    means = {
        name: {source: {target: entry["mean"] for target, entry in row.items()} for source, row in matrix.items()}
        for name, matrix in scores.items()
    }
    side = 1.0 + 0.62 * len(next(iter(means.values())))
    columns, lines = len(means), 2 if differences else 1
    size = (max(6.4, 1.2 + columns * (side + 0.4)), lines * (side + 0.6) + 0.5)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    values = [value for matrix in means.values() for row in matrix.values() for value in row.values()]
    far = max([abs(v) for matrix in differences.values() for row in matrix.values() for v in row.values()], default=1.0)
    if differences:
        axes[1][0].set_visible(False)
    places = [*zip(axes[0], means.items(), strict=True)]
    for place, (name, matrix) in places:
        image = draw(place, name, matrix, "{:.1f}", dict(cmap="viridis", vmin=min(values), vmax=max(values)))
    figure.colorbar(image, ax=list(axes[0]), label="score (%)", shrink=0.8)
    if differences:
        for place, (name, matrix) in zip(axes[1][1:], differences.items(), strict=True):
            image = draw(place, name, matrix, "{:+.1f}", dict(cmap="RdBu", vmin=-far or -1.0, vmax=far or 1.0))
        figure.colorbar(image, ax=list(axes[1]), label="points", shrink=0.8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw(axes: Any, title: str, matrix: dict[str, dict[str, float]], form: str, style: dict[str, Any]) -> Any:
    """One heat map, sources downwards, with the numbers in a color that shows on the cell's."""
    sources, targets = list(matrix), list(next(iter(matrix.values())))
    image = axes.imshow([[matrix[source][target] for target in targets] for source in sources], **style)
    for down, source in enumerate(sources):
        for across, target in enumerate(targets):
            red, green, blue, _ = image.cmap(image.norm(matrix[source][target]))
            ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
            text = form.format(matrix[source][target])
            axes.text(across, down, text, ha="center", va="center", fontsize=8, color=ink)
    axes.set_xticks(range(len(targets)), targets)
    axes.set_yticks(range(len(sources)), sources)
    axes.set_xlabel("evaluated on")
    axes.set_ylabel("fine-tuned on")
    axes.set_title(title, fontsize=9)
    return image


if __name__ == "__main__":
    main()
