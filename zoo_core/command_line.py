"""What the command lines of all programs share: parsers, `--version`, and how a program ends after a user error.

parser = CommandParser(description=__doc__)          # argparse's, with what every command has
recipe, flags = parse_command_line(Recipe, __doc__)  # of a command that reads a recipe
with user_errors(): ...                              # one line and exit code 2
"""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import time
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import MISSING

from zoo_core.processes import launched_rank
from zoo_core.provenance import version_line
from zoo_core.recipes import (
    all_bounds,
    bounds_text,
    field_types,
    is_text,
    load_recipe,
    optional_type,
    type_argument,
    type_name,
)

# in the names of --help
LIST_ITEM = "N"  # a position of a list
DICT_KEY = "NAME"  # a key of a dictionary


class CommandParser(argparse.ArgumentParser):
    """argparse's parser with `--version` and one-line errors. Parsers of subcommands are of this class too.

    Names of options can be written with hyphens or underscores: `--dry-run` is `--dry_run`.
    """

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **{"formatter_class": argparse.RawDescriptionHelpFormatter, **keywords})
        self.add_argument("--version", action=_Version, help="show the versions to name in an issue, and exit")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        if bad := next((argument for argument in given if not is_text(argument)), None):
            shown = bad.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            self.error(f"the argument '{shown}' is not UTF-8: write it in UTF-8, or rename the file")
        return super().parse_known_args([self._spelled(argument) for argument in given], namespace)

    def _spelled(self, argument: str) -> str:
        """Returns `--dry-run=x` as `--dry_run=x` if that is how the option is named here, or the other way round."""
        name, equals, value = argument.partition("=")
        same = {known.replace("_", "-"): known for known in self._option_string_actions if known.startswith("--")}
        return same.get(name.replace("_", "-"), name) + equals + value

    def error(self, message: str) -> NoReturn:
        fail(f"{self.prog}: error: {message.rstrip('.')}. --help lists the options.")


