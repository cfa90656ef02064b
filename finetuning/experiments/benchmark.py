"""A whole benchmark in one table: a column a task, averages of categories and of all, a row a model.

    python -m finetuning.experiments.benchmark --output runs/xtreme_compared \\
        --run XLM runs/xlm/xtreme --run MetaXLM runs/metaxlm/xtreme

--run takes a name and one or more folders of `finetuning/run.py --suite`; several folders are seeds of one experiment
that were run apart. Writes benchmark.json, benchmark.md, benchmark.csv (a row for each run, task, metric, language and
seed) and benchmark.png.

Scores stand in one column only if they were measured in the same way: on the same rows, cut at the same length, by the
same version of the same metric. Runs of which that is not true are refused. What may differ between models (the
setting, what they were fine-tuned on before) is marked in the table.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from finetuning.experiments.compare_runs import (
    MODULES,
    check_names,
    check_protocols,
    check_seeds,
    differences,
    read_results,
)
from finetuning.results.files import FORMAT, Table, markdown_table, print_table, summary, with_deviation, write_files
from zoo_core.recipes import user_errors

KIND = "benchmark"
AT_CHANCE, TUNED, LESS, PARTIAL = "†", "‡", "¶", "§"
FOOTNOTES = {
    AT_CHANCE: "a seed is at chance, or at 0, in a language: see the warnings",
    TUNED: "the model was fine-tuned on another task before this one",
    LESS: "something of this task was left out or has failed: see the warnings",
    PARTIAL: "not over all these tasks: averages of different tasks cannot be compared",
}

Results = dict[str, dict[str, list[dict[str, Any]]]]  # by run and task, the results.json of its folders


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--run", nargs="+", action="append", required=True, metavar=("NAME", "DIR"), help="a name and its suite folders"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="where the table is written")
    flags = parser.parse_args(argv)
    with user_errors():
        check_names(flags.run)
        suites, runs = {}, {}
        for name, *folders in flags.run:
            suites[name], runs[name] = read_suite_folders(name, folders)
        report = build(suites, runs)
        folder = Path(flags.output)
        folder.mkdir(parents=True, exist_ok=True)
        write(report, runs, folder, "benchmark")
        show(report, f"{folder}/benchmark.json, benchmark.md, benchmark.csv, benchmark.png")


def read_suite_folders(name: str, folders: list[str]) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """What the suite of some folders is, and by task the results of every folder.

    Raises ValueError for a folder without a suite's results, and for folders of different suites or experiments.
    """
    found = []
    for folder in folders:
        path = Path(folder) / "results.json"
        record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if record.get("kind") != KIND or record.get("format") != FORMAT:
            raise ValueError(
                f"{folder} holds no results of `finetuning/run.py --suite` (a results.json of kind {KIND}). A run of "
                "one task has no place in this table. Name the output_dir of a suite, or compare single tasks with "
                "finetuning.experiments.compare_runs."
            )
        found.append(record["suite"])
    if any(suite["tasks"] != found[0]["tasks"] for suite in found):
        raise ValueError(
            f"--run {name} has folders of different suites: {', '.join(suite['name'] for suite in found)}. Their tasks "
            "are not the same columns. Give each a --run of its own."
        )
    by_folder = []
    for folder in folders:
        paths = {task["name"]: Path(folder) / task["name"] for task in found[0]["tasks"]}
        records = {task: read_results(path) for task, path in paths.items() if (path / "results.json").is_file()}
        check_one_model(folder, records)
        by_folder.append(records)
    results: dict[str, list[dict[str, Any]]] = {}
    for task in [task["name"] for task in found[0]["tasks"]]:
        records = [record for of in by_folder if (record := _with_seeds(of, task))]
        # what trains nothing has the same scores whatever seeds the other tasks have
        same = {json.dumps([record["model"], record["metrics"]]) for record in records if not _is_trained(record)}
        if records := records[:1] if len(same) == 1 and not any(map(_is_trained, records)) else records:
            check_seeds(f"{name}, {task}", records)
            results[task] = records
    return found[0], results


def _is_trained(record: dict[str, Any]) -> bool:
    return bool(record["protocol"]["training_data"])


def _with_seeds(records: dict[str, dict[str, Any]], task: str) -> dict[str, Any] | None:
    """The results of a task in one folder.

    What trains nothing has one seed, 1, in every folder: it gets that of the folder's other tasks, where they have one.
    """
    record = records.get(task)
    if record is None or _is_trained(record) or len(record["seeds"]) > 1:
        return record
    seeds = {tuple(other["seeds"]) for other in records.values() if _is_trained(other)}
    return {**record, "seeds": list(next(iter(seeds)))} if len(seeds) == 1 and len(next(iter(seeds))) == 1 else record


def check_one_model(folder: str, records: dict[str, dict[str, Any]]) -> None:
    """Raises ValueError where the tasks of a folder were not all run with one model; `records` are results by task."""
    models = {task: frozenset(record["model"]["fingerprint"].split("+")) for task, record in records.items()}
    if len(set(models.values())) > 1:
        names = "; ".join(f"{task}: {records[task]['model']['folder']}" for task in models)
        raise ValueError(
            f"The tasks in {folder} were not run with the same model ({names}). Their scores would stand in one row. "
            "Run each model in an output_dir of its own."
        )


def build(suites: dict[str, dict[str, Any]], runs: Results, left_out: dict[str, str] | None = None) -> dict[str, Any]:
    """What benchmark.json holds: every run's scores by task, averages, warnings, and the published rows.

    `suites` are the suites' definitions, by run; `left_out` says by task what was not run of it, and why.

    Raises ValueError where two runs have different tasks, or were not measured in the same way.
    """
    suite, left_out = next(iter(suites.values())), left_out or {}
    for name, other in suites.items():
        if [task["name"] for task in other["tasks"]] != [task["name"] for task in suite["tasks"]]:
            raise ValueError(
                f"{name} is of suite {other['name']}, {next(iter(suites))} of {suite['name']}: their tasks are not the "
                "same. Averages over different tasks cannot be compared. Compare runs of one suite."
            )
    differing = []
    for task in suite["tasks"]:
        of_task = {name: results[task["name"]] for name, results in runs.items() if task["name"] in results}
        check_protocols(of_task)
        lines = differences(of_task)
        differing += [f"{task['name']}: {line}" for line in lines if not line.startswith(("model:", "hyperparameters"))]
    measured = {task: records[0] for results in runs.values() for task, records in results.items()}
    return {
        "format": FORMAT,
        "kind": KIND,
        "suite": suite,
        "left_out": left_out,
        "runs": {name: _of_run(suite, results, left_out) for name, results in runs.items()},
        "published": published_rows(suite, measured),
        "differences": differing,
        "warnings": [
            *([suite["note"]] if suite.get("note") else []),
            *(f"{task}: {reason}" for task, reason in left_out.items()),
            *_said_once(runs),
        ],
    }


def _said_once(runs: Results) -> list[str]:
    """The warnings of all tasks of all runs, each once, with the tasks and, where not all have it there, the runs."""
    said: dict[str, dict[str, list[str]]] = {}  # by line and run, the tasks
    for name, results in runs.items():
        for task, records in results.items():
            for line in dict.fromkeys(line for record in records for line in record["warnings"]):
                said.setdefault(line, {}).setdefault(name, []).append(task)
    lines = []
    for line, by_run in said.items():
        if len(by_run) == len(runs) and len(set(map(tuple, by_run.values()))) == 1:
            lines.append(f"{', '.join(next(iter(by_run.values())))}: {line}")
        else:
            lines += [f"{', '.join([name, *tasks])}: {line}" for name, tasks in by_run.items()]
    return lines


def _of_run(
    suite: dict[str, Any], results: dict[str, list[dict[str, Any]]], left_out: dict[str, str]
) -> dict[str, Any]:
    """Scores of one run by task, by category and on average; categories and average only over what there is."""
    tasks = {task["name"]: of_task(task, results[task["name"]]) for task in suite["tasks"] if task["name"] in results}
    categories = {
        name: found
        for name, members in _by_category(suite).items()
        if (found := [task for task in members if task in tasks])
    }
    for task in tasks.keys() & left_out.keys():
        tasks[task]["marks"].append(LESS)
    first = next(iter(results.values()))[0] if results else None
    return {
        "model": first and first["model"],
        "tasks": tasks,
        "categories": {name: average([tasks[task] for task in members]) for name, members in categories.items()},
        "average": average(list(tasks.values())) if tasks else None,
        "missing": [task["name"] for task in suite["tasks"] if task["name"] not in tasks],
    }


def of_task(task: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """The scores of a task: each the mean over its languages, by seed; their mean is the task's, as in XTREME.

    Raises ValueError for a score that the results do not have.
    """
    first = records[0]
    names = task["scores"] or [first["protocol"]["metric"]["name"]]
    if unknown := [name for name in names if name not in first["metrics"]]:
        raise ValueError(
            f"Task {task['name']} of the suite shows {unknown[0]!r}, and its results have "
            f"{', '.join(first['metrics'])}. There is nothing to show. Correct `scores` of the task."
        )
    by_name = {
        name: [
            statistics.fmean(entry["scores"][place] for entry in record["metrics"][name].values())
            for record in records
            for place in range(len(record["seeds"]))
        ]
        for name in names
    }
    gaps = [record["transfer_gap"] for record in records if record["transfer_gap"] is not None]
    warned = [line for record in records for line in record["warnings"] if line.startswith("seed ")]
    marks = [AT_CHANCE] * any(" at chance" in line or " is 0 in " in line for line in warned)
    marks += [TUNED] * any(record["protocol"]["fine_tuned_before"] for record in records)
    return {
        "scores": {name: summary(scores) for name, scores in by_name.items()},
        "score": summary([statistics.fmean(of_seed) for of_seed in zip(*by_name.values(), strict=True)]),
        "languages": {
            language: statistics.fmean(
                statistics.fmean(record["metrics"][name][language]["mean"] for name in names) for record in records
            )
            for language in first["languages"]
        },
        "setting": first["setting"] + (", plug-in" if first["protocol"].get("plug_in") else ""),
        "seeds": [seed for record in records for seed in record["seeds"]],
        "is_trained": _is_trained(first),
        "transfer_gap": statistics.fmean(gaps) if gaps else None,
        "init_from": first["model"].get("init_from"),
        "fine_tuned_before": first["protocol"]["fine_tuned_before"],
        "evaluated_rows": sum(first["protocol"]["evaluated_rows"].values()),
        "marks": marks,
    }


def average(tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean over tasks, seed by seed where all that are trained have the same seeds; else of their means alone.

    What trains nothing counts for every seed, unless it has a score of each.
    """
    seeds = {tuple(task["seeds"]) for task in tasks if task["is_trained"]} or {tuple(tasks[0]["seeds"])}
    if len(seeds) > 1:
        return {"scores": [], "mean": statistics.fmean(task["score"]["mean"] for task in tasks), "sd": None}
    places = range(len(next(iter(seeds))))

    def of_seed(task: dict[str, Any], place: int) -> float:
        return task["score"]["scores"][place] if tuple(task["seeds"]) in seeds else task["score"]["mean"]

    return summary([statistics.fmean(of_seed(task, place) for task in tasks) for place in places])


