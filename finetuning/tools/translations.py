"""Converts XTREME's published translations into the JSON lines that recipes read.

    python -m crosslingual_zoo.finetuning.tools.translations --input xtreme_translations --output translations

The files are listed as "Translations" at github.com/google-research/xtreme (the storage bucket xtreme_translations).
Keep their names, and the folders XNLI and PAWSX; you do not need all files. Each becomes a file that is named
<task>/<language>/<split>.jsonl: XNLI's en-de-translated.tsv xnli/de/train.jsonl, and squad.translate.dev.en-de.json
squad/de/validation.jsonl.

Splits have the names of google/xtreme's splits with the same rows. TSV files have two texts, their two translations and
the label: rows of XNLI have premise, hypothesis, premise_en, hypothesis_en and label ("contradictory" becomes
MultiNLI's "contradiction"), those of PAWS-X sentence1, sentence2, sentence1_en, sentence2_en and label (0 or 1). JSON
files are SQuAD's: rows have id, question, context and answers, or, of translate-test, question_en, context_en and
answers_en. Join these to the test's own rows by their id, and English SQuAD to translate-train in the same way.

XTREME has no documentation of the files; issues 37, 95 and 98 of its repository describe them. Rows that cannot be
read, such as some malformed ones of PAWS-X, are left out and counted; a file with too many of them is an error, such as
copies from before September 2020. MLQA's German translate-test file was never published. Other files are ignored, such
as pseudo test sets (English tests translated into more languages, which are not gold). A file that exists is not
written again: remove it to convert its source anew.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from crosslingual_zoo.finetuning.data.label_files import load_labels
from crosslingual_zoo.zoo_core.command_line import CommandParser, user_errors
from crosslingual_zoo.zoo_core.provenance import write_rows
from crosslingual_zoo.zoo_core.tables import Table, read_lines, require_column

LANGUAGE = r"(?P<language>[a-z]{2,3}(?:-[A-Za-z]+)?)"
PAIRS = {  # by the folder above the file, without punctuation: names of the two texts, and of the labels
    "xnli": (
        ("premise", "hypothesis"),
        {name: name for name in ("entailment", "neutral", "contradiction")} | {"contradictory": "contradiction"},
    ),
    "pawsx": (("sentence1", "sentence2"), {"0": 0, "1": 1}),
}
FILES = {  # task, split, and whether the original (TSV) or the text (JSON) is the English side
    rf"en-{LANGUAGE}-translated\.tsv": ("", "train", True),
    rf"test-{LANGUAGE}-en-translated\.tsv": ("", "test", False),
    rf"squad\.translate\.train\.en-{LANGUAGE}\.json": ("squad", "train", False),
    rf"squad\.translate\.dev\.en-{LANGUAGE}\.json": ("squad", "validation", False),
    rf"tydiqa\.translate\.train\.en-{LANGUAGE}\.json": ("tydiqa", "train", False),
    rf"tydiqa\.translate\.test\.{LANGUAGE}-en\.json": ("tydiqa", "validation", True),
    rf"xquad\.translate\.test\.{LANGUAGE}-en\.json": ("xquad", "validation", True),
    rf"mlqa\.translate\.test\.{LANGUAGE}-en\.json": ("mlqa", "test", True),
}


class Source(NamedTuple):
    """What a published file holds."""

    task: str
    language: str
    split: str
    is_english: bool
    """Whether its original (TSV) or its text (JSON) is English."""


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--input", required=True, type=Path, help="folder with XTREME's translations")
    text = "folder to write <task>/<language>/<split>.jsonl into"
    parser.add_argument("--output", required=True, type=Path, help=text)
    options = parser.parse_args(argv)
    with user_errors():
        convert(options.input, options.output)


def convert(folder: Path, output: Path) -> None:
    """Writes the rows of every published file in `folder` into `output`, and prints how many were left out.

    Raises ValueError if there is no such file, and if most of a file cannot be read.
    """
    sources = {}
    for file in sorted(folder.rglob("*")):
        source = source_of(file)
        if source:
            sources[file] = source
    if not sources:
        raise ValueError(f"{folder} holds no file of XTREME's translations. Name their folder.")
    for file, source in sources.items():
        written = output / source.task / source.language / f"{source.split}.jsonl"
        if written.exists():
            print(f"{written} exists: {file} is not converted")
            continue
        if source.task in PAIRS:
            rows, count = pair_rows(file, source.task, source.is_english)
        else:
            rows, count = question_rows(file, source.is_english)
        if 2 * len(rows) <= count:
            raise ValueError(f"{file} has {count:,} rows, of which {len(rows):,} are readable. Download it again.")
        write_rows(written, rows)
        print(f"{written}: {len(rows):,} rows, {count - len(rows):,} left out")


def source_of(file: Path) -> Source | None:
    """Returns what a published file holds; None for any other file."""
    if "pseudo" in "/".join(file.parts[-2:]).lower():
        return None
    folders = [re.sub(r"\W|_", "", part).lower() for part in file.resolve().parts]
    task_of_folder = next((name for name in reversed(folders) if name in PAIRS), "")
    for pattern, (task_of_file, split, is_english) in FILES.items():
        match = re.fullmatch(pattern, file.name)
        task = task_of_file or task_of_folder
        if match and task:
            return Source(task, match["language"], split, is_english)
    return None


def pair_rows(file: Path, task: str, is_english: bool) -> tuple[list[dict[str, Any]], int]:
    """The readable rows, and the number of all lines."""
    names, labels = PAIRS[task]
    english = tuple(f"{name}_en" for name in names)
    columns = (*names, *english)
    if is_english:
        columns = (*english, *names)
    rows = []
    count = 0
    for line in read_lines(file):
        count += 1
        *texts, label = line.split("\t")
        label = label.strip()
        if len(texts) == len(columns) and all(map(str.strip, texts)) and label in labels:
            rows.append({**dict(zip(columns, texts, strict=True)), "label": labels[label]})
    return rows, count


def question_rows(file: Path, is_english: bool) -> tuple[list[dict[str, Any]], int]:
    """The readable questions of SQuAD's JSON, and the number of all. Raises ValueError for another form."""
    questions = load_labels(Table(path=str(file)))
    require_column(questions, "answers", str(file))
    suffix = "_en" if is_english else ""
    rows: dict[str, dict[str, Any]] = {}
    for question in questions:
        answers = question["answers"] or []
        texts = [answer["text"] for answer in answers]
        starts = [answer["answer_start"] for answer in answers]
        if texts and all(map(has_text, (question["question"], question["context"], *texts))):
            row = {
                "id": question["id"],
                f"question{suffix}": question["question"],
                f"context{suffix}": question["context"],
                f"answers{suffix}": {"text": texts, "answer_start": starts},
            }
            rows.setdefault(question["id"], row)
    return list(rows.values()), len(questions)


def has_text(text: str | None) -> bool:
    """Whether a text is not blank."""
    return bool(text and text.strip())


if __name__ == "__main__":
    main()
