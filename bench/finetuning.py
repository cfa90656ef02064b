"""Fine-tuning and evaluation as `finetuning/run.py` does them, against the usual ways: `python -m bench.finetuning`.

Training: our way computes nothing at padding and makes batches of similar lengths. It is compared with transformers'
XLM-R of the same weights, on three kinds of batches: of similar lengths, in random order, and padded to max_length, as
the public XTREME scripts do. Each round draws its batches from a whole epoch of each way, so that they have the epoch's
lengths. The time of the first step is left out, because it creates Adam's state.
Evaluation: our way reads the rows of all languages in one pass. transformers' XLM-R reads them language by language,
also padded to max_length. All give the same scores. Both models run in this project's Trainer, a subclass of
transformers'.

Rows of --hub_root are real: XNLI (it trains on the validation rows, which are as long as MultiNLI's) and UD-POS.
Without it, they are topics of the sample corpus, whose sentences are short. Weights are random, and the tokenizer is
trained on the rows. The word embeddings have --rows rows. Rounds are interleaved. With one thread on a CPU, times are
processor times. Prints medians, ratios, the positions of an example and the size of Adam's state; writes
bench/results/finetuning.json.
"""

import argparse
import contextlib
import gc
import io
import json
import random
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from transformers import PrinterCallback, TrainerCallback, XLMRobertaConfig, XLMRobertaModel
from transformers.utils import logging

from bench._common import check_sizes, clock, device_name, make_parser, median_ratio, show, wait, write_results
from bench._steps import Size
from finetuning.data.task_tables import each_part
from finetuning.steps import LengthGroups
from finetuning.tasks.registry import KINDS, kind_of, task_of
from modeling.configuration_metaxlm import MetaXlmConfig
from modeling.modeling_metaxlm import MetaXlmModel
from pretraining.tools.train_tokenizer import SPECIALS_BESIDE_SPM, save_tokenizer, train_unigram
from zoo_core.command_line import user_errors
from zoo_core.recipes import load_recipe

NAME = "finetuning"
OURS = "ours"
GROUPED, LONGEST, WHOLE = (
    f"transformers, {how}" for how in ("lengths grouped", "random order", "padded to max_length")
)
TRAINING = (OURS, GROUPED, LONGEST, WHOLE)
TOGETHER, APART = "ours, one pass", "transformers, language by language"
APART_WHOLE = f"{APART}, padded to max_length"
EVALUATION = (TOGETHER, APART, APART_WHOLE)
AIM = 2.0  # times the training examples a second of padding to max_length, on real lengths
MIB = 2**20
UDPOS = {"en": "English", "de": "German", "fr": "French", "es": "Spanish", "zh": "Chinese", "ru": "Russian"}


def tables(hub_root: str | None) -> dict[str, list[str]]:
    """Overrides of a recipe by name of the data."""
    if hub_root is None:
        table = {"path": str(Path(__file__).parents[1] / "sample_corpus"), "label_column": "topic"}
        languages = {"config": "{language}", "languages": ["en", "de", "fr", "es", "zh"]}
        return {"topics": _tables("classification", {**table, "config": "en"}, {**table, **languages})}
    xnli = {"path": "google/xtreme", "config": "XNLI", "text_columns": ["sentence1", "sentence2"]}
    xnli |= {"label_column": "gold_label", "language_column": "language"}
    udpos = {"path": "google/xtreme", "text_columns": ["tokens"], "label_column": "pos_tags"}
    of_each = {"config": "udpos.{language}", "languages": list(UDPOS), "language_names": UDPOS}
    return {
        "XNLI": _tables("classification", {**xnli, "split": "validation"}, xnli),
        "UD-POS": _tables("tagging", {**udpos, "config": "udpos.English"}, {**udpos, **of_each}),
    }


def _tables(kind: str, train: dict[str, Any], evaluation: dict[str, Any]) -> list[str]:
    return [f"kind={kind}", f"train={json.dumps([train])}", f"evaluation={json.dumps([evaluation])}"]


