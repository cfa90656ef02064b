"""All imported packages must be declared: the dependency of another package may disappear."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ["zoo_core", "finetuning", "hub_cards", "modeling", "pretraining"]


def test_dependencies_of_every_import_are_declared():
    def named(text):
        return re.match(r"[\w-]+", text)[0].lower().replace("-", "_")

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared, distributions = set(map(named, project["dependencies"])), packages_distributions()
    files = {file for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    for file in files - set((ROOT / "hub_cards" / "space").iterdir()):  # a program of its own, with requirements.txt
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))  # also inside functions
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
        ours_and_tracker = {"crosslingual_zoo", "wandb"}
        for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - ours_and_tracker:
            found = set(map(named, distributions.get(name, ["nothing installed"])))
            assert found & declared, f"{file.relative_to(ROOT)} imports {name}, of {found}"
