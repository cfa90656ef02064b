"""Runs of one task side by side: a table, a plot, and every difference in how they were trained and measured.

    python -m finetuning.experiments.compare_runs --output runs/multi30k_compared \\
        --run VECO runs/multi30k-veco --run XLM runs/multi30k-xlm --run random runs/multi30k-random

--run takes a name and one or more folders of finetuning/run.py; several folders are seeds of one experiment that were
run apart. Writes comparison.md, comparison.csv (a row for each run, language, metric and seed) and comparison.png: BLEU
on dev over the steps for translation, scores over layers for word alignment (XLM-Align, Figure 2; MetaXLM, Figure 4)
and retrieval (MetaXLM, Figure 3), scores by language for other tasks; means and standard deviations over seeds.
"""

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from finetuning.results import by_language as results
from finetuning.results.files import FORMAT, load_results, markdown_table, run_name, summary, with_deviation
from finetuning.results.layer_curves import AVERAGE, plot_layers
from finetuning.tasks.features import results as feature_results
from finetuning.tasks.mining import results as mining_results
from finetuning.tasks.registry import KINDS
from finetuning.tasks.retrieval import results as retrieval_results
from finetuning.tasks.translation import results as translation_results
from finetuning.tasks.word_alignment import results as alignment_results
from zoo_core.recipes import user_errors

# how results of a kind of task are shown
MODULES = dict.fromkeys(KINDS, results) | {
    "translation": translation_results,
    "word_alignment": alignment_results,
    "retrieval": retrieval_results,
    "mining": mining_results,
}
# of kinds that are scored by layer, what is measured
MEASURES = {
    "word_alignment": alignment_results.AER,
    "retrieval": retrieval_results.ACCURACY,
    "mining": mining_results.F1,
}
# Languages, or pairs, beside each other on a page: of more, each is a row of the table, and the plot over layers is of
# their average alone.
MOST_LANGUAGES = 12

# Outcomes, which differ between any two runs, sentences for readers of what other fields say, and what else was scored.
LEFT_OUT = (
    "protocol.selection.selected_steps",
    "protocol.selection.scores",
    "protocol.selection.sweep.score",
    "protocol.facts",
    "protocol.methods",
    "protocol.layers",
    "protocol.fresh_parameters",
    "hyperparameters.used_rows_only",  # the model is the same
)
# What makes two scores of one task measures of the same thing, whatever the models and their training were.
MEASURED = tuple(
    f"protocol.{field}"
    for field in (
        "evaluation_data",
        "evaluated_split",
        "evaluated_rows",
        "max_length",
        "doc_stride",
        "metric",
        "pooling",
        "similarity",
        "margin",
        "neighbors",
        "threshold",
        "dev_data",
        "dev_fraction",
    )
)


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--run", nargs="+", action="append", required=True, metavar=("NAME", "DIR"), help="a name and its run folders"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="where the comparison is written")
    flags = parser.parse_args(argv)
    with user_errors():
        write_comparison(read_runs(flags.run), Path(flags.output))


