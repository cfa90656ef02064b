"""The word aligner against simalign and a plain batch aligner, as whole commands: `python -m bench.word_alignment`.

Each way to align is a process of its own, on one thread, from the files to the links, start and loading included. The
table has processor seconds and peak memory. Ours are `word-align` commands. simalign is its SentenceAligner with its
defaults (layer 8, subwords). `plain` is what one would write by hand: the sentences of each side sorted by length, in
batches of 64, the encoder up to the default layer, mutual argmax.

Without `--model`, the encoder has random weights, and the pairs are made up, with the lengths of news
(bench/lengths.json). With `--gold_set`, links of `--model` are also compared with links that people made: AER,
precision, recall, expected calibration error.

  python -m bench.word_alignment --model intfloat/multilingual-e5-small --gold_set de-en test.de test.en alignv2.txt

Writes bench/results/word_alignment.json.
"""

import argparse
import importlib.util
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModel, AutoTokenizer, XLMRobertaConfig, XLMRobertaModel

from bench._common import compare_commands, make_parser, run_command, show, write_results
from bench._steps import Size, read_lengths, sample_texts
from finetuning.align.gold import Gold, fit_gold, read_gold
from finetuning.align.pairs import PairReader
from finetuning.align.score import Confidence
from finetuning.tasks.vectors.word_alignment import score
from modeling.layer_states import default_layer
from modeling.word_alignment import WordAlignment
from pretraining.tools.train_tokenizer import train_tokenizer
from zoo_core.command_line import user_errors

NAME = "word_alignment"
PLAIN, PLAIN_BATCH = "plain", 64
SIMALIGN = {"inter": "a", "itermax": "i", "mwmf": "m"}  # rule -> its letter
OURS = {
    "word-align": [],
    "word-align, mutual": ["--method", "mutual"],
    "word-align, probabilities": ["--probabilities"],
    "word-align, layer 8": ["--layer", "8", "--probabilities"],
    "word-align, threshold 0.7": ["--threshold", "0.7", "--probabilities"],
    "ot, layer 8": ["--method", "ot", "--layer", "8"],
    "softmax, layer 8": ["--method", "softmax", "--layer", "8"],
}
FAST = ("word-align", "word-align, mutual", PLAIN, "simalign inter")  # measured without gold links
SPEED = {"pairs": "pairs", "way": "way", "seconds": "seconds", "ratio": f"times as fast as {PLAIN}", "memory": "MiB"}
QUALITY = {
    "gold": "gold",
    "way": "way",
    "aer": "AER",
    "precision": "precision",
    "recall": "recall",
    "calibration": "calibration",
    "seconds": "seconds",
    "memory": "MiB",
}
PROGRAM = "import sys; from bench.word_alignment import run_{}; run_{}(*sys.argv[1:])"


class GoldSet(NamedTuple):
    """Sentence pairs, as files and as words, and the links of some of them by their number."""

    name: str
    files: list[str]
    pairs: list[tuple[list[str], list[str]]]
    gold: dict[int, Gold]


