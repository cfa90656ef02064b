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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    options = ["-q", "-E", "-W", "--keep-going", "-c", "docs", "-d", str(folder / "doctrees")]  # dead links warn
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT), str(folder / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


@pytest.fixture
def text_of(site):
    """`text_of(page)`: what a reader sees of a page."""
    return lambda page: html.unescape(re.sub(r"<[^>]+>", "", (site / page).read_text(encoding="utf-8")))


@pytest.mark.slow
def test_site_has_every_page_and_notebook(site):
    """Also in the index of the search."""
    files = [*ROOT.glob("*.md"), *ROOT.glob("notebooks/*.ipynb")]
    for folder in FOLDERS:
        files += (ROOT / folder).rglob("*.md")
    names = [file.relative_to(ROOT).as_posix() for file in files]
    pages = {name.rpartition(".")[0] for name in names if not name.startswith(NOT_PAGES)}
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert set(json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["docnames"]) == pages
    for page in (*pages, "index"):
        assert (site / f"{page}.html").is_file(), page


@pytest.mark.slow
def test_site_has_every_public_name_and_no_other(site):
    """And the methods that users call."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    listed = [*inventory["py:class"], *inventory["py:function"]]
    public = {f"crosslingual_zoo.{name}" for name in crosslingual_zoo.__all__}
    # Sphinx also lists a class under the name of its module
    assert {name for name in listed if re.fullmatch(r"crosslingual_zoo\.\w+", name)} == public
    assert {f"crosslingual_zoo.{name}" for name in METHODS.split()} <= set(inventory["py:method"])


RECIPES = [("pretraining", Recipe), *(("finetuning", recipe_class) for recipe_class in KINDS.values())]


@pytest.mark.slow
@pytest.mark.parametrize(("package", "recipe_class"), RECIPES)
def test_site_has_every_field_of_a_recipe(text_of, package, recipe_class):
    text = text_of(f"docs/reference/{package}_recipe.html")
    names = []
    for _, _, fields in field_groups(recipe_class):
        names += [name for name, *_ in fields]
    assert names
    assert [name for name in names if name not in text] == []


@pytest.mark.slow
def test_site_has_every_command(text_of):
    tools = [f"crosslingual_zoo.{path.parent.parent.name}.tools.{path.stem}" for path in ROOT.glob("*/tools/[!_]*.py")]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    modules_of_scripts = {entry.removesuffix(":main") for entry in scripts.values()}
    text = text_of("docs/reference/commands.html").replace("python -m ", "")
    for name in {*scripts, *tools} - modules_of_scripts:
        assert f"\n{name}" in text, name
