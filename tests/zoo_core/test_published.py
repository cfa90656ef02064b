"""The papers' tables: whether they agree with themselves, and what the reader and the checker refuse."""

import pytest
import yaml

from zoo_core import published
from zoo_core.published import check, find, load, papers

PAPER = """
paper: P (2021)
title: A paper
url: https://example.org
tables:
- table: Table 1
  metrics: [score, exact_match]
  average_of: [score, exact_match]
  columns_are: tasks
  columns: [xnli, mlqa]
  caption: tasks
  rows:
  - {name: base, scores: {score: [70.0, 60.0], exact_match: [null, 40.0]}, average: {score: 60.0}}
- table: Table 2
  task: xnli
  metrics: [accuracy]
  columns_are: languages
  columns: [en, de, sw]
  caption: languages
  rows:
  - {name: base, setting: zero_shot, scores: {accuracy: [80.0, 70.0, null]}}
  - {name: large, quoted_from: Q, scores: {accuracy: [80.1, 70.1, 60.1]}, average: {accuracy: 70.1}}
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a changed paper as the only one known, and returns its name. The change is made in place."""

    def write(change):
        values = yaml.safe_load(PAPER)
        change(values)
        text = yaml.safe_dump(values, allow_unicode=True, sort_keys=False)
        (tmp_path / "p.yaml").write_text(text, encoding="utf-8")
        monkeypatch.setattr(published, "FOLDER", tmp_path)
        load.cache_clear()
        return "p"

    yield write
    load.cache_clear()


def row(values, table=1, number=1):
    return values["tables"][table]["rows"][number]


@pytest.mark.parametrize("paper", papers())
def test_every_average_is_that_of_its_row_or_said_not_to_be(paper):
    assert check(paper) == []


def test_the_four_papers_are_there():
    assert {"ernie_m", "metaxlm", "veco", "xlm_align"} <= set(papers())
    assert [load(paper).paper.split(" (")[0] for paper in ("metaxlm", "xlm_align")] == ["MetaXLM", "XLM-Align"]


def test_a_paper_says_the_same_in_its_tables_of_tasks_and_of_languages():
    differing = set()
    for paper in papers():
        by_task = [table for table in load(paper).tables if table.columns_are != "tasks"]
        for table in load(paper).tables:
            for figures in table.rows if table.columns_are == "tasks" else []:
                for metric in {"score", "exact_match"} & set(table.metrics):
                    for task, score in table.scores(figures, metric).items():
                        others = [found for item in by_task if item.task == task for found in [item.row(figures.name)]]
                        averages = [set(found.average.values()) for found in others if found and found.average]
                        if averages and not any(score in average for average in averages):
                            differing.add((paper, table.table, figures.name, task))
    # printed so: 72.6 and, by language, 73.8
    assert differing == {("veco", "Table 2", "XLM-R large, cross-lingual transfer", "udpos")}


def test_a_row_is_found_with_its_scores_by_column():
    table, base = find("xlm_align", "Table 18", "XLM-Align base, zero-shot")
    scores = table.scores(base, "accuracy")
    assert (scores["en"], scores["ur"], base.average["accuracy"], len(scores)) == (86.7, 66.6, 76.2, 15)
    table, torn = find("metaxlm", "Table 10", "MetaXLM base, cross-lingual transfer")
    assert list(table.scores(torn, "f1")) == ["en", "es", "de", "hi", "vi", "zh"] and "ar" in torn.note


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("xlm_aling", "Table 18", "x"), "Did you mean 'xlm_align'"),
        (("xlm_align", "Tabel 18", "x"), "Did you mean 'Table 18'"),
        (("xlm_align", "Table 18", "XLM-Align base"), "Did you mean 'XLM-Align base, zero-shot'"),
    ],
)
def test_what_is_not_there_is_refused_with_the_nearest_names(names, message):
    with pytest.raises(ValueError, match=message):
        find(*names)


