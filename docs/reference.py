"""What the pages of docs/reference/ generate: public names, fields of recipes, commands with their `--help`.

A page says where: `{{ names("pretraining.objectives") }}`, `{{ pretraining_fields() }}`, `{{ finetuning_fields() }}`,
`{{ scripts() }}`, `{{ modules("finetuning.tools") }}`.
"""

import contextlib
import functools
import importlib
import io
import os
import pkgutil
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

from jinja2 import Environment, StrictUndefined

import crosslingual_zoo
from crosslingual_zoo import __all__ as NAMES
from finetuning.align.command import COMMANDS
from finetuning.tasks.registry import KINDS
from pretraining.recipe import Recipe
from zoo_core.recipes import field_groups

METHODS = (FunctionType, classmethod, staticmethod, property, functools.cached_property)
INHERITED = ("forward", "generate", "from_encoder", "align", "__call__")  # shown with each class that has them

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 88  # columns of a help text
FIELDS_BEGIN = "\nRecipe"  # in a help text: the fields, which have pages of their own


def fill(page: str) -> str:
    """The text of a page with what its placeholders generate."""
    made = (names, pretraining_fields, finetuning_fields, scripts, modules)
    return Environment(undefined=StrictUndefined).from_string(page).render({f.__name__: f for f in made})


def names(*modules: str) -> str:
    """Documents the public names that are defined in modules whose names begin so."""
    found = [name for name in NAMES if crosslingual_zoo._MODULES[name].startswith(modules)]
    assert found, modules
    return "\n\n".join(_name(name, getattr(crosslingual_zoo, name)) for name in found)


def _name(name: str, value: Any) -> str:
    if not isinstance(value, type):
        return f"```{{eval-rst}}\n.. autofunction:: crosslingual_zoo.{name}\n```"
    ours = [base for base in value.__mro__ if base.__module__.partition(".")[0] in crosslingual_zoo._PACKAGES]
    shown = {key for base in ours for key in INHERITED if key in vars(base)}
    shown |= {key for key, of in vars(value).items() if isinstance(of, METHODS) and of.__doc__ and key[0] != "_"}
    shown -= {"validate"}  # which huggingface_hub adds to configurations
    source = "class" if issubclass(value, tuple) else "both"  # a named tuple makes up the text of its constructor
    options = f"   :class-doc-from: {source}"
    if shown:  # `:members:` without names takes all
        options += f"\n   :members: {', '.join(sorted(shown))}"
    return f"```{{eval-rst}}\n.. autoclass:: crosslingual_zoo.{name}\n{options}\n```"


def pretraining_fields() -> str:
    """Lists the fields of a recipe of pre-training."""
    return "\n\n".join(_group(*group) for group in field_groups(Recipe))


def finetuning_fields() -> str:
    """Lists the fields of the recipes of fine-tuning, each once, under the kinds of task that have it."""
    owners: dict[tuple, list[str]] = {}
    for kind, found in KINDS.items():
        for title, _, rows in field_groups(found.recipe_class):
            place = "" if title == found.recipe_class.__name__ else title
            for row in rows:
                owners.setdefault((place, row), []).append(kind)
    sections: dict[tuple[str, ...], dict[str, list]] = {}
    for (place, row), kinds in owners.items():
        sections.setdefault(tuple(kinds), {}).setdefault(place, []).append(row)
    out = []
    for kinds, places in sorted(sections.items(), key=lambda section: -len(section[0])):
        out.append("## " + ("All kinds" if len(kinds) == len(KINDS) else ", ".join(kinds)))
        out += [_group(place, "", rows, level=3) for place, rows in places.items()]
    return "\n\n".join(out)


def escape(text: str) -> str:
    """Outside of code, what Markdown would read as HTML, math, or emphasis is text."""
    return re.sub(r"(`[^`]*`)|([<$\\*_])", lambda part: part[1] or f"\\{part[2]}", text)


def _group(title: str, summary: str, rows: list, level: int = 2) -> str:
    head = [f"{'#' * level} `{title}`"] if title else []
    terms = [
        f"`{name}` *{escape(kind)}; {escape(default)}*\n: {escape(text) or 'its fields follow'}"
        for name, kind, default, text in rows
    ]
    return "\n\n".join([*head, *([escape(summary)] if summary else []), *terms])


def scripts() -> str:
    """Documents the commands that are installed."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    out = []
    for name, place in declared.items():
        module, _, function = place.partition(":")
        main = getattr(importlib.import_module(module), function)
        out.append(_command(name, main, []))
        out += [_command(f"{name} {command}", main, [command]) for command in COMMANDS if name == "word-align"]
    return "\n\n".join(out)


def modules(*packages: str) -> str:
    """Documents the modules that run by `python -m` and have no installed command; a package gives its modules."""
    installed = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = []
    for package in packages:
        place = importlib.import_module(package)
        inside = [f"{package}.{entry.name}" for entry in pkgutil.iter_modules(getattr(place, "__path__", []))]
        found += inside or [package]
    places = {name: importlib.import_module(name) for name in found if f'"{name}:main"' not in installed}
    runnable = {name: place.main for name, place in places.items() if hasattr(place, "main")}
    return "\n\n".join(_command(f"python -m {name}", main, []) for name, main in runnable.items())


def _command(name: str, main: Callable, arguments: list[str]) -> str:
    """A heading and the help text of a command, without the fields of a recipe."""
    text = io.StringIO()
    program = [name.split()[0] if not name.startswith("python") else name]
    with patch.object(sys, "argv", program), patch.dict(os.environ, {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}):
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([*arguments, "--help"])
    shown = text.getvalue().partition(FIELDS_BEGIN)[0]
    assert "usage:" in shown, f"{name} --help prints no usage"
    return f"## `{name}`\n\n```text\n{shown.strip()}\n```"
