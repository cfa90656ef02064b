"""Projects labels of a sentence over word links to its translation.

Each target word belongs to one source word, that of its most probable link (of equal ones, to the first). Then

- a target word has the tag of its source word. A word without a link has none, and training leaves it out;
- a span of source words becomes one run of target words. The run has the words that belong to the span. Between two of
  them it may have words without a link, and at most one (`GAP`) that belongs elsewhere, but to no span. Of several
  runs, the one with the greatest sum of probabilities is taken: a distant word is probably a stray link, and of a split
  span the better part remains. Two spans share a target word only if they share a source word;
- a tag or span to which no target word belongs is lost.
"""

from collections.abc import Sequence
from typing import NamedTuple

from finetuning.data.label_schemes import OUTSIDE, form_of, join_label, to_iob2

Link = tuple[int, int]

GAP = 1  # tuned on half of the answers of XQuAD, English to German, among 0 to 5 and any number


class Span(NamedTuple):
    """Words, or characters, from `begin` to before `end`; both from 0."""

    begin: int
    end: int
    label: str


def project(
    links: Sequence[Link],
    probabilities: Sequence[float],
    labels: Sequence[str],
    length: int,
    are_spans: bool | None = None,
) -> tuple[list[str | None], list[Span]]:
    """Projects labels of words over links to the words of a translation.

    Args:
        links: (source word, target word), both from 0.
        probabilities: one a link.
        labels: one a source word: tags such as `NOUN`, or spans in IOB1, IOB2, IOBES, BILOU or BMES.
        length: number of target words.
        are_spans: whether the labels mark spans; by default, the labels decide, which may be too few for that.

    Returns the label of each target word, spans in IOB2 and None for a word without a tag; and the labels that were
    lost, each with its source words, from `begin` to before `end`.

    Raises ValueError for labels that mark no spans among others that do, or with `are_spans`; for a link of a word that
    does not exist; and for another number of probabilities than of links.

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
    form = None if are_spans is False else form_of(labels, are_spans=bool(are_spans))
    if form is None:
        return project_tags(links, probabilities, labels, length)
    return label_spans(links, probabilities, spans_of(to_iob2(labels, form)), length)


def project_tags(
    links: Sequence[Link], probabilities: Sequence[float], tags: Sequence[str], length: int
) -> tuple[list[str | None], list[Span]]:
    """Returns the tag of each of `length` target words, None without one, and the tags that were lost."""
    owners = _owners(links, probabilities)
    projected: list[str | None] = [None] * length
    for target, (source, _) in owners.items():
        projected[target] = tags[source]
    linked = {source for source, _ in owners.values()}
    lost = [Span(word, word + 1, tag) for word, tag in enumerate(tags) if word not in linked]
    return projected, lost


def label_spans(
    links: Sequence[Link], probabilities: Sequence[float], spans: Sequence[Span], length: int
) -> tuple[list[str | None], list[Span]]:
    """Returns the spans of source words as IOB2 labels of `length` target words, and the spans that were lost."""
    projected: list[str | None] = [OUTSIDE] * length
    lost = []
    for span, target in zip(spans, project_spans(links, probabilities, spans), strict=True):
        if target is None:
            lost.append(span)
            continue
        projected[target.begin] = join_label("B", span.label)
        for word in range(target.begin + 1, target.end):
            projected[word] = join_label("I", span.label)
    return projected, lost


def project_spans(links: Sequence[Link], probabilities: Sequence[float], spans: Sequence[Span]) -> list[Span | None]:
    """Returns the position of each span of source words among the target words; None if it is lost."""
    owners = _owners(links, probabilities)
    in_spans = {word for span in spans for word in range(span.begin, span.end)}
    targets: list[Span | None] = []
    for span in spans:
        runs: list[list[int]] = []
        between: list[int] = []  # source words of the target words since the last one of this span
        for word in sorted(owners):
            source = owners[word][0]
            if not span.begin <= source < span.end:
                between.append(source)
                continue
            if runs and len(between) <= GAP and in_spans.isdisjoint(between):
                runs[-1].append(word)
            else:
                runs.append([word])
            between = []
        best = max(runs, key=lambda run: sum(owners[word][1] for word in run), default=None)
        targets.append(Span(best[0], best[-1] + 1, span.label) if best else None)
    return targets


def spans_of(labels: Sequence[str]) -> list[Span]:
    """The spans that IOB2 labels mark."""
    spans: list[Span] = []
    for word, label in enumerate(labels):
        if label[0] == "B":
            spans.append(Span(word, word + 1, label[2:]))
        elif label != OUTSIDE:
            spans[-1] = spans[-1]._replace(end=word + 1)
    return spans


def _owners(links: Sequence[Link], probabilities: Sequence[float]) -> dict[int, tuple[int, float]]:
    """The source word of each linked target word, and the probability of that link."""
    owners: dict[int, tuple[int, float]] = {}
    for (source, target), probability in zip(links, probabilities, strict=True):
        if target not in owners or probability > owners[target][1]:
            owners[target] = source, probability
    return owners
