"""Labels carried over links: the rules by value, and `word-align project`."""

import doctest
import json
import re

import pytest
from datasets import ClassLabel, Dataset, List

from finetuning.align import project as command
from finetuning.align import projection
from finetuning.align.command import main
from finetuning.align.projection import Span, project, project_spans


def spans(links, given):
    """Projected spans; `links` are {(source, target): probability}, `given` [(begin, end)] of label X."""
    found = project_spans(list(links), list(links.values()), [Span(*span, "X") for span in given])
    return [span and (span.begin, span.end) for span in found]


def test_examples_of_the_module():
    assert doctest.testmod(projection).failed == 0


def test_a_target_word_has_the_tag_of_its_most_probable_link():
    many_to_one = project([(0, 0), (1, 0)], [0.6, 0.9], ["ADP", "DET"], 1)
    assert many_to_one == (["DET"], [Span(0, 1, "ADP")])
    assert project([(0, 0), (1, 0)], [0.7, 0.7], ["ADP", "DET"], 1)[0] == ["ADP"]  # of equal ones the first
    assert project([(0, 0), (0, 2)], [0.6, 0.9], ["NOUN"], 3) == (["NOUN", None, "NOUN"], [])


def test_sentences_without_links():
    assert project([], [], ["NOUN", "VERB"], 2) == ([None, None], [Span(0, 1, "NOUN"), Span(1, 2, "VERB")])
    assert project([], [], ["B-PER", "I-PER", "O"], 2) == (["O", "O"], [Span(0, 2, "PER")])
    assert project([], [], [], 0, are_spans=False) == ([], [])


@pytest.mark.parametrize(
    "labels",
    [
        "B-PER I-PER O B-LOC B-LOC",
        "I-PER I-PER O I-LOC B-LOC",
        "B-PER E-PER O S-LOC S-LOC",
        "B-PER L-PER O U-LOC U-LOC",
    ],
)
def test_every_scheme_of_spans_comes_out_as_iob2(labels):
    links = [(0, 2), (1, 3), (3, 0), (4, 1)]
    expected = ["B-LOC", "B-LOC", "B-PER", "I-PER"]
    assert project(links, [0.9] * 4, labels.split(), 4)[0] == expected
    assert project(links, [0.9] * 4, labels.split(), 4, are_spans=False)[0] == [labels.split()[i] for i in (3, 4, 0, 1)]


def test_spans_without_types():
    links, labels = [(0, 1), (2, 2), (3, 3)], ["U", "O", "B", "L"]
    assert project(links, [0.9] * 3, labels, 4) == (["O", "B", "B", "I"], [])
    assert project(links[:1], [0.9], labels, 2) == (["O", "B"], [Span(2, 4, "")])
    assert project(links[1:], [0.9] * 2, ["B", "B", "I", "O"], 4, are_spans=True)[0] == ["O", "O", "B", "O"]


def test_a_span_is_one_run_over_words_without_a_link():
    assert spans({(0, 1): 0.9, (1, 4): 0.9}, [(0, 2)]) == [(1, 5)]
    assert spans({(0, 1): 0.9, (1, 0): 0.9}, [(0, 2)]) == [(0, 2)]  # in another order


def test_stray_links_are_left_out_by_the_sum_of_probabilities():
    # words 2 and 4 belong to source words 5 and 6: what is behind them is another run
    stray = {(0, 0): 0.8, (1, 1): 0.8, (5, 2): 0.9, (6, 4): 0.9, (0, 5): 0.9}
    assert spans(stray, [(0, 2)]) == [(0, 2)]
    assert spans(stray | {(0, 0): 0.3, (1, 1): 0.4}, [(0, 2)]) == [(5, 6)]
    # one such word is a hole that is filled, unless it belongs to another span
    del stray[6, 4]
    assert spans(stray, [(0, 2)]) == [(0, 6)]
    assert spans(stray, [(0, 2), (5, 6)]) == [(0, 2), (2, 3)]