def save_models(folder: Path, texts: list[str], flags: argparse.Namespace) -> None:
    """Two random models of the same weights, a MetaXLM in `ours` and transformers' XLM-R in `transformers`; both with a
    tokenizer that is trained on the texts, and has tokens for the other rows that never occur in them."""
    model = ModelProto.FromString(train_unigram(texts, flags.vocab - SPECIALS_BESIDE_SPM))
    lowest = min(token.score for token in model.pieces)
    for number in range(flags.rows - SPECIALS_BESIDE_SPM - len(model.pieces)):  # of languages that are not read here
        model.pieces.add(piece=f"<{number}>", score=lowest - 100)
    for name in ("ours", "transformers"):
        save_tokenizer(model.SerializeToString(), folder / name)
    config = Size(flags.layers, flags.hidden, flags.rows).config(flags.max_length)
    ours = MetaXlmModel(MetaXlmConfig(**config))
    theirs = XLMRobertaModel(XLMRobertaConfig(**config), add_pooling_layer=False)
    theirs.load_state_dict(ours.state_dict())
    ours.save_pretrained(folder / "ours")
    theirs.save_pretrained(folder / "transformers")


def padded(rows: Any, length: int, pad: int) -> Any:
    """The encoded rows at `length` positions each; labels of words become as many, -100 where there is none."""
    fill = {"input_ids": pad, "attention_mask": 0, "labels": -100}

    def pad_row(row: dict[str, Any]) -> dict[str, Any]:
        lists = {name: row[name] for name in fill if isinstance(row[name], list)}
        return {name: [*ids, *[fill[name]] * (length - len(ids))] for name, ids in lists.items()}

    return rows.map(pad_row, desc=f"Padding to {length}")


class InOrder:
    """A plan of training: rows in their order."""

    def __init__(self, rows: int, batch_size: int):
        self.steps = np.split(np.arange(rows), range(batch_size, rows, batch_size))

    def __len__(self) -> int:
        return len(self.steps)

    def updates(self, epoch: int) -> list[np.ndarray]:
        """Row numbers of each step."""
        return self.steps


