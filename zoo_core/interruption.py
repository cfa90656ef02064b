"""SIGTERM and Ctrl-C: after the first signal, training finishes its step and saves; a second signal stops at once.

`stop_signals` surrounds the program. Outside of training there is nothing to save, so the first signal ends the program
there. Training holds signals (`hold_signals`, or `held_signals` for a block): a signal is then only noted (`received`).
The training loop looks for it between two steps, and code that waits looks for it with `stop_if_told`. In an `at_once`
block, for work that may take long and changes nothing, a signal raises `Stopped` immediately.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from zoo_core.command_line import RESUME, launched_rank

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A Ctrl-C reaches the launcher and its processes, and the launcher sends it to them again: one key, two signals.
REPEATED_WITHIN_SECONDS = 2.0
SLICE_SECONDS = 0.1


class Stopped(BaseException):
    """A signal has stopped the program. Not an `Exception`, like KeyboardInterrupt, so that no library catches it."""

    def __init__(self, number: signal.Signals, is_reported: bool = False):
        """`is_reported`: a message about the state of the run has been printed."""
        super().__init__(f"stopped by {number.name}")
        self.signal, self.is_reported = number, is_reported


class _State:
    """Of this process: its first signal, when it came, whether signals are held, and how to continue."""

    received: signal.Signals | None = None
    advice = RESUME
    at = 0.0
    is_held = False


def received() -> signal.Signals | None:
    """Returns the first stop signal of this process, or None."""
    return _State.received


def advice() -> str:
    """Returns how to continue the run, for messages."""
    return _State.advice


@contextlib.contextmanager
def stop_signals(advice: str = RESUME, unsaved: str = "there was nothing to save") -> Iterator[None]:
    """Ends the program with code 143 after SIGTERM or 130 after Ctrl-C, and prints one line on the error stream.

    `advice` tells the user how to continue. `unsaved` replaces it if no message about the run's state was printed.

    Only the main thread can have handlers; in another thread this does nothing. A signal that is ignored, as SIGINT is
    in a background job, stays ignored. At the end the previous handlers are restored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _State.received, _State.is_held, _State.advice = None, False, advice
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _handle)
    try:
        yield
    except Stopped as stop:
        if not stop.is_reported:
            _print(f"{stop}; {unsaved}")
        sys.exit(128 + stop.signal)
    except Exception:
        if _State.received is None:
            raise
        # another process of the run has received the signal too and ended, so that waiting for it failed here
        _print(f"stopped by {_State.received.name}{advice and '; '}{advice}")
        sys.exit(128 + _State.received)
    finally:
        _State.received, _State.is_held = None, False
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


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


def stop_all(error: Exception, is_main_process: bool) -> BaseException:
    """Returns what a process raises when all processes of a run stop for the same reason: only the main one reports it.

    Signals are held, because a launcher sends SIGTERM to the other processes when one ends, and the main process may
    still have something to print.
    """
    hold_signals()
    return error if is_main_process else SystemExit(2)


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
    if _State.received is not None:
        if not is_launched or time.monotonic() - _State.at >= REPEATED_WITHIN_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        return
    _State.received, _State.at = signal.Signals(number), time.monotonic()
    if not is_launched:
        # the system's handler, so that a second signal also ends code that does not return to Python
        signal.signal(number, signal.SIG_DFL)
    if not _State.is_held:
        raise Stopped(_State.received)


def _print(text: str) -> None:
    if launched_rank() == 0:
        print(f"{Path(sys.argv[0]).name}: {text}", file=sys.stderr, flush=True)
