"""Labels carried over links: the rules by value, and `word-align project`."""

import json
import re

import pytest

from crosslingual_zoo.finetuning.align import project as command
from crosslingual_zoo.finetuning.align.projection import Span, project, project_spans
from tests.finetuning.labeled_rows import write_rows


@pytest.mark.parametrize(
    ("links", "probabilities", "labels", "length", "expected", "lost"),
    [
        ([(0, 0), (1, 0)], [0.6, 0.9], "ADP DET", 1, ["DET"], [Span(0, 1, "ADP")]),
        ([(0, 0), (1, 0)], [0.7, 0.7], "ADP DET", 1, ["ADP"], [Span(1, 2, "DET")]),  # of equal ones the first
        ([(0, 0), (0, 2)], [0.6, 0.9], "NOUN", 3, ["NOUN", None, "NOUN"], []),
        ([], [], "NOUN VERB", 2, [None, None], [Span(0, 1, "NOUN"), Span(1, 2, "VERB")]),
        # spans of any scheme, as IOB2
        ([(0, 2), (1, 3), (3, 0), (4, 1)], [0.9] * 4, "B-PER E-PER O S-LOC S-LOC", 4,
         ["B-LOC", "B-LOC", "B-PER", "I-PER"], []),
        ([], [], "B-PER I-PER O", 2, ["O", "O"], [Span(0, 2, "PER")]),
    ],
)  # fmt: skip
def test_project_tags_and_spans(links, probabilities, labels, length, expected, lost):
    assert project(links, probabilities, labels.split(), length) == (expected, lost)


def test_project_takes_spans_for_tags_on_demand():
    labels = "B-PER E-PER O S-LOC S-LOC".split()
    links = [(0, 2), (1, 3), (3, 0), (4, 1)]
    assert project(links, [0.9] * 4, labels, 4, are_spans=False)[0] == [labels[i] for i in (3, 4, 0, 1)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("S-PER", "B-PER"),
        ("PER-S", "B-PER"),
        ("I-PER I-PER", "B-PER I-PER"),
        ("B-PER O U-LOC", "B-PER O B-LOC"),
        ("B I O", "B I O"),
        ("S O E", "B O B"),
        ("_ O", "O O"),
    ],
)
def test_project_spans_of_a_sentence_with_few_labels(labels, expected):
    labels = labels.split()
    links = [(word, word) for word in range(len(labels))]
    assert project(links, [0.9] * len(links), labels, len(labels), are_spans=True) == (expected.split(), [])


@pytest.mark.parametrize(("labels", "tag"), [("NOUN", "NOUN"), ("PER O", "PER"), ("B-PER PER", "PER")])
def test_project_refuses_tags_as_spans(labels, tag):
    with pytest.raises(ValueError, match=f"'{tag}'"):
        project([], [], labels.split(), 1, are_spans=True)


# words 2 and 4 belong to source words 5 and 6: what is behind them is another run
STRAY = {(0, 0): 0.8, (1, 1): 0.8, (5, 2): 0.9, (6, 4): 0.9, (0, 5): 0.9}
ONE_STRAY = {link: probability for link, probability in STRAY.items() if link != (6, 4)}
CROSSING = {(0, 1): 0.9, (1, 3): 0.6, (2, 2): 0.9, (3, 0): 0.8, (3, 3): 0.7}


@pytest.mark.parametrize(
    ("links", "source_spans", "expected"),
    [
        ({(0, 1): 0.9, (1, 4): 0.9}, [(0, 2)], [(1, 5)]),  # one run over words without a link
        ({(0, 1): 0.9, (1, 0): 0.9}, [(0, 2)], [(0, 2)]),  # in another order
        (STRAY, [(0, 2)], [(0, 2)]),  # by the sum of probabilities
        (STRAY | {(0, 0): 0.3, (1, 1): 0.4}, [(0, 2)], [(5, 6)]),
        (ONE_STRAY, [(0, 2)], [(0, 6)]),  # a hole that is filled, unless it belongs to another span
        (ONE_STRAY, [(0, 2), (5, 6)], [(0, 2), (2, 3)]),
        # a span that loses its middle is its better half
        ({(0, 0): 0.9, (1, 1): 0.6, (2, 2): 0.9, (3, 3): 0.9, (7, 1): 0.8}, [(0, 4), (7, 8)], [(2, 4), (1, 2)]),
        # crossing spans share no word, the weaker may be lost, and nested spans stay nested
        (CROSSING, [(0, 2), (2, 4)], [(1, 2), (2, 4)]),
        ({(0, 0): 0.6, (1, 0): 0.9}, [(0, 1), (1, 2)], [None, (0, 1)]),
        ({(0, 0): 0.6, (1, 0): 0.9}, [(0, 2), (1, 2)], [(0, 1), (0, 1)]),
    ],
)
def test_project_spans(links, source_spans, expected):
    projected = project_spans(list(links), list(links.values()), [Span(*span, "X") for span in source_spans])
    assert [span and (span.begin, span.end) for span in projected] == expected


