"""`word-align adapt`: the encoder learns to align from the user's own pairs, without gold links.

Some pairs are held out, and say by which layer to align before and after. The others are handed to pre-training, a
program of its own, with the recipe below; what comes back is a checkpoint folder. FOLDER.training, beside FOLDER,
has what --resume needs, the log and the curves.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from finetuning.align.gold import Gold
from finetuning.align.loading import load_aligner, memory_errors, report_precision
from finetuning.align.options import ModelOptions, PairOptions, make_parser, require_different_files
from finetuning.align.pairs import PairReader, Side
from finetuning.align.score import add_gold, read_with_gold, score_links
from finetuning.align.screen import count_of, make_progress, make_screen, report_unspaced
from zoo_core.provenance import read_json, write_json
from zoo_core.recipes import read_yaml
from zoo_core.run_folders import STEP, remove_own, run_lock
from zoo_core.vocabularies import longest_input

RECIPE = "pretraining/recipes/xlm_align/aligner.yaml"
LEAST_PAIRS, MOST_PAIRS = 40, 20_000  # a run sees one or two thousand
LEAST_HELD_OUT, MOST_HELD_OUT = 20, 200
LONGEST = 128  # positions of a pair; what is longer is cut
SECONDS_A_LOOK = 0.5
USAGE = "word-align adapt [FILE | SOURCE TARGET] --output FOLDER [--model FOLDER|ID] [options]"
DESCRIPTION = """Let an encoder learn to align from your own pairs, without links made by hand, in minutes on a CPU.

  word-align adapt pairs.txt --output adapted
  word-align --model adapted pairs.txt > links.txt
  word-align adapt pairs.txt --output adapted --resume                      after Ctrl-C
  word-align adapt pairs.txt --output adapted --test test.de test.en --gold alignment.txt     AER before and after