def published_rows(suite: dict[str, Any], measured: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The published rows of a suite with what they print for its tasks: [score, ...] each, None where there is none.

    `differs` says by task, in a few words, how they were measured otherwise than ours, `measured` by task.
    """
    from finetuning.results.published_rows import marks_in_suite
    from zoo_core.published import find, load

    rows = []
    for asked in suite["published"]:
        table, row = find(asked["paper"], asked["table"], asked["row"])
        if table.columns_are != "tasks":
            raise ValueError(
                f"{asked['table']} of {asked['paper']} has a column for each of its {table.columns_are}. Its rows "
                "cannot stand below a table of tasks. Name one whose columns are tasks."
            )
        found = [table.scores(row, metric) for metric in table.metrics]
        tasks = {task["name"]: [of[task["name"]] for of in found if task["name"] in of] for task in suite["tasks"]}
        differs = {
            task["name"]: marks_in_suite(task, measured[task["name"]], table, row)
            for task in suite["tasks"]
            if tasks[task["name"]] and task["name"] in measured
        }
        overall = next(iter(row.average.values()), None)
        is_partial = set(table.columns) != {task["name"] for task in suite["tasks"]}
        names = {"paper": load(asked["paper"]).paper, "is_partial": is_partial}
        rows.append({**asked, **names, "tasks": tasks, "differs": differs, "average": overall})
    return rows


def score_table(report: dict[str, Any]) -> Table:
    """Header and rows as papers print it: runs, then published rows; tasks, averages of categories and of all."""
    suite = report["suite"]
    names = [task["name"] for task in suite["tasks"]]
    categories = _by_category(suite)
    columns = ["model", *names, *(f"avg. {name}" for name in categories), "average"]

    def cell(entry: dict[str, Any] | None) -> str:
        if entry is None:
            return ""
        parts = entry.get("scores", {})
        shown = " / ".join(map(with_deviation, parts.values())) if isinstance(parts, dict) else with_deviation(entry)
        return shown + "".join(entry.get("marks", []))

    rows = []
    for name, run in report["runs"].items():
        mark = PARTIAL if run["missing"] else ""
        rows.append(
            [
                name,
                *(cell(run["tasks"].get(task)) for task in names),
                *(cell(run["categories"].get(category)) for category in categories),
                cell(run["average"]) + mark,
            ]
        )
    for row in report["published"]:
        cells = [" / ".join(f"{score:.1f}" for score in row["tasks"].get(task, [])) for task in names]
        marks = [", ".join(row["differs"].get(task, [])) for task in names]
        cells = [f"{cell} [{mark}]" if mark else cell for cell, mark in zip(cells, marks, strict=True)]
        overall = "" if row["average"] is None else f"{row['average']:.1f}" + PARTIAL * row["is_partial"]
        rows.append([f"{row['row']} ({row['paper']}, {row['table']})", *cells, *[""] * len(categories), overall])
    return columns, rows


def screen_table(report: dict[str, Any]) -> Table:
    """The same with a row a task, each category's average below its tasks: it fits a screen."""
    header, rows = score_table(report)
    places = {name: place for place, name in enumerate(header)}
    names = []
    for category, tasks in _by_category(report["suite"]).items():
        names += [*tasks, *([f"avg. {category}"] if tasks[1:] else [])]
    columns = ["task", *(row[0] for row in rows)]
    return columns, [[name, *(row[places[name]] for row in rows)] for name in [*names, "average"]]


def _by_category(suite: dict[str, Any]) -> dict[str, list[str]]:
    """The names of the tasks of each category."""
    categories: dict[str, list[str]] = {}
    for task in suite["tasks"]:
        categories.setdefault(task["category"], []).append(task["name"])
    return categories


def task_table(run: dict[str, Any]) -> Table:
    """Header and rows: a task each, with what a reader needs to know of its score."""
    rows = []
    for name, task in run["tasks"].items():
        gap = "" if task["transfer_gap"] is None else f"{task['transfer_gap']:.1f}"
        start = task["init_from"]
        rows.append(
            [
                name,
                ", ".join(f"{metric} {with_deviation(entry)}" for metric, entry in task["scores"].items()),
                gap,
                task["setting"],
                str(len(task["languages"])),
                f"{task['evaluated_rows']:,}",
                ", ".join(map(str, task["seeds"])),
                f"{start['task']}, seed {start['seed']}" if start else ", ".join(task["fine_tuned_before"]),
            ]
        )
    return ["task", "scores", "gap", "setting", "languages", "rows", "seeds", "fine-tuned before"], rows


def footnotes(table: Table) -> list[str]:
    """What the marks that occur in the table mean."""
    text = "".join(cell for row in table[1] for cell in row)
    return [f"{mark} {meaning}" for mark, meaning in FOOTNOTES.items() if mark in text]


def to_markdown(report: dict[str, Any], picture: str) -> str:
    """The report as a Markdown page."""
    table = score_table(report)
    lines = [
        f"# {report['suite']['name']}",
        "",
        *markdown_table(table),
        "",
        *(f"{line}  " for line in footnotes(table)),
    ]
    for name, run in report["runs"].items():
        lines += ["", f"## {name}", "", *markdown_table(task_table(run)), "", *markdown_table(language_table(run))]
        if run["missing"]:
            reasons = report.get("left_out", {})
            lines += [
                "",
                *(f"- not run: {task}" + (f": {reasons[task]}" if task in reasons else "") for task in run["missing"]),
            ]
    for heading, entries in (("What differs between the runs", "differences"), ("Warnings", "warnings")):
        lines += ["", f"## {heading}", "", *(f"- {line}" for line in report[entries])] if report[entries] else []
    lines += ["", "Each task's protocol stands in the results.md of its own folder.", "", f"![scores]({picture})", ""]
    return "\n".join(lines)


def to_rows(runs: Results) -> list[dict[str, Any]]:
    """A row for each run, task, metric, language and seed, with the columns that all kinds of task have."""
    shared = ("model", "task", "setting", "language", "seed", "metric", "score", "split")
    return [
        {"run": name, **{column: row[column] for column in shared}}
        for name, results in runs.items()
        for records in results.values()
        for record in records
        for row in MODULES[record["kind"]].to_rows(record)
        if row.get("reported", True)
    ]


def write(report: dict[str, Any], runs: Results, folder: Path, name: str) -> None:
    """Writes <name>.json, <name>.md, <name>.csv and <name>.png into a folder."""
    write_files(report, to_markdown(report, f"{name}.png"), to_rows(runs), folder, name)
    plot(report, folder / f"{name}.png")


def show(report: dict[str, Any], written: str) -> None:
    """The table, what its marks mean, the warnings and what was written where, on the screen."""
    table = screen_table(report)
    print_table(report["suite"]["name"], table, [*footnotes(table), *report["warnings"]], written)


def plot(report: dict[str, Any], path: Path) -> None:
    """Bars by task and run, with every seed and the published figures; below, each run's score by task and language."""
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt

    runs = {name: run for name, run in report["runs"].items() if run["tasks"]}
    tasks = [
        task["name"] for task in report["suite"]["tasks"] if any(task["name"] in run["tasks"] for run in runs.values())
    ]
    maps = {name: language_map(run) for name, run in runs.items()}
    maps = {name: (languages, cells) for name, (languages, cells) in maps.items() if languages}
    heights = [3.6, *(0.8 + 0.3 * len(cells) for _, cells in maps.values())]
    figure, panels = plt.subplots(
        len(heights),
        1,
        figsize=(max(7.0, 1.1 * len(tasks) + 2), sum(heights)),
        layout="constrained",
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
    )
    bars, *grids = panels[:, 0]
    width = 0.8 / len(runs)
    for number, (name, run) in enumerate(runs.items()):
        shown = [task for task in tasks if task in run["tasks"]]
        places = [tasks.index(task) + (number - (len(runs) - 1) / 2) * width for task in shown]
        entries = [run["tasks"][task]["score"] for task in shown]
        bars.bar(places, [entry["mean"] for entry in entries], width, label=name)
        for place, entry in zip(places, entries, strict=True):
            if entry["scores"][1:]:
                bars.plot([place] * len(entry["scores"]), entry["scores"], "k.", markersize=4)
    for number, row in enumerate(report["published"]):
        shown = [task for task in tasks if row["tasks"].get(task)]
        heights_of = [statistics.fmean(row["tasks"][task]) for task in shown]
        label = f"{row['row']} ({row['paper']})"
        marker = "DosP^v"[number % 6]
        bars.plot([tasks.index(task) for task in shown], heights_of, marker, markeredgecolor="white", label=label)
    bars.set_xticks(range(len(tasks)), tasks)
    bars.set_ylim(0, 100)
    bars.set_ylabel("score (%)")
    bars.spines[["top", "right"]].set_visible(False)
    bars.legend(loc="lower center", bbox_to_anchor=(0.5, 1), fontsize=7, ncols=2, frameon=False)
    for axes, (name, (languages, cells)) in zip(grids, maps.items(), strict=True):
        values = [[cells[task].get(language, float("nan")) for language in languages] for task in cells]
        axes.imshow(values, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                if value == value:  # no score for this language otherwise
                    axes.text(
                        x, y, f"{value:.0f}", ha="center", va="center", fontsize=7, color="w" if value < 60 else "k"
                    )
        axes.set_xticks(range(len(languages)), languages, fontsize=8)
        axes.set_yticks(range(len(cells)), list(cells), fontsize=8)
        axes.set_title(f"{name}: score by language", fontsize=9)
    figure.suptitle(report["suite"]["name"], fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def language_map(run: dict[str, Any]) -> tuple[list[str], dict[str, dict[str, float]]]:
    """The languages, and scores by task and language; of a pair with English, as de-en, by the other one."""
    cells = {
        name: {language.removesuffix("-en").removeprefix("en-"): score for language, score in task["languages"].items()}
        for name, task in run["tasks"].items()
    }
    return list(dict.fromkeys(language for scores in cells.values() for language in scores)), cells


def language_table(run: dict[str, Any]) -> Table:
    """Header and rows: a language each, with its score in every task."""
    languages, cells = language_map(run)
    shown = {name: {language: f"{score:.1f}" for language, score in scores.items()} for name, scores in cells.items()}
    return ["language", *shown], [
        [language, *(of.get(language, "") for of in shown.values())] for language in languages
    ]


if __name__ == "__main__":
    main()