class _Version(argparse.Action):
    """Prints versions, which are looked up only then."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str):
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(version_line())
        parser.exit(0)


def parse_command_line(
    recipe_class: type,
    description: str,
    flags: dict[str, dict] | None = None,
    argv: list[str] | None = None,
    usage: str = "%(prog)s --config FILE [field=value ...] [flags]",
) -> tuple[Any, argparse.Namespace]:
    """Reads `--config FILE`, overrides `field=value` and the given extra flags (name -> argparse's keywords).

    `--help` prints every field of the recipe with its type, default and help text. After a user error the program
    prints the message without a traceback and exits with code 2.
    """
    parser = CommandParser(description=description, add_help=False, usage=usage)
    parser.add_argument(
        "--config", metavar="FILE", help="recipe: a YAML file with the fields below; it may extend another (`extends`)"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="field=value",
        help="set a field of the recipe, as in a.b=1 or 'a.0.b=[x, y]'; a.1=null removes an entry from a list",
    )
    for name, keywords in (flags or {}).items():
        parser.add_argument(name, **keywords)
    parser.add_argument("-h", "--help", action="store_true", help="show this help and exit")

    asked = sys.argv[1:] if argv is None else argv
    if "-h" in asked or "--help" in asked:  # before the flags that are required
        parser.print_help()
        print_fields(recipe_class)
        parser.exit(0)
    arguments = parser.parse_intermixed_args(argv)
    try:
        return load_recipe(recipe_class, arguments.config, arguments.overrides), arguments
    except ValueError as error:
        fail(f"{parser.prog}: error: {error}")


@dataclasses.dataclass(frozen=True)
class FieldGroup:
    """Fields that `--help` lists together: those of a dataclass, or of the named classes of a TypedDict."""

    place: str  # dotted name; empty at the top of the recipe; several places of one class are in braces
    title: str
    summary: str
    variants: list[tuple[str, str]]  # of a TypedDict: place and summary of each class
    fields: list[tuple[str, str, str, str]]  # dotted name, type, default with bounds, help text


def field_groups(recipe_class: type) -> list[FieldGroup]:
    """Returns all fields of a recipe class, grouped by dataclass. A dataclass used at several places is listed once."""
    places: dict[type, list[str]] = {}
    _find_places(recipe_class, "", places)
    return [_field_group(group, _join_places(prefixes)) for group, prefixes in places.items()]


def _field_group(group: type, place: str) -> FieldGroup:
    hints = field_types(group)
    if typing.is_typeddict(group):
        variants = [(f"{place}.{name}", summary_of(variant)) for name, variant in hints.items()]
        shared: dict[tuple, list[str]] = {}  # a field that several classes have is listed once
        for name, variant in hints.items():
            for item in dataclasses.fields(variant):
                shared.setdefault((item.name, item.metadata.get("help"), str(item.default)), []).append(name)
        listed = []
        for (field, *_), names in shared.items():
            variant = hints[names[0]]
            item = next(item for item in dataclasses.fields(variant) if item.name == field)
            owners = names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
            listed.append(_field_row(f"{place}.{owners}.{field}", item, field_types(variant)[field]))
        return FieldGroup(place, place, "", variants, listed)
    summary = summary_of(group)
    if summary.startswith(f"{group.__name__}("):  # the docstring that `dataclass` generates
        summary = ""
    listed = [
        _field_row(f"{place}.{item.name}" if place else item.name, item, hints[item.name])
        for item in dataclasses.fields(group)
    ]
    return FieldGroup(place, place or group.__name__, summary, [], listed)


def _field_row(name: str, item: dataclasses.Field, expected: Any) -> tuple[str, str, str, str]:
    bounds = bounds_text(all_bounds(item.metadata.get("bounds", {}), expected))
    default = f"{_default_text(item, expected)}{', ' if bounds else ''}{bounds}"
    return name, type_name(expected), default, item.metadata.get("help", "")


def print_fields(recipe_class: type, console: Any = None) -> None:
    """Prints the groups of `field_groups`: of each field its dotted name, type, default and help text."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = console or Console(highlight=False)
    for group in field_groups(recipe_class):
        title = Text.assemble(("\n" + group.title, "bold underline"))
        if group.summary:
            title.append(f"  {group.summary}", "italic")
        console.print(title, soft_wrap=False)
        for place, summary in group.variants:
            console.print(Text.assemble("  ", (place, "bold cyan"), "  ", (summary, "italic")), soft_wrap=True)
        for name, kind, default, meaning in group.fields:
            line = Text.assemble("  ", (name, "bold cyan"), "  ", (kind, "green"), "  ", (default, "dim"))
            console.print(line, soft_wrap=True)
            if meaning:
                console.print(Padding(Text(meaning), (0, 0, 0, 6), expand=False))


def summary_of(group: type) -> str:
    """Returns the first paragraph of a class's docstring."""
    return (group.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")


def _find_places(group: type, prefix: str, places: dict[type, list[str]]) -> None:
    """Collects the dotted prefixes at which each dataclass is used, in the order of the fields."""
    places.setdefault(group, []).append(prefix)
    if typing.is_typeddict(group):
        return
    for name, expected in field_types(group).items():
        path = f"{prefix}.{name}" if prefix else name
        expected, _ = optional_type(expected)
        kind = typing.get_origin(expected)
        if kind is list:
            expected, path = type_argument(expected, 0), f"{path}.{LIST_ITEM}"
        elif kind is dict:
            expected, path = type_argument(expected, 1), f"{path}.{DICT_KEY}"
        if dataclasses.is_dataclass(expected) or typing.is_typeddict(expected):
            _find_places(expected, path, places)


def _join_places(prefixes: list[str]) -> str:
    """`a.N.x`, `a.N.y` -> `a.N.{x,y}`."""
    if len(prefixes) == 1:
        return prefixes[0]
    split = [prefix.split(".") for prefix in prefixes]
    shared = 0
    while all(len(parts) > shared + 1 and parts[shared] == split[0][shared] for parts in split):
        shared += 1
    return ".".join([*split[0][:shared], "{" + ",".join(".".join(parts[shared:]) for parts in split) + "}"])


def _default_text(item: dataclasses.Field, expected: Any) -> str:
    if item.default_factory is not dataclasses.MISSING:
        value = item.default_factory()
        return "see below" if dataclasses.is_dataclass(value) else "empty" if not value else f"default {value}"
    if item.default in (MISSING, dataclasses.MISSING):
        return "required"
    if item.default is None:
        return "default: none"
    if isinstance(item.default, str) and "${" in item.default:  # of other fields: the help text explains it
        return "default: below"
    return f"default {str(item.default).lower() if isinstance(item.default, bool) else item.default}"


RESUME = "resume from the last checkpoint with --resume"
SAME_COMMAND = "the same command continues the run"


@contextlib.contextmanager
def user_errors(after_interrupt: str = ""):
    """Ends the program with a message and without a traceback after an error that the user can fix.

    after_interrupt: how to continue, such as `RESUME`, for the message after Ctrl-C; default: nothing.

    The exit code is 2 for a `ValueError` and for errors of the system (permissions, a full disk), and 130 for Ctrl-C.
    With `ZOO_TRACEBACK=1` in the environment, the traceback is shown, to find faults in this project.
    """
    try:
        yield
    except (ValueError, OSError, KeyboardInterrupt) as error:
        if os.environ.get("ZOO_TRACEBACK") == "1":
            raise
        program = Path(sys.argv[0]).name
        if isinstance(error, KeyboardInterrupt):
            print(f"{program}: interrupted{after_interrupt and '; '}{after_interrupt}", file=sys.stderr)
            sys.exit(130)
        refused = ""
        if isinstance(error, FileNotFoundError):
            refused = ". The file or its folder does not exist, or was removed during the run."
        elif isinstance(error, OSError):
            refused = ". Check the path, its permissions and the free disk space."
        fail(f"{program}: error: {error}{refused}")


def fail(message: str) -> NoReturn:
    """Ends the program with exit code 2 and a message on the error stream.

    A launcher of several processes lists at its end the processes that failed, with their messages. Of these processes
    only the first prints its message itself.
    """
    listed = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if listed:
        error = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(listed).write_text(json.dumps({"message": error}), encoding="utf-8")
    if not listed or launched_rank() == 0:
        print(message.encode("utf-8", "backslashreplace").decode(), file=sys.stderr)
    sys.exit(2)
