"""results.json: what was run and how, and one long table with a row for each score.

A row has `language` (or pair of languages), `seed`, `split`, `metric` and `value` in percent; where vectors of a model
are evaluated also `method` and `layer`. Everything else that is shown (means, averages, the transfer gap) follows from
the rows.
"""

import json
import math
import re
import statistics
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas

from crosslingual_zoo.zoo_core.provenance import read_json

FORMAT = 3  # of results.json
AVERAGE = "average"  # over languages or pairs, in place of one
OTHERS = "mean of others"  # of languages that were not trained on
GAP = "transfer gap"  # the source's score minus that mean
COLUMNS = ("language", "method", "layer", "seed", "split", "metric", "value")  # of results.csv
# Not compared: outcomes, repeated facts, and the methods and layers that were scored next to the reported ones.
OUTCOMES = (
    "protocol.selection.selected_steps",
    "protocol.selection.scores",
    "protocol.selection.losses",
    "protocol.selection.sweep.score",
    "protocol.methods",
    "protocol.layers",
    "protocol.counts",
    "protocol.fresh_parameters",
    "hyperparameters.updates",
)

Summary = dict[str, Any]  # {"scores": one a seed, "mean", "sd"}


def summary(scores: Iterable[float]) -> Summary:
    """Returns scores with their mean and standard deviation (n - 1), which is None for a single score."""
    scores = list(map(float, scores))
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return {"scores": scores, "mean": statistics.fmean(scores), "sd": deviation}


def with_deviation(entry: Summary) -> str:
    """`76.2 ± 0.3`, or `76.2` for a single seed; `0.0` also for a gap just below it."""
    text = f"{entry['mean']:z.1f}"
    if entry["sd"] is not None:
        text += f" ± {entry['sd']:.1f}"
    return text


