"""Labels translated text with a tagger that was trained on another language, for training with translate-train-all.

    python finetuning/run.py --config finetuning/recipes/xtreme/panx.yaml model=runs/veco-large/model \\
      output_dir=runs/veco/panx_teacher
    python -m finetuning.tools.label_text --model runs/veco/panx_teacher/seed-1/model --languages de fr \\
      --input 'translated/panx/{language}.jsonl' --output 'labeled/panx/{language}/train.jsonl'

A translation has another word order, so labels cannot be copied. Instead, a model trained on English (the teacher)
labels the translated text (FILTER, 2020; VECO, ACL 2021, section 5.1, for POS and NER). XTREME publishes no
translations of its POS and NER data; bring your own.

The input is a table like any other: a file, a folder in the Hub's layout or a Hub id, with a column of lists of words,
or of text that is split at white space. Its other columns are kept: plug-in needs the original in the same row. Each
row gets `tokens`, `labels` (names; chunks as IOB2), `confidence` (mean probability of its labels) and `labeled_by`,
which names the teacher. The results of a run that trains on these rows name it, too. FILE.yaml, next to each
FILE.jsonl, has teacher, input, counts and mean confidence.
"""

import argparse
import collections
import re
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from finetuning.data.label_schemes import form_of, to_iob2
from finetuning.data.task_tables import LABELED_BY
from finetuning.data.word_lists import text_lists
from zoo_core.command_line import TRUST_REMOTE_CODE, CommandParser, user_errors
from zoo_core.provenance import run_facts, write_rows, written_aside
from zoo_core.tables import Table, describe, load_table, require_column, table_fingerprint

if TYPE_CHECKING:
    from datasets import Dataset

LANGUAGE = "{language}"
WRITTEN = ("tokens", "labels", "confidence", LABELED_BY)  # columns
# languages that are written without spaces between words, or with spaces between phrases
UNSPACED = {"bo", "dz", "ja", "km", "lo", "my", "th", "wuu", "yue", "zh"}


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the teacher: folder or Hub id of a fine-tuned tagger")
    parser.add_argument("--input", required=True, help=f"text to label: file, folder or Hub id; may hold {LANGUAGE}")
    parser.add_argument("--config", help=f"configuration of the input, if it has several; may hold {LANGUAGE}")
    parser.add_argument("--split", default="train", help="split of the input; files have none (default: train)")
    parser.add_argument("--column", help="column of words or text (default: `tokens` if it exists, else `text`)")
    parser.add_argument("--languages", nargs="+", required=True, metavar="LANGUAGE", help="languages of the text")
    parser.add_argument("--output", required=True, help=f"JSONL file to write; holds {LANGUAGE} for several languages")
    parser.add_argument("--hub_root", help="folder that mirrors the Hub (<hub_root>/<owner>/<name>)")
    parser.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    parser.add_argument(
        "--max_length", type=int, default=128, help="tokens of a window; longer sentences are split (default: 128)"
    )
    parser.add_argument("--batch_size", type=int, default=64, help="windows per forward pass (default: 64)")
    options = parser.parse_args(argv)
    with user_errors():
        label(options, sys.argv if argv is None else ["finetuning/tools/label_text.py", *argv])


def label(options: argparse.Namespace, command: list[str]) -> None:
    """Labels the text of every language, after reading and checking all input."""
    outputs = {language: Path(options.output.replace(LANGUAGE, language)) for language in options.languages}
    for name, value in (("input", f"{options.input} {options.config}"), ("output", options.output)):
        if len(outputs) > 1 and LANGUAGE not in value:
            raise ValueError(f"--{name} is {getattr(options, name)}, for {len(outputs)} languages. Write {LANGUAGE}.")
    for output in outputs.values():
        if output.suffix != ".jsonl":
            raise ValueError(f"--output is {output}. Name a file that ends in .jsonl.")
        if there := next((file for file in (output, output.with_suffix(".yaml")) if file.exists()), None):
            raise ValueError(f"{there} exists. Remove it, or name another --output.")
    texts = {language: read_text(options, language) for language in outputs}
    teacher, facts = load_teacher(options), run_facts(command)
    for language, output in outputs.items():
        text = texts[language]
        kept = [row for row, words in enumerate(text.sentences) if words]
        sentences = [text.sentences[row] for row in kept]
        labels, sure = label_words(teacher, sentences, options)
        confidence = [round(statistics.fmean(of_words), 4) for of_words in sure]
        rows = [
            row | dict(zip(WRITTEN, (*own, teacher.signature), strict=True))
            for row, *own in zip(text.rows.select(kept), sentences, labels, confidence, strict=True)
        ]
        counts = {
            "rows": len(rows),
            "left_out_rows": len(text.sentences) - len(kept),
            "words": sum(map(len, sentences)),
            "labels": dict(collections.Counter(label for own in labels for label in own).most_common()),
            "mean_confidence": statistics.fmean(value for own in sure for value in own),
        }
        about = {"language": language, "teacher": teacher.identity, "input": text.identity, **counts, "run": facts}
        with written_aside(output.with_suffix(".yaml")) as stream:
            yaml.safe_dump(about, stream, sort_keys=False, allow_unicode=True, width=120)
        write_rows(output, rows)
        print(
            f"{output}: {counts['rows']:,} rows, {counts['words']:,} words, mean confidence "
            f"{counts['mean_confidence']:.3f}; {counts['left_out_rows']:,} rows without words left out"
        )


