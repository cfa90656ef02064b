"""Faults of the rows of a user's file: an error at the first, or, for `--check_data`, a list of all.

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
    """Gives a list to which `report_faults` adds, in place of raising, until the context ends."""
    faults: list[str] = []
    token = _listed.set(faults)
    try:
        yield faults
    finally:
        _listed.reset(token)


def are_listed() -> bool:
    """Returns whether faults are added to a list, so that the caller must be able to continue."""
    return _listed.get() is not None


def are_found() -> bool:
    """Returns whether a list has faults by now, so that labels of rows may be made up."""
    return bool(_listed.get())


def report_faults(faults: Sequence[str], advice: str) -> None:
    """Raises ValueError with the first of the faults, the number of the others, and the advice; or adds all to the
    list of `listed_faults`. Does nothing where there are none.
    """
    if not faults:
        return
    listed = _listed.get()
    if listed is None:
        others = f", and {len(faults) - 1:,} more like it" if faults[1:] else ""
        raise ValueError(f"{faults[0]}{others}. {advice}")
    listed[:] = dict.fromkeys([*listed, *(f"{fault}. {advice}".strip() for fault in faults)])  # each once
