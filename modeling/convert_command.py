"""What the converters' command lines share."""

import argparse
import os
import sys
from collections.abc import Callable


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """What a reader of foreign weights may have to be told."""
    parser.add_argument(
        "--num_attention_heads", type=int, metavar="N", help="default: what the file says, or hidden size / 64"
    )
    parser.add_argument(
        "--ignore_keys",
        action="append",
        default=[],
        metavar="REGEX",
        help="keys of the checkpoint to leave out, matched from end to end; may be given again",
    )


def run(name: str, convert: Callable[[], list[str]]) -> None:
    """Prints the notes of a conversion. Exit code 2 and a message where the user has to act.

    With ZOO_TRACEBACK=1 in the environment the error itself is raised.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        notes = convert()
    except (ValueError, OSError) as error:
        if os.environ.get("ZOO_TRACEBACK") == "1":
            raise
        print(f"{name}: error: {error}", file=sys.stderr)
        sys.exit(2)
    print("\n".join(notes))
