"""`word-align adapt`: trains the encoder to align, on the user's own pairs, on gold links, or on both.

Some pairs and some gold links are held out. They determine the layer to align by, and the calibration of probabilities.
Pre-training, a separate program, learns from the others with the recipe below, and writes a checkpoint folder.
FOLDER.training, next to FOLDER, has what --resume needs, the log and the curves.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from finetuning.align.confidence import Confidence
from finetuning.align.gold import Gold
from finetuning.align.loading import clear_layer, load_aligner, memory_errors, report_precision
from finetuning.align.options import ModelOptions, PairOptions, make_parser, require_different_files
from finetuning.align.pairs import PairReader, Side
from finetuning.align.score import add_gold_base, read_with_gold, score_links
from finetuning.align.screen import count_of, make_progress, make_screen, report_unspaced
from zoo_core.processes import Stopped, at_once, held_signals, stop_signals
from zoo_core.provenance import read_json, write_json
from zoo_core.recipes import read_yaml
from zoo_core.run_folders import STEP, remove_own, run_lock

RECIPES = "pretraining/recipes/xlm_align/aligner.yaml", "pretraining/recipes/xlm_align/aligner_gold.yaml"
PAIRS, GOLD = "pairs.jsonl", "gold.jsonl"
LEAST_PAIRS, MOST_PAIRS, LEAST_GOLD = 40, 20_000, 20  # a run trains on one or two thousand
LEAST_HELD_OUT, LEAST_HELD_OUT_GOLD, MOST_HELD_OUT = 20, 5, 200
LONGEST = 128  # positions of a pair; what is longer is cut
SECONDS_A_LOOK = 0.5
USAGE = "word-align adapt [FILE | SOURCE TARGET] [--gold FILE ...] --output FOLDER [--model FOLDER|ID] [options]"
DESCRIPTION = """Train an encoder to align, in minutes: on your own pairs, on gold links (made by people), or on both.

  word-align adapt pairs.txt --output adapted
  word-align adapt pairs.txt --gold en-bg.tsv en-ru.tsv --output adapted    also on gold links, of any languages
  word-align adapt --gold en-ru.tsv --output adapted                        on gold links only
  word-align adapt pairs.txt --output adapted --test test.de test.en alignment.txt            AER before and after
  word-align adapt pairs.txt --output adapted --resume                      after Ctrl-C
  word-align --model adapted pairs.txt > links.txt

AER (alignment error rate) is the share of wrong and missing links.

