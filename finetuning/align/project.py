"""`word-align project`: copies labels of source sentences to their translations, and counts lost labels.

`projection` has the rules, and `finetuning.data.label_schemes` says which labels are spans.
"""

import contextlib
import json
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from crosslingual_zoo.finetuning.align.common import (
    AlignerOptions,
    PairBar,
    load_aligner,
    make_parser,
    make_progress,
    pick,
    refuse,
    report_running_text,
    rule_of,
)
from crosslingual_zoo.finetuning.align.pairs import (
    PairReader,
    Side,
    count_running_text,
    is_split_further,
    split_at_blanks,
)
from crosslingual_zoo.finetuning.align.projection import Span, label_spans, project_spans, project_tags, spans_of
from crosslingual_zoo.finetuning.data.label_files import load_labels
from crosslingual_zoo.finetuning.data.label_schemes import UNLABELED, form_of, to_iob2
from crosslingual_zoo.finetuning.data.rows import BREAKS, text_lists
from crosslingual_zoo.zoo_core.console import CONSOLE, say_loading
from crosslingual_zoo.zoo_core.processes import stop_signals
from crosslingual_zoo.zoo_core.provenance import written_aside
from crosslingual_zoo.zoo_core.tables import Table, read_lines, require_column

LABEL_COLUMNS = ("tags", "ner_tags", "upos", "labels")  # of CoNLL, the Hub, CoNLL-U, and `label_text`
USAGE = "word-align project LABELS [TRANSLATIONS] [--output FILE] [--model FOLDER|ID] [options]"
DESCRIPTION = """Copy labels of sentences to their translations, along word links.

  word-align project labels.conll translations.txt --split --threshold 0.2 --output projected.conll
  word-align project pairs.jsonl --threshold 0.2 --output projected.jsonl
                       {"source": "...", "target": "...", "spans": [{"start": 0, "end": 4, "label": "PER"}]}

The first command reads tokens with their labels (CoNLL, CoNLL-U, or any table with `tokens` and one of `tags`,
`ner_tags`, `upos`, `labels`) and one translation per line, whose words are between spaces and tabs. It writes CoNLL: on
each line a word, a tab and its label, or `_` for none. The second command reads texts with spans of characters, and
adds `target_spans` to each row: one for each span, null for one that is lost. A word that is partly in a span is
labeled as a whole. A span runs over no bracket or quotation mark whose partner is outside. Both commands count lost
labels; of spans, fewer are lost at a threshold of 0.2 than at the default."""


@dataclass(frozen=True)
class ProjectionOptions:
    """The files: labels, their translations, whether those are split, and where labels are written, or None."""

    labels: str
    translations: str | None
    split: bool
    output: str | None


def read_options(arguments: list[str]) -> tuple[AlignerOptions, ProjectionOptions]:
    """Returns the parsed command line."""
    parser = make_parser("word-align project", DESCRIPTION, USAGE, reads_pairs=False)
    parser.add_argument(
        "labels", metavar="LABELS", help="labeled source sentences; JSON lines also have the translations"
    )
    parser.add_argument("translations", nargs="?", metavar="TRANSLATIONS", help="translations, line n of sentence n")
    parser.add_argument("--output", metavar="FILE", help="write the labels to this new file, not to stdout")
    parser.add_argument("--split", action="store_true", help="split TRANSLATIONS, as running text, also at punctuation")
    options = parser.parse_args(arguments)
    if not options.translations:
        refuse(parser, options, "split", "without TRANSLATIONS")
        if not options.labels.removesuffix(".gz").endswith((".jsonl", ".json")):
            parser.error(f"{options.labels} needs TRANSLATIONS; only JSON lines (.jsonl) have them in themselves")
    return pick(AlignerOptions, options), pick(ProjectionOptions, options)


def run(options: AlignerOptions, files: ProjectionOptions) -> None:
    """Writes the labels of every translation. Raises ValueError for files that do not fit each other."""
    if files.output and Path(files.output).exists() and Path(files.output).stat().st_size:
        raise ValueError(f"{files.output} exists and is not empty. Name another --output.")
    say_loading(options.model)
    labeled: LabeledWords | TextsWithSpans
    if files.translations:
        labeled = LabeledWords(files.labels, files.translations, files.split)
    else:
        labeled = TextsWithSpans(files.labels)
    aligner = load_aligner(options, **rule_of(options))
    CONSOLE.print(labeled.note)
    counts: Counter[str] = Counter()
    lost_counts: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        stack.enter_context(stop_signals())  # what is written aside is removed
        output = stack.enter_context(written_aside(files.output)) if files.output else sys.stdout
        progress = stack.enter_context(make_progress(to_stdout=not files.output))
        bar = PairBar(progress, "projecting", len(labeled.pairs), aligner.batch_size)
        alignments = aligner.align(labeled.pairs, probabilities=True, after_batch=bar.after_batch)
        for number, alignment in enumerate(bar.count(alignments)):
            text, spans, lost = labeled.project(number, alignment)
            output.write(text)
            counts.update(span.label for span in spans)
            lost_counts.update(span.label for span in lost)
    print_counts(len(labeled.pairs), counts, lost_counts, labeled.changes())


