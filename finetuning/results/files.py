"""Tables as Markdown and on the screen, and names of tables and runs in results."""

import re
from pathlib import Path

from finetuning.results.protocol import ReadTable
from finetuning.results.table import Summary, with_deviation

Table = tuple[list[str], list[list[str]]]  # header and rows

FIGURE = re.compile(r"[*\s\d.,±+/%≠§†‡¶()x-]*")  # a cell of figures; an empty one is among them


def run_name(folder: str | Path) -> str:
    """The name of the run that left a model in <run>/model or <run>/seed-N/model, with the step of one in
    <run>/checkpoints/step-N/model, or the folder's own name; without `{seed}`."""
    folder = Path(str(folder).replace("-{seed}", ""))
    name, _, revision = str(folder).partition("@")
    if revision and not folder.exists():  # owner/name@feature/a of the Hub
        folder = Path(f"{name}@{revision.replace('/', '-')}")
    folder = folder.resolve()
    if folder.name != "model":
        return folder.name
    above = folder.parent
    if above.parent.name == "checkpoints":
        return f"{above.parent.parent.name}-{above.name}"
    return above.parent.name if re.match("seed(-|$)", above.name) else above.name


def table_names(entries: list[ReadTable]) -> str:
    """`google/xtreme PAWS-X.de, PAWS-X.en test`: tables of one dataset and split together.

    With translations in another table: `bible en test with bible de test`.
    """
    groups: dict[tuple, list[str]] = {}
    for entry in entries:
        path = Path(entry["path"])
        name = path.name if path.is_absolute() else str(path)  # without the folders of this machine
        if entry.get("where"):
            name += f" [{', '.join(f'{column}: {value}' for column, value in entry['where'].items())}]"
        target = f"with {table_names([entry['target']])}" if entry.get("target") else None
        groups.setdefault((name, entry["split"], target), []).extend(filter(None, [entry["config"]]))
    return "; ".join(
        " ".join(filter(None, (name, ", ".join(configs), split, target)))
        for (name, split, target), configs in groups.items()
    )


def pivot(corner: str, columns: dict[str, dict[str, Summary | str]]) -> Table:
    """Header and rows of {column: {row: summary or text}}; a cell may be missing."""
    rows = dict.fromkeys(row for column in columns.values() for row in column)

    def cell(entry: Summary | str | None) -> str:
        return with_deviation(entry) if isinstance(entry, dict) else entry or ""

    return [corner, *columns], [[row, *(cell(column.get(row)) for column in columns.values())] for row in rows]


def markdown_table(table: Table) -> list[str]:
    """The lines of a Markdown table."""
    columns, rows = table
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(re.sub(r"[|<]", r"\\\g<0>", cell) for cell in line) + " |" for line in lines]


def markdown_list(title: str, lines: list[str]) -> list[str]:
    """A heading and its list; nothing for no lines."""
    return [f"## {title}", "", *(f"- {line}" for line in lines), ""] if lines else []


def markdown_page(title: str, table: Table, warnings: list[str], protocol: list[str], picture: str | None) -> str:
    """A Markdown page: table, warnings, protocol, picture (`[description](file)`)."""
    lines = [f"# {title}", "", *markdown_table(table), ""]
    lines += [*markdown_list("Warnings", warnings), *markdown_list("Protocol", protocol)]
    return "\n".join([*lines, *([f"!{picture}", ""] if picture else [])])


def print_table(title: str, table: Table, notes: list[str], written: str = "") -> None:
    """Prints the table, with columns of figures aligned to the right, the notes, and the names of written files."""
    from rich.console import Console
    from rich.table import Table as ScreenTable

    console = Console(highlight=False)
    columns, rows = table
    screen = ScreenTable(title=title)
    for position, column in enumerate(columns):
        is_figures = all(FIGURE.fullmatch(row[position]) for row in rows)
        screen.add_column(column, justify="right" if is_figures else "left")
    for row in rows:
        screen.add_row(*(cell.strip("*") for cell in row))
    console.print(screen)
    for note in notes:
        console.print(f"warning: {note}", style="yellow", markup=False, soft_wrap=True)
    if written:
        console.print(f"written: {written}", markup=False, soft_wrap=True)
