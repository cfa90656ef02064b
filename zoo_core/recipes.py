"""Typed recipes: a YAML file and `key=value` overrides, checked against a dataclass.

A recipe class is a plain dataclass whose fields are made with `option(default, help)`. OmegaConf reads and writes YAML
and resolves `${names}` of fields, but no environment variables. `convert` makes the dataclasses, so that every error
names the field, the file or override that it is in, and the nearest known key. OmegaConf's structured configs would do
the same, but take five times as long.

    @dataclass
    class Recipe:
        output_dir: str = option(MISSING, "folder of the run")
        steps: int = option(100, "number of steps")

    recipe = load_recipe(Recipe, "recipe.yaml", ["steps=10"])

A file may extend another one: see `zoo_core.recipe_files`.
"""

import contextlib
import copy
import dataclasses
import functools
import operator
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zoo_core.provenance import written_aside
from zoo_core.recipe_files import nearest, read_chain

UNIONS = (Union, types.UnionType)
PLAIN_TYPES = {
    float: ((int, float), "a number"),
    int: (int, "a whole number"),
    bool: (bool, "true or false"),
    # YAML reads `no` as false and 1e5 as a number: as text they need quotes
    str: (str, 'text; in a file, put it in quotes: "..."'),
}
TRACKER = "experiment tracker that also receives the run's figures; default: none"
TRUST_REMOTE_CODE = (
    "run the Python code in the folder or repository of a model or tokenizer; without it, the installed code loads the "
    "zoo's four models, transformers loads other models, and a model that needs its own code is an error"
)
LICENSES = "license of a data set by its path, as in {local/ntrex: cc-by-sa-4.0}; cards of models show it"
HUB_ROOT = (
    "folder with copies of Hub repositories, as <hub_root>/<owner>/<name>; the run reads an id from it if it has the "
    "id, and otherwise from the Hub"
)
PUSH_TO_HUB = "owner/name of the Hub repository to which the run uploads its checkpoints; default: none"
FIELD_OR_CALL = re.compile(r"\$\{\s*([^\s:{}]+)\s*([:}])")  # ${field} or ${resolver:...}
RESOLVERS: set[str] = set()  # the functions that recipes may call, see `add_resolver`
BOUNDS = {  # by the names of `option`'s arguments
    "low": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "high": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}
LARGEST_COUNT = 2**31 - 1  # of whole numbers without bounds; they start at 0
LARGEST_SIZE, LARGEST_BATCH, MOST_WORKERS, SEEDS = 2**63 - 1, 2**20, 256, 2**32


def option(default: Any, help: str, **bounds: float) -> Any:
    """Returns a field of a recipe with its default and its help text.

    Lists, dictionaries and dataclass instances are copied for every recipe; `omegaconf.MISSING` makes the field
    required. `--help` reads the text from `metadata["help"]`. `bounds` limit the value, or each number of a list:
    `low` and `high` are allowed themselves, `above` and `below` are not. `convert` raises for other values.
    """
    assert bounds.keys() <= BOUNDS.keys(), bounds
    metadata = {"help": help, "bounds": bounds}
    if isinstance(default, (list, dict)) or dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def add_resolver(name: str, function: Callable[..., str]) -> None:
    """Lets recipes write `${name:arguments}`, where `function` makes text of other fields."""
    OmegaConf.register_resolver(name, function, replace=True)
    RESOLVERS.add(name)


