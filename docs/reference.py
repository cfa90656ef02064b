"""What the pages of docs/reference/ generate: public names, fields of recipes, commands with their `--help`.

A page says where: `{{ names("crosslingual_zoo.pretraining.objectives") }}`, `{{ fields("zoo-pretrain") }}`,
`{{ commands("zoo-push") }}`.
"""

import contextlib
import functools
import importlib
import io
import os
import re
import sys
import tomllib
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

from jinja2 import Environment, StrictUndefined

import crosslingual_zoo
from crosslingual_zoo import __all__ as NAMES

METHODS = (FunctionType, classmethod, staticmethod, property, functools.cached_property)
INHERITED = ("forward", "from_encoder", "align", "__call__")  # shown with each class that has them

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 88  # columns of a help text


def fill(page: str) -> str:
    """The text of a page with what its placeholders generate."""
    made = (names, fields, commands)
    return Environment(undefined=StrictUndefined).from_string(page).render({f.__name__: f for f in made})


def names(*modules: str) -> str:
    """Documents the public names that are defined in modules whose names begin so."""
    found = [name for name in NAMES if crosslingual_zoo._MODULES[name].startswith(modules)]
    assert found, modules
    return "\n\n".join(_name(name, getattr(crosslingual_zoo, name)) for name in found)


def _name(name: str, value: Any) -> str:
    if not isinstance(value, type):
        return f"```{{eval-rst}}\n.. autofunction:: crosslingual_zoo.{name}\n```"
    ours = [base for base in value.__mro__ if base.__module__.startswith("crosslingual_zoo.")]
    shown = {key for base in ours for key in INHERITED if key in vars(base)}
    shown |= {key for key, of in vars(value).items() if isinstance(of, METHODS) and of.__doc__ and key[0] != "_"}
    shown -= {"validate"}  # which huggingface_hub adds to configurations
    source = "class" if issubclass(value, tuple) else "both"  # a named tuple makes up the text of its constructor
    options = f"   :class-doc-from: {source}"
    if shown:  # `:members:` without names takes all
        options += f"\n   :members: {', '.join(sorted(shown))}"
    return f"```{{eval-rst}}\n.. autoclass:: crosslingual_zoo.{name}\n{options}\n```"


def fields(*commands: str) -> str:
    """Lists the fields of the recipes of commands, as `--help` does."""
    return "\n\n".join(f"## `{command}`\n\n```text\n{help_of(command)[1]}\n```" for command in commands)


def commands(*commands: str) -> str:
    """Documents commands, without the fields of their recipes."""
    return "\n\n".join(f"## `{command}`\n\n```text\n{help_of(command)[0]}\n```" for command in commands)


def help_of(command: str) -> tuple[str, str]:
    """The help text of a command, and what of it is about the fields of a recipe, which have pages of their own."""
    words, text = command.split(), io.StringIO()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    program, module, arguments = words[0], scripts.get(words[0], "").removesuffix(":main"), words[1:]
    if program == "python":
        program, module, arguments = " ".join(words[:3]), words[2], words[3:]
    with patch.object(sys, "argv", [program]), patch.dict(os.environ, {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}):
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            importlib.import_module(module).main([*arguments, "--help"])
    about, *fields = re.split(r"\n(?=\w*Recipe: )", text.getvalue(), maxsplit=1)
    assert "usage:" in about, f"{command} --help prints no usage"
    return about.strip(), "".join(fields).strip()