A FILE of --gold has three columns with tabs between: source, target, links (`0-0 1-2 2p1`). You need at least 40 pairs,
or 20 pairs with gold links; a thousand is better. The command holds out a tenth of them. FOLDER is a checkpoint of the
zoo. Its configuration has the layer to align by and, with --gold, the calibration of the probabilities. The log and the
curves are in FOLDER.training."""

Pairs = list[tuple[Side, Side]]


@dataclass
class AdaptOptions(PairOptions, ModelOptions):
    """The encoder, its training data, the output folder and the test data."""

    output: str = ""
    resume: bool = False
    gold: list[str] = field(default_factory=list)
    gold_links: list[list[str]] = field(default_factory=list)
    test: list[str] = field(default_factory=list)
    gold_base: int | None = None


@dataclass
class GoldPairs:
    """Pairs, and the gold links of some of them by their number."""

    name: str
    pairs: Pairs
    links: dict[int, Gold]

    @property
    def linked(self) -> Pairs:
        """The pairs that have links."""
        return [self.pairs[number] for number in self.links]


@dataclass
class Measured:
    """What the model is measured on, before and after."""

    pairs: Pairs  # held out
    gold: GoldPairs | None  # held out
    test: GoldPairs | None

    def scores(self, options: ModelOptions, screen: Any) -> tuple[int, dict[str, float]]:
        """Returns the layer to align by, and named scores of its links."""
        aligner = load_aligner(options, screen)
        pairs = self.pairs + (self.gold.linked if self.gold else [])
        with screen.status("comparing layers"), memory_errors():
            values = aligner.compare_layers(pairs)
        trainable = {layer: value for layer, value in values.items() if layer > 0}  # 0: the embeddings
        aligner.layer = clear_layer(trainable, aligner.default_layer)
        told = f"{len(pairs):,} held-out pairs, told from mismatched ones by"
        found = {told: values[aligner.layer]}
        for gold in filter(None, (self.gold, self.test)):
            what = f"{gold.name}, AER of {count_of(len(gold.links), 'sentence')} (%)"
            found[what] = score_links(aligner, gold.pairs, gold.links, screen)[0]["aer"]
        return aligner.layer, found


def read_options(arguments: list[str]) -> AdaptOptions:
    """Returns the parsed command line."""
    parser = make_parser("word-align adapt", DESCRIPTION, USAGE, AdaptOptions)
    group = parser.add_argument_group("adaptation")
    output = "new folder for the adapted model; later, give it as --model"
    group.add_argument("--output", required=True, metavar="FOLDER", help=output)
    group.add_argument("--resume", action="store_true", help="resume a run that was stopped")
    group.add_argument(
        "--gold", nargs="+", metavar="FILE", help="train on these tables: source, target, links, with tabs between"
    )
    group.add_argument(
        "--gold-links",
        nargs=3,
        action="append",
        metavar=("SOURCE", "TARGET", "LINKS"),
        help="train on two files of sentences and their links, `sentence i j S|P` or `i-j ipj`; may be repeated",
    )
    text = "evaluate on these before and after: a table as for --gold, or one or two files of sentences and their links"
    group.add_argument("--test", nargs="+", metavar="FILE", help=text)
    add_gold_base(group)
    return parser.parse_args(arguments, AdaptOptions())


def run(options: AdaptOptions) -> None:
    """Trains, evaluates and writes the folder.

    Raises ValueError for too few pairs, an encoder of another type, a folder that exists or that another command uses,
    and for errors of pre-training.
    """
    if len(options.test) > 3:
        raise ValueError(f"--test has {len(options.test)} files. Give a table, PAIRS LINKS or SOURCE TARGET LINKS.")
    output = Path(options.output)
    work = Path(f"{output}.training")  # next to it, also if the name ends in a slash
    gold = [*options.gold, *(path for files in options.gold_links for path in files)]
    read = {"the input": options.files, "--gold": gold, "--test": options.test}
    require_different_files({"--output": options.output}, read)
    has_work = work.exists()
    with run_lock(work):
        check_places(output, work, has_work, options.resume)
        adapt_in(work, output, options)


def adapt_in(work: Path, output: Path, options: AdaptOptions) -> None:
    """As `run`, in a folder for what --resume needs."""
    screen = make_screen(options.quiet)
    pairs, held_out, rows, gold = [], [], [], None
    files = [[path] for path in options.gold] + options.gold_links
    with screen.status("reading the pairs"):
        if options.files or not files:
            pairs, held_out = read_own_pairs(options.read_pairs(options.split), options.split, screen)
        if files:
            rows, gold = read_own_gold([read_gold_pairs(of, options) for of in files])
        test = read_gold_pairs(options.test, options) if options.test else None
    measured = Measured(held_out, gold, test)
    report_precision(options.precision, screen)
    length = check_encoder(options.model, options.tokenizer, options.trust_remote_code)
    layer, before = measured.scores(options, screen)
    write_rows(work / PAIRS, [as_row(*pair) for pair in (with_words(pairs) if rows else pairs)])
    write_rows(work / GOLD, rows)
    model = work / "run" / "model"
    if not model.exists():
        train(options, work, layer, length, bool(pairs), bool(rows), screen)
    adapted = replace(options, model=str(model), tokenizer=None)
    new_layer, after = measured.scores(adapted, screen)
    # without gold, that of the model before no longer holds
    calibration = fit_calibration(adapted, new_layer, gold, screen) if gold else None
    facts = {"word_alignment_layer": new_layer, "word_alignment_calibration": calibration}
    write_json(model / "config.json", read_json(model / "config.json") | facts)
    model.rename(output)
    remove_own(work / "run" / "checkpoints", STEP)
    for what, value in before.items():
        print(f"{what}: {value:.3g} before (layer {layer}), {after[what]:.3g} after (layer {new_layer})")
    print(f"written: {output}, whose configuration recommends layer {new_layer}")


def check_places(output: Path, work: Path, has_work: bool, resume: bool) -> None:
    """Raises ValueError if the folder exists, if there is nothing to resume, and for a stopped run without --resume."""
    if output.exists():
        raise ValueError(f"{output} exists. Name another --output for the adapted model.")
    if resume and not has_work:
        raise ValueError(f"There is nothing to resume: {work} does not exist. Leave out --resume.")
    if has_work and not resume:
        raise ValueError(f"{work} exists from an earlier run. Add --resume to resume that run, or remove the folder.")


def read_own_pairs(reader: PairReader, split: bool | None, screen: Any) -> tuple[Pairs, Pairs]:
    """Returns the pairs to train on, and those held out; samples a long file evenly. Raises ValueError for too few."""
    total = reader.check() or 0
    every = max(1, total // MOST_PAIRS)
    pairs = [pair for pair in islice(reader, 0, None, every) if all("".join(side).strip() for side in pair)]
    if split is None:
        report_unspaced(reader.unspaced, max(total, len(pairs)), screen)
    if len(pairs) < LEAST_PAIRS:
        found = f"{reader.name} has {count_of(len(pairs), 'pair')} with words on both sides"
        raise ValueError(f"{found}. Give at least {LEAST_PAIRS}; a thousand is better.")
    step = step_of(len(pairs), LEAST_HELD_OUT)
    return [pair for number, pair in enumerate(pairs) if number % step], pairs[::step]


def check_encoder(model: str, tokenizer: str | None, trust_remote_code: bool) -> int:
    """Its longest input. Raises ValueError for a model that pre-training cannot start from."""
    from finetuning.models import describe_model
    from modeling.backbone import ARCHITECTURES
    from modeling.model_types import LOADABLE, longest_input

    encoders = (*LOADABLE, *ARCHITECTURES)  # what XLM-Align's pre-training starts from
    _, config, loaded, identity = describe_model(model, tokenizer, trust_remote_code=trust_remote_code)
    if identity["type"] not in encoders:
        raise ValueError(f"{model} is of type {identity['type']}. Name a --model of type {', '.join(encoders)}.")
    if loaded.mask_token_id is None:
        raise ValueError(
            f"The tokenizer of {model} has no mask token, which training needs. Name another --tokenizer or --model."
        )
    return longest_input(config)


def read_gold_pairs(files: list[str], options: AdaptOptions) -> GoldPairs:
    """The pairs and links of a table with three columns, or of one or two files of sentences and their links."""
    *sentences, links = files if len(files) > 1 else [files[0], files[0]]
    columns, base = (["1", "2"], 0) if len(files) == 1 else (None, options.gold_base)
    pairs, gold = read_with_gold(PairReader(sentences, "text", columns), links, base)
    return GoldPairs(links, pairs, gold)


def read_own_gold(tables: list[GoldPairs]) -> tuple[list[dict[str, str]], GoldPairs]:
    """The rows of gold to train on, and an even tenth of all that is held out. Raises ValueError for too few."""
    pairs = [pair for table in tables for pair in table.linked]
    links = [of for table in tables for of in table.links.values()]
    usable = [number for number, pair in enumerate(pairs) if all(pair) and links[number].possible]
    if len(usable) < LEAST_GOLD:
        found = f"--gold has {count_of(len(usable), 'sentence')} with links"
        raise ValueError(f"{found}. Give at least {LEAST_GOLD}; hundreds are better.")
    held_out = usable[:: step_of(len(usable), LEAST_HELD_OUT_GOLD)]
    rows = []
    for number in sorted(set(usable) - set(held_out)):
        of = links[number]
        written = " ".join(f"{i}{'-' if (i, j) in of.sure else 'p'}{j}" for i, j in sorted(of.possible))
        rows.append(as_row(*pairs[number]) | {"links": written})
    return rows, GoldPairs("held-out gold", pairs, {number: links[number] for number in held_out})


def step_of(count: int, least: int) -> int:
    """Returns n to hold out every n-th of `count` pairs: a tenth of them, at least `least` and at most 200."""
    return count // min(MOST_HELD_OUT, max(least, count // 10))


def fit_calibration(options: ModelOptions, layer: int, gold: GoldPairs, screen: Any) -> list[float]:
    """Slope and offset of the logits of links, fitted to held-out gold: see `WordAligner`."""
    aligner = load_aligner(options, screen, layer=layer, slope=1.0, offset=0.0)
    confidence = Confidence()
    score_links(aligner, gold.pairs, gold.links, screen, confidence)
    return confidence.calibration()


def with_words(pairs: Pairs) -> Pairs:
    """The pairs with texts split into words, as the aligner splits them."""
    from modeling.word_tokens import split_words

    words, _ = split_words([side for pair in pairs for side in pair])
    return list(zip(words[::2], words[1::2], strict=True))


def as_row(source: Side, target: Side) -> dict[str, str]:
    """A pair as pre-training reads it."""
    source, target = (side if isinstance(side, str) else " ".join(side) for side in (source, target))
    return {"source": source, "target": target}


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    """Writes rows as JSONL. If the file exists, it must hold these rows: a resumed run checks this."""
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    if (path.parent / "run" / "model").exists():
        raise ValueError(
            f"{path.parent} has a model that was trained on other pairs. Give those pairs again, or remove the folder."
        )
    path.write_text(text, encoding="utf-8")


def train(
    options: ModelOptions, work: Path, layer: int, length: int, has_pairs: bool, has_gold: bool, screen: Any
) -> None:
    """Runs pre-training to its end, by the states of `layer` and with pairs of at most `length` positions.

    Ctrl-C and SIGTERM let it save its state first, and end this program with 130 and 143.

    Raises ValueError with what pre-training refuses.
    """
    from finetuning.models import find_model

    run, log, recipe = work / "run", work / "log.txt", RECIPES[has_gold]
    languages = {"source_language": "source", "target_language": "target"}
    settings = {
        "output_dir": run,
        "model.start_from": find_model(options.model),
        "trust_remote_code": options.trust_remote_code,
        "model.config.alignment_layer": layer,
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
    if options.tokenizer:
        settings["tokenizer"] = options.tokenizer
    # -P: a package `modeling` of the user's folder does not hide ours
    command = [sys.executable, "-P", "-m", "pretraining.run", "--config", recipe]
    command += [f"{name}={value}" for name, value in settings.items()]
    command += ["--resume"] if (run / "recipe.yaml").exists() else []
    root = str(Path(__file__).resolve().parents[2])  # of pretraining, too
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    places = {"PYTHONPATH": paths} | ({"ACCELERATE_USE_CPU": "true"} if options.device == "cpu" else {})
    with (
        stop_signals("resume with the same command and --resume"),
        held_signals(),  # until there is a process to pass them to
        log.open("a", encoding="utf-8") as stream,
        make_progress(screen, to_stdout=False) as progress,
    ):
        bar = progress.add_task("adapting", total=None)
        # in a group of its own: a terminal's Ctrl-C would come twice, and the second one stops it before it has saved
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=os.environ | places, process_group=0
        )
        try:
            with at_once():
                wait(process, run, lambda done, total: progress.update(bar, completed=done, total=total))
        except Stopped as stop:
            process.send_signal(stop.signal)
            process.wait()
            raise
    if process.returncode:
        said = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        raise ValueError(f"{said[-1] if said else 'Pre-training failed.'} (The log is {log}.)")


def wait(process: subprocess.Popen, run: Path, show: Callable[[int, int], None]) -> None:
    """Returns when the process ends; calls `show` with the number of finished steps and of all steps."""
    while process.poll() is None:
        time.sleep(SECONDS_A_LOOK)
        events, recipe = run / "events.jsonl", run / "recipe.yaml"
        if events.exists() and recipe.exists():
            whole, _, _ = events.read_text(encoding="utf-8").rpartition("\n")
            if whole:
                steps = sum(phase["steps"] for phase in read_yaml(recipe)["phases"])
                show(json.loads(whole.splitlines()[-1])["step"], steps)
