"""Trains the adapter of the word aligner, and scores it: `python -m bench.aligner_adapter --hub_root ../shared/hub`.

It learns from gold links of English and Czech (1,000 sentences, CC BY-SA 4.0), and from 500 NTREX pairs (CC BY-SA 4.0)
each of English with German, French, Chinese, Spanish and Russian, which the encoder labels itself. For each of --seeds,
`word-align adapt --save-adapter` writes an adapter into --work. pretraining/README.md, "Local copies of data", has the
sources of the data.

Then the rule alone and with each adapter are scored on twelve sets of gold links, of which only en-cs was trained on:
AER (error rate), and the calibration error: the mean distance between probabilities of links (0.5 or more, in steps of
0.05) and the share of right links. --noise 1 2 3 also scores copies of the encoder with random noise of at most half a
step of 4-bit rounding in each block of 32 weights: as far as the rounded copy may be from the weights on the Hub.

The zoo's adapter, modeling/e5_small_aligner, is that of seed 1, with its card by `zoo-card`. An hour and a half on one
core with three seeds and three noisy copies.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import torch

from bench._common import make_parser, show, write_results
from crosslingual_zoo.finetuning.align.common import DEFAULT_MODEL, with_likely_links
from crosslingual_zoo.finetuning.align.gold import Gold
from crosslingual_zoo.finetuning.align.pairs import PairReader, Side
from crosslingual_zoo.finetuning.align.score import read_with_gold, score
from crosslingual_zoo.modeling.word_alignment import ADAPTER_SETTINGS, WordAligner, merge_adapter
from crosslingual_zoo.zoo_core.command_line import user_errors
from crosslingual_zoo.zoo_core.provenance import read_json, write_json

LANGUAGES = ("de", "fr", "zh", "es", "ru")  # of NTREX, with English
PAIRS_OF_LANGUAGE = 500
XL_WA = ("bg", "da", "es", "it", "nl", "pt", "ru", "sl")
LEAST_PROBABILITY = 0.5  # of a link
BINS = 10  # of probabilities, between 0.5 and 1
BLOCK = 32  # weights that share a step of 4-bit rounding, of 7 steps to each side of 0
STEPS = 7
DATA = [  # what the card of an adapter says
    {
        "name": "Czech-English Manual Word Alignment: sentences with links",
        "license": "cc-by-sa-4.0",
        "url": "https://hdl.handle.net/11234/1-1804",
        "languages": ["en", "cs"],
    },
    {
        "name": "NTREX-128: translations",
        "license": "cc-by-sa-4.0",
        "url": "https://github.com/MicrosoftTranslator/NTREX",
        "languages": ["en", *LANGUAGES],
    },
]
NOTES = [
    "It learned from, and was scored with, a copy of the base model whose weights are rounded to 4 bits. The weights "
    "on the Hub have not been measured.",
    "The figure of en-cs is of the sentences that it learned from.",
    "It links more words than the rule alone: recall is higher, precision a little lower.",
]

GoldSet = tuple[list[tuple[Side, Side]], dict[int, Gold]]


def write_pairs(hub_root: Path, file: Path) -> None:
    """Writes the NTREX pairs, evenly spaced, as JSON lines."""
    texts = {}
    for language in ("en", *LANGUAGES):
        rows = datasets.load_dataset(str(hub_root / "local" / "ntrex"), language, split="test")
        texts[language] = dict(zip(rows["id"], rows["text"], strict=True))
    ids = list(texts["en"])
    with file.open("w", encoding="utf-8") as stream:
        for language in LANGUAGES:
            for number in range(PAIRS_OF_LANGUAGE):
                row = ids[number * len(ids) // PAIRS_OF_LANGUAGE]
                pair = {"source": texts["en"][row], "target": texts[language][row]}
                stream.write(json.dumps(pair, ensure_ascii=False) + "\n")


def train(model: str, hub_root: Path, seed: int, work: Path) -> Path:
    """Returns the folder of the adapter of a seed; trains it where it is not there."""
    folder = work / f"adapter-{seed}"
    if folder.exists():
        return folder
    pairs = work / "pairs.jsonl"
    if not pairs.exists():
        write_pairs(hub_root, pairs)
    gold = hub_root / "local" / "word-alignment" / "en-cs-train.tsv"
    command = [sys.executable, "-m", "crosslingual_zoo.finetuning.align", "adapt", str(pairs), "--gold", str(gold)]
    command += ["--model", model, "--adapter", "none", "--save-adapter", "--seed", str(seed), "--output", str(folder)]
    if Path(f"{folder}.training").exists():
        command.append("--resume")
    subprocess.run(command, check=True)
    return folder


def read_sets(hub_root: Path) -> Iterator[tuple[str, GoldSet]]:
    """Yields the name of each set, and its pairs with their gold links."""
    folder = hub_root / "local" / "word-alignment"

    def read(files: list[str], gold: str, base: int, columns: list[str] | None = None) -> GoldSet:
        reader = PairReader([str(folder / file) for file in files], "text", columns)
        return read_with_gold(reader, str(folder / gold), base)

    yield "de-en", read(["de-en/test.de", "de-en/test.en"], "de-en/alignv2.txt", 0)
    yield "en-fr", read(["en-fr/test.en", "en-fr/test.fr"], "en-fr/alignv2.txt", 1)
    yield "zh-en", read(["zh-en/zhen.src-tgt"], "zh-en/zhen.gold", 1)
    tables = {f"en-{language}": f"xl-wa-dev/{language}.tsv" for language in XL_WA} | {"en-cs": "en-cs-train.tsv"}
    for name, table in tables.items():
        yield name, read([table], table, 0, ["1", "2"])


def add_noise(model: torch.nn.Module, seed: int) -> None:
    """Moves every matrix by at most half a step of 4-bit rounding."""
    generator = torch.Generator().manual_seed(seed)
    for matrix in model.state_dict().values():
        if matrix.ndim != 2:
            continue
        blocks = matrix.reshape(-1, BLOCK)
        step = blocks.abs().amax(1, keepdim=True) / STEPS
        noise = torch.rand(blocks.shape, generator=generator) - 0.5
        matrix.copy_((blocks + noise * step).reshape(matrix.shape))


def calibration_error(links: list[tuple[float, bool]]) -> float:
    """The mean distance between probabilities and the share of right links; `links` are (probability, is right)."""
    excess_of_bins = [0.0] * BINS  # of the sum of probabilities over the number of right links
    for probability, is_right in links:
        number = int((probability - LEAST_PROBABILITY) / (1 - LEAST_PROBABILITY) * BINS)
        excess_of_bins[min(number, BINS - 1)] += probability - is_right
    return sum(map(abs, excess_of_bins)) / len(links)


def score_set(aligner: WordAligner, pairs: list[tuple[Side, Side]], gold: dict[int, Gold]) -> dict[str, float]:
    """AER, precision and recall of the links in percent, and their calibration error."""
    alignments = with_likely_links(aligner).align((pairs[number] for number in gold), probabilities=True)
    links: dict[int, list[tuple[int, int]]] = {}
    judged = []
    for (number, gold_links), alignment in zip(gold.items(), alignments, strict=True):
        links[number] = []
        for link, probability in zip(alignment.links, alignment.probabilities, strict=True):
            if probability >= LEAST_PROBABILITY:
                links[number].append(link)
                judged.append((probability, link in gold_links.possible))
    scores = score(links, gold)
    shown = {name: scores[name] for name in ("aer", "precision", "recall")}
    return shown | {"calibration_error": calibration_error(judged)}


def main(argv: list[str] | None = None) -> None:
    parser = make_parser(__doc__, "aligner_adapter")
    text = f"encoder (default {DEFAULT_MODEL})"
    parser.add_argument("--model", metavar="DIR|ID", default=DEFAULT_MODEL, help=text)
    text = "folder with the local copies of data"
    parser.add_argument("--hub_root", metavar="DIR", required=True, help=text)
    parser.add_argument("--work", metavar="DIR", default="runs/aligner_adapter", help="folder for the adapters")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="N", help="seeds of training (default 1)")
    text = "seeds of noisy copies of the encoder (default: none)"
    parser.add_argument("--noise", type=int, nargs="*", default=[], metavar="N", help=text)
    flags = parser.parse_args(argv)
    with user_errors():
        hub_root = Path(flags.hub_root)
        work = Path(flags.work)
        work.mkdir(parents=True, exist_ok=True)
        adapters = {f"seed {seed}": train(flags.model, hub_root, seed, work) for seed in flags.seeds}
        sets = dict(read_sets(hub_root))
        rows: list[dict[str, Any]] = []
        for noise in (None, *flags.noise):
            for name, adapter in {"rule alone": None, **adapters}.items():
                aligner = WordAligner.from_pretrained(flags.model, adapter=None)
                if noise is not None:
                    add_noise(aligner.states.model, noise)
                if adapter:
                    aligner = with_adapter(aligner, adapter)
                row = {"noise": noise, "adapter": name}
                scores = {set_name: score_set(aligner, *gold_set) for set_name, gold_set in sets.items()}
                rows.append(row | {"scores": scores})
                lines = [{"set": set_name} | scores_of_set for set_name, scores_of_set in scores.items()]
                show(f"{name}, noise {noise}", lines)
        without_noise = {row["adapter"]: row["scores"] for row in rows if row["noise"] is None}
        for name, adapter in adapters.items():
            describe(adapter, without_noise["rule alone"], without_noise[name], sets)
        write_results(flags, {"rows": rows})


def describe(folder: Path, before: dict[str, dict[str, float]], after: dict[str, dict[str, float]], sets: dict) -> None:
    """Writes what the card says of data and scores, and leaves the probabilities with the calibration of the rule:
    that of one pair of languages does not hold for others."""
    settings_file = folder / ADAPTER_SETTINGS
    write_json(settings_file, read_json(settings_file) | {"word_alignment_calibration": None})
    facts = read_json(folder / "adaptation.json")
    facts["data"] = [data | {"rows": read["rows"]} for data, read in zip(DATA, facts["data"], strict=True)]
    facts["notes"] = NOTES
    facts["scores"] = []
    for name, (_, gold) in sets.items():
        aer = {"before": round(before[name]["aer"], 2), "after": round(after[name]["aer"], 2)}
        facts["scores"].append({"name": name, "sentences": len(gold)} | aer)
    write_json(folder / "adaptation.json", facts)


def with_adapter(aligner: WordAligner, folder: Path) -> WordAligner:
    """An aligner of the same weights with an adapter, and the rule's own calibration."""
    encoder = merge_adapter(aligner.states.model, folder)
    return WordAligner(encoder, aligner.tokenizer, layer=aligner.layer, slope=1.0, offset=0.0)


if __name__ == "__main__":
    main()
