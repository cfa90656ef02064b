"""The documentation site is built without a warning, and has every page and every public name."""

import html
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from sphinx.util.inventory import InventoryFile

import crosslingual_zoo
from crosslingual_zoo.finetuning.tasks.registry import KINDS
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.zoo_core.recipes import field_groups

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench", "docs", "finetuning", "hub_cards", "pretraining", "sample_corpus")
NOT_PAGES = ("docs/navigation.md", "docs/_build/", "hub_cards/templates/")
METHODS = "XlmAlignModel.forward WordAligner.align TlmCollator.__call__"


@pytest.mark.slow
def test_site_has_every_page_public_name_field_and_command(tmp_path):
    options = ["-q", "-E", "-W", "--keep-going", "-c", "docs", "-d", str(tmp_path / "doctrees")]  # dead links warn
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT), str(tmp_path / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "html"

    def text_of(page: str) -> str:
        return html.unescape(re.sub(r"<[^>]+>", "", (site / page).read_text(encoding="utf-8")))

    # every Markdown page and notebook, also in the index of the search
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    files = [path.relative_to(ROOT) for path in (*found, *ROOT.glob("notebooks/*.ipynb"))]
    pages = {file.with_suffix("").as_posix() for file in files if not file.as_posix().startswith(NOT_PAGES)}
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert set(json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["docnames"]) == pages
    assert all((site / f"{page}.html").is_file() for page in (*pages, "index"))

    # every public name, nothing else, and the methods that users call
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    listed = {name for kind in ("py:class", "py:function") for name in inventory[kind]}
    public = {f"crosslingual_zoo.{name}" for name in crosslingual_zoo.__all__}
    # Sphinx also lists a class under the name of its module
    assert {name for name in listed if name.startswith("crosslingual_zoo.") and name.count(".") == 1} == public
    assert {f"crosslingual_zoo.{name}" for name in METHODS.split()} <= set(inventory["py:method"])

    # every field of a recipe, and every command
    classes = {"pretraining": [Recipe], "finetuning": [*KINDS.values()]}
    for package, recipe_classes in classes.items():
        text = text_of(f"docs/reference/{package}_recipe.html")
        fields = {name for of in recipe_classes for _, _, fields in field_groups(of) for name, *_ in fields}
        assert fields and not [name for name in fields if name not in text]
    tools = [f"crosslingual_zoo.{path.parent.parent.name}.tools.{path.stem}" for path in ROOT.glob("*/tools/[!_]*.py")]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    installed = {place.removesuffix(":main") for place in scripts.values()}
    text = text_of("docs/reference/commands.html")
    assert not [name for name in {*scripts, *tools} - installed if f"\n{name}" not in text.replace("python -m ", "")]
