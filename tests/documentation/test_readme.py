"""What README.md and the pages show has to be there and to be read: links, recipes, figures and blocks that are no
commands. (tests/documentation/test_commands.py runs the commands and the examples; the demo's test runs the demo.)"""

import re
from pathlib import Path

import pytest
import yaml

from pretraining.recipe import Recipe as PreTraining
from zoo_core.recipes import load_recipe

ROOT = Path(__file__).parents[2]
MODELS = ("veco", "ernie_m", "xlm_align", "metaxlm")
# where the name of a recipe may begin; a page of pre-training names it without the folder, and so on
RECIPES = (
    "",
    "pretraining/recipes",
    "finetuning/recipes",
    *(f"finetuning/recipes/{name}" for name in ("xtreme", *MODELS)),
)


def prose(page):
    """The text of a page without its fenced blocks."""
    return "".join(re.split(r"^```.*\n", page.text, flags=re.MULTILINE)[::2])


def anchors(text):
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_links_lead_somewhere(pages):
    for page in pages.values():
        for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
            if target.startswith("https://"):
                continue
            path, _, anchor = target.partition("#")
            file = (page.path.parent / path).resolve() if path else page.path
            assert file.is_relative_to(ROOT) and file.exists(), f"{page.path}: {target}"
            if anchor:
                assert anchors(file.read_text(encoding="utf-8")).count(anchor) == 1, f"{page.path}: {target}"


def test_readme_is_for_a_newcomer_and_leads_to_all_pages(pages):
    readme = pages["README.md"]
    assert len(readme.text.splitlines()) <= 260
    for name, page in pages.items():
        if name != "README.md":
            assert f"]({name}" in readme.text or f"]({Path(name).parent}/" in readme.text, name
            assert "# " in page.text


@pytest.mark.parametrize("model", MODELS)
def test_a_models_page_is_complete(pages, model):
    page = pages[f"hub_cards/models/{model}.md"]
    wanted = ("the-paper", "what-is-here", "what-differs-from-the-paper", "from-a-real-english-model", "how-to-run-it")
    assert {*wanted, "citation"} <= set(anchors(page.text))
    assert f"../examples/{model}/README.md" in page.text
    for recipe in (ROOT / "pretraining/recipes" / model).glob("*.yaml"):
        assert recipe.relative_to(ROOT).as_posix() in page.text, f"{page.path} does not name {recipe.name}"


def test_recipes_are_there(pages):
    for page in pages.values():
        for name in re.findall(r"`((?:[\w<>]+/)*[\w<>]+\.yaml)`", prose(page)):
            if name == "recipe.yaml":  # of a run folder
                continue
            pattern = re.sub(r"<\w+>", "*", name)
            assert any(any((ROOT / folder).glob(pattern)) for folder in RECIPES), f"{page.path}: {name}"


@pytest.mark.parametrize("model", MODELS)
def test_published_figures_are_those_of_the_paper(pages, model):
    """Each figure with a decimal point in the table of a model's page stands in hub_cards/published."""

    def figures(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            return {figure for part in value for figure in figures(part)}
        return {value} if isinstance(value, int | float) else set()

    published = yaml.safe_load((ROOT / f"hub_cards/published/{model}.yaml").read_text(encoding="utf-8"))
    printed = {f"{figure:g}" for table in published["tables"] for row in table["rows"]
               for figure in figures([row["scores"], row.get("average")])}  # fmt: skip
    tables = {table["table"] for table in published["tables"]}
    (rows,) = re.findall(r"^\| published .*?\n((?:\|.*\n)+)", pages[f"hub_cards/models/{model}.md"].text, re.MULTILINE)
    shown = re.findall(r"\d+\.\d+", rows)
    assert len(shown) > 12
    assert [figure for figure in shown if f"{float(figure):g}" not in printed] == []
    assert set(re.findall(r"Table \d+", rows)) <= tables


def test_examples_in_yaml_are_recipes(pages, tmp_path):
    loaded = {}
    for name, page in pages.items():
        for number, block in enumerate(page.of("yaml")):
            path = tmp_path / f"{number}.yaml"
            recipe = {"output_dir": "x", "model": {"type": "veco"}, **yaml.safe_load(block)}
            path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
            loaded[name] = load_recipe(PreTraining, str(path), [])
    start, corpora = loaded["hub_cards/models/metaxlm.md"], loaded["pretraining/README.md"]
    assert start.model.meta_pretrained.dictionaries[0].language == "sw" and start.tokenizer
    assert len(corpora.monolingual) == 2 and len(corpora.bitext) == 3
    assert len(loaded["README.md"].monolingual) == len(loaded["README.md"].bitext) == 1


@pytest.mark.parametrize("model", MODELS)
def test_the_citation_is_that_of_the_cards(pages, model):
    (citation,) = pages[f"hub_cards/models/{model}.md"].of("bibtex")
    about = yaml.safe_load((ROOT / f"hub_cards/templates/about/{model}.yaml").read_text(encoding="utf-8"))
    assert citation.strip() == about["citation"].strip()


def test_no_block_is_of_a_kind_that_nothing_checks(pages):
    assert {fence for page in pages.values() for fence, _ in page.blocks} <= {"", "python", "yaml", "bibtex"}


def test_recipes_and_code_name_headings_that_are_there():
    """What says `page.md, "Heading"` in a comment names a heading of that page."""
    named = 0
    for folder in ("pretraining", "finetuning", "modeling", "hub_cards", "bench", "zoo_core"):
        for file in [*(ROOT / folder).glob("**/*.yaml"), *(ROOT / folder).glob("**/*.py")]:
            text = re.sub(r"\s*\n# ?", " ", file.read_text(encoding="utf-8"))
            for page, heading in re.findall(r"((?:[\w/]+/)?(?:README|models/\w+)\.md), \"([^\"]+?)\.?\"", text):
                lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
                assert any(line.lstrip("#") == f" {heading}" for line in lines), f"{file}: {page}, {heading}"
                named += 1
    assert named >= 2