class Text(NamedTuple):
    """The rows of one language, their words, and what they are, for FILE.yaml."""

    rows: "Dataset"
    sentences: list[list[str]]
    identity: dict[str, Any]


def read_text(options: argparse.Namespace, language: str) -> Text:
    """Reads the words of one language. Raises ValueError for a column of another type, and for one without words."""
    path, config = (text and text.replace(LANGUAGE, language) for text in (options.input, options.config))
    table = Table(path=path, config=config, split="train" if Path(path).is_file() else options.split)
    rows, where = load_table(table, options.hub_root), describe(table)
    column = options.column or ("tokens" if "tokens" in rows.column_names else "text")
    feature = require_column(rows, column, where)
    if taken := [name for name in WRITTEN if name in rows.column_names and name != column]:
        raise ValueError(f"{where} has a column {taken[0]}, which this command writes. Rename or remove it.")
    if getattr(feature, "dtype", None) in ("string", "large_string"):
        if re.split("[-_]", language)[0] in UNSPACED:
            raise ValueError(
                f"{where}: column {column} holds text in {language}, which has no spaces between words. Split it with "
                "a segmenter for the language, and give a column of lists of words."
            )
        sentences = [(text or "").split() for text in rows[column][:]]
    else:
        sentences = text_lists(rows, column, where, "word", may_be_blank=True)
    if not any(sentences):
        raise ValueError(f"{where}: none of its {len(rows)} rows has a word in column {column}. Name another --column.")
    identity = {"path": path, "config": config, "split": table.split, "column": column}
    return Text(rows, sentences, {**identity, "fingerprint": table_fingerprint(table, options.hub_root, rows)})


class Teacher(NamedTuple):
    """A fine-tuned tagger on this process' device, what it is, and how it writes spans."""

    model: Any
    tokenizer: Any
    identity: dict[str, Any]
    signature: str
    form: str | None  # of its labels


def load_teacher(options: argparse.Namespace) -> Teacher:
    """Loads the tagger. Raises ValueError for a model that is none, or whose labels have no names."""
    import torch
    from accelerate import PartialState
    from transformers import AutoModelForTokenClassification

    from finetuning.models import describe_model, load_pretrained

    name, trusted = options.model, options.trust_remote_code
    if options.max_length < 8 or options.batch_size < 1:
        raise ValueError(f"--max_length is {options.max_length}, --batch_size {options.batch_size}: at least 8 and 1.")
    path, config, tokenizer, identity = describe_model(name, None, options.hub_root, options.max_length, trusted)
    tokenizer.padding_side = "right"
    if getattr(config, "plug_in", False):
        raise ValueError(f"{name} was fine-tuned plug-in, with a translation of each text. Name another model.")
    model = load_pretrained(AutoModelForTokenClassification, path, name, trusted, dtype=torch.float32)
    names = [model.config.id2label[number] for number in range(model.config.num_labels)]
    if all(re.fullmatch(r"LABEL_\d+", label) for label in names):
        raise ValueError(f"The labels of {name} are {', '.join(names)}. Write id2label into its config.json.")
    tuned = list(getattr(config, "fine_tuned_on", None) or [])
    origin = f"fine-tuned on {', then '.join(tuned)}" if tuned else name
    signature = f"{identity['type']} {identity['fingerprint'][:19]}, {origin}"
    identity = {**identity, "fine_tuned_on": tuned, "labels": names}
    form = form_of(names, lambda label: f"config.json of {name}")
    return Teacher(model.to(PartialState().device), tokenizer, identity, signature, form)


def label_words(
    teacher: Teacher, sentences: list[list[str]], options: argparse.Namespace
) -> tuple[list[list[str]], list[list[float]]]:
    """The likeliest label of each word, and its probability, by sentence; long sentences are read in windows."""
    import numpy as np
    import torch
    from datasets import Dataset
    from rich.progress import track

    from finetuning.tasks.tagging import windows_of, words_of_sentences

    model, names = teacher.model, teacher.identity["labels"]
    subword = getattr(model.config, "label_subword", "first")  # other projects' taggers: usually the first
    arguments = dict(tokenizer=teacher.tokenizer, max_length=options.max_length, label_subword=subword)
    rows = Dataset.from_dict({"words": sentences, "tags": [[0] * len(words) for words in sentences]})
    windows = rows.map(
        windows_of, batched=True, with_indices=True, remove_columns=rows.column_names, fn_kwargs=arguments
    )
    windows = windows.select(np.argsort(-np.asarray(windows["length"][:]), kind="stable"))  # less padding
    inputs, values = windows.select_columns(["input_ids", "attention_mask"]), []
    for start in track(range(0, len(inputs), options.batch_size), "Labeling", disable=not sys.stderr.isatty()):
        batch = teacher.tokenizer.pad(inputs[start : start + options.batch_size], return_tensors="pt")
        with torch.no_grad():
            best = model(**batch.to(model.device)).logits.softmax(-1).max(-1)
        values += zip(best.indices.tolist(), best.values.tolist(), strict=True)
    numbers, probabilities = (words_of_sentences(windows, of) for of in zip(*values, strict=True))
    labels = [[names[number] for number in own] for own in numbers]
    return [to_iob2(own, teacher.form) for own in labels] if teacher.form else labels, probabilities


if __name__ == "__main__":
    main()
