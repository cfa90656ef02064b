"""The word aligner against simalign, awesome-align and POT: `python -m bench.word_alignment`.

Each part measures on the same inputs, in interleaved rounds, and compares the results:

- matching: from the vectors of a padded batch to links, on one core, in CPU seconds. simalign and awesome-align are run
  with their own functions from PyPI, unmodified. awesome-align pads in the order of the input; it is measured on such
  batches of its default size, and on our batches, which are sorted by length.
- Sinkhorn: two iterations, against POT's batched solver, on batches without padding, as POT has no masks.
- end to end: from words to links, with an encoder of random weights, against simalign's SentenceAligner with the same
  encoder, layer and method, in seconds on the clock.

Sentence lengths are real: of two line-aligned files (--source, --target), or of the gold alignments of German-English,
English-French (Europarl, Hansards) and Chinese-English, of which 96 are kept here. Prints medians of the ratios and
writes bench/results/word_alignment.json. A peer that is not installed is named, and its rows are left out.
"""

import argparse
import importlib
import logging
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench._common import check_sizes, device_name, make_parser, show, write_results
from zoo_core.recipes import user_errors

# words of source and target; every fifteenth pair of the three gold sets, by length
PAIR_LENGTHS = (
    "2-2 4-4 4-6 5-6 6-6 7-6 7-7 6-9 9-6 6-11 8-9 8-10 10-8 9-10 10-10 9-12 9-13 13-9 11-12 11-13 15-9 13-12 12-14 "
    "11-16 13-14 13-15 14-14 13-16 15-14 13-17 14-16 13-18 15-16 12-20 17-15 15-18 18-15 17-17 16-19 14-22 19-17 17-20 "
    "13-25 19-19 17-22 22-17 18-22 22-18 19-22 23-18 20-22 18-25 22-21 20-24 23-21 21-24 24-21 21-25 18-29 24-23 23-25 "
    "27-21 22-27 26-23 24-26 22-29 26-25 22-30 28-24 27-26 26-28 27-28 26-30 29-27 28-29 28-30 24-35 26-34 28-33 30-33 "
    "33-32 34-32 29-39 32-37 27-44 25-48 33-41 29-47 35-43 40-42 39-48 42-52 43-57 39-69 54-64 66-72"
)
TOKENS_PER_WORD = 1.3  # about what XLM-R's vocabulary needs for these languages
SORTED_PAIRS = 4096  # the aligner sorts so many at a time by length: 64 batches of 64
AWESOME_BATCH = 32  # awesome-align's default
SENTENCE_BATCH = 8  # among so few pairs, a larger batch would be half padding, which it is not among `SORTED_PAIRS`
NAME = "word_alignment"
PARTS = ("matching", "sinkhorn", "end-to-end")
PEERS = {"simalign": "simalign", "awesome_align.modeling": "awesome-align", "ot.batch": "POT"}


def read_lengths(source: Path | None, target: Path | None) -> list[tuple[int, int]]:
    """Words of the pairs of two line-aligned files, or those kept here."""
    if source is None and target is None:
        return [tuple(map(int, pair.split("-"))) for pair in PAIR_LENGTHS.split()]
    if source is None or target is None:
        raise ValueError(
            "--source and --target: only one of them was given, and lengths are those of pairs. Give both, or neither."
        )
    texts = [path.read_text(encoding="utf-8").removesuffix("\n") for path in (source, target)]
    sides = [[len(line.split()) for line in text.split("\n")] for text in texts]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{source} has {len(sides[0])} lines and {target} {len(sides[1])}: they are no translations of each other "
            "line by line. Give two line-aligned files."
        )
    lengths = [pair for pair in zip(*sides, strict=True) if all(pair)]
    if not lengths:
        raise ValueError(f"{source} and {target} have no pair of lines with words on both sides. Give another file.")
    return lengths


