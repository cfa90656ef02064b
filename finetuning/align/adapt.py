"""`word-align --adapt`: the encoder goes on learning to align from the user's own pairs, without gold links.

Some pairs are held out, and say by which layer to align before and after. The others are handed to pre-training, a
program of its own, with the recipe below; what comes back is a checkpoint folder. Beside FOLDER stands FOLDER.training,
with what --resume needs, the log and the curves.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from finetuning.align.inputs import read_pairs, read_with_gold, report_unspaced
from finetuning.align.loading import load_aligner, memory_errors, report_precision
from finetuning.align.pairs import Side
from finetuning.align.screen import count_of, make_progress, make_screen
from modeling.backbone import ARCHITECTURES
from modeling.configuration_encoder import LOADABLE
from zoo_core.provenance import read_json, write_json
from zoo_core.recipes import read_yaml
from zoo_core.run_folders import STEP, remove_own, run_lock
from zoo_core.vocabularies import longest_input

RECIPE = "pretraining/recipes/xlm_align/aligner.yaml"
ENCODERS = (*LOADABLE, *ARCHITECTURES)  # what XLM-Align's pre-training starts from
LEAST_PAIRS, MOST_PAIRS = 40, 20_000  # a run sees one or two thousand
LEAST_HELD_OUT, MOST_HELD_OUT = 20, 200
LONGEST = 128  # positions of a pair; what is longer is cut
SECONDS_A_LOOK = 0.5


def adapt(flags: argparse.Namespace) -> None:
    """Trains, measures and writes the folder.

    Raises ValueError for too few pairs, an encoder of another shape, a folder that is there or that another command
    works in, and what pre-training refuses.
    """
    output = Path(flags.output)
    work = Path(f"{output}.training")  # beside it, also where the name ends in a slash
    has_work = work.exists()
    with run_lock(work):
        check_places(output, work, has_work, flags.resume)
        adapt_in(work, output, flags)


def adapt_in(work: Path, output: Path, flags: argparse.Namespace) -> None:
    """As `adapt`, in a folder for what --resume needs."""
    screen = make_screen(flags.quiet)
    with screen.status(f"reading {flags.adapt}"):
        pairs, held_out = read_own_pairs(flags, screen)
    of_text = argparse.Namespace(**vars(flags) | {"format": "auto", "columns": None, "languages": None})
    test = read_with_gold(flags, read_pairs(of_text)) if flags.gold else None
    report_precision(flags, screen)
    with screen.status(f"measuring {flags.model}"):
        length = check_encoder(flags)
        layer, *before = measure(flags, held_out, test)
    write_pairs(work / "pairs.jsonl", pairs)
    model = work / "run" / "model"
    if not model.exists():
        train(flags, work, layer, length, screen)
    with screen.status("measuring the adapted model"):
        adapted = argparse.Namespace(**vars(flags) | {"model": str(model), "tokenizer": None})
        new_layer, *after = measure(adapted, held_out, test)
    config = read_json(model / "config.json")
    write_json(model / "config.json", config | {"word_alignment_layer": new_layer})
    model.rename(output)
    remove_own(work / "run" / "checkpoints", rf"(damaged-)?{STEP}")
    compared = f"{len(held_out):,} held-out pairs: told from mismatched ones by"
    print(f"{compared} {before[0]:.3f} before (layer {layer}), {after[0]:.3f} after (layer {new_layer})")
    if test:
        print(
            f"{flags.gold}: AER {before[1]:.1f} before, {after[1]:.1f} after (%, {count_of(len(test[1]), 'sentence')})"
        )
    print(f"written: {output}, whose configuration recommends layer {new_layer}")


def check_places(output: Path, work: Path, has_work: bool, resume: bool) -> None:
    """Raises ValueError for a folder that is there, nothing to resume, and a stopped run without --resume."""
    if output.exists():
        raise ValueError(f"{output} exists. Name another --output for the adapted model.")
    if resume and not has_work:
        raise ValueError(f"There is nothing to resume: {work} is not there. Leave out --resume.")
    if has_work and not resume:
        raise ValueError(f"{work} is there, of an earlier run. Add --resume if it was stopped, or remove it.")


def read_own_pairs(flags: argparse.Namespace, screen: Any) -> tuple[list[tuple[Side, Side]], list[tuple[Side, Side]]]:
    """The pairs to train on, and those held out; of a long file an even sample. Raises ValueError for too few."""
    reader = read_pairs(argparse.Namespace(**vars(flags) | {"files": [flags.adapt], "sentences": None, "gold": None}))
    total = reader.check() or 0
    every = max(1, total // MOST_PAIRS)
    pairs = [pair for pair in islice(reader, 0, None, every) if all("".join(side).strip() for side in pair)]
    report_unspaced(flags, reader, max(total, len(pairs)), screen)
    if len(pairs) < LEAST_PAIRS:
        found = f"{flags.adapt} has {count_of(len(pairs), 'pair')} with words on both sides"
        raise ValueError(f"{found}, and --adapt needs {LEAST_PAIRS} or more, better a thousand.")
    step = len(pairs) // min(MOST_HELD_OUT, max(LEAST_HELD_OUT, len(pairs) // 10))
    return [pair for number, pair in enumerate(pairs) if number % step], pairs[::step]


def check_encoder(flags: argparse.Namespace) -> int:
    """Its longest input. Raises ValueError for a model that pre-training cannot start from."""
    from finetuning.checkpoints import describe_model

    _, config, tokenizer, identity = describe_model(
        flags.model, flags.tokenizer, trust_remote_code=flags.trust_remote_code
    )
    if identity["type"] not in ENCODERS:
        raise ValueError(f"{flags.model} is of type {identity['type']}; --adapt goes on from {', '.join(ENCODERS)}.")
    if tokenizer.mask_token_id is None:
        raise ValueError(f"The tokenizer of {flags.model} has no mask token, which --adapt needs.")
    return longest_input(config)


def measure(
    flags: argparse.Namespace, held_out: list[tuple[Side, Side]], test: tuple[list, dict] | None
) -> tuple[int, float, float | None]:
    """The layer that best tells the held-out pairs, its value, and its AER of the gold links."""
    from finetuning.tasks.word_alignment.layers import score

    aligner, _ = load_aligner(flags)
    with memory_errors():
        values = aligner.compare_layers(held_out)
        layer = aligner.layer = max(values, key=values.get)
        if not test:
            return layer, values[layer], None
        pairs, gold = test
        found = {number: found.links for number, found in enumerate(aligner.align(pairs)) if number in gold}
    return layer, values[layer], score(found, gold)["aer"]


def write_pairs(path: Path, pairs: list[tuple[Side, Side]]) -> None:
    """Writes them as JSONL. A file that holds them stays as it is: a run that is resumed looks whether it does."""
    texts = ((side if isinstance(side, str) else " ".join(side) for side in pair) for pair in pairs)
    rows = (json.dumps({"source": source, "target": target}, ensure_ascii=False) for source, target in texts)
    text = "".join(f"{row}\n" for row in rows)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    if (path.parent / "run" / "model").exists():
        raise ValueError(f"{path.parent} holds a model of other pairs. Give those again, or remove the folder.")
    path.write_text(text, encoding="utf-8")


def train(flags: argparse.Namespace, work: Path, layer: int, length: int, screen: Any) -> None:
    """Runs pre-training to its end, with labels from `layer` and pairs of at most `length` positions.

    Ctrl-C lets it save its state first, and ends this program with 130.

    Raises ValueError with what pre-training refuses.
    """
    from finetuning.checkpoints import find_model

    run, log = work / "run", work / "log.txt"
    bitext = {"source_language": "source", "target_language": "target", "table": {"path": str(work / "pairs.jsonl")}}
    settings = {
        "output_dir": run,
        "model.start_from": find_model(flags.model),
        "trust_remote_code": flags.trust_remote_code,
        "model.config.alignment_layer": layer,
        "phases.0.objectives.tlm.max_length": min(length, LONGEST),
        "bitext": json.dumps([bitext | {"source_column": "source", "target_column": "target"}]),
    }
    if flags.tokenizer:
        settings["tokenizer"] = flags.tokenizer
    command = [sys.executable, "-m", "pretraining.run", "--config", RECIPE]
    command += [f"{name}={value}" for name, value in settings.items()]
    command += ["--resume"] if (run / "recipe.yaml").exists() else []
    root = str(Path(__file__).resolve().parents[2])  # of pretraining, too
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    places = {"PYTHONPATH": paths} | ({"ACCELERATE_USE_CPU": "true"} if flags.device == "cpu" else {})
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
