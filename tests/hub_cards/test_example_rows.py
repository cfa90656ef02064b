"""Rows of a run's predictions in the examples of its model's card."""

import json
import re
import subprocess
import sys

import pytest

from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.hub_cards.card import write_card
from crosslingual_zoo.hub_cards.example_rows import example_rows


@pytest.fixture
def predictions(tmp_path):
    """`predictions({"de": rows})` writes the files of a run's predictions, and returns their folder."""

    def write(rows_by_language):
        folder = tmp_path / "predictions"
        folder.mkdir()
        for number, (language, rows) in enumerate(rows_by_language.items()):
            lines = [json.dumps({"language": language, "row": row, **values}) for row, values in enumerate(rows)]
            (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
        return folder

    return write


def labeled(*labels, text="A text."):
    return [{"text": text, "gold": label, "prediction": label, "probability": 0.5} for label in labels]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (  # a and b, both at hand
            {"de": labeled("a", "b"), "en": labeled("a", "b")},
            ["en 0", "de 1", "en 1"],
        ),
        ({"en": labeled("a", "a"), "pt/BR": labeled("a")}, ["en 0", "pt/BR 0", "en 1"]),
        ({"de": labeled("a", "b", "c", "d")}, ["de 0", "de 1", "de 2"]),
        ({"de": [*labeled("a", text="long " * 50), *labeled("b")]}, ["de 1"]),
        ({"fr": labeled("a")}, []),  # not a language of the results
        ({"en": [{"question": "Who?", "gold": ["x"], "prediction": "x"}]}, []),
        ({"en-de": [{"source": "One", "reference": "Eins", "hypothesis": "Ein"}] * 2}, ["en-de 0", "en-de 1"]),
    ],
)
def test_example_rows_are_short_and_differ(predictions, rows, expected):
    chosen = example_rows(predictions(rows), ["en", "de", "pt/BR", "en-de"])
    assert [f"{row['language']} {row['row']}" for row in chosen] == expected


def test_example_rows_of_a_tagger_have_labels(predictions):
    rows = [{"words": ["In", name], "gold": ["O", label]} for name, label in (("a", "O"), ("b", "_"), ("c", "B-LOC"))]
    [row] = example_rows(predictions({"en": rows}), ["en"])
    assert row["words"] == ["In", "c"]


TEXTS = [
    {"text": "The train leaves at noon.", "second": "noon", "label": "travel"},
    {"text": "It rained.", "second": "rain", "label": "weather"},
    {"text": "We ate bread.", "second": "bread", "label": "food"},
]
SENTENCES = [
    {"words": ["Ana", "lives", "in", "Lima", "."], "label": ["B-PER", "O", "O", "B-LOC", "O"]},
    {"words": ["安娜", "住", "在", "利马"], "label": ["B-PER", "O", "O", "B-LOC"]},
    {"words": ["In", "New", "York", "it", "rained"], "label": ["O", "B-LOC", "I-LOC", "O", "O"]},
]
KINDS = {  # the rows, the columns of text, and fields of the recipe
    "classification": (TEXTS, ["text"], {"kind": "classification"}),
    "pairs": (TEXTS, ["text", "second"], {"kind": "classification"}),
    "tagging": (SENTENCES, ["words"], {"kind": "tagging"}),
    "tagging by first tokens": (SENTENCES, ["words"], {"kind": "tagging", "label_subword": "first"}),
}


@pytest.fixture
def fine_tune(zoo_model_dir, tmp_path, monkeypatch):
    """`fine_tune(kind)`: the folder of a model that has learned the rows of one of KINDS."""
    monkeypatch.chdir(tmp_path)

    def run(kind):
        rows, text_columns, fields = KINDS[kind]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
        table = {"path": "rows.jsonl", "text_columns": text_columns}
        dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        model = zoo_model_dir("xlm_align", max_position_embeddings=66, initializer_range=0.2, **dropout)
        recipe = {
            "task": "own",
            "source_language": "en",
            "train": [table],
            "evaluation": [table | {"languages": ["en"]}],
            "model": str(model),
            "output_dir": "run",
            "selection": "last",
            "max_length": 32,
            "training": {"batch_size": 4, "learning_rate": 0.003, "max_steps": 60},
        }
        (tmp_path / "own.yaml").write_text(json.dumps(recipe | fields))
        main(["--config", "own.yaml"])
        return tmp_path / "run" / "seed-1" / "model"

    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_examples_print_the_predictions_of_the_run(fine_tune, tmp_path, kind):
    model = fine_tune(kind)
    card = write_card(model).read_text(encoding="utf-8").replace("path/to/this/folder", str(model))
    [code] = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    expected = [line.removeprefix("# ") for line in code.splitlines() if line.startswith("# ")]
    assert len(set(expected)) == 3
    command = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == expected
