"""All imported packages must be declared: the dependency of another package may disappear."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ["zoo_core", "finetuning", "hub_cards", "modeling", "pretraining"]


SPACE = ROOT / "hub_cards" / "space"  # a program of its own, with requirements.txt
NOT_DECLARED = sys.stdlib_module_names | {"crosslingual_zoo", "wandb"}  # and a tracker


def package_name(requirement):
    return re.match(r"[\w-]+", requirement)[0].lower().replace("-", "_")


def imported_modules(file):
    """The top-level modules that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("package", PACKAGES)
def test_dependencies_of_every_import_are_declared(package):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = set(map(package_name, project["dependencies"]))
    distributions = packages_distributions()
    for file in (ROOT / package).rglob("*.py"):
        if file.parent == SPACE:
            continue
        for module in imported_modules(file) - NOT_DECLARED:
            installed = set(map(package_name, distributions.get(module, ["nothing"])))
            assert installed & declared, f"{file.relative_to(ROOT)} imports {module}, of {installed}"