40 pairs are the least, better a thousand; a tenth is held out. FOLDER is a checkpoint of the zoo, whose configuration
recommends the layer that best tells held-out pairs from mismatched ones. Log and curves stay in FOLDER.training."""

Pairs = list[tuple[Side, Side]]


@dataclass
class AdaptOptions(PairOptions, ModelOptions):
    """Which encoder learns from which pairs, where it goes, and what it is measured on."""

    output: str = ""
    resume: bool = False
    test: list[str] = field(default_factory=list)
    gold: str | None = None
    gold_base: int | None = None


def read_options(arguments: list[str]) -> AdaptOptions:
    """The command line."""
    parser = make_parser("word-align adapt", DESCRIPTION, USAGE, AdaptOptions)
    group = parser.add_argument_group("adaptation")
    output = "write the adapted model there, a --model for later"
    group.add_argument("--output", required=True, metavar="FOLDER", help=output)
    group.add_argument("--resume", action="store_true", help="continue a run that was stopped")
    text = "pairs to score before and after: one file, or a source and a target file"
    group.add_argument("--test", nargs="+", metavar="FILE", help=text)
    add_gold(group, is_required=False)
    return parser.parse_args(arguments, AdaptOptions())


def run(options: AdaptOptions) -> None:
    """Trains, measures and writes the folder.

    Raises ValueError for too few pairs, an encoder of another shape, a folder that is there or that another command
    works in, and what pre-training refuses.
    """
    if bool(options.test) != bool(options.gold):
        raise ValueError("--test and --gold go together: pairs, and the links that they are scored by. Give both.")
    output = Path(options.output)
    work = Path(f"{output}.training")  # beside it, also where the name ends in a slash
    read = {"the input": options.files, "--test": options.test, "--gold": [options.gold] if options.gold else []}
    require_different_files({"--output": options.output}, read)
    has_work = work.exists()
    with run_lock(work):
        check_places(output, work, has_work, options.resume)
        adapt_in(work, output, options)


def adapt_in(work: Path, output: Path, options: AdaptOptions) -> None:
    """As `run`, in a folder for what --resume needs."""
    screen = make_screen(options.quiet)
    with screen.status("reading the pairs"):
        pairs, held_out = read_own_pairs(options.read_pairs(options.split), options.split, screen)
    test = None
    if options.gold:
        reader = PairReader(options.test, split=bool(options.split))
        test = read_with_gold(reader, options.gold, options.gold_base)
    report_precision(options.precision, screen)
    length = check_encoder(options.model, options.tokenizer, options.trust_remote_code)
    layer, *before = measure(options, held_out, test, screen)
    write_pairs(work / "pairs.jsonl", pairs)
    model = work / "run" / "model"
    if not model.exists():
        train(options, work, layer, length, screen)
    new_layer, *after = measure(replace(options, model=str(model), tokenizer=None), held_out, test, screen)
    config = read_json(model / "config.json")
    write_json(model / "config.json", config | {"word_alignment_layer": new_layer})
    model.rename(output)
    remove_own(work / "run" / "checkpoints", rf"(damaged-)?{STEP}")
    compared = f"{len(held_out):,} held-out pairs: told from mismatched ones by"
    print(f"{compared} {before[0]:.3f} before (layer {layer}), {after[0]:.3f} after (layer {new_layer})")
    if test:
        sentences = count_of(len(test[1]), "sentence")
        print(f"{options.gold}: AER {before[1]:.1f} before, {after[1]:.1f} after (%, {sentences})")
    print(f"written: {output}, whose configuration recommends layer {new_layer}")


def check_places(output: Path, work: Path, has_work: bool, resume: bool) -> None:
    """Raises ValueError for a folder that is there, nothing to resume, and a stopped run without --resume."""
    if output.exists():
        raise ValueError(f"{output} exists. Name another --output for the adapted model.")
    if resume and not has_work:
        raise ValueError(f"There is nothing to resume: {work} is not there. Leave out --resume.")
    if has_work and not resume:
        raise ValueError(f"{work} is there, of an earlier run. Add --resume if it was stopped, or remove it.")


def read_own_pairs(reader: PairReader, split: bool | None, screen: Any) -> tuple[Pairs, Pairs]:
    """The pairs to train on, and those held out; of a long file an even sample. Raises ValueError for too few."""
    total = reader.check() or 0
    every = max(1, total // MOST_PAIRS)
    pairs = [pair for pair in islice(reader, 0, None, every) if all("".join(side).strip() for side in pair)]
    if split is None:
        report_unspaced(reader.unspaced, max(total, len(pairs)), screen)
    if len(pairs) < LEAST_PAIRS:
        found = f"{reader.name} has {count_of(len(pairs), 'pair')} with words on both sides"
        raise ValueError(f"{found}. An encoder learns from {LEAST_PAIRS} or more, better a thousand.")
    step = len(pairs) // min(MOST_HELD_OUT, max(LEAST_HELD_OUT, len(pairs) // 10))
    return [pair for number, pair in enumerate(pairs) if number % step], pairs[::step]


def check_encoder(model: str, tokenizer: str | None, trust_remote_code: bool) -> int:
    """Its longest input. Raises ValueError for a model that pre-training cannot start from."""
    from finetuning.checkpoints import describe_model
    from modeling.backbone import ARCHITECTURES
    from modeling.configuration_encoder import LOADABLE

    encoders = (*LOADABLE, *ARCHITECTURES)  # what XLM-Align's pre-training starts from
    _, config, loaded, identity = describe_model(model, tokenizer, trust_remote_code=trust_remote_code)
    if identity["type"] not in encoders:
        raise ValueError(f"{model} is of type {identity['type']}, and what learns here is {', '.join(encoders)}.")
    if loaded.mask_token_id is None:
        raise ValueError(f"The tokenizer of {model} has no mask token, which pre-training needs.")
    return longest_input(config)


def measure(
    options: ModelOptions, held_out: Pairs, test: tuple[Pairs, dict[int, Gold]] | None, screen: Any
) -> tuple[int, float, float | None]:
    """The layer that best tells the held-out pairs, its value, and its AER of the gold links."""
    aligner, _ = load_aligner(options, screen)
    with screen.status("comparing layers"), memory_errors():
        values = aligner.compare_layers(held_out)
    layer = aligner.layer = max(values, key=values.get)
    return layer, values[layer], score_links(aligner, *test, screen)["aer"] if test else None


def write_pairs(path: Path, pairs: Pairs) -> None:
    """Writes them as JSONL. A file that holds them stays as it is: a run that is resumed looks whether it does."""
    texts = ((side if isinstance(side, str) else " ".join(side) for side in pair) for pair in pairs)
    rows = (json.dumps({"source": source, "target": target}, ensure_ascii=False) for source, target in texts)
    text = "".join(f"{row}\n" for row in rows)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    if (path.parent / "run" / "model").exists():
        raise ValueError(f"{path.parent} holds a model of other pairs. Give those again, or remove the folder.")
    path.write_text(text, encoding="utf-8")


def train(options: ModelOptions, work: Path, layer: int, length: int, screen: Any) -> None:
    """Runs pre-training to its end, with labels from `layer` and pairs of at most `length` positions.

    Ctrl-C lets it save its state first, and ends this program with 130.

    Raises ValueError with what pre-training refuses.
    """
    from finetuning.checkpoints import find_model

    run, log = work / "run", work / "log.txt"
    bitext = {"source_language": "source", "target_language": "target", "table": {"path": str(work / "pairs.jsonl")}}
    settings = {
        "output_dir": run,
        "model.start_from": find_model(options.model),
        "trust_remote_code": options.trust_remote_code,
        "model.config.alignment_layer": layer,
        "phases.0.objectives.tlm.max_length": min(length, LONGEST),
        "bitext": json.dumps([bitext | {"source_column": "source", "target_column": "target"}]),
    }
    if options.tokenizer:
        settings["tokenizer"] = options.tokenizer
    command = [sys.executable, "-m", "pretraining.run", "--config", RECIPE]
    command += [f"{name}={value}" for name, value in settings.items()]
    command += ["--resume"] if (run / "recipe.yaml").exists() else []
    root = str(Path(__file__).resolve().parents[2])  # of pretraining, too
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    places = {"PYTHONPATH": paths} | ({"ACCELERATE_USE_CPU": "true"} if options.device == "cpu" else {})
    with log.open("a", encoding="utf-8") as stream, make_progress(screen, to_stdout=False) as progress:
        bar = progress.add_task("adapting", total=None)
        # in a group of its own: a terminal's Ctrl-C would come twice, and the second one stops it before it has saved
        process = subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=os.environ | places, process_group=0
        )
        try:
            wait(process, run, lambda done, total: progress.update(bar, completed=done, total=total))
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            progress.stop()
            screen.print("word-align: stopped. Go on with the same command and --resume.")
            sys.exit(130)
    if process.returncode:
        said = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        raise ValueError(f"{said[-1] if said else 'Pre-training failed.'} (The log is {log}.)")


def wait(process: subprocess.Popen, run: Path, show: Callable[[int, int], None]) -> None:
    """Returns when the process ends; `show` is told of the steps that are done, and of all."""
    while process.poll() is None:
        time.sleep(SECONDS_A_LOOK)
        events, recipe = run / "events.jsonl", run / "recipe.yaml"
        if events.exists() and recipe.exists():
            whole, _, _ = events.read_text(encoding="utf-8").rpartition("\n")
            if whole:
                steps = sum(phase["steps"] for phase in read_yaml(recipe)["phases"])
                show(json.loads(whole.splitlines()[-1])["step"], steps)
