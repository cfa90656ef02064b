"""Results by language of every kind but translation: results.json and what is made from it, with a plot.

A figure without its setting, split, length and selection rule cannot be compared: every result carries them. Scores
are in percent, with all their digits in the JSON; where there are several seeds each is kept.
"""

import dataclasses
import math
import statistics
from pathlib import Path
from typing import Any

from finetuning.recipe import Published, Recipe
from finetuning.results.files import (
    FORMAT,
    markdown_page,
    print_table,
    summary,
    table_names,
    with_deviation,
    with_outcomes,
    write_files,
)
from finetuning.results.published_rows import column_title


def build_results(
    recipe: Recipe,
    model: dict[str, Any],
    protocol: dict[str, Any],
    records: list[dict[str, Any]],
    warnings: list[str],
) -> dict[str, Any]:
    """The record of one task: one entry of results.json (ARCHITECTURE.md, "Results").

    `records` are the seeds' scores.json. The transfer gap is the source language's score minus the mean of the
    others; standard deviations are over seeds (n - 1), None for a single one.
    """
    languages = list(records[0]["scores"])
    main = records[0]["metric"]["name"]
    all_scores = [
        record.get("all_scores") or {name: {main: score} for name, score in record["scores"].items()}
        for record in records
    ]
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
        "metrics": {
            name: {language: summary([scores[language][name] for scores in all_scores]) for language in languages}
            for name in all_scores[0][languages[0]]
        },
        "average": summary(averages),
        "source_score": source_score,
        "transfer_gap": gap,
        "published": published_figures(recipe.published, languages),
        "warnings": [
            *warnings,
            *(_chance_warnings(records, protocol) if "majority_share" in protocol else _zero_warnings(records)),
            *_protocol_warnings(recipe, languages),
        ],
    }


def published_figures(published: Published | None, languages: list[str]) -> dict[str, Any] | None:
    """The published figures of the evaluated languages; the average only where it is over the same languages."""
    if published is None:
        return None
    over = list(published.average_over or published.languages)
    return {
        "paper": published.paper,
        "table": published.table,
        "row": published.row,
        "languages": {name: published.languages[name] for name in languages if name in published.languages},
        "further": {
            metric: {name: scores[name] for name in languages if name in scores}
            for metric, scores in published.further.items()
        },
        "average": published.average if set(over) == set(languages) else None,
        "average_over": over,
        **({"pooling": published.pooling} if hasattr(published, "pooling") else {}),
        "note": published.note,
    }


def published_notes(published: list[Published]) -> list[str]:
    """What a reader must know of the published figures."""
    return list(dict.fromkeys(f"published, {item.paper}, {item.table}: {item.note}" for item in published if item.note))


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


def _zero_warnings(records: list[dict[str, Any]]) -> list[str]:
    """Scores of 0 by seed, of a kind of task at which no guess scores: nothing at all was found."""
    return [
        f"seed {record['seed']}: {record['metric']['name']} is 0 in {', '.join(zero)}"
        for record in records
        if (zero := [language for language, score in record["scores"].items() if score == 0])
    ]


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
            warnings.append(
                f"evaluated on {table.path}, split {table.split}: comparable with figures on that split alone"
            )
    if recipe.max_evaluation_examples:
        warnings.append(f"at most {recipe.max_evaluation_examples} rows per language were evaluated, drawn at random")
    if recipe.max_train_examples:
        warnings.append(f"at most {recipe.max_train_examples} training rows were used, drawn at random")
    if recipe.setting == "zero_shot" and languages == [recipe.source_language]:
        warnings.append(
            f"evaluated in {recipe.source_language} alone, the language of training: nothing is transferred, as in "
            "setting=supervised"
        )
    if recipe.source_language not in languages:
        warnings.append(f"the source language {recipe.source_language} was not evaluated: there is no transfer gap")
    if recipe.published:
        over = recipe.published.average_over or recipe.published.languages
        if absent := [name for name in over if name not in languages]:
            warnings.append(f"the published average is over languages that were not evaluated: {', '.join(absent)}")
        warnings += published_notes([recipe.published])
    return warnings


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Writes results.json, results.md, results.csv and scores.png into a folder."""
    plot_scores(results, folder / "scores.png")
    write_files(results, to_markdown(results), to_rows(results), folder)


def _metrics(results: dict[str, Any]) -> dict[str, Any]:
    """Every score by language; results that were written before there were several have one."""
    return results.get("metrics") or {results["protocol"]["metric"]["name"]: results["languages"]}


def to_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a metric, language and seed, so that tables of several runs can simply be joined."""
    return [
        {
            "model": results["model"]["folder"],
            "task": results["task"],
            "setting": results["setting"],
            "plug_in": results["protocol"].get("plug_in", False),
            "translations": results["protocol"].get("translations") or "",
            "language": language,
            "seed": seed,
            "metric": metric,
            "score": score,
            "split": results["protocol"]["evaluated_split"],
            "max_length": results["protocol"]["max_length"],
            "selection": results["protocol"]["selection"]["rule"],
        }
        for metric, languages in _metrics(results).items()
        for language, entry in languages.items()
        for seed, score in zip(results["seeds"], entry["scores"], strict=True)
    ]