def test_a_span_that_loses_its_middle_is_its_better_half():
    links = {(0, 0): 0.9, (1, 1): 0.6, (2, 2): 0.9, (3, 3): 0.9, (7, 1): 0.8}
    assert spans(links, [(0, 4), (7, 8)]) == [(2, 4), (1, 2)]


def test_crossing_spans_share_no_word_and_the_weaker_may_be_lost():
    crossing = {(0, 1): 0.9, (1, 3): 0.6, (2, 2): 0.9, (3, 0): 0.8, (3, 3): 0.7}
    assert spans(crossing, [(0, 2), (2, 4)]) == [(1, 2), (2, 4)]
    contested = {(0, 0): 0.6, (1, 0): 0.9}
    assert spans(contested, [(0, 1), (1, 2)]) == [None, (0, 1)]
    assert spans(contested, [(0, 2), (1, 2)]) == [(0, 1), (0, 1)]  # nested spans stay nested


# ---- the command


@pytest.fixture
def run(tiny_model, capsys):
    """run(*arguments) -> (stdout, stderr) of the command with the tiny model."""

    def with_model(*arguments):
        main(["project", "--model", str(tiny_model), "--layer", "1", *map(str, arguments)])
        return capsys.readouterr()

    return with_model


@pytest.fixture
def links(tiny_model):
    """links(source, target) -> the aligner's result."""
    from transformers import AutoModel, AutoTokenizer

    from modeling.word_alignment import WordAligner

    model, tokenizer = AutoModel.from_pretrained(tiny_model).eval(), AutoTokenizer.from_pretrained(tiny_model)
    aligner = WordAligner(model, tokenizer, layer=1)
    return lambda source, target: next(aligner.align([(source, target)], probabilities=True))


@pytest.fixture
def words(tmp_path):
    """Files of two tagged sentences and of their translations, the second without words."""
    labels, texts = tmp_path / "labels.conll", tmp_path / "texts.txt"
    labels.write_text("zwei\tNUM\nHunde\tNOUN\nspielen\tVERB\n\ndie\tDET\nFrau\tNOUN\n", encoding="utf-8")
    texts.write_text("two dogs play.\n\n", encoding="utf-8")
    return labels, texts


def test_tags_of_tokens(run, links, words, tmp_path):
    labels, texts = words
    output = tmp_path / "out.conll"
    assert run(labels, texts, "--output", output).out == ""
    found = links(["zwei", "Hunde", "spielen"], "two dogs play.")
    tags, lost = project(found.links, found.probabilities, ["NUM", "NOUN", "VERB"], 4)
    assert any(tags)
    expected = zip(["two", "dogs", "play", "."], tags, strict=True)
    assert output.read_text() == "".join(f"{word}\t{tag or '_'}\n" for word, tag in expected) + "\n\n"
    out, err = run(labels, texts, "--pre-split")
    assert [line.split("\t")[0] for line in out.split()[::2]] == ["two", "dogs", "play."]
    assert "1 of 1 DET" in err and "precision fp32" in err


def test_words_without_a_label_leave_spans_spans(run, words):
    labels, texts = words
    labels.write_text("zwei\tB-A\nHunde\tI-A\nspielen\t_\n\ndie\t_\nFrau\tB-B\n", encoding="utf-8")
    out, err = run(labels, texts)
    assert {line.split("\t")[1] for line in out.split("\n") if line} <= {"O", "B-A", "I-A"}
    assert "of 1 A" in err and "1 of 1 B" in err and "_" not in err.rpartition("lost:")[2]


def test_labels_of_tables(run, words, tmp_path):
    path, texts = tmp_path / "labels.parquet", tmp_path / "one.txt"
    texts.write_text("two dogs\n")
    labels = List(ClassLabel(names=["O", "B-X"]))
    rows = Dataset.from_list([{"tokens": ["zwei", "Hunde"], "tags": [0, 1]}])
    rows.cast_column("tags", labels).to_parquet(path)
    assert "of 1 X" in run(path, texts).err


