"""What the command lines of all programs share: parsers, `--version`, and how a program ends after a user error."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from crosslingual_zoo.zoo_core.processes import launched_rank
from crosslingual_zoo.zoo_core.provenance import version_line
from crosslingual_zoo.zoo_core.recipes import load_recipe, print_fields

RESUME = "resume from the last checkpoint with --resume"
SAME_COMMAND = "the same command continues the run"
TRUST_REMOTE_CODE = (
    "run the Python code in the folder or repository of a model or tokenizer; without it, the installed code loads the "
    "zoo's four models, transformers loads other models, and a model that needs its own code is an error"
)


class CommandParser(argparse.ArgumentParser):
    """argparse's parser with `--version`, one-line errors, and `--dry-run` for `--dry_run` (or the other way round).

    An option must be spelled out: the beginning of a mistyped one could be that of another.
    """

    def __init__(self, *arguments: Any, **keywords: Any):
        keywords.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        keywords.setdefault("allow_abbrev", False)
        super().__init__(*arguments, **keywords)
        about = "show the versions to name in an issue, and exit"
        self.add_argument("--version", action="store_true", default=argparse.SUPPRESS, help=about)

    # pyrefly: ignore[bad-override]  # the library's type has a case for each kind of namespace
    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        return super().parse_known_args(self._prepared(args), namespace)

    # argparse of Python 3.14 does not call the method above in this one
    # pyrefly: ignore[bad-override]  # as above
    def parse_known_intermixed_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        return super().parse_known_intermixed_args(self._prepared(args), namespace)

    def _prepared(self, args: Sequence[str] | None) -> list[str]:
        """Returns the arguments with options spelled as they are defined; prints the versions for `--version`."""
        arguments = sys.argv[1:] if args is None else list(args)
        undecodable = [text for text in arguments if text != text.encode(errors="replace").decode()]
        if undecodable:
            self.error(f"the argument {undecodable[0]!a} is not UTF-8")
        if "--version" in arguments:
            print(version_line())
            self.exit(0)
        return [self._spelled(argument) for argument in arguments]

    def _spelled(self, argument: str) -> str:
        name, equals, value = argument.partition("=")
        for option in self._option_string_actions:
            if option.startswith("--") and option.replace("_", "-") == name.replace("_", "-"):
                name = option
        return name + equals + value

    def error(self, message: str) -> NoReturn:
        fail(f"{self.prog}: error: {message.rstrip('.')}. --help lists the options.")


def parse_command_line(
    recipe_class: type,
    description: str,
    flags: dict[str, dict] | None = None,
    argv: list[str] | None = None,
    usage: str = "%(prog)s --config FILE [field=value ...] [flags]",
) -> tuple[Any, argparse.Namespace]:
    """Reads `--config FILE`, overrides `field=value` and the given extra flags (name -> argparse's keywords), as in
    `user_errors`. `--help` prints every field of the recipe."""
    parser = CommandParser(description=description, add_help=False, usage=usage)
    about = "recipe: a YAML file with the fields below, or FILE#ROW of a table; it may extend another (`extends`)"
    parser.add_argument("--config", metavar="FILE", help=about)
    about = "set a field of the recipe, as in a.b=1 or 'a.0.b=[x, y]'; values are YAML: 'language=\"no\"'"
    parser.add_argument("overrides", nargs="*", metavar="field=value", help=about)
    for name, keywords in (flags or {}).items():
        parser.add_argument(name, **keywords)
    parser.add_argument("-h", "--help", action="store_true", help="show this help and exit")
    if {"-h", "--help"} & set(sys.argv[1:] if argv is None else argv):  # before the flags that are required
        with until_pipe_closes():
            parser.print_help()
            print_fields(recipe_class)
        parser.exit(0)
    arguments = parser.parse_intermixed_args(argv)
    with user_errors():
        return load_recipe(recipe_class, arguments.config, arguments.overrides), arguments


@contextlib.contextmanager
def until_pipe_closes() -> Generator[None]:
    """Ends the program without a message where `| head` has closed its output."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        sys.exit(128 + signal.SIGPIPE)


@contextlib.contextmanager
def user_errors(after_interrupt: str = "") -> Generator[None]:
    """Ends the program with a message and without a traceback after an error that the user can fix.

    The exit code is 2 for a `ValueError` and for errors of the system (permissions, a full disk), and 130 for Ctrl-C,
    whose message ends with `after_interrupt`. `ZOO_TRACEBACK=1` in the environment shows the traceback."""
    try:
        yield
    except (ValueError, OSError, KeyboardInterrupt) as error:
        if os.environ.get("ZOO_TRACEBACK") == "1":
            raise
        program = Path(sys.argv[0]).name
        if not isinstance(error, KeyboardInterrupt):
            fail(f"{program}: error: {error}")
        line = f"{program}: interrupted"
        if after_interrupt:
            line += f"; {after_interrupt}"
        print(line, file=sys.stderr)
        sys.exit(130)


def fail(message: str) -> NoReturn:
    """Ends the program with exit code 2 and a message on stderr; of several processes, the first prints it."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")  # the launcher lists the messages of all processes
    if error_file:
        error = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(error_file).write_text(json.dumps({"message": error}), encoding="utf-8")
    if not error_file or launched_rank() == 0:
        print(message.encode("utf-8", "backslashreplace").decode(), file=sys.stderr)
    sys.exit(2)
