"""A whole benchmark in one table: one column per task, averages of categories and of all tasks, one row per model.

A column holds only scores that were measured in the same way: on the same rows, cut at the same length, with the same
version of the same metric. Other runs are an error. Models may differ in their setting, and in what they were
fine-tuned on before; the table marks this.
"""

import statistics
from pathlib import Path
from typing import Any

import pandas

from finetuning.published import find, load
from finetuning.results.differences import check_protocols, differences, join_seeds, warnings_of
from finetuning.results.files import Table, markdown_list, markdown_table, print_table
from finetuning.results.plots import plot_bars, plot_heat_maps
from finetuning.results.published_rows import OTHERWISE, marks_in_suite
from finetuning.results.table import (
    AVERAGE,
    FORMAT,
    Results,
    Summary,
    load_results,
    mean_of,
    read_results,
    with_deviation,
)
from zoo_core.provenance import write_csv, write_json

KIND = "benchmark"
AT_CHANCE, TUNED, LESS, PARTIAL = "†", "‡", "¶", "§"
FOOTNOTES = {
    AT_CHANCE: "a seed is at chance, or at 0, in a language: see the warnings",
    TUNED: "the model was fine-tuned on another task before this one",
    LESS: "something of this task was left out or has failed: see the warnings",
    PARTIAL: "the average of other tasks",
}

Runs = dict[str, dict[str, Results]]  # by run and task


def read_suite_folders(name: str, folders: list[str]) -> tuple[dict[str, Any], dict[str, Results]]:
    """Returns the definition of the suite in some folders, and by task the results of all folders.

    Raises ValueError for a folder without a suite's results, and for folders of different suites or experiments.
    """
    suites = []
    for folder in folders:
        path = Path(folder) / "results.json"
        content = load_results(path) if path.is_file() else {}
        if content.get("kind") != KIND:
            raise ValueError(f"{folder} holds no results of `finetuning/run.py --suite`. Name folders of suites only.")
        suites.append(content["suite"])
    if any(suite["tasks"] != suites[0]["tasks"] for suite in suites):
        names = ", ".join(suite["name"] for suite in suites)
        raise ValueError(f"--run {name} has folders of different suites: {names}. Give each suite its own --run.")
    by_folder = []
    for folder in folders:
        paths = {task["name"]: Path(folder) / task["name"] for task in suites[0]["tasks"]}
        found = {task: read_results(path) for task, path in paths.items() if (path / "results.json").is_file()}
        check_one_model(folder, found)
        by_folder.append(found)
    joined = {}
    for task in dict.fromkeys(task for found in by_folder for task in found):
        parts = [_with_seeds(found, task) for found in by_folder if task in found]
        if not any(map(is_trained, parts)) and len({part["model"]["fingerprint"] for part in parts}) == 1:
            parts = parts[:1]  # the same model, so the same scores
        joined[task] = join_seeds(f"{name}, {task}", parts)
    return suites[0], joined


def is_trained(results: Results) -> bool:
    """Whether a task fine-tunes the model."""
    return bool(results.protocol.training_data)


def _with_seeds(found: dict[str, Results], task: str) -> Results:
    """Returns the results of a task in one folder.

    A task that trains nothing has seed 1 in every folder. It gets the one seed of the folder's other tasks, if any.
    """
    results = found[task]
    seeds = {tuple(other["seeds"]) for other in found.values() if is_trained(other)}
    if is_trained(results) or len(results["seeds"]) > 1 or len(seeds) != 1 or len(min(seeds)) != 1:
        return results
    (seed,) = min(seeds)
    return Results({**results, "seeds": [seed], "scores": [{**row, "seed": seed} for row in results["scores"]]})


def check_one_model(folder: str, found: dict[str, Results]) -> None:
    """Raises ValueError if the tasks of a folder were run with different models."""
    if len({frozenset(results["model"]["fingerprint"].split("+")) for results in found.values()}) > 1:
        names = "; ".join(f"{task}: {results['model']['folder']}" for task, results in found.items())
        raise ValueError(
            f"The tasks in {folder} were not run with the same model ({names}). Use one output_dir per model."
        )


