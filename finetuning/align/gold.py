"""Gold links: word alignments made by hand.

They come in two formats. The first line that is not empty shows which:

    alignv2   0006 2 3 S     sentence, source word, target word, S(ure) or P(ossible), as in the shared task of Mihalcea
                             and Pedersen (2003), "An Evaluation Exercise for Word Alignment"; words count from 1,
                             sentences from 1 or from 0, or in order (`fit_gold`); one without links does not occur
    pharaoh   0-0 1p2 2-1    one line a sentence: `i-j` sure, `ipj` possible; words count from 0 or from 1. It may be
                             the last column of a table, behind a tab, as in XL-WA

Everything in memory counts from 0: sentences by their line in the input, links as (source word, target word).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crosslingual_zoo.zoo_core.tables import read_lines

PHARAOH_LINK = re.compile(r"(\d+)([-p])(\d+)")
FOUND_LINK = re.compile(r"(\d+)-(\d+)(?::[\d.]+(?:[eE][-+]?\d+)?)?")
ALIGNV2_LINE = re.compile(r"(\d+)\s+(-?\d+)\s+(-?\d+)(?:\s+([SP]))?(?:\s+[\d.]+)?", re.IGNORECASE)

# A gold file has slips of the pen (Vilar et al.'s German-English one: 1 link in 10,534). Of three public files, 14-23%
# of the links point past a sentence's end where source and target are exchanged, 29-35% against the lines of other
# sentences, 3-5% where the base is wrong. A few slips in a short file are no evidence; most links are.
MAX_SLIPS = 0.02
LISTED = 10  # links named in a message


@dataclass
class Gold:
    """Hand-made links of one sentence, (source word, target word) from 0. `possible` contains `sure`."""

    sure: set[tuple[int, int]] = field(default_factory=set)
    possible: set[tuple[int, int]] = field(default_factory=set)


class GoldLinks(dict[int, Gold]):
    """{sentence from 0: its links}. `lines`: sentences of the file where it has a line for each, links or none.

    `may_count_from_0`: the sentences were read as counting from 1, and the file does not show that they do.
    """

    def __init__(self, links: dict[int, Gold], lines: int | None = None, may_count_from_0: bool = False):
        super().__init__(links)
        self.lines = lines
        self.may_count_from_0 = may_count_from_0


def read_gold(path: str | Path, format: str = "auto", base: int | None = None) -> GoldLinks:
    """Reads gold links: {sentence from 0: links}; numbers of sentences are the file's. `fit_gold` checks them.

    format: "alignv2", "pharaoh" or "auto". base: the first number in the file, 0 or 1: of words in pharaoh, of
    sentences in alignv2 (whose words count from 1). By default it is inferred: only a file that counts from 0 can have
    a 0. alignv2 without a sentence 0 is read as counting from 1, and `fit_gold` decides.

    pharaoh gives an entry for every line, alignv2 for the sentences that occur. Links that can fit no sentence
    (alignv2 writes a word without a partner as a link to word 0) are kept: `fit_gold` leaves them out.
    """
    lines = _column_of_links(list(read_lines(path)))
    if not any(line.strip() for line in lines):
        raise ValueError(f"{path} holds no links. Check the path.")
    form = _detect(lines, path) if format == "auto" else format
    if form == "pharaoh":
        return _read_pharaoh(lines, path, base)
    return _read_alignv2(lines, path, base)


def fit_gold(
    gold: dict[int, Gold], lengths: Sequence[tuple[int, int]], name: str | Path = "the gold file"
) -> tuple[dict[int, Gold], list[str]]:
    """Matches gold links with the sentences of the input.

    lengths: (source words, target words) of each sentence of the input, in order. If the numbers of gold sentences
    exceed the input, as for a part of a larger text, they are matched in their order, provided that the input has as
    many.

    Returns the links that fit, by the sentence's number in the input, and descriptions of the links that were left out
    because they point past a sentence's words ("sentence 179: (22, 31), of 22 and 30 words"; numbers from 1).

    Raises ValueError for links of another text, and where sentences may count from 0 or from 1: no number and no
    link's place shows which.
    """
    lines = getattr(gold, "lines", None)
    if lines is not None and lines != len(lengths):
        raise ValueError(f"{name} has {lines:,} lines, the input {len(lengths):,} sentences: they are not of one text.")
    if getattr(gold, "may_count_from_0", False) and max(gold) + 1 < len(lengths):
        gold = _with_base(gold, lengths, name)
    if max(gold, default=0) >= len(lengths):
        if len(gold) != len(lengths):
            raise ValueError(
                f"{name} has links for {len(gold):,} sentences, up to number {max(gold) + 1:,}; the input "
                f"has {len(lengths):,}: they are not of one text."
            )
        in_order = [gold[sentence] for sentence in sorted(gold)]
        gold = dict(enumerate(in_order))
    fitting, left_out = _split_at_ends(gold, lengths)
    total = _count_links(gold)
    if _are_too_many(len(left_out), total):
        examples = "; ".join(left_out[:3])
        raise ValueError(
            f"{len(left_out):,} of the {total:,} links of {name} point past the words of their sentence "
            f"({examples}; numbers from 1): check the files' order, words and base."
        )
    return fitting, left_out


def _with_base(gold: dict[int, Gold], lengths: Sequence[tuple[int, int]], name: str | Path) -> dict[int, Gold]:
    """The links read as counting from 1, or their sentences moved by one, if they count from 0: those that fit."""
    from_0 = {sentence + 1: links for sentence, links in gold.items()}
    total = _count_links(gold)
    fitting = []
    for links in (gold, from_0):
        _, left_out = _split_at_ends(links, lengths)
        if not _are_too_many(len(left_out), total):
            fitting.append(links)
    if len(fitting) == 2:
        raise ValueError(
            f"{name} has no link of a sentence 0 or {len(lengths):,}: say whether its sentences count from 0 or from 1 "
            "by `--gold-base 0` or `--gold-base 1` (`gold_base` in a recipe)."
        )
    return fitting[0] if fitting else gold


def _split_at_ends(gold: dict[int, Gold], lengths: Sequence[tuple[int, int]]) -> tuple[dict[int, Gold], list[str]]:
    """Returns the links inside of their sentences, and descriptions of the others."""
    fitting: dict[int, Gold] = {}
    left_out: list[str] = []
    for sentence, links in gold.items():
        source_words, target_words = lengths[sentence]
        inside = set()
        for i, j in sorted(links.possible):
            if 0 <= i < source_words and 0 <= j < target_words:
                inside.add((i, j))
                continue
            ends = f"of {source_words} and {target_words} words"
            left_out.append(f"sentence {sentence + 1}: ({i + 1}, {j + 1}), {ends}")
        fitting[sentence] = Gold(links.sure & inside, inside)
    return fitting, left_out


def _count_links(gold: dict[int, Gold]) -> int:
    return sum(len(links.possible) for links in gold.values())


def _are_too_many(left_out: int, total: int) -> bool:
    """Whether so many links past the ends of their sentences show that the links are of other sentences."""
    most = max(LISTED, MAX_SLIPS * total)
    return left_out > total / 2 or left_out > most


def read_found(path: str | Path, lengths: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Reads an aligner's links of sentences of these lengths (see `fit_gold`), which must fit them, a line for each:
    `0-0 1-2`, also with probabilities, `0-0:0.9 1-2:0.5`."""
    lines = list(read_lines(path))
    if len(lines) != len(lengths):
        raise ValueError(f"{path} has {len(lines):,} lines, the input {len(lengths):,}: they are not of one text.")
    links_by_sentence = []
    for number, line in enumerate(lines):
        source_words, target_words = lengths[number]
        links = []
        for item in line.split():
            match = FOUND_LINK.fullmatch(item)
            if not match or int(match[1]) >= source_words or int(match[2]) >= target_words:
                raise ValueError(
                    f"{path}, line {number + 1}: {item[:60]!r} is no link `i-j` or `i-j:0.9` of {source_words} and "
                    f"{target_words} words, from 0."
                )
            links.append((int(match[1]), int(match[2])))
        links_by_sentence.append(links)
    return links_by_sentence


