"""What results of translation say: sacreBLEU by pair, other scores beside it, and BLEU over the steps."""

import dataclasses
from pathlib import Path
from typing import Any

from finetuning.results.files import run_name, table_names
from finetuning.results.plots import plot_lines
from finetuning.results.report import Report, published_figures, published_notes, with_outcomes
from finetuning.results.table import Results
from finetuning.tasks.translation.recipe import TranslationRecipe

METRICS = {"sacrebleu": "sacreBLEU", "bleu": "BLEU (tokenized, case-insensitive)", "chrf": "chrF"}
# by score: which published one it stands for, and whether the two can be compared
STANDS_FOR = {
    "bleu": "stands for multi-bleu.perl -lc on Moses tokens, and is not comparable to a decimal, as its tokens are "
    "sacreBLEU's: compare sacreBLEU where both are published"
}
RATIO_OF_ALARM = 0.5  # of the translations' length to the references': below, or above its inverse, something is wrong


def facts(recipe: TranslationRecipe, protocol: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """See `Report.facts`."""
    pairs, item = list(records[0]["scores"]), recipe.published
    figures = {"sacrebleu": item.sacrebleu, "bleu": item.bleu} if item else {}
    return {
        "setting": "supervised",
        "source_language": recipe.source_language,
        "target_language": recipe.target_language,
        "hyperparameters": {
            **dataclasses.asdict(recipe.training),
            "initialize": recipe.initialize,
            **records[0]["decoder"],  # of the model: where it has a decoder already, the recipe does not say
            "generation": dataclasses.asdict(recipe.generation),
            "updates": [record["steps"] for record in records],
        },
        "protocol": with_outcomes(
            protocol,
            records,
            signatures={pair: records[0]["all_scores"][pair]["signatures"] for pair in pairs},
            stands_for=STANDS_FOR,
        ),
        "curve": {str(record["seed"]): record["curve"] for record in records},
        "published": [published_figures(item, figures, pairs)] if item else [],
        "warnings": [*_protocol_warnings(recipe), *_length_warnings(records)],
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
    if recipe.published and recipe.published.bleu:
        warnings.append(f"BLEU (tokenized) beside published figures {STANDS_FOR['bleu']}")
    return warnings + published_notes([recipe.published] if recipe.published else [])


def _length_warnings(records: list[dict[str, Any]]) -> list[str]:
    """Translations of half the references' length, or twice: of a model that stops at once, or never."""
    return [
        f"seed {record['seed']}: translations of {pair} have {scores['length_ratio']:.2f} times the references' length"
        for record in records
        for pair, scores in record["all_scores"].items()
        if not RATIO_OF_ALARM <= scores["length_ratio"] <= 1 / RATIO_OF_ALARM
    ]


def protocol_lines(results: Results) -> list[str]:
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
    ]
    for pair, signatures in protocol["metric"]["signatures"].items():
        lines += [f"{METRICS[name]} {pair}: {signature}" for name, signature in signatures.items()]
    lines += [f"{METRICS[name]} {words}" for name, words in protocol["metric"]["stands_for"].items()]
    return [*lines, f"weights at the start: {settings['initialize']}"]


def curve_of(results: Results, quantity: str) -> dict[str, dict[int, float]]:
    """`bleu` or `loss` on dev while training, by seed and step; empty where it was not measured."""
    curves = {
        f"seed {seed}": {point["step"]: point[quantity] for point in curve if point[quantity] is not None}
        for seed, curve in results.get("curve", {}).items()
    }
    return {seed: curve for seed, curve in curves.items() if curve}


def plot(results: Results, folder: Path) -> str | None:
    """BLEU on dev over the steps, one line a seed; the loss, where dev was not translated."""
    title = f"{results['task']}: {run_name(results['model']['folder'])}"
    for quantity, label in (("bleu", "sacreBLEU on dev"), ("loss", "loss on dev (nats per token)")):
        if curves := curve_of(results, quantity):
            plot_lines({"": curves}, folder / "bleu.png", title, "steps", label)
            return "bleu.png"
    return None


REPORT = Report(facts, protocol_lines, plot, METRICS, "pair")
