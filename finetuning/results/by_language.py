"""What results of classification, tagging and question answering say, in every language, and their plot."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from finetuning.recipe import Recipe
from finetuning.results.files import table_names
from finetuning.results.report import Report, plot_scores, published_figures, published_notes, with_outcomes
from finetuning.results.table import Results


def facts(recipe: Recipe, protocol: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    """See `Report.facts`."""
    languages, published = list(records[0]["scores"]), []
    if recipe.published:
        figures = {records[0]["metric"]["name"]: recipe.published.languages, **recipe.published.further}
        published = [published_figures(recipe.published, figures, languages)]
    at_chance = _chance_warnings(records, protocol) if "majority_share" in protocol else _zero_warnings(records)
    return {
        "setting": recipe.setting,
        "source_language": recipe.source_language,
        "hyperparameters": {
            **dataclasses.asdict(recipe.training),
            "updates": [record["steps"] for record in records],
        },
        "protocol": with_outcomes(protocol, records),
        "published": published,
        "warnings": [*at_chance, *_protocol_warnings(recipe, languages)],
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


def _zero_warnings(records: list[dict[str, Any]]) -> list[str]:
    """Scores of 0 by seed, of a kind of task at which no guess scores: nothing at all was found."""
    return [
        f"seed {record['seed']}: {record['metric']['name']} is 0 in {', '.join(zero)}"
        for record in records
        if (zero := [language for language, score in record["scores"].items() if score == 0])
    ]


def _trained_on(results: Results) -> str:
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


def protocol_lines(results: Results) -> list[str]:
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
        *_fresh_lines(protocol),
        f"max length: {protocol['max_length']} ({cut} texts cut"
        + (f", {split} split)" if "split_texts" in protocol else ")"),
        f"metric: {name} {version}, in percent",
    ]
    if protocol.get("translations"):
        lines.insert(1, f"translations: {protocol['translations']}")
    if protocol.get("plug_in"):
        lines.insert(1, "plug-in: heads read [H:S] of a text and its translation, and learn from both")
    if protocol.get("differs"):
        lines.append(f"not as in published figures: {', '.join(protocol['differs'])}")
    return [*lines, *protocol.get("facts", [])]


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


def plot(results: Results, folder: Path) -> str:
    """Bars by language, the average, chance and the published figures."""
    title = f"{results['task']}, {results.setting} (trained on {_trained_on(results)})"
    plot_scores(results, folder / "scores.png", title, results["source_language"])
    return "scores.png"


REPORT = Report(facts, protocol_lines, plot, titles={})