def load_recipe(recipe_class: type, config: str | os.PathLike | Mapping[str, Any] | None, overrides: list[str]) -> Any:
    """Reads a recipe: the defaults of `recipe_class`, then `config`, then the overrides, in order.

    `config` is a YAML file, or a dictionary with the same fields.

    An override `a.b=value` *sets* a field: it replaces lists and dictionaries and does not merge them.
    `phases.0.steps=10` changes a field of a list's entry. `corpora.1=null` removes an entry, `corpora=null` all
    entries; positions count before any removal. The text after `=` is YAML, except that a field of type str takes it
    literally.

    Raises ValueError for a file that is missing, empty, not UTF-8 or not YAML, for a circular `extends`, an unknown
    key, a wrong type, a number out of its field's bounds, a list position past the end, an override without `=`, an
    environment variable in a value (`${oc.env:NAME}`), and required fields without a value (one error lists them all).
    """
    if config is None or isinstance(config, Mapping):
        return _overridden(recipe_class, _plain(config or {}), overrides)
    for file, values in read_chain(config):  # the files before it have been checked: an error is in this one
        convert(recipe_class, values, "", f"in {file}")
    return _overridden(recipe_class, values, overrides, str(config))


def _plain(value: Any) -> Any:
    """Returns a Python value as YAML would give it: paths as text, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def change_recipe(recipe: Any, overrides: list[str]) -> Any:
    """Returns a copy of a recipe with the overrides, which are set and checked as in `load_recipe`."""
    return _overridden(type(recipe), dataclasses.asdict(recipe), overrides)


def _overridden(recipe_class: type, values: dict, overrides: list[str], config: str | None = None) -> Any:
    """Returns the recipe that results from `values`, read from the file `config`, and the overrides."""
    recipe = convert(recipe_class, values, "", f"in {config}" if config else "the recipe")
    values = dataclasses.asdict(recipe)
    dropped: list[list[str]] = []
    for override in overrides:
        if _set(recipe_class, values, override, dropped):  # a new entry gets its defaults
            values = dataclasses.asdict(convert(recipe_class, values, "", f"override `{override}`"))
    for *parents, place in sorted(dropped, key=lambda path: [part.zfill(9) for part in path], reverse=True):
        entries = functools.reduce(
            lambda held, part: held[int(part) if isinstance(held, list) else part], parents, values
        )
        del entries[int(place)]
    missing = sorted(name for name, value in _flatten(values).items() if value == MISSING)
    if missing:
        source = f"in {config} or " if config else ""
        raise ValueError(
            f"The recipe has no value for: {', '.join(missing)}. Set them {source}on the command line as "
            f"`{missing[0]}=...`."
        )
    if texts := {name: value for name, value in _flatten(values).items() if isinstance(value, str) and "${" in value}:
        _check_interpolations(texts)
        try:
            values = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
        except OmegaConfBaseException as error:
            raise ValueError(f"The recipe cannot be resolved: {str(error).splitlines()[0]}.") from None
    return convert(recipe_class, values, "", "the recipe")


def _check_interpolations(texts: dict[str, str]) -> None:
    """Raises ValueError where `${}` holds something else than another field or one of `RESOLVERS`. An environment
    variable may be a secret, and would be written into recipe.yaml and the model's card."""
    for name, text in texts.items():
        for begin in re.finditer(r"\$\{", text):
            found = FIELD_OR_CALL.match(text, begin.start())
            if not found or (found[2] == ":" and found[1] not in RESOLVERS):
                raise ValueError(
                    f"{name} is {text!r}, but recipes can insert only their own fields, as in ${{task}}: the value of "
                    "an environment variable would be written into recipe.yaml and the model card. Write the value. "
                    "Trackers and the Hub client read keys and tokens from the environment themselves."
                )