def print_counts(sentences: int, counts: Counter[str], lost_counts: Counter[str], changes: str) -> None:
    """Prints how many labels were lost, and what else changed."""
    losses = [f"{lost_counts[label]:,} of {count:,} {label or 'spans'}" for label, count in counts.most_common()]
    lost = ", ".join(losses) or "nothing, there are no labels"
    line = f"{sentences:,} sentences; lost: {lost}"
    if changes:
        line += f"; {changes}"
    CONSOLE.print(line)


class LabeledWords:
    """Tokens with labels, and a translation a line. `pairs`: (tokens, translation).

    `split_further` counts the translations so far that were split into another number of words than blanks separate.
    """

    def __init__(self, path: str, translations: str, is_split: bool):
        import datasets

        datasets.disable_progress_bars()
        rows = load_labels(Table(path=path))
        require_column(rows, "tokens", path)
        columns = [name for name in LABEL_COLUMNS if name in rows.column_names]
        if not columns:
            names = ", ".join(rows.column_names)
            raise ValueError(f"{path} has the columns {names}: it needs one of {', '.join(LABEL_COLUMNS)}.")
        column = columns[0]
        tokens = text_lists(rows, "tokens", path, "word")
        self.labels = text_lists(rows, column, path, "label")
        for row, (words, labels) in enumerate(zip(tokens, self.labels, strict=True)):
            if len(words) != len(labels):
                raise ValueError(
                    f"{path}, row {row} (from 0): {len(words)} words in column tokens and {len(labels)} labels in "
                    f"column {column}. Correct or remove the row."
                )
        texts = list(read_lines(translations))
        if len(texts) != len(tokens):
            raise ValueError(
                f"{path} has {len(tokens):,} sentences, {translations} {len(texts):,} lines. Line n translates "
                "sentence n."
            )
        self.texts = texts
        self.split_further = 0
        self.pairs: list[Any] = list(zip(tokens, texts, strict=True))
        if not is_split:
            running_text: Counter[str] = Counter()
            for row, pair in enumerate(self.pairs):
                self.pairs[row] = split_at_blanks(pair)
                count_running_text(pair, self.pairs[row], running_text)
            report_running_text(running_text)
        self._convert_spans(path)

    def _convert_spans(self, path: str) -> None:
        """Makes labels that mark spans those of IOB2."""
        first_rows: dict[str, int] = {}  # of each label
        for row, labels in enumerate(self.labels):
            for label in labels:
                first_rows.setdefault(label, row)
        form = form_of(first_rows, lambda label: f"{path}, row {first_rows[label]} (from 0)")
        self.are_spans = form is not None
        self.note = "labels are tags, one a word: they are copied word by word"
        if form:
            self.labels = [to_iob2(labels, form) for labels in self.labels]
            self.note = "labels mark spans: they are written as IOB2"

    def project(self, number: int, alignment: Any) -> tuple[str, list[Span], list[Span]]:
        """Lines of CoNLL, all source spans, and those that are lost."""
        labels = self.labels[number]
        links = alignment.links
        probabilities = alignment.probabilities
        words = alignment.target
        self.split_further += is_split_further(self.texts[number], len(words))
        if self.are_spans:
            spans = spans_of(labels)
            projected, lost = label_spans(links, probabilities, spans, len(words), words)
        else:
            spans = [Span(word, word + 1, tag) for word, tag in enumerate(labels)]
            projected, lost = project_tags(links, probabilities, labels, len(words))
        text = ""
        for word, label in zip(words, projected, strict=True):
            text += f"{word}\t{label or UNLABELED}\n"
        return text + "\n", _with_label(spans), _with_label(lost)

    def changes(self) -> str:
        """What --split changed, so far."""
        if not self.split_further:
            return ""
        return f"--split changed the number of words of {self.split_further:,} of {len(self.pairs):,} translations"


def _with_label(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.label != UNLABELED]


