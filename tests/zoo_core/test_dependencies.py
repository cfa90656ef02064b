"""All imported packages must be declared: the dependency of another package may disappear."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"zoo_core", "finetuning", "hub_cards", "modeling", "pretraining"}


def imported(file):
    """Returns the top-level names of all modules that a file imports, also inside functions."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names}


def test_every_import_is_of_a_declared_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.match(r"[\w-]+", line)[0].lower().replace("-", "_") for line in project["dependencies"]}
    distributions = packages_distributions()
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        if file.parent == ROOT / "hub_cards" / "space":  # a program of its own, with requirements.txt
            continue
        for name in imported(file) - PACKAGES - sys.stdlib_module_names:
            names = {one.lower().replace("-", "_") for one in distributions.get(name, ["nothing installed"])}
            assert names & declared, f"{file.relative_to(ROOT)} imports {name}, of {names}"
