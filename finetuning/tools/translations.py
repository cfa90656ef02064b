"""Converts XTREME's published translations into the JSON lines that recipes read.

    python -m finetuning.tools.translations --input xtreme_translations --output translations

The files are listed as "Translations" at github.com/google-research/xtreme (the storage bucket xtreme_translations).
Keep their names and the folders named here; other folders above them do not matter, and you do not need all files:

    XNLI/translate-train/en-<language>-translated.tsv           -> xnli/<language>/train.jsonl
    XNLI/translate-test/test-<language>-en-translated.tsv       -> xnli/<language>/test.jsonl
    PAWSX/translate-train/en-<language>-translated.tsv          -> pawsx/<language>/train.jsonl
    PAWSX/translate-test/test-<language>-en-translated.tsv      -> pawsx/<language>/test.jsonl
    SQuAD/translate-train/squad.translate.train.en-<language>.json          -> squad/<language>/train.jsonl
    SQuAD/translate-dev/squad.translate.dev.en-<language>.json              -> squad/<language>/validation.jsonl
    TyDiQA-GoldP/translate-train/tydiqa.translate.train.en-<language>.json  -> tydiqa/<language>/train.jsonl
    TyDiQA-GoldP/translate-test/tydiqa.translate.test.<language>-en.json    -> tydiqa/<language>/validation.jsonl
    XQuAD/translate-test/xquad.translate.test.<language>-en.json            -> xquad/<language>/validation.jsonl
    MLQA/translate-test/mlqa.translate.test.<language>-en.json              -> mlqa/<language>/test.jsonl

Splits have the names of google/xtreme's splits with the same rows. TSV files have no header, no quoting and five
columns: two texts, their two translations and the label. XNLI's become premise, hypothesis, premise_en, hypothesis_en
and label ("contradictory" becomes MultiNLI's "contradiction"), PAWS-X's sentence1, sentence2, sentence1_en,
sentence2_en and label (0 or 1). JSON files are SQuAD's: their rows have id, question, context and answers.
Translate-test files have question_en, context_en and answers_en instead. Join these to the test's own rows by their id,
and English SQuAD to translate-train in the same way.

XTREME has no documentation of the files; issues 37, 95 and 98 of its repository describe them. Rows that cannot be
read, such as some malformed ones of PAWS-X, are left out and counted. Some copies of the TSV files cannot be used, and
are an error: those from before September 2020 have three columns, without the original text, and translate-test files
may have four, without a label. MLQA's German translate-test file was never published. Other files are ignored, such as
pseudo test sets (English tests translated into more languages, which are not gold).

FILE.yaml, next to each FILE.jsonl, has the source file with its SHA-256, and counts. A file that has been converted is
not converted again, and nothing is overwritten.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from zoo_core.command_line import CommandParser, user_errors
from zoo_core.provenance import write_rows, written_aside
from zoo_core.tables import read_lines

LANGUAGE = r"(?P<language>[a-z]{2,3}(?:-[A-Za-z]+)?)"
PAIRS = {  # by the folder above the file, without punctuation: names of the two texts, and of the labels
    "xnli": (
        ("premise", "hypothesis"),
        {name: name for name in ("entailment", "neutral", "contradiction")} | {"contradictory": "contradiction"},
    ),
    "pawsx": (("sentence1", "sentence2"), {"0": 0, "1": 1}),
}
PAIR_FILES = {  # split by form of the file name; whether the original is the English side
    rf"en-{LANGUAGE}-translated\.tsv": ("train", True),
    rf"test-{LANGUAGE}-en-translated\.tsv": ("test", False),
}
ANSWER_FILES = {  # task, split, and whether the file holds the English side
    rf"squad\.translate\.train\.en-{LANGUAGE}\.json": ("squad", "train", False),
    rf"squad\.translate\.dev\.en-{LANGUAGE}\.json": ("squad", "validation", False),
    rf"tydiqa\.translate\.train\.en-{LANGUAGE}\.json": ("tydiqa", "train", False),
    rf"tydiqa\.translate\.test\.{LANGUAGE}-en\.json": ("tydiqa", "validation", True),
    rf"xquad\.translate\.test\.{LANGUAGE}-en\.json": ("xquad", "validation", True),
    rf"mlqa\.translate\.test\.{LANGUAGE}-en\.json": ("mlqa", "test", True),
}


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--input", required=True, type=Path, help="folder with XTREME's translations")
    parser.add_argument(
        "--output", required=True, type=Path, help="folder to write <task>/<language>/<split>.jsonl into"
    )
    options = parser.parse_args(argv)
    with user_errors():
        convert(options.input, options.output)


def convert(folder: Path, output: Path) -> None:
    """Writes the rows of every published file in `folder` into `output`, and prints what was left out.

    Raises ValueError if there is no such file, if most of a file cannot be read, and if an output file exists that was
    made from another one.
    """
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in (".tsv", ".json")]
    sources = {file: source for file in files if (source := source_of(file))}
    if not sources:
        raise ValueError(f"{folder} holds no file of XTREME's translations. Name their folder.")
    for file in files:
        if (source := sources.get(file)) is None:
            print(f"{file}: passed over")
            continue
        written, digest = source.output(output), hashlib.sha256(file.read_bytes()).hexdigest()
        about_file = written.with_suffix(".yaml")
        there = [path for path in (about_file, written) if path.exists()]
        if there and not (about_file.exists() and digest in about_file.read_text(encoding="utf-8", errors="replace")):
            raise ValueError(f"{there[-1]} exists, and was not made from {file}. Name another --output.")
        if written.exists():
            print(f"{written}: done before")
            continue
        rows = list(source.rows())
        with written_aside(about_file) as stream:  # first: with the rows, the file counts as done
            yaml.safe_dump(source.about(digest), stream, sort_keys=False, allow_unicode=True, width=120)
        write_rows(written, rows)
        print(f"{written}: {source.kept:,} rows, {source.left_out.total():,} left out")


def source_of(file: Path) -> "Source | None":
    """Returns a published file as a `Source`; None for any other file, and for all files of pseudo test sets."""
    if any("pseudo" in part.lower() for part in file.parts[-2:]):
        return None
    for pattern, (task, split, is_english) in ANSWER_FILES.items():
        if match := re.fullmatch(pattern, file.name):
            return Source(file, task, match["language"], split, is_english)
    folders = [re.sub(r"\W|_", "", part).lower() for part in file.resolve().parts[:-1]]
    task = next((name for name in reversed(folders) if name in PAIRS), None)
    for pattern, (split, is_english) in PAIR_FILES.items():
        if task and (match := re.fullmatch(pattern, file.name)):
            return Source(file, task, match["language"], split, is_english)
    return None


@dataclass
class Source:
    """A published file and its rows."""

    file: Path
    task: str
    language: str
    split: str
    has_english: bool  # TSV: the original is English; JSON: the text is
    left_out: Counter[str] = field(default_factory=Counter)  # rows, by the reason
    kept: int = 0

    def output(self, folder: Path) -> Path:
        return folder / self.task / self.language / f"{self.split}.jsonl"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the well-formed rows. Raises ValueError, at the end, if no more than half are well-formed."""
        for found in self._pairs() if self.task in PAIRS else self._questions():
            if isinstance(found, str):
                self.left_out[found] += 1
            else:
                self.kept += 1
                yield found
        if self.left_out.total() >= self.kept:
            raise ValueError(
                f"{self.file} has {self.kept:,} rows, and others that cannot be read: {dict(self.left_out)}. Download "
                "the current file again."
            )

    def _pairs(self) -> Iterator[dict[str, Any] | str]:
        """Yields a row for each line, or why it has none."""
        names, labels = PAIRS[self.task]
        english = [f"{name}_en" for name in names]
        columns = [*english, *names] if self.has_english else [*names, *english]
        for line in read_lines(self.file):
            fields = line.split("\t")
            if len(fields) != 5:
                yield f"{len(fields)} columns, not 5"
            elif (label := fields[4].strip()) not in labels:
                yield f"the fifth column is no label ({', '.join(labels)})"
            elif not all(text.strip() for text in fields[:4]):
                yield "a text is blank"
            else:
                texts = dict(zip(columns, fields, strict=False))
                yield {name: texts[name] for name in (*names, *english)} | {"label": labels[label]}

    def _questions(self) -> Iterator[dict[str, Any] | str]:
        """Yields a row for each question, or why it has none."""
        ids: set[str] = set()
        suffix = "_en" if self.has_english else ""
        for context, question in self._squad():
            answers = question.get("answers") or []
            texts, starts = ([answer.get(name) for answer in answers] for name in ("text", "answer_start"))
            if not isinstance(question.get("id"), str) or question["id"] in ids:
                yield "no id, or one that another question has"
            elif not all(map(_is_text, (context, question.get("question")))):
                yield "question or context is blank"
            elif not answers or not all(map(_is_text, texts)):
                yield "no answer, or one without text"
            elif not all(isinstance(start, int) for start in starts):
                yield "an answer without answer_start"
            else:
                ids.add(question["id"])
                row = {"question": question["question"], "context": context}
                row |= {"answers": {"text": texts, "answer_start": starts}}
                yield {"id": question["id"], **{name + suffix: value for name, value in row.items()}}

    def _squad(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yields context and question of SQuAD's JSON. Raises ValueError for a file of another form."""
        try:
            for article in json.loads(self.file.read_text(encoding="utf-8-sig"))["data"]:
                for paragraph in article["paragraphs"]:
                    for question in paragraph["qas"]:
                        yield paragraph["context"], question
        except (ValueError, KeyError, TypeError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            raise ValueError(f"{self.file} is not JSON of SQuAD's form: {error!r}. Download it again.") from error

    def about(self, digest: str) -> dict[str, Any]:
        """Returns the facts that are written next to the rows."""
        return {
            "source": {"file": "/".join(self.file.parts[-3:]), "sha256": digest},
            "task": self.task,
            "language": self.language,
            "rows": self.kept,
            "left_out": dict(self.left_out),
        }


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


if __name__ == "__main__":
    main()
