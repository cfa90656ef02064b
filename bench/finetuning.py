"""Fine-tuning with lengths grouped, and evaluation in one pass, against the usual ways: `python -m bench.finetuning`.

Training: updates of the Trainer that `finetuning/run.py` uses, on batches of similar lengths padded to their longest,
against batches in random order, padded to their longest or to max_length, as the public XTREME scripts pad all of them.
The batches of a round are drawn from a whole epoch of each way, so that their lengths are those of the epoch.
Evaluation: the rows of all languages in one pass against language by language, and that padded to max_length.

Rows are real: of --hub_root, XNLI (its validation rows are trained on: as long as MultiNLI's) and UD-POS, else topics
of the sample corpus, whose sentences are short. The model is random, with a tokenizer trained on the rows, unless
--model names one. Rounds are interleaved; on a CPU times are those of the processor, so that other programs do not
count. Prints medians, ratios and the positions of an example beside them; writes bench/results/finetuning.json.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from common.provenance import run_facts, write_json
from common.recipes import load_recipe, user_errors

OURS, LONGEST, WHOLE = "lengths grouped", "random order", "padded to max_length"
TOGETHER, APART, APART_WHOLE = "one pass", "language by language", "language by language, padded to max_length"
AIM = 2.0  # times the training examples a second of padding to max_length, on real lengths
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


def save_model(folder: Path, texts: list[str], flags: argparse.Namespace) -> None:
    """A random XLM-R of the size asked for, and a tokenizer of as many pieces, trained on the texts."""
    from transformers import AutoTokenizer, XLMRobertaConfig, XLMRobertaModel

    from pretraining.train_tokenizer import train_tokenizer

    train_tokenizer(texts, folder, vocab_size=flags.vocab)
    config = XLMRobertaConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(folder)),
        hidden_size=flags.hidden,
        num_hidden_layers=flags.layers,
        num_attention_heads=flags.hidden // 64,
        intermediate_size=4 * flags.hidden,
        max_position_embeddings=flags.max_length + 2,
        type_vocab_size=1,
    )
    XLMRobertaModel(config).save_pretrained(folder)


def padded(rows: Any, length: int, pad: int) -> Any:
    """The encoded rows at `length` positions each; labels of words become as many, -100 where there is none."""
    fill = {"input_ids": pad, "attention_mask": 0, "labels": -100}

    def pad_row(row: dict[str, Any]) -> dict[str, Any]:
        lists = {name: row[name] for name in fill if isinstance(row[name], list)}
        return {name: [*ids, *[fill[name]] * (length - len(ids))] for name, ids in lists.items()}

    return rows.map(pad_row, desc=f"Padding to {length}")


class Contest:
    """The ways of training and evaluating on one data set, with one model."""

    def __init__(self, overrides: list[str], model: str, flags: argparse.Namespace, folder: Path):
        from finetuning.recipe import Recipe
        from finetuning.task_tables import each_part
        from finetuning.trainer import load_model, open_run

        settings = [f"model={model}", f"output_dir={folder}", "task=bench", "selection=last", "training.epochs=1"]
        sizes = [f"max_length={flags.max_length}", f"training.batch_size={flags.batch}", "training.learning_rate=1e-5"]
        rows = [f"max_evaluation_examples={flags.evaluated}", f"hub_root={flags.hub_root or 'null'}"]
        self.recipe = load_recipe(Recipe, None, [*settings, *sizes, *rows, *overrides])
        self.kind, path, _, self.tokenizer, _ = open_run(self.recipe)
        self.data = self.kind.encode(self.kind.read(self.recipe), self.tokenizer, self.recipe)
        pad = self.tokenizer.pad_token_id
        self.whole = each_part(self.data, lambda rows, *_: padded(rows, flags.max_length, pad))
        self.model = load_model(self.kind, self.data, path, 1, [])
        self.flags, self.folder = flags, folder
        self.lengths = self.data.train["length"][:]

    def trainer(self, data: Any, order: str = "sequential") -> Any:
        """The Trainer of a run on this data, which keeps and prints nothing."""
        from transformers import PrinterCallback

        from finetuning.trainer import FineTuningTrainer, task_arguments

        arguments = task_arguments(self.recipe, self.kind, 1, self.folder)
        arguments.set_save(strategy="no").set_logging(strategy="no")
        arguments.disable_tqdm, arguments.train_sampling_strategy = True, order
        trainer = FineTuningTrainer(
            model=self.model,
            args=arguments,
            data_collator=self.kind.collator(self.tokenizer),
            processing_class=self.tokenizer,
            kind=self.kind,
            recipe=self.recipe,
            data=data,
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    def batches(self, name: str, number: int) -> list[list[int]]:
        """The rows of some batches of an epoch in this way, drawn for this round."""
        import torch

        torch.manual_seed(number)
        order = list(self.trainer(self.data, "group_by_length" if name == OURS else "random")._get_train_sampler())
        size = self.flags.batch
        whole = [order[first : first + size] for first in range(0, len(order) - size + 1, size)]
        return random.Random(number).sample(whole, min(self.flags.updates, len(whole)))

    def train(self, name: str, number: int) -> tuple[float, float]:
        """Seconds and positions of an example in this round's updates."""
        from dataclasses import replace

        batches = self.batches(name, number)
        rows = [row for batch in batches for row in batch]
        source = self.whole if name == WHOLE else self.data
        trainer = self.trainer(replace(source, train=source.train.select(rows)))
        seconds = timed(trainer.train)
        longest = [self.flags.max_length if name == WHOLE else max(map(self.lengths.__getitem__, b)) for b in batches]
        return seconds / len(rows), statistics.fmean(longest)

    def evaluate(self, name: str) -> tuple[float, dict[str, dict[str, float]]]:
        """Seconds of the evaluated rows, all of them, and the scores by language."""
        from dataclasses import replace

        data = self.whole if name == APART_WHOLE else self.data
        parts = [data.evaluation]
        if name != TOGETHER:
            parts = [{language: rows} for language, rows in data.evaluation.items()]
        scores: dict[str, dict[str, float]] = {}
        trainers = [self.trainer(replace(data, evaluation=part)) for part in parts]
        return timed(lambda: [scores.update(trainer.score()) for trainer in trainers]), scores


