"""The command line of the word aligner: `word-align`, which reads sentence pairs and writes word links, and its
subcommands."""

import importlib
import os
import sys

from crosslingual_zoo.zoo_core.command_line import fail, until_pipe_closes, user_errors
from crosslingual_zoo.zoo_core.console import CONSOLE
from crosslingual_zoo.zoo_core.processes import launched_rank

COMMANDS = ("adapt", "project", "score")  # each a module of this package; without one of them, links are written


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exits with 2 for a user error, with 130 for Ctrl-C."""
    name = "links"
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        name = arguments.pop(0)
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            fail(f"word-align {name} runs in one process. Start it without the launcher.")
    command = importlib.import_module(f"{__package__}.{name}")
    options, *more_options = command.read_options(arguments)
    CONSOLE.quiet = options.quiet or launched_rank() > 0
    with user_errors():
        try:
            with until_pipe_closes():
                command.run(options, *more_options)
        except RuntimeError as error:
            if type(error).__name__ != "OutOfMemoryError":  # of torch, which --help does not import
                raise
            raise ValueError(f"{str(error).splitlines()[0]} Lower --batch-size.") from None
        finally:
            CONSOLE.quiet = False  # of other commands in this process
