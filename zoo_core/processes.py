"""The processes of a run, as `accelerate launch` started them, and the signals that stop them.

After the first SIGTERM or Ctrl-C, training finishes its step and saves; a second one ends the program at once.
`stop_signals` surrounds a program. Training holds signals (`held_signals`, `hold_signals`): a signal is then only noted
(`received`), and the loop looks for it between two steps. Elsewhere, and in an `at_once` block, it raises `Stopped`.
"""

import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

PATIENCE = timedelta(hours=3)  # how long processes wait for another one, which may evaluate something large
SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A Ctrl-C reaches the launcher and its processes, and the launcher sends it to them again: one key, two signals.
REPEATED_WITHIN_SECONDS = 2.0
# Of this process: its first signal, when it came, and whether signals are held.
_STATE = SimpleNamespace(received=None, seconds=0.0, is_held=False)
# Linux's prctl, and the process whose forks end with it, inside of `forks_end_with_this_process`
_FORKS = SimpleNamespace(prctl=None, parent=None)
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>: the signal that a process gets when its parent ends


def launched_rank() -> int:
    """Returns the rank of this process among those of a launcher; 0 without a launcher."""
    return int(os.environ.get("RANK", 0)) if int(os.environ.get("WORLD_SIZE", 1)) > 1 else 0


def start_processes() -> Any:
    """Joins the processes that `accelerate launch` started, and returns their PartialState. Call this first. Raises
    ValueError if they do not find each other: all would write the same files."""
    from accelerate import PartialState  # seconds
    from accelerate.utils import parse_flag_from_env

    # accelerate reads this variable only when an Accelerator is made, which is too late here
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=PATIENCE)
    launched = int(os.environ.get("WORLD_SIZE", 1))
    if launched != state.num_processes:
        remedy = "On CPU, launch with ACCELERATE_USE_CPU=true and --multi_gpu; on GPUs, check `accelerate env`."
        raise ValueError(f"{launched} processes were launched, but accelerate joined {state.num_processes}. {remedy}")
    return state


class Outcome(NamedTuple):
    """Of the work of a process: its result, or why there is none."""

    result: Any = None
    message: str | None = None
    stop: signal.Signals | None = None
    error: Exception | None = None  # of this process alone: not every error can be sent


def from_all(work: Callable[[], T]) -> list[T]:
    """Runs `work` in every process, and returns all results, in the order of the processes, in each of them. If `work`
    raises ValueError, OSError or `Stopped` in any process, all processes raise ValueError or `Stopped`."""
    from accelerate import PartialState
    from accelerate.utils import gather_object

    if PartialState().num_processes == 1:
        return [work()]
    try:
        outcome = Outcome(work())
    except Stopped as stopped:
        outcome = Outcome(stop=stopped.signal)
    except (ValueError, OSError) as error:
        outcome = Outcome(error=error, message=str(error))
    try:
        outcomes = gather_object([outcome._replace(error=None)])
    except RuntimeError as error:  # the launcher ends this one as well
        raise ValueError("Another process of this run has ended.") from error
    for other in outcomes:
        if other.stop is not None:
            raise Stopped(other.stop)
        if other.message is not None:
            raise ValueError(other.message) from outcome.error
    return [other.result for other in outcomes]


@contextlib.contextmanager
def main_first() -> Generator[None]:
    """Runs the block first in the first process of each machine, so that the others find its downloads in a cache. If
    it raises ValueError or OSError in any process, all processes raise ValueError."""
    from accelerate import PartialState

    is_first = PartialState().is_local_main_process
    errors = []

    def report() -> None:
        for error in errors:
            raise error

    if not is_first:
        from_all(report)
    try:
        yield
    except (ValueError, OSError) as raised:
        errors.append(raised)
    if is_first:
        from_all(report)
    from_all(report)


class Stopped(BaseException):
    """A signal has stopped the program. Not an `Exception`, like KeyboardInterrupt, so that no library catches it."""

    def __init__(self, number: signal.Signals):
        super().__init__(f"stopped by {number.name}")
        self.signal = number


def received() -> signal.Signals | None:
    """Returns the first stop signal of this process, or None."""
    return _STATE.received


def stop_if_told() -> None:
    """Raises `Stopped` if a signal has come."""
    if _STATE.received:
        raise Stopped(_STATE.received)


@contextlib.contextmanager
def stop_signals(advice: str = "") -> Generator[None]:
    """Ends the program with code 143 after SIGTERM or 130 after Ctrl-C, and one line with `advice` on how to continue.

    Does nothing outside of the main thread, which alone can have handlers. A signal that is ignored, as SIGINT is in a
    background job, stays ignored. At the end the previous handlers are restored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _forget_signals()
    handlers_before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in handlers_before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _handle)
    try:
        yield
    except (Stopped, Exception) as error:
        # another process of the run may have received the signal too and ended, so that waiting for it failed here
        number = error.signal if isinstance(error, Stopped) else _STATE.received
        if number is None:
            raise
        if launched_rank() == 0:
            line = f"{Path(sys.argv[0]).name}: {Stopped(number)}"
            if advice:
                line += f"; {advice}"
            print(line, file=sys.stderr, flush=True)
        sys.exit(128 + number)
    finally:
        _forget_signals()
        for number, handler in handlers_before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _forget_signals() -> None:
    _STATE.received = None
    _STATE.is_held = False


def hold_signals() -> None:
    """Only notes a first signal, from now to the end of `stop_signals`."""
    _STATE.is_held = True


@contextlib.contextmanager
def held_signals(is_held: bool = True) -> Generator[None]:
    """Only notes a first signal inside the block. If not `is_held`, raises it, also one that came before."""
    was_held = _STATE.is_held
    _STATE.is_held = is_held
    try:
        if not is_held:
            stop_if_told()
        yield
    finally:
        _STATE.is_held = was_held


at_once = functools.partial(held_signals, False)


@contextlib.contextmanager
def forks_end_with_this_process() -> Generator[None]:
    """Inside the block, processes are forked that end with this one, also if it is killed: on Linux, whose kernel does
    this. `datasets` forks processes that otherwise wait forever."""
    if sys.platform == "linux":
        _FORKS.prctl = ctypes.CDLL(None).prctl
        _FORKS.parent = os.getpid()
    try:
        yield
    finally:
        _FORKS.parent = None


def _after_fork() -> None:
    if _FORKS.parent is None:
        return
    _FORKS.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != _FORKS.parent:  # it ended in between
        os._exit(1)
    _FORKS.parent = None  # of this process' own forks


os.register_at_fork(after_in_child=_after_fork)


def leave_signals_to_main(worker: int) -> None:
    """Makes a data-loading worker ignore Ctrl-C and the first SIGTERM, which may be of the whole process group, so that
    the run can save; the run ends the worker with a second SIGTERM."""
    _forget_signals()
    hold_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _handle(number: int, frame: object) -> None:
    is_launched = "TORCHELASTIC_RUN_ID" in os.environ  # by torchrun, or accelerate with several processes
    if _STATE.received is None:
        _STATE.received = signal.Signals(number)
        _STATE.seconds = time.monotonic()
        if not is_launched:
            # the system's handler, so that a second signal also ends code that does not return to Python
            signal.signal(number, signal.SIG_DFL)
        if not _STATE.is_held:
            raise Stopped(_STATE.received)
    elif not is_launched or time.monotonic() - _STATE.seconds >= REPEATED_WITHIN_SECONDS:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
