"""Files of labels: CoNLL and CoNLL-U, and SQuAD's JSON. `zoo_core.tables` reads all other tables.

conll   a token with its labels per line, between tabs or spaces, and an empty line after each sentence: columns of
        lists, `tokens`, `column_2`, ..., `tags` (the last)
conllu  columns of lists as in the Hub's treebanks: `tokens`, `lemmas`, `upos`, `xpos`, ...
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crosslingual_zoo.zoo_core.tables import Table, describe, load_table

if TYPE_CHECKING:
    from datasets import Dataset

CONLL_FORMATS = ("conll", "conllu")
CONLLU = ("tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")  # as the Hub's treebanks
SEVERAL_WORDS_OR_NONE = re.compile(r"\d+[-.]\d+")  # the ids 3-4 and 3.1 of CoNLL-U
METADATA = re.compile(r"# [\w.-]+ = ")  # a comment of CoNLL-U

Columns = dict[str, list[list[str]]]


def load_labels(table: Table, hub_root: str | None = None) -> "Dataset":
    """Loads the rows of a table, those of SQuAD's own file as its questions. Raises ValueError as `load_table`, and for
    lines of CoNLL without all columns."""
    import datasets

    rows = load_table(as_lines(table), hub_root)
    kind = conll_format(table)
    if kind:
        columns = read_conll(rows["text"], kind, describe(table))
        texts = datasets.List(datasets.Value("string"))
        return datasets.Dataset.from_dict(columns, datasets.Features(dict.fromkeys(columns, texts)))
    if "'qas'" in str(rows.features.get("data")):
        return rows.map(_questions, batched=True, remove_columns=rows.column_names)
    return rows


def conll_format(table: Table) -> str | None:
    """Returns `conll` or `conllu`, by `format` or by the file's ending; None for other tables."""
    name = table.format
    if name == "auto":
        name = Path(table.path.lower().removesuffix(".gz")).suffix.removeprefix(".")
    return name if name in CONLL_FORMATS else None


def as_lines(table: Table) -> Table:
    """Returns the table whose rows are the lines of a CoNLL file; other tables as they are."""
    if not conll_format(table):
        return table
    return replace(table, format="text")


def read_conll(lines: Iterable[str], kind: str, name: str) -> Columns:
    """Returns the columns of a CoNLL file, each with a list per sentence. `name` is that of the file in errors.

    Lines with "#" before a sentence are comments, unless their last field is a label of the file. Of CoNLL-U, ids,
    comments, and lines of several words or of none are left out."""
    blocks = list(_blocks(lines))
    if kind == "conllu":
        columns = CONLLU
        sentences = [_conllu_words(block, name) for block in blocks]
    else:
        columns, sentences = _conll_sentences(blocks, name)
    lists: Columns = {column: [] for column in columns}
    for words in sentences:
        if words:
            for column, values in zip(columns, zip(*words, strict=True), strict=True):
                lists[column].append(list(values))
    if not any(lists.values()):
        raise ValueError(f"{name} cannot be read: it has no rows.")
    return lists


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines of each sentence, with the comments before it."""
    block: list[str] = []
    for line in lines:
        if line.strip() and not line.startswith("-DOCSTART-"):
            block.append(line.strip(" "))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _conllu_words(block: list[str], name: str) -> list[list[str]]:
    words = []
    for line in block:
        number, *fields = _split(line, "\t")
        if line.startswith("#") or SEVERAL_WORDS_OR_NONE.fullmatch(number):
            continue
        _check_fields(fields, CONLLU, line, name)
        words.append(fields)
    return words


def _conll_sentences(blocks: list[list[str]], name: str) -> tuple[tuple[str, ...], list[list[list[str]]]]:
    """The names of the columns, and the fields of each word of each sentence."""
    lines: list[str] = []  # without the comments at the beginning of a block; a token may be "#"
    for block in blocks:
        lines += itertools.dropwhile(lambda line: line.startswith("#"), block)
    first = next((line for line in lines if not line.startswith("#")), "")
    separator = "\t" if "\t" in first else " +"  # not `\s`: a token may hold U+00A0
    width = len(_split(first, separator))
    columns = ("tokens", *(f"column_{number}" for number in range(2, width)), "tags")[:width]
    labels = set()
    if width > 1:
        labels = {_split(line, separator)[-1] for line in lines}
    sentences = []
    for block in blocks:
        words: list[list[str]] = []
        for line in block:
            fields = _split(line, separator)
            may_be_word = fields[-1] in labels and not METADATA.match(line)
            if line.startswith("#") and not words and not may_be_word:
                continue
            comment = "# " if words else "#"
            if line.startswith(comment) and not _is_whole(fields, columns):
                continue
            _check_fields(fields, columns, line, name)
            words.append(fields)
        sentences.append(words)
    return columns, sentences


def _split(line: str, separator: str) -> list[str]:
    return [field.strip(" ") for field in re.split(separator, line)]


def _is_whole(fields: list[str], columns: tuple[str, ...]) -> bool:
    return len(fields) == len(columns) and all(fields)


def _check_fields(fields: list[str], columns: tuple[str, ...], line: str, name: str) -> None:
    if not _is_whole(fields, columns):
        raise ValueError(f"{name}: the line {line[:60]!r} does not have the columns {', '.join(columns)}.")


def _questions(batch: dict[str, list]) -> dict[str, list]:
    """The questions of SQuAD's articles: of one object, or of an object a row."""
    rows: dict[str, list] = {"context": [], "id": [], "question": [], "answers": []}
    for data in batch["data"]:
        articles = data if isinstance(data, list) else [data]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    rows["context"].append(paragraph["context"])
                    for name in ("id", "question", "answers"):
                        rows[name].append(question[name])
    return rows
