"""Sphinx's settings. The repository is the source folder: `make docs` reads the pages where they are.

reference.py generates parts of docs/reference/.
"""

import json
import re
import shutil
import sys
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import reference  # noqa: E402

project = "crosslingual-zoo"
author = copyright = "The Crosslingual Zoo contributors"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb", "sphinx_copybutton"]
root_doc = "README"  # the navigation of docs/navigation.md is appended to it
NAVIGATION = ROOT / "docs" / "navigation.md"
FOLDERS = ("bench", "finetuning", "hub_cards", "pretraining", "sample_corpus", "docs")
include_patterns = ["*.md", *(f"{folder}/**.md" for folder in FOLDERS), "notebooks/*.ipynb"]
exclude_patterns = ["docs/navigation.md", "docs/_build", "hub_cards/templates", "runs", ".*"]
suppress_warnings = ["myst.header"]  # headings of the cards skip levels, as those of transformers' do

myst_enable_extensions = ["alert", "dollarmath", "html_image"]
myst_heading_anchors = 6  # the anchors of GitHub
nb_execution_mode = "off"  # shows the committed outputs
autoclass_content = "both"  # the class, then `__init__`
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
add_module_names = False
default_role = "literal"  # of single backticks in docstrings
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

highlight_language = "none"  # of blocks that name none
pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = "crosslingual-zoo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True


def prepare(app, docname: str, source: list[str]) -> None:
    """Fills in what is generated, appends the navigation, and resolves links to what is no page of the site."""
    if docname.startswith("docs/reference/"):
        source[0] = reference.fill(source[0])
    if docname.startswith("notebooks/"):
        notebook = json.loads(source[0])
        notebook["metadata"]["language_info"]["pygments_lexer"] = "ipython3"  # knows `!command`
        source[0] = json.dumps(notebook)
        return
    source[0] = re.sub(r"\A---\n.*?\n---\n", "", source[0], flags=re.DOTALL)  # the Hub's metadata
    folder = (ROOT / docname).parent

    def link(match: re.Match) -> str:
        place = folder / match[2]
        return match[1] if "://" not in match[2] and place.is_dir() else match[0]

    source[0] = re.sub(r"(?<!!)\[([^\]\[]+)\]\(([^)\s]+)\)", link, source[0])
    if docname == root_doc:
        source[0] += "\n\n" + NAVIGATION.read_text(encoding="utf-8")


def as_text(app, what: str, name: str, obj, options, lines: list[str]) -> None:
    """Before napoleon reads a docstring: signs are text, indented paragraphs pictures, lists apart."""
    blocks = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    for n, block in enumerate(blocks):
        if block.startswith(" "):
            blocks[n] = "::\n\n" + textwrap.indent(block, "    ")
        elif ">>> " not in block:
            block = re.sub(r"(`[^`]*`)|([\\*|]|_(?!\w))", lambda part: part[1] or f"\\{part[2]}", block)
            block = re.sub(r"\n(?=- )", "\n\n", block)
            blocks[n] = re.sub(r"((?:^|\n)- .*(?:\n  .*)*)\n(?=\S)", r"\1\n\n", block)
    lines[:] = "\n\n".join(blocks).split("\n")


def add_index(app, error: Exception | None) -> None:
    """The site begins at index.html."""
    if error is None and app.builder.format == "html":
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app) -> None:
    app.connect("source-read", prepare, priority=100)
    app.connect("autodoc-process-docstring", as_text, priority=100)
    app.connect("build-finished", add_index)
