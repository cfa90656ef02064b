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
        labels: one a source word: tags such as `NOUN`, or spans in IOB2 or another scheme.
        length: number of target words.
        are_spans: whether the labels mark spans; by default the labels say so themselves.

    Returns the label of each target word, spans in IOB2 and None for a word without a tag; and the labels that were
    lost, each with its source words, from `begin` to before `end`.

    Raises ValueError for labels of a scheme for spans that cannot be read, a link of a word that does not exist, and
    another number of probabilities than of links.

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
    form = form_of(labels) if are_spans is None else None
    labels = to_iob2(labels, form) if form else labels
    if form or are_spans:
        spans = spans_of(labels)
        found = project_spans(links, probabilities, spans)
        projected: list[str | None] = [OUTSIDE] * length
        for begin, end, label in filter(None, found):
            projected[begin:end] = [join_label("B", label), *[join_label("I", label)] * (end - begin - 1)]
        return projected, [span for span, target in zip(spans, found, strict=True) if target is None]
    owners = {target: source for target, (source, _) in _owners(links, probabilities).items()}
    lost = [Span(word, word + 1, label) for word, label in enumerate(labels) if word not in owners.values()]
    return [labels[owners[word]] if word in owners else None for word in range(length)], lost


def project_spans(links: Sequence[Link], probabilities: Sequence[float], spans: Sequence[Span]) -> list[Span | None]:
    """Returns the position of each span of source words among the target words; None if it is lost."""
    owners = _owners(links, probabilities)
    in_spans = {word for span in spans for word in range(span.begin, span.end)}
    found: list[Span | None] = []
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
        found.append(Span(best[0], best[-1] + 1, span.label) if best else None)
    return found


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
