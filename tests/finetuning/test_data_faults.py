"""Faults of rows: a run reports the first one of a file, --check_data the first ten."""

import json

import pytest
from datasets import Dataset

from finetuning.data.rows import Rows
from finetuning.recipe import LabeledTable
from finetuning.run import main

GOOD = "text,label\nDas Zimmer war sauber.,gut\nDas Bett war kaputt.,schlecht\n"


@pytest.fixture
def refused(tmp_path, tiny_model, capsys):
    """refused(train, evaluation, *overrides) -> (printed, errors) of a run that ends with exit code 2.

    The first two are the names of files in `tmp_path`.
    """

    def refused(train, evaluation="eval.csv", *overrides, kind="classification", columns="text_columns: [text]"):
        (tmp_path / "eval.csv").write_text(GOOD)
        tables = [
            f"train=[{{path: {tmp_path / train}, {columns}}}]",
            f"evaluation=[{{path: {tmp_path / evaluation}, languages: [de], {columns}}}]",
        ]
        settings = [f"model={tiny_model}", f"output_dir={tmp_path / 'out'}", "task=t", "selection=last"]
        settings += ["training.learning_rate=1e-3", "max_length=24"]
        with pytest.raises(SystemExit) as stopped:
            main([*settings, *tables, f"kind={kind}", *overrides])
        assert stopped.value.code == 2 and not (tmp_path / "out").exists()
        printed = capsys.readouterr()
        assert len(printed.err.splitlines()) == 1, printed.err
        return printed.out.splitlines(), printed.err

    return refused


def places(printed):
    """(line, words about it) of each fault."""
    found = [line.partition(": ") for line in printed]
    return [(before.partition("line ")[2], what) for before, _, what in found]


FAULTY = """text,label
"Ein, Garten",gut
"  ",gut

zu,viele,Felder
"zwei
Zeilen",
\u200b\u00a0,mittel
Sehr laut.,schlecht
"""


def test_faults_of_a_file_are_listed_with_its_lines(refused, tmp_path):
    (tmp_path / "train.csv").write_text(FAULTY)
    printed, error = refused("train.csv", "eval.csv", "--check_data")
    found = places(printed)
    assert [place for place, _ in found[:4]] == ["5", "6", "3", "8"]
    assert "3 columns" in found[0][1] and "no label in column label" in found[1][1]
    assert "no text" in found[2][1] and "no text" in found[3][1]
    assert "Faults: " in error

    printed, error = refused("train.csv")
    assert printed == [] and "line 5" in error  # the first: of a line that is no row


def test_faults_of_evaluated_rows_are_those_of_training_rows(refused, tmp_path):
    (tmp_path / "train.csv").write_text(GOOD)
    lines = [{"text": "", "label": "gut"}, {"text": "Ja.", "label": "unklar"}, {"text": None, "label": "gut"}]
    (tmp_path / "e.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    printed, error = refused("train.csv", "e.jsonl", "--check_data")
    (place, what), *others = places(printed)
    assert place == "3" and "'unklar'" in what and "gut, schlecht" in what
    assert [place for place, what in others if "column text has no text" in what] == ["1", "5"] and len(others) == 2
    _, error = refused("train.csv", "e.jsonl")
    assert "line 3: label 'unklar'" in error and "gut, schlecht" in error
    _, error = refused("train.csv", "e.jsonl", "train.0.split='train[:1]'")
    assert "train[:1]" in error  # a file has no splits


def test_faults_before_what_cannot_be_read_and_a_table_of_faults_alone_are_listed(refused, tmp_path):
    (tmp_path / "quote.csv").write_text('text,label\n,gut\nJa.,schlecht\n"Nein.,gut\n')
    printed, _ = refused("quote.csv", "eval.csv", "--check_data")
    assert [place for place, _ in places(printed)] == ["4", "2"]
    (tmp_path / "all.csv").write_text("text,label\nJa.\nNein.\n")
    printed, _ = refused("all.csv", "eval.csv", "--check_data")
    assert [place for place, _ in places(printed)] == ["2", "3"]
    (tmp_path / "case.csv").write_text("text,label\nJa.,Gut\nNein.,Gut\n")
    (tmp_path / "train.csv").write_text(GOOD)
    printed, _ = refused("train.csv", "case.csv", "--check_data")
    assert [place for place, _ in places(printed)] == ["2", "3"]


def test_rows_without_faults_are_not_looked_up_in_the_file(tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text(GOOD)
    rows = Rows(LabeledTable(path=str(tmp_path / "train.csv")), "de", Dataset.from_dict({"text": ["a"]}), "")
    monkeypatch.setattr("zoo_core.table_files.read_lines", None)
    rows.report({}, "")


def test_rows_that_a_table_chooses_are_named_by_their_lines(refused, tmp_path):
    (tmp_path / "train.csv").write_text("text,label,lang,part\na,x,en,1\n,y,de,1\n,x,en,2\n,y,en,1\nb,y,en,1\n")
    supervised = ("setting=supervised", "source_language=de")
    columns = "text_columns: [text], language_column: lang, where: {part: '1'}"
    printed, _ = refused("train.csv", "train.csv", "--check_data", *supervised, columns=columns)
    assert printed == []  # a file that is trained and evaluated at once is refused before it is read
    (tmp_path / "other.csv").write_text("text,label,lang,part\nc,x,de,1\nd,y,de,1\n")
    printed, _ = refused("train.csv", "other.csv", "--check_data", *supervised, columns=columns)
    assert [place for place, _ in places(printed)[:2]] == ["5", "3"]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_questions_without_text_are_listed(refused, tmp_path):
    good = {"question": "Wer?", "context": "Anna singt.", "answers": {"text": ["Anna"], "answer_start": [0]}}
    changes = [{}, {"question": "\u200b"}, {"context": None}, {"answers": {"text": [" "], "answer_start": [0]}}]
    changes += [{"answers": {"text": ["Anna"], "answer_start": []}}, {}]
    write_lines(tmp_path / "t.jsonl", [good | change for change in changes])
    write_lines(tmp_path / "e.jsonl", [good])
    write_lines(tmp_path / "u.jsonl", [good | {"question": ""}])
    limits = ("--check_data", "max_question_length=8", "doc_stride=12")
    columns = "text_columns: [question, context], label_column: answers"
    faults = ["2", "3", "4", "5"]
    # of training rows, of evaluated ones, which are read first, and of both
    for train, evaluation, lines in (("t", "e", faults), ("e", "t", faults), ("u", "t", [*faults, "1"])):
        files = f"{train}.jsonl", f"{evaluation}.jsonl"
        printed, _ = refused(*files, *limits, kind="question_answering", columns=columns)
        assert [place for place, _ in places(printed)] == lines


def test_faults_of_words_and_their_labels_are_listed(refused, tmp_path):
    good = {"tokens": ["Anna", "singt"], "tags": ["B-PER", "O"]}
    changes = [{}, {"tokens": ["Anna", None]}, {"tags": ["O"]}, {"tokens": None}, {"tags": [None, "O"]}, {}]
    changes += [{"tokens": ["An\nna", "singt"]}, {"tags": None}]
    write_lines(tmp_path / "t.jsonl", [good | change for change in changes])
    write_lines(tmp_path / "e.jsonl", [good])
    table = {"kind": "tagging", "columns": "text_columns: [tokens], label_column: tags"}
    printed, _ = refused("t.jsonl", "e.jsonl", "--check_data", **table)
    assert [place for place, _ in places(printed)] == ["2", "3", "4", "7", "8", "5"]
    _, error = refused("t.jsonl", "e.jsonl", **table)
    assert "line 2: column tokens" in error
