"""Sources that go away while they are read: tried again for some minutes, from the row that was next."""

import logging
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import datasets
from huggingface_hub.errors import HTTPError

from pretraining.interruption import wait

logger = logging.getLogger(__name__)

# About five minutes in all: other processes of the run wait meanwhile, and give up after ten.
WAITS_SECONDS = (1, 4, 15, 60, 120, 120)
# What `datasets` itself tries again is one read or the opening of one remote file; its 20 tries of 5 seconds, before
# each of ours, would be too long.
DATASETS_TRIES, DATASETS_WAIT_SECONDS = 3, 2


class SourceGone(ValueError):
    """A source could not be read any more, and did not come back."""


def retried(open_rows: Callable[[], Iterator[Any]], name: str) -> Iterator[Any]:
    """The rows that `open_rows()` gives, which are the same at every call, whatever goes wrong with files and
    connections in between: after a failure the source is opened again, and the rows already given are passed over.

    Raises `SourceGone` after the last of `WAITS_SECONDS` without a further row.
    """
    _limit_datasets()
    given, failures = 0, 0
    while True:
        try:
            for row in islice(open_rows(), given, None):
                given, failures = given + 1, 0
                yield row
            return
        except Exception as error:
            if not is_of_source(error):
                raise
            if failures == len(WAITS_SECONDS):
                raise SourceGone(
                    f"{name} cannot be read after row {given:,} ({_shown(error)}), and did not come back in "
                    f"{len(WAITS_SECONDS)} tries over {sum(WAITS_SECONDS)} seconds: there is nothing to train on next. "
                    "Check the file, the mount or the connection."
                ) from error
            logger.warning(
                "%s cannot be read after row %s (%s): try %d of %d in %s s",
                name,
                f"{given:,}",
                _shown(error),
                failures + 1,
                len(WAITS_SECONDS),
                WAITS_SECONDS[failures],
            )
            wait(WAITS_SECONDS[failures])
            failures += 1


def is_of_source(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is one of files and connections, not of what they hold."""
    # the Hub's: httpx's or httpx2's as the huggingface_hub here speaks; connections and timeouts are no OSErrors there
    of_source: tuple[type[BaseException], ...] = (OSError, HTTPError)
    if "aiohttp" in sys.modules:  # slow to import, and no error of its comes where nobody has
        of_source += (sys.modules["aiohttp"].ClientError,)
    while error is not None:
        if isinstance(error, of_source):
            return True
        error = error.__cause__
    return False


def _limit_datasets() -> None:
    settings = datasets.config
    settings.STREAMING_READ_MAX_RETRIES = settings.STREAMING_OPEN_MAX_RETRIES = DATASETS_TRIES
    settings.STREAMING_READ_RETRY_INTERVAL = settings.STREAMING_OPEN_RETRY_INTERVAL = DATASETS_WAIT_SECONDS


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
