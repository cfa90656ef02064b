"""`word-align adapt`: trains the encoder to align, on the user's own pairs, on gold links, or on both.

Some pairs and some gold links are held out. They show what was learned; the gold links also calibrate probabilities.
Pre-training, a separate program, learns from the others with the recipe below, and writes a checkpoint folder.
FOLDER.training, next to FOLDER, has what --resume needs, the log and the curves.
"""

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from crosslingual_zoo.finetuning.align.common import (
    load_aligner,
    make_parser,
    make_progress,
    read_pairs,
    refuse,
    report_running_text,
    with_likely_links,
)
from crosslingual_zoo.finetuning.align.gold import Gold
from crosslingual_zoo.finetuning.align.pairs import PairReader, Side
from crosslingual_zoo.finetuning.align.score import calibration, read_with_gold, score_links
from crosslingual_zoo.zoo_core.console import say_loading
from crosslingual_zoo.zoo_core.processes import Stopped, at_once, held_signals, stop_signals
from crosslingual_zoo.zoo_core.provenance import read_json, version_line, write_json
from crosslingual_zoo.zoo_core.recipes import read_yaml
from crosslingual_zoo.zoo_core.run_folders import STEP, remove_own, run_lock

RECIPES = "pretraining/recipes/xlm_align/aligner.yaml", "pretraining/recipes/xlm_align/aligner_gold.yaml"
PAIRS, GOLD = "pairs.jsonl", "gold.jsonl"
ADAPTER_SETTINGS = "word_alignment.json"  # as in modeling/word_alignment.py, which imports torch
LEAST_PAIRS, MOST_PAIRS, LEAST_GOLD = 40, 20_000, 20  # a run trains on one or two thousand
LEAST_HELD_OUT, LEAST_HELD_OUT_GOLD, MOST_HELD_OUT = 20, 5, 200
GOLD_SCORE = "held-out gold, AER of {:,} sentences (%)"
LONGEST = 128  # positions of a pair; what is longer is cut
USAGE = "word-align adapt [FILE | SOURCE TARGET] [--gold FILE ...] --output FOLDER [--model FOLDER|ID] [options]"
DESCRIPTION = """Train an encoder to align, in minutes: on your own pairs, on gold links (made by people), or on both.

  word-align adapt pairs.txt --output adapted
  word-align adapt pairs.txt --gold en-bg.tsv en-ru.tsv --output adapted    also on gold links, of any languages
  word-align adapt --gold en-ru.tsv --output adapted                        on gold links only
  word-align adapt pairs.txt --output adapted --resume                      after Ctrl-C
  word-align --model adapted pairs.txt > links.txt
  word-align adapt pairs.txt --output learned --save-adapter                write the changes: a megabyte, not 470
  word-align --adapter learned pairs.txt > links.txt

AER (alignment error rate) is the share of wrong and missing links.

A FILE of --gold has three columns with tabs between: source, target, links (`0-0 1-2 2p1`). You need at least 40 pairs,
or 20 pairs with gold links; a thousand is better. The command holds out a tenth of them. FOLDER is a checkpoint of the
zoo, or with --save-adapter a LoRA adapter of --model. It has the layer to align by and, with --gold, the calibration of
the probabilities. The log and the curves are in FOLDER.training.

Training begins without the zoo's adapter, which word-align uses with the default encoder, and which aligned better than
encoders that were adapted to translations alone. --adapter default begins with it."""

Pairs = list[tuple[Side, Side]]


@dataclass
class GoldPairs:
    """Pairs, and the gold links of some of them by their number."""

    pairs: Pairs
    links: dict[int, Gold]


def read_options(arguments: list[str]) -> Namespace:
    """Returns the parsed command line."""
    parser = make_parser("word-align adapt", DESCRIPTION, USAGE, links_words=False)
    group = parser.add_argument_group("adaptation")
    text = "new folder for the adapted model; later, give it as --model"
    group.add_argument("--output", required=True, metavar="FOLDER", help=text)
    group.add_argument("--resume", action="store_true", help="resume a run that was stopped")
    text = "train on these tables: source, target, links, with tabs between"
    group.add_argument("--gold", nargs="+", metavar="FILE", default=[], help=text)
    text = "write a LoRA adapter in PEFT's format, the changes of --model alone, and not the whole model"
    group.add_argument("--save-adapter", action="store_true", help=text)
    group.add_argument("--seed", type=int, metavar="N", default=1, help="seed of the training (default: 1)")
    parser.set_defaults(adapter="none")
    options = parser.parse_args(arguments)
    if options.gold and not options.files:
        refuse(parser, options, "format columns languages split", "without a file of pairs")
    return options


