"""The rules of ARCHITECTURE.md that a machine can hold: layers, entry points, circles, folders."""

import ast
from pathlib import Path

import pytest

from crosslingual_zoo.pretraining.objectives import OBJECTIVES

ROOT = Path(__file__).parents[1]
BELOW = {
    "modeling": set(),
    "zoo_core": set(),
    "pretraining": {"modeling", "zoo_core"},
    "finetuning": {"modeling", "zoo_core"},
    "hub_cards": {"modeling", "zoo_core", "pretraining", "finetuning"},
    "bench": {"modeling", "zoo_core", "pretraining", "finetuning", "hub_cards"},
    "crosslingual_zoo": {"modeling", "zoo_core", "pretraining", "finetuning", "hub_cards"},
}
ENTRY_POINTS = {"crosslingual_zoo.pretraining.run", "crosslingual_zoo.finetuning.run"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    inside = () if parts[0] in ("bench", "crosslingual_zoo") else ("crosslingual_zoo",)
    return ".".join((*inside, *parts)).removesuffix(".__init__")


def package_of(name: str) -> str:
    """ "modeling" of `crosslingual_zoo.modeling.encoder`, "crosslingual_zoo" of its own modules."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "crosslingual_zoo" and parts[1] in BELOW else parts[0]


MODULES = {module_of(path): path for package in BELOW for path in (ROOT / package).rglob("*.py")}  # follows no links


def imports_of(name: str) -> set[str]:
    """The modules of ours that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            is_package = MODULES[name].name == "__init__.py"
            folder = name if is_package else name.rpartition(".")[0]
            base = ".".join(part for part in (folder if node.level else "", node.module) if part)
            found |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names}
    return found & MODULES.keys()


IMPORTS = {name: imports_of(name) for name in MODULES}


@pytest.mark.parametrize("package", BELOW)
def test_layout_imports_only_from_the_layers_below(package):
    for name, imported in IMPORTS.items():
        if package_of(name) == package:
            others = {package_of(other) for other in imported} - {package}
            assert others <= BELOW[package], f"{name} imports {sorted(others)}"


def test_layout_nothing_imports_an_entry_point():
    assert {name for name, imported in IMPORTS.items() if imported & ENTRY_POINTS and name not in ENTRY_POINTS} == set()


def test_layout_data_of_pretraining_knows_no_objectives():
    for name, imported in IMPORTS.items():
        if name.startswith("crosslingual_zoo.pretraining.data"):
            assert not {other for other in imported if ".objectives" in other}, name


def test_layout_has_no_circles():
    state: dict[str, bool] = {}  # True while a module's imports are followed

    def follow(name: str, path: tuple[str, ...]) -> None:
        assert not state.get(name), f"a circle: {' -> '.join((*path[path.index(name) :], name))}"
        if name not in state:
            state[name] = True
            for other in sorted(IMPORTS[name]):
                follow(other, (*path, name))
            state[name] = False

    for name in MODULES:
        follow(name, ())


def test_layout_names_an_objective_in_its_own_file_alone():
    """Who deletes the file of an objective, and its line of the registry, deletes it."""
    for name in OBJECTIVES:
        quoted = {f'"{name}"', f"'{name}'"}
        found = {module for module, path in MODULES.items() if any(text in path.read_text() for text in quoted)}
        models = ("modeling_", "masked_lm", "denoising_word_alignment")
        elsewhere = ("bench.", *(f"crosslingual_zoo.modeling.{model}" for model in models))
        own = {module for module in found if not module.startswith(elsewhere)}
        assert own == {OBJECTIVES[name].__module__}, name


def test_layout_folders_can_be_seen_at_a_glance():
    for package in BELOW:
        for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
            if folder.name not in ("modeling",):  # flat by the rules of remote code
                assert len(list(folder.glob("*.py"))) <= 21, folder


def test_layout_code_that_travels_to_the_hub_names_its_license():
    headers = {path.name: path.read_text().partition("\n")[0] for path in (ROOT / "modeling").glob("[a-z]*.py")}
    assert headers and set(headers.values()) == {"# SPDX-License-Identifier: Apache-2.0"}
