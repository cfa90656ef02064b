"""Gold answers that no prediction can equal: reasons, counts, and their list in a run."""

import csv
import json

import numpy as np
import pytest

from finetuning.results.table import read_results
from finetuning.run import main
from finetuning.tasks.question_answering.reach import (
    ABSENT,
    BOUNDARY,
    LONG,
    NO_WINDOW,
    TOKENLESS,
    Reach,
    nearest_span,
    obstacles,
)
from tests.finetuning.labeled_rows import ANSWERS, row_of, write_rows


def test_each_obstacle_is_found_by_itself():
    context = "abc def ghi"
    offsets_P2 = np.array([[0, 3], [4, 5], [5, 7], [8, 11]])

    def of(answer, start, held=(4,), limit=30):
        return obstacles(context, answer, start, offsets_P2, list(held), 2, limit)

    assert of("def", 4) == ("def", []) == of(" def ", 3)
    assert of("bc d", 1) == ("abc d", [BOUNDARY])
    assert of("x", -1) == ("", [ABSENT])
    assert of("abc def", 0, limit=2) == ("abc def", [LONG]) and of("abc def", 0, limit=3)[1] == []
    # windows of the tokens 0 to 2 and 2 to 3
    assert of("c def g", 2, held=(3, 2), limit=3) == (context, [BOUNDARY, LONG, NO_WINDOW])
    assert of("def ghi", 4, held=(3, 2)) == ("def ghi", [NO_WINDOW]) and of("ghi", 8, held=(3, 2))[1] == []
    assert nearest_span(np.array([[0, 1], [2, 3]]), 1, 2) is None  # a character that no token has


def test_counts_are_by_part_and_language_and_exact_ones_are_not_listed():
    reach = Reach()
    reach.add("evaluation", "de", 4, json.dumps([("a", "a", []), ("b", "bc", [BOUNDARY, LONG])]))
    reach.add("evaluation", "zh", 0, json.dumps([("c", "", [ABSENT])]))
    none = {ABSENT: 0, TOKENLESS: 0, BOUNDARY: 0, LONG: 0, NO_WINDOW: 0}
    assert reach.counts["evaluation"]["de"] == {"answers": 2, "exact": 1, **none, BOUNDARY: 1, LONG: 1}
    assert reach.counts["evaluation"]["zh"] == {"answers": 1, "exact": 0, **none, ABSENT: 1}
    reason = "not at token boundaries, of more tokens than a prediction may have"
    assert [list(row.values()) for row in reach.listed] == [
        ["evaluation", "de", 4, "b", "bc", reason],
        ["evaluation", "zh", 0, "c", "", "not in its context"],
    ]
    assert reach.fact().startswith("2 of 3 evaluated answers are no span") and "1 not in its context" in reach.fact()


@pytest.mark.slow
def test_a_run_counts_and_lists_them(places, tmp_path):
    context = "A girl is dancing with a dog in the street."
    answers = ("girl", "ancin", "girl is dancing with a dog", "cat")
    for name in ("en-dev", "few"):
        write_rows(tmp_path / f"{name}.jsonl", [row_of("Who?", context, answer) for answer in answers])
    evaluation = f"evaluation=[{{path: {tmp_path}/few.jsonl, languages: [en], {ANSWERS}}}]"
    main([*places, evaluation, "max_answer_length=5", "training.max_steps=1"])
    out = tmp_path / "out"
    protocol = read_results(out)["protocol"]
    counts = protocol["answer_spans"]["evaluation"]["en"]
    assert counts["answers"] == 4 and counts["exact"] == 1
    assert (counts[BOUNDARY], counts[LONG], counts[ABSENT]) == (1, 1, 1)
    # the training row whose answer is not in its context was left out before
    assert protocol["answer_spans"]["train"]["en"]["answers"] == 3 and protocol["left_out_rows"] == {"en": 1}
    with (out / "answer_spans.csv").open(encoding="utf-8", newline="") as stream:
        listed = list(csv.DictReader(stream))
    evaluated = [row for row in listed if row["part"] == "evaluation"]
    assert [(row["language"], row["row"], row["answer"]) for row in evaluated] == [
        ("en", "1", "ancin"),
        ("en", "2", "girl is dancing with a dog"),
        ("en", "3", "cat"),
    ]
    assert "ancin" in evaluated[0]["nearest_span"] and evaluated[0]["reason"] == "not at token boundaries"
    assert "3 of 4 evaluated answers are no span of tokens" in (out / "results.md").read_text(encoding="utf-8")