class Results(dict):
    """The content of results.json, and summaries of its table. Scores are in percent.

    `results.languages` has a summary of the scores by language, over the seeds: `scores`, `mean` and `sd`, the standard
    deviation (n - 1). Raises KeyError for a language, metric or layer that was not evaluated.

    Example:
        >>> results = read_results("runs/short/sample_topics")
        >>> results.metric, sorted(results.languages)
        ('accuracy', ['de', 'en', 'es', 'fr', 'zh'])
        >>> mean = results.of("de")["mean"]

    Source: the protocol is that of XTREME (Hu et al., 2020).
    """

    @cached_property
    def _tables(self) -> dict[tuple[str | None, int | None, str], pandas.DataFrame]:
        """By method, layer and metric: a row a seed, a column a language, and their AVERAGE.

        Where something is transferred, also OTHERS and GAP (MetaXLM, section 5.1; XTREME).
        """
        rows_by_key: dict[tuple, list[dict[str, Any]]] = {}
        for row in self["scores"]:
            key = (row.get("method"), row.get("layer"), row["metric"])
            rows_by_key.setdefault(key, []).append(row)
        source = self.get("source_language")
        tables = {}
        for key, rows in rows_by_key.items():
            table = pandas.DataFrame(rows).pivot(index="seed", columns="language", values="value")[self.names]
            means = {AVERAGE: table.mean(axis=1)}
            if source in table and self.names[1:]:
                means[OTHERS] = table.drop(columns=source).mean(axis=1)
                means[GAP] = table[source] - means[OTHERS]
            tables[key] = table.assign(**means)
        return tables

    def _values(self, column: str, first: Any = None) -> list[Any]:
        """The values of a column, in the order of the rows, but with `first` before the others."""
        values = dict.fromkeys(row.get(column) for row in self["scores"])
        return sorted(values, key=lambda value: value != first)

    @property
    def metric(self) -> str:
        """The main metric."""
        return self["protocol"]["metric"]["name"]

    @property
    def metrics(self) -> list[str]:
        """All metrics, the main one first."""
        return self._values("metric", self.metric)

    @property
    def methods(self) -> list[str | None]:
        """The methods that compute scores from vectors, the reported one first; [None] if there are none."""
        return self._values("method", self["protocol"].get("method"))

    @property
    def layers(self) -> list[int | None]:
        """The layers that were scored; [None] if a model is evaluated as a whole."""
        return self._values("layer")

    @property
    def names(self) -> list[str]:
        """The evaluated languages, or pairs."""
        return self._values("language")

    @property
    def with_average(self) -> list[str]:
        """The languages, and of several their AVERAGE."""
        return [*self.names, AVERAGE] if self.names[1:] else self.names

    @property
    def is_higher_better(self) -> bool:
        return self["protocol"]["metric"].get("greater_is_better", True)

    @property
    def setting(self) -> str:
        """The setting as in headings, which separate plug-in and plug-out runs."""
        if self["protocol"].get("plug_in"):
            return f"{self['setting']}, plug-in"
        return self["setting"]

    @property
    def title(self) -> str:
        """Task, metric and split."""
        lower = "" if self.is_higher_better else " (lower is better)"
        return f"{self['task']}, {self.metric}{lower} on {self['protocol']['evaluated_split']}"

    def table(self, metric: str | None = None, method: str | None = None, layer: int | None = None) -> pandas.DataFrame:
        """Scores with a row a seed and a column a language or mean, by default those that are reported."""
        if method is None:
            method = self["protocol"].get("method")
        if layer is None:
            layer = self["protocol"].get("layer")
        return self._tables[method, layer, metric or self.metric]

    def of(
        self, language: str, metric: str | None = None, method: str | None = None, layer: int | None = None
    ) -> Summary:
        """The scores of a language, or of their AVERAGE: by default of what is reported."""
        return summary(self.table(metric, method, layer)[language])

    @property
    def languages(self) -> dict[str, Summary]:
        """The reported score of each language, or pair."""
        return {name: self.of(name) for name in self.names}

    @property
    def figures(self) -> dict[str, Summary]:
        """The reported scores by language, and of several their average, the mean of others and the transfer gap."""
        table = self.table()
        return {name: summary(table[name]) for name in table.columns if name != AVERAGE or self.names[1:]}

    @property
    def average(self) -> Summary:
        """The reported score, averaged over languages."""
        return self.of(AVERAGE)

    @property
    def transfer_gap(self) -> float | None:
        """The source language's score minus the mean of the others; None if nothing is transferred."""
        return self.of(GAP)["mean"] if GAP in self.table() else None

    def chance(self, language: str) -> float | None:
        """Returns the main score of guessing; None if the protocol does not have it."""
        levels = self["protocol"].get("chance", {})
        scores = {name: level[self.metric] for name, level in levels.items() if self.metric in level}
        if language == AVERAGE and scores:
            return statistics.fmean(scores.values())
        return scores.get(language)

    def at_chance(self) -> list[str]:
        """Warns of seeds that score no better than guessing, or 0: a mean would hide them."""
        warnings = []
        for number, seed in enumerate(self["seeds"]):
            languages: dict[str, list[str]] = {"at chance": [], "worse than chance": []}
            for name, entry in self.languages.items():
                score = entry["scores"][number]
                level = self._level(name, score)
                if level:
                    rows = self["protocol"]["evaluated_rows"][name]
                    chance = self.chance(name) or 0.0
                    languages[level].append(f"{name} {score:.1f} (guessing: {chance:.1f}; {rows:,} rows)")
            for level, lines in languages.items():
                if lines:
                    warnings.append(f"seed {seed}: {self.metric} is {level} in {', '.join(lines)}")
        return warnings

    def _level(self, language: str, score: float) -> str | None:
        """`at chance`, `worse than chance`, or None for a better score.

        Chance explains scores within two standard errors of a share of the evaluated rows. What is worse has another
        reason, such as labels that are mixed up. An error rate is better wherever it is lower.
        """
        chance = self.chance(language) or 0.0
        error = math.sqrt(chance * (100 - chance) / self["protocol"]["evaluated_rows"][language])
        if self.is_higher_better:
            gain = score - chance
            is_better = gain > 2 * error
        else:
            gain = chance - score
            is_better = gain > 0
        if is_better:
            return None
        return "worse than chance" if gain < -2 * error else "at chance"

    def frame(self, **columns: Any) -> pandas.DataFrame:
        """Returns the long table, with columns that name the run, so that tables of several runs can be joined."""
        table = pandas.DataFrame(self["scores"])
        names = [name for name in COLUMNS if name in table]
        facts = {**columns, "model": self["model"]["folder"], "task": self["task"], "setting": self.setting}
        return table[names].assign(**facts)[[*facts, *names]]


