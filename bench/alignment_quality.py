"""Word links against links made by hand, ours and the peers': `python -m bench.alignment_quality --model ENCODER ...`.

  python -m bench.alignment_quality --model intfloat/multilingual-e5-small --gold_set de-en test.de test.en alignv2.txt

Each way to align is a process of its own, on one thread, from the files to the links. The table has AER (alignment
error rate), precision, recall, expected calibration error of the links, processor seconds and peak memory. Start and
loading are included. Ours are `word-align` commands. simalign is its SentenceAligner with its defaults (layer 8,
subwords). awesome-align's command only reads checkpoints of BERT with a WordPiece tokenizer. Its rule, `softmax`, is
therefore ours here, with the same links (bench.word_alignment). Words are separated by blanks.

Writes bench/results/alignment_quality.json. `--also NAME FOLDER` adds an adapted model to the table.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench._common import make_parser, show, write_results
from finetuning.align.confidence import Confidence
from finetuning.align.gold import Gold, fit_gold, read_gold
from finetuning.align.pairs import PairReader
from finetuning.tasks.word_alignment.layers import score
from modeling.word_alignment import WordAlignment
from zoo_core.command_line import user_errors

NAME = "alignment_quality"
SIMALIGN = {"inter": "a", "itermax": "i", "mwmf": "m"}  # rule -> its letter
OURS = {
    "word-align": ["--probabilities"],
    "word-align, layer 8": ["--layer", "8", "--probabilities"],
    "word-align, threshold 0.7": ["--threshold", "0.7", "--probabilities"],
    "word-align, joint": ["--encoding", "joint", "--probabilities"],
    "ot, layer 8": ["--method", "ot", "--layer", "8"],
    "softmax, layer 8": ["--method", "softmax", "--layer", "8"],
}
COLUMNS = {
    "gold": "gold",
    "way": "way",
    "aer": "AER",
    "precision": "precision",
    "recall": "recall",
    "calibration": "calibration",
    "seconds": "seconds",
    "memory": "MiB",
}
PROGRAM = "import sys; from bench.alignment_quality import run_simalign; run_simalign(*sys.argv[1:])"


class GoldSet(NamedTuple):
    """Sentence pairs, as files and as words, and the links of some of them by their number."""

    name: str
    files: list[str]
    pairs: list[tuple[list[str], list[str]]]
    gold: dict[int, Gold]


def add_gold_sets(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that names them."""
    parser.add_argument(
        "--gold_set",
        nargs="+",
        action="append",
        required=True,
        metavar="PART",
        help="name, and a table with tabs (.tsv: source, target, links), or file of pairs or two files, file of links "
        "and, where it does not show, the number from which it counts (0 or 1); several times for several",
    )


def read_gold_sets(given: list[list[str]]) -> list[GoldSet]:
    """The sets that the flag names. Raises ValueError for other numbers of files, and for files as `fit_gold`."""
    sets = []
    for name, *parts in given:
        base = int(parts.pop()) if parts and parts[-1] in ("0", "1") else None
        parts = parts * 2 if len(parts) == 1 else parts
        if len(parts) not in (2, 3):
            raise ValueError(f"--gold_set {name}: give a name, one or two files of sentences, and the links.")
        *files, links = parts
        pairs = list(PairReader(files, columns=columns_of(files)))
        gold, _ = fit_gold(read_gold(links, base=base), [(len(x), len(y)) for x, y in pairs], links)
        sets.append(GoldSet(name, files, pairs, gold))
    return sets


def columns_of(files: Sequence[str]) -> list[str] | None:
    """The columns with the sentences of a table with links."""
    return ["1", "2"] if files[0].endswith(".tsv") else None


