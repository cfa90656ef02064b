"""Results of a translation run: results.json and what is made from it, with BLEU over the steps.

The layout is that of `finetuning.results.by_language`, with language pairs where it has languages. The main score is
sacreBLEU; `metrics` holds the others.
"""

import dataclasses
import statistics
from pathlib import Path
from typing import Any

from finetuning.results.by_language import published_notes
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
from finetuning.tasks.translation.recipe import PublishedTranslation, TranslationRecipe

METRICS = {"sacrebleu": "sacreBLEU", "bleu": "BLEU (tokenized, case-insensitive)", "chrf": "chrF"}
RATIO_OF_ALARM = 0.5  # of the translations' length to the references': below, or above its inverse, something is wrong


def build_results(
    recipe: TranslationRecipe,
    model: dict[str, Any],
    protocol: dict[str, Any],
    records: list[dict[str, Any]],
    warnings: list[str],
) -> dict[str, Any]:
    """The record of one task: one entry of results.json (ARCHITECTURE.md, "Results"), by pair in place of language.

    `records` are the seeds' scores.json. Standard deviations are over seeds (n - 1), None for a single one.
    """
    pairs = list(records[0]["scores"])
    by_metric = {
        name: {pair: summary([record["all_scores"][pair][name] for record in records]) for pair in pairs}
        for name in METRICS
    }
    averages = [statistics.fmean(record["scores"].values()) for record in records]
    return {
        "format": FORMAT,
        "model": {**model, "parameters": records[0]["parameters"]},
        "task": recipe.task,
        "kind": recipe.kind,
        "setting": "supervised",
        "source_language": recipe.source_language,
        "target_language": recipe.target_language,
        "seeds": [record["seed"] for record in records],
        "hyperparameters": {
            **dataclasses.asdict(recipe.training),
            "initialize": recipe.initialize,
            **records[0]["decoder"],  # of the model: where it has a decoder already, the recipe does not say
            "generation": dataclasses.asdict(recipe.generation),
            "updates": [record["steps"] for record in records],
        },
        "protocol": with_outcomes(
            protocol, records, signatures={pair: records[0]["all_scores"][pair]["signatures"] for pair in pairs}
        ),
        "languages": by_metric["sacrebleu"],
        "metrics": by_metric,
        "average": summary(averages),
        "source_score": None,
        "transfer_gap": None,
        "curve": {str(record["seed"]): record["curve"] for record in records},
        "published": _published(recipe.published, pairs),
        "warnings": [*warnings, *_protocol_warnings(recipe), *_length_warnings(records)],
    }


def _published(published: PublishedTranslation | None, pairs: list[str]) -> dict[str, Any] | None:
    """The published figures of the evaluated pairs."""
    if published is None:
        return None
    figures = {name: getattr(published, name) for name in ("sacrebleu", "bleu")}
    figures = {name: {pair: scores[pair] for pair in pairs if pair in scores} for name, scores in figures.items()}
    return {
        "paper": published.paper,
        "table": published.table,
        "row": published.row,
        "languages": figures["sacrebleu"],
        "bleu": figures["bleu"],
        "average": None,
        "average_over": list(published.sacrebleu),
        "note": published.note,
    }


def _protocol_warnings(recipe: TranslationRecipe) -> list[str]:
    warnings = []
    for table in recipe.test:
        if table.note:
            warnings.append(table.note)
        if not Path(table.path).is_file() and table.split != "test":
            warnings.append(f"evaluated on {table.path}, split {table.split}: not comparable with figures on test")
    if recipe.max_test_examples:
        warnings.append(f"at most {recipe.max_test_examples} pairs of each test were evaluated, drawn at random")
    if recipe.max_train_examples:
        warnings.append(f"at most {recipe.max_train_examples} training pairs were used, drawn at random")
    return warnings + published_notes([recipe.published] if recipe.published else [])


def _length_warnings(records: list[dict[str, Any]]) -> list[str]:
    """Translations of half the references' length, or twice: of a model that stops at once, or never."""
    return [
        f"seed {record['seed']}: translations of {pair} have {scores['length_ratio']:.2f} times the references' length"
        for record in records
        for pair, scores in record["all_scores"].items()
        if not RATIO_OF_ALARM <= scores["length_ratio"] <= 1 / RATIO_OF_ALARM
    ]


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Writes results.json, results.md, results.csv and, where there is a curve, bleu.png into a folder."""
    if any(results["curve"].values()):
        plot_curve(results, folder / "bleu.png")
    write_files(results, to_markdown(results), to_rows(results), folder)


def to_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a pair, metric and seed, so that tables of several runs can simply be joined."""
    return [
        {
            "model": results["model"]["folder"],
            "task": results["task"],
            "setting": results["setting"],
            "language": pair,
            "seed": seed,
            "metric": metric,
            "score": score,
            "split": results["protocol"]["evaluated_split"],
            "max_length": results["protocol"]["max_length"],
            "selection": results["protocol"]["selection"]["rule"],
        }
        for metric, pairs in results["metrics"].items()
        for pair, entry in pairs.items()
        for seed, score in zip(results["seeds"], entry["scores"], strict=True)
    ]


