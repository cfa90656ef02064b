"""Labels of spans: which labels mark them, the same spans as IOB2, and what is refused."""

import doctest
import random

import pytest
from seqeval.metrics.sequence_labeling import get_entities

from finetuning.data import label_schemes
from finetuning.data.label_schemes import form_of, to_iob2

SPANS = "B-PER I-PER I-PER O B-LOC B-LOC B-PER I-PER".split()


def test_examples_of_the_module():
    assert doctest.testmod(label_schemes).failed == 0


@pytest.mark.parametrize(
    "labels",
    [
        " ".join(SPANS),
        "I-PER I-PER I-PER O I-LOC B-LOC I-PER I-PER",  # IOB1
        "B-PER I-PER E-PER O S-LOC S-LOC B-PER E-PER",  # IOBES
        "I-PER I-PER E-PER O E-LOC E-LOC I-PER E-PER",  # IOE2
        "B-PER I-PER L-PER O U-LOC U-LOC B-PER L-PER",  # BILOU
        "B-PER M-PER E-PER O S-LOC S-LOC B-PER E-PER",  # BMES
        "B-PER M-PER E-PER O W-LOC W-LOC B-PER E-PER",  # BMEWO
    ],
)
@pytest.mark.parametrize("form", ["B-TYPE", "TYPE-B"])
def test_to_iob2_same_spans_of_every_scheme(labels, form):
    parts = [label.partition("-") for label in labels.split()]
    labels = [
        mark if mark == "O" else f"{mark}-{kind}-x" if form == "B-TYPE" else f"{kind}-x-{mark}"
        for mark, _, kind in parts
    ]
    assert form_of(labels) == form
    assert to_iob2(labels, form) == [label if label == "O" else f"{label}-x" for label in SPANS]


@pytest.mark.parametrize("marks", ["BI", "BIES"])
def test_to_iob2_of_any_sequence_has_the_spans_of_seqeval(marks):
    draw = random.Random(0)
    known = ["O", *(f"{mark}-{kind}" for mark in marks for kind in ("PER", "LOC"))]
    for _ in range(300):
        labels = [draw.choice(known) for _ in range(draw.randint(1, 9))]
        converted = to_iob2(labels, "B-TYPE")
        assert get_entities(converted) == get_entities(labels)
        assert to_iob2(converted, "B-TYPE") == converted
        begins = [place for place, label in enumerate(converted) if label.startswith("B-")]
        assert begins == [start for _, start, _ in get_entities(labels)]