def test_spans_of_characters(run, links, tmp_path):
    source, target = "Ein Mann, zwei Hunde.", "a man, two dogs."
    path = tmp_path / "pairs.jsonl"
    given = [{"start": 10, "end": 20, "label": "A"}, {"start": 4, "end": 6, "label": "B"}]
    path.write_text(json.dumps({"id": 7, "source": source, "target": target, "spans": given}) + "\n\n")
    out, err = run(path)
    row, empty = out.split("\n")[:2]
    found = links(source, target)
    # words: Ein Mann , zwei Hunde .
    expected = project_spans(found.links, found.probabilities, [Span(3, 5, "A"), Span(1, 2, "B")])
    assert any(expected) and empty == ""
    offsets = found.target_offsets
    assert json.loads(row) == {
        **{"id": 7, "source": source, "target": target, "spans": given},
        "target_spans": [
            {"start": offsets[span.begin][0], "end": offsets[span.end - 1][1], "label": span.label}
            for span in expected
            if span
        ],
    }
    assert "of 1 A" in err and "of 1 B" in err


def row(line: str) -> str:
    return f'{{"source": "ein", "target": "a", {line}}}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(("labels.parquet", rows, message) for rows, message in (
            ([{"tokens": ["a"], "tags": ["O"]}, {"tokens": None, "tags": ["O"]}], "row 1 .*column tokens"),
            ([{"tokens": "a b", "tags": "X Y"}], "column tokens .*string"),
            ([{"tokens": ["a", "b"], "tags": ["O"]}], "row 0 .*2 words in column tokens and 1 labels in column tags"),
            ([{"tokens": ["a", "b"], "tags": ["B-X", "X"]}], "row 0 .*'X'"),
        )),
        *(("pairs.jsonl", line, message) for line, message in (
            (row('"spans": [{"start": 0, "end": 9, "label": "A"}]'), r"line 1: spans\[0\]"),
            (row('"spans": [{"start": 0, "end": 2, "label": "A"}, {"start": 0, "end": 2.0}]'), r"spans\[1\]"),
            (row('"spans": [{"start": 0, "end": 2, "label": "A\\nB"}]'), r"spans\[0\]"),
            (row('"target_spans": []'), "line 1: .*target_spans"),
            (row('"entities": [[0, 3, "A"]]') * 2, "`spans`; the keys are source, target, entities[.]"),
        )),
        ("labels.txt", "a\tX\n", "it needs `tokens`"),
    ],
)  # fmt: skip
def test_labels_that_are_refused(run, tmp_path, capsys, monkeypatch, name, content, message):
    monkeypatch.setattr(command, "load_aligner", None)  # all is found before the model is loaded
    path, texts = tmp_path / name, tmp_path / "texts.txt"
    if isinstance(content, str):
        path.write_text(content)
    else:
        Dataset.from_list(content).to_parquet(path)
        capsys.readouterr()  # its progress bar, which other tests may have turned off
    texts.write_text("a\n" * len(content))
    with pytest.raises(SystemExit) as stopped:
        run(path, *([] if name == "pairs.jsonl" else [texts]))
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and error.count("\n") == 1 and str(path) in error
    assert re.search(message, error), error


def test_files_and_options_that_do_not_fit(run, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "load_aligner", None)  # all is found before the model is loaded
    labels, texts = words
    longer = tmp_path / "longer.txt"
    longer.write_text("a\nb\nc\n")
    for arguments, message in (
        ((labels, longer), "2 sentences"),
        ((labels, texts, "--output", labels), "the labels and --output"),
        ((longer, texts), "tokens"),
        ((labels, "--pre-split"), "--pre-split"),
    ):
        with pytest.raises(SystemExit) as stopped:
            run(*arguments)
        assert stopped.value.code == 2
        assert message in " ".join(capsys.readouterr().err.split()), arguments
