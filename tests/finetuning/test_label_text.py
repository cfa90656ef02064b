"""Text labeled by a tagger: the output, a run that trains on it, and errors."""

import json
import re
import shutil

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForTokenClassification, AutoTokenizer

from finetuning.data.label_schemes import to_iob2
from finetuning.results import read_results
from finetuning.run import main as run
from finetuning.tools.label_text import main as label
from tests.finetuning.labeled_rows import sentences


def recipe(model, folder, train, evaluation, *more):
    """Overrides of a tagging recipe of a few steps; tables are (path, column of labels and more fields)."""
    tables = []
    for part, of in (("train", train), ("evaluation", evaluation)):
        fields = [f"{{path: {path}, text_columns: [tokens], label_column: {rest}}}" for path, rest in of]
        tables.append(f"{part}=[{', '.join(fields)}]")
    few = "kind=tagging task=people selection=last max_length=40 training.learning_rate=1e-2".split()
    return [f"model={model}", f"output_dir={folder / 'out'}", *few, *tables, *more]


@pytest.fixture(scope="module")
def teacher(tiny_model, tmp_path_factory):
    """Folder of a tagger that run.py fine-tuned on English for a few steps."""
    folder = tmp_path_factory.mktemp("teacher")
    for name, count in (("train", 48), ("test", 9)):
        Dataset.from_list(sentences("en", count)).to_parquet(folder / f"{name}.parquet")
    tables = [
        [(f"{folder}/train.parquet", "ner_tags")],
        [(f"{folder}/test.parquet", "ner_tags, languages: [en]")],
    ]
    run(recipe(tiny_model, folder, *tables, "training.max_steps=12"))
    return folder / "out" / "seed-1" / "model"


def text(tmp_path, rows, name="de"):
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def arguments(teacher, given, written, *more):
    options = ["--model", teacher, "--input", given, "--languages", "de", "--output", written, "--max_length", 40]
    return [str(item) for item in [*options, *more]]


def refused_by(capsys, given):
    """The error message of the command with these arguments."""
    with pytest.raises(SystemExit) as stopped:
        label(given)
    assert stopped.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_label_by_the_teacher_keeps_the_rest_of_a_row(teacher, tmp_path, capsys):
    rows = [{"id": n, "tokens": row["tokens"], "tokens_en": ["x"]} for n, row in enumerate(sentences("de", 9))]
    rows.insert(3, {"id": 99, "tokens": [], "tokens_en": ["x"]})
    output = tmp_path / "labeled" / "de" / "train.jsonl"
    label(arguments(teacher, text(tmp_path, rows), output))
    assert "9 rows" in capsys.readouterr().out
    written = read(output)
    assert [{key: row[key] for key in rows[0]} for row in written] == [row for row in rows if row["tokens"]]

    # sentences of one window, each by itself
    tokenizer, model = AutoTokenizer.from_pretrained(teacher), AutoModelForTokenClassification.from_pretrained(teacher)
    compared = 0
    for row in written:
        batch = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
        if batch["input_ids"].shape[1] > 40:
            assert len(row["labels"]) == len(row["tokens"]) == 20
            continue
        with torch.no_grad():
            best = model.eval()(**batch).logits[0].softmax(-1).max(-1)
        # where the teacher learned them, as its config says: at the first token that is more than the mark of a word
        assert model.config.label_subword == "first_with_text"
        texts = [
            word if token.strip("▁") else None for word, token in zip(batch.word_ids(0), batch.tokens(), strict=True)
        ]
        places = [texts.index(word) for word in range(len(row["tokens"]))]
        found = [model.config.id2label[best.indices[place].item()] for place in places]
        assert row["labels"] == to_iob2(found, "B-TYPE")
        assert row["confidence"] == pytest.approx(best.values[places].mean().item(), abs=1e-3)
        compared += 1
    assert compared == 6


def test_run_on_labeled_text_names_the_teacher(teacher, tiny_model, tmp_path, refused):
    given = text(tmp_path, [{"text": " ".join(row["tokens"])} for row in sentences("de", 12)])
    folder = tmp_path / "labeled" / "de"
    label(arguments(teacher, given, folder / "train.jsonl"))
    for name in ("en", "de"):
        Dataset.from_list(sentences(name, 9)).to_parquet(tmp_path / f"{name}.parquet")
    english, german = (f"{tmp_path}/en.parquet", "ner_tags"), (folder, "labels, languages: [de]")
    gold = [(f"{tmp_path}/de.parquet", "ner_tags, languages: [de]")]
    setting = ["setting=translate_train_all", "translations_from=somebody, labeled by a model", "training.max_steps=2"]
    run(recipe(tiny_model, tmp_path, [english, german], gold, *setting))
    results = read_results(tmp_path / "out")
    signature = read(folder / "train.jsonl")[0]["labeled_by"]
    assert signature.startswith("xlm-roberta sha256:") and signature.endswith("fine-tuned on people (zero_shot)")
    gold, labeled = results["protocol"]["training_data"]
    assert labeled["labeled_by"] == [signature] and labeled["rows"] == 12 and "labeled_by" not in gold
    assert signature in (tmp_path / "out" / "results.md").read_text()

    evaluated = [(folder, "labels, split: train, languages: [de]")]
    assert "xlm-roberta sha256:" in refused(recipe(tiny_model, tmp_path / "other", [english], evaluated))


def test_label_several_languages_overwrites_nothing(teacher, tmp_path, capsys):
    for name in ("de", "en"):
        text(tmp_path, [{"tokens": row["tokens"]} for row in sentences(name, 3)], name)
    given, written = tmp_path / "{language}.jsonl", tmp_path / "out" / "{language}.jsonl"
    label(arguments(teacher, given, written, "--languages", "de", "en"))
    assert [len(read(tmp_path / "out" / f"{name}.jsonl")) for name in ("de", "en")] == [3, 3]
    assert "de.jsonl exists" in refused_by(capsys, arguments(teacher, given, written))


@pytest.mark.parametrize(
    ("rows", "more", "named"),
    [
        ([{"text": "a b"}], ["--languages", "zh"], "text in zh"),
        ([{"text": "a b"}], ["--languages", "de", "fr"], "--input is .*{language}"),
        ([{"text": "a b"}], ["--max_length", "2"], "--max_length is 2"),
        ([{"tokens": ["a"]}], ["--column", "token"], "no column token.* tokens"),
        ([{"tokens": ["a", None]}], [], "row 0 .*column tokens"),
        ([{"tokens": ["a"], "labels": ["O"]}], [], "has a column labels"),
    ],
)
def test_label_refuses_text(teacher, tmp_path, capsys, rows, more, named):
    error = refused_by(capsys, arguments(teacher, text(tmp_path, rows), tmp_path / "out.jsonl", *more))
    assert re.search(named, error), error
    assert not (tmp_path / "out.jsonl").exists()


def test_label_refuses_a_model_that_is_no_tagger(tiny_model, teacher, tmp_path, capsys):
    folder, given = shutil.copytree(teacher, tmp_path / "model"), text(tmp_path, [{"tokens": ["a"]}])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"plug_in": True}))
    for model, named in ((folder, "plug-in"), (tiny_model, "classifier.bias")):
        assert named in refused_by(capsys, arguments(model, given, tmp_path / "out.jsonl"))