class Contest:
    """The ways of training and evaluating on one data set, with two models of the same weights."""

    def __init__(self, overrides: list[str], models: Path, flags: argparse.Namespace, folder: Path):
        settings = [f"model={models / 'ours'}", f"output_dir={folder}", "task=bench", "selection=last"]
        sizes = [f"max_length={flags.max_length}", f"training.batch_size={flags.batch}", "training.learning_rate=1e-5"]
        rows = [f"max_evaluation_examples={flags.evaluated}", f"hub_root={flags.hub_root or 'null'}"]
        self.recipe = load_recipe(
            KINDS[kind_of(overrides)].recipe_class, None, [*settings, "training.epochs=1", *sizes, *rows, *overrides]
        )
        self.task = task_of(self.recipe)
        path, _, self.tokenizer, _ = self.task.begin()
        self.data = self.task.encode(self.task.read())
        pad = self.tokenizer.pad_token_id
        self.whole = each_part(self.data, lambda rows, *_: padded(rows, flags.max_length, pad))
        self.ours, self.theirs = (
            self.task.load_model(str(path), 1, self.data) for path in (path, models / "transformers")
        )
        self.flags, self.folder = flags, folder
        self.lengths = self.data.train["length"][:]

    def trainer(self, data: Any, name: str) -> Any:
        """The Trainer of a run on this data, in its order, which keeps and prints nothing."""
        arguments = self.task.arguments(1, self.folder)
        arguments.set_save(strategy="no").set_logging(strategy="no")
        arguments.disable_tqdm = True
        model = self.ours if name == OURS else self.theirs
        trainer = self.task.trainer(model, data, arguments)
        trainer.batches.plan = InOrder(len(data.train), self.flags.batch)
        trainer.remove_callback(PrinterCallback)
        return trainer

    def batches(self, name: str, number: int) -> list[list[int]]:
        """The rows of some batches of an epoch in this way, drawn for this round, and of one that goes before them."""
        size, draw = self.flags.batch, random.Random(number)
        if name in (LONGEST, WHOLE):
            order = draw.sample(range(len(self.lengths)), len(self.lengths))
            steps = [order[first : first + size] for first in range(0, len(order), size)]
        else:
            steps = [rows.tolist() for rows in LengthGroups(self.lengths, size, number).updates(0)]
        whole = [rows for rows in steps if len(rows) == size]
        return draw.sample(whole, min(self.flags.updates + 1, len(whole)))

    def train(self, name: str, number: int) -> dict[str, float]:
        """Seconds and positions of an example in this round's steps, and MiB of the optimizer's state."""
        batches = self.batches(name, number)
        source = self.whole if name == WHOLE else self.data
        rows = source.train.select([row for batch in batches for row in batch])
        trainer, watch = self.trainer(replace(source, train=rows), name), Watch()
        trainer.add_callback(watch)
        gc.collect()  # of the way before, whose optimizer is as large
        trainer.train()
        timed = batches[1:]
        lengths = [[self.lengths[row] for row in batch] for batch in timed]
        if name == WHOLE:
            positions = self.flags.max_length
        else:
            of_each = statistics.fmean if name == OURS else max
            positions = statistics.fmean(map(of_each, lengths))
        state = sum(value.nbytes for of in trainer.optimizer.optimizer.state.values() for value in of.values())
        examples = sum(map(len, timed))
        return {"seconds": watch.seconds / examples, "positions": positions, "state_mib": state / MIB}

    def evaluate(self, name: str) -> tuple[float, dict[str, dict[str, float]]]:
        """Seconds of the evaluated rows, all of them, and the scores by language, of both models as ours is."""
        self.theirs.load_state_dict(self.ours.state_dict())
        data = self.whole if name == APART_WHOLE else self.data
        parts = [data.evaluation]
        if name != TOGETHER:
            parts = [{language: rows} for language, rows in data.evaluation.items()]
        outcomes: dict[str, Any] = {}
        trainers = [self.trainer(replace(data, evaluation=part), name) for part in parts]
        seconds = timed(lambda: [outcomes.update(trainer.outcomes()) for trainer in trainers])
        return seconds, {language: found.scores for language, found in outcomes.items()}


class Watch(TrainerCallback):
    """`seconds` are those from the end of a Trainer's first step to that of its last."""

    started, seconds = 0.0, 0.0

    def on_step_end(self, args, state, control, **others):
        wait()
        if state.global_step == 1:
            self.started = clock()
        self.seconds = clock() - self.started


def timed(run: Any) -> float:
    """Seconds of `run()`."""
    gc.collect()
    wait()
    started = clock()
    run()
    wait()
    return clock() - started


def measure(contest: Contest, rounds: int) -> list[dict[str, Any]]:
    """Examples a second of every way, the median of its rounds' ratios to ours, and what else `train` says."""
    seconds: dict[str, list[float]] = {}
    others: dict[str, list[dict[str, float]]] = {}
    evaluated = sum(len(rows) for rows in contest.data.evaluation.values())
    for number in range(-1, rounds):  # the first is the warm-up
        scores = {}
        for name in TRAINING[:: -1 if number % 2 else 1]:
            found = contest.train(name, number)
            if number >= 0:
                seconds.setdefault(name, []).append(found.pop("seconds"))
                others.setdefault(name, []).append(found)
        for name in EVALUATION[:: -1 if number % 2 else 1]:
            taken, scores[name] = contest.evaluate(name)
            if number >= 0:
                seconds.setdefault(name, []).append(taken / evaluated)
        for name in (APART, APART_WHOLE):
            same_scores(scores[TOGETHER], scores[name])
    return [
        {
            "part": part,
            "way": name,
            "examples_per_second": 1 / statistics.median(seconds[name]),
            "ours_is_faster_by": median_ratio(seconds[name], seconds[ways[0]]) if name != ways[0] else None,
            "aim": AIM if name == WHOLE else None,
            **{key: statistics.fmean(found[key] for found in others[name]) for key in others.get(name, [{}])[0]},
        }
        for part, ways in (("training", TRAINING), ("evaluation", EVALUATION))
        for name in ways
    ]