def run(options: Namespace) -> None:
    """Trains, evaluates and writes the folder.

    Raises ValueError for too few pairs, an encoder of another type, a folder that exists or that another command uses,
    and for errors of pre-training.
    """
    output = Path(options.output)
    work = Path(f"{output}.training")  # next to it, also if the name ends in a slash
    if output.exists():
        raise ValueError(f"{output} exists. Name another --output for the adapted model.")
    if options.resume and not work.exists():
        raise ValueError(f"There is nothing to resume: {work} does not exist. Leave out --resume.")
    if work.exists() and not options.resume:
        raise ValueError(f"{work} exists from an earlier run. Add --resume to resume that run, or remove the folder.")
    say_loading(options.model)
    with run_lock(work):
        adapt_in(work, output, options)


def adapt_in(work: Path, output: Path, options: Namespace) -> None:
    """As `run`, in a folder for what --resume needs."""
    pairs, held_out, rows, gold = [], [], [], None
    if options.files or not options.gold:
        pairs, held_out = read_own_pairs(read_pairs(options, options.split))
    if options.gold:
        tables = [GoldPairs(*read_with_gold(PairReader([file], "text", ["1", "2"]), file, 0)) for file in options.gold]
        rows, gold = read_own_gold(tables)
    length = check_encoder(options.model, options.trust_remote_code)
    layer, before = scores_of(options, held_out, gold)
    keep_rows(work / PAIRS, [as_row(*pair, split=bool(rows)) for pair in pairs])
    keep_rows(work / GOLD, rows)
    model = work / "run" / "model"
    if not model.exists():
        train(options, work, layer, length, bool(pairs), bool(rows))
    result = model
    adapted = Namespace(**vars(options) | {"model": str(model), "adapter": "none"})
    settings_file = model / "config.json"
    if options.save_adapter:
        result = work / "adapter"
        adapted = Namespace(**vars(options) | {"adapter": str(result)})
        settings_file = result / ADAPTER_SETTINGS
        write_adapter(options, model, layer, result)
    # without gold, the calibration of the model before no longer holds
    settings: dict[str, Any] = {"word_alignment_layer": layer, "word_alignment_calibration": None}
    write_json(settings_file, read_json(settings_file, {}) | settings)
    _, after = scores_of(adapted, held_out, gold)
    if gold:
        settings["word_alignment_calibration"] = fit_calibration(adapted, layer, gold)
    write_json(settings_file, read_json(settings_file) | settings)
    if options.save_adapter:
        facts = describe_training(options, work, len(pairs), len(rows))
        if gold:
            name = GOLD_SCORE.format(len(gold.links))
            scores = {"before": before[name], "after": after[name]}
            facts["scores"].append({"name": "held-out sentences", "sentences": len(gold.links)} | scores)
        write_json(result / "adaptation.json", facts)
    result.rename(output)
    remove_own(work / "run" / "checkpoints", STEP)
    for what, value in before.items():
        print(f"{what}: {value:.3g} before, {after[what]:.3g} after")
    kind = "adapter" if options.save_adapter else "model"
    print(f"written: {output}, {kind} for layer {layer}")


def write_adapter(options: Namespace, trained: Path, layer: int, folder: Path) -> None:
    """Writes what training changed of --model as an adapter; also what --adapter had changed before."""
    from crosslingual_zoo.finetuning.align.adapter import save_adapter

    base = load_aligner(Namespace(**vars(options) | {"adapter": "none"}), layer=layer)
    learned = load_aligner(Namespace(**vars(options) | {"adapter": "none", "model": str(trained)}), layer=layer)
    save_adapter(base.states.model, learned.states.model, folder, options.model)


def describe_training(options: Namespace, work: Path, pairs: int, gold_sentences: int) -> dict[str, Any]:
    """What the card of an adapter says: data and settings. Its owner adds licenses, addresses, scores and notes."""
    recipe = read_yaml(str(work / "run" / "recipe.yaml"))
    (phase,) = recipe["phases"]
    data = []
    if gold_sentences:
        files = ", ".join(Path(file).name for file in options.gold)
        data.append({"name": f"gold links: {files}", "rows": gold_sentences})
    if pairs:
        files = ", ".join(Path(file).name for file in options.files) or "stdin"
        data.append({"name": f"translations: {files}", "rows": pairs})
    settings = {
        "objectives": ", ".join(phase["objectives"]),
        "steps": phase["steps"],
        "learning rate": phase["learning_rate"],
        "seed": recipe["seed"],
        "software": version_line(),
    }
    return {"data": data, "settings": settings, "scores": [], "notes": []}


