"""Shards written by several processes: what a shard is made of is decided before, so their number changes nothing."""

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

from pretraining.data.fast_tokenize import FastTokens
from pretraining.data.shards import Shard, damage, write_shard
from pretraining.data.sources import TextColumn
from pretraining.data.tokenized import tokenize

ROWS_AT_ONCE = 1000  # tokenized and counted in one go
POLL_SECONDS = 0.2
TEXT, IDENTITY = "text", "identity"  # columns of rows that were read from a stream
OF_STREAM = TextColumn(None, TEXT, IDENTITY)


@dataclass(frozen=True)
class Job:
    """One shard to write, or to keep where what is `known` of it still holds, as is known already of one `checked`.
    Without `given` its rows are read from the table of its column."""

    column: str
    file: str
    first: int
    rows: int
    known: Shard | None = None
    given: dict[str, list] | None = None
    checked: bool = False


@dataclass(frozen=True)
class Work:
    """What every process needs: the prepared folder, the tokenizer, and the tables."""

    folder: Path
    encoder: FastTokens
    columns: dict[str, TextColumn]

    def do(self, job: Job, count: Callable[[int, int], None]) -> tuple[Shard, bool]:
        """The shard of a job, and whether it was there before; `count` is told rows and tokens as they are written."""
        shard = job.known
        if shard and (job.checked or damage(self.folder, shard.file, shard.bytes, shard.sha256) is None):
            count(shard.rows, 0)
            return shard, True
        column = OF_STREAM if job.given else self.columns[job.column]
        parts = []
        for start in range(job.first, job.first + job.rows, ROWS_AT_ONCE):
            stop = min(start + ROWS_AT_ONCE, job.first + job.rows)
            batch = _given(job, start, stop) if job.given else _read(column, start, stop)
            parts.append(tokenize(batch, range(start, stop), column, self.encoder, large=True))
            count(stop - start, len(parts[-1][0].values))
        path = self.folder / job.file
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_shard(self.folder, job.file, job.first, parts), False


def shards_of(
    jobs: Iterable[Job], work: Work, num_workers: int, tell: Callable[[int, int], None]
) -> Iterator[tuple[Job, Shard, bool]]:
    """Does the jobs, in whichever order they end: (job, its shard, whether it was kept).

    `tell` is called again and again with the rows and tokens written since the last time. Jobs are taken as they can
    be done, so that those that hold text do not fill the memory.

    Raises ValueError where a process dies, and what a job raises.
    """
    if num_workers == 1:
        for job in jobs:
            yield job, *work.do(job, tell)
        return
    # not forked from this process, whose libraries have threads; forked from one that has only loaded them
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pretraining.data.shard_workers"])
    counts, stop = context.Array("q", 2), context.Event()
    told = [0, 0]

    def tell_counts() -> None:
        with counts:
            now = list(counts)
        tell(now[0] - told[0], now[1] - told[1])
        told[:] = now

    pool = ProcessPoolExecutor(num_workers, context, initializer=_start, initargs=(work, counts, stop))
    running: dict[Future, Job] = {}
    try:
        remaining = iter(jobs)
        while True:
            while len(running) <= num_workers and (job := next(remaining, None)) is not None:
                running[pool.submit(_do, job)] = job
            if not running:
                break
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                yield running.pop(future), *future.result()
            tell_counts()
        tell_counts()
    except BrokenProcessPool as error:
        raise ValueError(
            "A process that wrote shards was ended from outside: where memory is short, the system does this. Its "
            "shard is not written. Run the command again with a lower --num_workers; what is finished is kept."
        ) from error
    finally:
        stop.set()  # after an error: what others have begun is not waited for
        pool.shutdown(cancel_futures=True)


_process: dict[str, Any] = {}  # of a worker: its work, and how it tells what it has done


def _start(work: Work, counts, stop) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process says when to stop
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()

    def count(rows: int, tokens: int) -> None:
        if stop.is_set():
            raise InterruptedError("another process has failed")
        with counts:
            counts[0] += rows
            counts[1] += tokens

    _process["do"] = functools.partial(work.do, count=count)


def _do(job: Job) -> tuple[Shard, bool]:
    return _process["do"](job)


def _end_with(sentinel: int) -> None:
    """Ends this process when its parent has ended, however it ended."""
    wait_for([sentinel])
    os._exit(1)


def _read(column: TextColumn, start: int, stop: int) -> dict[str, list]:
    wanted = [name for name in (column.column, column.identity, column.document) if name is not None]
    names = {name if name in column.rows.column_names else name.partition(".")[0] for name in wanted}
    return column.rows.select_columns(sorted(names)).with_format(None)[start:stop]


def _given(job: Job, start: int, stop: int) -> dict[str, list]:
    return {name: values[start - job.first : stop - job.first] for name, values in job.given.items()}
