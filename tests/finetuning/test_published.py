"""The papers' tables against each other: printed averages are those of their rows."""

import collections
import itertools
import statistics

import pytest

from crosslingual_zoo.finetuning.published import PAPERS, find, load, look_up, row_scores

TABLES = [(paper, table) for paper in PAPERS for table in load(paper)["tables"]]

KEYS = set("name scores setting quoted_from average average_from recomputed pooling note".split())


def mean_of(table, row, metric):
    """The mean of a row over the columns; None where a score is missing.

    With `average_of`, a column counts with the mean of those of its metrics that it has, as in XTREME's average.
    """
    if len(row_scores(table, row, metric)) < len(table["columns"]):
        return None
    metrics = table.get("average_of", [metric]) if metric == table["metrics"][0] else [metric]
    scores_by_metric = [row_scores(table, row, name) for name in metrics]
    means = []
    for name in table["columns"]:
        means.append(statistics.fmean(scores[name] for scores in scores_by_metric if name in scores))
    return statistics.fmean(means)


def unit_of(figures):
    """One in the last printed digit."""
    printed = [str(figure) for figure in figures if figure is not None]
    return 10.0 ** -max(len(figure.partition(".")[2].rstrip("0")) for figure in printed)


@pytest.mark.parametrize(("paper", "table"), TABLES, ids=[f"{paper}, {table['table']}" for paper, table in TABLES])
def test_published_averages_are_those_of_their_rows(paper, table):
    """Half a unit in the scores and half a unit in the average are rounding."""
    for names in (table["columns"], [row["name"] for row in table["rows"]]):
        assert len(set(names)) == len(names)
    for row in table["rows"]:
        averages = row.get("average", {})
        recomputed = row.get("recomputed", {})
        assert {*row} <= KEYS, row["name"]
        assert {*row["scores"], *averages, *recomputed} <= {*table["metrics"]}, row["name"]
        for metric in {*averages, *recomputed}:
            mean = mean_of(table, row, metric)
            printed = averages[metric]
            again = recomputed.get(metric)
            if mean is None:
                assert again is None, row["name"]
                continue
            unit = unit_of([*row["scores"][metric], printed, again])
            if again is None:
                assert abs(mean - printed) <= unit + 1e-9, row["name"]
            else:
                assert abs(mean - again) <= unit / 2 + 1e-9, row["name"]
                assert abs(mean - printed) > unit, row["name"]
        if "average_from" in row:
            source, source_row = find(paper, row["average_from"], row["name"])
            printed = [row_scores(source, source_row, metric).get(table.get("task")) for metric in source["metrics"]]
            assert set(averages.values()) <= set(printed), row["name"]


def test_published_tables_of_tasks_and_of_languages_agree():
    averages = collections.defaultdict(set)
    tables_of_tasks = []
    for paper, table in TABLES:
        if table["columns_are"] == "tasks":
            tables_of_tasks.append((paper, table))
            continue
        for row in table["rows"]:
            averages[paper, table.get("task"), row["name"]].update(row.get("average", {}).values())
    differing = set()
    for paper, table in tables_of_tasks:
        for row, metric in itertools.product(table["rows"], {"score", "exact_match"} & set(table["metrics"])):
            for task, score in row_scores(table, row, metric).items():
                printed = averages[paper, task, row["name"]]
                if printed and score not in printed:
                    differing.add((paper, table["table"], row["name"], task))
    # printed so: 72.6 and, by language, 73.8
    assert differing == {("veco", "Table 2", "XLM-R large, cross-lingual transfer", "udpos")}


METAXLM = "MetaXLM base, cross-lingual transfer"


@pytest.mark.parametrize(("task", "exact_match"), [("xquad", 42.0), ("mlqa", 34.3), ("tydiqa", 23.0)])
def test_published_averages_fit_scores_that_are_not_legible(task, exact_match):
    """Their mean is plausible: English is highest, and exact match is below F1."""
    [table] = [table for table in load("metaxlm")["tables"] if table.get("task") == task]
    [row] = [row for row in table["rows"] if row["name"] == METAXLM]
    languages = len(table["columns"])
    f1 = row_scores(table, row, "f1")
    exact = row_scores(table, row, "exact_match")
    absent = languages - len(f1)
    assert list(exact) == list(f1)
    assert all(exact[name] < score for name, score in f1.items())
    f1_of_absent = row["average"]["f1"] * languages - sum(f1.values())
    exact_of_absent = exact_match * languages - sum(exact.values())
    if absent:
        assert 0 < exact_of_absent / absent < f1_of_absent / absent < 85
    else:
        assert abs(f1_of_absent) < 0.7


XNLI = {"paper": "xlm_align", "table": "Table 18", "row": "XLM-Align base, zero-shot"}


def place(paper, table, row):
    return {"paper": paper, "table": table, "row": row}


def test_look_up_scores_by_language_and_the_average_over_the_same_languages():
    columns = find(*XNLI.values())[0]["columns"]
    published = look_up(XNLI, "xnli", "classification", "accuracy", columns)
    assert published.title == "XLM-Align (ACL 2021), Table 18, XLM-Align base, zero-shot"
    assert published.scores["accuracy"]["ur"] == 66.6
    assert published.scores["accuracy"]["average"] == 76.2
    fewer = look_up(XNLI, "xnli", "classification", "accuracy", ["en", "de"])
    assert list(fewer.scores["accuracy"]) == ["en", "de"]


LARGE = "XLM-R large, cross-lingual transfer"
MLQA = {"en": 79.0, "es": 55.4, "de": 52.6, "hi": 36.1, "vi": 53.4, "zh": 42.2}


@pytest.mark.parametrize(
    ("row", "task", "metric", "names", "scores", "average"),
    [
        (("metaxlm", "Table 10", METAXLM), "mlqa question_answering", "f1", [*MLQA, "ar"], MLQA, 51.5),  # ar: illegible
        (("veco", "Table 12", LARGE), "udpos tagging", "f1", ["de"], {}, None),  # printed is the accuracy
        # pairs have our names, and not those that the paper prints
        (("xlm_align", "Table 2", "XLM-Align, optimal transport"), "word_alignment word_alignment", "aer",
         ["de-en", "en-fr", "zh-en"], {"de-en": 16.63, "en-fr": 6.61}, None),
        (("veco", "Table 3", "VECO"), "wmt14_en_de translation", "sacrebleu", ["en-de"], {"en-de": 30.6}, None),
    ],
)  # fmt: skip
def test_look_up_scores_by_our_names(row, task, metric, names, scores, average):
    published = look_up(place(*row), *task.split(), metric, names)
    assert published.scores.get(metric, {}) == scores | ({"average": average} if average else {})