def draw_sorted(lengths: list[tuple[int, int]], pairs: int, batch: int, factor: float) -> list[list[tuple[int, int]]]:
    """Batches of lengths in pieces, as the aligner would make them: evenly spread ones of a sorted chunk's."""
    drawn = random.Random(0).choices(lengths, k=max(SORTED_PAIRS, pairs))
    drawn = sorted(([max(1, round(factor * words)) for words in pair] for pair in drawn), key=sum)
    batches = [drawn[first : first + batch] for first in range(0, len(drawn), batch)]
    return batches[:: max(1, len(drawn) // pairs)]


class Batch:
    """A padded batch of pairs, the same vectors one by one, and the inputs that awesome-align wants.

    Targets are noisy copies of source tokens, in another order.
    """

    def __init__(self, lengths: list[tuple[int, int]], hidden: int):
        import torch

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
        from modeling.optimal_transport import align

        return align(*self.vectors, *self.masks, method, probabilities=False).links_BST


def interleave(contenders: dict[str, Callable], inputs: list, rounds: int, clock: Callable) -> dict[str, list[float]]:
    """Seconds of each contender for all inputs, one number a round; input by input, one contender after the other."""
    for contender in contenders.values():
        contender(inputs[0])
    seconds = {name: [0.0] * rounds for name in contenders}
    for number in range(rounds):
        for one in inputs:
            for name, contender in contenders.items():
                started = clock()
                contender(one)
                seconds[name][number] += clock() - started
    return seconds


def row(ours: str, peer: str, seconds: dict[str, list[float]], pairs: int, same: str, aim: float | None) -> dict:
    """One line of the table: `same` says what was found when the results were compared."""
    return {
        "ours": ours,
        "peer": peer,
        "pairs_per_second": pairs / statistics.median(seconds[ours]),
        "peer_pairs_per_second": pairs / statistics.median(seconds[peer]),
        "ratio": statistics.median(b / a for a, b in zip(seconds[ours], seconds[peer], strict=True)),
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
    """What to say of it; raises ValueError where more than one pair in a hundred differs.

    Both sides round otherwise: where two similarities are equal to seven digits, each may take another one.
    """
    if differ > max(1, pairs // 100):
        raise ValueError(
            f"{names}: the links of {differ} of {pairs} pairs differ, and what computes something else cannot be timed "
            "against each other. Check the versions (pip list), and report it with them."
        )
    return f"same links in {pairs - differ} of {pairs} pairs"


def measure_matching(flags: argparse.Namespace, lengths, peers: dict) -> list[dict]:
    """Vectors to links."""
    import torch

    from modeling.optimal_transport import METHODS, itermax_links

    batches = [Batch(part, flags.hidden) for part in draw_sorted(lengths, flags.pairs, flags.batch, TOKENS_PER_WORD)]
    pairs = sum(len(batch.lengths) for batch in batches)
    contenders = {method: lambda batch, method=method: batch.aligned(method) for method in METHODS}
    results = {}
    if simalign := peers.get("simalign"):
        matcher = simalign.SentenceAligner

        def mutual(x, y):
            forward, backward = matcher.get_alignment_matrix(matcher.get_similarity(x, y))
            return forward * backward

        def itermax(x, y):
            return matcher.iter_max(matcher.get_similarity(x, y))

        for batch in batches:
            batch.similarities = [matcher.get_similarity(*vectors) for vectors in batch.alone]
            batch.similarity_BST = torch.zeros(len(batch.alone), *(mask.shape[1] for mask in batch.masks))
            for number, similarity in enumerate(batch.similarities):
                batch.similarity_BST[number, : similarity.shape[0], : similarity.shape[1]] = torch.from_numpy(
                    similarity
                )
            links_BST = itermax_links(batch.similarity_BST, *batch.masks)
            for links_ST, similarity in zip(links_BST.numpy(), batch.similarities, strict=True):
                expected = matcher.iter_max(similarity) > 0
                assert (links_ST[: expected.shape[0], : expected.shape[1]] == expected).all(), (
                    "itermax is not SimAlign's"
                )
        for method, function in (("mutual", mutual), ("itermax", itermax)):
            name = f"simalign {method}"
            differ = count_differences(batches, method, function)
            results[method, name] = require_same(differ, pairs, f"{method} and simalign"), 12.0
            contenders[name] = lambda batch, function=function: [function(*vectors) for vectors in batch.alone]
        contenders |= {
            "itermax of similarities": lambda batch: itermax_links(batch.similarity_BST, *batch.masks),
            "simalign iter_max": lambda batch: [matcher.iter_max(similarity) for similarity in batch.similarities],
        }
        results["itermax of similarities", "simalign iter_max"] = f"same links in {pairs} of {pairs} pairs", None
        for method in ("ot", "ot_itermax"):
            results[method, "simalign itermax"] = "another method", None
    if awesome := peers.get("awesome_align.modeling"):
        head = awesome.BertGuideHead(None)
        differ = sum(
            int((head(*batch.vectors, *batch.ids)[:, 0] != batch.aligned("softmax")).flatten(1).any(1).sum())
            for batch in batches
        )
        same = require_same(differ, pairs, "softmax and awesome-align")
        in_order = random.Random(1).sample([pair for batch in batches for pair in batch.lengths], pairs)
        unsorted = [
            Batch(in_order[first : first + AWESOME_BATCH], flags.hidden) for first in range(0, pairs, AWESOME_BATCH)
        ]
        for number, batch in enumerate(batches):
            batch.unsorted = unsorted[number :: len(batches)]
        contenders |= {
            "awesome-align, its batches": lambda batch: [head(*own.vectors, *own.ids) for own in batch.unsorted],
            "awesome-align, our batches": lambda batch: head(*batch.vectors, *batch.ids),
        }
        results["softmax", "awesome-align, its batches"] = same, 2.5
        results["softmax", "awesome-align, our batches"] = same, None
    seconds = interleave(contenders, batches, flags.rounds, time.process_time)
    return [row(*names, seconds, pairs, same, aim) for names, (same, aim) in results.items()]


def measure_sinkhorn(flags: argparse.Namespace, lengths, peers: dict) -> list[dict]:
    """Sinkhorn from similarities, against `ot.batch.solve_batch`, whose K is exp(-cost / reg)."""
    import torch

    from modeling.optimal_transport import sinkhorn

    if "ot.batch" not in peers:
        return []
    solve = peers["ot.batch"].solve_batch
    inputs = []
    for part in draw_sorted(lengths, flags.pairs, flags.batch, TOKENS_PER_WORD):
        sources, targets = (round(statistics.mean(sizes)) for sizes in zip(*part, strict=True))
        similarity_BST = 50 * torch.rand(len(part), sources, targets) + 1e-3
        ones = similarity_BST.new_ones
        inputs.append((similarity_BST, -similarity_BST.log(), ones(len(part), sources), ones(len(part), targets)))

    def ours(one):
        return sinkhorn(one[0], one[2].bool(), one[3].bool())

    contenders = {"Sinkhorn": ours}
    results = {}
    for method in ("sinkhorn", "log_sinkhorn"):
        name = f"POT {method}"
        contenders[name] = lambda one, method=method: solve(
            one[1], 1.0, *one[2:], max_iter=2, tol=0, method=method, grad="detach"
        )
        gap = max((contenders[name](one).plan - ours(one)).abs().max().item() for one in inputs)
        if gap > 1e-4:
            raise ValueError(
                f"{name}: its plan differs from ours by {gap:.1e}, and what computes something else cannot be timed "
                "against each other. Check the version (pip list), and report it with it."
            )
        results[name] = f"plans differ by {gap:.0e}"
    pairs = sum(len(one[0]) for one in inputs)
    seconds = interleave(contenders, inputs, flags.rounds, time.process_time)
    return [row("Sinkhorn", name, seconds, pairs, same, 1.0) for name, same in results.items()]


def save_encoder(folder: str, flags: argparse.Namespace) -> list[str]:
    """Saves an XLM-R of random weights, with a tokenizer of the sample corpus; returns words of that corpus."""
    import json

    import torch
    from transformers import AutoTokenizer, XLMRobertaConfig, XLMRobertaModel

    from pretraining.tools.train_tokenizer import train_tokenizer

    corpus = Path(__file__).parents[1] / "sample_corpus"
    texts = [
        json.loads(line)["text"]
        for language in ("en", "de", "fr", "es")
        for line in (corpus / language / "train.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    train_tokenizer(texts, Path(folder) / "tokenizer", vocab_size=2000)
    tokenizer = AutoTokenizer.from_pretrained(Path(folder) / "tokenizer")
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=flags.hidden,
        num_hidden_layers=flags.layers,
        num_attention_heads=flags.hidden // 64,
        intermediate_size=4 * flags.hidden,
        max_position_embeddings=514,
    )
    XLMRobertaModel(config).save_pretrained(Path(folder) / "model")
    tokenizer.save_pretrained(Path(folder) / "model")
    return [word for text in texts for word in text.split()]


def measure_end_to_end(flags: argparse.Namespace, lengths, peers: dict) -> list[dict]:
    """Words to links, in the order of the input, in float32 and in bfloat16."""
    if "simalign" not in peers:
        return []
    import torch
    from transformers import AutoModel, AutoTokenizer

    from modeling.word_alignment import WordAligner

    layer = round(flags.layers * 2 / 3)  # the aligner's default
    with tempfile.TemporaryDirectory() as folder:
        words = save_encoder(folder, flags)
        model = str(Path(folder) / "model")
        random_numbers = random.Random(0)
        pairs = [
            tuple([random_numbers.choice(words) for _ in range(size)] for size in pair)
            for pair in random_numbers.choices(lengths, k=flags.sentence_pairs)
        ]
        peer = peers["simalign"].SentenceAligner(
            model, token_type="bpe", matching_methods="i", device=device_name(), layer=layer
        )
        tokenizer = AutoTokenizer.from_pretrained(model)
        links = {}  # by contender, of its last round

        def run_simalign(pairs):
            links["simalign"] = [peer.get_word_aligns(*pair)["itermax"] for pair in pairs]

        def run(name, aligner, pairs):
            links[name] = [pair.links for pair in aligner.align(pairs)]

        contenders = {"simalign": run_simalign}
        for dtype in (torch.float32, torch.bfloat16):
            encoder = AutoModel.from_pretrained(model, dtype=dtype).to(device_name())
            for method, encoding in (("itermax", "separate"), ("ot_itermax", "joint")):
                aligner = WordAligner(encoder, tokenizer, method, layer, encoding, SENTENCE_BATCH)
                name = f"{method}, {encoding}, {str(dtype).removeprefix('torch.')}"
                contenders[name] = partial(run, name, aligner)
        seconds = interleave(contenders, [pairs], flags.rounds, time.perf_counter)
    expected, rows = links.pop("simalign"), []
    for name, found in links.items():
        if name == "itermax, separate, float32":
            differ = sum(ours != theirs for ours, theirs in zip(found, expected, strict=True))
            same = require_same(differ, len(pairs), name)
        elif name.startswith("itermax"):
            shared = sum(len(set(ours) & set(theirs)) for ours, theirs in zip(found, expected, strict=True))
            same = f"{200 * shared / sum(map(len, found + expected)):.2f}% of the links in common"
        else:
            same = "another method"
        aim = None
        if name.startswith("itermax"):
            aim = 50.0 if device_name() == "cuda" else 2.7 if name.endswith("float32") else 5.0
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
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    parser.add_argument("--source", type=Path, metavar="FILE", help="take sentence lengths from this file")
    parser.add_argument("--target", type=Path, metavar="FILE", help="and from its translation, line by line")
    return parser.parse_args(argv)


def check_flags(flags: argparse.Namespace) -> None:
    """Raises ValueError as `check_sizes`."""
    check_sizes(flags)


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    flags = read_flags(argv)
    with user_errors():
        check_flags(flags)
        lengths = read_lengths(flags.source, flags.target)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import torch
        from threadpoolctl import threadpool_limits
        from transformers.utils.logging import disable_progress_bar

        device = device_name()
        torch.manual_seed(0)
        disable_progress_bar()
        peers = find_peers()
        logging.getLogger("simalign.simalign").setLevel(logging.WARNING)
        parts = {
            "matching": (f"vectors to links, batches of {flags.batch}, one core", measure_matching, 1),
            "sinkhorn": ("Sinkhorn, two iterations, one core", measure_sinkhorn, 1),
            "end-to-end": (
                f"words to links, {device}, {flags.threads} threads",
                measure_end_to_end,
                flags.threads,
            ),
        }
        measured = {}
        for part in flags.parts:
            title, measure, threads = parts[part]
            with threadpool_limits(threads), torch.no_grad():
                torch.set_num_threads(threads)
                measured[part] = measure(flags, lengths, peers)
            show(f"{title}, H = {flags.hidden}, medians of {flags.rounds} rounds", COLUMNS, measured[part])
        write_results(flags, NAME, argv, {"device": device, "parts": measured})


if __name__ == "__main__":
    main()
