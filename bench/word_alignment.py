"""The word aligner against simalign and a plain batch aligner, as whole commands: `python -m bench.word_alignment`.

Each way to align is a process of its own, on one thread, from the files to the links, start and loading included. The
table has processor seconds and peak memory. Ours are `word-align` commands. simalign is its SentenceAligner with its
defaults (layer 8, subwords). `plain` is what one would write by hand: the sentences of each side sorted by length, in
batches of 64, the encoder up to the default layer, mutual argmax.

Without `--text`, the pairs are those of the sample corpus. With `--gold`, `word-align score` also compares the links
with links that people made:

  python -m bench.word_alignment --model intfloat/multilingual-e5-small --text test.de test.en --gold alignv2.txt
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from bench._common import compare_commands, make_parser, show, write_results
from crosslingual_zoo.finetuning.align.common import DEFAULT_MODEL
from crosslingual_zoo.modeling.layer_states import default_layer
from crosslingual_zoo.zoo_core.command_line import user_errors

PLAIN, PLAIN_BATCH = "plain", 64
SIMALIGN = {"inter": "a", "itermax": "i", "mwmf": "m"}  # rule -> its letter
OURS = {
    "word-align": [],
    "word-align, mutual": ["--method", "mutual"],
    "word-align, ot": ["--method", "ot", "--layer", "8"],
}
WAYS = [*OURS, PLAIN, *(f"simalign {rule}" for rule in SIMALIGN)]
PROGRAM = "import sys; from bench.word_alignment import run_{}; run_{}(*sys.argv[1:])"


def read_words(*files: str) -> list[list[list[str]]]:
    """The words of each line of each file."""
    sides = []
    for file in files:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        sides.append([line.split() for line in lines])
    return sides


def run_simalign(rule: str, model: str, output: str, *files: str) -> None:
    """Writes simalign's links in Pharaoh's format, pair by pair, as its own command does."""
    from simalign import SentenceAligner

    aligner = SentenceAligner(model, token_type="bpe", matching_methods=SIMALIGN[rule])
    with open(output, "w", encoding="utf-8") as stream:
        for source, target in zip(*read_words(*files), strict=True):
            links = aligner.get_word_aligns(source, target)[rule] if source and target else []
            print(*(f"{i}-{j}" for i, j in links), file=stream)


def run_plain(model: str, output: str, *files: str) -> None:
    """Writes the links of a plain batch aligner, for encoders whose layers are `encoder.layer` (BERT, XLM-R)."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    encoder = AutoModel.from_pretrained(model).eval()
    encoder.encoder.layer = encoder.encoder.layer[: default_layer(encoder.config.num_hidden_layers)]

    def encode(sentences: list[list[str]]) -> list[tuple[torch.Tensor, list[int]]]:
        encoded = tokenizer(sentences, is_split_into_words=True, truncation=True, max_length=512)
        inputs = encoded["input_ids"]
        encoded_sentences = {}
        order = sorted(range(len(inputs)), key=lambda number: len(inputs[number]))
        for begin in range(0, len(order), PLAIN_BATCH):
            batch = order[begin : begin + PLAIN_BATCH]
            padded = tokenizer.pad({"input_ids": [inputs[number] for number in batch]}, return_tensors="pt")
            states_BTH = torch.nn.functional.normalize(encoder(**padded).last_hidden_state, dim=-1)
            for number, states_TH in zip(batch, states_BTH, strict=True):
                words = encoded.word_ids(number)
                positions = [position for position, word in enumerate(words) if word is not None]
                encoded_sentences[number] = states_TH[positions], [words[position] for position in positions]
        return [encoded_sentences[number] for number in range(len(inputs))]

    with torch.inference_mode(), open(output, "w", encoding="utf-8") as stream:
        for (x_SH, sources), (y_TH, targets) in zip(*map(encode, read_words(*files)), strict=True):
            links: set[tuple[int, int]] = set()
            if sources and targets:
                similarity_ST = x_SH @ y_TH.T
                forward = similarity_ST.argmax(1).tolist()
                backward = similarity_ST.argmax(0).tolist()
                links = {(sources[i], targets[j]) for i, j in enumerate(forward) if backward[j] == i}
            print(*(f"{i}-{j}" for i, j in sorted(links)), file=stream)


def command_of(model: str, files: list[str], way: str, _: int) -> list[str]:
    """The command of a way, ours, simalign's or the plain one, which writes its links next to the files."""
    output = Path(files[0]).with_name(way)
    output.unlink(missing_ok=True)  # of the round before
    if way in OURS:
        start = [
            sys.executable,
            "-m",
            "crosslingual_zoo.finetuning.align",
            *files,
            "--model",
            model,
            "--quiet",
            *OURS[way],
        ]
        return [*start, "--precision", "fp32", "--device", "cpu", "--output", str(output)]
    name, _, rule = way.partition(" ")
    return [sys.executable, "-c", PROGRAM.format(name, name), *filter(None, [rule]), model, str(output), *files]


def sentences_of(text: list[str] | None, count: int) -> list[list[str]]:
    """Both sides of the first pairs: of the files of --text, or of the sample corpus."""
    if text:
        sides = read_words(*text)
        return [list(map(" ".join, side[:count])) for side in sides]
    import datasets  # here: the plain aligner, a process of this module, does not wait for it

    corpus = str(Path(__file__).parents[1] / "sample_corpus")
    return [datasets.load_dataset(corpus, name, split="train")[:count]["text"] for name in ("de", "en")]


def compare(flags: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The rows of every number of pairs; with gold links, of all pairs, and what `word-align score` says of them."""
    rows = []
    files = [str(folder / side) for side in ("source", "target")]
    for count in [sys.maxsize] if flags.gold else flags.pairs:
        sides = sentences_of(flags.text, count)
        for file, lines in zip(files, sides, strict=True):
            Path(file).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        commands = partial(command_of, flags.model, files)
        for row in compare_commands(flags.ways, commands, flags.rounds, PLAIN):
            rows.append({"pairs": len(sides[0]), **row})
    show("Whole commands, one thread", rows)
    if not flags.gold:
        return {"rows": rows}
    score = [
        sys.executable,
        "-m",
        "crosslingual_zoo.finetuning.align",
        "score",
        *files,
        "--gold",
        str(Path(flags.gold).resolve()),
    ]
    process = subprocess.run([*score, "--links", *flags.ways], cwd=folder, stdout=subprocess.PIPE, text=True)
    if process.returncode:
        raise ValueError("word-align score failed.")
    print(process.stdout, end="")
    return {"rows": rows, "scores": process.stdout.splitlines()}


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = make_parser(__doc__, "word_alignment")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default %(default)s)")
    parser.add_argument("--pairs", nargs="+", type=int, default=[200], help="pairs to align (default: 200)")
    parser.add_argument("--model", metavar="DIR|ID", default=DEFAULT_MODEL, help="encoder (default %(default)s)")
    parser.add_argument("--text", nargs=2, metavar=("SOURCE", "TARGET"), help="files with a sentence of words a line")
    parser.add_argument("--gold", metavar="LINKS", help="links of --text that people made; all pairs are aligned")
    has_simalign = importlib.util.find_spec("simalign") is not None
    ways = [way for way in WAYS if has_simalign or not way.startswith("simalign")]
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=ways, help="what to compare (default: all)")
    flags = parser.parse_args(argv)
    if flags.gold and not flags.text:
        parser.error("--gold needs --text")
    with user_errors(), tempfile.TemporaryDirectory() as folder:
        write_results(flags, compare(flags, Path(folder)))


if __name__ == "__main__":
    main()
