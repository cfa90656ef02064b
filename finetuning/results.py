"""Results of a classification run: results.json and what is made from it, with a plot of the scores.

A figure without its setting, split, length and selection rule cannot be compared: every result carries them. Scores
are in percent, with all their digits in the JSON; where there are several seeds each is kept.
"""

import dataclasses
import math
import statistics
from pathlib import Path
from typing import Any

from finetuning.recipe import Published, Recipe
from finetuning.result_files import (
    FORMAT,
    markdown_page,
    print_table,
    summary,
    table_names,
    with_deviation,
    with_outcomes,
    write_files,
)


def build_results(
    recipe: Recipe,
    model: dict[str, Any],
    protocol: dict[str, Any],
    records: list[dict[str, Any]],
    warnings: list[str],
) -> dict[str, Any]:
    """The record of one task: one entry of results.json (DESIGN.md, "results.json").

    `records` are the seeds' scores.json. The transfer gap is the source language's score minus the mean of the
    others; standard deviations are over seeds (n - 1), None for a single one.
    """
    languages = list(records[0]["scores"])
    by_language = {language: summary([record["scores"][language] for record in records]) for language in languages}
    averages = [statistics.fmean(record["scores"].values()) for record in records]
    source = recipe.source_language
    others = [statistics.fmean(entry["scores"]) for language, entry in by_language.items() if language != source]
    source_score = by_language[source]["mean"] if source in by_language else None
    gap = source_score - statistics.fmean(others) if source_score is not None and others else None
    hyperparameters = dataclasses.asdict(recipe.training)
    return {
        "format": FORMAT,
        "model": {**model, "parameters": records[0]["parameters"]},
        "task": recipe.task,
        "kind": recipe.kind,
        "setting": recipe.setting,
        "source_language": source,
        "seeds": [record["seed"] for record in records],
        "hyperparameters": {**hyperparameters, "updates": [record["steps"] for record in records]},
        "protocol": with_outcomes(protocol, records),
        "languages": by_language,
        "average": summary(averages),
        "source_score": source_score,
        "transfer_gap": gap,
        "published": _published(recipe.published, languages),
        "warnings": [
            *warnings,
            *_chance_warnings(records, protocol),
            *_protocol_warnings(recipe, languages),
        ],
    }


def _published(published: Published | None, languages: list[str]) -> dict[str, Any] | None:
    """The published figures of the evaluated languages; the average only where it is over the same languages."""
    if published is None:
        return None
    over = list(published.languages or published.average_over)
    return {
        "paper": published.paper,
        "table": published.table,
        "row": published.row,
        "languages": {name: published.languages[name] for name in languages if name in published.languages},
        "average": published.average if set(over) == set(languages) else None,
        "average_over": over,
    }


def _chance_warnings(records: list[dict[str, Any]], protocol: dict[str, Any]) -> list[str]:
    """Accuracy not two standard errors above guessing, by seed: some seeds collapse, and a mean hides it.

    Guessing is the better of drawing a label at random and always giving the commonest one.
    """
    warnings = []
    for record in records:
        at_chance = []
        for language, score in record["scores"].items():
            guess = max(protocol["majority_share"][language], 1 / len(protocol["labels"]))
            error = math.sqrt(guess * (1 - guess) / protocol["evaluated_rows"][language])
            if score / 100 <= guess + 2 * error:
                at_chance.append(f"{language} {score:.1f} (guessing: {100 * guess:.1f})")
        if at_chance:
            warnings.append(f"seed {record['seed']}: accuracy is at chance in {', '.join(at_chance)}")
    return warnings


def setting_name(results: dict[str, Any]) -> str:
    """The setting as headings name it: plug-in and plug-out runs of one setting are two experiments."""
    return results["setting"] + (", plug-in" if results["protocol"].get("plug_in") else "")


def _trained_on(results: dict[str, Any]) -> str:
    """The languages of the training rows."""
    if results["setting"] == "zero_shot":
        return results["source_language"]
    tables = results["protocol"]["training_data"]
    return ", ".join(dict.fromkeys(language for table in tables for language in table["languages"]))


def _protocol_warnings(recipe: Recipe, languages: list[str]) -> list[str]:
    warnings = []
    for table in recipe.evaluation:
        if table.note:
            warnings.append(table.note)
        if table.split != "test":
            warnings.append(f"evaluated on {table.path}, split {table.split}: not comparable with figures on test")
    if recipe.max_evaluation_examples:
        warnings.append(f"at most {recipe.max_evaluation_examples} rows per language were evaluated, drawn at random")
    if recipe.max_train_examples:
        warnings.append(f"at most {recipe.max_train_examples} training rows were used, drawn at random")
    if recipe.source_language not in languages:
        warnings.append(f"the source language {recipe.source_language} was not evaluated: there is no transfer gap")
    if recipe.published:
        over = recipe.published.languages or recipe.published.average_over
        if absent := [name for name in over if name not in languages]:
            warnings.append(f"the published average is over languages that were not evaluated: {', '.join(absent)}")
    return warnings


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Writes results.json, results.md, results.csv and scores.png into a folder."""
    write_files(results, to_markdown(results), to_rows(results), folder)
    plot_scores(results, folder / "scores.png")


def to_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a language and seed, so that tables of several runs can simply be joined."""
    return [
        {
            "model": results["model"]["folder"],
            "task": results["task"],
            "setting": results["setting"],
            "plug_in": results["protocol"].get("plug_in", False),
            "translations": results["protocol"].get("translations") or "",
            "language": language,
            "seed": seed,
            "metric": results["protocol"]["metric"]["name"],
            "score": score,
            "split": results["protocol"]["evaluated_split"],
            "max_length": results["protocol"]["max_length"],
            "selection": results["protocol"]["selection"]["rule"],
        }
        for language, entry in results["languages"].items()
        for seed, score in zip(results["seeds"], entry["scores"], strict=True)
    ]