def score_table(results: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table that Markdown and screen show: pairs and metrics."""
    published, seeds = results["published"], results["seeds"]
    columns = ["pair", "metric", "score", *([f"seed {n}" for n in seeds] if seeds[1:] else [])]
    columns += [f"{published['paper']}, {published['table']}, {published['row']}"] if published else []
    rows = []
    for pair in results["languages"]:
        for metric, name in METRICS.items():
            entry = results["metrics"][metric][pair]
            row = [pair, name, with_deviation(entry)]
            row += [f"{score:.1f}" for score in entry["scores"]] if seeds[1:] else []
            if published:
                figures = {"sacrebleu": published["languages"], "bleu": published["bleu"]}.get(metric, {})
                row.append(f"{figures[pair]:.1f}" if pair in figures else "")
            rows.append(row)
    return columns, rows


def protocol_lines(results: dict[str, Any], with_model: bool = True) -> list[str]:
    """How the figures came about, one fact a line."""
    protocol, settings = results["protocol"], results["hyperparameters"]
    selection = protocol["selection"]
    rule = {
        "last": "the last step",
        "dev_loss": "best loss on dev",
        "dev_bleu": "best BLEU on dev",
        "average": "mean of the last checkpoints",
    }[selection["rule"]]
    steps = "; ".join(str(step).strip("[]") for step in selection["selected_steps"])
    long, empty = protocol["too_long"], sum(protocol["empty_pairs_left_out"]["train"].values())
    beams, penalty = settings["generation"]["beams"], settings["generation"]["length_penalty"]
    lines = [
        f"training data: {table_names(protocol['training_data'])} ({protocol['training_rows']:,} pairs; left out: "
        f"{empty} with an empty side" + (f", {long['train']} too long)" if long["rule"] == "drop" else ")"),
        f"evaluated: {table_names(protocol['evaluation_data'])} "
        f"({sum(protocol['evaluated_rows'].values()):,} pairs; {sum(long['test_sources'].values())} sources cut at "
        f"{protocol['max_source_length']} tokens)",
        f"updates: {', '.join(map(str, settings['updates']))}, of {settings['max_tokens']:,} tokens each",
        f"selection: {rule} (step {steps})",
        f"generation: {beams} beams, length penalty {penalty}",
        f"fine-tuned before: {', '.join(protocol['fine_tuned_before']) or 'on nothing'}",
    ]
    for pair, signatures in protocol["metric"]["signatures"].items():
        lines += [f"{METRICS[name]} {pair}: {signature}" for name, signature in signatures.items()]
    lines.append(f"seeds: {', '.join(map(str, results['seeds']))}; weights at the start: {settings['initialize']}")
    if with_model:
        lines.append(f"model: {results['model']['folder']} ({results['model']['fingerprint'][:19]})")
    return lines


def to_markdown(results: dict[str, Any]) -> str:
    """The results as a Markdown page: table, warnings, protocol."""
    picture = "[development pairs over updates](bleu.png)" if any(results["curve"].values()) else None
    title, protocol = f"{results['task']}, translation", protocol_lines(results)
    return markdown_page(title, score_table(results), results["warnings"], protocol, picture)


def print_results(results: dict[str, Any], folder: Path) -> None:
    """The table, the warnings and where everything is, on the screen."""
    plot = ", bleu.png" if any(results["curve"].values()) else ""
    title = f"{results['task']}, translation: {results['model']['folder']}"
    written = f"{folder}/results.json, results.md, results.csv{plot}"
    print_table(title, score_table(results), results["warnings"], written, names=2)


def plot_curve(results: dict[str, Any], path: Path) -> None:
    """BLEU on dev over the steps, one line a seed; the loss, where dev was not translated."""
    import matplotlib

    matplotlib.use("Agg")  # there may be no screen
    import matplotlib.pyplot as plt

    points = [point for curve in results["curve"].values() for point in curve]
    quantity = "bleu" if any(point["bleu"] is not None for point in points) else "loss"
    figure, axes = plt.subplots(figsize=(6.0, 3.8), layout="constrained")
    for seed, curve in results["curve"].items():
        shown = [point for point in curve if point[quantity] is not None]
        axes.plot([p["step"] for p in shown], [p[quantity] for p in shown], marker=".", label=f"seed {seed}")
    axes.set_xlabel("updates")
    axes.set_ylabel("sacreBLEU on dev" if quantity == "bleu" else "loss on dev (nats per token)")
    figure.suptitle(f"{results['task']}: {results['model']['folder']}", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
