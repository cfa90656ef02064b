"""Projects labels of a sentence over word links to its translation.

Each target word belongs to one source word, that of its most probable link (of equal ones, to the first). Then

- a target word has the tag of its source word. A word without a link has none, and training leaves it out;
- a span of source words becomes one run of target words. The run has the words that belong to the span. Between two of
  them it may have words without a link, and at most one (`GAP`) that belongs elsewhere, but to no span. Of several
  runs, the one with the greatest sum of probabilities is taken: a distant word is probably a stray link, and of a split
  span the better part remains. Two spans share a target word only if they share a source word;
- a run with a bracket or a quotation mark whose partner is outside of it is cut there, and its more probable part is
  taken: `Parliament ) to` becomes `Parliament`. A mark that is part of a word, as in `Parliament)`, stays with it;
- a tag or span to which no target word belongs is lost.
"""

from collections.abc import Sequence
from typing import NamedTuple

from crosslingual_zoo.finetuning.data.label_schemes import OUTSIDE, form_of, join_label, to_iob2

Link = tuple[int, int]

GAP = 1  # tuned on half of the answers of XQuAD, English to German, among 0 to 5 and any number
OPENING = dict(zip(")]}）］｝】〕」』》〉", "([{（［｛【〔「『《〈", strict=True))  # of each closing bracket
# Marks that open a quotation in one language close it in another, so those of a kind open and close in turn. Single
# marks are left out: most of them are apostrophes.
QUOTES = {'"': '"', "＂": '"', "„": "“", "“": "“", "”": "“", "«": "«", "»": "«", "‹": "‹", "›": "‹"}
KINDS = QUOTES | OPENING | {bracket: bracket for bracket in OPENING.values()}


class Span(NamedTuple):
    """Words, or characters, from `begin` to before `end`; both from 0."""

    begin: int
    end: int
    label: str


class Mark(NamedTuple):
    """A bracket or a quotation mark in a sentence: its word, from 0, and that of its partner, None without one.

    is_alone: the word has no letter or digit. opens: whether it opens what is in brackets or quotes, or closes it.
    """

    word: int
    partner: int | None
    is_alone: bool
    opens: bool


class Owner(NamedTuple):
    """The source word that a target word belongs to, and the probability of their link."""

    source: int
    probability: float


def project(
    links: Sequence[Link],
    probabilities: Sequence[float],
    labels: Sequence[str],
    length: int,
    are_spans: bool | None = None,
    words: Sequence[str] = (),
) -> tuple[list[str | None], list[Span]]:
    """Projects labels of words over links to the words of a translation.

    Args:
        links: (source word, target word), both from 0.
        probabilities: one a link.
        labels: one a source word: tags such as `NOUN`, or spans in IOB1, IOB2, IOBES, BILOU or BMES.
        length: number of target words.
        are_spans: whether the labels mark spans; by default, the labels decide, which may be too few for that.
        words: the target words; without them, spans may run over brackets and quotation marks.

    Returns the label of each target word, spans in IOB2 and None for a word without a tag; and the labels that were
    lost, each with its source words, from `begin` to before `end`.

    Raises ValueError for labels that mark no spans among others that do, or with `are_spans`; for a link of a word that
    does not exist; for another number of probabilities than of links, and for another number of words than `length`.

    Example:
        >>> project([(0, 1), (1, 2), (2, 0)], [0.9, 0.8, 0.7], ["B-PER", "I-PER", "O"], 4)
        (['O', 'B-PER', 'I-PER', 'O'], [])
        >>> project([(1, 2), (2, 0)], [0.8, 0.7], ["PROPN", "PROPN", "VERB"], 4)
        (['VERB', None, 'PROPN', None], [Span(begin=0, end=1, label='PROPN')])

    Source: this zoo (finetuning/align_words.md, "Project labels").
    """
    for source, target in links:
        if not (0 <= source < len(labels) and 0 <= target < length):
            raise ValueError(f"link {source}-{target}: there are {len(labels)} labels and {length} words, from 0.")
    if words and len(words) != length:
        raise ValueError(f"length is {length}, and there are {len(words)} words.")
    form = None
    if are_spans is not False:
        form = form_of(labels, are_spans=bool(are_spans))
    if form is None:
        return project_tags(links, probabilities, labels, length)
    spans = spans_of(to_iob2(labels, form))
    return label_spans(links, probabilities, spans, length, words)


def project_tags(
    links: Sequence[Link], probabilities: Sequence[float], tags: Sequence[str], length: int
) -> tuple[list[str | None], list[Span]]:
    """Returns the tag of each of `length` target words, None without one, and the tags that were lost."""
    owners = _owners(links, probabilities)
    projected: list[str | None] = [None] * length
    for target, owner in owners.items():
        projected[target] = tags[owner.source]
    linked = {owner.source for owner in owners.values()}
    lost = [Span(word, word + 1, tag) for word, tag in enumerate(tags) if word not in linked]
    return projected, lost