@pytest.mark.parametrize(
    ("target", "linked", "expected"),
    [
        ("Parlament ) zu", "0 1", "Parlament"),  # a closing mark at the end
        ("( Parlament zu", "0 1", "Parlament"),  # an opening one at the begin
        ("das Parlament ( MWP", "1 2", "Parlament"),  # an opening one at the end
        ("( das Parlament )", "0 1 2 3", "( das Parlament )"),  # both
        ("das Parlament ) zu ändern ,", "0 1 3", "das Parlament"),  # in the middle: the more probable part
        ("Namen ( das Parlament )", "0 2 3", "das Parlament"),
        ("a ( b ) c", "0 4", "a ( b ) c"),
        ("( a ] b )", "0 1 2 3 4", "a"),  # cut twice
        ("a ( b [ c ) d ]", "1 2 3 4", "b"),
        (")", "0", ")"),  # a span is not lost for it
        (") ) a", "0 1 2", "a"),
        ("„ Welsh Parliament “ zu", "1 2 3", "Welsh Parliament"),
        ("„ Welsh Parliament “ zu", "0 1 2 3", "„ Welsh Parliament “"),
        ("« a » und « b »", "1 2 3", "a"),
        ("» a « und » b «", "4 5", "b"),
        ("`` a '' b", "1 2", "a"),
        ('er sagte " a b " nicht', "1 2 3 4", "a b"),
        ("the members ' a", "1 2 3", "members ' a"),  # an apostrophe
        ("（ 议会 ）", "1 2", "议会"),
        # marks that are part of a word
        ("(Parlament) zu", "0 1", "(Parlament) zu"),
        ("in (das Parlament) zu", "2 3", "Parlament)"),
        ("Name (das Parlament)", "0 1", "Name"),
        ("„Welsh Parliament“, zu", "1 2", "Parliament“,"),
        ('die "a b" nicht', "2 3", 'b"'),
        ("1) a b", "0 1 2", "a b"),
    ],
)
def test_project_spans_over_no_mark_without_its_partner(target, linked, expected):
    words = target.split()
    links = [(0, int(word)) for word in linked.split()]
    labels, lost = project(links, [0.9] * len(links), ["B-X"], len(words), words=words)
    assert [word for word, label in zip(words, labels, strict=True) if label != "O"] == expected.split()
    assert not lost


def test_project_refuses_other_words_than_length():
    with pytest.raises(ValueError, match="2.*3"):
        project([], [], ["O"], 2, words=["a", "b", "c"])


@pytest.fixture
def run(word_align):
    """run(*arguments) -> (stdout, stderr) of `word-align project` with the states of layer 1."""
    return lambda *arguments: word_align("project", "--layer", "1", *arguments)


def links_of(aligner, source, target):
    return next(aligner(layer=1).align([(source, target)], probabilities=True))


@pytest.fixture
def words(tmp_path):
    """Files of two tagged sentences and of their translations, the second without words."""
    labels = tmp_path / "labels.conll"
    texts = tmp_path / "texts.txt"
    labels.write_text("zwei\tNUM\nHunde\tNOUN\nspielen\tVERB\n\ndie\tDET\nFrau\tNOUN\n", encoding="utf-8")
    texts.write_text("two dogs play.\n\n", encoding="utf-8")
    return labels, texts


