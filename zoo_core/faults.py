"""Faults in the rows of a user's file: an error at the first one or, for `--check_data`, a list of all.

with listed_faults() as faults:
    data = read(recipe)          # every `report_faults` below adds to the list, and reading continues
print("\\n".join(faults))
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

_listed: ContextVar[list[str] | None] = ContextVar("listed_faults", default=None)


@contextlib.contextmanager
def listed_faults() -> Iterator[list[str]]:
    """Yields a list: inside the block, `report_faults` adds to it and does not raise."""
    faults: list[str] = []
    token = _listed.set(faults)
    try:
        yield faults
    finally:
        _listed.reset(token)


def are_listed() -> bool:
    """Returns whether faults are collected in a list; the caller must then continue after a fault."""
    return _listed.get() is not None


def are_found() -> bool:
    """Returns whether faults have been collected; labels of rows may then be placeholders."""
    return bool(_listed.get())


def report_faults(faults: Sequence[str], advice: str) -> None:
    """Raises ValueError with the first fault, the number of the others, and the advice. Does nothing without faults.

    In a `listed_faults` block, adds all faults to its list instead.
    """
    if not faults:
        return
    listed = _listed.get()
    if listed is None:
        others = f", and {len(faults) - 1:,} more like it" if faults[1:] else ""
        raise ValueError(f"{faults[0]}{others}. {advice}")
    listed[:] = dict.fromkeys([*listed, *(f"{fault}. {advice}".strip() for fault in faults)])  # each once
