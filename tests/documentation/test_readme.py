"""README.md and the pages: links lead somewhere, figures are the published ones, YAML blocks are recipes."""

import itertools
import re
from pathlib import Path

import pytest
import yaml

from crosslingual_zoo.modeling import MODEL_TYPES
from crosslingual_zoo.pretraining.recipe import Recipe as PreTraining
from crosslingual_zoo.zoo_core.recipes import load_recipe

ROOT = Path(__file__).parents[2]
PROJECT = ("ARCHITECTURE.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")  # no commands


def anchors(text):
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_pages_links_lead_somewhere(pages, page_of):
    for page in (*pages.values(), *map(page_of, PROJECT)):
        for target in re.findall(r"\]\(([^)]+)\)", page.prose):
            if target.startswith("https://"):
                continue
            path, _, anchor = target.partition("#")
            file = (page.path.parent / path).resolve() if path else page.path
            assert file.is_relative_to(ROOT), f"{page.path}: {target}"
            assert file.exists(), f"{page.path}: {target}"
            if anchor:
                assert anchors(file.read_text(encoding="utf-8")).count(anchor) == 1, f"{page.path}: {target}"


def figures_in(value):
    """The numbers in a value of lists and dictionaries."""
    if isinstance(value, int | float):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return []
    return list(itertools.chain.from_iterable(map(figures_in, value)))


@pytest.mark.parametrize("model", MODEL_TYPES)
def test_pages_published_figures_are_those_of_the_paper(pages, model):
    """Each figure with a decimal point in the table of a model's page is in finetuning/published."""
    published = yaml.safe_load((ROOT / f"finetuning/published/{model}.yaml").read_text(encoding="utf-8"))
    known_figures = set()
    for table in published["tables"]:
        for row in table["rows"]:
            known_figures.update(figures_in([row["scores"], row.get("average")]))
    text = pages[f"hub_cards/models/{model}.md"].text
    [rows] = re.findall(r"^\| published .*?\n((?:\|.*\n)+)", text, re.MULTILINE)
    page_figures = set(map(float, re.findall(r"\d+\.\d+", rows)))
    assert len(page_figures) > 12
    assert page_figures <= known_figures
    assert set(re.findall(r"Table \d+", rows)) <= {table["table"] for table in published["tables"]}


def test_pages_examples_in_yaml_are_recipes(pages, tmp_path):
    blocks = [block for page in pages.values() for block in page.of("yaml")]
    assert len(blocks) >= 2
    for block in blocks:
        recipe = {"output_dir": "x", "model": {"type": "veco"}, **yaml.safe_load(block)}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
        load_recipe(PreTraining, str(tmp_path / "recipe.yaml"), [])