def read_yaml(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the unresolved fields of a recipe file, merged over those of the files that it extends.

    Raises ValueError for a file that is not a recipe, and where `extends` does not name one.
    """
    return read_chain(path)[-1][1]


def _set(recipe_class: type, values: dict, override: str, dropped: list[list[str]]) -> bool:
    """Sets in `values` the field that an override `dotted.name=value` names; returns whether a list or mapping is new.

    An entry of a list that is set to null is removed later: its path is added to `dropped`.
    """
    name, equals, text = override.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ValueError(
            f"Override `{override}` is not of the form `field=value`, as in `a.b=1`. --help lists the fields."
        )
    origin = f"override `{override}`"
    *parents, last = name.split(".")
    expected: Any = recipe_class
    container: Any = values
    path, has_grown = "", False
    for part in parents:
        expected, key = _step(expected, container, part, path, origin)
        path = f"{path}.{part}" if path else part
        if isinstance(container, dict) and container.get(key) in (None, MISSING):
            is_list = typing.get_origin(optional_type(expected)[0]) is list
            container[key] = [] if is_list else {}  # create an optional dataclass or a new dictionary entry
            has_grown = True
        container = container[key]
        if not isinstance(container, (dict, list)):
            raise ValueError(f"{origin}: {path} is {type_name(expected)} and has no fields. Set `{path}=...`.")
    expected, key = _step(expected, container, last, path, origin)
    dropped[:] = [other for other in dropped if other[: len(parents) + 1] != [*parents, last]]  # the later one wins
    is_null = text.strip() in ("null", "~") and not optional_type(expected)[1] and expected is not Any
    if is_null and isinstance(container, list):
        dropped.append([*parents, last])
        return has_grown
    value = _parse(text, expected, origin)
    if is_null and typing.get_origin(expected) is list:
        value = []
    convert(expected, value, name, origin)
    container[key] = value
    return has_grown or isinstance(value, (dict, list))


def _step(expected: Any, container: Any, part: str, path: str, origin: str) -> tuple[Any, Any]:
    """One step down a dotted name: returns the type of the part and its key in `container`."""
    expected, _ = optional_type(expected)
    if dataclasses.is_dataclass(expected) or typing.is_typeddict(expected):
        fields = field_types(expected)
        if part not in fields:
            raise ValueError(_unknown_key(part, expected, path, origin))
        return fields[part], part
    if isinstance(container, list):
        if not part.isdecimal() or int(part) >= len(container):
            raise ValueError(
                f"{origin}: {path} has no entry {part}: its length is {len(container)}, and positions count from 0. "
                f"Name an entry that exists, or set the whole list: `{path}=[...]`."
            )
        return type_argument(expected, 0), int(part)
    return type_argument(expected, 1), part


def _parse(text: str, expected: Any, origin: str) -> Any:
    """Parses the value of an override as YAML; text fields take it literally (`language=no`, `revision=123`)."""
    expected, optional = optional_type(expected)
    try:
        value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]
    except yaml.YAMLError as error:
        value, problem = text, error
        if expected is not str:
            raise ValueError(
                f"{origin}: the value is not valid YAML ({getattr(problem, 'problem', problem)}). "
                f"It must be {type_name(expected)}. Quote the value for the shell, as in 'field=[a, b]'."
            ) from None
    except OmegaConfBaseException as error:
        raise ValueError(
            f"{origin}: {str(error).splitlines()[0]}. `${{field}}` inserts the value of a field."
        ) from None
    wants_text = expected is str or typing.get_origin(expected) is Literal
    if wants_text and not isinstance(value, str) and not (value is None and (optional or not text)):
        return text
    return value


def convert(expected: Any, value: Any, name: str, origin: str) -> Any:
    """Converts a value of plain mappings and lists to the type `expected`.

    Dataclasses get their defaults, and whole numbers become float where a float is expected. Required fields without
    a value, and references such as `${name}`, are returned unchanged.

    Raises ValueError, with the dotted `name`, for an unknown field, a wrong type and a number out of bounds.
    """
    expected, optional = optional_type(expected)
    if expected is Any or (value is None and optional):
        return value
    if isinstance(value, str) and (value == MISSING or "${" in value):
        return value
    kind = typing.get_origin(expected) or expected
    if dataclasses.is_dataclass(expected):
        _require(isinstance(value, dict), name, value, f"a mapping of the fields of {expected.__name__}", origin)
        types_of = field_types(expected)
        if unknown := [key for key in value if key not in types_of]:
            raise ValueError(_unknown_key(unknown[0], expected, name, origin))
        has_none = dataclasses.MISSING
        for item in dataclasses.fields(expected):
            if item.default is has_none and item.default_factory is has_none and item.name not in value:
                raise ValueError(f"{origin}: {name or expected.__name__} has no {item.name}.")
        values, of_fields = {}, {item.name: item.metadata.get("bounds", {}) for item in dataclasses.fields(expected)}
        for key, item in value.items():
            place = f"{name}.{key}".lstrip(".")
            values[key] = convert(types_of[key], item, place, origin)
            _check_bounds(values[key], of_fields[key], place, origin)
        return expected(**values)
    if typing.is_typeddict(expected):
        _require(isinstance(value, dict), name, value, f"a mapping of {', '.join(field_types(expected))}", origin)
        types_of = field_types(expected)
        if unknown := [key for key in value if key not in types_of]:
            raise ValueError(_unknown_key(str(unknown[0]), expected, name, origin))
        for key, item in value.items():
            _check_variant(item, key, types_of, name, origin)
        return {key: convert(types_of[key], item, f"{name}.{key}", origin) for key, item in value.items()}
    if kind is list:
        item_type = type_argument(expected, 0)
        _require(isinstance(value, list), name, value, f"a list of {type_name(item_type)}", origin)
        return [convert(item_type, item, f"{name}.{position}", origin) for position, item in enumerate(value)]
    if kind is dict:
        is_mapping = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        _require(is_mapping, name, value, "a mapping of names to values", origin)
        return {key: convert(type_argument(expected, 1), item, f"{name}.{key}", origin) for key, item in value.items()}
    if kind is Literal:
        choices = typing.get_args(expected)
        if value not in choices:
            hint = nearest(str(value), choices)
            raise ValueError(f"{origin}: {name} is {value!r}, it must be one of {', '.join(map(str, choices))}. {hint}")
        return value
    if kind in UNIONS:
        for choice in typing.get_args(expected):
            with contextlib.suppress(ValueError):
                return convert(choice, value, name, origin)
        _require(False, name, value, type_name(expected), origin)
    accepted, wanted = PLAIN_TYPES[kind]
    _require(isinstance(value, accepted) and (kind is bool or not isinstance(value, bool)), name, value, wanted, origin)
    _require(kind is not str or is_text(value), name, value, "text without null characters, in UTF-8", origin)
    _require(kind is not float or abs(value) <= sys.float_info.max, name, value, "a finite number", origin)
    return kind(value)


def all_bounds(bounds: dict[str, float], expected: Any) -> dict[str, float]:
    """Returns the bounds of a field, with the lower bound 0 that whole numbers have if it names none."""
    expected, _ = optional_type(expected)
    expected = type_argument(expected, 0) if typing.get_origin(expected) is list else expected
    kinds = typing.get_args(expected) if typing.get_origin(expected) in UNIONS else (expected,)
    return {"low": 0} | bounds if int in kinds and not {"low", "above"} & bounds.keys() else bounds


def bounds_text(bounds: dict[str, float]) -> str:
    """`at least 1 and below 8`."""
    return " and ".join(f"{words} {bounds[bound]:,}" for bound, (_, words) in BOUNDS.items() if bound in bounds)


def _check_bounds(value: Any, bounds: dict[str, float], name: str, origin: str) -> None:
    """Raises ValueError for a number, or a number of a list, outside of its field's bounds."""
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        held = dict(bounds)
        if isinstance(number, int):
            held |= {} if {"low", "above"} & held.keys() else {"low": 0}
            held |= {} if {"high", "below"} & held.keys() else {"high": LARGEST_COUNT}
        for bound, limit in held.items():
            if not BOUNDS[bound][0](number, limit):
                raise ValueError(f"{origin}: {name} must be {bounds_text({bound: limit})}, got {value}.")


def is_text(value: str) -> bool:
    """Returns whether a string can be written and can name a file. Surrogates replace bytes that are not UTF-8."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def _require(condition: bool, name: str, value: Any, wanted: str, origin: str) -> None:
    if not condition:
        given = "empty (null)" if value is None else f"{value!r} ({type(value).__name__})"
        raise ValueError(f"{origin}: {name or 'the recipe'} is {given}. It must be {wanted}.")


def _check_variant(item: Any, key: str, types_of: dict[str, type], path: str, origin: str) -> None:
    """Raises ValueError for a field that only the classes of other keys have."""
    for name in item if isinstance(item, dict) else ():
        owners = [other for other, group in types_of.items() if name in field_types(group)]
        if owners and key not in owners:
            raise ValueError(
                f"{origin}: unknown field {path}.{key}.{name}; it is a field of {', '.join(owners)}. "
                f"{key} has {', '.join(field_types(types_of[key]))}."
            )


def _unknown_key(key: str, expected: type, path: str, origin: str) -> str:
    name = f"{path}.{key}" if path else str(key)
    where = "there is" if typing.is_typeddict(expected) else f"{expected.__name__} has"
    return f"{origin}: unknown field {name}; {where} no such field. {nearest(key, field_types(expected))}"


@functools.cache
def field_types(recipe_class: type) -> dict[str, Any]:
    """Returns the type of each field of a dataclass, or of each key of a TypedDict."""
    hints = typing.get_type_hints(recipe_class)
    if typing.is_typeddict(recipe_class):
        return hints
    return {field.name: hints[field.name] for field in dataclasses.fields(recipe_class)}


def optional_type(expected: Any) -> tuple[Any, bool]:
    """(X, True) for Optional[X], (X, False) for X; X may be a Union of several types."""
    if typing.get_origin(expected) in UNIONS:
        arguments = typing.get_args(expected)
        kept = [item for item in arguments if item is not type(None)]
        return functools.reduce(operator.or_, kept), type(None) in arguments
    return expected, False


def type_argument(expected: Any, position: int) -> Any:
    arguments = typing.get_args(optional_type(expected)[0])
    return arguments[position] if len(arguments) > position else Any


def type_name(expected: Any) -> str:
    inner, optional = optional_type(expected)
    kind = typing.get_origin(inner)
    if kind is Literal:
        name = " | ".join(map(str, typing.get_args(inner)))
    elif kind in UNIONS:
        name = " | ".join(map(type_name, typing.get_args(inner)))
    elif kind is list:
        name = f"list of {type_name(type_argument(inner, 0))}"
    elif typing.is_typeddict(inner):
        name = "fields by name"
    elif kind is dict:
        name = f"{type_name(type_argument(inner, 1))} by name"
    else:
        name = {Any: "any value"}.get(inner, getattr(inner, "__name__", str(inner)))
    return f"{name}, optional" if optional else name


def save_recipe(recipe: Any, path: str | os.PathLike) -> None:
    """Writes the resolved recipe as YAML, atomically; `load_recipe` reads an equal recipe from it."""
    with written_aside(path) as stream:
        stream.write(OmegaConf.to_yaml(dataclasses.asdict(recipe)))


def recipe_of_run(path: str | Path, recipe_class: type) -> dict:
    """Returns the values of the recipe that a run wrote at its start; fields of newer versions get their defaults."""
    return dataclasses.asdict(_overridden(recipe_class, read_yaml(path), [], str(path)))


def recipe_differences(old: dict, new: dict) -> list[str]:
    """Returns the fields in which two recipes differ, such as `phases.0.steps: 100 -> 200`."""
    before, after = _flatten(old), _flatten(new)
    names = list(before) + [name for name in after if name not in before]

    def show(values: dict, name: str) -> str:
        return str(values[name]) if name in values else "(not set)"

    return [
        f"{name}: {show(before, name)} -> {show(after, name)}"
        for name in names
        if name not in before or name not in after or before[name] != after[name]
    ]


def _flatten(value: Any, name: str = "") -> dict[str, Any]:
    """{dotted name: scalar}; an empty list or dictionary counts as a scalar."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    flat: dict[str, Any] = {}
    for key, item in items:
        flat |= _flatten(item, f"{name}.{key}" if name else str(key))
    return flat or {name: value}
