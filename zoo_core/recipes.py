"""Recipes: a dataclass whose values come from YAML files and from overrides `key=value`.

OmegaConf reads and merges the YAML; pydantic validates types and bounds, which are part of a field's type, as in
`steps: Annotated[int, Ge(1)] = option(100, "number of steps")`.

`extends: FILE` names a file, relative to the own folder, whose fields the file overrides: mappings are merged,
all else is replaced. `output_dir` is not inherited. A paper.yaml is a table of recipes by name, and
`FILE#ROW` is one of them, on the command line as in `extends`. Keys with a leading dot hold parts that rows share, as
YAML anchors.
"""

import copy
import dataclasses
import difflib
import functools
import json
import os
import re
import shutil
import textwrap
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml  # pyrefly: ignore[untyped-import]  # has no types
from annotated_types import Ge, Gt, Le, Len, Lt, MinLen
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from crosslingual_zoo.zoo_core.provenance import written_aside

TABLE = "paper.yaml"
FIELD = re.compile(r"\$\{[\w.\[\]-]+\}")  # ${field}
BOUNDS = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below", MinLen: "length at least", Len: "length"}
INSIDE = {list: ".N", dict: ".NAME"}  # in dotted names: a position of a list, a key of a dictionary
LARGEST = Le(2**31 - 1)  # of whole numbers; not part of --help
Count = Annotated[int, Ge(0), LARGEST]
Positive = Annotated[int, Ge(1), LARGEST]
BatchSize = Annotated[int, Ge(1), Le(2**20)]
Seed = Annotated[int, Ge(0), Lt(2**32)]
Fraction = Annotated[float, Ge(0), Lt(1)]
Name = Annotated[str, MinLen(1)]


def option(default: Any, help: str) -> Any:
    """Returns a field of a recipe with its default and its help text. `omegaconf.MISSING` makes the field required."""
    if isinstance(default, (list, dict)) or dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata={"help": help})
    return dataclasses.field(default=default, metadata={"help": help})


def load_recipe(recipe_class: type, config: str | os.PathLike | Mapping[str, Any] | None, overrides: list[str]) -> Any:
    """Reads a recipe: the defaults of `recipe_class`, then `config`, then the overrides. `config` is a YAML file, the
    row of a table (`FILE#ROW`), or a mapping with the same fields.

    An override `a.b=value` replaces a field, `phases.0.steps=10` one of a list's entry. Its value is YAML, so text that
    YAML reads as something else is quoted: `language="no"`. Raises ValueError for a file that cannot be read, an
    environment variable in a value (`${oc.env:NAME}`), required fields without a value, and as `validate`.
    """
    is_file = isinstance(config, str | os.PathLike)
    fields = read_yaml(config) if is_file else dict(config or {})
    merged = OmegaConf.create(dataclasses.asdict(recipe_class(), dict_factory=_with_value))
    _merge(merged, fields, str(config) if is_file else "the recipe")
    for override in overrides:
        _apply(override, merged)
    _check_insertions(merged)
    try:
        values: Any = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(f"the recipe cannot be resolved: {_one_line(error)}") from None
    recipe = validate(recipe_class, values)
    missing = [name for name, value in _flatten(dataclasses.asdict(recipe)).items() if value == MISSING]
    if missing:
        raise ValueError(f"the recipe has no value for {', '.join(missing)}. Set them, as in `{missing[0]}=...`.")
    return recipe


def change_recipe(recipe: Any, overrides: list[str]) -> Any:
    """Returns a copy of a recipe with the overrides, which are set and checked as in `load_recipe`."""
    return load_recipe(type(recipe), dataclasses.asdict(recipe), overrides)


def read_yaml(path: str | os.PathLike, extended_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the fields of a recipe over those of the recipes that it extends, without defaults, not validated.
    `path`: a file, or the row of a table. `extended_by`: the recipes that extend this one, each by the one before."""
    name = os.fspath(path)
    if extended_by:
        name += f" (extended by {extended_by[-1]})"
    if os.path.realpath(path) in map(os.path.realpath, extended_by):
        raise ValueError(f"{name} extends itself. Remove one `extends`.")
    fields = _read_recipe(path, name)
    base = fields.pop("extends", None)
    if not isinstance(base, str | None):
        raise ValueError(f"in {path}: extends is {base!r}. It must be the path of another recipe.")
    if not base:
        return fields
    inherited = read_yaml(os.path.normpath(Path(path).parent / base), (*extended_by, os.fspath(path)))
    inherited.pop("output_dir", None)  # two recipes must not write into the same folder
    merged = OmegaConf.create(inherited)
    _merge(merged, fields, name)
    values: Any = OmegaConf.to_container(merged)
    return values


def save_recipe(recipe: Any, path: str | os.PathLike) -> None:
    """Writes the resolved recipe as YAML, atomically; `load_recipe` reads an equal recipe from it."""
    with written_aside(path) as stream:
        stream.write(OmegaConf.to_yaml(dataclasses.asdict(recipe)))


def recipe_differences(old: dict, new: dict) -> list[str]:
    """Returns the fields in which two recipes differ, such as `phases.0.steps: 100 -> 200`."""
    before = _flatten(old)
    after = _flatten(new)
    differences = []
    for name in before | after:
        old_value = before.get(name, "(not set)")
        new_value = after.get(name, "(not set)")
        if old_value != new_value:
            differences.append(f"{name}: {old_value} -> {new_value}")
    return differences


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message about an unknown `name`: the nearest known names, or all of them."""
    names = list(known)
    return _did_you_mean(name, names) or f"Known: {', '.join(names) or 'none'}."


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names)
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else ""