@pytest.mark.parametrize(
    ("option", "translation", "target", "warning"),
    [
        ([], ["two", "dogs", "play."], ["two", "dogs", "play."], "1 of 3 words"),  # a mark is glued to it
        (["--split"], "two dogs play.", ["two", "dogs", "play", "."], "1 of 2 translations"),
    ],
)
def test_project_of_tokens(run, aligner, words, tmp_path, option, translation, target, warning):
    output = tmp_path / "out.conll"
    out, err = run(*words, "--output", output, *option)
    alignment = links_of(aligner, ["zwei", "Hunde", "spielen"], translation)
    tags, _ = project(alignment.links, alignment.probabilities, ["NUM", "NOUN", "VERB"], len(target))
    assert any(tags)
    assert alignment.target == target
    lines = [f"{word}\t{tag or '_'}" for word, tag in zip(target, tags, strict=True)]
    assert output.read_text() == "\n".join([*lines, "", "", ""])
    assert out == ""
    assert set(re.findall("1 of 1 DET|1 of 2 translations|1 of 3 words", err)) == {"1 of 1 DET", warning}


def test_project_of_spans_of_characters(run, aligner, tmp_path):
    spans = [{"start": 10, "end": 20, "label": "A"}, {"start": 4, "end": 6, "label": "B"}]
    row = {"id": 7, "source": "Ein Mann, zwei Hunde.", "target": "a man, two dogs.", "spans": spans}
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(row) + "\n\n")
    out, err = run(path)
    alignment = links_of(aligner, row["source"], row["target"])
    offsets = alignment.target_offsets
    words = [Span(3, 5, "A"), Span(1, 2, "B")]  # of Ein Mann , zwei Hunde .
    target_spans = []
    for span in project_spans(alignment.links, alignment.probabilities, words):
        start, _ = offsets[span.begin]
        _, end = offsets[span.end - 1]
        target_spans.append({"start": start, "end": end, "label": span.label})
    assert json.loads(out) == row | {"target_spans": target_spans}
    assert out.endswith("\n\n")  # an empty line is kept
    assert "1 of 2 spans" in err  # B ends inside of "Mann"


def test_project_writes_null_for_a_lost_span(run, tmp_path):
    spans = [{"start": 2 * n, "end": 2 * n + 1, "label": label} for n, label in enumerate("ABC")]
    rows = [{"source": "a b c", "target": target, "spans": spans} for target in ("a b c", "", "c")]
    out, err = run(write_rows(tmp_path / "pairs.jsonl", rows))
    all_spans = [json.loads(line)["target_spans"] for line in out.splitlines()]
    assert all_spans[1] == [None, None, None]
    for target_spans in all_spans:
        for label, target_span in zip("ABC", target_spans, strict=True):
            assert target_span is None or target_span["label"] == label
    lost = sum(target_spans.count(None) for target_spans in all_spans)
    assert sum(map(int, re.findall(r"(\d) of 3 [ABC]", err))) == lost


@pytest.mark.parametrize(("shift", "is_widened"), [(0, False), (1, True)])
def test_project_counts_spans_that_begin_or_end_inside_a_word(run, tmp_path, shift, is_widened):
    text = "🐶 Ein Mann, zwei."  # 🐶 is one character, and two units of UTF-16
    spans = [{"start": 2 + shift, "end": 10 + shift, "label": "A"}, {"start": 1, "end": 6, "label": "B"}]
    _, err = run(write_rows(tmp_path / "rows.jsonl", [{"source": text, "target": text, "spans": spans}]))
    assert (" of 2 spans" in err) == is_widened


@pytest.mark.parametrize(
    ("tags", "message"), [(["O"], "row 0 .*2 words"), (["B-X", "X"], "row 0 .*'X'")], ids=["too few", "no IOB2"]
)
def test_project_refuses_tags(run, refused, tmp_path, monkeypatch, tags, message):
    monkeypatch.setattr(command, "load_aligner", None)  # all is found before the model is loaded
    path = write_rows(tmp_path / "labels.jsonl", [{"tokens": ["a", "b"], "tags": tags}])
    texts = tmp_path / "texts.txt"
    texts.write_text("a\n")
    assert re.search(f"{path}.*{message}", refused([path, texts], lambda arguments: run(*arguments)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"spans": [{"start": 0, "end": 9, "label": "A"}]}, r"line 1: spans\[0\]"),
        ({"target_spans": []}, "line 1: .*target_spans"),
        ({"entities": [[0, 3, "A"]]}, "`spans`"),
    ],
)
def test_project_refuses_spans(run, refused, tmp_path, monkeypatch, fields, message):
    monkeypatch.setattr(command, "load_aligner", None)  # all is found before the model is loaded
    path = write_rows(tmp_path / "pairs.jsonl", [{"source": "ein", "target": "a", **fields}])
    assert re.search(f"{path}.*{message}", refused([path], lambda arguments: run(*arguments)))