def start_of(options: Namespace, work: Path) -> str:
    """The encoder that training starts from: --model or, where an adapter is used, a folder of both together."""
    from crosslingual_zoo.finetuning.models import find_model
    from crosslingual_zoo.modeling.word_alignment import find_adapter

    if find_adapter(options.adapter, options.model) is None:
        return find_model(options.model)
    start = work / "start"
    if not start.exists():
        aligner = load_aligner(options, all_layers=True)
        partial_folder = work / "start.partial"
        aligner.states.model.save_pretrained(partial_folder)
        aligner.tokenizer.save_pretrained(partial_folder)
        partial_folder.rename(start)
    return str(start)


def read_own_pairs(reader: PairReader) -> tuple[Pairs, Pairs]:
    """Returns the pairs to train on, and those held out; samples a long file evenly. Raises ValueError for too few."""
    total = reader.check() or 0
    every = max(1, total // MOST_PAIRS)
    pairs = [pair for pair in islice(reader, 0, None, every) if all("".join(side).strip() for side in pair)]
    report_running_text(reader.running_text)
    if len(pairs) < LEAST_PAIRS:
        found = f"{reader.name} has {len(pairs):,} pairs with words on both sides"
        raise ValueError(f"{found}. Give at least {LEAST_PAIRS}; a thousand is better.")
    step = step_of(len(pairs), LEAST_HELD_OUT)
    return [pair for number, pair in enumerate(pairs) if number % step], pairs[::step]


def check_encoder(model: str, trust_remote_code: bool) -> int:
    """Its longest input. Raises ValueError for a model that pre-training cannot start from."""
    from crosslingual_zoo.finetuning.models import describe_model
    from crosslingual_zoo.modeling.configuration_encoder import ARCHITECTURES, LOADABLE, longest_input

    encoders = (*LOADABLE, *ARCHITECTURES)  # what XLM-Align's pre-training starts from
    _, config, tokenizer, identity = describe_model(model, trust_remote_code=trust_remote_code)
    if identity["type"] not in encoders:
        raise ValueError(f"{model} is of type {identity['type']}. Name a --model of type {', '.join(encoders)}.")
    if tokenizer.mask_token_id is None:
        raise ValueError(f"The tokenizer of {model} has no mask token, which training needs. Name another --model.")
    return longest_input(config)


def read_own_gold(tables: list[GoldPairs]) -> tuple[list[dict[str, str]], GoldPairs]:
    """The rows of gold to train on, and an even tenth of all that is held out. Raises ValueError for too few."""
    pairs = [table.pairs[number] for table in tables for number in table.links]
    links = [of for table in tables for of in table.links.values()]
    usable = [number for number, pair in enumerate(pairs) if all(pair) and links[number].possible]
    if len(usable) < LEAST_GOLD:
        found = f"--gold has {len(usable):,} sentences with links"
        raise ValueError(f"{found}. Give at least {LEAST_GOLD}; hundreds are better.")
    held_out = usable[:: step_of(len(usable), LEAST_HELD_OUT_GOLD)]
    rows = []
    for number in sorted(set(usable) - set(held_out)):
        of = links[number]
        written = " ".join(f"{i}{'-' if (i, j) in of.sure else 'p'}{j}" for i, j in sorted(of.possible))
        rows.append(as_row(*pairs[number]) | {"links": written})
    return rows, GoldPairs(pairs, {number: links[number] for number in held_out})


def step_of(count: int, least: int) -> int:
    """Returns n to hold out every n-th of `count` pairs: a tenth of them, at least `least` and at most 200."""
    return count // min(MOST_HELD_OUT, max(least, count // 10))


def scores_of(options: Namespace, pairs: Pairs, gold: GoldPairs | None) -> tuple[int, dict[str, float]]:
    """Returns the layer to align by, and named scores of its links on what is held out."""
    aligner = load_aligner(options)
    aligner.layer = max(aligner.layer, 1)  # embeddings are not trained
    pairs = pairs + ([gold.pairs[number] for number in gold.links] if gold else [])
    sources, targets = zip(*pairs, strict=True)
    mismatched = zip(sources, [*targets[1:], targets[0]], strict=True)
    found = {
        f"source words with a link in {len(pairs):,} held-out pairs (%)": share_linked(aligner, pairs),
        "the same in wrong pairs, where fewer is better (%)": share_linked(aligner, mismatched),
    }
    if gold:
        aer = score_links(aligner, gold.pairs, gold.links)["aer"]
        found[GOLD_SCORE.format(len(gold.links))] = aer
    return aligner.layer, found


def share_linked(aligner: Any, pairs: Iterable[tuple[Side, Side]]) -> float:
    """Returns how many of the source words have a link, in percent."""
    found = list(aligner.align(pairs))
    linked = sum(len({source for source, _ in of.links}) for of in found)
    return 100 * linked / max(1, sum(len(of.source) for of in found))


def fit_calibration(options: Namespace, layer: int, gold: GoldPairs) -> list[float]:
    """Slope and offset of the logits of links, fitted to held-out gold: see `WordAligner`."""
    aligner = load_aligner(options, layer=layer, slope=1.0, offset=0.0)
    found = with_likely_links(aligner).align((gold.pairs[number] for number in gold.links), probabilities=True)
    return calibration(
        [
            (probability, link in of.possible)
            for alignment, of in zip(found, gold.links.values(), strict=True)
            for link, probability in zip(alignment.links, alignment.probabilities, strict=True)
        ]
    )


def as_row(source: Side, target: Side, split: bool = False) -> dict[str, str]:
    """A pair as pre-training reads it; split: texts as words between spaces, as the aligner splits them."""
    from crosslingual_zoo.modeling.word_tokens import split_words

    words = split_words([source, target])[0] if split else [source, target]
    source, target = (side if isinstance(side, str) else " ".join(side) for side in words)
    return {"source": source, "target": target}


def keep_rows(path: Path, rows: list[dict[str, str]]) -> None:
    """Writes rows as JSONL. Raises ValueError if the folder has a model that was trained on other rows."""
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    if (path.parent / "run" / "model").exists():
        raise ValueError(
            f"{path.parent} has a model that was trained on other pairs. Give those pairs again, or remove the folder."
        )
    path.write_text(text, encoding="utf-8")


def train(options: Namespace, work: Path, layer: int, length: int, has_pairs: bool, has_gold: bool) -> None:
    """Runs pre-training to its end, by the states of `layer` and with pairs of at most `length` positions.

    Ctrl-C and SIGTERM let it save its state first, and end this program with 130 and 143.

    Raises ValueError with what pre-training refuses.
    """
    run, log, recipe = work / "run", work / "log.txt", RECIPES[has_gold]
    languages = {"source_language": "source", "target_language": "target"}
    settings = {
        "output_dir": json.dumps(str(run), ensure_ascii=False),  # JSON is YAML: a name may have any characters
        "model.start_from": json.dumps(start_of(options, work), ensure_ascii=False),
        "trust_remote_code": options.trust_remote_code,
        "model.config.alignment_layer": layer,
        "seed": options.seed,
    }
    if has_gold:
        tables = [{"name": "gold", "path": str(work / GOLD), "size": 1}]
        if has_pairs:
            tables.append({"name": "pairs", "path": str(work / PAIRS), "size": 1, "links_column": None})
        settings["linked"] = json.dumps([languages | table for table in tables])
        settings["phases.0.objectives.word_links.max_length"] = min(length, LONGEST)
    else:
        columns = {"source_column": "source", "target_column": "target"}
        settings["bitext"] = json.dumps([languages | columns | {"table": {"path": str(work / PAIRS)}}])
        settings["phases.0.objectives.tlm.max_length"] = min(length, LONGEST)
    # -P: a package `modeling` of the user's folder does not hide ours
    command = [sys.executable, "-P", "-m", "crosslingual_zoo.pretraining.run", "--config", recipe]
    command += [f"{name}={value}" for name, value in settings.items()]
    command += ["--resume"] if (run / "recipe.yaml").exists() else []
    root = str(Path(__file__).parents[3])  # of crosslingual_zoo
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    places = {"PYTHONPATH": paths} | ({"ACCELERATE_USE_CPU": "true"} if options.device == "cpu" else {})
    with (
        stop_signals("resume with the same command and --resume"),
        held_signals(),  # until there is a process to pass them to
        log.open("a", encoding="utf-8") as stream,
        make_progress() as progress,
    ):
        progress.add_task(f"training for some minutes, log: {log}", total=None)
        # in a group of its own: a terminal's Ctrl-C would come twice, and the second one stops it before it has saved
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=os.environ | places, process_group=0
        )
        try:
            with at_once():
                process.wait()
        except Stopped as stop:
            process.send_signal(stop.signal)
            process.wait()
            raise
    if process.returncode:
        said = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        raise ValueError(f"{said[-1] if said else 'Pre-training failed.'} (The log is {log}.)")
