"""results.json: what was run and how, and one long table with a row for each score.

A row has `language` (or pair of languages), `seed`, `split`, `metric` and `value` in percent; where vectors of a model
are evaluated also `method` and `layer`. Everything else that is shown (means, averages, the transfer gap) follows from
the rows. Where rows or words have labels, `label_scores` is a second table: precision, recall, F1 and support, a row
for each language, label and seed.
"""

import json
import statistics
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas

from finetuning.results.protocol import Protocol

FORMAT = 2  # of results.json
AVERAGE = "average"  # over languages or pairs, in place of one

Summary = dict[str, Any]  # {"scores": one a seed, "mean", "sd"}
LABEL_SCORES = ("precision", "recall", "f1")
LabelScores = dict[str, dict[str, float]]  # by label: these in percent, and `support`, how many rows or words have it


def summary(scores: Iterable[float]) -> Summary:
    """Returns scores with their mean and standard deviation (n - 1), which is None for a single score."""
    scores = list(scores)
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return {"scores": scores, "mean": statistics.fmean(scores), "sd": deviation}


def mean_of(summaries: Iterable[Summary]) -> Summary:
    """Returns the mean of summaries, seed by seed."""
    return summary(map(statistics.fmean, zip(*(entry["scores"] for entry in summaries), strict=True)))


def with_deviation(entry: Summary) -> str:
    """`76.2 ± 0.3`, or `76.2` for a single seed."""
    return f"{entry['mean']:.1f}" + (f" ± {entry['sd']:.1f}" if entry["sd"] is not None else "")


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
    def protocol(self) -> Protocol:
        """Which data were read and how the scores were computed."""
        return Protocol.of(self["protocol"])

    @cached_property
    def _by_place(self) -> dict[tuple[str | None, int | None, str, str], dict[int, float]]:
        """Value by seed, by (method, layer, metric, language)."""
        found: dict[tuple, dict[int, float]] = {}
        for row in self["scores"]:
            place = row.get("method"), row.get("layer"), row["metric"], row["language"]
            found.setdefault(place, {})[row["seed"]] = row["value"]
        return found

    def _values(self, position: int) -> list[Any]:
        return list(dict.fromkeys(place[position] for place in self._by_place))

    @property
    def metric(self) -> str:
        """The main metric."""
        return self.protocol.metric.name

    @property
    def metrics(self) -> list[str]:
        """All metrics, the main one first."""
        return list(dict.fromkeys([self.metric, *self._values(2)]))

    @property
    def methods(self) -> list[str | None]:
        """The methods that compute scores from vectors, the reported one first; [None] if there are none."""
        return list(dict.fromkeys([self.protocol.method, *self._values(0)]))

    @property
    def layers(self) -> list[int | None]:
        """The layers that were scored; [None] if a model is evaluated as a whole."""
        return self._values(1)

    @property
    def is_higher_better(self) -> bool:
        return self.protocol.metric.greater_is_better

    @property
    def setting(self) -> str:
        """The setting as in headings, which separate plug-in and plug-out runs."""
        return self["setting"] + (", plug-in" if self.protocol.plug_in else "")

    @property
    def title(self) -> str:
        """Task, metric and split."""
        lower = "" if self.is_higher_better else " (lower is better)"
        return f"{self['task']}, {self.metric}{lower} on {self.protocol.evaluated_split}"

    def of(self, language: str, metric: str | None = None, method: str | None = None, layer: int | None = None):
        """The scores of a language, or of their AVERAGE, as a Summary: by default of what is reported."""
        method = self.protocol.method if method is None else method
        layer = self.protocol.layer if layer is None else layer
        if language == AVERAGE:
            return mean_of(self.of(name, metric, method, layer) for name in self.names)
        by_seed = self._by_place[method, layer, metric or self.metric, language]
        return summary(by_seed[seed] for seed in self["seeds"])

    @property
    def names(self) -> list[str]:
        """The evaluated languages, or pairs."""
        return self._values(3)

    @property
    def languages(self) -> dict[str, Summary]:
        """The reported score of each language, or pair."""
        return {language: self.of(language) for language in self.names}

    @property
    def with_average(self) -> list[str]:
        """The languages, and of several their AVERAGE."""
        return [*self.names, *([AVERAGE] if self.names[1:] else [])]

    @property
    def average(self) -> Summary:
        """The reported score, averaged over languages."""
        return self.of(AVERAGE)

    @property
    def transfer(self) -> dict[str, Summary]:
        """`source`, `others` (the mean over languages that were not trained on) and `gap`, their difference.

        Empty if nothing is transferred (MetaXLM, section 5.1; XTREME).
        """
        source, languages = self.get("source_language"), self.languages
        others = [entry for name, entry in languages.items() if name != source]
        if source not in languages or not others:
            return {}
        others, own = mean_of(others), languages[source]
        gap = summary(a - b for a, b in zip(own["scores"], others["scores"], strict=True))
        return {"others": others, "source": own, "gap": gap}

    @property
    def transfer_gap(self) -> float | None:
        """The source language's score minus the mean of the others."""
        return self.transfer["gap"]["mean"] if self.transfer else None

    def chance(self, language: str, metric: str | None = None) -> float | None:
        """Returns the score of guessing; None if the protocol does not have it."""
        protocol, metric = self.protocol, metric or self.metric
        levels = {name: {"accuracy": 100 * share} for name, share in protocol.majority_share.items()}
        levels = levels or protocol.chance or protocol.by_position
        if not levels or metric not in next(iter(levels.values())):
            return None
        return statistics.fmean(levels[name][metric] for name in (levels if language == AVERAGE else [language]))

    @property
    def chances(self) -> dict[str, float]:
        """Returns the score of guessing in each language, or pair; empty if the protocol does not have it."""
        return {name: level for name in self.names if (level := self.chance(name)) is not None}

    def frame(self, **columns: Any) -> pandas.DataFrame:
        """Returns the long table, with columns that name the run, so that tables of several runs can be joined."""
        return self._with_facts(pandas.DataFrame(self["scores"]), **columns)

    def frame_with_labels(self) -> pandas.DataFrame:
        """Returns the long table, followed by a row for each of `label_scores`, whose metrics begin with `label_`."""
        table = pandas.DataFrame(self["scores"])
        if "label_scores" in self:
            of_labels = self.label_frame().melt(["language", "label", "seed"], var_name="metric")
            of_labels = of_labels.assign(metric="label_" + of_labels["metric"], split=table["split"][0])
            table = pandas.concat([table, of_labels])
        return self._with_facts(table)

    def _with_facts(self, table: pandas.DataFrame, **columns: Any) -> pandas.DataFrame:
        facts = {**columns, "model": self["model"]["folder"], "task": self["task"], "setting": self.setting}
        names = [name for name in ROW if name in table]
        return table[names].assign(**facts)[[*facts, *names]]

    def label_frame(self) -> pandas.DataFrame:
        """`label_scores`: a row for each language, label and seed, with precision, recall and f1 in percent."""
        return pandas.DataFrame(self["label_scores"])