def or_installed(path: str) -> str:
    """Returns `path`, or, if it does not exist, the installed recipe or sample data of that name."""
    installed = Path(__file__).parents[1] / path
    is_ours = Path(path).parts[:1] in [("pretraining",), ("finetuning",), ("sample_corpus",)]
    return str(installed) if is_ours and not Path(path).exists() and installed.exists() else path


def recipe_names(folder: str | os.PathLike) -> list[str]:
    """Returns the names of a folder's recipes: its files, and the rows of its table, as `FILE#ROW`."""
    files = {path.name for path in Path(folder).glob("*.yaml")}
    rows = {f"{TABLE}#{row}" for row in _rows(Path(folder) / TABLE)}
    return sorted(files - {TABLE} | rows)


def _read_recipe(path: str | os.PathLike, name: str) -> dict[str, Any]:
    """The fields of a file, or of the row of a table. `name` is that of the recipe in errors."""
    address = Path(path)
    file_name, mark, row = address.name.partition("#")
    file = Path(or_installed(str(address.parent / file_name)))
    if not file.is_file():
        raise ValueError(f"{name} was not found. {_nearest_recipe(file.parent, row or file.stem)}")
    if not mark and file.name != TABLE:
        return _read_file(file)
    rows = _rows(file)
    if row not in rows:
        raise ValueError(f"{name} is no row of a table (FILE#ROW). {nearest(row, rows)}")
    return rows[row]


def _nearest_recipe(folder: Path, title: str) -> str:
    """The end of an error message about a recipe that a folder does not have, neither as a file nor as a row."""
    names = recipe_names(or_installed(str(folder)))
    rows = [name for name in names if name.endswith(f"#{title}")]
    return nearest(f"{title}.yaml", rows or names)


def _rows(table: Path) -> dict[str, Any]:
    if not table.is_file():
        return {}
    return {name: row for name, row in _read_file(table).items() if isinstance(row, dict) and not name.startswith(".")}


def _read_file(file: Path) -> dict[str, Any]:
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(file))  # reads 1e-4 as a number; a repeated key is an error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ValueError(f"{file} is not YAML in UTF-8: {_one_line(error)}") from None
    if not isinstance(values, dict) or not values:
        raise ValueError(f"{file} has no fields. --help lists the fields of a recipe.")
    return values


