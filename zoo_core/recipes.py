"""Recipes: a dataclass whose values come from YAML files and from overrides `key=value`.

OmegaConf reads and merges the YAML; pydantic validates types and bounds, which are part of a field's type, as in
`steps: Annotated[int, Ge(1)] = option(100, "number of steps")`.

`extends: other.yaml` names a file, relative to the own folder, whose fields the file overrides: mappings are merged,
all else is replaced. `output_dir` is not inherited. A folder's paper.yaml is a table of recipes: if FOLDER/xnli.yaml
does not exist, that name means the row `xnli`. Keys with a leading dot hold parts that rows share, as YAML anchors.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union

import yaml
from annotated_types import Ge, Gt, Le, Len, Lt, MinLen
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from typing_extensions import is_typeddict

from crosslingual_zoo.zoo_core.provenance import written_aside

TABLE = "paper.yaml"
FIELD = re.compile(r"\$\{[\w.\[\]-]+\}")  # ${field}
BOUNDS = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below", MinLen: "length at least", Len: "length"}
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
    """Reads a recipe: the defaults of `recipe_class`, then `config` (a YAML file, or its fields), then the overrides.

    An override `a.b=value` replaces a field, `phases.0.steps=10` one of a list's entry. Its value is YAML; fields of
    type str take it literally. Raises ValueError for a file that cannot be read, an environment variable in a value
    (`${oc.env:NAME}`), required fields without a value, and as `validate`.
    """
    files = _read_chain(config) if isinstance(config, str | os.PathLike) else [("the recipe", config or {})]
    defaults = dataclasses.asdict(recipe_class(), dict_factory=lambda items: {k: v for k, v in items if v != MISSING})
    merged, sources = _merged(defaults, files), [(f"in {file}", list(_flatten(dict(values)))) for file, values in files]
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name:
            raise ValueError(f"override `{override}` is not of the form `field=value`. --help lists the fields.")
        sources.append((f"override `{override}`", [name]))
        try:
            OmegaConf.update(merged, name, _parse(text, _types_at(recipe_class, name.split("."))), merge=False)
        except (OmegaConfBaseException, TypeError) as error:
            reason = str(error).splitlines()[0]
            if "list index out of range" in reason:
                reason = f"a list of the recipe has no entry of this number, which counts from 0 ({name})"
            raise ValueError(f"override `{override}`: {reason}.") from None
    for name, text in _flatten(OmegaConf.to_container(merged)).items():
        # an environment variable may be a secret, and would be written into recipe.yaml and the model's card
        if isinstance(text, str) and ("${" in FIELD.sub("", text) or "\0" in text):
            raise ValueError(f"{name} is {text!r}. Recipes insert only their own fields, as in ${{task}}.")
    try:
        values = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(f"the recipe cannot be resolved: {' '.join(str(error).split())}") from None
    recipe = validate(recipe_class, values, sources)
    if missing := [name for name, value in _flatten(dataclasses.asdict(recipe)).items() if value == MISSING]:
        raise ValueError(f"the recipe has no value for {', '.join(missing)}. Set them, as in `{missing[0]}=...`.")
    return recipe


def change_recipe(recipe: Any, overrides: list[str]) -> Any:
    """Returns a copy of a recipe with the overrides, which are set and checked as in `load_recipe`."""
    return load_recipe(type(recipe), dataclasses.asdict(recipe), overrides)


def read_yaml(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the fields of a recipe file over those of the files that it extends, without defaults, not validated."""
    return OmegaConf.to_container(_merged({}, _read_chain(path)))


def save_recipe(recipe: Any, path: str | os.PathLike) -> None:
    """Writes the resolved recipe as YAML, atomically; `load_recipe` reads an equal recipe from it."""
    with written_aside(path) as stream:
        stream.write(OmegaConf.to_yaml(dataclasses.asdict(recipe)))


def recipe_differences(old: dict, new: dict) -> list[str]:
    """Returns the fields in which two recipes differ, such as `phases.0.steps: 100 -> 200`."""
    before, after = _flatten(old), _flatten(new)
    shown = [(name, *(side.get(name, "(not set)") for side in (before, after))) for name in before | after]
    return [f"{name}: {one} -> {other}" for name, one, other in shown if one != other]


