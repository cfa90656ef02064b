"""Word links against links made by hand, ours and the peers': `python -m bench.alignment_quality --model ENCODER ...`.

  python -m bench.alignment_quality --model intfloat/multilingual-e5-small --gold_set de-en test.de test.en alignv2.txt

Each way to align is a process of its own, on one thread, from the files to the links: AER, precision, recall, seconds
of the processor and peak memory, start and loading included. Ours are `word-align` commands. simalign is its
SentenceAligner at its defaults (layer 8, subwords). awesome-align's command reads checkpoints of BERT with a WordPiece
tokenizer alone: its rule, `softmax`, is ours here, with the same links (bench.word_alignment). Words are those between
blanks.

Writes bench/results/alignment_quality.json. A model that was adapted stands beside the first by `--also NAME FOLDER`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench._common import make_parser, show, write_results
from finetuning.align.gold import fit_gold, read_gold
from finetuning.align.pairs import PairReader
from finetuning.tasks.word_alignment.layers import score
from zoo_core.command_line import user_errors

NAME = "alignment_quality"
SIMALIGN = {"inter": "a", "itermax": "i", "mwmf": "m"}  # rule -> its letter
OURS = {
    "word-align": [],
    "word-align, layer 8": ["--layer", "8"],
    "word-align, threshold 0.7": ["--threshold", "0.7"],
    "word-align, joint": ["--encoding", "joint"],
    "ot, layer 8": ["--method", "ot", "--layer", "8"],
    "softmax, layer 8": ["--method", "softmax", "--layer", "8"],
}
COLUMNS = {
    "gold": "gold",
    "way": "way",
    "aer": "AER",
    "precision": "precision",
    "recall": "recall",
    "seconds": "seconds",
    "memory": "MiB",
}
PROGRAM = "import sys; from bench.alignment_quality import run_simalign; run_simalign(*sys.argv[1:])"


def run_simalign(model: str, rule: str, output: str, *files: str) -> None:
    """Writes simalign's links in Pharaoh's format, pair by pair, as its own command does."""
    from simalign import SentenceAligner

    aligner = SentenceAligner(model, token_type="bpe", matching_methods=SIMALIGN[rule])
    with open(output, "w", encoding="utf-8") as stream:
        for source, target in PairReader(list(files)):
            links = aligner.get_word_aligns(source, target)[rule] if source and target else []
            print(*(f"{i}-{j}" for i, j in links), file=stream)


def simalign_command(model: str, rule: str, output: str, files: list[str]) -> list[str]:
    """Starts `run_simalign`."""
    return [sys.executable, "-c", PROGRAM, model, rule, output, *files]


def our_command(model: str, options: list[str], output: str, files: list[str]) -> list[str]:
    """Starts `word-align`."""
    start = [sys.executable, "-m", "finetuning.align", *files, "--model", model, "--quiet"]
    return [*start, *options, "--precision", "fp32", "--device", "cpu", "--output", output]


def measure(command: Callable[..., list[str]], files: list[str], gold_file: str, base: int | None) -> dict[str, Any]:
    """Scores in percent, seconds of the processor and MiB of a command that writes links."""
    pairs = [tuple(map(len, pair)) for pair in PairReader(files)]
    gold, _ = fit_gold(read_gold(gold_file, base=base), pairs, gold_file)
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "links")
        process = subprocess.Popen(command(output, files), env=os.environ | {"OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(process.pid, 0)  # what this process alone took
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise ValueError(f"{' '.join(command(output, files))} failed.")
        lines = Path(output).read_text(encoding="utf-8").split("\n")
    links = [[tuple(map(int, link.split("-"))) for link in line.split()] for line in lines]
    scores = score({sentence: links[sentence] for sentence in gold}, gold)
    return scores | {"seconds": usage.ru_utime + usage.ru_stime, "memory": usage.ru_maxrss / 1024}


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """What to align, and by which models."""
    parser = make_parser(__doc__, NAME, {})
    parser.add_argument("--model", required=True, metavar="DIR|ID", help="encoder")
    parser.add_argument(
        "--also", nargs=2, action="append", default=[], metavar=("NAME", "DIR|ID"), help="another one, by our default"
    )
    parser.add_argument(
        "--gold_set",
        nargs="+",
        action="append",
        required=True,
        metavar="PART",
        help="name, file of pairs or two files, file of links and, where it does not show, the number from which it "
        "counts (0 or 1); several times for several",
    )
    names = [*OURS, *(f"simalign {rule}" for rule in SIMALIGN)]
    parser.add_argument("--ways", nargs="+", choices=names, default=names, help="what to measure of --model (all)")
    flags = parser.parse_args(argv)
    for number, (name, *parts) in enumerate(flags.gold_set):
        base = int(parts.pop()) if parts and parts[-1] in ("0", "1") else None
        if len(parts) not in (2, 3):
            raise ValueError(f"--gold_set {name}: give a name, one or two files of sentences, and the links.")
        flags.gold_set[number] = name, parts[:-1], parts[-1], base
    return flags


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        ways = {name: partial(our_command, flags.model, options) for name, options in OURS.items()}
        ways |= {f"simalign {rule}": partial(simalign_command, flags.model, rule) for rule in SIMALIGN}
        ways = {way: ways[way] for way in flags.ways}
        ways |= {f"word-align, {name}": partial(our_command, model, []) for name, model in flags.also}
        rows = []
        for name, *parts in flags.gold_set:
            for way, command in ways.items():
                rows.append({"gold": name, "way": way, **measure(command, *parts)})
                print(f"{name}: {way}, AER {rows[-1]['aer']:.1f}", file=sys.stderr)
        means = [
            {"gold": "mean", "way": way}
            | {
                key: sum(row[key] for row in rows if row["way"] == way) / len(flags.gold_set)
                for key in ("aer", "precision", "recall", "seconds", "memory")
            }
            for way in ways
        ]
        show("Word links against links made by hand, one thread", COLUMNS, rows + means)
        write_results(flags, NAME, argv, {"rows": rows + means})


if __name__ == "__main__":
    main()
