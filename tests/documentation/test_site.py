"""The documentation site is built without a warning, and has every page and every public name."""

import html
import itertools
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from sphinx.util.inventory import InventoryFile

import crosslingual_zoo
from finetuning.tasks.registry import KINDS
from pretraining.recipe import Recipe
from zoo_core.recipes import field_groups

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench", "docs", "finetuning", "hub_cards", "pretraining", "sample_corpus")
NOT_PAGES = ("docs/navigation.md", "docs/_build/", "hub_cards/templates/")


@pytest.mark.slow
def test_site_has_every_page_public_name_field_and_command(tmp_path):
    site = build(tmp_path)
    check_pages(site)
    check_names(site)
    check_fields_and_commands(site)


def build(folder: Path) -> Path:
    """Builds the site, with warnings as errors; dead links are warnings."""
    options = ["-q", "-E", "-W", "--keep-going", "-c", "docs", "-d", str(folder / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT), str(folder / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def check_pages(site: Path) -> None:
    """Every Markdown page and notebook is there, and in the index of the search."""
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    files = [path.relative_to(ROOT) for path in (*found, *ROOT.glob("notebooks/*.ipynb"))]
    pages = {file.with_suffix("").as_posix() for file in files if not file.as_posix().startswith(NOT_PAGES)}
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert set(json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["docnames"]) == pages
    assert all((site / f"{page}.html").is_file() for page in (*pages, "index"))


def check_names(site: Path) -> None:
    """Every public name is in the reference, and nothing else; so are the methods that users call."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    listed = {name for kind in ("py:class", "py:function") for name in inventory[kind]}
    public = {f"crosslingual_zoo.{name}" for name in crosslingual_zoo.__all__}
    assert {name for name in listed if name.startswith("crosslingual_zoo.")} == public
    methods = "XlmAlignModel.forward WordAligner.align TlmCollator.__call__ VecoForConditionalGeneration.generate"
    assert {f"crosslingual_zoo.{name}" for name in methods.split()} <= set(inventory["py:method"])


def check_fields_and_commands(site: Path) -> None:
    """Every field of a recipe and every command has its entry."""
    classes = {"pretraining": [Recipe], "finetuning": [kind.recipe_class for kind in KINDS.values()]}
    for page, recipe_classes in classes.items():
        text = text_of(site / f"docs/reference/{page}_recipe.html")
        for _, _, fields in itertools.chain.from_iterable(map(field_groups, recipe_classes)):
            assert not [name for name, *_ in fields if name not in text]
    page = (site / "docs/reference/commands.html").read_text(encoding="utf-8")
    headings = {html.unescape(text) for text in re.findall(r"<h2><code[^>]*>(.*?)</code>", page)}
    headings = {re.sub(r"<[^>]+>", "", heading) for heading in headings}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    tools = [f"python -m finetuning.tools.{path.stem}" for path in (ROOT / "finetuning/tools").glob("[!_]*.py")]
    assert {"word-align adapt", "word-align project", *scripts, *tools} <= headings


def text_of(page: Path) -> str:
    """The text of a page."""
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))
