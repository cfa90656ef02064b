"""Tokenizes the corpora of a recipe once, into files (shards) that training maps into memory.

python -m pretraining.tools.prepare --config RECIPE.yaml --output DIR
"""

import functools
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pretraining.recipe import Recipe
from zoo_core.command_line import parse_command_line, user_errors

DESCRIPTION = """Tokenize the corpora of a recipe once, into files (shards) that training maps into memory.

  python -m pretraining.tools.prepare --config RECIPE.yaml --output shards/mine
  python pretraining/run.py --config RECIPE.yaml prepared=shards/mine --dry_run
  accelerate launch pretraining/run.py --config RECIPE.yaml prepared=shards/mine

A run with `prepared` trains on the same examples, held-out rows and masks as without. It starts at once and opens no
table. If the command is interrupted, run it again: it continues with the next shard. After a change of the recipe or of
a table, it writes only what is new. The folder keeps corpora of other recipes with the same tokenizer.

The command reads streamed corpora once, from the start and in order. After that they are like other corpora: they are
shuffled as a whole, long texts are cut into windows without losing tokens, and their size is counted."""

FLAGS = {
    "--output": {"metavar": "DIR", "help": "folder to write the shards to (default: the recipe's `prepared`)"},
    "--num_workers": {"type": int, "metavar": "N", "help": "processes that tokenize (default: one per CPU core)"},
    "--max_rows": {"type": int, "metavar": "N", "help": "read at most N rows of each streamed corpus (default: all)"},
    "--shard_mib": {"type": int, "default": 64, "metavar": "N", "help": "text per shard in MiB (default: %(default)s)"},
}

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> None:
    """Runs the command; `argv` defaults to the command line."""
    recipe, flags = parse_command_line(Recipe, DESCRIPTION, FLAGS, argv)
    with user_errors():
        recipe.check()
        from zoo_core.console import quiet_libraries  # after --help

        quiet_libraries()
        output, workers = _check_flags(flags, recipe)
        signal.signal(signal.SIGTERM, functools.partial(_end, os.getpid()))
        try:
            prepare(recipe, output, workers, flags.max_rows, flags.shard_mib * 2**20)
        except BaseException as error:  # `datasets` waits for its processes meanwhile, and raises that they are late
            if KeyboardInterrupt not in (type(error), type(error.__context__)):
                raise
            print("\nInterrupted. Finished shards are kept; run the same command to continue.", file=sys.stderr)
            sys.exit(130)


def _end(parent: int, number: int, frame: Any) -> None:
    """Raises KeyboardInterrupt as Ctrl-C does, so that `datasets` ends its processes; those end at once."""
    if os.getpid() != parent:
        os._exit(0)
    raise KeyboardInterrupt


def prepare(recipe: Recipe, output: str | Path, num_workers: int, max_rows: int | None, shard_bytes: int) -> None:
    """Writes the shards of the recipe's corpora into the folder `output`, and prints their rows and tokens.

    Raises ValueError for the errors of `open_sources`, for a folder with other files or another tokenizer, and for a
    folder that another process is writing.
    """

    from pretraining.data import prepared
    from pretraining.data.sources import open_sources
    from pretraining.data.tokenized import tokenizer_fingerprint
    from pretraining.start.initialization import Start
    from zoo_core.provenance import write_json
    from zoo_core.run_folders import run_lock

    folder, started = Path(output), time.perf_counter()
    if others := prepared.others_in(folder):
        raise ValueError(f"--output {folder} holds other files, such as {others[0]}. Give an empty folder.")
    with run_lock(folder):
        tokenizer = Start.of(recipe).load_tokenizer()
        fingerprint = tokenizer_fingerprint(tokenizer)
        before: dict[str, Any] = {"columns": {}, "corpora": []}
        if (folder / prepared.MANIFEST).is_file():
            before = prepared.read_manifest(folder)
            prepared.check_tokenizer(folder, before, fingerprint)
        writer = prepared.ShardWriter(folder, tokenizer, num_workers, shard_bytes)
        corpora, columns = [], {}
        for source in open_sources(recipe.named_corpora(), recipe.hub_root):
            logger.info("%s", source.name)
            keys = prepared.column_keys(source, fingerprint)
            if source.streaming:
                columns |= writer.write_stream(source, keys, max_rows, before["columns"])
            else:
                for key, side in zip(keys, source.sides, strict=True):
                    columns[key] = columns.get(key) or writer.write_table(side, key)
            corpora.append(writer.corpus(source, keys, columns, prepared.identities_of(recipe.named_corpora())))
        names = {corpus["name"] for corpus in corpora}
        others = [corpus for corpus in before["corpora"] if corpus["name"] not in names]
        columns |= {key: before["columns"][key] for corpus in others for key in corpus["columns"]}
        manifest = {
            "format": prepared.FORMAT,
            "tokenizer": str(tokenizer.name_or_path),
            "tokenizer_fingerprint": fingerprint,
            "columns": columns,
            "corpora": corpora + others,
        }
        write_json(folder / prepared.MANIFEST, manifest)
        shards = [shard for column in columns.values() for shard in column["shards"]]
        prepared.tidy(folder, shards + [corpus["alignment"] for corpus in corpora + others if corpus["alignment"]])
    for corpus in corpora:
        rows, tokens = (sum(columns[key][name] for key in corpus["columns"]) for name in ("rows", "tokens"))
        print(f"{corpus['name']}: {rows:,} rows, {tokens:,} tokens")
    if others:
        print(f"kept from earlier calls: {', '.join(corpus['name'] for corpus in others)}")
    rate = writer.tokens / (time.perf_counter() - started)
    print(f"{writer.tokens:,} tokens written, {rate:,.0f} per second\ntrain with: prepared={folder}")


def _check_flags(flags: Any, recipe: Recipe) -> tuple[str, int]:
    output = flags.output or recipe.prepared
    if not output:
        raise ValueError("--output is missing, and the recipe has no `prepared`. Give a folder for the shards.")
    for name in ("num_workers", "max_rows", "shard_mib"):
        value = getattr(flags, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}.")
    tables = [*recipe.monolingual, *(t for c in recipe.bitext for t in (c.table, c.source) if t is not None)]
    if flags.max_rows and not any(table.streaming for table in tables):
        raise ValueError(
            f"--max_rows is {flags.max_rows}, but no corpus of the recipe is streamed. Leave it out. To read fewer "
            "rows, set `split` of the corpus to a part, such as train[:1000]."
        )
    return output, flags.num_workers or len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
