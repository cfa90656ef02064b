"""The word aligner against simalign, awesome-align and POT: `python -m bench.word_alignment`.

Each part measures on the same inputs, in interleaved rounds, and compares the results:

- matching: from the vectors of a padded batch to links, on one core, in CPU seconds. simalign and awesome-align run
  their own functions from PyPI, unmodified. awesome-align pads in the order of the input. It is measured on such
  batches of its default size, and on our batches, which are sorted by length.
- Sinkhorn: two iterations, against POT's batched solver, on batches without padding, because POT has no masks.
- end to end: from words to links, with an encoder of random weights, against simalign's SentenceAligner with the same
  encoder, layer and method, in wall-clock seconds.

With `--gold_set`, it compares the links of `--model` with links that people made instead:

  python -m bench.word_alignment --model intfloat/multilingual-e5-small --gold_set de-en test.de test.en alignv2.txt

Each way to align is then a process of its own, on one thread, from the files to the links. The table has AER,
precision, recall, expected calibration error of the links, processor seconds and peak memory, start and loading
included. Ours are `word-align` commands, simalign is its SentenceAligner with its defaults (layer 8, subwords).
awesome-align's command only reads checkpoints of BERT with a WordPiece tokenizer; its rule is `softmax` here.

Sentence lengths are those of the gold alignments of German-English, English-French (Europarl, Hansards) and
Chinese-English. Writes bench/results/word_alignment.json. If a peer is not installed, the benchmark says so and leaves
its rows out.
"""

import argparse
import importlib
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from threadpoolctl import threadpool_limits
from transformers import AutoModel, AutoTokenizer, XLMRobertaConfig, XLMRobertaModel
from transformers.utils.logging import disable_progress_bar

from bench._common import check_sizes, device_name, interleaved, make_parser, median_ratio, show, write_results
from bench._steps import Size, sample_texts
from finetuning.align.confidence import Confidence
from finetuning.align.gold import Gold, fit_gold, read_gold
from finetuning.align.pairs import PairReader
from finetuning.tasks.word_alignment.layers import score
from modeling.optimal_transport import METHODS, align, sinkhorn
from modeling.word_alignment import WordAligner, WordAlignment, default_layer
from pretraining.tools.train_tokenizer import train_tokenizer
from zoo_core.command_line import user_errors

# words of source and target; every fifteenth pair of the three gold sets, by length
WORDS = (
    "2-2 4-4 4-6 5-6 6-6 7-6 7-7 6-9 9-6 6-11 8-9 8-10 10-8 9-10 10-10 9-12 9-13 13-9 11-12 11-13 15-9 13-12 12-14 "
    "11-16 13-14 13-15 14-14 13-16 15-14 13-17 14-16 13-18 15-16 12-20 17-15 15-18 18-15 17-17 16-19 14-22 19-17 17-20 "
    "13-25 19-19 17-22 22-17 18-22 22-18 19-22 23-18 20-22 18-25 22-21 20-24 23-21 21-24 24-21 21-25 18-29 24-23 23-25 "
    "27-21 22-27 26-23 24-26 22-29 26-25 22-30 28-24 27-26 26-28 27-28 26-30 29-27 28-29 28-30 24-35 26-34 28-33 30-33 "
    "33-32 34-32 29-39 32-37 27-44 25-48 33-41 29-47 35-43 40-42 39-48 42-52 43-57 39-69 54-64 66-72"
)
PAIR_LENGTHS = [tuple(map(int, pair.split("-"))) for pair in WORDS.split()]
TOKENS_PER_WORD = 1.3  # about what XLM-R's vocabulary needs for these languages
SORTED_PAIRS = 4096  # the aligner sorts so many at a time by length: 64 batches of 64
AWESOME_BATCH = 32  # awesome-align's default
SENTENCE_BATCH = 8  # among so few pairs, a larger batch would be half padding, which it is not among `SORTED_PAIRS`
NAME = "word_alignment"
PEERS = {"simalign": "simalign", "awesome_align.modeling": "awesome-align", "ot.batch": "POT"}

SIMALIGN = {"inter": "a", "itermax": "i", "mwmf": "m"}  # rule -> its letter
OURS = {
    "word-align": ["--probabilities"],
    "word-align, layer 8": ["--layer", "8", "--probabilities"],
    "word-align, threshold 0.7": ["--threshold", "0.7", "--probabilities"],
    "word-align, joint": ["--encoding", "joint", "--probabilities"],
    "ot, layer 8": ["--method", "ot", "--layer", "8"],
    "softmax, layer 8": ["--method", "softmax", "--layer", "8"],
}
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
PROGRAM = "import sys; from bench.word_alignment import run_simalign; run_simalign(*sys.argv[1:])"