def score_table(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows (languages, then average and gap) of the table that Markdown, card and screen show."""
    published, seeds = results["published"], results["seeds"]
    columns = ["language", results["protocol"]["metric"]["name"], *([f"seed {n}" for n in seeds] if seeds[1:] else [])]

    def line(name: str, entry: dict[str, Any], figure: float | None) -> list[str]:
        by_seed = [f"{score:.1f}" for score in entry["scores"]] if seeds[1:] else []
        return [name, with_deviation(entry), *by_seed, *([f"{figure:.1f}" if figure is not None else ""] * has_figures)]

    has_figures = int(published is not None)
    columns += [f"{published['paper']}, {published['table']}, {published['row']}"] if published else []
    figures = published["languages"] if published else {}
    rows = [line(name, entry, figures.get(name)) for name, entry in results["languages"].items()]
    rows.append(line("**average**", results["average"], published["average"] if published else None))
    if results["transfer_gap"] is not None:
        blank = [""] * (len(columns) - 2)
        rows.append([f"gap ({results['source_language']} - mean of others)", f"{results['transfer_gap']:.1f}", *blank])
    return columns, rows


def protocol_lines(results: dict[str, Any], with_model: bool = True) -> list[str]:
    """How the figures came about, one fact a line."""
    protocol = results["protocol"]
    selection = protocol["selection"]
    rule = {
        "last": "the last checkpoint",
        "source_dev": f"best on development rows of {results['source_language']}",
        "mean_dev": "best on the mean over all languages' development rows",
    }[selection["rule"]]
    data = selection["data"]
    source = data if isinstance(data, str) else table_names(data or [])
    cut = sum(sum(counts.values()) for counts in protocol["cut_texts"].values())
    lines = [
        f"setting: {results['setting']}, trained on {_trained_on(results)}",
        f"training data: {table_names(protocol['training_data'])} ({protocol['training_rows']:,} rows)",
        f"evaluated: {table_names(protocol['evaluation_data'])}",
        f"selection: {rule}" + (f" ({source})" if source else ""),
        f"fine-tuned before: {', '.join(protocol['fine_tuned_before']) or 'on nothing'}",
        f"max length: {protocol['max_length']} ({cut} texts cut)",
        f"metric: {protocol['metric']['name']} {protocol['metric']['version']}, in percent",
        f"seeds: {', '.join(map(str, results['seeds']))}",
    ]
    if protocol.get("translations"):
        lines.insert(1, f"translations: {protocol['translations']}")
    if protocol.get("plug_in"):
        lines.insert(1, "plug-in: heads read [H:S] of a text and its translation, and learn from both")
    if with_model:
        lines.append(f"model: {results['model']['folder']} ({results['model']['fingerprint'][:19]})")
    return lines


def to_markdown(results: dict[str, Any]) -> str:
    """The results as a Markdown page: table, warnings, protocol."""
    title, protocol = f"{results['task']}, {setting_name(results)}", protocol_lines(results)
    picture = "[scores by language](scores.png)"
    return markdown_page(title, score_table(results), results["warnings"], protocol, picture)


def print_results(results: dict[str, Any], folder: Path) -> None:
    """The table, the warnings and where everything is, on the screen."""
    title = f"{results['task']}, {setting_name(results)}: {results['model']['folder']}"
    written = f"{folder}/results.json, results.md, results.csv, scores.png"
    print_table(title, score_table(results), results["warnings"], written)


def plot_scores(results: dict[str, Any], path: Path) -> None:
    """Bars by language with the seeds' standard deviation, the average, chance and the published figures."""
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt

    languages = results["languages"]
    names = list(languages)
    means = [entry["mean"] for entry in languages.values()]
    deviations = [entry["sd"] or 0.0 for entry in languages.values()]
    colors = ["#d98324" if name == results["source_language"] else "#3c6e91" for name in names]
    figure, axes = plt.subplots(figsize=(max(5.0, 0.55 * len(names) + 3.0), 3.8), layout="constrained")
    axes.bar(names, means, yerr=deviations if len(results["seeds"]) > 1 else None, color=colors, capsize=3)
    for position, mean in enumerate(means):  # at the foot of the bar, where nothing else is drawn
        axes.text(position, 2, f"{mean:.1f}", ha="center", fontsize=8, color="white")
    axes.axhline(results["average"]["mean"], color="black", linewidth=0.8, linestyle="--", label="average")
    chance = 100 * max(results["protocol"]["majority_share"].values())
    axes.axhline(chance, color="black", linewidth=0.8, linestyle=":", label="always the commonest label")
    published = (results["published"] or {}).get("languages", {})
    if published:
        shown = [name for name in names if name in published]
        marks = dict(marker="D", linestyle="none", color="#b3261e", markeredgecolor="white", markersize=6)
        axes.plot(shown, [published[name] for name in shown], label="published", **marks)
    axes.set_ylim(0, 100)
    axes.set_ylabel(f"{results['protocol']['metric']['name']} (%)")
    figure.suptitle(f"{results['task']}, {setting_name(results)} (trained on {_trained_on(results)})", fontsize=10)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), fontsize=8, ncols=3, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
