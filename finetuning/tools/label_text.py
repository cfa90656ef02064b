"""Labels translated text with a tagger that was trained on another language, for training with translate-train-all.

    python finetuning/run.py --config finetuning/recipes/xtreme/panx.yaml model=runs/veco-large/model \\
      output_dir=runs/veco/panx_teacher
    python -m crosslingual_zoo.finetuning.tools.label_text --model runs/veco/panx_teacher/seed-1/model \\
      --languages de fr --input 'translated/panx/{language}.jsonl' --output 'labeled/panx/{language}/train.jsonl'

A translation has another word order, so labels cannot be copied. Instead, a model trained on English (the teacher)
labels the translated text (FILTER, 2020; VECO, ACL 2021, section 5.1, for POS and NER). XTREME publishes no
translations of its POS and NER data; bring your own.

The input is a file per language, of any format that recipes read. Its column `tokens` has lists of words, or `text` has
text that is split at white space. Its other columns are kept: plug-in needs the original in the same row. Rows without
words are left out. Each row gets `tokens`, `labels` (names; chunks as IOB2) and `labeled_by`, which names the teacher.
"""

import argparse
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from crosslingual_zoo.finetuning.data.label_files import load_labels
from crosslingual_zoo.finetuning.data.label_schemes import form_of, to_iob2
from crosslingual_zoo.finetuning.data.rows import text_lists, typed_column
from crosslingual_zoo.finetuning.data.task_tables import LABELED_BY
from crosslingual_zoo.zoo_core.command_line import TRUST_REMOTE_CODE, CommandParser, user_errors
from crosslingual_zoo.zoo_core.console import say_loading
from crosslingual_zoo.zoo_core.provenance import write_rows
from crosslingual_zoo.zoo_core.tables import Table

if TYPE_CHECKING:
    from datasets import Dataset

LANGUAGE = "{language}"
BATCH = 64  # windows per forward pass
# languages that are written without spaces between words, or with spaces between phrases
UNSPACED = {"bo", "dz", "ja", "km", "lo", "my", "th", "wuu", "yue", "zh"}


class Teacher(NamedTuple):
    """A fine-tuned tagger."""

    model: Any
    tokenizer: Any
    name: str
    """Type and fingerprint of the model, and what it was fine-tuned on."""


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the teacher: folder or Hub id of a fine-tuned tagger")
    parser.add_argument("--input", required=True, help=f"file of text to label; {LANGUAGE} in it is replaced")
    parser.add_argument("--languages", nargs="+", required=True, metavar="LANGUAGE", help="languages of the text")
    parser.add_argument("--output", required=True, help=f"JSONL file to write; {LANGUAGE} in it is replaced")
    parser.add_argument("--hub_root", help="folder that mirrors the Hub (<hub_root>/<owner>/<name>)")
    parser.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    text = "tokens of a window; longer sentences are split (default: 128)"
    parser.add_argument("--max_length", type=int, default=128, help=text)
    options = parser.parse_args(argv)
    with user_errors():
        outputs = {language: Path(options.output.replace(LANGUAGE, language)) for language in options.languages}
        for output in outputs.values():
            if output.exists():
                raise ValueError(f"{output} exists. Remove it, or name another --output.")
        if len({*outputs.values()}) < len(outputs):
            raise ValueError(f"--output is {options.output}, for {len(outputs)} languages. Write {LANGUAGE} in it.")
        say_loading(options.model)
        texts = {language: read_text(options.input.replace(LANGUAGE, language), language) for language in outputs}
        teacher = load_teacher(options)
        for language, output in outputs.items():
            labels = label_words(teacher.model, teacher.tokenizer, texts[language]["tokens"][:], options.max_length)
            rows = zip(texts[language], labels, strict=True)
            write_rows(
                output, (row | {"labels": labels_of_row, LABELED_BY: teacher.name} for row, labels_of_row in rows)
            )
            print(f"{output}: {len(labels):,} rows, {sum(map(len, labels)):,} words")


