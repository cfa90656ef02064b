"""What a run would read, before any hour is spent on training: `finetuning/run.py --check_data`.

Everything is read, checked and encoded as for the run itself, so that each of its errors comes now, and all faults of
rows are listed. Then rows, inputs, and what is cut, split, left out or out of reach are printed by part and language,
with sources and their fingerprints. Nothing is trained or written.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute

from finetuning.results.files import Table, print_table, table_names
from finetuning.tasks.question_answering.reach import NAME
from finetuning.tasks.registry import KINDS, recipe_module, task_module
from zoo_core.faults import listed_faults
from zoo_core.masking import IGNORED

# counts of the protocol, by part and language, and how the report calls them; a count that is 0 everywhere is left out
COUNTS = {
    "cut_texts": "cut",
    "split_texts": "split",
    "cut_translations": "translations cut",
    "words_without_tokens": "words without tokens",
    "words_with_blank_first_token": "blank first tokens",
}
# why a gold answer is out of reach (`reach.py`), in a column's words
REASONS = {
    "not_in_context": "absent",
    "without_tokens": "without tokens",
    "not_at_token_boundaries": "not at tokens' ends",
    "over_the_limit": "too long",
    "in_no_window": "in no window",
}
LABELS = 6  # columns of counts by label; the rarer ones have one together
FAULTS = 1000  # printed lines
EXAMPLES, SHOWN = 2, 60  # of answers that are out of reach, by part and language, and characters of each


def report_data(recipe: Any) -> None:
    """Reads and encodes all data of a recipe of any kind and prints what is in them, or all of their faults.

    Raises ValueError where there are faults.
    """
    from accelerate import PartialState

    with listed_faults() as faults:
        try:
            data, table = KINDS[recipe.kind].data_function(recipe)
        except ValueError:
            if not faults:
                raise
    if faults:
        if PartialState().is_main_process:
            print("\n".join(faults[:FAULTS]))
        listed = f", the first {FAULTS:,} listed above" if len(faults) > FAULTS else ", listed above"
        raise ValueError(f"{recipe.task}: the data cannot be used. Faults: {len(faults):,}{listed}.")
    if PartialState().is_main_process:
        print_table(f"{recipe.task}: data of {recipe.kind}", table, data.warnings)
        print_labels(recipe, data)
        print("\n".join(source_lines(data.protocol)))
        if answers := list(_answer_lines(data.protocol)):
            title = f"gold answers, and those that no prediction can equal; a run lists them in {NAME}.csv"
            print_table(title, as_table(answers), [])
            print("\n".join(_examples(data.lists[NAME])))
        print("The data can be used. Nothing was trained or written.")


def read_by_language(recipe: Any) -> tuple[Any, Table]:
    """Rows, inputs and their lengths by part and language."""
    from finetuning.data.task_tables import each_part
    from finetuning.trainer import open_run

    kind, _, _, tokenizer, _ = open_run(recipe)
    read = kind.read(recipe)
    rows: dict[tuple[str, str], int] = {}
    each_part(read, lambda found, part, language: rows.setdefault((part, language or "all"), len(found)) and found)
    data = kind.encode(read, tokenizer, recipe)
    lines: list[dict[str, Any]] = []

    def line(encoded: Any, part: str, language: str) -> Any:
        name = language or "all"
        lengths = np.asarray(encoded["length"][:])
        counts = {shown: data.protocol.get(field, {}).get(part, {}).get(name, 0) for field, shown in COUNTS.items()}
        left_out = sum(data.protocol.get("left_out_rows", {}).values()) if part == "train" else 0
        own = {"part": part, "language": name, "rows": rows[part, name], "left out": left_out, "inputs": len(encoded)}
        lines.append(own | {"median tokens": int(np.median(lengths)), "longest": int(lengths.max()), **counts})
        return encoded

    each_part(data, line)
    return data, as_table(lines)


def print_labels(recipe: Any, data: Any, most_languages: int | None = None) -> None:
    """Prints how many rows, or words, have each label, by part and language; nothing for a kind without labels.

    Of a part with more than `most_languages` the languages are counted together, and of many labels the rarest.
    """
    names = getattr(data, "label_names", None)
    if not names:
        return
    lines: list[tuple[str, str, np.ndarray]] = []
    for part, by_language in (("train", {"all": data.train}), ("dev", data.dev), ("evaluation", data.evaluation)):
        counts = {language: _label_counts(rows, len(names)) for language, rows in by_language.items()}
        if most_languages and len(counts) > most_languages:
            counts = {f"{len(counts)} languages": np.sum(list(counts.values()), axis=0)}
        lines += [(part, language, own) for language, own in counts.items()]
    total = np.sum([own for *_, own in lines], axis=0)
    order = [number for number in np.argsort(-lines[0][-1], kind="stable") if total[number]]  # as often as in training
    if len(order) <= LABELS:
        order.sort()
    shown, rest = order[:LABELS], order[LABELS:]
    columns = ["part", "language", *(names[number] for number in shown), *([f"and {len(rest)} more"] if rest else [])]
    cells = [
        [part, language, *(f"{own[number]:,}" for number in shown), *([f"{own[rest].sum():,}"] if rest else [])]
        for part, language, own in lines
    ]
    what = "words" if recipe.kind == "tagging" else "rows"
    print_table(f"{recipe.task}: {what} by label", (columns, cells), [])


def _label_counts(rows: Any, size: int) -> np.ndarray:
    """How often each of the labels 0 ... size - 1 occurs in column `labels`, of numbers or of lists of them."""
    labels = rows.select_columns(["labels"]).with_format("arrow")[:].column("labels")
    if pyarrow.types.is_nested(labels.type):
        labels = pyarrow.compute.list_flatten(labels)
    labels = labels.to_numpy()
    return np.bincount(labels[labels != IGNORED], minlength=size)


def _answer_lines(protocol: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Question answering: the gold answers by part and language, and why some are out of reach."""
    for part, languages in protocol.get(NAME, {}).items():
        for language, counts in languages.items():
            shown = {"answers": "answers", "exact": "exact", **REASONS}
            yield {"part": part, "language": language} | {text: counts[name] for name, text in shown.items()}