ROW = ("language", "label", "method", "layer", "seed", "split", "metric", "value")


def rows_of_record(record: dict[str, Any], split: str, metrics: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a seed's scores.json.

    That holds scores by language, by language and metric, or by language, method, layer and metric; `metrics` are those
    that are kept, by default all.
    """
    rows = []
    for language, found in (record.get("all_scores") or record["scores"]).items():
        if not isinstance(found, dict):
            found = {record["metric"]["name"]: found}
        if isinstance(next(iter(found.values())), dict):
            places = [
                ({"method": method, "layer": int(layer)}, scores)
                for method, by_layer in found.items()
                for layer, scores in by_layer.items()
            ]
        else:
            places = [({}, found)]
        rows += [
            {"language": language, **place, "seed": record["seed"], "split": split, "metric": metric, "value": value}
            for place, scores in places
            for metric, value in scores.items()
            if metrics is None or metric in metrics
        ]
    return rows


def labels_of_record(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of `label_scores` that a seed's scores.json gives."""
    return [
        {"language": language, "label": label, "seed": record["seed"], **scores}
        for language, labels in record.get("label_scores", {}).items()
        for label, scores in labels.items()
    ]


def load_results(path: Path) -> Any:
    """Reads a results file: returns `Results` for a single task, else the content.

    Raises ValueError for a file that is not JSON, and for an unknown format.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}. Restore the file.") from None
    if not isinstance(content, dict) or "protocol" not in content:
        return content
    if content.get("format") != FORMAT:
        raise ValueError(f"{path} has format {content.get('format')!r}; this version reads {FORMAT}.")
    return Results(content)


def read_results(folder: str | Path) -> Results:
    """Returns the results of a run's folder, scores in percent.

    Raises ValueError for a folder without results of a single task.

    Example:
        >>> results = read_results("runs/short/sample_topics")
        >>> scores = results.languages["de"]["scores"]  # percent, one a seed

    Source: results.json, which `finetune` writes.
    """
    path = Path(folder) / "results.json"
    if not path.is_file():
        raise ValueError(f"{folder} has no results.json: name the output_dir of a finished run of finetuning/run.py.")
    results = load_results(path)
    if not isinstance(results, Results):
        raise ValueError(f"{path} holds no results of a single task.")
    return results
