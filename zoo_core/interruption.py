"""SIGTERM and Ctrl-C: what is in hand is finished and saved first; a second signal stops at once.

`stop_signals` surrounds the program. A first signal ends the program where it is: outside of training there is nothing
to lose. Training holds signals (`hold_signals`, or `held_signals` for a block). A signal is then only noted
(`received`), for the training loop to find between two steps, and for what waits (`stop_if_told`); inside `at_once`,
for what may take long and changes nothing, it raises `Stopped` there.
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
# A Ctrl-C reaches the launcher and its processes, and the launcher passes it on to them: one key, two signals.
REPEATED_WITHIN_SECONDS = 2.0
SLICE_SECONDS = 0.1


class Stopped(BaseException):
    """A signal asks to stop. Like KeyboardInterrupt no `Exception`: no library takes it for a failure of its own."""

    def __init__(self, number: signal.Signals, is_reported: bool = False):
        """`is_reported`: a message has said where the run stands."""
        super().__init__(f"stopped by {number.name}")
        self.signal, self.is_reported = number, is_reported


class _State:
    """Of this process: the first signal that came, when, whether it waits for the loop to look, and how to continue."""

    received: signal.Signals | None = None
    advice = RESUME
    at = 0.0
    is_held = False


def received() -> signal.Signals | None:
    """The signal that asked this process to stop, or None."""
    return _State.received


def advice() -> str:
    """How what was saved is continued, for messages."""
    return _State.advice


@contextlib.contextmanager
def stop_signals(advice: str = RESUME, unsaved: str = "there was nothing to save") -> Iterator[None]:
    """Ends the program with 143 after SIGTERM, 130 after Ctrl-C, and one line on the error stream.

    `advice` says how to continue; `unsaved` is said in its place where no message has said where the run is.

    Handlers belong to the main thread; in another one this does nothing. A signal that is ignored, as SIGINT is in a
    background job, stays ignored. The handlers that were there are restored.
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
        # another process of the run was stopped as well and is gone: what waited for it fails, for no fault of its own
        _print(f"stopped by {_State.received.name}{advice and '; '}{advice}")
        sys.exit(128 + _State.received)
    finally:
        _State.received, _State.is_held = None, False
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def stop_if_told() -> None:
    """Raises `Stopped` where a signal has come."""
    if _State.received:
        raise Stopped(_State.received)


def hold_signals() -> None:
    """From here to the end of `stop_signals` a first signal is noted only."""
    _State.is_held = True


@contextlib.contextmanager
def held_signals(is_held: bool = True) -> Iterator[None]:
    """In here a first signal is noted only."""
    before, _State.is_held = _State.is_held, is_held
    try:
        yield
    finally:
        _State.is_held = before


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """A signal, one that came before included, raises `Stopped` in here."""
    with held_signals(False):
        stop_if_told()
        yield


def stop_all(error: Exception, is_main_process: bool) -> BaseException:
    """What a process raises where all of a run stop for the same reason: the main one reports it, the others are
    silent.

    A launcher sends SIGTERM to the rest as soon as one has ended: the main process may still have something to print.
    """
    hold_signals()
    return error if is_main_process else SystemExit(2)


def leave_signals_to_main(worker: int) -> None:
    """For data-loading workers, which a signal to the whole group would kill before the run can save.

    Ctrl-C is left to the run. So is the first SIGTERM; the run sends the second.
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
        # left to the system, so that the second one also ends what does not come back to Python
        signal.signal(number, signal.SIG_DFL)
    if not _State.is_held:
        raise Stopped(_State.received)


def _print(text: str) -> None:
    if launched_rank() == 0:
        print(f"{Path(sys.argv[0]).name}: {text}", file=sys.stderr, flush=True)
