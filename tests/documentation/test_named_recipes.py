"""Every YAML file, and every row of one, that a page, recipe, suite, plan, notebook or docstring names is there."""

import ast
import fnmatch
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from crosslingual_zoo.modeling import MODEL_TYPES
from crosslingual_zoo.zoo_core.recipes import TABLE, recipe_names

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench", "crosslingual_zoo", "docs", "finetuning", "hub_cards", "modeling", "notebooks", "pretraining")
RECIPES = [ROOT / "finetuning" / "recipes", ROOT / "pretraining" / "recipes"]
UNREAD = ("CHANGELOG.md", "ARCHITECTURE.md")  # names of the past, and of files that a contributor adds
NAMED = re.compile(r"[\w./<>-]*\w[\w<>]*\.yaml(?:#[\w<>]+)?")
GENERAL = {"recipe.yaml", TABLE}  # of any run, of any model


def read_docstrings(source: str) -> str:
    nodes = ast.walk(ast.parse(source))
    documented = [node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    return "\n".join(ast.get_docstring(node) or "" for node in documented)


def read_texts() -> Iterator[tuple[Path, str]]:
    """The files that may name recipes, each with the part of it that is read: all, or the docstrings of a module."""
    files = [*ROOT.glob("*"), *(ROOT / "zoo_core").rglob("*")]
    for folder in FOLDERS:
        files += (ROOT / folder).rglob("*")
    for file in files:
        if file.is_relative_to(ROOT / "docs" / "_build"):  # copies that `make docs` leaves
            continue
        if file.suffix in (".md", ".yaml", ".ipynb", ".jinja") or file.name == "Makefile":
            if file.name not in UNREAD:
                yield file, file.read_text(encoding="utf-8")
        elif file.suffix == ".py":
            yield file, read_docstrings(file.read_text(encoding="utf-8"))


@functools.cache
def known_names(folder: Path) -> list[str]:
    return recipe_names(folder)


def is_there(name: str, folders: list[Path]) -> bool:
    """Whether a file, and a row of it, has this name, from one of the folders. <...> and CAPITALS are any text."""
    pattern, _, row = re.sub(r"<\w+>|\b[A-Z]+\b", "*", name).partition("#")
    for folder in folders:
        for file in folder.glob(pattern):
            if not row or fnmatch.filter(known_names(file.parent), f"{file.name}#{row}"):
                return True
    return False


def test_each_file_and_row_that_is_named_is_there():
    named = []
    for file, text in read_texts():
        written = re.findall(r"cat > (\S+)", text)  # by the page itself
        for name in sorted(set(NAMED.findall(text))):
            if name.rpartition("/")[2] not in GENERAL.union(written):
                named.append((file, name))
    missing = []
    for file, name in named:
        for model in MODEL_TYPES if "<model>" in name else ("",):
            if not is_there(name.replace("<model>", model), [ROOT, file.parent, *RECIPES]):
                missing.append(f"{file.relative_to(ROOT)}: {name} {model}")
    assert missing == []
    names = {name for _, name in named}
    assert {"finetuning/recipes/xlm_align/paper.yaml#xnli", "<model>/paper.yaml#<task>"} <= names
