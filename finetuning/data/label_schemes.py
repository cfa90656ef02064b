"""Labels that mark spans of words, in any of the usual schemes, and the same labels as IOB2.

    >>> scheme = scheme_of(["O", "B-PER", "L-PER", "U-LOC"])
    >>> scheme.name, scheme.to_iob2(["U-LOC", "U-LOC", "O", "B-PER", "L-PER"])
    ('BILOU', ['B-LOC', 'B-LOC', 'O', 'B-PER', 'I-PER'])
    >>> scheme_of(["NOUN", "VERB"]) is None  # tags: each says something of its own word
    True

A label is `O`, or a mark and the type of a span, in one of the forms `B-PER`, `B_PER`, `PER-B` and `PER_B`, where types
may hold further hyphens. Marks alone (`B`, `I`) are labels of spans only if `O` and such marks are all labels that
there are; otherwise they are tags, as parts of speech have such names too. All labels of a file decide together. `_`
is no label (CoNLL-U, `word-align project`).

Sequences that a scheme does not allow, such as `I-` after `O`, are read as conlleval and seqeval do by default: a span
begins at B and S, after the end of another span, after O, and where the type changes.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

OUTSIDE = "O"
UNLABELED = "_"
SCHEMES = {"IOB": "BI", "IOBES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BMEWO": "BMEW"}  # IOE is part of IOBES
IOBES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S", OUTSIDE: OUTSIDE}
MARK = f"([{''.join(mark for mark in IOBES if mark != OUTSIDE)}])"
BARE = "B"
FORMS = {  # the type has no separator next to the mark's: parts of speech such as `S----3MS2-` do
    "B-TYPE": f"{MARK}-((?![-_]).+)",
    "B_TYPE": f"{MARK}_((?![-_]).+)",
    "TYPE-B": f"((?![-_]).+(?<![-_]))-{MARK}",
    "TYPE_B": f"((?![-_]).+(?<![-_]))_{MARK}",
    BARE: f"{MARK}()",
}


def join_label(mark: str, kind: str) -> str:
    """`B-PER`; the mark alone where spans have no types."""
    return f"{mark}-{kind}" if kind else mark


@dataclass(frozen=True)
class Scheme:
    """The scheme of some labels, a name of `SCHEMES`, and how they are written, a name of `FORMS`."""

    name: str
    form: str

    def __str__(self) -> str:
        return self.name if self.form in ("B-TYPE", BARE) else f"{self.name}, written {self.form}"

    @property
    def is_usual(self) -> bool:
        """Whether these are IOB1 or IOB2 as most files write them."""
        return str(self) == "IOB"

    def split(self, label: str) -> tuple[str, str]:
        """The mark, as in IOBES, and the type of a label; the type is "" where there is none."""
        return _split(label, self.form)

    def spellings(self, kinds: Iterable[str]) -> list[str]:
        """Returns all labels of spans of these types in this scheme; a form of marks only has no types."""
        return [
            self.form.replace("TYPE", "\0").replace("B", mark).replace("\0", kind)
            for kind in kinds
            if bool(kind) == (self.form != BARE)
            for mark in SCHEMES[self.name]
        ]

    def to_iob2(self, labels: Sequence[str]) -> list[str]:
        """The labels of a sentence as IOB2, with the same spans; words without a label are outside of spans."""
        found, last, last_kind = [], OUTSIDE, ""
        for label in labels:
            mark, kind = self.split(label)
            begins = mark in "BS" or last in "OES" or kind != last_kind
            found.append(OUTSIDE if mark == OUTSIDE else join_label("B" if begins else "I", kind))
            last, last_kind = mark, kind
        return found


@functools.cache
def _split(label: str, form: str) -> tuple[str, str]:
    if label in (OUTSIDE, UNLABELED):
        return OUTSIDE, ""
    match = re.fullmatch(FORMS[form], label)
    if match is None:
        raise ValueError(f"label {label!r} is not written as {form}.")
    mark, kind = match.groups() if form.startswith("B") else reversed(match.groups())
    return IOBES[mark], kind


def scheme_of(labels: Iterable[str], place: Callable[[str], str] = lambda label: "the labels") -> Scheme | None:
    """The scheme of all labels of a file; None where they are tags, or where there is no label.

    place: file and row where a label occurs, for errors. Raises ValueError for labels of several schemes or
    forms, for marks in lower case, and where some labels mark spans and others, such as `PER`, have no mark.
    """
    known = sorted(set(labels) - {UNLABELED})
    if not known:
        return None
    if form := _form_of(known):
        marks = {_mark(label, form): label for label in known if label != OUTSIDE}
        if name := next((name for name, own in SCHEMES.items() if marks.keys() <= set(own)), None):
            return Scheme(name, form)
        if form == BARE:
            return None
        *others, last = marks.values()
        raise ValueError(
            f"{place(last)}: labels {', '.join(others)} and {last} are of more than one scheme. Write all in one of "
            f"{', '.join(SCHEMES)}."
        )
    if (form := _form_of(upper := [label.upper() for label in known])) and _mark_spans(dict.fromkeys(upper, form)):
        lower = next(label for label in known if label != OUTSIDE and not re.fullmatch(FORMS[form], label))
        raise ValueError(
            f"{place(lower)}: label {lower!r} has its mark in lower case. Write {OUTSIDE} and marks in upper case, as "
            f"in {form}."
        )
    forms = {label: _form_of([label], typed=True) for label in known}
    if not _mark_spans(forms):
        return None
    label, form = next((label, form) for label, form in forms.items() if form and label != OUTSIDE)
    if odd := [label for label, form in forms.items() if form is None]:
        raise ValueError(
            f"{place(odd[0])}: label {odd[0]!r} has no mark of a span, but {label!r} has one. Write it as {form}, or "
            f"as {OUTSIDE} outside of spans."
        )
    other = next(label for label in forms if forms[label] != form and label != OUTSIDE)
    raise ValueError(f"{place(other)}: labels {label!r} and {other!r} are written differently. Write all as {form}.")


def _mark_spans(forms: dict[str, str | None]) -> bool:
    """Whether labels with these forms mark spans: one has a mark, and one is O, B or I.

    Parts of speech such as `S-adj` and `U-x` among others are not.
    """
    marks = {_mark(label, form) for label, form in forms.items() if form and label != OUTSIDE}
    return bool(marks) and (OUTSIDE in forms or not marks.isdisjoint("BI"))


def _form_of(labels: list[str], typed: bool = False) -> str | None:
    """The first form that all labels have; marks alone have none where `O` is not among them."""
    for form, pattern in FORMS.items():
        if (form != BARE or OUTSIDE in labels and not typed) and all(
            label == OUTSIDE or re.fullmatch(pattern, label) for label in labels
        ):
            return form
    return None


def _mark(label: str, form: str) -> str:
    """The mark as the label has it."""
    return label[0] if form.startswith("B") else label[-1]