def timed(run: Any) -> float:
    """Seconds on the clock; on a CPU, of the processor."""
    import torch

    on_gpu = torch.cuda.is_available()
    clock = time.perf_counter if on_gpu else time.process_time
    if on_gpu:
        torch.cuda.synchronize()
    started = clock()
    run()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - started


def measure(contest: Contest, rounds: int) -> list[dict[str, Any]]:
    """Examples a second of every way, the median of its rounds' ratios to ours, and its positions an example."""
    seconds: dict[tuple[str, str], list[float]] = {}
    positions: dict[tuple[str, str], list[float]] = {}
    evaluated = sum(len(rows) for rows in contest.data.evaluation.values())
    for number in range(-1, rounds):  # the first is the warm-up
        scores = {}
        for name in (OURS, LONGEST, WHOLE):
            taken, length = contest.train(name, number)
            if number >= 0:
                seconds.setdefault(("training", name), []).append(taken)
                positions.setdefault(("training", name), []).append(length)
        for name in (TOGETHER, APART, APART_WHOLE):
            taken, scores[name] = contest.evaluate(name)
            if number >= 0:
                seconds.setdefault(("evaluation", name), []).append(taken / evaluated)
        same_scores(scores[TOGETHER], scores[APART])
    lines = []
    for (part, name), values in seconds.items():
        ours = seconds[part, {"training": OURS, "evaluation": TOGETHER}[part]]
        lines.append(
            {
                "part": part,
                "way": name,
                "examples_per_second": 1 / statistics.median(values),
                "ours_is_faster_by": statistics.median(other / own for own, other in zip(ours, values, strict=True)),
                "aim": AIM if name == WHOLE else None,
                "positions": statistics.fmean(positions[part, name]) if (part, name) in positions else None,
            }
        )
    return lines


def same_scores(one: dict[str, dict[str, float]], other: dict[str, dict[str, float]]) -> None:
    """What is compared does the same work; padding may move a last digit, and with it a prediction or two."""
    for language, scores in one.items():
        for name, score in scores.items():
            assert abs(score - other[language][name]) < 1, (language, name, score, other[language][name])


