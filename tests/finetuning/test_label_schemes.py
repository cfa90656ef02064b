"""Schemes of labels: which labels are spans, the same spans as IOB2, and what is refused."""

import doctest
import random
import re

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from finetuning.data import label_schemes
from finetuning.data.label_schemes import Scheme, scheme_of

SPANS = "B-PER I-PER I-PER O B-LOC B-LOC B-PER I-PER".split()


def test_examples_of_the_module():
    assert doctest.testmod(label_schemes).failed == 0


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("IOB", " ".join(SPANS)),
        ("IOB", "I-PER I-PER I-PER O I-LOC B-LOC I-PER I-PER"),
        ("IOBES", "B-PER I-PER E-PER O S-LOC S-LOC B-PER E-PER"),
        ("IOBES", "I-PER I-PER E-PER O E-LOC E-LOC I-PER E-PER"),  # IOE2
        ("BILOU", "B-PER I-PER L-PER O U-LOC U-LOC B-PER L-PER"),
        ("BMES", "B-PER M-PER E-PER O S-LOC S-LOC B-PER E-PER"),
        ("BMEWO", "B-PER M-PER E-PER O W-LOC W-LOC B-PER E-PER"),
    ],
)
@pytest.mark.parametrize("form", ["B-TYPE", "B_TYPE", "TYPE-B", "TYPE_B"])
def test_every_scheme_in_every_form_has_the_same_spans(name, labels, form):
    def written(label):
        mark, _, kind = label.partition("-")
        return label if label == "O" else form.replace("TYPE", f"{kind}-x").replace("B", mark, 1)

    labels = [written(label) for label in labels.split()]
    scheme = scheme_of(labels)
    assert scheme == Scheme(name, form)
    assert scheme.to_iob2(labels) == [label if label == "O" else f"{label}-x" for label in SPANS]
    assert set(labels) - {"O"} <= set(scheme.spellings(["PER-x", "LOC-x"]))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("I I O I B I", "B I O B B I"),
        ("B E O S S B I E", "B I O B B B I I"),
        ("U O B I L U _", "B O B I I B O"),
        ("B M E S O", "B I I B O"),
    ],
)
def test_marks_alone_beside_o(labels, expected):
    scheme = scheme_of(labels.split())
    assert scheme.form == "B" and scheme.to_iob2(labels.split()) == expected.split()


def test_any_sequence_has_the_spans_that_seqeval_reads():
    draw = random.Random(0)
    for name in ("IOB", "IOBES"):
        scheme = Scheme(name, "B-TYPE")
        known = ["O", *scheme.spellings(["PER", "LOC"])]
        for _ in range(300):
            labels = [draw.choice(known) for _ in range(draw.randint(1, 9))]
            converted = scheme.to_iob2(labels)
            assert get_entities(converted) == get_entities(labels)
            assert scheme.to_iob2(converted) == converted
            begins = [place for place, label in enumerate(converted) if label.startswith("B-")]
            assert begins == [start for _, start, _ in get_entities(labels)]


def test_bilou_is_iobes_by_other_names():
    draw = random.Random(1)
    iobes, bilou = (Scheme(name, "B-TYPE") for name in ("IOBES", "BILOU"))
    for _ in range(100):
        labels = [draw.choice(["O", *bilou.spellings(["X", "Y"])]) for _ in range(8)]
        renamed = [re.sub("^L", "E", re.sub("^U", "S", label)) for label in labels]
        assert bilou.to_iob2(labels) == iobes.to_iob2(renamed)


@pytest.mark.parametrize(
    "labels",
    [
        "NOUN VERB",
        "U L E S M",
        "N O S L U M E V",  # parts of speech of tweets
        "B I X",
        "B I",
        "O S U",
        "PER LOC O",
        "S----3MS2- I--------- N-------1I",
        "S-adj U-x X",
        "NN-TL AT-HL",
        "s-adj n-noun",
        "_",
        "",
    ],
)
def test_tags_are_no_spans(labels):
    assert scheme_of(labels.split()) is None


def test_marks_alone_spell_no_types():
    bare, typed = scheme_of(["B", "I", "O"]), scheme_of(["B-PER", "O"])
    assert bare.spellings(["PER"]) == [] == typed.spellings([""])
    assert bare.spellings([""]) == ["B", "I"] and typed.spellings(["LOC"]) == ["B-LOC", "I-LOC"]


@pytest.mark.parametrize("labels", ["B-ORG-GOV I-date-time O", "O", "B-* I-* O _", "B-S I-S O", "I-Person"])
def test_unusual_labels_of_spans(labels):
    assert scheme_of(labels.split()).is_usual


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ("B-PER I-PER O PER", "'PER'"),
        ("B-PER LOC", "'LOC'"),
        ("O S-PER S-LOC [PAD]", "'[PAD]'"),
        ("B-PER I O", "'I'"),
        ("PER-B PER-I O LOC", "'LOC'"),
        ("B-PER O LOC-B", "'B-PER' and 'LOC-B'"),
        ("B-PER O I_PER", "'B-PER' and 'I_PER'"),
        ("U-LOC S-PER O", "S-PER and U-LOC"),
        ("B-PER L-PER E-PER", "E-PER and L-PER"),
        ("B-PER I-PER M-PER E-PER", "I-PER and M-PER"),
        ("b-per i-per O", "'b-per'"),
        ("B-PER i-PER", "'i-PER'"),
        ("b i o", "'b'"),
    ],
)
def test_labels_of_no_one_scheme_are_named(labels, named):
    with pytest.raises(ValueError, match=rf"^in .*{re.escape(named)}") as refused:
        scheme_of(labels.split(), lambda label: f"in {label}")
    assert "\n" not in str(refused.value)
