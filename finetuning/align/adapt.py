"""`word-align adapt`: trains the encoder to align, on the user's own pairs, on gold links, or on both.

Some pairs and some gold links are held out. They show what was learned; the gold links also calibrate probabilities.
Pre-training, a separate program, learns from the others with the recipe below, and writes a checkpoint folder.
FOLDER.training, next to FOLDER, has what --resume needs, the log and the curves.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from crosslingual_zoo.finetuning.align.common import (
    AlignerOptions,
    InputOptions,
    load_aligner,
    make_parser,
    make_progress,
    pick,
    refuse,
    report_running_text,
    with_likely_links,
)
from crosslingual_zoo.finetuning.align.gold import Gold
from crosslingual_zoo.finetuning.align.pairs import PairReader, Side
from crosslingual_zoo.finetuning.align.score import calibration, read_with_gold, score_links
from crosslingual_zoo.zoo_core.console import CONSOLE, say_loading
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


class Data(NamedTuple):
    """What is trained on, and what is held out; without --gold there are no rows and no held-out gold."""

    pairs: Pairs
    gold_rows: list[dict[str, str]]
    held_out: Pairs
    held_out_gold: GoldPairs | None


@dataclass(frozen=True)
class TrainingOptions:
    """The folder to write, whether its run is resumed, tables of gold links, and how the model is trained and saved."""

    output: str
    resume: bool
    gold: list[str]
    save_adapter: bool
    seed: int


def read_options(arguments: list[str]) -> tuple[AlignerOptions, InputOptions, TrainingOptions]:
    """Returns the parsed command line."""
    parser = make_parser("word-align adapt", DESCRIPTION, USAGE, links_words=False)
    group = parser.add_argument_group("adaptation")
    group.add_argument(
        "--output", required=True, metavar="FOLDER", help="new folder for the adapted model; later, give it as --model"
    )
    group.add_argument("--resume", action="store_true", help="resume a run that was stopped")
    group.add_argument(
        "--gold",
        nargs="+",
        metavar="FILE",
        default=[],
        help="train on these tables: source, target, links, with tabs between",
    )
    group.add_argument(
        "--save-adapter",
        action="store_true",
        help="write a LoRA adapter in PEFT's format, the changes of --model alone, and not the whole model",
    )
    group.add_argument("--seed", type=int, metavar="N", default=1, help="seed of the training (default: 1)")
    parser.set_defaults(adapter="none")
    options = parser.parse_args(arguments)
    if options.gold and not options.files:
        refuse(parser, options, "format columns languages split", "without a file of pairs")
    return pick(AlignerOptions, options), pick(InputOptions, options), pick(TrainingOptions, options)


def run(options: AlignerOptions, texts: InputOptions, training: TrainingOptions) -> None:
    """Trains, evaluates and writes the folder.

    Raises ValueError for too few pairs, an encoder of another type, a folder that exists or that another command uses,
    and for errors of pre-training.
    """
    output = Path(training.output)
    work = Path(f"{output}.training")  # next to it, also if the name ends in a slash
    if output.exists():
        raise ValueError(f"{output} exists. Name another --output for the adapted model.")
    if work.exists() and not training.resume:
        raise ValueError(f"{work} exists from an earlier run. Add --resume to resume that run, or remove the folder.")
    say_loading(options.model)
    with run_lock(work):
        adapt_in(work, options, texts, training)


def adapt_in(work: Path, options: AlignerOptions, texts: InputOptions, training: TrainingOptions) -> None:
    """As `run`, in a folder for what --resume needs."""
    data = read_data(texts, training.gold)
    longest = check_encoder(options.model, options.trust_remote_code)
    layer, before = scores_of(options, data)
    write_training_files(work, data)
    model = work / "run" / "model"
    if not model.exists():
        settings = training_settings(data, work, start_of(options, work), layer, longest)
        settings |= {"seed": training.seed, "trust_remote_code": options.trust_remote_code}
        train(work, settings, RECIPES[bool(data.gold_rows)], options.device)
    if training.save_adapter:
        result = work / "adapter"
        write_adapter(options, model, layer, result)
        adapted = replace(options, adapter=str(result))
        after = write_settings(adapted, result / ADAPTER_SETTINGS, layer, data)
        write_facts(work, texts.files, training.gold, data, before, after)
    else:
        result = model
        adapted = replace(options, model=str(model), adapter="none")
        after = write_settings(adapted, result / "config.json", layer, data)
    result.rename(training.output)
    remove_own(work / "run" / "checkpoints", STEP)
    for name, score in before.items():
        print(f"{name}: {score:.3g} before, {after[name]:.3g} after")
    kind = "adapter" if training.save_adapter else "model"
    print(f"written: {training.output}, {kind} for layer {layer}")


def read_data(texts: InputOptions, gold_files: list[str]) -> Data:
    """Reads the pairs and the gold links, and holds some of both out."""
    pairs: Pairs = []
    held_out: Pairs = []
    if texts.files or not gold_files:
        pairs, held_out = read_own_pairs(texts.reader(texts.split))
    if not gold_files:
        return Data(pairs, [], held_out, None)
    tables = []
    for file in gold_files:
        reader = PairReader([file], "text", ["1", "2"])
        tables.append(GoldPairs(*read_with_gold(reader, file, 0)))
    rows, held_out_gold = read_own_gold(tables)
    return Data(pairs, rows, held_out, held_out_gold)


def write_training_files(work: Path, data: Data) -> None:
    """Writes what pre-training reads."""
    is_split = bool(data.gold_rows)
    keep_rows(work / PAIRS, [as_row(source, target, is_split) for source, target in data.pairs])
    keep_rows(work / GOLD, data.gold_rows)


def write_settings(adapted: AlignerOptions, file: Path, layer: int, data: Data) -> dict[str, float]:
    """Writes the layer and the calibration of what was trained to its settings, and returns its scores."""
    # without gold, the calibration of the model before no longer holds
    settings: dict[str, Any] = {"word_alignment_layer": layer, "word_alignment_calibration": None}
    write_json(file, read_json(file, {}) | settings)
    _, scores = scores_of(adapted, data)
    if data.held_out_gold:
        settings["word_alignment_calibration"] = fit_calibration(adapted, layer, data.held_out_gold)
    write_json(file, read_json(file) | settings)
    return scores


def write_adapter(options: AlignerOptions, trained: Path, layer: int, folder: Path) -> None:
    """Writes what training changed of --model as an adapter; also what --adapter had changed before."""
    from crosslingual_zoo.finetuning.align.adapter import save_adapter

    base = load_aligner(replace(options, adapter="none"), layer=layer)
    learned = load_aligner(replace(options, adapter="none", model=str(trained)), layer=layer)
    save_adapter(base.states.model, learned.states.model, folder, options.model)


def write_facts(
    work: Path,
    files: list[str],
    gold_files: list[str],
    data: Data,
    before: dict[str, float],
    after: dict[str, float],
) -> None:
    """Writes what the card of an adapter says: data, settings and scores. Its owner adds licenses and notes."""
    recipe = read_yaml(str(work / "run" / "recipe.yaml"))
    (phase,) = recipe["phases"]
    tables = []
    if data.gold_rows:
        names = ", ".join(Path(file).name for file in gold_files)
        tables.append({"name": f"gold links: {names}", "rows": len(data.gold_rows)})
    if data.pairs:
        names = ", ".join(Path(file).name for file in files) or "stdin"
        tables.append({"name": f"translations: {names}", "rows": len(data.pairs)})
    settings = {
        "objectives": ", ".join(phase["objectives"]),
        "steps": phase["steps"],
        "learning rate": phase["learning_rate"],
        "seed": recipe["seed"],
        "software": version_line(),
    }
    scores = []
    if data.held_out_gold:
        sentences = len(data.held_out_gold.links)
        name = GOLD_SCORE.format(sentences)
        row = {"name": "held-out sentences", "sentences": sentences, "before": before[name], "after": after[name]}
        scores.append(row)
    facts = {"data": tables, "settings": settings, "scores": scores, "notes": []}
    write_json(work / "adapter" / "adaptation.json", facts)


def start_of(options: AlignerOptions, work: Path) -> str:
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
    stride = max(1, total // MOST_PAIRS)
    pairs = [pair for pair in islice(reader, 0, None, stride) if has_words(pair)]
    report_running_text(reader.running_text)
    if len(pairs) < LEAST_PAIRS:
        raise ValueError(
            f"{reader.name} has {len(pairs):,} pairs with words on both sides. Give at least {LEAST_PAIRS}; a thousand "
            "is better."
        )
    step = step_of(len(pairs), LEAST_HELD_OUT)
    return [pair for number, pair in enumerate(pairs) if number % step], pairs[::step]


def has_words(pair: tuple[Side, Side]) -> bool:
    """Whether both sides have words."""
    return all("".join(side).strip() for side in pair)


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
    pairs: Pairs = []
    links: list[Gold] = []
    for table in tables:
        for number, gold in table.links.items():
            pairs.append(table.pairs[number])
            links.append(gold)
    usable = [number for number, pair in enumerate(pairs) if all(pair) and links[number].possible]
    if len(usable) < LEAST_GOLD:
        raise ValueError(
            f"--gold has {len(usable):,} sentences with links. Give at least {LEAST_GOLD}; hundreds are better."
        )
    step = step_of(len(usable), LEAST_HELD_OUT_GOLD)
    held_out = {number: links[number] for number in usable[::step]}
    rows = []
    for number in usable:
        if number not in held_out:
            row = as_row(*pairs[number])
            row["links"] = as_pharaoh(links[number])
            rows.append(row)
    return rows, GoldPairs(pairs, held_out)


def as_pharaoh(gold: Gold) -> str:
    """`0-0 1p2`: sure and possible links."""
    items = []
    for source, target in sorted(gold.possible):
        sign = "-" if (source, target) in gold.sure else "p"
        items.append(f"{source}{sign}{target}")
    return " ".join(items)


def step_of(count: int, least: int) -> int:
    """Returns n to hold out every n-th of `count` pairs: a tenth of them, at least `least` and at most 200."""
    return count // min(MOST_HELD_OUT, max(least, count // 10))


def scores_of(options: AlignerOptions, data: Data) -> tuple[int, dict[str, float]]:
    """Returns the layer to align by, and named scores of its links on what is held out."""
    aligner = load_aligner(options)
    aligner.layer = max(aligner.layer, 1)  # embeddings are not trained
    gold = data.held_out_gold
    pairs = list(data.held_out)
    if gold:
        pairs += [gold.pairs[number] for number in gold.links]
    sources, targets = zip(*pairs, strict=True)
    mismatched = zip(sources, [*targets[1:], targets[0]], strict=True)
    scores = {
        f"source words with a link in {len(pairs):,} held-out pairs (%)": share_linked(aligner, pairs),
        "the same in wrong pairs, where fewer is better (%)": share_linked(aligner, mismatched),
    }
    if gold:
        name = GOLD_SCORE.format(len(gold.links))
        scores[name] = score_links(aligner, gold.pairs, gold.links)["aer"]
    return aligner.layer, scores


def share_linked(aligner: Any, pairs: Iterable[tuple[Side, Side]]) -> float:
    """Returns how many of the source words have a link, in percent."""
    words = 0
    linked = 0
    for alignment in aligner.align(pairs):
        words += len(alignment.source)
        linked += len({source for source, _ in alignment.links})
    return 100 * linked / max(1, words)


def fit_calibration(options: AlignerOptions, layer: int, gold: GoldPairs) -> list[float]:
    """Slope and offset of the logits of links, fitted to held-out gold: see `WordAligner`."""
    aligner = with_likely_links(load_aligner(options, layer=layer, slope=1.0, offset=0.0))
    pairs = [gold.pairs[number] for number in gold.links]
    candidates = []
    for alignment, links in zip(aligner.align(pairs, probabilities=True), gold.links.values(), strict=True):
        for link, probability in zip(alignment.links, alignment.probabilities, strict=True):
            candidates.append((probability, link in links.possible))
    return calibration(candidates)


def as_row(source: Side, target: Side, is_split: bool = False) -> dict[str, str]:
    """A pair as pre-training reads it; is_split: texts as words between spaces, as the aligner splits them."""
    from crosslingual_zoo.modeling.word_tokens import split_words

    sides = [source, target]
    if is_split:
        sides, _ = split_words(sides)
    texts = [side if isinstance(side, str) else " ".join(side) for side in sides]
    return {"source": texts[0], "target": texts[1]}


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


def train(work: Path, settings: dict[str, Any], recipe: str, device: str | None) -> None:
    """Runs pre-training to its end, with settings that replace those of a recipe.

    Ctrl-C and SIGTERM let it save its state first, and end this program with 130 and 143.

    Raises ValueError with what pre-training refuses.
    """
    # -P: a package `modeling` of the user's folder does not hide ours
    command = [sys.executable, "-P", "-m", "crosslingual_zoo.pretraining.run", "--config", recipe]
    command += [f"{name}={value}" for name, value in settings.items()]
    if (work / "run" / "recipe.yaml").exists():
        command.append("--resume")
    log = work / "log.txt"
    CONSOLE.print(f"training; its log is {log}")
    status = wait_for(command, training_environment(device), log)
    if status:
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        reason = lines[-1] if lines else "Pre-training failed."
        raise ValueError(f"{reason} (The log is {log}.)")


def training_settings(data: Data, work: Path, start: str, layer: int, longest: int) -> dict[str, Any]:
    """Returns the settings of training from an encoder `start`, by the states of `layer` and with pairs of at most
    `longest` positions."""
    settings = {
        "output_dir": json.dumps(str(work / "run"), ensure_ascii=False),  # JSON is YAML: a name may have any characters
        "model.start_from": json.dumps(start, ensure_ascii=False),
        "model.config.alignment_layer": layer,
    }
    pairs_path = str(work / PAIRS)
    languages = {"source_language": "source", "target_language": "target"}
    if not data.gold_rows:
        columns = {"source_column": "source", "target_column": "target"}
        settings["bitext"] = json.dumps([languages | columns | {"table": {"path": pairs_path}}])
        settings["phases.0.objectives.tlm.max_length"] = min(longest, LONGEST)
        return settings
    tables = [languages | {"name": "gold", "path": str(work / GOLD), "size": 1}]
    if data.pairs:
        tables.append(languages | {"name": "pairs", "path": pairs_path, "size": 1, "links_column": None})
    settings["linked"] = json.dumps(tables)
    settings["phases.0.objectives.word_links.max_length"] = min(longest, LONGEST)
    return settings


def training_environment(device: str | None) -> dict[str, str]:
    """Returns the environment of pre-training, in which Python finds this package."""
    environment = dict(os.environ)
    root = str(Path(__file__).parents[3])  # of crosslingual_zoo
    paths = [root, os.environ.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if device == "cpu":
        environment["ACCELERATE_USE_CPU"] = "true"
    return environment


def wait_for(command: list[str], environment: dict[str, str], log: Path) -> int:
    """Runs a program, passes signals on to it, and returns its status."""
    with (
        stop_signals("resume with the same command and --resume"),
        held_signals(),  # until there is a process to pass them to
        log.open("a", encoding="utf-8") as stream,
        make_progress() as progress,
    ):
        progress.add_task(f"training for some minutes, log: {log}", total=None)
        # in a group of its own: a terminal's Ctrl-C would come twice, and the second one stops it before it has saved
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment, process_group=0)
        try:
            with at_once():
                process.wait()
        except Stopped as stop:
            process.send_signal(stop.signal)
            process.wait()
            raise
    return process.returncode