def describe_fit(read: dict[int, Gold], fitting: dict[int, Gold], left_out: list[str], name: str | Path) -> list[str]:
    """What `fit_gold` did to the links that `read_gold` returned, one fact a line: other numbers, links left out."""
    lines = []
    if fitting.keys() == {sentence + 1 for sentence in read}:
        lines.append(f"{name}: its sentences count from 0: so read, the links fit their words")
    elif read.keys() != fitting.keys():
        highest = max(read) + 1
        lines.append(f"{name}: its {len(read):,} sentences, up to number {highest:,}, were matched in their order")
    if left_out:
        listed = "; ".join(left_out[:LISTED])
        if len(left_out) > LISTED:
            listed += "; ..."
        lines.append(
            f"{name}: {len(left_out):,} links point past the words of their sentence, numbers from 1: {listed}"
        )
    return lines


def _column_of_links(lines: list[str]) -> list[str]:
    """The last column of a table that has links in it, but not in its first column; otherwise the lines."""
    last_columns = [line.rpartition("\t")[2] for line in lines]
    for line, links in zip(lines, last_columns, strict=True):
        if links.strip():
            others, tab, _ = line.rpartition("\t")
            if tab and _are_links(links) and not _are_links(others):
                return last_columns
            return lines
    return lines


def _are_links(text: str) -> bool:
    return all(map(PHARAOH_LINK.fullmatch, text.split()))


