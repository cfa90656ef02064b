"""Labels carried over links: the rules by value, and `word-align --project`."""

import doctest
import json

import pytest

from finetuning.align import labels as labels_module
from finetuning.align import projection
from finetuning.align.command import main
from finetuning.align.projection import Span, mark_spans, project, project_spans


def spans(links, given):
    """Projected spans; `links` are {(source, target): probability}, `given` [(begin, end)] of label X."""
    found = project_spans(list(links), list(links.values()), [Span(*span, "X") for span in given])
    return [span and (span.begin, span.end) for span in found]


def test_examples_of_the_module():
    assert doctest.testmod(projection).failed == 0


def test_tags_and_marks_of_spans_are_told_apart():
    assert mark_spans({"O", "B-PER", "I-PER"}) and mark_spans({"S-LOC", "E-PER"}) and mark_spans({"O"})
    assert not mark_spans({"NOUN", "VERB"}) and not mark_spans({"O", "B-PER", "X"})


def test_a_target_word_has_the_tag_of_its_most_probable_link():
    many_to_one = project([(0, 0), (1, 0)], [0.6, 0.9], ["ADP", "DET"], 1)
    assert many_to_one == (["DET"], [Span(0, 1, "ADP")])
    assert project([(0, 0), (1, 0)], [0.7, 0.7], ["ADP", "DET"], 1)[0] == ["ADP"]  # of equal ones the first
    assert project([(0, 0), (0, 2)], [0.6, 0.9], ["NOUN"], 3) == (["NOUN", None, "NOUN"], [])


def test_sentences_without_links():
    assert project([], [], ["NOUN", "VERB"], 2) == ([None, None], [Span(0, 1, "NOUN"), Span(1, 2, "VERB")])
    assert project([], [], ["B-PER", "I-PER", "O"], 2) == (["O", "O"], [Span(0, 2, "PER")])
    assert project([], [], [], 0, are_spans=False) == ([], [])


def test_every_scheme_of_spans_comes_out_as_iob2():
    links = [(0, 2), (1, 3), (3, 0), (4, 1)]
    expected = ["B-LOC", "B-LOC", "B-PER", "I-PER"]
    iob2 = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC"]
    iob1 = ["I-PER", "I-PER", "O", "I-LOC", "B-LOC"]
    iobes = ["B-PER", "E-PER", "O", "S-LOC", "S-LOC"]
    assert [project(links, [0.9] * 4, labels, 4)[0] for labels in (iob2, iob1, iobes)] == [expected] * 3


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
        main(["--model", str(tiny_model), "--layer", "1", *map(str, arguments)])
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
    assert run("--project", labels, texts, "--output", output).out == ""
    found = links(["zwei", "Hunde", "spielen"], "two dogs play.")
    tags, lost = project(found.links, found.probabilities, ["NUM", "NOUN", "VERB"], 4)
    assert any(tags)
    expected = zip(["two", "dogs", "play", "."], tags, strict=True)
    assert output.read_text() == "".join(f"{word}\t{tag or '_'}\n" for word, tag in expected) + "\n\n"
    rows = [line.split("\t") for line in (tmp_path / "out.conll.lost.tsv").read_text().splitlines()[1:]]
    assert rows[-2:] == [["2", "DET", "0", "1", "die"], ["2", "NOUN", "1", "2", "Frau"]]
    assert len(rows) == len(lost) + 2

    out, err = run("--project", labels, texts, "--pre-split")
    assert [line.split("\t")[0] for line in out.split()[::2]] == ["two", "dogs", "play."]
    assert "1 of 1 DET" in err and "precision fp32" in err


def test_a_no_break_space_within_a_token_is_kept(run, tmp_path):
    labels, texts = tmp_path / "labels.conll", tmp_path / "texts.txt"
    labels.write_text("Preis\tNOUN\n10\u00a0000\tNUM\n\u00a0\tX\n", encoding="utf-8")
    texts.write_text("price \u00a0\t10\u00a0000.\n", encoding="utf-8")
    out = run("--project", labels, texts, "--pre-split").out
    assert [line.split("\t")[0] for line in out.split("\n")] == ["price", "\u00a0", "10\u00a0000.", "", ""]


def test_words_without_a_label_leave_spans_spans(run, words):
    labels, texts = words
    labels.write_text("zwei\tB-A\nHunde\tI-A\nspielen\t_\n\ndie\t_\nFrau\tB-B\n", encoding="utf-8")
    out, err = run("--project", labels, texts)
    assert {line.split("\t")[1] for line in out.split("\n") if line} <= {"O", "B-A", "I-A"}
    assert "of 1 A" in err and "1 of 1 B" in err and "_" not in err.rpartition("lost:")[2]


def test_spans_of_characters(run, links, tmp_path):
    source, target = "Ein Mann, zwei Hunde.", "a man, two dogs."
    path = tmp_path / "pairs.jsonl"
    given = [{"start": 10, "end": 20, "label": "A"}, {"start": 4, "end": 6, "label": "B"}]
    path.write_text(json.dumps({"id": 7, "source": source, "target": target, "spans": given}) + "\n\n")
    out, err = run("--project", path)
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


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([{"start": 0, "end": 9, "label": "A"}], "end"),
        ([{"start": 0, "end": 2.0, "label": "A"}], "end"),
        ([[0, 1, "A"]], "objects"),
        (3, "objects"),
    ],
)
def test_spans_that_are_none_are_refused(run, tmp_path, capsys, spans, message):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"source": "ein", "target": "a", "spans": spans}) + "\n")
    with pytest.raises(SystemExit) as stopped:
        run("--project", path)
    err = " ".join(capsys.readouterr().err.split())
    assert stopped.value.code == 2 and "line 1" in err and message in err


def test_files_and_options_that_do_not_fit(run, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(labels_module, "load_aligner", None)  # all is found before the model is loaded
    labels, texts = words
    longer, plain = tmp_path / "longer.txt", tmp_path / "plain.txt"
    longer.write_text("a\nb\nc\n")
    for arguments, message in (
        ((labels, longer), "2 sentences"),
        ((labels, texts, "--output", labels), "is --output and --project"),
        ((longer, texts), "tokens"),
        ((labels, texts, longer), "2 files"),
        ((labels, texts, "--gold", longer), "--project is given with --gold"),
        ((labels, texts, "--resume", "--output", plain), "--project is given with --resume"),
        ((labels, texts, "--output", longer), "exists"),
        ((labels, "--pre-split"), "--project is given with --pre-split"),
    ):
        with pytest.raises(SystemExit) as stopped:
            run("--project", *arguments)
        assert stopped.value.code == 2
        assert message in " ".join(capsys.readouterr().err.split()), arguments
    assert not plain.exists()