def same_scores(one: dict[str, dict[str, float]], other: dict[str, dict[str, float]]) -> None:
    """What is compared does the same work; padding may move a last digit, and with it a prediction or two."""
    for language, scores in one.items():
        for name, score in scores.items():
            assert abs(score - other[language][name]) < 1, (language, name, score, other[language][name])


COLUMNS = {
    "part": "",
    "way": "way",
    "examples_per_second": "examples/s",
    "ours_is_faster_by": "ours is faster by",
    "aim": "aim",
    "positions": "positions",
    "state_mib": "Adam, MiB",
}


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Data, sizes, and where the measurements are written."""
    sizes = {
        "layers": (4, "layers of the models"),
        "hidden": (256, "their hidden size, a multiple of 64"),
        "rows": (250_002, "rows of their word embeddings"),
        "vocab": (16_000, "tokens of the tokenizer"),
        "max_length": (128, "positions of the longest input"),
        "batch": (32, "examples of a step"),
        "updates": (8, "updates of a round"),
        "evaluated": (100, "evaluated rows of each language"),
        "rounds": (5, "interleaved rounds"),
    }
    parser = make_parser(__doc__, NAME, sizes)
    parser.add_argument("--hub_root", metavar="DIR", help="folder that mirrors the Hub, with google/xtreme")
    flags = parser.parse_args(argv)
    check_sizes(flags)
    if flags.rows < flags.vocab:
        raise ValueError(
            f"--rows is {flags.rows} and --vocab {flags.vocab}: some tokens would have no embedding. Give --rows "
            f"{flags.vocab} or more."
        )
    return flags


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        datasets.disable_progress_bars()
        logging.set_verbosity_error()
        torch.manual_seed(0)
        parts = {}
        for name, overrides in tables(flags.hub_root).items():
            with tempfile.TemporaryDirectory() as folder:
                save_models(Path(folder), texts_of(overrides, flags), flags)
                contest = Contest(overrides, Path(folder), flags, Path(folder) / "out")
                lengths = contest.lengths
                facts = {
                    "training_rows": len(lengths),
                    "mean_length": statistics.fmean(lengths),
                    "longest": max(lengths),
                    "evaluated_rows": {language: len(rows) for language, rows in contest.data.evaluation.items()},
                    "parameters": contest.ours.num_parameters(),
                }
                with contextlib.redirect_stdout(io.StringIO()):  # what a run says of itself
                    parts[name] = {**facts, "ways": measure(contest, flags.rounds)}
            title = f"{name}: {len(lengths):,} training rows of {facts['mean_length']:.1f} tokens on average, "
            title += f"{facts['parameters'] / 1e6:.1f}M parameters, {device_name()}"
            show(title, COLUMNS, parts[name]["ways"])
        write_results(flags, NAME, argv, {"device": device_name(), "parts": parts})


def texts_of(overrides: list[str], flags: argparse.Namespace) -> list[str]:
    """All texts of a recipe's evaluated rows, for the tokenizer."""
    needed = ["model=none", "output_dir=none", "task=bench", "selection=last", "training.learning_rate=1"]
    recipe = load_recipe(
        KINDS[kind_of(overrides)].recipe_class, None, [*needed, f"hub_root={flags.hub_root or 'null'}", *overrides]
    )
    data = task_of(recipe).read()
    texts = []
    for rows in (data.train, *data.evaluation.values()):
        if "words" in rows.column_names:
            texts += [" ".join(words) for words in rows["words"][:]]
        else:
            texts += [text for name in ("text", "pair") if name in rows.column_names for text in rows[name][:]]
    return texts


if __name__ == "__main__":
    main()
