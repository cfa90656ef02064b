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
    ("rows", "shown"),
    [
        (
            {"de": labeled("a", "b"), "en": labeled("a", "b")},
            [("en", 0), ("de", 1), ("en", 1)],
        ),  # a and b, both at hand
        ({"en": labeled("a", "a"), "pt/BR": labeled("a")}, [("en", 0), ("pt/BR", 0), ("en", 1)]),
        ({"de": labeled("a", "b", "c", "d")}, [("de", 0), ("de", 1), ("de", 2)]),
        ({"de": [*labeled("a", text="long " * 50), *labeled("b")]}, [("de", 1)]),
        ({"fr": labeled("a")}, []),  # not a language of the results
        ({"en": [{"question": "Who?", "gold": ["x"], "prediction": "x"}]}, []),
        ({"en-de": [{"source": "One", "reference": "Eins", "hypothesis": "Ein"}] * 2}, [("en-de", 0), ("en-de", 1)]),
    ],
)
def test_example_rows_are_short_and_differ(predictions, rows, shown):
    found = example_rows(predictions(rows), ["en", "de", "pt/BR", "en-de"])
    assert [(row["language"], row["row"]) for row in found] == shown


def test_example_rows_of_a_tagger_have_labels(predictions):
    rows = [{"words": ["In", name], "gold": ["O", label]} for name, label in (("a", "O"), ("b", "_"), ("c", "B-LOC"))]
    assert [row["words"] for row in example_rows(predictions({"en": rows}), ["en"])] == [["In", "c"]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "pairs", "tagging", "tagging by first tokens"])
def test_examples_print_the_predictions_of_the_run(zoo_model_dir, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    sentences = [("The train leaves at noon.", "travel"), ("It rained.", "weather"), ("We ate bread.", "food")] * 4
    rows = [{"text": text, "second": text[::-1], "label": label} for text, label in sentences]
    columns = {"text_columns": ["text", "second"] if kind == "pairs" else ["text"]}
    if kind.startswith("tagging"):
        words = [
            ["Ana", "lives", "in", "Lima", "."],
            ["安娜", "住", "在", "利马"],
            ["In", "New", "York", "it", "rained"],
        ]
        tags = [["B-PER", "O", "O", "B-LOC", "O"], ["B-PER", "O", "O", "B-LOC"], ["O", "B-LOC", "I-LOC", "O", "O"]]
        rows = [{"words": sentence, "label": labels} for sentence, labels in zip(words, tags, strict=True)] * 4
        columns = {"text_columns": ["words"]}
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    table = {"path": "rows.jsonl", **columns}
    dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = zoo_model_dir("xlm_align", max_position_embeddings=66, initializer_range=0.2, **dropout)
    recipe = {
        "kind": "tagging" if kind.startswith("tagging") else "classification",
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
    if kind == "tagging by first tokens":
        recipe["label_subword"] = "first"
    (tmp_path / "own.yaml").write_text(json.dumps(recipe))
    main(["--config", "own.yaml"])
    model = tmp_path / "run" / "seed-1" / "model"
    card = write_card(model).read_text(encoding="utf-8").replace("path/to/this/folder", str(model))
    [code] = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    expected = [line.removeprefix("# ") for line in code.splitlines() if line.startswith("# ")]
    command = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == expected and len(set(expected)) == 3