def add_gold_sets(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Adds the flag that names them."""
    parser.add_argument(
        "--gold_set",
        nargs="+",
        action="append",
        default=[],
        required=required,
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


def run_simalign(rule: str, model: str, output: str, *files: str) -> None:
    """Writes simalign's links in Pharaoh's format, pair by pair, as its own command does."""
    from simalign import SentenceAligner

    aligner = SentenceAligner(model, token_type="bpe", matching_methods=SIMALIGN[rule])
    with open(output, "w", encoding="utf-8") as stream:
        for source, target in PairReader(list(files), columns=columns_of(files)):
            links = aligner.get_word_aligns(source, target)[rule] if source and target else []
            print(*(f"{i}-{j}" for i, j in links), file=stream)


def run_plain(model: str, output: str, *files: str) -> None:
    """Writes the links of a plain batch aligner, for encoders whose layers are `encoder.layer` (BERT, XLM-R)."""
    pairs = list(PairReader(list(files), columns=columns_of(files)))
    tokenizer, encoder = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()
    encoder.encoder.layer = encoder.encoder.layer[: default_layer(encoder.config.num_hidden_layers)]

    def encode(sentences: list[list[str]]) -> list[tuple[torch.Tensor, list[int]]]:
        encoded = tokenizer(sentences, is_split_into_words=True, truncation=True, max_length=512)
        inputs, found = encoded["input_ids"], {}
        order = sorted(range(len(inputs)), key=lambda number: len(inputs[number]))
        for begin in range(0, len(order), PLAIN_BATCH):
            batch = order[begin : begin + PLAIN_BATCH]
            padded = tokenizer.pad({"input_ids": [inputs[number] for number in batch]}, return_tensors="pt")
            states_BTH = torch.nn.functional.normalize(encoder(**padded).last_hidden_state, dim=-1)
            for number, states_TH in zip(batch, states_BTH, strict=True):
                words = encoded.word_ids(number)
                kept = [place for place, word in enumerate(words) if word is not None]
                found[number] = states_TH[kept], [words[place] for place in kept]
        return [found[number] for number in range(len(inputs))]

    with torch.inference_mode(), open(output, "w", encoding="utf-8") as stream:
        for (x_SH, sources), (y_TH, targets) in zip(*map(encode, map(list, zip(*pairs, strict=True))), strict=True):
            links: set[tuple[int, int]] = set()
            if sources and targets:
                similarity_ST = x_SH @ y_TH.T
                forward, backward = similarity_ST.argmax(1).tolist(), similarity_ST.argmax(0).tolist()
                links = {(sources[i], targets[j]) for i, j in enumerate(forward) if backward[j] == i}
            print(*(f"{i}-{j}" for i, j in sorted(links)), file=stream)


def command_of(way: str, model: str, output: str, files: list[str]) -> list[str]:
    """The command of a way: ours, simalign's or the plain one."""
    if way in OURS:
        start = [sys.executable, "-m", "finetuning.align", *files, "--model", model, "--quiet", *OURS[way]]
        start += ["--columns", *columns] if (columns := columns_of(files)) else []
        return [*start, "--precision", "fp32", "--device", "cpu", "--output", output]
    name, _, rule = way.partition(" ")
    return [sys.executable, "-c", PROGRAM.format(name, name), *filter(None, [rule]), model, output, *files]


def measure_quality(way: str, model: str, of: GoldSet) -> dict[str, Any]:
    """Scores in percent, seconds of the processor and MiB of a way to align."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "links"
        measured = run_command(command_of(way, model, str(output), of.files))
        lines = output.read_text(encoding="utf-8").split("\n")
    found = [[link.partition(":") for link in line.split()] for line in lines]
    links = [[tuple(map(int, link.split("-"))) for link, _, _ in sentence] for sentence in found]
    scores = score({sentence: links[sentence] for sentence in of.gold}, of.gold)
    confidence = Confidence()
    for sentence, gold in of.gold.items():
        probabilities = [float(probability) for _, _, probability in found[sentence] if probability]
        if probabilities:
            confidence.add(WordAlignment([], [], links[sentence], probabilities), gold)
    calibration = {"calibration": confidence.error()} if confidence.candidates else {}
    return scores | calibration | measured


def compare_quality(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of every gold set and their means, printed as a table."""
    rows = []
    for of in read_gold_sets(flags.gold_set):
        for way in flags.ways:
            rows.append({"gold": of.name, "way": way, **measure_quality(way, flags.model, of)})
            print(f"{of.name}: {way}, AER {rows[-1]['aer']:.1f}", file=sys.stderr)
    for way in flags.ways:
        own = [row for row in rows if row["way"] == way and row["gold"] != "mean"]
        keys = [key for key in QUALITY if key not in ("gold", "way") and all(key in row for row in own)]
        rows.append({"gold": "mean", "way": way} | {key: statistics.mean(row[key] for row in own) for key in keys})
    show("Word links against links made by hand, one thread", QUALITY, rows)
    return rows


def save_encoder(folder: str, flags: argparse.Namespace) -> list[str]:
    """Saves an XLM-R of random weights, with a tokenizer of the sample corpus; returns words of that corpus."""
    texts = sample_texts()
    train_tokenizer(texts, folder, vocab_size=2000)
    torch.manual_seed(0)
    size = Size(flags.layers, flags.hidden, len(AutoTokenizer.from_pretrained(folder)))
    XLMRobertaModel(XLMRobertaConfig(**size.config(512))).save_pretrained(folder)
    return [word for text in texts for word in text.split()]


def compare_speed(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """The medians of the rounds of every number of pairs, printed as a table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model, drawn = flags.model or folder, random.Random(0)
        words = save_encoder(folder, flags)
        for count in flags.pairs:
            files = [str(Path(folder) / f"{count}.{side}") for side in ("source", "target")]
            lengths = zip(*drawn.choices(read_lengths()[0].tolist(), k=count), strict=True)
            texts = [[" ".join(drawn.choices(words, k=size)) for size in side] for side in lengths]
            if flags.text:
                texts = [Path(file).read_text(encoding="utf-8").split("\n")[:count] for file in flags.text]
            for file, lines in zip(files, texts, strict=True):
                Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

            def command(way: str, number: int, files: list[str] = files) -> list[str]:
                return command_of(way, model, str(Path(folder) / "links"), files)

            rows += [{"pairs": count, **row} for row in compare_commands(flags.ways, command, flags.rounds, PLAIN)]
    show("Whole commands, one thread", SPEED, rows)
    return rows


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Sizes, and what to compare."""
    sizes = {
        "hidden": (768, "hidden size of the encoder without --model, a multiple of 64"),
        "layers": (12, "its layers"),
        "rounds": (3, "interleaved rounds"),
    }
    parser = make_parser(__doc__, NAME, sizes)
    parser.add_argument("--pairs", nargs="+", type=int, default=[200], help="pairs to align (default: 200)")
    parser.add_argument("--model", metavar="DIR|ID", help="encoder")
    text = "files of sentences to measure speed with, instead of made-up ones"
    parser.add_argument("--text", nargs=2, metavar=("SOURCE", "TARGET"), help=text)
    add_gold_sets(parser)
    names = [*OURS, PLAIN, *(f"simalign {rule}" for rule in SIMALIGN)]
    parser.add_argument("--ways", nargs="+", choices=names, help="what to compare")
    flags = parser.parse_args(argv)
    if flags.gold_set and not flags.model:
        raise ValueError("--gold_set needs --model.")
    flags.ways = flags.ways or (names if flags.gold_set else list(FAST))
    if importlib.util.find_spec("simalign") is None:
        print("simalign is not installed, and is left out (pip install simalign)", file=sys.stderr)
        flags.ways = [way for way in flags.ways if not way.startswith("simalign")]
    return flags


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        rows = compare_quality(flags) if flags.gold_set else compare_speed(flags)
        write_results(flags, NAME, argv, {"rows": rows})


if __name__ == "__main__":
    main()
