"""How results of any kind of task are written and shown: JSON, Markdown, CSV and the table on the screen."""

import csv
import json
import statistics
from pathlib import Path
from typing import Any

from zoo_core.provenance import write_json

FORMAT = 1  # of results.json; hub_cards reads it

Table = tuple[list[str], list[list[str]]]  # header and rows


def load_results(path: Path) -> Any:
    """A results file, also one whose keys still say `piece` for token. Raises ValueError where it is no JSON."""

    def current(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key.replace("piece", "token"): value for key, value in pairs}

    return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=current)


def run_name(folder: str | Path) -> str:
    """The name of the run that left a model in <run>/model or <run>/seed-N/model, or the folder's own."""
    folder = Path(folder).resolve()
    if folder.name != "model":
        return folder.name
    above = folder.parent
    return above.parent.name if above.name.startswith("seed-") else above.name


def summary(scores: list[float]) -> dict[str, Any]:
    """Scores with their mean and standard deviation (n - 1), None for a single one."""
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return {"scores": scores, "mean": statistics.fmean(scores), "sd": deviation}


def with_deviation(entry: dict[str, Any]) -> str:
    """`76.2 ± 0.3`, or `76.2` for a single seed."""
    return f"{entry['mean']:.1f}" + (f" ± {entry['sd']:.1f}" if entry["sd"] is not None else "")


def with_outcomes(protocol: dict[str, Any], records: list[dict[str, Any]], **of_the_metric: Any) -> dict[str, Any]:
    """The protocol with what the seeds selected, which parameters they drew, and the metric."""
    fresh = records[0].get("fresh_parameters")
    return {
        **protocol,
        **({"fresh_parameters": {**fresh, "seeds": [record["seed"] for record in records]}} if fresh else {}),
        "selection": {
            **protocol["selection"],
            "selected_steps": [record["selected_step"] for record in records],
            "scores": [record["selection_score"] for record in records],
        },
        "metric": {**records[0]["metric"], "unit": "percent", **of_the_metric},
    }


def table_names(entries: list[dict[str, Any]]) -> str:
    """`google/xtreme PAWS-X.de, PAWS-X.en test`: tables of one dataset and split together.

    Where the translations of a table are in another one: `bible en test with bible de test`.
    """
    groups: dict[tuple, list[str]] = {}
    for entry in entries:
        path = Path(entry["path"])
        name = path.name if path.is_absolute() else str(path)  # where it lies on this machine tells nobody anything
        if entry.get("where"):
            name += f" [{', '.join(f'{column}: {value}' for column, value in entry['where'].items())}]"
        target = f"with {table_names([entry['target']])}" if entry.get("target") else None
        groups.setdefault((name, entry["split"], target), []).extend(filter(None, [entry["config"]]))
    return "; ".join(
        " ".join(filter(None, (name, ", ".join(configs), split, target)))
        for (name, split, target), configs in groups.items()
    )


def write_files(
    results: dict[str, Any], page: str, rows: list[dict[str, Any]], folder: Path, name: str = "results"
) -> None:
    """Writes `<name>.md` (`page`), `<name>.csv` (`rows`) and then `<name>.json` into a folder.

    Plots are drawn before: where the JSON is there, everything is, and a run that was stopped before is not finished.
    """
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    write_csv(folder / f"{name}.csv", rows)
    write_json(folder / f"{name}.json", results)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes rows of the same columns, at least one."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def markdown_table(table: Table) -> list[str]:
    """The lines of a Markdown table."""
    columns, rows = table
    return ["| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows]]


def markdown_page(title: str, table: Table, warnings: list[str], protocol: list[str], picture: str | None) -> str:
    """A Markdown page: table, warnings, protocol, picture (`[description](file)`)."""
    lines = [f"# {title}", "", *markdown_table(table)]
    if warnings:
        lines += ["", "## Warnings", "", *(f"- {warning}" for warning in warnings)]
    lines += ["", "## Protocol", "", *(f"- {line}" for line in protocol), ""]
    return "\n".join([*lines, *([f"!{picture}", ""] if picture else [])])


def print_table(title: str, table: Table, warnings: list[str], written: str, names: int = 1) -> None:
    """Prints the table, whose first `names` columns are text, the warnings and what was written where, if anything."""
    from rich.console import Console
    from rich.table import Table as ScreenTable

    console = Console(highlight=False)
    columns, rows = table
    shown = ScreenTable(title=title)
    for position, column in enumerate(columns):
        shown.add_column(column, justify="right" if position >= names else "left")
    for row in rows:
        shown.add_row(*(cell.strip("*") for cell in row))
    console.print(shown)
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    if written:
        console.print(f"written: {written}", markup=False, soft_wrap=True)