def _with_value(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a dataclass without those that are required and not set."""
    return {name: value for name, value in items if value != MISSING}


def _merge(merged: DictConfig, fields: Mapping[str, Any], name: str) -> None:
    """Merges fields into a recipe. `name` is that of their file in errors."""
    for key, value in fields.items():
        try:
            merged.merge_with({key: value})
        except (OmegaConfBaseException, TypeError) as error:
            raise ValueError(f"in {name}: {key} is {value!r}: {_first_line(error)}.") from None


def _apply(override: str, merged: DictConfig) -> None:
    """Sets the field of an override."""
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise ValueError(f"override `{override}` is not of the form `field=value`. --help lists the fields.")
    try:
        value = OmegaConf.from_dotlist([f"value={text}"]).value
    except yaml.YAMLError as error:
        raise ValueError(f"override `{override}`: {_one_line(error)}. Quote a text that is no YAML.") from None
    try:
        OmegaConf.update(merged, name, value, merge=False)
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        raise ValueError(f"override `{override}`: {_one_line(error)}.") from None


def _check_insertions(merged: DictConfig) -> None:
    """Raises ValueError for texts that insert anything but fields of the recipe, and for null bytes."""
    for name, text in _flatten(OmegaConf.to_container(merged)).items():
        # an environment variable may be a secret, and would be written into recipe.yaml and the model's card
        if isinstance(text, str) and ("${" in FIELD.sub("", text) or "\0" in text):
            raise ValueError(f"{name} is {text!r}. Recipes insert only their own fields, as in ${{task}}.")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _flatten(value: Any, name: str = "") -> dict[str, Any]:
    """{dotted name: scalar}; an empty list or dictionary counts as a scalar."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    flat: dict[str, Any] = {}
    for key, item in items:
        flat |= _flatten(item, _joined(name, str(key)))
    return flat or {name: value}


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def validate(recipe_class: type, values: dict[str, Any]) -> Any:
    """Returns an instance of a dataclass. Raises ValueError for unknown fields, wrong types and numbers out of bounds:
    a line each, with the dotted name, the value and pydantic's message."""
    from pydantic import ValidationError

    try:
        return _adapter(recipe_class).validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        faults = error.errors()
    lines = []
    for fault in faults:
        name = ".".join(map(str, fault["loc"])) or "the recipe"
        if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            key = str(fault["loc"][-1])
            hint = _did_you_mean(key, _keys(recipe_class) - {key})
            lines.append(f"{name} is not a field. {hint or '--help lists the fields.'}")
        elif fault["type"] == "value_error":  # of `__post_init__`, whose input is a whole dataclass
            lines.append(f"{name}: {fault['ctx']['error']}")
        else:
            lines.append(f"{name} is {textwrap.shorten(repr(fault['input']), 100)}: {fault['msg']}")
    raise ValueError("\n".join(lines))


@functools.cache
def _adapter(recipe_class: type) -> Any:
    from pydantic import TypeAdapter, with_config  # --help does without

    return TypeAdapter(with_config(extra="forbid", strict=True, allow_inf_nan=False)(recipe_class))


class FieldHelp(NamedTuple):
    """What --help says of a field."""

    name: str  # dotted
    type: str  # with bounds
    default: str
    meaning: str


class FieldGroup(NamedTuple):
    """A dataclass in a recipe, as --help shows it."""

    title: str  # the dotted names of the fields that hold it
    summary: str
    fields: list[FieldHelp]


def field_groups(recipe_class: type) -> list[FieldGroup]:
    """Returns each dataclass in a recipe, with its fields. In dotted names, N is a position of a list, NAME a key of a
    dictionary."""
    groups = []
    for kind, names in _names_by_class(recipe_class).items():
        hints = typing.get_type_hints(kind, include_extras=True)
        defaults = kind()
        fields = []
        for field in dataclasses.fields(kind):
            default = _default_text(getattr(defaults, field.name))
            meaning = field.metadata.get("help", "")
            name = _joined(names[0], field.name)
            fields.append(FieldHelp(name, _type_text(hints[field.name]), default, meaning))
        summary = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        groups.append(FieldGroup(", ".join(names).strip(", ") or kind.__name__, summary, fields))
    return groups


def _keys(recipe_class: type) -> set[str]:
    """All names of fields in a recipe, and keys of dictionaries that it determines."""
    keys: set[str] = set()
    for group in field_groups(recipe_class):
        for field in group.fields:
            keys |= set(field.name.split("."))
    return keys


def _names_by_class(recipe_class: type) -> dict[type, list[str]]:
    """{dataclass: the dotted names of the fields that hold it}."""
    names: dict[type, list[str]] = {}
    waiting: list[tuple[Any, str]] = [(recipe_class, "")]
    while waiting:
        kind, name = waiting.pop(0)
        inner = []
        if isinstance(kind, type):
            if dataclasses.is_dataclass(kind):
                names.setdefault(kind, []).append(name)
            hints = typing.get_type_hints(kind, include_extras=True)
            inner = [(hint, _joined(name, key)) for key, hint in hints.items()]
        position = INSIDE.get(typing.get_origin(kind), "")
        inner += [(member, name + position) for member in typing.get_args(kind)]
        waiting = inner + waiting
    return names


def _default_text(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return "see below"
    return "required" if value == MISSING else f"default {value}"


def _type_text(kind: Any) -> str:
    """`int at least 1 | None` of Annotated[int, Ge(1)] | None."""
    origin = typing.get_origin(kind)
    members = typing.get_args(kind)
    if origin is Annotated:
        bounds = [bound for bound in members[1:] if type(bound) in BOUNDS and bound is not LARGEST]
        words = [f"{BOUNDS[type(bound)]} {dataclasses.astuple(bound)[0]:,}" for bound in bounds]
        return f"{_type_text(members[0])} {' and '.join(words)}".strip()
    if origin is Literal:
        return " | ".join(map(str, members))
    texts = [_type_text(member) for member in members]
    if origin in (list, dict):
        return f"{origin.__name__}[{', '.join(texts)}]"
    if kind is type(None):
        return "None"
    return " | ".join(texts) or getattr(kind, "__name__", str(kind))


def print_fields(recipe_class: type) -> None:
    """Prints of each field its dotted name, type with bounds, default and help text."""
    width = shutil.get_terminal_size().columns
    for group in field_groups(recipe_class):
        print(f"\n{group.title}: {group.summary}")
        for field in group.fields:
            print(f"  {field.name}  {field.type}  {field.default}")
            if field.meaning:
                print(textwrap.fill(field.meaning, width, initial_indent=" " * 6, subsequent_indent=" " * 6))
