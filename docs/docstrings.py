"""Docstrings of this project as Markdown: Google's sections, backticks for code, indented pictures.

autodoc finds and orders what is documented. What it hands over is turned into Markdown here, and read by MyST.
"""

import re
from typing import Any

from docutils import nodes
from docutils.utils import new_document
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.util.docutils import SphinxDirective

LISTS = {"Args": "Arguments", "Raises": "Raises"}  # sections of `name: meaning`
LEADS = ("Returns", "Raises", "Source:", "Examples:", "Example:", "Notation:")  # words that begin a paragraph


def markdown_of(lines: list[str]) -> str:
    """A docstring as Markdown."""
    out: list[str] = []
    blocks = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    blocks = [part for block in blocks for part in _split_section(block)]
    for block in blocks:
        first, _, rest = block.partition("\n")
        section = first.removesuffix(":")
        if section in LISTS and rest:
            out += [f"**{LISTS[section]}**", *_items(rest)]
        elif section == "Example" and rest:
            out += ["**Example**", _fence("python", rest)]
        elif first.lstrip().startswith(">>> "):
            out.append(_fence("python", block))
        elif re.match(r"[\w, ]+: ", block) and "\n    " in block:
            out += _items(block)
        elif block.startswith(" "):
            out.append(_fence("text" if out and not _is_code(block) else "python", block))
        else:
            text = escape(block)
            lead = next((word for word in LEADS if text.startswith(word)), "")
            out.append(f"**{lead}**{text[len(lead) :]}" if lead else text)
    return "\n\n".join(out)


def _split_section(block: str) -> list[str]:
    """A paragraph and the list, section or indented lines that follow it without an empty line, apart."""
    parts, current = [], []
    for line in block.split("\n"):
        if current and line.startswith("- ") and not current[0].startswith("- "):
            parts, current = [*parts, "\n".join(current)], []
        current.append(line)
    return [*parts, "\n".join(current)]


def _is_code(block: str) -> bool:
    return bool(re.search(r"^\s*(from |import |\w+ = |\w+\(|python )", block))


def _dedent(text: str) -> str:
    lines = text.split("\n")
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[indent:] for line in lines)


def _fence(language: str, text: str) -> str:
    return f"```{language}\n{_dedent(text)}\n```"


def _items(text: str) -> list[str]:
    """`name: meaning` entries, whose further lines are indented, as a definition list."""
    entries = re.split(r"\n(?=\S)", _dedent(text))
    found = []
    for entry in entries:
        name, _, meaning = entry.partition(": ")
        meaning = " ".join(line.strip() for line in meaning.split("\n"))
        names = ", ".join(f"`{part.strip()}`" for part in name.split(","))
        found.append(f"{names}\n: {escape(meaning)}")
    return found


def escape(text: str) -> str:
    """Outside of code, what Markdown would read as HTML, math, or emphasis is text."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if n % 2 else re.sub(r"([<$\\*_])", r"\\\1", part) for n, part in enumerate(parts))


class Markdown(SphinxDirective):
    """Markdown in reStructuredText, which is what autodoc writes."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        document = new_document(self.env.docname, self.state.document.settings)
        MystParser().parse("\n".join(self.content), document)
        return list(document.children)


def convert(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """autodoc's event: replaces a docstring by a directive that holds it as Markdown."""
    if any(line.strip() for line in lines):
        text = markdown_of([line.rstrip() for line in lines])
        lines[:] = [".. markdown::", "", *(f"   {line}" for line in text.split("\n")), ""]


def setup(app: Any) -> None:
    app.add_directive("markdown", Markdown)
    app.connect("autodoc-process-docstring", convert)