def test_a_good_paper_is_read_and_has_no_problems(write):
    paper = write(lambda values: None)
    assert check(paper) == [] and papers() == ["p"]
    table, large = find(paper, "Table 2", "large")
    assert large.quoted_from == "Q" and table.scores(large, "accuracy") == {"en": 80.1, "de": 70.1, "sw": 60.1}
    assert table.scores(table.row("base"), "accuracy") == {"en": 80.0, "de": 70.0}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        # half a tenth in each score and half a tenth in the average are rounding, more is not
        (lambda v: row(v)["average"].update(accuracy=70.2), None),
        (lambda v: row(v)["average"].update(accuracy=70.3), "printed is 70.3, recomputed is not said"),
        (lambda v: row(v).update(average={"accuracy": 75.0}, recomputed={"accuracy": 70.1}), None),
        (lambda v: row(v).update(average={"accuracy": 75.0}, recomputed={"accuracy": 70.3}), "the scores give 70.100"),
        (lambda v: row(v).update(recomputed={"accuracy": 70.1}), "the printed 70.1 agrees"),
        (lambda v: row(v).update(average={}, recomputed={"accuracy": 70.1}), "are missing"),
        (lambda v: row(v, number=0).update(average={"accuracy": 1}, recomputed={"accuracy": 70.1}), "are missing"),
        # a mistyped figure moves the mean
        (lambda v: row(v)["scores"].update(accuracy=[81.0, 70.1, 60.1]), "printed is 70.1"),
        # figures without decimals are rounded to whole ones
        (lambda v: row(v).update(scores={"accuracy": [19, 7, 44]}, average={"accuracy": 24}), None),
        (lambda v: row(v).update(scores={"accuracy": [19, 7, 44]}, average={"accuracy": 25}), "printed is 25"),
        # a task counts with the mean of F1 and exact match
        (lambda v: row(v, 0, 0)["average"].update(score=65.0), "the scores give 60.000"),
        (lambda v: row(v, number=0).update(average={"accuracy": 70.0}, average_from="Table 1"), None),
        (lambda v: row(v, number=0).update(average={"accuracy": 71.0}, average_from="Table 1"), "has [70.0, None]"),
        (lambda v: row(v).update(average_from="Table 1"), "no such row"),
        (lambda v: row(v).update(average_from="Table 7"), "no such row"),
    ],
)
def test_check_names_what_does_not_agree(write, change, problem):
    problems = check(write(change))
    assert not problems if problem is None else len(problems) == 1 and problem in problems[0]
    assert all(line.startswith("p, Table ") for line in problems)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(titel="x"), "'title'"),
        (lambda v: v.update(tables={}), "tables is"),
        (lambda v: v["tables"].append(v["tables"][0]), "'Table 1' stands twice"),
        (lambda v: v["tables"][1].update(columns_are="language"), "tables.1.columns_are"),
        (lambda v: v["tables"][1].update(columns=["en", "en", "sw"]), "Table 2: 'en' stands twice"),
        (lambda v: v["tables"][0].update(average_of=["f1"]), "Table 1.*'f1'"),
        (lambda v: row(v).update(scores={"acuracy": [1, 2, 3]}), "Table 2, large.*'accuracy'"),
        (lambda v: row(v).update(scores={"accuracy": [1, 2]}), "Table 2, large: scores.accuracy"),
        (lambda v: row(v).update(scores={"accuracy": [1, 2, "3,1"]}), "tables.1.rows.1.scores.accuracy.2"),
        (lambda v: row(v).update(average=70.1), "tables.1.rows.1.average"),
        (lambda v: row(v).update(setting="zero-shot"), "tables.1.rows.1.setting"),
    ],
)
def test_a_file_that_is_not_as_agreed_is_refused_with_its_place(write, change, message):
    with pytest.raises(ValueError, match="(?s)" + message):
        load(write(change))