def make_results(
    recipe: Any,
    model: dict[str, Any],
    facts: dict[str, Any],
    records: list[dict[str, Any]],
    warnings: list[str],
) -> Results:
    """Returns results.json of a run (ARCHITECTURE.md, "Results"), from the records of its seeds.

    `recipe` is a `TaskRecipe`, whose module imports this one. `model` is the identity of the model that the run starts
    from, `facts` those of the data.
    """
    first = records[0]
    split = ", ".join(dict.fromkeys(table["split"] for table in facts["evaluation_data"]))
    metric = {**first["metric"], "unit": "percent", "greater_is_better": recipe.is_higher_better}
    protocol = {**facts, "evaluated_split": split, "metric": metric, **first["facts"]}
    seeds = [record["seed"] for record in records]
    if "fresh_parameters" in protocol:
        protocol["fresh_parameters"] = {**protocol["fresh_parameters"], "seeds": seeds}
    description = recipe.describe()
    curves = {}
    if recipe.is_trained:
        protocol["selection"] = {
            **facts["selection"],
            "selected_steps": [record["selected_step"] for record in records],
            "scores": [record["selection_score"] for record in records],
            "losses": [record["selection_loss"] for record in records],
        }
        description["hyperparameters"]["updates"] = [record["steps"] for record in records]
        curves = {str(record["seed"]): _curve(record["history"]) for record in records}
    scores = []
    for record in records:
        for row in record["scores"]:
            if not recipe.metrics or row["metric"] in recipe.metrics:
                scores.append({**row, "seed": record["seed"], "split": split})
    return Results(
        {
            "format": FORMAT,
            "task": recipe.task,
            "kind": recipe.kind,
            "seeds": seeds,
            "processes": [record["processes"] for record in records],
            **description,
            "model": {**model, "parameters": first["parameters"]},
            "protocol": protocol,
            "published": recipe.references,
            "scores": scores,
            "curves": curves,
            "notes": list(recipe.notes),
            "warnings": warnings,
        }
    )


def _curve(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations during a training: step, loss on the development rows, and their BLEU where it was computed."""
    evaluations = [entry for entry in history if "eval_loss" in entry]
    return [
        {"step": entry["step"], "loss": entry["eval_loss"], "bleu": entry.get("eval_bleu")} for entry in evaluations
    ]


def load_results(path: Path) -> Any:
    """Reads a results file: returns `Results` for a single task, else the content, that of a suite.

    Raises ValueError for a missing file, another JSON file, and an unknown format.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}: name the output_dir of a finished run.")
    content = read_json(path, needs=("format", "scores"))
    if content["format"] != FORMAT:
        raise ValueError(f"{path} has format {content['format']!r}; this version reads {FORMAT}.")
    return content if "suite" in content else Results(content)


def read_results(folder: str | Path) -> Results:
    """Returns the results of a run's folder, scores in percent.

    Raises ValueError for a folder without results of a single task.

    Example:
        >>> results = read_results("runs/short/sample_topics")
        >>> scores = results.languages["de"]["scores"]  # percent, one a seed

    Source: results.json, which `finetuning/run.py` writes.
    """
    results = load_results(Path(folder) / "results.json")
    if not isinstance(results, Results):
        raise ValueError(f"{folder}/results.json holds no results of a single task.")
    return results


def differences(runs: dict[str, Results]) -> list[str]:
    """Returns the differences between the runs in training and evaluation, one line each, without outcomes and seeds.

    A line begins with a field of protocol or hyperparameters, as `protocol.selection.rule`.
    """
    texts: dict[str, dict[str, str]] = {}
    for run, results in runs.items():
        nested = {name: results[name] for name in ("setting", "protocol", "hyperparameters")}
        flat = pandas.json_normalize({**nested, "model": results["model"]["folder"]})
        row: dict[str, Any]
        (row,) = flat.to_dict("records")  # pyrefly: ignore[bad-assignment]  # the names of columns are texts
        for field, value in row.items():
            if field.endswith(("_data", ".data")) and isinstance(value, list):  # not where it is on this machine
                value = [(table["config"], table["split"], table["fingerprint"]) for table in value]
            texts.setdefault(field, dict.fromkeys(runs, "null"))[run] = json.dumps(value)
    lines = []
    for field, text_of_run in texts.items():
        is_outcome = any(f"{field}.".startswith(f"{name}.") for name in OUTCOMES)
        if len({*text_of_run.values()}) > 1 and not is_outcome:
            values = "; ".join(f"{run} {text}" for run, text in text_of_run.items())
            lines.append(f"{field}: {values}")
    return lines


def run_name(folder: str | Path) -> str:
    """The name of the run that left a model in <run>/model or <run>/seed-N/model, with the step of one in
    <run>/checkpoints/step-N/model, or the folder's own name."""
    folder = Path(folder).resolve()
    if folder.name != "model":
        return folder.name
    parts = [part for part in folder.parts[:-1] if not re.fullmatch("checkpoints|seed(-.*)?", part)]
    is_of_step = folder.parent.parent.name == "checkpoints"
    return "-".join(parts[-2:] if is_of_step else parts[-1:])
