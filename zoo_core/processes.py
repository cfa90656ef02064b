"""The processes of one run, as `accelerate launch` started them."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env

from zoo_core.interruption import Stopped

T = TypeVar("T")

PATIENCE = timedelta(hours=3)  # how long processes wait for another one, which may evaluate something large
SECONDS_TO_APPEAR = 60  # until other machines see a new file: network storage has delays


def start_processes() -> PartialState:
    """Joins the processes that `accelerate launch` started; call this before anything else uses them.

    Raises ValueError if they do not find each other: each would train alone, on every row, and all would write the same
    files.
    """
    # accelerate reads this variable only when an Accelerator is made, which is too late here
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=PATIENCE)
    launched = int(os.environ.get("WORLD_SIZE", 1))
    if launched != state.num_processes:
        raise ValueError(
            f"{launched} processes were launched, but accelerate joined {state.num_processes}. On CPU, launch with "
            "ACCELERATE_USE_CPU=true and --multi_gpu; on GPUs, check `accelerate env`."
        )
    return state


def from_all(work: Callable[[], T]) -> list[T]:
    """Runs `work` in every process, and returns the results of all processes, in their order, in each of them.

    If `work` raises ValueError or OSError in any process, all processes raise ValueError. The same holds for `Stopped`.
    """
    if PartialState().num_processes == 1:
        return [work()]
    result = error = None
    try:
        result = work()
    except (ValueError, OSError, Stopped) as raised:
        error = raised
    number = error.signal if isinstance(error, Stopped) else None
    try:
        found = gather_object([(result, error and str(error), number)])
    except RuntimeError as raised:  # the launcher ends this one as well
        raise ValueError("Another process of this run has ended.") from raised
    for _, message, number in found:
        if number is not None:
            raise Stopped(number)
        if message is not None:
            raise ValueError(message) from error
    return [result for result, *_ in found]


@contextlib.contextmanager
def main_first() -> Iterator[None]:
    """Runs the block first in the first process of each machine, so that the others find its downloads in a cache.

    If the block raises ValueError or OSError in any process, all processes raise ValueError.
    """
    is_first, error = PartialState().is_local_main_process, None

    def report() -> None:
        if error is not None:
            raise error

    if not is_first:
        from_all(lambda: None)
    try:
        yield
    except (ValueError, OSError) as raised:
        error = raised
    from_all(report)
    if is_first:
        from_all(lambda: None)


def check_shared_folder(file: Path, field: str) -> None:
    """Waits until all processes see `file`, which the main process has written.

    Raises ValueError in all of them if one does not see it: it would write its part of a checkpoint elsewhere.
    """
    state = PartialState()
    state.wait_for_everyone()
    until = time.monotonic() + SECONDS_TO_APPEAR
    while not (seen := file.exists()) and time.monotonic() < until:
        time.sleep(1)
    if blind := [rank for rank, sees in enumerate(gather_object([seen])) if not sees]:
        raise ValueError(
            f"{field} is {str(file.parent)!r}, and process(es) {', '.join(map(str, blind))} of {state.num_processes} "
            f"do not see the files that the first process wrote there: parts of checkpoints would be on different "
            f"machines. Name a folder on storage that all machines share, under the same path."
        )