def build(suites: dict[str, dict[str, Any]], runs: Runs, left_out: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns the content of benchmark.json: each run's scores by task, averages, warnings, and the published rows.

    `suites` has the suites' definitions by run. `left_out` says by task what was not run, and why.

    Raises ValueError if two runs have different tasks, or were not measured in the same way.
    """
    suite, left_out = next(iter(suites.values())), left_out or {}
    for name, other in suites.items():
        if [task["name"] for task in other["tasks"]] != [task["name"] for task in suite["tasks"]]:
            raise ValueError(
                f"{name} has results of suite {other['name']}, and {next(iter(suites))} of {suite['name']}. Compare "
                "runs of one suite."
            )
    differing = []
    for task in suite["tasks"]:
        alike = {name: found[task["name"]] for name, found in runs.items() if task["name"] in found}
        check_protocols(alike)
        lines = differences(alike)
        differing += [f"{task['name']}: {line}" for line in lines if not line.startswith(("model:", "hyperparameters"))]
    measured = {task: results for found in runs.values() for task, results in found.items()}
    named = {f"{run}, {task}" if runs.keys() - {run} else task: r for run, of in runs.items() for task, r in of.items()}
    return {
        "format": FORMAT,
        "kind": KIND,
        "suite": suite,
        "left_out": left_out,
        "runs": {name: _of_run(suite, found, left_out) for name, found in runs.items()},
        "published": published_rows(suite, measured),
        "differences": differing,
        "warnings": [
            *([suite["note"]] if suite.get("note") else []),
            *(f"{task}: {reason}" for task, reason in left_out.items()),
            *warnings_of(named),
        ],
    }


def _of_run(suite: dict[str, Any], found: dict[str, Results], left_out: dict[str, str]) -> dict[str, Any]:
    """Scores of one run by task, by category and on average; averages are over the tasks that have results."""
    tasks = {task["name"]: of_task(task, found[task["name"]]) for task in suite["tasks"] if task["name"] in found}
    for task in tasks.keys() & left_out.keys():
        tasks[task]["marks"].append(LESS)
    members = {name: [tasks[t] for t in names if t in tasks] for name, names in _by_category(suite).items()}
    return {
        "model": next((results["model"] for results in found.values()), None),
        "tasks": tasks,
        "categories": {name: average(own) for name, own in members.items() if own},
        "average": average(list(tasks.values())) if tasks else None,
        "missing": [task["name"] for task in suite["tasks"] if task["name"] not in tasks],
    }


def of_task(task: dict[str, Any], results: Results) -> dict[str, Any]:
    """Returns the scores of a task: the mean over its languages, by seed. Their mean is the task's score, as in XTREME.

    Raises ValueError for a score that the results do not have.
    """
    names = task["scores"] or [results.metric]
    if unknown := [name for name in names if name not in results.metrics]:
        known = ", ".join(results.metrics)
        raise ValueError(
            f"Task {task['name']} of the suite shows {unknown[0]!r}, and its results have {known}. Name one of these."
        )
    scores = {name: mean_of(results.of(language, name) for language in results.names) for name in names}
    protocol = results.protocol
    of_seeds = [line for line in results["warnings"] if line.startswith("seed ")]
    chance = [results.chance(AVERAGE, name) for name in names]
    marks = [AT_CHANCE] * any(" at chance" in line or " is 0 in " in line for line in of_seeds)
    return {
        "scores": scores,
        "score": mean_of(scores.values()),
        "languages": {
            language: statistics.fmean(results.of(language, name)["mean"] for name in names)
            for language in results.languages
        },
        "setting": results.setting,
        "seeds": results["seeds"],
        "is_trained": is_trained(results),
        "chance": None if None in chance else statistics.fmean(chance),
        "transfer_gap": results.transfer_gap,
        "init_from": results["model"].get("init_from"),
        "fine_tuned_before": protocol.fine_tuned_before,
        "evaluated_rows": sum(protocol.evaluated_rows.values()),
        "marks": marks + [TUNED] * bool(protocol.fine_tuned_before),
    }


def average(tasks: list[dict[str, Any]]) -> Summary:
    """Returns the mean over tasks, seed by seed if all tasks that train have the same seeds, or else of the task means.

    A task that trains nothing counts with its score for every seed, unless it has a score for each.
    """
    seeds = {tuple(task["seeds"]) for task in tasks if task["is_trained"]} or {tuple(tasks[0]["seeds"])}
    if len(seeds) > 1:
        return {"scores": [], "mean": statistics.fmean(task["score"]["mean"] for task in tasks), "sd": None}
    count = len(min(seeds))
    scores = [
        task["score"]["scores"] if tuple(task["seeds"]) in seeds else [task["score"]["mean"]] * count for task in tasks
    ]
    return mean_of({"scores": of_task} for of_task in scores)


def published_rows(suite: dict[str, Any], measured: dict[str, Results]) -> list[dict[str, Any]]:
    """Returns the published rows of a suite, with their scores by task: a list each, empty where the row has none.

    `differs` says by task, in a few words, how they were measured in another way than our results, `measured` by task.
    """
    rows = []
    for asked in suite["published"]:
        table, row = find(asked["paper"], asked["table"], asked["row"])
        if table.columns_are != "tasks":
            raise ValueError(
                f"{asked['table']} of {asked['paper']} has columns for {table.columns_are}, not for tasks."
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
    """Returns header and rows as in papers: runs, then published rows; tasks, averages of categories and of all."""
    names = [task["name"] for task in report["suite"]["tasks"]]
    categories = _by_category(report["suite"])
    columns = ["model", *names, *(f"avg. {name}" for name in categories), "average"]

    def task_cell(entry: dict[str, Any] | None) -> str:
        return " / ".join(map(with_deviation, entry["scores"].values())) + "".join(entry["marks"]) if entry else ""

    def average_cell(entry: Summary | None) -> str:
        return with_deviation(entry) if entry else ""

    rows = []
    for name, run in report["runs"].items():
        cells = [task_cell(run["tasks"].get(task)) for task in names]
        for category, members in categories.items():
            cell, missing = average_cell(run["categories"].get(category)), set(members) & set(run["missing"])
            cells.append(cell + PARTIAL if cell and missing else cell)
        rows.append([name, *cells, average_cell(run["average"]) + (PARTIAL if run["missing"] else "")])
    for row in sorted(report["published"], key=lambda row: sum(map(bool, row["differs"].values()))):
        cells = [" / ".join(f"{score:.1f}" for score in row["tasks"].get(task, [])) for task in names]
        marks = [OTHERWISE if row["differs"].get(task) else "" for task in names]
        mark = PARTIAL if row["is_partial"] else OTHERWISE * any(marks)
        overall = "" if row["average"] is None else f"{row['average']:.1f}{mark}"
        cells = [cell + mark for cell, mark in zip(cells, marks, strict=True)]
        rows.append([f"{row['paper']}, {row['table']}: {row['row']}", *cells, *[""] * len(categories), overall])
    return columns, rows


def screen_table(report: dict[str, Any]) -> Table:
    """Returns the same table with one row per task and each category's average below its tasks, which fits a screen."""
    header, rows = score_table(report)
    names = []
    for category, tasks in _by_category(report["suite"]).items():
        names += [*tasks, *([f"avg. {category}"] if tasks[1:] else [])]
    places = [header.index(name) for name in [*names, "average"]]
    return ["task", *(row[0] for row in rows)], [[header[p], *(row[p] for row in rows)] for p in places]


def _by_category(suite: dict[str, Any]) -> dict[str, list[str]]:
    """Returns the names of the tasks of each category."""
    categories: dict[str, list[str]] = {}
    for task in suite["tasks"]:
        categories.setdefault(task["category"], []).append(task["name"])
    return categories


def task_table(tasks: dict[str, dict[str, Any]]) -> Table:
    """Returns header and rows, one per task (`of_task`, by name), with the facts that explain its score."""
    rows = []
    for name, task in tasks.items():
        start = task["init_from"]
        rows.append(
            [
                name,
                ", ".join(f"{metric} {with_deviation(entry)}" for metric, entry in task["scores"].items()),
                "" if task["transfer_gap"] is None else f"{task['transfer_gap']:.1f}",
                task["setting"],
                str(len(task["languages"])),
                f"{task['evaluated_rows']:,}",
                ", ".join(map(str, task["seeds"])),
                f"{start['task']}, seed {start['seed']}" if start else ", ".join(task["fine_tuned_before"]),
            ]
        )
    return ["task", "scores", "gap", "setting", "languages", "rows", "seeds", "fine-tuned before"], rows


def footnotes(table: Table, published: list[dict[str, Any]] | None = None) -> list[str]:
    """Returns what the marks in the table mean, and how `published` rows were measured in another way than ours."""
    text = "".join(cell for row in table[1] for cell in row)
    lines = [f"{mark} {meaning}" for mark, meaning in FOOTNOTES.items() if mark in text]
    by_task: dict[str, dict[str, None]] = {}
    for row in published or []:
        for task, found in row["differs"].items():
            if found:
                by_task.setdefault(task, {})[", ".join(found)] = None
    how = "; ".join(f"{task}: {' / '.join(found)}" for task, found in by_task.items())
    return [*lines, f"{OTHERWISE} measured otherwise than ours: {how}"] if how else lines


def to_markdown(report: dict[str, Any], pictures: list[str]) -> str:
    """Returns the report as a Markdown page."""
    table = score_table(report)
    lines = [f"# {report['suite']['name']}", "", *markdown_table(table), ""]
    lines += [f"{line}  " for line in footnotes(table, report["published"])]
    for name, run in report["runs"].items():
        lines += ["", f"## {name}", "", *markdown_table(task_table(run["tasks"])), ""]
        lines += [*markdown_table(language_table(run["tasks"])), ""]
        for task in run["missing"]:
            reason = report["left_out"].get(task)
            lines.append(f"- not run: {task}" + (f": {reason}" if reason else ""))
    lines += ["", *markdown_list("What differs between the runs", report["differences"])]
    lines += markdown_list("Warnings", report["warnings"])
    lines += ["Each task's protocol is in the results.md of its own folder.", ""]
    return "\n".join([*lines, *(line for picture in pictures for line in (f"![scores]({picture})", ""))])


def write(report: dict[str, Any], runs: Runs, folder: Path, name: str) -> None:
    """Writes <name>.json, <name>.md, <name>.csv and two plots into a folder, and shows the table.

    The CSV has the rows of the reported method and layer.
    """
    pictures = [f"{name}.png", f"{name}-languages.png"]
    title = report["suite"]["name"]
    shown = {run: of["tasks"] for run, of in report["runs"].items() if of["tasks"]}
    groups = {run: {task: entry["score"] for task, entry in tasks.items()} for run, tasks in shown.items()}
    chance = {name: task["chance"] for of in shown.values() for name, task in of.items() if task["chance"] is not None}
    marks = {
        f"{row['paper']}: {row['row']}": {
            task: statistics.fmean(scores)
            for task, scores in row["tasks"].items()
            if scores and not row["differs"].get(task)
        }
        for row in report["published"]
    }
    plot_bars(groups, folder / pictures[0], title, "score (%)", chance=chance, marks=marks)
    maps = {f"{run}: score by language": by_language(tasks) for run, tasks in shown.items()}
    plot_heat_maps(maps, folder / pictures[1], title, "score (%)")
    (folder / f"{name}.md").write_text(to_markdown(report, pictures), encoding="utf-8")
    tables = [_reported(results, run) for run, found in runs.items() for results in found.values()]
    write_csv(folder / f"{name}.csv", pandas.concat(tables))
    write_json(folder / f"{name}.json", report)
    table = screen_table(report)
    notes = [*footnotes(table, report["published"]), *report["warnings"]]
    print_table(title, table, notes, f"{folder}/{name}.json, md, csv, png")


def _reported(results: Results, run: str) -> pandas.DataFrame:
    table = results.frame(run=run)
    for column in ("method", "layer"):
        if column in table:
            table = table[table[column] == getattr(results.protocol, column)]
    return table


def by_language(tasks: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Returns scores by language and task; a pair with English, such as de-en, counts as its other language."""
    found: dict[str, dict[str, float]] = {}
    for name, task in tasks.items():
        for language, score in task["languages"].items():
            found.setdefault(language.removesuffix("-en").removeprefix("en-"), {})[name] = score
    return found


def language_table(tasks: dict[str, dict[str, Any]]) -> Table:
    """Returns header and rows, one per language, with its score in every task."""
    rows = [
        [language, *(f"{of[task]:.1f}" if task in of else "" for task in tasks)]
        for language, of in by_language(tasks).items()
    ]
    return ["language", *tasks], rows