def _detect(lines: list[str], path: str | Path) -> str:
    first = next(line.strip() for line in lines if line.strip())
    if ALIGNV2_LINE.fullmatch(first):
        return "alignv2"
    if PHARAOH_LINK.fullmatch(first.split()[0]):
        return "pharaoh"
    raise ValueError(
        f"{path} is in no known format of gold links: its first line is {first[:60]!r}. Write `sentence i j S|P`, or "
        "`i-j` for each link, alone or in the last column of a table."
    )


def _read_pharaoh(lines: list[str], path: str | Path, base: int | None) -> GoldLinks:
    gold: dict[int, Gold] = {}
    for sentence, line in enumerate(lines):
        links = Gold()
        gold[sentence] = links
        for item in line.split():
            match = PHARAOH_LINK.fullmatch(item)
            if not match:
                raise ValueError(f"{path}, line {sentence + 1}: {item[:60]!r} is no link `i-j` or `ipj`.")
            link = int(match[1]), int(match[3])
            links.possible.add(link)
            if match[2] == "-":
                links.sure.add(link)
    lowest = min(min(link) for links in gold.values() for link in links.possible)
    if base is None and lowest != 0:
        raise ValueError(
            f"{path} has no link with a word 0: say whether its words count from 0 or from 1 by `--gold-base 0` or "
            "`--gold-base 1` (`gold_base` in a recipe)."
        )
    if base == 1:
        if lowest == 0:
            raise ValueError(f"{path} has a word 0, so its words do not count from 1.")
        for links in gold.values():
            links.sure = {(i - 1, j - 1) for i, j in links.sure}
            links.possible = {(i - 1, j - 1) for i, j in links.possible}
    return GoldLinks(gold, lines=len(lines))


def _read_alignv2(lines: list[str], path: str | Path, base: int | None) -> GoldLinks:
    gold: dict[int, Gold] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line:
            continue
        match = ALIGNV2_LINE.fullmatch(line)
        if not match:
            raise ValueError(f"{path}, line {number}: {line[:60]!r} is not `sentence i j S|P`.")
        links = gold.setdefault(int(match[1]), Gold())
        link = int(match[2]) - 1, int(match[3]) - 1
        links.possible.add(link)
        if match[4] is None or match[4].upper() == "S":
            links.sure.add(link)
    has_0 = 0 in gold
    if base == 1 and has_0:
        raise ValueError(f"{path} has a sentence 0: its sentences do not count from 1.")
    may_count_from_0 = base is None and not has_0
    if base is None:
        base = 0 if has_0 else 1
    by_sentence = {sentence - base: links for sentence, links in sorted(gold.items())}
    return GoldLinks(by_sentence, may_count_from_0=may_count_from_0)
