"""Tokenize the corpora of a recipe once, into shards that training maps into memory.

python -m pretraining.tools.prepare --config RECIPE.yaml --output DIR
"""

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pretraining.recipe import Recipe
from pretraining.recipe_checks import check_recipe
from zoo_core.recipes import parse_command_line, user_errors

DESCRIPTION = """Tokenize the corpora of a recipe once, into shards that training maps into memory.

  python -m pretraining.tools.prepare --config RECIPE.yaml --output shards/mine
  python pretraining/run.py --config RECIPE.yaml prepared=shards/mine --dry_run
  accelerate launch pretraining/run.py --config RECIPE.yaml prepared=shards/mine
  python -m pretraining.tools.prepare --config RECIPE.yaml --output shards/mine --verify

A run with `prepared` sees what it would see without: the same examples, held-out rows and masks, to the last bit. But
it starts at once, opens no table, and never waits for a tokenizer. Interrupted in whatever way, the same command goes
on where it was; after a change of the recipe or of a table it writes what is new, and after damage what is broken. Text
that several corpora share is written once, and the folder keeps corpora of other recipes with the same tokenizer.

Streamed corpora are read once, from their start, in their own order; from then on they are like the others: shuffled
whole, long texts in windows that keep all their tokens, and their size counted."""

FLAGS = {
    "--output": {"metavar": "DIR", "help": "folder of the shards; default: the recipe's `prepared`"},
    "--num_workers": {"type": int, "metavar": "N", "help": "processes; the shards are the same (default: CPUs)"},
    "--max_rows": {"type": int, "metavar": "N", "help": "read at most N rows of each streamed corpus (default: all)"},
    "--shard_mib": {
        "type": int,
        "default": 64,
        "metavar": "N",
        "help": "text of a shard; a file of short tokens, of 4 bytes each, is larger (default: %(default)s)",
    },
    "--verify": {"action": "store_true", "help": "read every file of the folder and compare its checksum; write none"},
}