def write_comparison(runs: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """Writes comparison.md, comparison.csv and comparison.png into a folder, and shows the table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.md").write_text(to_markdown(runs), encoding="utf-8")
    with (folder / "comparison.csv").open("w", encoding="utf-8", newline="") as stream:
        rows = to_rows(runs)
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    plot(runs, folder / "comparison.png")
    print_comparison(runs, folder)


def read_others(recipe: Any) -> dict[str, list[dict[str, Any]]]:
    """The results that a recipe's `compare_with` names, by the names of their models.

    Raises ValueError as `read_runs`, for results that cannot stand beside those of the recipe, and for one name of two.
    """
    others = read_runs([[name, *folders] for name, folders in recipe.compare_with.items()])
    if own_name(recipe) in others:
        raise ValueError(
            f"compare_with names {own_name(recipe)}, which is the name of this run's model. Two lines of a plot cannot "
            "have one name. Set `name` for this model, or call the other one something else."
        )
    own = {"kind": recipe.kind, "task": recipe.task, "languages": recipe.pair_names}
    check_alike({own_name(recipe): own, **{name: record for name, group in others.items() for record in group}})
    return others


def write_beside(recipe: Any, others: dict[str, list[dict[str, Any]]]) -> None:
    """Writes the comparison of a finished run with `others` (`read_others`) into its own folder; the main process."""
    from accelerate import PartialState

    if PartialState().is_main_process:
        own = read_runs([[own_name(recipe), recipe.output_dir]])
        write_comparison(own | others, Path(recipe.output_dir))


def own_name(recipe: Any) -> str:
    """The name of the recipe's model in a comparison."""
    return recipe.name or run_name(recipe.model)


def read_runs(named_folders: list[list[str]]) -> dict[str, list[dict[str, Any]]]:
    """The results.json of every folder by the name of its run.

    Raises ValueError for: a name without a folder, or given twice; a folder without results; runs of different tasks or
    evaluated on different languages; a seed that appears twice in a run.
    """
    check_names(named_folders)
    runs: dict[str, list[dict[str, Any]]] = {}
    for name, *folders in named_folders:
        runs[name] = [read_results(folder) for folder in folders]
        check_alike({folder: record for folder, record in zip(folders, runs[name], strict=True)})
        check_seeds(f"--run {name}", runs[name])
    check_alike({name: record for name, group in runs.items() for record in group})
    return runs


def check_names(named_folders: list[list[str]]) -> None:
    """Raises ValueError for a name without a folder, or given twice."""
    names = [name for name, *_ in named_folders]
    for name, *folders in named_folders:
        if not folders or names.count(name) > 1:
            problem = "stands twice" if names.count(name) > 1 else "has no folder"
            raise ValueError(
                f"--run {name} {problem}: a run is a name of its own and the folders of its seeds. Write --run NAME "
                "DIR [DIR ...]."
            )


def check_seeds(name: str, records: list[dict[str, Any]]) -> None:
    """Raises ValueError for results that are not seeds of one experiment: one seed twice, or two protocols."""
    seeds = [seed for record in records for seed in record["seeds"]]
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise ValueError(
            f"{name}: seed {twice[0]} is in more than one of its folders, and would be counted twice. Name "
            "each seed's folder once; what differs in more than the seed is a --run of its own."
        )
    lines = differences({f"seed {record['seeds'][0]}": [record] for record in records})
    if lines := [line for line in lines if not line.startswith("model:")]:  # pre-trained with seeds of their own
        raise ValueError(
            f"{name}: its folders were not trained and measured in the same way: {'; '.join(lines)}. A mean over their "
            "seeds would be of two protocols. Give each a --run of its own."
        )


def check_protocols(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Raises ValueError for runs of a task whose scores were not measured in the same way, as MEASURED lists it."""
    if lines := [line for line in differences(runs) if line.startswith(MEASURED)]:
        task = next(iter(runs.values()))[0]["task"]
        raise ValueError(
            f"{task} was measured by different protocols: {'; '.join(lines)}. Such scores cannot stand in one column. "
            "Evaluate both in the same way, or look at them apart."
        )


def check_alike(records: dict[str, dict[str, Any]]) -> None:
    """Raises ValueError for results of different tasks or languages."""
    first_name, first = next(iter(records.items()), (None, None))
    for name, record in records.items():
        for field in ("kind", "task", "languages"):
            this, other = (list(r[field]) if field == "languages" else r[field] for r in (record, first))
            if this != other:
                raise ValueError(
                    f"{name} has {field} {this}, {first_name} has {other}: their scores cannot stand in one table. "
                    "Compare runs of one task on the same languages."
                )


def read_results(folder: str | Path) -> dict[str, Any]:
    """The results.json of a folder. Raises ValueError where there is none, or of another format."""
    path = Path(folder) / "results.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} has no results.json: it is no folder of finetuning/run.py, or its run has not ended. Name the "
            "run's output_dir; end an interrupted run with --resume."
        )
    record = load_results(path)
    if record.get("format") != FORMAT or record.get("kind") not in MODULES:
        raise ValueError(
            f"{path} has format {record.get('format')!r} and kind {record.get('kind')!r}; this version reads format "
            f"{FORMAT} of {', '.join(MODULES)}. Run that task again."
        )
    return record


def scores_of(records: list[dict[str, Any]], language: str) -> dict[str, Any]:
    """Scores, mean and standard deviation over all seeds of a run."""
    return summary([score for record in records for score in record["languages"][language]["scores"]])


def differences(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What is not the same in every run of how they were trained and measured, a line each."""
    lines = []
    stamps = {name: [_stamp(record) for record in records] for name, records in runs.items()}
    fields = dict.fromkeys(field for group in stamps.values() for stamp in group for field in stamp)
    for field in fields:
        values = {
            name: list(dict.fromkeys(json.dumps(stamp.get(field)) for stamp in group)) for name, group in stamps.items()
        }
        if len({value for group in values.values() for value in group}) > 1:
            lines.append(f"{field}: " + "; ".join(f"{name} {', '.join(group)}" for name, group in values.items()))
    return lines


def _stamp(record: dict[str, Any]) -> dict[str, Any]:
    """Protocol and hyperparameters as `protocol.selection.rule` and the like, without outcomes and seeds."""
    flat: dict[str, Any] = {}

    def flatten(prefix: str, value: Any) -> None:
        if prefix in LEFT_OUT:
            return
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}", inner)
        elif prefix == "hyperparameters.updates":
            flat[prefix] = sorted(set(value))
        elif prefix.endswith("_data") or prefix.endswith(".data"):
            tables = value if isinstance(value, list) else []
            flat[prefix] = [(table["config"], table["split"], table["fingerprint"]) for table in tables]
        else:
            flat[prefix] = value

    for part in ("protocol", "hyperparameters"):
        flatten(part, record[part])
    flat |= {"setting": record["setting"], "model": record["model"]["folder"]}
    return flat


def score_table(runs: dict[str, list[dict[str, Any]]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: runs, with their score in each language, the average of several, and the seeds behind it.

    Of many languages, rows and columns are exchanged.
    """
    records = next(iter(runs.values()))
    languages = list(records[0]["languages"])
    several = len(languages) > 1
    columns = ["run", *languages, *(["average"] if several else []), "seeds"]
    rows = []
    for name, group in runs.items():
        cells = [with_deviation(scores_of(group, language)) for language in languages]
        if several:
            averages = [score for record in group for score in record["average"]["scores"]]
            cells.append(with_deviation(summary(averages)))
        rows.append([name, *cells, ", ".join(str(seed) for record in group for seed in record["seeds"])])
    if len(languages) > MOST_LANGUAGES:
        columns, *rows = map(list, zip(columns, *rows, strict=True))
    return columns, rows


def title_of(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Task, metric and split."""
    record = next(iter(runs.values()))[0]
    metric = record["protocol"]["metric"]
    lower = "" if metric.get("greater_is_better", True) else " (lower is better)"
    return f"{record['task']}, {metric['name']}{lower} on {record['protocol']['evaluated_split']}"


def to_markdown(runs: dict[str, list[dict[str, Any]]]) -> str:
    """The comparison as a Markdown page."""
    lines = [f"# {title_of(runs)}", "", *markdown_table(score_table(runs))]
    if differing := differences(runs):
        lines += ["", "## What differs between the runs", "", *(f"- {line}" for line in differing)]
    return "\n".join([*lines, "", "![comparison](comparison.png)", ""])


def to_rows(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each run, language, metric and seed."""
    return [
        {"run": name, **row}
        for name, records in runs.items()
        for record in records
        for row in MODULES[record["kind"]].to_rows(record)
    ]


def print_comparison(runs: dict[str, list[dict[str, Any]]], folder: Path) -> None:
    """The table and the differences on the screen."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    columns, rows = score_table(runs)
    table = Table(title=title_of(runs))
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in differences(runs):
        console.print(f"differs: {line}", markup=False, soft_wrap=True)
    console.print(f"written: {folder}/comparison.md, comparison.csv, comparison.png", markup=False, soft_wrap=True)


def plot(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """BLEU over steps where every run has a curve, else bars by language; standard deviations over seeds.

    Of what is scored by layer, the score over layers: the average, then every pair of languages.
    """
    first = next(iter(runs.values()))[0]
    if measure := MEASURES.get(first["kind"]):
        chance = feature_results.chance_level(first, measure)
        plot_layers(layer_panels(runs), path, measure, title_of(runs), chance=chance, one_scale=False)
        return
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    curves = {name: curve_of(records) for name, records in runs.items()}
    title = title_of(runs)
    if all(curves.values()):
        title = next(iter(runs.values()))[0]["task"]
        for name, curve in curves.items():
            steps = list(curve)
            means = [entry["mean"] for entry in curve.values()]
            axes.plot(steps, means, marker=".", label=name)
            low, high = ([e["mean"] + sign * (e["sd"] or 0.0) for e in curve.values()] for sign in (-1, 1))
            axes.fill_between(steps, low, high, alpha=0.2, linewidth=0)
        axes.set_xlabel("updates")
        axes.set_ylabel("sacreBLEU on dev")
    else:
        languages = list(next(iter(runs.values()))[0]["languages"])
        width = 0.8 / len(runs)
        for number, (name, records) in enumerate(runs.items()):
            entries = [scores_of(records, language) for language in languages]
            places = [place + (number - (len(runs) - 1) / 2) * width for place in range(len(languages))]
            deviations = [entry["sd"] or 0.0 for entry in entries]
            axes.bar(places, [entry["mean"] for entry in entries], width, yerr=deviations, capsize=2, label=name)
        axes.set_xticks(range(len(languages)), languages)
        axes.set_ylabel("score (%)")
    figure.suptitle(title, fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def layer_panels(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Scores by panel (average or pair of languages), run and layer: one a seed, of the layers that all seeds have."""
    curves = {
        name: [feature_results.curves(record, MEASURES[record["kind"]]) for record in records]
        for name, records in runs.items()
    }
    titles = list(next(iter(curves.values()))[0])
    if len(titles) > MOST_LANGUAGES:
        titles = [AVERAGE]
    panels: dict[str, dict[str, dict[int, list[float]]]] = {}
    for title in sorted(titles, key=lambda title: title != AVERAGE):
        panels[title] = {}
        for name, found in curves.items():
            layers = [layer for layer in found[0][title] if all(layer in seeds[title] for seeds in found)]
            panels[title][name] = {
                layer: [score for seeds in found for score in seeds[title][layer]] for layer in layers
            }
    return panels


def curve_of(records: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """BLEU on dev at each step at which all seeds were evaluated; empty where dev was not translated."""
    curves = [curve for record in records for curve in record.get("curve", {}).values()]
    by_seed = [{p["step"]: p["bleu"] for p in curve if p["bleu"] is not None} for curve in curves]
    common = sorted(set.intersection(*(set(curve) for curve in by_seed))) if by_seed else []
    return {step: summary([curve[step] for curve in by_seed]) for step in common}


if __name__ == "__main__":
    main()
