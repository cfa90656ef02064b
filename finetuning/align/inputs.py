"""The pairs that the options name, and the gold links that fit them."""

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

from finetuning.align.gold import Gold, describe_left_out, describe_order, fit_gold, read_gold
from finetuning.align.pairs import STDIN, PairReader, Side, split_at_blanks
from finetuning.align.screen import count_of
from finetuning.align.xml_pairs import ROOTS


class GivenPair:
    """Two sentences on the command line, to be read as `PairReader` reads files."""

    files: list[str] = []
    format = "text"
    name = "two sentences"
    unspaced = 0  # the words are seen

    def __init__(self, sentences: tuple[str, str], languages: tuple[str, str] | None, split: bool | None):
        self.sentences, self.languages = sentences, languages
        self.splits_text = split is not False

    def check(self) -> int:
        return 1

    def __iter__(self) -> Iterator[tuple[Side, Side]]:
        yield self.sentences if self.splits_text else split_at_blanks(self.sentences)


def as_sentences(arguments: list[str]) -> tuple[str, str] | None:
    """Two arguments as a pair of sentences: neither is there as a file, and one has white space; None otherwise."""
    if len(arguments) != 2 or any(name == STDIN or os.path.exists(name) for name in arguments):
        return None
    if not any(map(str.isspace, "".join(arguments))):
        return None
    return arguments[0], arguments[1]


def read_pairs(flags: argparse.Namespace) -> PairReader | GivenPair:
    """The input. Raises ValueError for what `PairReader` refuses, and for options that would do nothing."""
    languages = flags.languages and tuple(flags.languages)
    # gold links count words that the output does not show: those between blanks, wherever the text comes from
    split = flags.split or (False if flags.pre_split or flags.gold else None)
    if flags.sentences:
        if flags.format not in ("auto", "text"):
            raise ValueError(f"--format is {flags.format}, and the input is two sentences. Leave it out.")
        if flags.columns:
            raise ValueError("--columns is given, and the input is two sentences. Leave it out.")
        reader = GivenPair(flags.sentences, languages, split)
    else:
        reader = PairReader(flags.files, flags.format, flags.columns, languages, split)
    to_tmx = flags.output_format == "tmx"
    if flags.languages and reader.format not in ROOTS and not to_tmx:
        raise ValueError(
            f"--languages is given with {reader.format} input ({reader.name}): it is for TMX and XLIFF. Leave it out."
        )
    if to_tmx and not flags.languages and reader.format not in ROOTS:
        raise ValueError(
            "--output-format tmx is given without --languages: TMX names them. Add --languages SOURCE TARGET."
        )
    return reader


def report_unspaced(flags: argparse.Namespace, reader: PairReader | GivenPair, total: int, screen: Any) -> None:
    """Says how many of the pairs that were read have a side that is written without blanks, and what to do."""
    if reader.unspaced and not flags.pre_split:
        screen.print(
            f"{reader.unspaced:,} of {count_of(total, 'pair')}: no blanks between the words of a side (Chinese, "
            "Japanese, Thai, ...), and each run of characters counts as one word. --split splits running text."
        )


def read_with_gold(
    flags: argparse.Namespace, reader: PairReader | GivenPair
) -> tuple[list[tuple[Side, Side]], dict[int, Gold]]:
    """All pairs, and the gold links that fit their words; what does not fit is said."""
    from modeling.word_tokens import split_words

    links = read_gold(flags.gold, base=flags.gold_base)
    pairs = list(reader)
    words, _ = split_words(list(chain.from_iterable(pairs)))
    lengths = [len(of_side) for of_side in words]
    gold, left_out = fit_gold(links, list(zip(lengths[::2], lengths[1::2], strict=True)), flags.gold)
    for said in (describe_order(links, gold, flags.gold), describe_left_out(left_out, flags.gold)):
        if said:
            print(said, file=sys.stderr)
    if len(gold) < len(pairs):
        of = f"{len(gold):,} of the {len(pairs):,} sentences"
        print(f"{flags.gold} has links for {of}; only they are scored.", file=sys.stderr)
    return pairs, gold