SECONDS_BETWEEN_LINES = 30  # of progress, in a log


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    recipe, flags = parse_command_line(Recipe, DESCRIPTION, FLAGS, argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("httpx", "httpx2", "datasets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    with user_errors():
        check_recipe(recipe)
        output, workers = _check_flags(flags, recipe)
        try:
            if flags.verify:
                verify(output)
            else:
                prepare(recipe, output, workers, flags.max_rows, flags.shard_mib * 2**20)
        except KeyboardInterrupt:
            print("\ninterrupted; what is finished is kept, and the same command goes on from there", file=sys.stderr)
            sys.exit(130)


def prepare(recipe: Recipe, output: str | Path, num_workers: int, max_rows: int | None, shard_bytes: int) -> None:
    """Writes the shards of the recipe's corpora into the folder `output`, and prints what it holds.

    Raises ValueError for whatever `open_sources` finds, for a folder of another kind or tokenizer, or one that another
    process is writing, and for what the disk refuses.
    """
    from pretraining.data.fast_tokenize import fast_tokens
    from pretraining.data.prepared import FORMAT, MANIFEST, PROGRESS
    from pretraining.data.shard_plan import plan_corpora
    from pretraining.data.shard_workers import Work, shards_of
    from pretraining.data.shards import Shard, write_file
    from pretraining.data.sources import open_sources
    from pretraining.data.tokenized import tokenizer_fingerprint
    from pretraining.start.initialization import load_tokenizer

    folder, started = Path(output), time.perf_counter()
    with _locked(folder):
        tokenizer = load_tokenizer(recipe)
        fingerprint = tokenizer_fingerprint(tokenizer)
        before, records = _found(folder, fingerprint)
        encoder = fast_tokens(tokenizer)
        plan = plan_corpora(recipe, folder, open_sources(recipe), fingerprint, before, records, max_rows, shard_bytes)
        if encoder.why_not is None:
            # before any is tokenized, so that a difference in one table makes no difference between its shards
            if not all(encoder.check(texts) for texts in plan.samples()):
                logging.getLogger(__name__).info("The tokenizer is used as it is, slower: %s", encoder.why_not)
        header = {"format": FORMAT, "tokenizer_fingerprint": fingerprint}
        shards: dict[str, list[Shard]] = {}
        kept = tokens = 0
        try:
            with _journal(folder / PROGRESS, header) as note, _Progress("preparing", "rows", plan.rows) as bar:
                work = Work(folder, encoder, plan.tables)
                for job, shard, was_there in shards_of(plan.jobs(), work, num_workers, bar.tell):
                    shards.setdefault(job.column, []).append(shard)
                    note({"column": job.column} | asdict(shard))
                    kept += was_there
                    tokens += 0 if was_there else shard.tokens
            manifest = header | {"tokenizer": str(tokenizer.name_or_path)} | plan.contents(folder, shards, before)
            write_file(folder / MANIFEST, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            done = sum(map(len, shards.values()))
            raise ValueError(
                f"{folder} cannot be written or a table be read: {error}. {done} shards are finished and kept. Free "
                "some space on the disk (or mend what is said here), then run the same command again: it goes on from "
                "there."
            ) from error
        _tidy(folder, manifest)
        (folder / PROGRESS).unlink()
    _print(manifest, plan.names, time.perf_counter() - started, tokens, kept, folder)


def verify(folder: str | Path) -> None:
    """Reads every file of a prepared folder. Raises ValueError that names those which are not what was written."""
    from pretraining.data.prepared import COMMAND, read_manifest
    from pretraining.data.shards import damage

    manifest = read_manifest(folder)
    files = _files(manifest)
    broken = []
    with _Progress("verifying", "files", len(files)) as bar:
        for file, (size, sha256) in files.items():
            if what := damage(Path(folder), file, size, sha256):
                broken.append(f"{file} {what}")
            bar.tell(1, 0)
    if broken:
        shown = "; ".join(broken[:5]) + (f"; and {len(broken) - 5} more" if len(broken) > 5 else "")
        raise ValueError(
            f"{len(broken)} of the {len(files)} files of {folder} are not what was written: {shown}. Training would "
            f"stop there. Rebuild them: {COMMAND} {folder}, which keeps the others."
        )
    print(f"{folder}: {len(files)} files are what was written")


def _check_flags(flags: Any, recipe: Recipe) -> tuple[str, int]:
    output = flags.output or recipe.prepared
    if not output:
        raise ValueError(
            "--output is missing, and the recipe has no `prepared`: there is no place for the shards. Name a folder, "
            "as in --output shards/mine."
        )
    for name in ("num_workers", "max_rows", "shard_mib"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} is {value}, and it counts something. Nothing would be written. Give 1 or more.")
    tables = [*recipe.monolingual, *(t for c in recipe.bitext for t in (c.table, c.source) if t is not None)]
    if flags.max_rows and not any(table.streaming for table in tables):
        raise ValueError(
            f"--max_rows is {flags.max_rows}, and the recipe streams no corpus. Tables are prepared whole, so that "
            "training sees what it would see without shards. Leave it out, or name a split such as train[:1000]."
        )
    return output, flags.num_workers or len(os.sched_getaffinity(0))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Makes the folder where it is not there, and keeps other processes from writing to it."""
    from pretraining.data.prepared import MANIFEST, PROGRESS
    from pretraining.run_lock import LOCK, run_lock

    if folder.is_file():
        raise ValueError(f"{folder} is a file, and shards need a folder. Nothing is written. Name another --output.")
    held = {path.name for path in folder.iterdir()} - {LOCK} if folder.is_dir() else set()
    if held and not held & {MANIFEST, PROGRESS}:
        raise ValueError(
            f"{folder} holds other files ({', '.join(sorted(held)[:3])}) and no {MANIFEST}: it is no folder of "
            "prepared shards. They would be mixed. Name a new folder in --output, or an empty one."
        )
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(run_lock(folder))
        except ValueError as error:
            raise ValueError(
                f"{folder} is being written by another command: wait until it is through, or name another --output."
            ) from error
        yield


def _found(folder: Path, fingerprint: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(manifest of the folder, or {}, and what is known of shards: by it and by an interrupted command)."""
    from pretraining.data.prepared import MANIFEST, PROGRESS, check_tokenizer, read_manifest

    before = read_manifest(folder) if (folder / MANIFEST).is_file() else {}
    records = [
        {"column": key} | shard for key, column in before.get("columns", {}).items() for shard in column["shards"]
    ]
    lines = (folder / PROGRESS).read_bytes().splitlines() if (folder / PROGRESS).is_file() else []
    notes = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last one, where the machine stopped while it was written
            notes.append(json.loads(line))
    for header in (before, *notes):
        if "tokenizer_fingerprint" in header:
            check_tokenizer(folder, header, fingerprint)
    return before, records + [note for note in notes if "column" in note]


@contextlib.contextmanager
def _journal(path: Path, header: dict[str, Any]) -> Iterator:
    """Notes what is finished, a line each, on the disk before the next is begun."""
    with path.open("ab") as stream:

        def note(facts: dict[str, Any]) -> None:
            stream.write(json.dumps(facts).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())

        if stream.tell():
            stream.write(b"\n")  # a line may have been cut short, and be it the first
        note(header)
        yield note


def _files(manifest: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """{file: (size, sha256)} of everything that a manifest names."""
    shards = (shard for column in manifest["columns"].values() for shard in column["shards"])
    files = {shard["file"]: (shard["bytes"], shard["sha256"]) for shard in shards}
    alignments = (corpus["alignment"] for corpus in manifest["corpora"] if corpus["alignment"])
    return files | {facts["file"]: (facts["size"], facts["sha256"]) for facts in alignments}


def _tidy(folder: Path, manifest: dict[str, Any]) -> None:
    """Removes files of ours that the manifest no longer names, and what a killed process left."""
    from pretraining.data.shards import FOLDERS

    named = _files(manifest)
    for place in FOLDERS:
        for path in sorted((folder / place).rglob("*"), reverse=True):
            if path.is_dir():
                with contextlib.suppress(OSError):  # not empty
                    path.rmdir()
            elif path.relative_to(folder).as_posix() not in named:
                path.unlink()
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink()


class _Progress:
    """A bar with tokens a second on a terminal, a line now and then in a log; no total where streams are read."""

    def __init__(self, doing: str, unit: str, total: int | None):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self.bar = Progress(
            TextColumn(doing),
            BarColumn(),
            TextColumn("{task.completed:,} {task.fields[unit]}  {task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(doing, total=total, unit=unit, rate="")
        self.in_log = None if console.is_terminal else console
        self.tokens, self.started = 0, time.perf_counter()
        self.told = self.started

    def __enter__(self) -> "_Progress":
        self.bar.start()
        return self

    def __exit__(self, *error) -> None:
        self.bar.stop()

    def tell(self, rows: int, tokens: int) -> None:
        """So many more are written."""
        self.tokens += tokens
        rate = self.tokens / max(time.perf_counter() - self.started, 1e-9)
        self.bar.update(self.task, advance=rows, rate=f"{rate:,.0f} tokens/s" if self.tokens else "")
        if self.in_log and time.perf_counter() - self.told >= SECONDS_BETWEEN_LINES:
            self.told, task = time.perf_counter(), self.bar.tasks[0]
            of = "" if task.total is None else f" of {task.total:,.0f}"
            line = f"{task.description}: {task.completed:,.0f}{of} {task.fields['unit']} {task.fields['rate']}"
            self.in_log.print(line.rstrip(), highlight=False, soft_wrap=True)


def _print(manifest: dict[str, Any], names: list[str], seconds: float, written: int, kept: int, folder: Path) -> None:
    """A line for each corpus of the recipe, with what no line above it has counted, and what was done."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=str(folder), title_justify="left")
    table.add_column("corpus")
    for name in ("rows", "tokens", "shards", "MB"):
        table.add_column(name, justify="right")
    seen: dict[str, str] = {}
    totals = [0, 0, 0, 0.0]
    for corpus in manifest["corpora"]:
        if corpus["name"] not in names:
            continue
        sides, shared = [], []
        for key in dict.fromkeys(corpus["columns"]):
            (shared if key in seen else sides).append(key)
            seen.setdefault(key, corpus["name"])
        shards = [shard for key in sides for shard in manifest["columns"][key]["shards"]]
        figures = [
            sum(shard["rows"] for shard in shards),
            sum(shard["tokens"] for shard in shards),
            len(shards),
            sum(shard["bytes"] for shard in shards) / 1e6,
        ]
        totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
        note = f" (shares text of {', '.join(dict.fromkeys(seen[key] for key in shared))})" if shared else ""
        table.add_row(corpus["name"] + note, *(_shown(figures) if sides else []))
    table.add_section()
    table.add_row("all", *_shown(totals), style="bold")
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    rate = f", {written / seconds:,.0f} tokens/s" if written else ""
    console.print(f"{written:,} tokens written in {seconds:.1f} s{rate}; {kept} shards were there before")
    others = [corpus["name"] for corpus in manifest["corpora"] if corpus["name"] not in names]
    if others:
        console.print(f"kept from before: {', '.join(others)}")
    console.print(f"train with: prepared={folder}")


def _shown(figures: list) -> list[str]:
    return [f"{figure:,.1f}" if isinstance(figure, float) else f"{figure:,}" for figure in figures]


if __name__ == "__main__":
    main()
