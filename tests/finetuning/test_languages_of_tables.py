"""Errors for languages, splits and labels that a dataset does not have, in each kind of table."""

import json

import pytest

from finetuning.data.rows import TableReader
from finetuning.recipe import EvaluationTable, Recipe
from finetuning.tasks.registry import task_of
from finetuning.tasks.tagging.recipe import TaggingRecipe
from zoo_core.recipes import load_recipe

CONFIGS = {"pos.English": "en", "pos.German": "de", "pos.Greek": "el", "all": "en"}


@pytest.fixture
def hub_root(tmp_path):
    """A mirror of the Hub with owner/words: tagging configs a language, and `all` with a column of languages."""
    folder = tmp_path / "mirror" / "owner" / "words"
    for config in CONFIGS:
        (folder / config).mkdir(parents=True)
        rows = [
            {
                "tokens": ["a", "b"],
                "tags": ["X", "Y"],
                "text": f"text {n}",
                "label": n % 2,
                "language": ["en", "de"][n % 2],
            }
            for n in range(4)
        ]
        for split, hidden in (("train", {}), ("test", {}), ("hidden", {"tags": [None, None], "label": -1})):
            lines = "".join(json.dumps(row | hidden) + "\n" for row in rows)
            (folder / config / f"{split}.jsonl").write_text(lines)
    files = {
        name: [{"split": split, "path": f"{name}/{split}.jsonl"} for split in ("train", "test", "hidden")]
        for name in CONFIGS
    }
    configs = json.dumps([{"config_name": name, "data_files": of_config} for name, of_config in files.items()])
    (folder / "README.md").write_text(f"---\nconfigs: {configs}\n---\n")
    return tmp_path / "mirror"


def read(hub_root, kind, train, evaluation):
    base = ["model=m", "output_dir=o", "task=t", "selection=last", "training.learning_rate=1", f"hub_root={hub_root}"]
    recipe_class = TaggingRecipe if kind == "tagging" else Recipe
    tables = [
        f"train={json.dumps([{'path': 'owner/words', **train}])}",
        f"evaluation={json.dumps([{'path': 'owner/words', **evaluation}])}",
    ]
    return task_of(load_recipe(recipe_class, None, [*base, f"kind={kind}", *tables])).read()


TAGS = {"text_columns": ["tokens"], "label_column": "tags"}
LABELS = {"text_columns": ["text"], "label_column": "label", "label_names": ["no", "yes"]}
GERMAN = {"config": "pos.German", "languages": ["de"]}
EACH = {"config": "pos.{language}"}


@pytest.mark.parametrize(
    ("table", "named"),
    [
        (EACH | {"languages": ["Germn"]}, "pos.Germn.*'pos.English', 'pos.German'"),
        (EACH | {"languages": ["sw"], "language_names": {"sw": "Swahili"}}, "pos.Swahili"),
        (EACH | {"languages": ["German"], "split": "tset"}, "pos.German, .*split tset.*'train', 'test', 'hidden'"),
        ({"config": "all", "language_column": "language", "languages": ["dee"]}, "'dee' .* language.* en, de"),
        (GERMAN | {"split": "hidden"}, "language de: .*column tags"),
        (GERMAN | {"label_column": "tag"}, "column tag.* tokens, tags, "),
        # a place for the language in the path
        ({"path": "MIRROR/{language}.jsonl", "languages": ["dee"]}, "dee.jsonl .*'de.jsonl'"),
    ],
)
def test_read_refuses_what_a_dataset_lacks(hub_root, table, named):
    (hub_root / "de.jsonl").write_text("{}")
    table = TAGS | table
    if "path" in table:
        table["path"] = table["path"].replace("MIRROR", str(hub_root))
    with pytest.raises(ValueError, match=named):
        read(hub_root, "tagging", {"config": "pos.English", **TAGS}, table)


@pytest.mark.parametrize(("hidden", "language"), [("evaluation", "de"), ("train", "en")])
def test_read_refuses_a_split_without_labels(hub_root, hidden, language):
    tables = {"train": {"config": "all"}, "evaluation": {"config": "all", "languages": ["de"], "split": "test"}}
    tables[hidden] |= {"split": "hidden"}
    with pytest.raises(ValueError, match=f"language {language}: .*column label"):
        read(hub_root, "classification", *(LABELS | table for table in tables.values()))


def test_rows_of_each_language(hub_root):
    table = EvaluationTable(path="owner/words", config="pos.{language}", language_names={"de": "German"})
    rows = TableReader(str(hub_root)).rows(table, ["de", "Greek"])
    assert [(one.language, one.table.config) for one in rows] == [("de", "pos.German"), ("Greek", "pos.Greek")]
