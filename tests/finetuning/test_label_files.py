"""CoNLL files and SQuAD's JSON as tables."""

import json
import re
from pathlib import Path

import pytest

from crosslingual_zoo.finetuning.data.label_files import as_lines, load_labels
from crosslingual_zoo.finetuning.recipe import LabeledTable
from crosslingual_zoo.zoo_core.tables import table_fingerprint


def write(path: Path, content: str) -> str:
    path.write_bytes(content.encode())
    return str(path)


def rows(path: str, **fields) -> list[dict]:
    return list(load_labels(LabeledTable(path, **fields)))


def test_load_labels_conll(tmp_path):
    conll2003 = "-DOCSTART- -X- -X- O\n\n# sent_id = 1\nEU NNP B-ORG\nrejects VBZ O \n\n \n# NN O\n"
    assert rows(write(tmp_path / "eng.train", conll2003), format="conll") == [
        {"tokens": ["EU", "rejects"], "column_2": ["NNP", "VBZ"], "tags": ["B-ORG", "O"]},
        {"tokens": ["#"], "column_2": ["NN"], "tags": ["O"]},
    ]
    tabs = "# id 7\r\n10\u00a0000\tO\r\nNew York\tB-LOC\r\n# a comment\r\n\r\nno\tO"
    assert rows(write(tmp_path / "a.conll", tabs)) == [
        {"tokens": ["10\u00a0000", "New York"], "tags": ["O", "B-LOC"]},
        {"tokens": ["no"], "tags": ["O"]},
    ]


CONLLU = """# newdoc
# text = al mar
1-2 al _ _ _
1 a a ADP _
2 el el DET _
2.1 x _ _ _
3 mar mar NOUN _

# newdoc
1 # # SYM _
"""


def test_load_labels_conllu_syntactic_words(tmp_path):
    content = re.sub(r"(?m)^(\d.*)", lambda line: line[1].replace(" ", "\t") + "\t_" * 5, CONLLU)
    sentences = rows(write(tmp_path / "es.conllu", content))
    assert [sentence["tokens"] for sentence in sentences] == [["a", "el", "mar"], ["#"]]
    assert [sentence["upos"] for sentence in sentences] == [["ADP", "DET", "NOUN"], ["SYM"]]


def test_load_labels_squad_file_is_its_questions(tmp_path):
    questions = [
        {"id": str(number), "question": "q", "answers": [{"text": "b", "answer_start": number}]} for number in range(3)
    ]
    first = {"context": "a b", "qas": questions[:2]}
    second = {"context": "2020-02-01", "qas": questions[2:]}
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": [part]} for part in (first, second)]}
    expected = []
    for part in (first, second):
        expected += [{"context": part["context"], **question} for question in part["qas"]]
    assert rows(write(tmp_path / "train-v1.1.json", json.dumps(squad))) == expected


@pytest.mark.parametrize(
    ("name", "content", "fields", "named"),
    [
        ("a.conll", "a X O\nb Y O\n\nc O\n", {}, "a.conll.*'c O'"),
        ("a.conll", "\n \n# a comment\n", {}, "a.conll.*no rows"),
        ("a.conll", "a O\n", {"config": "en"}, "a.conll.*config 'en'"),
        ("b.conll", "a O\n", {"path": "a/b.conll"}, "b.conll does not exist"),
    ],
)
def test_load_labels_refuses(tmp_path, name, content, fields, named):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=named):
        rows(**({"path": path} | fields))


def test_table_fingerprint_of_a_conll_file_follows_its_content(tmp_path):
    tables = [LabeledTable(write(tmp_path / f"{name}.conll", f"a {name}\n")) for name in ("B", "I")]
    prints = {table_fingerprint(as_lines(table), None, load_labels(table)) for table in tables}
    assert len(prints) == 2
    assert all(name.startswith("sha256:") for name in prints)