def read_text(path: str, language: str) -> "Dataset":
    """The rows of a file that have words, with the words as `tokens`. Raises ValueError for a file without words."""
    rows = load_labels(Table(path=path))
    if "tokens" in rows.column_names:
        text_lists(rows, "tokens", path, "word", may_be_blank=True)
    elif re.split("[-_]", language)[0] in UNSPACED:
        raise ValueError(f"{path}: {language} has no spaces between words. Give lists of words, as column `tokens`.")
    else:
        words = [(text or "").split() for text in typed_column(rows, "text", path)[:]]
        rows = rows.add_column("tokens", words)
    with_words = rows.filter(bool, input_columns="tokens")
    if not len(with_words):
        raise ValueError(f"{path}: none of its {len(rows)} rows has a word.")
    return with_words


def load_teacher(options: argparse.Namespace) -> Teacher:
    """Loads a tagger and its tokenizer. Raises ValueError for a model that is none."""
    import torch
    from accelerate import PartialState
    from transformers import AutoModelForTokenClassification

    from crosslingual_zoo.finetuning.models import describe_model
    from crosslingual_zoo.modeling.checkpoints import load_whole

    name = options.model
    trusted = options.trust_remote_code
    if options.max_length < 8:
        raise ValueError(f"--max_length is {options.max_length}. It must be at least 8.")
    path, config, tokenizer, identity = describe_model(name, None, options.hub_root, options.max_length, trusted)
    if getattr(config, "plug_in", False):
        raise ValueError(f"{name} was fine-tuned plug-in, with a translation of each text. Name another model.")
    model = load_whole(AutoModelForTokenClassification, path, name, trusted, dtype=torch.float32)
    tasks = getattr(config, "fine_tuned_on", None)  # other projects' models have none
    origin = name
    if tasks:
        origin = f"fine-tuned on {', then '.join(tasks)}"
    full_name = f"{identity['type']} {identity['fingerprint'][:19]}, {origin}"
    tokenizer.padding_side = "right"
    return Teacher(model.to(PartialState().device), tokenizer, full_name)


def label_words(model: Any, tokenizer: Any, sentences: list[list[str]], max_length: int) -> list[list[str]]:
    """The likeliest label of each word, by sentence; long sentences are read in windows.

    transformers' pipeline reads a word's label at its first token, and cuts long sentences. A teacher of ours has
    learned the labels at the first token with text.
    """
    import numpy as np
    import torch
    from datasets import Dataset

    from crosslingual_zoo.finetuning.tasks.tagging import windows_of, words_of_sentences

    names = model.config.id2label
    form = form_of(names.values(), lambda label: "id2label of the model")
    subword = getattr(model.config, "label_subword", "first")  # other projects' taggers: usually the first
    rows = {"words": sentences, "tags": [[0] * len(words) for words in sentences]}
    windows_of_rows = windows_of(rows, [*range(len(sentences))], tokenizer, max_length, subword)
    windows = Dataset.from_list(list(itertools.chain.from_iterable(windows_of_rows)))
    order = np.argsort(-np.array(windows["length"][:]), kind="stable")  # less padding
    predicted: dict[int, list[int]] = {}
    for start in range(0, len(order), BATCH):
        numbers = order[start : start + BATCH]
        rows_of_batch = windows.select_columns(["input_ids", "attention_mask"])[numbers]
        inputs = tokenizer.pad(rows_of_batch, return_tensors="pt").to(model.device)
        with torch.no_grad():
            logits = model(**inputs).logits
        predicted.update(zip(numbers.tolist(), logits.argmax(-1).tolist(), strict=True))
    in_order = [predicted[number] for number in range(len(windows))]
    sentence_labels = []
    for ids in words_of_sentences(windows, in_order):
        labels = [names[label_id] for label_id in ids]
        if form:
            labels = to_iob2(labels, form)
        sentence_labels.append(labels)
    return sentence_labels


if __name__ == "__main__":
    main()