def draw_sorted(pairs: int, batch: int) -> list[list[list[int]]]:
    """Batches of lengths in tokens, as the aligner would make them: evenly spread ones of a sorted chunk's."""
    drawn = random.Random(0).choices(PAIR_LENGTHS, k=max(SORTED_PAIRS, pairs))
    drawn = sorted(([round(TOKENS_PER_WORD * words) for words in pair] for pair in drawn), key=sum)
    batches = [drawn[first : first + batch] for first in range(0, len(drawn), batch)]
    return batches[:: max(1, len(drawn) // pairs)]


class Batch:
    """A padded batch of pairs, the same vectors one by one, and the inputs that awesome-align wants.

    Targets are noisy copies of source tokens, in another order.
    """

    def __init__(self, lengths: list[tuple[int, int]], hidden: int):
        sources, targets = (max(sizes) for sizes in zip(*lengths, strict=True))
        x_BSH, y_BTH = torch.zeros(len(lengths), sources, hidden), torch.zeros(len(lengths), targets, hidden)
        for row, (source, target) in enumerate(lengths):
            x_BSH[row, :source] = torch.randn(source, hidden)
            copied_T = torch.randint(source, (target,))
            y_BTH[row, :target] = x_BSH[row, copied_T] + 1.5 * torch.randn(target, hidden)
        self.vectors, self.lengths = (x_BSH, y_BTH), lengths
        lengths_B2 = torch.tensor(lengths)
        self.masks = [torch.arange(size) < lengths_B2[:, side, None] for side, size in enumerate((sources, targets))]
        self.ids = [mask.long() * 1000 for mask in self.masks]  # awesome-align: 0 is padding, 101 and 102 are special
        self.alone = [
            (x_BSH[row, :source].numpy(), y_BTH[row, :target].numpy()) for row, (source, target) in enumerate(lengths)
        ]

    def aligned(self, method: str):
        """Boolean links (B, S, T) by our `method`."""
        return align(*self.vectors, *self.masks, method, probabilities=False).links_BST


def row(ours: str, peer: str, seconds: dict[str, list[float]], pairs: int, same: str, aim: float | None) -> dict:
    """One line of the table: `same` says what was found when the results were compared."""
    return {
        "ours": ours,
        "peer": peer,
        "pairs_per_second": pairs / statistics.median(seconds[ours]),
        "peer_pairs_per_second": pairs / statistics.median(seconds[peer]),
        "ratio": median_ratio(seconds[peer], seconds[ours]),
        "aim": aim,
        "results": same,
    }


def count_differences(batches: list[Batch], method: str, peer: Callable) -> int:
    """Pairs of which `peer`, given two numpy arrays of vectors, returns other links than our method."""
    differ = 0
    for batch in batches:
        links_BST = batch.aligned(method).numpy()
        for (source, target), vectors, links_ST in zip(batch.lengths, batch.alone, links_BST, strict=True):
            differ += bool(((peer(*vectors) > 0) != links_ST[:source, :target]).any())
    return differ


def require_same(differ: int, pairs: int, names: str) -> str:
    """A note on the differences. Raises ValueError if more than one pair in a hundred differs.

    Both sides round differently: if two similarities are equal to seven digits, each may choose another one.
    """
    if differ > max(1, pairs // 100):
        raise ValueError(
            f"{names}: the links of {differ} of {pairs} pairs differ; report it, with the versions (pip list)."
        )
    return f"same links in {pairs - differ} of {pairs} pairs"


def measure_matching(flags: argparse.Namespace, peers: dict) -> list[dict]:
    """Vectors to links."""
    batches = [Batch(part, flags.hidden) for part in draw_sorted(flags.pairs, flags.batch)]
    pairs = sum(len(batch.lengths) for batch in batches)
    ways = {method: lambda _, method=method: [batch.aligned(method) for batch in batches] for method in METHODS}
    results = {}
    if simalign := peers.get("simalign"):
        matcher = simalign.SentenceAligner

        def mutual(x, y):
            forward, backward = matcher.get_alignment_matrix(matcher.get_similarity(x, y))
            return forward * backward

        def itermax(x, y):
            return matcher.iter_max(matcher.get_similarity(x, y))

        for method, function in (("mutual", mutual), ("itermax", itermax)):
            name = f"simalign {method}"
            differ = count_differences(batches, method, function)
            results[method, name] = require_same(differ, pairs, f"{method} and simalign"), 12.0
            ways[name] = lambda _, function=function: [function(*pair) for batch in batches for pair in batch.alone]
        results |= {
            (method, "simalign itermax"): ("another method", None) for method in ("ot_words", "ot", "ot_itermax")
        }
    if awesome := peers.get("awesome_align.modeling"):
        head = awesome.BertGuideHead(None)
        differ = sum(
            int((head(*batch.vectors, *batch.ids)[:, 0] != batch.aligned("softmax")).flatten(1).any(1).sum())
            for batch in batches
        )
        same = require_same(differ, pairs, "softmax and awesome-align")
        in_order = random.Random(1).sample([pair for batch in batches for pair in batch.lengths], pairs)
        its = [Batch(in_order[first : first + AWESOME_BATCH], flags.hidden) for first in range(0, pairs, AWESOME_BATCH)]
        for whose, made, aim in (("its", its, 2.5), ("our", batches, None)):
            name = f"awesome-align, {whose} batches"
            ways[name] = lambda _, made=made: [head(*batch.vectors, *batch.ids) for batch in made]
            results["softmax", name] = same, aim
    seconds = interleaved(ways, flags.rounds, time.process_time) if results else {}
    return [row(*names, seconds, pairs, same, aim) for names, (same, aim) in results.items()]


def measure_sinkhorn(flags: argparse.Namespace, peers: dict) -> list[dict]:
    """Sinkhorn from similarities, against `ot.batch.solve_batch`, whose K is exp(-cost / reg)."""
    if "ot.batch" not in peers:
        return []
    solve = peers["ot.batch"].solve_batch
    inputs = []
    for part in draw_sorted(flags.pairs, flags.batch):
        sources, targets = (round(statistics.mean(sizes)) for sizes in zip(*part, strict=True))
        similarity_BST = 50 * torch.rand(len(part), sources, targets) + 1e-3
        ones = similarity_BST.new_ones
        inputs.append((similarity_BST, -similarity_BST.log(), ones(len(part), sources), ones(len(part), targets)))

    def ours(number: int) -> list:
        return [sinkhorn(similarity, x.bool(), y.bool()) for similarity, _, x, y in inputs]

    ways, results = {"Sinkhorn": ours}, {}
    for method in ("sinkhorn", "log_sinkhorn"):
        name = f"POT {method}"
        settings = dict(max_iter=2, tol=0, method=method, grad="detach")
        ways[name] = lambda _, settings=settings: [solve(cost, 1.0, x, y, **settings) for _, cost, x, y in inputs]
        gap = max((a.plan - b).abs().max().item() for a, b in zip(ways[name](0), ours(0), strict=True))
        if gap > 1e-4:
            raise ValueError(f"{name} of this version has another plan than ours (by {gap:.1e}): report it.")
        results[name] = f"plans differ by {gap:.0e}"
    pairs = sum(len(one[0]) for one in inputs)
    seconds = interleaved(ways, flags.rounds, time.process_time)
    return [row("Sinkhorn", name, seconds, pairs, same, 1.0) for name, same in results.items()]


def save_encoder(folder: str, flags: argparse.Namespace) -> list[str]:
    """Saves an XLM-R of random weights, with a tokenizer of the sample corpus; returns words of that corpus."""
    texts = sample_texts()
    train_tokenizer(texts, folder, vocab_size=2000)
    torch.manual_seed(0)
    size = Size(flags.layers, flags.hidden, len(AutoTokenizer.from_pretrained(folder)))
    XLMRobertaModel(XLMRobertaConfig(**size.config(512))).save_pretrained(folder)
    return [word for text in texts for word in text.split()]


def measure_end_to_end(flags: argparse.Namespace, peers: dict) -> list[dict]:
    """Words to links, in the order of the input, in float32 and in bfloat16."""
    if "simalign" not in peers:
        return []
    layer = default_layer(flags.layers)  # the aligner's default
    with tempfile.TemporaryDirectory() as model:
        words, drawn = save_encoder(model, flags), random.Random(0)
        pairs = [
            tuple([drawn.choice(words) for _ in range(size)] for size in pair)
            for pair in drawn.choices(PAIR_LENGTHS, k=flags.sentence_pairs)
        ]
        peer = peers["simalign"].SentenceAligner(
            model, token_type="bpe", matching_methods="i", device=device_name(), layer=layer
        )
        tokenizer = AutoTokenizer.from_pretrained(model)
        links = {}  # by way, of its last round

        def run_simalign(number):
            links["simalign"] = [peer.get_word_aligns(*pair)["itermax"] for pair in pairs]

        def run(name, aligner, number):
            links[name] = [pair.links for pair in aligner.align(pairs)]

        ways = {"simalign": run_simalign}
        for dtype in (torch.float32, torch.bfloat16):
            encoder = AutoModel.from_pretrained(model, dtype=dtype).to(device_name())
            for method, encoding in (("itermax", "separate"), ("ot_itermax", "joint")):
                aligner = WordAligner(encoder, tokenizer, method, layer, encoding, SENTENCE_BATCH)
                name = f"{method}, {encoding}, {str(dtype).removeprefix('torch.')}"
                ways[name] = partial(run, name, aligner)
        seconds = interleaved(ways, flags.rounds, time.perf_counter)
    expected, rows = links.pop("simalign"), []
    for name, found in sorted(links.items(), key=lambda item: list(ways).index(item[0])):
        same, aim = "another method", None
        if name.startswith("itermax"):
            aim = 50.0 if device_name() == "cuda" else 2.7 if name.endswith("float32") else 5.0
            shared = sum(len(set(ours) & set(theirs)) for ours, theirs in zip(found, expected, strict=True))
            same = f"{200 * shared / sum(map(len, found + expected)):.2f}% of the links in common"
        if name == "itermax, separate, float32":
            differ = sum(ours != theirs for ours, theirs in zip(found, expected, strict=True))
            same = require_same(differ, len(pairs), name)
        rows.append(row(name, "simalign", seconds, len(pairs), same, aim))
    return rows


COLUMNS = {
    "ours": "ours",
    "peer": "against",
    "ratio": "ratio",
    "aim": "aim",
    "pairs_per_second": "pairs/s",
    "peer_pairs_per_second": "its",
    "results": "results",
}


MEASURES = {
    "matching": ("vectors to links", measure_matching),
    "sinkhorn": ("Sinkhorn, two iterations", measure_sinkhorn),
    "end-to-end": ("words to links", measure_end_to_end),
}


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


def measure_quality(command: Callable[..., list[str]], files: list[str], gold: dict[int, Gold]) -> dict[str, Any]:
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


def compare_with_gold(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of every gold set and their means, printed as a table."""
    ways = {name: partial(our_command, flags.model, options) for name, options in OURS.items()}
    ways |= {f"simalign {rule}": partial(simalign_command, flags.model, rule) for rule in SIMALIGN}
    ways = {way: ways[way] for way in flags.ways}
    ways |= {f"word-align, {name}": partial(our_command, model, OURS["word-align"]) for name, model in flags.also}
    rows = []
    for of in read_gold_sets(flags.gold_set):
        for way, command in ways.items():
            rows.append({"gold": of.name, "way": way, **measure_quality(command, of.files, of.gold)})
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
    show("Word links against links made by hand, one thread", QUALITY, rows + means)
    return rows + means


def find_peers() -> dict:
    """The modules of the peers that are installed; prints how to get the others."""
    found = {}
    for name, package in PEERS.items():
        try:
            found[name] = importlib.import_module(name)
        except ModuleNotFoundError as error:
            print(
                f"{error.name} is not installed: what is measured against {package} is left out (pip install {package})"
            )
    return found


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Sizes, and which parts to run."""
    sizes = {
        "pairs": (512, "pairs to match"),
        "sentence_pairs": (64, "pairs of the end-to-end part"),
        "batch": (64, "pairs in a batch: by default the aligner's"),
        "hidden": (768, "hidden size, a multiple of 64"),
        "layers": (12, "layers of the end-to-end part's encoder"),
        "threads": (2, "threads of the end-to-end part"),
        "rounds": (5, "interleaved rounds"),
    }
    parser = make_parser(__doc__, NAME, sizes)
    parser.add_argument(
        "--parts", nargs="+", choices=MEASURES, default=list(MEASURES), help="what to measure (default: all)"
    )
    parser.add_argument("--model", metavar="DIR|ID", help="encoder to compare with gold links")
    parser.add_argument(
        "--also",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "DIR|ID"),
        help="another encoder, with our rule",
    )
    add_gold_sets(parser)
    names = [*OURS, *(f"simalign {rule}" for rule in SIMALIGN)]
    parser.add_argument(
        "--ways", nargs="+", choices=names, default=names, help="what to compare with gold links (default: all)"
    )
    flags = parser.parse_args(argv)
    check_sizes(flags)
    if bool(flags.model) != bool(flags.gold_set):
        raise ValueError("--model and --gold_set belong together. Give both, or none.")
    return flags


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        if flags.gold_set:
            return write_results(flags, NAME, argv, {"rows": compare_with_gold(flags)})
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        torch.manual_seed(0)
        disable_progress_bar()
        peers = find_peers()
        logging.getLogger("simalign.simalign").setLevel(logging.WARNING)
        measured = {}
        for part in flags.parts:
            title, measure = MEASURES[part]
            threads = flags.threads if part == "end-to-end" else 1
            with threadpool_limits(threads), torch.no_grad():
                torch.set_num_threads(threads)
                measured[part] = measure(flags, peers)
            title = f"{title}, {device_name()}, {threads} threads, batches of {flags.batch}, H = {flags.hidden}"
            show(f"{title}, medians of {flags.rounds} rounds", COLUMNS, measured[part])
        write_results(flags, NAME, argv, {"device": device_name(), "parts": measured})


if __name__ == "__main__":
    main()
