"""The processes of a run, as `accelerate launch` started them, and the signals that stop them.

After the first SIGTERM or Ctrl-C, training finishes its step and saves; a second one ends the program at once.
`stop_signals` surrounds a program. Training holds signals (`hold_signals`, `held_signals`): a signal is then only noted
(`received`), and the loop looks for it between two steps. Elsewhere, and in an `at_once` block, it raises `Stopped`.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from accelerate import PartialState

T = TypeVar("T")

PATIENCE = timedelta(hours=3)  # how long processes wait for another one, which may evaluate something large
SECONDS_TO_APPEAR = 60  # until other machines see a new file: network storage has delays
SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A Ctrl-C reaches the launcher and its processes, and the launcher sends it to them again: one key, two signals.
REPEATED_WITHIN_SECONDS = 2.0


def launched_rank() -> int:
    """Returns the rank of this process among those of a launcher; 0 without a launcher."""
    return int(os.environ.get("RANK", 0)) if int(os.environ.get("WORLD_SIZE", 1)) > 1 else 0


def start_processes() -> "PartialState":
    """Joins the processes that `accelerate launch` started; call this before anything else uses them.

    Raises ValueError if they do not find each other: each would train alone, on every row, and all would write the same
    files.
    """
    from accelerate import PartialState  # seconds
    from accelerate.utils import parse_flag_from_env

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

    If `work` raises ValueError, OSError or `Stopped` in any process, all processes raise ValueError or `Stopped`.
    """
    from accelerate import PartialState
    from accelerate.utils import gather_object

    if PartialState().num_processes == 1:
        return [work()]
    result = error = None
    try:
        result = work()
    except (ValueError, OSError, Stopped) as raised:
        error = raised
    try:
        found = gather_object([(result, error and str(error), getattr(error, "signal", None))])
    except RuntimeError as raised:  # the launcher ends this one as well
        raise ValueError("Another process of this run has ended.") from raised
    for _, message, number in found:
        if message is not None:
            raise Stopped(number) if number else ValueError(message) from error
    return [result for result, *_ in found]


@contextlib.contextmanager
def main_first() -> Iterator[None]:
    """Runs the block first in the first process of each machine, so that the others find its downloads in a cache.

    If the block raises ValueError or OSError in any process, all processes raise ValueError.
    """
    from accelerate import PartialState

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

    def sees() -> bool:
        until = time.monotonic() + SECONDS_TO_APPEAR
        while not (seen := file.exists()) and time.monotonic() < until:
            time.sleep(1)
        return seen

    from_all(lambda: None)  # the main process has written it
    if blind := [rank for rank, seen in enumerate(from_all(sees)) if not seen]:
        raise ValueError(
            f"{field} is {str(file.parent)!r}: process {blind[0]} does not see the files that the first process wrote "
            "there. Name a folder on storage that all machines share, under the same path."
        )


class Stopped(BaseException):
    """A signal has stopped the program. Not an `Exception`, like KeyboardInterrupt, so that no library catches it."""

    def __init__(self, number: signal.Signals):
        super().__init__(f"stopped by {number.name}")
        self.signal = number


class _State:
    """Of this process: its first signal, when it came, and whether signals are held."""

    received: signal.Signals | None = None
    at = 0.0
    is_held = False


def received() -> signal.Signals | None:
    """Returns the first stop signal of this process, or None."""
    return _State.received


@contextlib.contextmanager
def stop_signals(advice: str = "") -> Iterator[None]:
    """Ends the program with code 143 after SIGTERM or 130 after Ctrl-C, and prints one line with `advice` on how to
    continue.

    Only the main thread can have handlers; in another thread this does nothing. A signal that is ignored, as SIGINT is
    in a background job, stays ignored. At the end the previous handlers are restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _State.received, _State.is_held = None, False
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _handle)
    try:
        yield
    except (Stopped, Exception) as error:
        # another process of the run may have received the signal too and ended, so that waiting for it failed here
        number = error.signal if isinstance(error, Stopped) else _State.received
        if number is None:
            raise
        if launched_rank() == 0:
            line = f"{Path(sys.argv[0]).name}: {Stopped(number)}{advice and '; '}{advice}"
            print(line, file=sys.stderr, flush=True)
        sys.exit(128 + number)
    finally:
        _State.received, _State.is_held = None, False
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def stop_all(error: Exception, is_main_process: bool) -> BaseException:
    """Returns what a process raises when all processes of a run stop for the same reason: only the main one reports it.

    Signals are held, because a launcher sends SIGTERM to the other processes when one ends, and the main process may
    still have something to print.
    """
    hold_signals()
    return error if is_main_process else SystemExit(2)


def stop_if_told() -> None:
    """Raises `Stopped` if a signal has come."""
    if _State.received:
        raise Stopped(_State.received)


def hold_signals() -> None:
    """Only notes a first signal, from now to the end of `stop_signals`."""
    _State.is_held = True


@contextlib.contextmanager
def held_signals(is_held: bool = True) -> Iterator[None]:
    """Only notes a first signal inside the block."""
    before, _State.is_held = _State.is_held, is_held
    try:
        yield
    finally:
        _State.is_held = before


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Raises `Stopped` inside the block after a signal, also after one that came before the block."""
    with held_signals(False):
        stop_if_told()
        yield


def leave_signals_to_main(worker: int) -> None:
    """Makes a data-loading worker ignore Ctrl-C and the first SIGTERM; the run ends it with a second SIGTERM.

    Otherwise a signal to the whole process group would kill the worker before the run can save.
    """
    _State.received, _State.is_held = None, True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _handle(number: int, frame: object) -> None:
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ  # by torchrun, or accelerate with several processes
    is_first = _State.received is None
    if not is_launched or (not is_first and time.monotonic() - _State.at >= REPEATED_WITHIN_SECONDS):
        # the system's handler, so that a second signal also ends code that does not return to Python
        signal.signal(number, signal.SIG_DFL)
    if is_first:
        _State.received, _State.at = signal.Signals(number), time.monotonic()
        if not _State.is_held:
            raise Stopped(_State.received)
    elif signal.getsignal(number) == signal.SIG_DFL:
        os.kill(os.getpid(), number)