def read_translation(recipe: Any) -> tuple[Any, Table]:
    """Pairs and their lengths by part and pair of languages."""
    from finetuning.checkpoints import describe_model
    from finetuning.tasks.translation.model import check_architecture
    from finetuning.tasks.translation.recipe import check_recipe
    from finetuning.tasks.translation.trainer import check_run

    check_recipe(recipe)
    check_architecture(recipe)
    _, _, tokenizer, _ = describe_model(
        recipe.model, recipe.tokenizer, recipe.hub_root, recipe.max_length, recipe.trust_remote_code
    )
    module = task_module(recipe.kind)
    data = module.encode(module.read(recipe), tokenizer, recipe)
    check_run(recipe, data)
    empty, too_long = data.protocol["empty_pairs_left_out"], data.protocol["too_long"]
    long = {"train": {"all": too_long["train"]}, "dev": too_long["dev"], "test": too_long["test_sources"]}
    lines = []
    for part, by_pair in (("train", {"all": data.train}), ("dev", data.dev), ("test", data.test)):
        for pair, rows in by_pair.items():
            left_out = sum(empty[part].values()) if pair == "all" else empty.get(part, {}).get(pair, 0)
            own = {"part": part, "language": pair, "rows": len(rows)}
            lengths = {f"longest {side}": int(np.max(rows[f"{side}_length"][:])) for side in ("source", "target")}
            lines.append({**own, **lengths, "too long": long[part][pair], "empty, left out": left_out})
    return data, as_table(lines)


def read_features(recipe: Any) -> tuple[Any, Table]:
    """Evaluated rows by pair of languages."""
    from finetuning.tasks.features import models as feature_models

    recipe_module(recipe.kind).check_recipe(recipe)
    models = feature_models.describe_models(recipe)
    module = task_module(recipe.kind)
    data = module.read(recipe)
    module.complete_protocol(data, recipe, models[recipe.seeds[0]].config.num_hidden_layers)
    rows = data.protocol["evaluated_rows"].items()
    return data, as_table([{"part": "evaluation", "language": name, "rows": count} for name, count in rows])


def as_table(lines: list[dict[str, Any]]) -> Table:
    """Columns of all lines, without those that are 0 in every one; a cell is empty where a line has not the column."""
    columns = list(dict.fromkeys(name for line in lines for name in line))
    columns = [name for name in columns if any(line.get(name) for line in lines)]
    cells = [[line.get(name, "") for name in columns] for line in lines]
    return columns, [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in cells]


def source_lines(protocol: dict[str, Any]) -> list[str]:
    """Every table that was read: what for, which languages, rows and fingerprint."""
    selection = protocol.get("selection", {}).get("data")
    lines = [f"dev: {selection}"] if isinstance(selection, str) else []
    parts = {
        "train": protocol["training_data"],
        "dev": [] if isinstance(selection, str) else selection or [],
        "evaluation": protocol["evaluation_data"],
    }
    for part, tables in parts.items():
        for entry in tables:
            languages, fingerprint = ", ".join(entry["languages"]), str(entry["fingerprint"])[:19]
            lines.append(f"{part}: {table_names([entry])}, {languages}, {entry['rows']:,} rows, {fingerprint}")
    return lines


def _examples(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The first answers out of reach of each part and language; a run lists all of them."""
    shown: dict[tuple[str, str], int] = {}
    for row in rows:
        of = row["part"], row["language"]
        shown[of] = shown.get(of, 0) + 1
        if shown[of] <= EXAMPLES:
            texts = (row[name] for name in ("answer", "nearest_span"))
            answer, nearest = (text if len(text) <= SHOWN else text[: SHOWN - 1] + "…" for text in texts)
            other = f"; the nearest span is {nearest!r}" if nearest not in ("", answer) else ""
            yield f"{row['part']} {row['language']}, row {row['row']} (from 0): {answer!r} {row['reason']}{other}"