def _flatten(value: Any, name: str = "") -> dict[str, Any]:
    """{dotted name: scalar}; an empty list or dictionary counts as a scalar."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    flat: dict[str, Any] = {}
    for key, item in items:
        flat |= _flatten(item, f"{name}.{key}" if name else str(key))
    return flat or {name: value}


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message about an unknown `name`: the nearest known names, or all of them."""
    known = list(map(str, known))
    close = " or ".join(map(repr, difflib.get_close_matches(name, known)))
    return f"Did you mean {close}?" if close else f"Known: {', '.join(known) or 'none'}."


def or_installed(path: str) -> str:
    """Returns `path`, or, if it does not exist, the installed recipe or sample data of that name."""
    installed = Path(__file__).parents[1] / path
    is_ours = Path(path).parts[:1] in [("pretraining",), ("finetuning",), ("sample_corpus",)]
    return str(installed) if is_ours and not Path(path).exists() and installed.exists() else path


def recipe_names(folder: str | os.PathLike) -> list[str]:
    """Returns the names of a folder's recipes, such as `xnli.yaml`: its files, and the rows of its paper.yaml."""
    files = {path.name for path in Path(folder).glob("*.yaml")}
    return sorted(files - {TABLE} | {f"{name}.yaml" for name in _rows(Path(folder) / TABLE)})


def _rows(table: Path) -> dict[str, Any]:
    rows = _read_file(table).items() if table.is_file() else ()
    return {name: row for name, row in rows if not name.startswith(".")}


def _read_chain(path: str | os.PathLike, extended_by: tuple[str, ...] = ()) -> list[tuple[str, dict[str, Any]]]:
    """Returns the files that `path` extends, base first, and `path` itself, with the fields of each."""
    path, by = os.fspath(path), "".join(f" (extended by {name})" for name in extended_by[-1:])
    if os.path.realpath(path) in map(os.path.realpath, extended_by):
        raise ValueError(f"{path}{by} extends itself. Remove one `extends`.")
    file, table = Path(or_installed(path)), Path(or_installed(str(Path(path).with_name(TABLE))))
    values = _read_file(file) if file.is_file() and file.name != TABLE else _rows(table).get(file.stem)
    if values is None:
        problem = "is a table of recipes" if file.is_file() else "was not found"
        raise ValueError(f"{path}{by} {problem}. {nearest(file.name, recipe_names(table.parent))}")
    base = values.pop("extends", None)
    if not isinstance(base, str | None):
        raise ValueError(f"in {path}: extends is {base!r}. It must be the path of another file.")
    if extended_by:  # two recipes must not write into the same folder
        values.pop("output_dir", None)
    chain = _read_chain(os.path.normpath(Path(path).parent / base), (*extended_by, path)) if base else []
    return [*chain, (path, values)]


def _read_file(file: Path) -> dict[str, Any]:
    try:
        values = OmegaConf.to_container(OmegaConf.load(file))  # reads 1e-4 as a number; a repeated key is an error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ValueError(f"{file} is not YAML in UTF-8: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict) or not values:
        raise ValueError(f"{file} has no fields. --help lists the fields of a recipe.")
    return values


def _merged(base: dict[str, Any], files: list[tuple[str, Mapping[str, Any]]]) -> DictConfig:
    merged = OmegaConf.create(base)
    for file, values in files:
        for key, value in values.items():
            try:
                merged.merge_with({key: value})
            except (OmegaConfBaseException, TypeError) as error:
                raise ValueError(f"in {file}: {key} is {value!r}: {str(error).splitlines()[0]}.") from None
    return merged


def _parse(text: str, types: list[Any]) -> Any:
    """Returns the value of an override: YAML, or the text itself for a field of type str and where it is no YAML."""
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]
    except yaml.YAMLError:
        return text
    is_literal = text and str in types and not (value is None and NoneType in types or isinstance(value, str))
    return text if is_literal else value


