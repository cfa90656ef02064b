"""Labels that mark spans of words (IOB1, IOB2, IOBES, BILOU, BMES), and the same spans in IOB2.

    >>> form_of(["O", "B-PER", "L-PER", "U-LOC"])
    'B-TYPE'
    >>> to_iob2(["U-LOC", "U-LOC", "O", "B-PER", "L-PER"], "B-TYPE")
    ['B-LOC', 'B-LOC', 'O', 'B-PER', 'I-PER']
    >>> to_iob2(["B", "E", "O", "S"], form_of(["B", "E", "O", "S"]))  # spans of one type
    ['B', 'I', 'O', 'B']
    >>> form_of(["NOUN", "VERB"]) is None  # tags: each says something of its own word
    True

A label is `O`, or a mark and the type of a span: `B-PER` or `PER-B`; or a mark alone, where all labels of the file are
marks of one scheme. The marks of all schemes are read alike. All labels of a file decide together. `_` is no label
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
    "B": r"(?P<mark>[BIMELSUW])(?P<kind>)",
}
SCHEMES = tuple(map(frozenset, ("BIESO", "BMESO", "BILUO", "BMEWO")))  # marks of labels without a type


def join_label(mark: str, kind: str) -> str:
    """`B-PER`; the mark alone without a type."""
    if not kind:
        return mark
    return f"{mark}-{kind}"


def _split(label: str, form: str) -> tuple[str, str]:
    """Returns the mark, as in IOBES, and the type of a label; `O` and no type for one that marks no span."""
    match = re.fullmatch(FORMS[form], label)
    if not match:
        return OUTSIDE, ""
    return IOBES[match["mark"]], match["kind"]


def iob2_names(labels: Sequence[str], form: str) -> list[str]:
    """The labels in IOB2 with B- and I- of every type: IOB1 may lack the B- of a type, and IOBES its I-."""
    parts = [_split(label, form) for label in labels]
    names = [join_label({"S": "B", "E": "I"}.get(mark, mark), kind) for mark, kind in parts]
    for mark, kind in parts:
        if mark != OUTSIDE:
            names += [join_label("B", kind), join_label("I", kind)]
    return list(dict.fromkeys(names))


def to_iob2(labels: Sequence[str], form: str) -> list[str]:
    """The labels of a sentence as IOB2, with the same spans, outside of which are words without a label.

    A label of another form is kept, and is in no span.
    """
    converted = []
    last_mark = OUTSIDE
    last_kind = ""
    for label in labels:
        mark, kind = _split(label, form)
        begins = mark in "BS" or last_mark in "OES" or kind != last_kind
        if mark != OUTSIDE:
            converted.append(join_label("B" if begins else "I", kind))
        elif label == UNLABELED:
            converted.append(OUTSIDE)
        else:
            converted.append(label)
        last_mark = mark
        last_kind = kind
    return converted


def form_of(
    labels: Iterable[str], place_of: Callable[[str], str] = lambda label: "the labels", are_spans: bool = False
) -> str | None:
    """The form, a name of `FORMS`, in which all labels of a file mark spans; None where they are tags.

    place_of: returns file and row where a label occurs, for errors. are_spans: whether the labels are known to mark
    spans, even if they are few, such as `S-PER` alone. Raises ValueError where some labels mark spans and others, such
    as `PER`, have no mark in the same form; if they `are_spans`, also where none has a mark.
    """
    names = {*labels} - {UNLABELED}
    marked = sorted(names - {OUTSIDE})
    if not marked:
        return "B-TYPE" if names or are_spans else None
    if _are_marks(names) or (are_spans and names <= {OUTSIDE, *IOBES}):
        return "B"
    form = "B-TYPE"
    in_form = _labels_in_form(marked, form)
    in_other_form = _labels_in_form(marked, "TYPE-B")
    if len(in_other_form) > len(in_form):
        form = "TYPE-B"
        in_form = in_other_form
    marks = {_split(label, form)[0] for label in in_form}
    # parts of speech such as S-adj and U-x among others mark no spans
    is_scheme = bool(in_form) and (OUTSIDE in names or not marks.isdisjoint({"B", "I"}))
    if not is_scheme and not are_spans:
        return None
    for label in marked:
        if label not in in_form:
            example = f" as {in_form[0]!r} does" if in_form else ""
            raise ValueError(
                f"{place_of(label)}: label {label!r} does not mark a span{example}. Write it as {form}, or as "
                f"{OUTSIDE} outside of spans."
            )
    return form


def _labels_in_form(labels: list[str], form: str) -> list[str]:
    return [label for label in labels if re.fullmatch(FORMS[form], label)]


def _are_marks(names: set[str]) -> bool:
    """Whether labels without types mark spans: they are of one scheme, and B or I is not the only one of them.

    Other tags of one letter, such as S and O, or B and W, are tags.
    """
    if not any(names <= scheme for scheme in SCHEMES):
        return False
    if "B" in names:
        return not names.isdisjoint({"I", "M", "E", OUTSIDE})
    return names >= {"I", OUTSIDE}
