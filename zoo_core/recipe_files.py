"""The YAML files of recipes, and how one file extends another.

A file may contain `extends: other.yaml`, a path relative to its own folder. Its fields override those of the other
file, which may itself extend a third. Mappings are merged and lists are replaced. To change entries of a list, write a
mapping of positions: `train: {0: {split: test}}` changes the first entry, the position after the last adds an entry,
and null removes one. `output_dir` is not inherited. A mapping cannot be emptied, because mappings are merged. The names
of installed recipes work in any folder: if `pretraining/recipes/veco/tiny.yaml` is not below the working directory, the
installed file is read.

A folder's paper.yaml is a table of recipes: if `FOLDER/xnli.yaml` does not exist, that name means the row `xnli` of
`FOLDER/paper.yaml`. Paths in a row are relative to that folder. Keys that begin with a dot hold the shared part of
several rows, as YAML anchors.
"""

import difflib
import os
import typing
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """Returns the end of an error message about an unknown `name`: the nearest known names, or all of them."""
    known = [str(item) for item in known]
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.6)
    if close:
        return "Did you mean " + " or ".join(repr(item) for item in close) + "?"
    return "Known: " + ", ".join(known) + "." if known else "There are none."


TABLE = "paper.yaml"


def recipe_names(folder: str | os.PathLike) -> list[str]:
    """Returns the names of a folder's recipes, such as `xnli.yaml`: its files, and the rows of its paper.yaml."""
    files = {path.name for path in Path(folder).glob("*.y*ml")}
    rows = _rows(Path(folder) / TABLE) if TABLE in files else {}
    return sorted(files - {TABLE} | {f"{name}.yaml" for name in rows})


def _rows(table: Path) -> dict[str, Any]:
    return {name: row for name, row in _read_yaml(str(table), table).items() if not name.startswith(".")}


def or_installed(path: str) -> str:
    """Returns `path`, or, if it does not exist, the installed recipe or sample data of that name."""
    installed = Path(__file__).parents[1] / path
    is_ours = Path(path).parts[:1] in [("pretraining",), ("finetuning",), ("sample_corpus",)]
    return str(installed) if is_ours and not Path(path).exists() and installed.exists() else path


def read_chain(path: str | os.PathLike) -> list[tuple[str, dict[str, Any]]]:
    """Returns the files that `path` extends, base first, and `path` itself; each with its merged values."""
    files: list[tuple[str, dict[str, Any]]] = []  # from `path` to the file that extends none
    following: Any = path
    while following is not None:
        file = str(following)
        if any(Path(file).resolve() == Path(one).resolve() for one, _ in files):
            circle = " -> ".join([*(name for name, _ in files), file])
            raise ValueError(f"{files[-1][0]} extends {file}, which is a circle: {circle}. Remove one `extends`.")
        try:
            own = _read_file(file)
        except ValueError as error:
            raise ValueError(f"{files[-1][0]} extends {file}. {error}") if files else error from None
        following = own.pop("extends", None)
        if following is not None:
            if not isinstance(following, str):
                raise ValueError(f"in {file}: extends is {following!r}. It must be the path of another file, as text.")
            following = os.path.normpath(Path(file).parent / following)
        files.append((file, own))
    chain: list[tuple[str, dict[str, Any]]] = []
    for file, own in reversed(files):
        # two recipes must not write into the same folder
        below = {name: value for name, value in chain[-1][1].items() if name != "output_dir"} if chain else {}
        chain.append((file, _over(below, own, "", file) if chain else own))
    return chain


def _over(old: Any, new: Any, name: str, file: str) -> Any:
    """Merges the value `new` of a file over the value `old` of the file that it extends."""
    if isinstance(old, dict) and isinstance(new, dict):
        shared = {key: _over(old[key], new[key], f"{name}.{key}".strip("."), file) for key in new if key in old}
        return {**old, **new, **shared}
    if isinstance(old, list) and isinstance(new, dict):
        values = list(old)
        for position, value in new.items():
            if not isinstance(position, int) or not 0 <= position <= len(values):
                raise ValueError(
                    f"in {file}: {name} has no entry {position}: the length of the extended list is {len(old)}, and "
                    f"positions count from 0. Name an entry that exists, or {len(values)} to add one."
                )
            old_value = values[position] if position < len(values) else None
            values[position : position + 1] = [_over(old_value, value, f"{name}.{position}", file)]
        return [value for value in values if value is not None]
    return new


def _read_file(path: str) -> dict[str, Any]:
    """Reads the fields of one recipe: those of a file, or of a row of its folder's table."""
    file = Path(or_installed(path))
    if file.name == TABLE and file.is_file():
        rows = [f"{name}.yaml" for name in _rows(file)]
        raise ValueError(f"{path} is a table of recipes. Name one of them in its place: {', '.join(rows)}.")
    if not file.is_file():
        table = Path(or_installed(str(Path(path).with_name(TABLE))))
        if table.is_file() and isinstance(row := _rows(table).get(Path(path).stem), dict):
            return row
        folder = table.parent if table.is_file() else file.parent
        names = recipe_names(folder) if folder.is_dir() else []
        hint = nearest(file.name, names) if names else f"The folder {folder} contains no YAML file."
        raise ValueError(f"Recipe file not found: {path}. {hint}")
    return _read_yaml(path, file)


def _read_yaml(path: str, file: Path) -> dict[str, Any]:
    """Reads the mapping in a YAML file; error messages call the file `path`."""
    content = file.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8. Save the file as UTF-8."
        ) from None
    try:
        # OmegaConf reads 1e-4 as a number, and a repeated key is an error
        values = OmegaConf.to_container(OmegaConf.create(text)) if text.strip() else None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ValueError(f"{path}{where}: not valid YAML: {problem}. Correct that line.") from None
    if not isinstance(values, dict) or not values or (len(values) == 1 and text.strip() in values):
        kind = "has no fields" if not values else "is not a mapping of fields to values"
        raise ValueError(f"Recipe file {path} {kind}. --help lists the fields.")
    return values