def validate(recipe_class: type, values: dict[str, Any], sources: Iterable[tuple[str, list[str]]] = ()) -> Any:
    """Returns an instance of a dataclass. Raises ValueError for unknown fields, wrong types, numbers out of bounds: a
    line each, with the dotted name, the value, and the last of `sources` (name, fields) that sets it."""
    try:
        return _adapter(recipe_class).validate_json(json.dumps(values, default=str))
    except ValueError as error:  # pydantic's
        faults = error.errors()
    lines = []
    for fault in faults:
        parts, found = [], values
        for part in fault["loc"]:
            if isinstance(found, dict | list):  # else the part is pydantic's name of a union's member
                parts.append(str(part))
                found = found[part] if isinstance(found, list) else found.get(part)
        place, text = ".".join(parts), f"is {textwrap.shorten(repr(fault['input']), 100)}: {fault['msg']}"
        if fault["type"] == "value_error":  # of `__post_init__`
            text = f"is wrong: {fault['ctx']['error']}"
        if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            known = [name for kind in _types_at(recipe_class, parts[:-1]) for name in _hints(kind)]
            text = f"is not a field. {nearest(parts[-1], known)}"
        origin = ""
        for source, names in sources:
            if any(f"{name}.".startswith(f"{place}.") or f"{place}.".startswith(f"{name}.") for name in names):
                origin = f" ({source})"
        lines.append(f"{place or 'the recipe'} {text}{origin}")
    raise ValueError("\n".join(lines))


@functools.cache
def _adapter(recipe_class: type) -> Any:
    from pydantic import TypeAdapter, with_config  # --help does without

    return TypeAdapter(with_config(extra="forbid", strict=True, allow_inf_nan=False)(recipe_class))


def _hints(kind: Any) -> dict[str, Any]:
    """Returns the types of the fields of a dataclass, or of the keys of a TypedDict."""
    if not isinstance(kind, type) or not (dataclasses.is_dataclass(kind) or is_typeddict(kind)):
        return {}
    hints = typing.get_type_hints(kind, include_extras=True)
    return hints if is_typeddict(kind) else {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _types_at(kind: Any, parts: list[str]) -> list[Any]:
    """Returns the types that a field may have, by the parts of its dotted name."""
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Annotated, Union, UnionType):
        return [found for member in members for found in _types_at(member, parts)]
    if not parts:
        return [kind]
    return _types_at(members[-1] if origin in (list, dict) else _hints(kind).get(parts[0]), parts[1:])


def field_groups(recipe_class: type) -> Iterator[tuple[str, str, list[tuple[str, str, str, str]]]]:
    """Yields the places, summary and fields (dotted name, type, default, meaning) of each dataclass in a recipe. N is a
    position of a list, NAME a key of a dictionary."""
    places: dict[type, list[str]] = {}
    _find_places(recipe_class, "", places)
    for kind, found in places.items():
        fields, made = [], kind()
        for field, hint in zip(dataclasses.fields(kind), _hints(kind).values(), strict=True):
            name, value = f"{found[0]}.{field.name}".lstrip("."), getattr(made, field.name)
            default = "required" if value == MISSING else f"default {value}"
            default = "see below" if dataclasses.is_dataclass(value) else default
            fields.append((name, _type_text(hint), default, field.metadata.get("help", "")))
        yield ", ".join(found) or kind.__name__, " ".join(kind.__doc__.split("\n\n")[0].split()), fields


def _find_places(kind: Any, place: str, places: dict[type, list[str]]) -> None:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        places.setdefault(kind, []).append(place)
    for name, inner in _hints(kind).items():
        _find_places(inner, f"{place}.{name}".lstrip("."), places)
    for member in typing.get_args(kind):
        _find_places(member, place + {list: ".N", dict: ".NAME"}.get(typing.get_origin(kind), ""), places)


def _type_text(kind: Any) -> str:
    """`int at least 1 | None` of Annotated[int, Ge(1)] | None."""
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        bounds = [one for one in members[1:] if type(one) in BOUNDS and one is not LARGEST]
        words = " and ".join(f"{BOUNDS[type(one)]} {dataclasses.astuple(one)[0]:,}" for one in bounds)
        return f"{_type_text(members[0])} {words}".strip()
    if origin is Literal:
        return " | ".join(map(str, members))
    if origin in (list, dict):
        return f"{origin.__name__}[{', '.join(map(_type_text, members))}]"
    return " | ".join(map(_type_text, members)) or getattr(kind, "__name__", str(kind)).replace("NoneType", "None")


def print_fields(recipe_class: type) -> None:
    """Prints of each field its dotted name, type with bounds, default and help text."""
    width = shutil.get_terminal_size().columns
    for title, summary, fields in field_groups(recipe_class):
        print(f"\n{title}: {summary}")
        for name, kind, default, meaning in fields:
            print(f"  {name}  {kind}  {default}")
            if meaning:
                print(textwrap.fill(meaning, width, initial_indent=" " * 6, subsequent_indent=" " * 6))