def run_simalign(model: str, rule: str, output: str, *files: str) -> None:
    """Writes simalign's links in Pharaoh's format, pair by pair, as its own command does."""
    from simalign import SentenceAligner

    aligner = SentenceAligner(model, token_type="bpe", matching_methods=SIMALIGN[rule])
    with open(output, "w", encoding="utf-8") as stream:
        for source, target in PairReader(list(files), columns=columns_of(files)):
            links = aligner.get_word_aligns(source, target)[rule] if source and target else []
            print(*(f"{i}-{j}" for i, j in links), file=stream)


def simalign_command(model: str, rule: str, output: str, files: list[str]) -> list[str]:
    """Starts `run_simalign`."""
    return [sys.executable, "-c", PROGRAM, model, rule, output, *files]


def our_command(model: str, options: list[str], output: str, files: list[str]) -> list[str]:
    """Starts `word-align`."""
    start = [sys.executable, "-m", "finetuning.align", *files, "--model", model, "--quiet"]
    start += ["--columns", *columns] if (columns := columns_of(files)) else []
    return [*start, *options, "--precision", "fp32", "--device", "cpu", "--output", output]


def measure(command: Callable[..., list[str]], files: list[str], gold: dict[int, Gold]) -> dict[str, Any]:
    """Scores in percent, seconds of the processor and MiB of a command that writes links."""
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "links")
        process = subprocess.Popen(command(output, files), env=os.environ | {"OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(process.pid, 0)  # what only this process took
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise ValueError(f"{' '.join(command(output, files))} failed.")
        lines = Path(output).read_text(encoding="utf-8").split("\n")
    found = [[link.partition(":") for link in line.split()] for line in lines]
    links = [[tuple(map(int, link.split("-"))) for link, _, _ in of] for of in found]
    scores = score({sentence: links[sentence] for sentence in gold}, gold)
    confidence = Confidence()
    for sentence, of_sentence in gold.items():
        probabilities = [float(probability) for _, _, probability in found[sentence] if probability]
        if probabilities:
            confidence.add(WordAlignment([], [], links[sentence], probabilities), of_sentence)
    calibration = {"calibration": confidence.error()} if confidence.candidates else {}
    return scores | calibration | {"seconds": usage.ru_utime + usage.ru_stime, "memory": usage.ru_maxrss / 1024}


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """What to align, and with which models."""
    parser = make_parser(__doc__, NAME, {})
    parser.add_argument("--model", required=True, metavar="DIR|ID", help="encoder")
    parser.add_argument(
        "--also",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "DIR|ID"),
        help="another encoder, with our default method",
    )
    add_gold_sets(parser)
    names = [*OURS, *(f"simalign {rule}" for rule in SIMALIGN)]
    parser.add_argument(
        "--ways", nargs="+", choices=names, default=names, help="what to measure with --model (default: all)"
    )
    flags = parser.parse_args(argv)
    return flags


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        ways = {name: partial(our_command, flags.model, options) for name, options in OURS.items()}
        ways |= {f"simalign {rule}": partial(simalign_command, flags.model, rule) for rule in SIMALIGN}
        ways = {way: ways[way] for way in flags.ways}
        ways |= {f"word-align, {name}": partial(our_command, model, OURS["word-align"]) for name, model in flags.also}
        rows = []
        for of in read_gold_sets(flags.gold_set):
            for way, command in ways.items():
                rows.append({"gold": of.name, "way": way, **measure(command, of.files, of.gold)})
                print(f"{of.name}: {way}, AER {rows[-1]['aer']:.1f}", file=sys.stderr)
        means = [
            {"gold": "mean", "way": way}
            | {
                key: sum(row[key] for row in rows if row["way"] == way) / len(flags.gold_set)
                for key in ("aer", "precision", "recall", "calibration", "seconds", "memory")
                if all(key in row for row in rows if row["way"] == way)
            }
            for way in ways
        ]
        show("Word links against links made by hand, one thread", COLUMNS, rows + means)
        write_results(flags, NAME, argv, {"rows": rows + means})


if __name__ == "__main__":
    main()