def show(title: str, lines: list[dict[str, Any]]) -> None:
    """Prints the ways of one data set."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("", "way", "examples/s", "ours is faster by", "aim", "positions"):
        table.add_column(column, justify="left" if column in ("", "way") else "right", no_wrap=True)
    for line in lines:
        numbers = [f"{line['examples_per_second']:,.1f}", f"{line['ours_is_faster_by']:.2f}"]
        forms = {"aim": "g", "positions": ".1f"}
        rest = ["" if line[name] is None else format(line[name], form) for name, form in forms.items()]
        table.add_row(line["part"], line["way"], *numbers, *rest)
    Console(highlight=False, soft_wrap=True, width=130).print(table)


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """Data, sizes, and where the measurements are written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hub_root", metavar="DIR", help="folder that mirrors the Hub, with google/xtreme")
    parser.add_argument("--model", metavar="FOLDER", help="a model and its tokenizer (default: a random one)")
    for name, default, what in (
        ("layers", 4, "layers of the random model"),
        ("hidden", 256, "its hidden size, a multiple of 64"),
        ("vocab", 16000, "pieces of its tokenizer"),
        ("max_length", 128, "positions of the longest input"),
        ("batch", 32, "examples of an update"),
        ("updates", 8, "updates of a round"),
        ("evaluated", 100, "evaluated rows of each language"),
        ("rounds", 5, "interleaved rounds"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default {default})")
    output = Path("bench/results/finetuning.json")
    where = f"where the measurements are written (default {output})"
    parser.add_argument("--output", type=Path, metavar="FILE", default=output, help=where)
    return parser.parse_args(argv)


def check_flags(flags: argparse.Namespace) -> None:
    """Raises ValueError for sizes of which there is no model or nothing to measure."""
    for name in ("layers", "hidden", "vocab", "max_length", "batch", "updates", "evaluated", "rounds"):
        if (value := getattr(flags, name)) < 1:
            raise ValueError(f"--{name} is {value}: nothing would be measured. Give 1 or more.")
    if flags.hidden % 64:
        raise ValueError(f"--hidden is {flags.hidden}: a head has 64 dimensions. Give a multiple of 64.")


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    flags = read_flags(argv)
    with user_errors():
        check_flags(flags)
        import datasets
        import torch
        from transformers.utils import logging

        datasets.disable_progress_bars()
        logging.set_verbosity_error()
        torch.manual_seed(0)
        parts = {}
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with tempfile.TemporaryDirectory() as folder:
            for name, overrides in tables(flags.hub_root).items():
                model = flags.model or str(Path(folder) / f"model-{name}")
                if flags.model is None:
                    save_model(Path(model), texts_of(overrides, flags), flags)
                contest = Contest(overrides, model, flags, Path(folder) / "out")
                lengths = contest.lengths
                facts = {
                    "training_rows": len(lengths),
                    "mean_length": statistics.fmean(lengths),
                    "longest": max(lengths),
                    "evaluated_rows": {language: len(rows) for language, rows in contest.data.evaluation.items()},
                    "parameters": contest.model.num_parameters(),
                }
                parts[name] = {**facts, "ways": measure(contest, flags.rounds)}
                title = f"{name}: {len(lengths):,} training rows of {facts['mean_length']:.1f} pieces on average, "
                title += f"{facts['parameters'] / 1e6:.1f}M parameters, {device}, medians of {flags.rounds} rounds"
                show(title, parts[name]["ways"])
        flags.output.parent.mkdir(parents=True, exist_ok=True)
        settings = {name: value for name, value in vars(flags).items() if isinstance(value, int)}
        write_json(flags.output, {"parts": parts, "settings": settings, "facts": run_facts(["bench.finetuning"])})


def texts_of(overrides: list[str], flags: argparse.Namespace) -> list[str]:
    """All texts of a recipe's evaluated rows, for the tokenizer."""
    import importlib

    from finetuning.recipe import Recipe

    needed = ["model=none", "output_dir=none", "task=bench", "selection=last", "training.learning_rate=1"]
    recipe = load_recipe(Recipe, None, [*needed, f"hub_root={flags.hub_root or 'null'}", *overrides])
    data = importlib.import_module(f"finetuning.tasks.{recipe.kind}").read(recipe)
    texts = []
    for rows in (data.train, *data.evaluation.values()):
        if "words" in rows.column_names:
            texts += [" ".join(words) for words in rows["words"][:]]
        else:
            texts += [text for name in ("text", "pair") if name in rows.column_names for text in rows[name][:]]
    return texts


if __name__ == "__main__":
    main()