def label_spans(
    links: Sequence[Link],
    probabilities: Sequence[float],
    spans: Sequence[Span],
    length: int,
    words: Sequence[str] = (),
) -> tuple[list[str | None], list[Span]]:
    """Returns the spans of source words as IOB2 labels of `length` target words, and the spans that were lost."""
    projected: list[str | None] = [OUTSIDE] * length
    lost = []
    for span, target in zip(spans, project_spans(links, probabilities, spans, words), strict=True):
        if target is None:
            lost.append(span)
            continue
        projected[target.begin] = join_label("B", span.label)
        for word in range(target.begin + 1, target.end):
            projected[word] = join_label("I", span.label)
    return projected, lost


def project_spans(
    links: Sequence[Link], probabilities: Sequence[float], spans: Sequence[Span], words: Sequence[str] = ()
) -> list[Span | None]:
    """Returns the position of each span of source words among the target words; None if it is lost."""
    owners = _owners(links, probabilities)
    marks = find_marks(words)
    in_spans = {word for span in spans for word in range(span.begin, span.end)}
    targets: list[Span | None] = []
    for span in spans:
        runs = _runs_of(span, owners, in_spans)
        if not runs:
            targets.append(None)
            continue
        run = _cut_at_marks(_most_probable(runs, owners), marks, owners)
        targets.append(Span(run[0], run[-1] + 1, span.label))
    return targets


def _runs_of(span: Span, owners: dict[int, Owner], in_spans: set[int]) -> list[list[int]]:
    """Returns the runs of target words of a span; in_spans: the source words of all spans."""
    runs: list[list[int]] = []
    between: list[int] = []  # source words of the target words since the last one of this span
    for word in sorted(owners):
        source = owners[word].source
        if not span.begin <= source < span.end:
            between.append(source)
            continue
        if runs and len(between) <= GAP and in_spans.isdisjoint(between):
            runs[-1].append(word)
        else:
            runs.append([word])
        between = []
    return runs


def find_marks(words: Sequence[str]) -> list[Mark]:
    """Returns the brackets and quotation marks of a sentence, each with its partner."""
    marks: list[Mark] = []
    opened: list[tuple[str, int]] = []  # those without a partner so far: kind, and number among the marks
    for number, word in enumerate(words):
        is_alone = not any(map(str.isalnum, word))
        text = word.replace("``", "“").replace("''", "”")  # of the Penn Treebank
        for offset, character in enumerate(text):
            kind = KINDS.get(character)
            if kind is None:
                continue
            depths = [depth for depth, (opened_kind, _) in enumerate(opened) if opened_kind == kind]
            if depths and character not in OPENING.values():
                _, partner = opened[depths[-1]]
                del opened[depths[-1] :]
                marks[partner] = marks[partner]._replace(partner=number, opens=True)
                marks.append(Mark(number, marks[partner].word, is_alone, opens=False))
                continue
            if character not in OPENING:
                opened.append((kind, len(marks)))
            begins_word = not any(map(str.isalnum, text[:offset]))
            opens = character in OPENING.values() or (character in QUOTES and begins_word)
            marks.append(Mark(number, None, is_alone, opens))
    return marks


def _cut_at_marks(run: list[int], marks: list[Mark], owners: dict[int, Owner]) -> list[int]:
    """Returns the most probable part of a run without a mark whose partner is outside of it.

    A run of nothing else than such a mark is returned as it is.
    """
    for mark in marks:
        has_partner = mark.partner is not None and run[0] <= mark.partner <= run[-1]
        if has_partner or not run[0] <= mark.word <= run[-1]:
            continue
        before = [word for word in run if word < mark.word]
        behind = [word for word in run if word > mark.word]
        if mark.word in run and not mark.is_alone:
            if mark.opens:
                behind.insert(0, mark.word)
            else:
                before.append(mark.word)
        parts = [part for part in (before, behind) if part]
        if parts and run not in parts:
            # other marks may have their partner in the other part
            return _cut_at_marks(_most_probable(parts, owners), marks, owners)
    return run


def _most_probable(runs: list[list[int]], owners: dict[int, Owner]) -> list[int]:
    return max(runs, key=lambda run: sum(owners[word].probability for word in run))


def spans_of(labels: Sequence[str]) -> list[Span]:
    """The spans that IOB2 labels mark."""
    spans: list[Span] = []
    for word, label in enumerate(labels):
        if label[0] == "B":
            spans.append(Span(word, word + 1, label[2:]))
        elif label != OUTSIDE:
            spans[-1] = spans[-1]._replace(end=word + 1)
    return spans


def _owners(links: Sequence[Link], probabilities: Sequence[float]) -> dict[int, Owner]:
    """The owner of each linked target word."""
    owners: dict[int, Owner] = {}
    for (source, target), probability in zip(links, probabilities, strict=True):
        if target not in owners or probability > owners[target].probability:
            owners[target] = Owner(source, probability)
    return owners
