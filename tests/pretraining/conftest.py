"""What the tests of corpora share: small recipes over the sample corpus and over files of their own."""

import json
from pathlib import Path

import pytest

from common.recipes import load_recipe
from pretraining.recipe import Recipe, check_recipe

BASE = {
    "output_dir": "unused",
    "model": {"type": "veco"},
    "phases": [{"name": "a", "steps": 6, "learning_rate": 1e-3, "objectives": {"mlm": {"batch_size": 8}}}],
}


class Files:
    """Writes small files; gives their paths."""

    def __init__(self, folder: Path):
        self.folder = folder

    def lines(self, name: str, lines: list[str]) -> str:
        (self.folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return str(self.folder / name)

    def jsonl(self, name: str, rows: list[dict]) -> str:
        return self.lines(name, [json.dumps(row, ensure_ascii=False) for row in rows])


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def recipe_of(files):
    """A recipe of the given fields over a small one; `objectives` and `corpora` are those of its only phase."""

    def make(objectives=None, corpora=None, **fields) -> Recipe:
        values = json.loads(json.dumps(BASE | fields))
        if objectives:
            values["phases"][0]["objectives"] = objectives
        if corpora:
            values["phases"][0]["corpora"] = corpora
        recipe = load_recipe(Recipe, files.lines("recipe.yaml", [json.dumps(values)]), [])
        check_recipe(recipe)
        return recipe

    return make


@pytest.fixture
def sample(sample_corpus_dir):
    """The fields of a table of the sample corpus, by language."""
    return lambda language: {"path": str(sample_corpus_dir), "config": language}
