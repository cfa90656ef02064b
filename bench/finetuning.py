"""Fine-tuning and evaluation against a plain Trainer, as whole commands: `python -m bench.finetuning`.

Ours is finetuning/run.py, which computes nothing at padding and evaluates all languages in one pass. The others are
what one would write by hand: AutoModelForSequenceClassification and transformers' Trainer, with training rows grouped
by length, or padded to --max_length as the public XTREME scripts do; they predict language by language. All read
the same rows, and save a checkpoint after each epoch. Times are processor seconds of one thread, start and loading
included.

Rows of --hub_root are real: XNLI (trained on validation rows, which are as long as MultiNLI's). Without it, they are
topics of the sample corpus, whose sentences are short. Prints medians and ratios, and the mean accuracy.
"""

import argparse
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from bench._common import compare_commands, make_parser, show, write_results
from crosslingual_zoo.finetuning.align.common import DEFAULT_MODEL
from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.zoo_core.command_line import user_errors
from crosslingual_zoo.zoo_core.provenance import read_json, write_json

OURS = "ours"
PLAIN = {"grouped by length": "group_by_length", "padded to max_length": "random"}
PROGRAM = "import sys; from bench.finetuning import run_plain; run_plain(*sys.argv[1:])"


def save_rows(folder: Path, flags: argparse.Namespace) -> None:
    """Writes train.jsonl and a file for each evaluated language, with texts and `label`."""
    if flags.hub_root:
        path = str(Path(flags.hub_root) / "google" / "xtreme")
        columns = ["sentence1", "sentence2", "gold_label"]
        train = of_language(datasets.load_dataset(path, "XNLI", split="validation"), "en")
        test = datasets.load_dataset(path, "XNLI", split="test")
        evaluated = {language: of_language(test, language) for language in test.unique("language")}
    else:
        path = str(Path(__file__).parents[1] / "sample_corpus")
        columns = ["text", "topic"]
        train = datasets.load_dataset(path, "en", split="train")
        evaluated = {}
        for language in ("en", "de", "fr", "es", "zh"):
            evaluated[language] = datasets.load_dataset(path, language, split="test")
    save_sample(train, flags.train, columns, folder / "train.jsonl")
    for language, rows in evaluated.items():
        save_sample(rows, flags.evaluated, columns, folder / f"{language}.jsonl")


def of_language(rows: datasets.Dataset, language: str) -> datasets.Dataset:
    """The rows of a language."""
    return rows.filter(lambda row: row["language"] == language)


def save_sample(rows: datasets.Dataset, most: int, columns: list[str], file: Path) -> None:
    """Writes at most so many of the rows, with the last of the columns as `label`."""
    sample = rows.shuffle(seed=0).select(range(min(most, len(rows)))).select_columns(columns)
    sample.rename_column(columns[-1], "label").to_json(file, force_ascii=False)


def run_plain(
    way: str, model: str, folder: str, output: str, max_length: str, batch: str, learning_rate: str, epochs: str
) -> None:
    """Fine-tunes and evaluates with transformers alone; writes accuracy.json, the mean over languages."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

    files = {path.stem: str(path) for path in sorted(Path(folder).glob("*.jsonl"))}
    data = {name: datasets.load_dataset("json", data_files=file, split="train") for name, file in files.items()}
    names = sorted(set(data["train"]["label"]))
    columns = [name for name in data["train"].column_names if name != "label"]
    tokenizer = AutoTokenizer.from_pretrained(model)
    padding = "max_length" if way == "padded to max_length" else False

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        texts = [row[name] for name in columns]
        fields = tokenizer(*texts, truncation=True, max_length=int(max_length), padding=padding)
        return {**fields, "label": names.index(row["label"])}

    data = {name: rows.map(encode, remove_columns=columns) for name, rows in data.items()}
    classifier = AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(names))
    arguments = TrainingArguments(
        output, num_train_epochs=int(epochs), learning_rate=float(learning_rate), per_device_eval_batch_size=64,
        per_device_train_batch_size=int(batch), train_sampling_strategy=PLAIN[way], save_strategy="epoch",
        save_total_limit=1, report_to=[], seed=1, use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(classifier, arguments, train_dataset=data.pop("train"), processing_class=tokenizer)
    trainer.train()
    accuracy = []
    for rows in data.values():
        output_of_rows = trainer.predict(rows)
        is_right = output_of_rows.predictions.argmax(-1) == output_of_rows.label_ids
        accuracy.append(100 * float(np.mean(is_right)))
    write_json(Path(output) / "accuracy.json", {"mean": statistics.fmean(accuracy)})


def command_of(flags: argparse.Namespace, folder: Path, way: str, number: int) -> list[str]:
    """The command of a way in a round, which reads the rows in a folder."""
    output = folder / f"{way} {number}"
    if way != OURS:
        arguments = (
            flags.model, folder, output, flags.max_length, flags.batch, flags.learning_rate, flags.epochs,
        )  # fmt: skip
        return [sys.executable, "-c", PROGRAM, way, *map(str, arguments)]
    text_columns = "sentence1, sentence2" if flags.hub_root else "text"
    columns = f"text_columns: [{text_columns}]"
    languages = ", ".join(sorted(path.stem for path in folder.glob("*.jsonl") if path.stem != "train"))
    overrides = [
        f"model={flags.model}",
        f"output_dir={output}",
        "task=bench",
        "selection=last",
        f"train=[{{path: {folder}/train.jsonl, {columns}}}]",
        f"evaluation=[{{path: '{folder}/{{language}}.jsonl', languages: [{languages}], {columns}}}]",
        f"max_length={flags.max_length}",
        f"training.batch_size={flags.batch}",
        f"training.learning_rate={flags.learning_rate}",
        f"training.epochs={flags.epochs}",
        "save_models=false",
    ]
    return [sys.executable, "-m", "crosslingual_zoo.finetuning.run", *overrides]


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = make_parser(__doc__, "finetuning")
    parser.add_argument("--max_length", type=int, default=128, help="positions of the longest input (default 128)")
    parser.add_argument("--batch", type=int, default=32, help="examples of a step (default %(default)s)")
    parser.add_argument("--train", type=int, default=320, help="training rows (default %(default)s)")
    parser.add_argument("--learning_rate", type=float, default=5e-5, help="of all ways (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training rows (default %(default)s)")
    parser.add_argument("--evaluated", type=int, default=100, help="evaluated rows of each language (default 100)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default %(default)s)")
    parser.add_argument("--model", metavar="DIR|ID", default=DEFAULT_MODEL, help="encoder (default %(default)s)")
    parser.add_argument("--hub_root", metavar="DIR", help="folder that mirrors the Hub, with google/xtreme")
    flags = parser.parse_args(argv)
    with user_errors(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_rows(folder, flags)
        ways = [OURS, *PLAIN]
        rows = compare_commands(ways, partial(command_of, flags, folder), flags.rounds, "grouped by length")
        for row in rows:
            output = folder / f"{row['way']} 0"
            if row["way"] == OURS:
                accuracy = read_results(output).average
            else:
                accuracy = read_json(output / "accuracy.json")
            row["accuracy"] = accuracy["mean"]
        show(f"{flags.train} training rows, {flags.evaluated} evaluated rows a language", rows)
        write_results(flags, {"rows": rows})


if __name__ == "__main__":
    main()
