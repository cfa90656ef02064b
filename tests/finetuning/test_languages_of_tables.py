"""Languages, splits and labels that a dataset has not, in each kind of table, and what the error tells."""

import json

import pytest

from finetuning.data.rows import TableReader
from finetuning.recipe import Recipe
from finetuning.tasks.classification import task as classification
from finetuning.tasks.registry import task_of
from finetuning.tasks.tagging import task as tagging
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


def read(hub_root, module, train, evaluation):
    base = ["model=m", "output_dir=o", "task=t", "selection=last", "training.learning_rate=1", f"hub_root={hub_root}"]
    kind = module.__name__.split(".")[-2]
    recipe_class = TaggingRecipe if kind == "tagging" else Recipe
    tables = [
        f"train={json.dumps([{'path': 'owner/words', **train}])}",
        f"evaluation={json.dumps([{'path': 'owner/words', **evaluation}])}",
    ]
    return task_of(load_recipe(recipe_class, None, [*base, f"kind={kind}", *tables])).read()


TAGS = {"text_columns": ["tokens"], "label_column": "tags"}
ENGLISH = {"config": "pos.English", **TAGS}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"config": "pos.{language}", "languages": ["Germn"]},
            "has no config pos.Germn: there are no rows of language 'Germn'.*it has: English, German, Greek. "
            "Did you mean 'German'. .*`language_names`",
        ),
        (  # codes of languages, with the names that the data call them by
            {"config": "pos.{language}", "languages": ["de", "ell"], "language_names": {"de": "German", "el": "Greek"}},
            "has no config pos.ell: .*it has: English, de, el. Did you mean 'el'",
        ),
        (
            {"config": "pos.{language}", "languages": ["sw"], "language_names": {"sw": "Swahili"}},
            "has no config pos.Swahili: there are no rows of language 'sw'.*Name only languages that are there",
        ),
        (
            {"config": "pos.{language}", "languages": ["German"], "split": "tset"},
            "config pos.German, has no split tset. It has: train, test, hidden. Did you mean 'test'",
        ),
        (
            {"config": "all", "language_column": "language", "languages": ["en", "dee"]},
            "no rows of language 'dee' in column language.*Its languages are: en, de. Did you mean 'de'",
        ),
        (
            {"config": "pos.Germn", "languages": ["de"]},
            "has no config pos.Germn. It has: pos.English, .*Did you mean 'pos.German'",
        ),
        (
            {"config": "pos.German", "languages": ["de"], "split": "hidden"},
            "language de: none of the 8 values in column tags is a label",
        ),
    ],
)
def test_what_a_dataset_lacks_is_named_with_what_it_has(hub_root, table, message):
    with pytest.raises(ValueError, match=message):
        read(hub_root, tagging, ENGLISH, {**TAGS, **table})


def test_a_place_for_the_language_in_the_path_names_the_nearest_file(hub_root, tmp_path):
    for name in ("en", "de"):
        (tmp_path / f"{name}.jsonl").write_text('{"tokens": ["a"], "tags": ["X"]}\n')
    table = {"path": str(tmp_path / "{language}.jsonl"), "languages": ["en", "dee"], **TAGS}
    with pytest.raises(ValueError, match="dee.jsonl does not exist.*Did you mean 'de.jsonl'"):
        read(hub_root, tagging, ENGLISH, table)
    # a config that is not there for any language is no matter of the language
    table = {"path": str(hub_root / "owner" / "{language}"), "config": "pos.Germn", "languages": ["words"], **TAGS}
    with pytest.raises(ValueError, match="has no config pos.Germn. It has: pos.English"):
        read(hub_root, tagging, ENGLISH, table)


def test_a_split_without_labels_is_refused_in_training_and_evaluation(hub_root):
    labeled = {"config": "all", "label_names": ["no", "yes"]}
    hidden = {**labeled, "split": "hidden"}
    languages = {"languages": ["de"], "split": "test"}
    for train, evaluation, part in (
        (labeled, {**languages, **hidden}, "de"),
        (hidden, {**languages, **labeled}, "en"),
    ):
        with pytest.raises(ValueError, match=f"language {part}: none of the 4 values in column label is a label"):
            read(hub_root, classification, train, evaluation)
    with pytest.raises(ValueError, match="has no column labels. Its columns are: .*Did you mean 'label'"):
        read(hub_root, classification, {**labeled, "label_column": "labels"}, {**languages, **labeled})


def test_every_language_of_a_table_is_read_once(hub_root):
    from finetuning.recipe import EvaluationTable

    table = EvaluationTable(path="owner/words", config="pos.{language}", language_names={"de": "German"})
    rows = TableReader(str(hub_root)).rows(table, ["de", "Greek"])
    assert [(one.language, one.table.config) for one in rows] == [("de", "pos.German"), ("Greek", "pos.Greek")]
