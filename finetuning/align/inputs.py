"""The pairs that the options name, and the gold links that fit them."""

import argparse
import sys

from finetuning.align.gold import Gold, describe_left_out, describe_order, fit_gold, read_gold
from finetuning.align.pairs import PairReader, split_at_spaces
from finetuning.align.xml_pairs import ROOTS


def read_pairs(flags: argparse.Namespace) -> PairReader:
    """The input. Raises ValueError for what `PairReader` refuses, and for keys and languages that would do nothing."""
    keys = {"keys": tuple(flags.keys)} if flags.keys else {}
    reader = PairReader(flags.files, flags.format, languages=flags.languages and tuple(flags.languages), **keys)
    if flags.keys and reader.format != "jsonl":
        raise ValueError(f"--keys is given with {reader.format} input ({reader.name}): only JSONL has keys.")
    to_tmx = flags.output_format == "tmx"
    if flags.languages and reader.format != "tmx" and not to_tmx:
        raise ValueError(f"--languages is given with {reader.format} input ({reader.name}): it is for TMX.")
    if to_tmx and not flags.languages and reader.format not in ROOTS:
        raise ValueError("--output-format tmx is given without --languages: TMX names them. Add --languages DE EN.")
    return reader


def read_with_gold(
    flags: argparse.Namespace, reader: PairReader
) -> tuple[list[tuple[list[str], list[str]]], dict[int, Gold]]:
    """All pairs, as words between white space, and the gold links that fit them; what does not fit is said.

    Gold links count words: a Chinese sentence that is one word in them is not to become characters.
    """
    links = read_gold(flags.gold, base=flags.gold_base)
    pairs = [split_at_spaces(pair) for pair in reader]
    gold, left_out = fit_gold(links, [(len(source), len(target)) for source, target in pairs], flags.gold)
    for said in (describe_order(links, gold, flags.gold), describe_left_out(left_out, flags.gold)):
        if said:
            print(said, file=sys.stderr)
    if len(gold) < len(pairs):
        of = f"{len(gold):,} of the {len(pairs):,} sentences"
        print(f"{flags.gold} has links for {of}; only they are scored.", file=sys.stderr)
    return pairs, gold