class TextsWithSpans:
    """JSON lines of two texts and the spans of the first. `pairs`: (source, target).

    `widened` counts the spans so far that begin or end inside a word.
    """

    def __init__(self, path: str):
        self.pairs = list(PairReader([path], "jsonl"))
        self.note = "labels are spans of characters"
        self.widened = 0
        lines = read_lines(path)
        self.rows: list[dict[str, Any]] = [json.loads(line) if line.strip() else {} for line in lines]
        self.spans: list[list[Span]] = []
        for number, (row, pair) in enumerate(zip(self.rows, self.pairs, strict=True), start=1):
            self.spans.append(spans_of_row(row, pair, f"{path}, line {number}"))
        if not any("spans" in row for row in self.rows):
            keys = ", ".join(dict.fromkeys(chain.from_iterable(self.rows)))
            raise ValueError(
                f"{path}: no row has the key `spans`; the keys are {keys}. Rename the one that holds spans."
            )

    def project(self, number: int, alignment: Any) -> tuple[str, list[Span], list[Span]]:
        """The row as JSON with `target_spans`, all source spans, and those that are lost."""
        row = self.rows[number]
        if not row:
            return "\n", [], []
        spans = self.spans[number]
        source_offsets = alignment.source_offsets
        self.widened += sum(is_inside_word(source_offsets, span) for span in spans)
        spans_in_words = [words_of(source_offsets, span) for span in spans]
        targets = project_spans(alignment.links, alignment.probabilities, spans_in_words, alignment.target)
        lost = []
        projected: list[dict[str, Any] | None] = []
        for span, target in zip(spans, targets, strict=True):
            if target is None:
                lost.append(span)
                projected.append(None)  # so that target_spans[n] is the projection of spans[n]
                continue
            start, _ = alignment.target_offsets[target.begin]
            _, end = alignment.target_offsets[target.end - 1]
            projected.append({"start": start, "end": end, "label": span.label})
        line = json.dumps(row | {"target_spans": projected}, ensure_ascii=False)
        return f"{line}\n", spans, lost

    def changes(self) -> str:
        """How many spans were widened to whole words, so far."""
        if not self.widened:
            return ""
        count = sum(map(len, self.spans))
        return (
            f"{self.widened:,} of {count:,} spans begin or end inside a word, and were widened to whole words (offsets "
            "must count characters, not UTF-16 units or bytes)"
        )


def spans_of_row(row: dict[str, Any], pair: tuple[Side, Side], where: str) -> list[Span]:
    """The spans of a JSON row. Raises ValueError for words, for spans that are no list, and as `span_of`."""
    source, target = pair
    if not isinstance(source, str) or not isinstance(target, str):
        raise ValueError(f"{where}: spans are of characters: give texts, not words.")
    if "target_spans" in row:
        raise ValueError(f"{where}: the row has `target_spans`, which are written here. Rename or remove them.")
    values = row.get("spans", [])
    if not isinstance(values, list):
        raise ValueError(f"{where}: `spans` is {json.dumps(values)[:80]}. Give a list of objects.")
    return [span_of(value, source, f"{where}: spans[{number}]") for number, value in enumerate(values)]


def span_of(value: Any, source: str, where: str) -> Span:
    """A span of a JSON row. Raises ValueError for what is no object of `start`, `end` and `label`, or does not fit."""
    if isinstance(value, dict):
        begin = value.get("start")
        end = value.get("end")
        label = value.get("label")
        # true and false are whole numbers to Python
        has_ends = type(begin) is type(end) is int and 0 <= begin < end <= len(source)
        has_label = isinstance(label, str) and label.strip() and not BREAKS.search(label)
        if has_ends and has_label:
            return Span(begin, end, label)
    raise ValueError(
        f"{where} is {json.dumps(value, ensure_ascii=False)[:80]}. A span has start and end, from 0 to {len(source)}, "
        "and a label without tabs or line breaks."
    )


def words_of(offsets: list[tuple[int, int]], span: Span) -> Span:
    """The words that a span of characters holds, in part at least; an empty span where there are none."""
    words = [word for word, (begin, end) in enumerate(offsets) if begin < span.end and span.begin < end]
    if not words:
        return Span(0, 0, span.label)
    return Span(words[0], words[-1] + 1, span.label)


def is_inside_word(offsets: list[tuple[int, int]], span: Span) -> bool:
    """Whether a span of characters begins or ends inside a word."""
    for begin, end in offsets:
        if begin < span.begin < end or begin < span.end < end:
            return True
    return False
