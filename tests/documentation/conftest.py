"""What the tests of the documentation share: the pages, their blocks and commands, and a folder to work in."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *(f"{folder}/README.md" for folder in ("bench", "pretraining", "finetuning", "hub_cards")),
    "pretraining/large_runs.md",
    "pretraining/local_copies.md",
    "finetuning/align_words.md",
    "finetuning/align_accuracy.md",
    *(f"hub_cards/models/{name}.md" for name in ("veco", "ernie_m", "xlm_align", "metaxlm")),
)
CODE = ("bench", "zoo_core", "finetuning", "hub_cards", "modeling", "pretraining", "sample_corpus", "Makefile")


@dataclass
class Page:
    """A page of the documentation: its text, and its fenced blocks as (language, block), '' for commands."""

    path: Path
    text: str
    blocks: list[tuple[str, str]]

    def of(self, language: str) -> list[str]:
        return [block for fence, block in self.blocks if fence == language]

    @property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        return "".join(re.split(r"^```.*\n", self.text, flags=re.MULTILINE)[::2])


def read_page(name: str) -> Page:
    text = (ROOT / name).read_text(encoding="utf-8")
    parts = re.split(r"^```(.*)\n", text, flags=re.MULTILINE)  # text, fence, block, fence, text, ...
    return Page(ROOT / name, text, list(zip(parts[1::4], parts[2::4], strict=True)))


def commands_of(page: Page) -> list[str]:
    """The commands of a page in one line each, variables filled in: blocks, and in the text what begins like one."""
    commands = []
    variables = {}
    for line in "".join(page.of("")).replace("\\\n", " ").splitlines():
        assignment = re.fullmatch(r"([A-Z]+)=(\S+)", line)
        if assignment:
            name, value = assignment.groups()
            variables[f"${name}"] = value
        elif line.strip():
            for name, value in variables.items():
                line = line.replace(name, value)
            commands.append(line)
    return commands + re.findall(r"`((?:python -m|python \w+/|accelerate|word-align|make|hf) [^`]+)`", page.prose)


@pytest.fixture(scope="session")
def page_of() -> Callable[[str], Page]:
    return read_page


@pytest.fixture(scope="session")
def pages() -> dict[str, Page]:
    return {name: read_page(name) for name in PAGES}


@pytest.fixture
def working_folder(zoo_model_dir, tmp_path, monkeypatch) -> Path:
    """A folder with the repository's folders and the tiny model that pages name; it is the working directory."""
    for name in CODE:
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(zoo_model_dir("xlm_align"), tmp_path / "runs/xlm_align-smoke/model")
    monkeypatch.chdir(tmp_path)
    return tmp_path