def score_table(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows (languages, then average and gap) of the table that Markdown, card and screen show."""
    published, seeds, main = results["published"], results["seeds"], results["protocol"]["metric"]["name"]
    further = {name: scores for name, scores in _metrics(results).items() if name != main}
    figures = {}  # by column
    if published:
        source = column_title(published, results["protocol"])
        figures[source] = published["languages"]
        figures |= {f"{name}: {source}": scores for name, scores in published.get("further", {}).items()}
    columns = ["language", main, *([f"seed {n}" for n in seeds] if seeds[1:] else []), *further, *figures]

    def line(name: str, entry: dict[str, Any], others: list[str], cells: list[float | None]) -> list[str]:
        by_seed = [f"{score:.1f}" for score in entry["scores"]] if seeds[1:] else []
        return [name, with_deviation(entry), *by_seed, *others, *("" if x is None else f"{x:.1f}" for x in cells)]

    rows = []
    for name, entry in results["languages"].items():
        others = [with_deviation(scores[name]) for scores in further.values()]
        rows.append(line(name, entry, others, [scores.get(name) for scores in figures.values()]))
    means = [f"{statistics.fmean(entry['mean'] for entry in scores.values()):.1f}" for scores in further.values()]
    average = [published["average"], *[None] * (len(figures) - 1)] if published else []
    rows.append(line("**average**", results["average"], means, average))
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
    cut, split = (sum(sum(c.values()) for c in protocol.get(key, {}).values()) for key in ("cut_texts", "split_texts"))
    name, module, version = (protocol["metric"][key] for key in ("name", "module", "version"))
    name += f" of {module}" if module != name else ""
    lines = [
        f"setting: {results['setting']}, trained on {_trained_on(results)}",
        f"training data: {table_names(protocol['training_data'])} ({protocol['training_rows']:,} rows)",
        f"evaluated: {table_names(protocol['evaluation_data'])}",
        f"selection: {rule}" + (f" ({source})" if source else ""),
        *_sweep_lines(selection),
        f"fine-tuned before: {', '.join(protocol['fine_tuned_before']) or 'on nothing'}",
        *_fresh_lines(protocol),
        f"max length: {protocol['max_length']} ({cut} texts cut"
        + (f", {split} split)" if "split_texts" in protocol else ")"),
        f"metric: {name} {version}, in percent",
        f"seeds: {', '.join(map(str, results['seeds']))}",
    ]
    if protocol.get("translations"):
        lines.insert(1, f"translations: {protocol['translations']}")
    if protocol.get("plug_in"):
        lines.insert(1, "plug-in: heads read [H:S] of a text and its translation, and learn from both")
    if protocol.get("differs"):
        lines.append(f"not as in published figures: {', '.join(protocol['differs'])}")
    lines += protocol.get("facts", [])
    if with_model:
        lines.append(f"model: {results['model']['folder']} ({results['model']['fingerprint'][:19]})")
    return lines


def _sweep_lines(selection: dict[str, Any]) -> list[str]:
    """From which hyperparameters the run's were chosen, if from any."""
    if not (sweep := selection.get("sweep")):
        return []
    tried = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in sweep["fields"].items())
    return [f"chosen on the same rows among {sweep['points']} points: {tried} (score there {sweep['score']:.2f})"]


def _fresh_lines(protocol: dict[str, Any]) -> list[str]:
    """What of the model was not read from its folder; older results do not say it."""
    fresh = protocol.get("fresh_parameters")
    if fresh is None:
        return []
    named = f"{fresh['count']:,}, drawn from each seed ({', '.join(fresh['names'])})"
    return [f"fresh parameters: {named if fresh['names'] else 'none, the head was read with the encoder'}"]


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
    for position, entry in enumerate(languages.values()):
        if entry["scores"][1:]:  # every seed: a mean hides one that collapsed
            axes.plot([position] * len(entry["scores"]), entry["scores"], "k.", markersize=4)
    for position, mean in enumerate(means):  # at the foot of the bar, where nothing else is drawn
        axes.text(position, 2, f"{mean:.1f}", ha="center", fontsize=8, color="white")
    axes.axhline(results["average"]["mean"], color="black", linewidth=0.8, linestyle="--", label="average")
    if "majority_share" in results["protocol"]:
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
