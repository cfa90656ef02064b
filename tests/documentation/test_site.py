"""The documentation site is built without a warning, and has every page and every public name."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sphinx.util.inventory import InventoryFile

import crosslingual_zoo
from pretraining.recipe import Recipe
from zoo_core.command_line import field_groups

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench", "docs", "finetuning", "hub_cards", "pretraining", "sample_corpus")
NOT_PAGES = ("docs/navigation.md", "docs/_build/", "hub_cards/templates/")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    options = ["-q", "-E", "-W", "--keep-going", "-c", "docs", "-d", str(folder / "doctrees")]
    environment = {key: value for key, value in os.environ.items() if key != "GITHUB_REPOSITORY"}
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT), str(folder / "html")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


@pytest.mark.slow
def test_every_page_is_in_the_site_and_its_search(site):
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    files = [path.relative_to(ROOT) for path in (*found, *ROOT.glob("notebooks/*.ipynb"))]
    pages = {file.with_suffix("").as_posix() for file in files if not file.as_posix().startswith(NOT_PAGES)}
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert set(json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))["docnames"]) == pages
    assert all((site / f"{page}.html").is_file() for page in (*pages, "index"))


@pytest.mark.slow
def test_public_names_fields_and_commands_are_in_the_reference(site):
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    kinds = ("py:class", "py:function")
    listed = {name for kind in kinds for name in inventory[kind] if name.startswith("crosslingual_zoo.")}
    assert listed == {f"crosslingual_zoo.{name}" for name in crosslingual_zoo.__all__}
    methods = inventory["py:method"]
    assert {"crosslingual_zoo.XlmAlignModel.forward", "crosslingual_zoo.WordAligner.align"} <= set(methods)
    fields = (site / "docs/reference/pretraining_recipe.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", fields)
    assert all(name in text for group in field_groups(Recipe) for name, *_ in group.fields)
    commands = (site / "docs/reference/commands.html").read_text(encoding="utf-8")
    assert {"word-align-adapt", "zoo-pretrain", "python-m-finetuning-tools-compare"} <= set(
        re.findall(r'<section id="([^"]+)"', commands)
    )


@pytest.mark.slow
def test_docstrings_are_read_as_markdown(site):
    page = (site / "docs/reference/objectives.html").read_text(encoding="utf-8")
    assert not re.search(r"`\w", re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL))  # backticks are code
    assert "share of the ordinary tokens" in page  # of `__init__`
    assert page.count('class="highlight-python') > 5 and page.count('class="highlight-text') > 4  # examples, pictures
