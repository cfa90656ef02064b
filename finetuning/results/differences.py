"""Checks whether results can be compared, lists their differences, and joins the seeds of one experiment."""

import json
from collections.abc import Iterable
from typing import Any

from finetuning.results.table import Results

# Not compared: outcomes, texts that repeat other fields, and further scores.
LEFT_OUT = (
    "protocol.selection.selected_steps",
    "protocol.selection.scores",
    "protocol.selection.sweep.score",
    "protocol.facts",
    "protocol.methods",
    "protocol.layers",
    "protocol.fresh_parameters",
)
# Fields that must be equal for comparable scores of one task, for any models and any training.
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
        "dev_data",
        "dev_fraction",
    )
)
# lists with an entry a seed
BY_SEED = ("seeds", "processes", "updates", "selected_steps", "scores")


def differences(runs: dict[str, Results]) -> list[str]:
    """Returns the differences between the runs in training and evaluation, one line each."""
    stamps = {name: _stamp(results) for name, results in runs.items()}
    lines = []
    for field in dict.fromkeys(field for stamp in stamps.values() for field in stamp):
        values = {name: json.dumps(stamp.get(field)) for name, stamp in stamps.items()}
        if len(set(values.values())) > 1:
            lines.append(f"{field}: " + "; ".join(f"{name} {value}" for name, value in values.items()))
    return lines


def _stamp(results: Results) -> dict[str, Any]:
    """Protocol, hyperparameters and processes as `protocol.selection.rule` and the like, without outcomes and seeds."""
    flat: dict[str, Any] = {"setting": results["setting"], "model": results["model"]["folder"]}
    if known := set(results.get("processes", [])) - {None}:
        flat["processes"] = sorted(known)

    def flatten(prefix: str, value: Any) -> None:
        if prefix in LEFT_OUT:
            return
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}", inner)
        elif prefix == "hyperparameters.updates":
            flat[prefix] = sorted(set(value))
        elif prefix.endswith(("_data", ".data")):
            tables = value if isinstance(value, list) else []
            flat[prefix] = [(table["config"], table["split"], table["fingerprint"]) for table in tables]
        else:
            flat[prefix] = value

    for part in ("protocol", "hyperparameters"):
        flatten(part, results[part])
    return flat


def check_alike(runs: dict[str, Results]) -> None:
    """Raises ValueError for results of different tasks or languages."""
    (first_name, first), *others = runs.items()
    for name, results in others:
        for field in ("kind", "task", "languages"):
            this, other = (r.names if field == "languages" else r[field] for r in (results, first))
            if this != other:
                raise ValueError(
                    f"{name} has {field} {this}, {first_name} has {other}. Compare runs with the same {field}."
                )


def check_protocols(runs: dict[str, Results]) -> None:
    """Raises ValueError for runs of a task whose scores were not measured in the same way, as MEASURED lists it."""
    if lines := [line for line in differences(runs) if line.startswith(MEASURED)]:
        task = next(iter(runs.values()))["task"]
        raise ValueError(f"{task} was measured by different protocols: {'; '.join(lines)}.")


def join_seeds(name: str, parts: list[Results]) -> Results:
    """Joins the results of seeds that were run separately, for the layers that all have.

    Raises ValueError if they are not seeds of one experiment: a seed given twice, or two protocols.
    """
    if len(parts) == 1:
        return parts[0]
    seeds = [seed for results in parts for seed in results["seeds"]]
    if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise ValueError(f"{name}: seed {twice[0]} is in more than one of its folders. Name each seed's folder once.")
    lines = differences({f"seed {results['seeds'][0]}": results for results in parts})
    # ignored: the seed of pre-training, and the number of processes, which does not change the steps
    if lines := [line for line in lines if not line.startswith(("model:", "processes:"))]:
        raise ValueError(f"{name}: its folders were not trained and measured in the same way: {'; '.join(lines)}.")
    shared = set.intersection(*(set(results.layers) for results in parts))
    rows = [row for results in parts for row in results["scores"] if row.get("layer") in shared]
    warnings = list(dict.fromkeys(line for results in parts for line in results["warnings"]))
    return Results({**_merged("", parts), "scores": rows, "warnings": warnings})


def _merged(key: str, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _merged(key, [value[key] for value in values if key in value]) for key in keys}
    if isinstance(first, list) and (key in BY_SEED or (first and isinstance(first[0], dict) and "mined" in first[0])):
        return [item for value in values for item in value]
    return first


def warnings_of(runs: dict[str, Results]) -> list[str]:
    """Returns the warnings of all runs, each once, with the names of the runs unless all have it."""
    lines = dict.fromkeys(line for results in runs.values() for line in results["warnings"])
    found = []
    for line in lines:
        names = [name for name, results in runs.items() if line in results["warnings"]]
        found.append(line if len(names) == len(runs) else f"{', '.join(names)}: {line}")
    return found


def named_folders(given: Iterable[list[str]]) -> dict[str, list[str]]:
    """Folders by name, of `--run NAME DIR [DIR ...]`. Raises ValueError for a name without a folder, or given twice."""
    found: dict[str, list[str]] = {}
    for name, *folders in given:
        if not folders or name in found:
            problem = "is given twice" if name in found else "has no folder"
            raise ValueError(f"--run {name} {problem}. Write --run NAME DIR [DIR ...], each name once.")
        found[name] = folders
    return found
