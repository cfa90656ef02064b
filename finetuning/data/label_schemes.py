"""Labels that mark spans of words (IOB1, IOB2, IOBES, BILOU, BMES), and the same spans in IOB2.

    >>> form_of(["O", "B-PER", "L-PER", "U-LOC"])
    'B-TYPE'
    >>> to_iob2(["U-LOC", "U-LOC", "O", "B-PER", "L-PER"], "B-TYPE")
    ['B-LOC', 'B-LOC', 'O', 'B-PER', 'I-PER']
    >>> form_of(["NOUN", "VERB"]) is None  # tags: each says something of its own word
    True

A label is `O`, or a mark and the type of a span: `B-PER` or `PER-B`. The marks of all schemes are read alike. Marks
without a type are tags, like parts of speech of such names. All labels of a file decide together. `_` is no label
(CoNLL-U, `word-align project`).

Sequences that a scheme does not allow, such as `I-` after `O`, are read as conlleval and seqeval do by default: a span
begins at B and S, after the end of another span, after O, and where the type changes.
"""

import re
from collections.abc import Callable, Iterable, Sequence

OUTSIDE = "O"
UNLABELED = "_"
IOBES = dict(zip("BIMELSUW", "BIIEESSS", strict=True))  # M of BMES; L and U of BILOU; W of BMEWO
FORMS = {  # the type has no separator next to the mark's: parts of speech such as `S----3MS2-` do
    "B-TYPE": r"(?P<mark>[BIMELSUW])-(?P<kind>[^-_].*)",
    "TYPE-B": r"(?P<kind>.*[^-_])-(?P<mark>[BIMELSUW])",
}


def join_label(mark: str, kind: str) -> str:
    """`B-PER`, or `O` without a type."""
    return f"{mark}-{kind}" if kind else mark


def _split(label: str, form: str) -> tuple[str, str]:
    """Returns the mark, as in IOBES, and the type of a label; `O` and no type for one that marks no span."""
    match = re.fullmatch(FORMS[form], label)
    return (IOBES[match["mark"]], match["kind"]) if match else (OUTSIDE, "")


def iob2_names(labels: Sequence[str], form: str) -> list[str]:
    """The labels in IOB2 with B- and I- of every type: IOB1 may lack the B- of a type, and IOBES its I-."""
    parts = [_split(label, form) for label in labels]
    names = [join_label({"S": "B", "E": "I"}.get(mark, mark), kind) for mark, kind in parts]
    names += [join_label(mark, kind) for _, kind in parts if kind for mark in "BI"]
    return list(dict.fromkeys(names))


def to_iob2(labels: Sequence[str], form: str) -> list[str]:
    """The labels of a sentence as IOB2, with the same spans, outside of which are words without a label.

    A label of another form is kept, and is in no span.
    """
    found, last, last_kind = [], OUTSIDE, ""
    for label in labels:
        mark, kind = _split(label, form)
        begins = mark in "BS" or last in "OES" or kind != last_kind
        outside = OUTSIDE if label == UNLABELED else label
        found.append(join_label("B" if begins else "I", kind) if kind else outside)
        last, last_kind = mark, kind
    return found


def form_of(labels: Iterable[str], place: Callable[[str], str] = lambda label: "the labels") -> str | None:
    """The form, a name of `FORMS`, in which all labels of a file mark spans; None where they are tags.

    place: file and row where a label occurs, for errors. Raises ValueError where some labels mark spans and others,
    such as `PER`, have no mark in the same form.
    """
    known = {*labels} - {UNLABELED}
    marked = sorted(known - {OUTSIDE})
    if not marked:
        return "B-TYPE" if known else None
    fitting = {form: [label for label in marked if re.fullmatch(pattern, label)] for form, pattern in FORMS.items()}
    form = max(fitting, key=lambda form: len(fitting[form]))
    # parts of speech such as S-adj and U-x among others mark no spans
    if not (fitting[form] and (OUTSIDE in known or {_split(one, form)[0] for one in fitting[form]} & {*"BI"})):
        return None
    if odd := [label for label in marked if label not in fitting[form]]:
        raise ValueError(
            f"{place(odd[0])}: label {odd[0]!r} does not mark a span as {fitting[form][0]!r} does. Write it as {form}, "
            f"or as {OUTSIDE} outside of spans."
        )
    return form
