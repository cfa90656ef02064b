"""Published scores that a recipe names by paper, table and row: look-up for every kind of task, and errors."""

import json
from pathlib import Path

import pytest

from finetuning.published import find
from finetuning.recipe import Recipe
from finetuning.results.protocol import Protocol
from finetuning.results.published_rows import column_title, complete_published
from finetuning.results.report import published_figures, published_notes
from finetuning.results.table import read_results
from finetuning.run import main
from finetuning.tasks.mining.recipe import MiningRecipe
from finetuning.tasks.question_answering.recipe import QuestionAnsweringRecipe
from finetuning.tasks.registry import report_of
from finetuning.tasks.tagging.recipe import TaggingRecipe
from finetuning.tasks.translation.recipe import TranslationRecipe
from finetuning.tasks.word_alignment.recipe import WordAlignmentRecipe
from zoo_core.recipes import load_recipe

RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes"
BASE = ["model=m", "output_dir=o"]
XNLI = {"paper": "xlm_align", "table": "Table 18", "row": "XLM-Align base, zero-shot"}
METAXLM = "MetaXLM base, cross-lingual transfer"


def completed(recipe_class, *overrides, published, task="xnli"):
    more = ["training.learning_rate=1e-5"] if "training" in recipe_class.__dataclass_fields__ else []
    given = f"published={json.dumps(published)}"
    recipe = load_recipe(recipe_class, None, [*BASE, *more, f"task={task}", *overrides, given])
    complete_published(recipe)
    return recipe.published


def test_scores_and_average_come_from_the_row():
    found = completed(Recipe, published=XNLI)
    assert (found.paper, found.table, found.row) == ("XLM-Align (ACL 2021)", "Table 18", "XLM-Align base, zero-shot")
    assert (found.languages["en"], found.languages["ur"], found.average) == (86.7, 66.6, 76.2)
    assert list(found.languages) == found.average_over and found.further == {} and found.note is None


def test_completing_twice_changes_nothing():
    recipe = load_recipe(
        Recipe, None, [*BASE, "training.learning_rate=1e-5", "task=xnli", f"published={json.dumps(XNLI)}"]
    )
    complete_published(recipe)
    once = vars(recipe.published).copy()
    complete_published(recipe)
    assert vars(recipe.published) == once


def test_exact_match_stands_beside_f1_and_a_torn_row_says_so():
    row = {"paper": "metaxlm", "table": "Table 10", "row": METAXLM}
    found = completed(QuestionAnsweringRecipe, "kind=question_answering", published=row, task="mlqa")
    assert found.languages == {"en": 79.0, "es": 55.4, "de": 52.6, "hi": 36.1, "vi": 53.4, "zh": 42.2}
    assert found.further["exact_match"]["zh"] == 20.7 and found.average == 51.5
    assert found.average_over == ["en", "es", "de", "ar", "hi", "vi", "zh"]
    assert "ar is not legible" in found.note
    assert published_notes([found]) == [f"published, MetaXLM, Table 10: {found.note}"]
    figures = {"f1": found.languages}
    assert published_figures(found, figures, found.average_over)["average"] == {"f1": 51.5}
    assert published_figures(found, figures, ["en", "de"])["average"] == {}


def test_an_average_of_another_table_says_which():
    row = {"paper": "metaxlm", "table": "Table 15", "row": METAXLM}
    found = completed(TaggingRecipe, "kind=tagging", published=row, task="panx")
    assert (found.table, found.average, found.languages) == ("Table 15 (average: Table 1)", 54.0, {})
    assert len(found.average_over) == 40


def test_a_table_of_tasks_gives_the_average_of_the_task_over_its_languages():
    row = {"paper": "xlm_align", "table": "Table 1", "row": "XLM-R base, zero-shot"}
    found = completed(Recipe, published=row)
    assert (found.average, found.languages, len(found.average_over)) == (75.0, {}, 15)
    found = completed(Recipe, published={**row, "average_over": ["en", "de"]})
    assert found.average_over == ["en", "de"]


def test_another_metric_than_the_task_s_is_a_further_one():
    place = {"paper": "veco", "table": "Table 12", "row": "XLM-R large, cross-lingual transfer"}
    found = completed(TaggingRecipe, "kind=tagging", published=place, task="udpos")
    table, row = find(*place.values())
    assert table.metrics == ["accuracy"] and found.languages == {} and found.average is None
    assert found.further == {"accuracy": table.scores(row, "accuracy")}


def test_pairs_have_the_recipe_s_names():
    sides = [("de", "en"), ("en", "fr"), ("zh", "en")]
    pairs = [{"source": "a", "gold": "g", "source_language": a, "target_language": b} for a, b in sides]
    row = {"paper": "xlm_align", "table": "Table 2", "row": "XLM-Align, optimal transport"}
    found = completed(
        WordAlignmentRecipe,
        "kind=word_alignment",
        f"pairs={json.dumps(pairs)}",
        published=[{**row, "method": "ot_itermax", "layer": 8}],
        task="word_alignment",
    )
    assert found[0].languages == {"de-en": 16.63, "en-fr": 6.61, "en-hi": 33.98, "en-ro": 26.97}
    assert (found[0].average, found[0].method, found[0].average_over) == (21.05, "ot_itermax", list(found[0].languages))


def test_translation_has_the_scores_of_both_bleus():
    row = {"paper": "veco", "table": "Table 3", "row": "VECO"}
    found = completed(
        TranslationRecipe,
        "kind=translation",
        "source_language=en",
        "target_language=de",
        published=row,
        task="wmt14_en_de",
    )
    assert (found.sacrebleu["en-de"], found.bleu["en-de"]) == (30.6, 31.7)


def test_figures_of_other_papers_are_left_as_they_are():
    own = {"paper": "Another", "table": "T", "row": "R", "languages": {"en": 80.0}, "average": 80.0}
    assert vars(completed(Recipe, published=own)).items() >= own.items()
    recipe = load_recipe(Recipe, None, [*BASE, "training.learning_rate=1e-5", "task=xnli"])
    complete_published(recipe)
    assert recipe.published is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paper": "xlm_aling"}, "xlm_aling.*no scores.*Did you mean 'xlm_align'"),
        ({"table": "Table 81"}, "'Table 81' is no table of xlm_align"),
        ({"row": "XLM-Align"}, "'XLM-Align' is no row.*Known: XLM-Align base, zero-shot"),
        ({"table": "Table 19"}, "of task pawsx, and the recipe's is xnli"),
        ({"languages": {"en": 86.7}}, "has languages as well.*Leave languages out"),
        ({"average": 76.2}, "has average as well"),
        ({"table": "Table 1", "row": "mT5 base, zero-shot", "task": "udpos"}, "no legible figure of udpos"),
        ({"table": "Table 1", "task": "sick"}, "no column sick"),
    ],
)
def test_references_that_do_not_fit_are_refused(changes, message):
    task = changes.pop("task", "xnli")
    with pytest.raises(ValueError, match=f"(?s){message}"):
        completed(Recipe, published={**XNLI, **changes}, task=task)


@pytest.mark.parametrize(
    ("row", "pooling"),
    [  # XTREME's script mines by <s>; VECO's authors by "the average word embeddings" (ICLR submission, appendix B)
        ("XLM-R large, cross-lingual transfer", "cls"),
        ("VECO_out large, cross-lingual transfer", "mean_with_special_tokens"),
    ],
)
def test_a_row_of_bucc_says_how_its_vectors_were_pooled(row, pooling):
    gold = {"path": "p", "source_column": "s", "target_column": "t"}
    pairs = [{"gold": gold, "source_language": "de", "target_language": "en"}]
    place = {"paper": "veco", "table": "Table 11", "row": row}
    given = ["kind=mining", f"pairs={json.dumps(pairs)}", "dev_fraction=0.5"]
    (found,) = completed(MiningRecipe, *given, published=[place], task="bucc")
    assert found.pooling == pooling
    item = {**place, "pooling": pooling}
    assert column_title(item, Protocol(pooling=pooling)) == f"veco, Table 11, {row}"
    marked = column_title(item, Protocol(pooling="mean", differs=["gold pairs only"]))
    assert marked == f"veco, Table 11, {row} [≠ gold pairs only, pooling {pooling.replace('_', ' ')}]"


def test_retrieval_shows_published_accuracy_beside_the_direction_it_is_of(tiny_model, sample_corpus_dir, tmp_path):
    side = {"path": str(sample_corpus_dir), "split": "test"}
    pairs = {
        **side, "config": "{language}", "languages": ["de", "zh"], "join_on": "id",
        "source_language": "{language}", "source_column": "text",
        "target_language": "en", "target_column": "text", "target": {**side, "config": "en"},
    }  # fmt: skip
    row = {"paper": "Another", "table": "T", "row": "R", "languages": {"de-en": 90.0}, "note": "half of it is torn"}
    over = {"average": 85.0, "average_over": ["de-en", "zh-en"], "pooling": "mean_with_special_tokens"}
    alike = {**row, "row": "as ours", "pooling": "mean"}
    out = tmp_path / "out"
    given = [f"pairs={json.dumps([pairs])}", f"published={json.dumps([{**row, **over}, alike])}"]
    main(
        ["kind=retrieval", "task=tatoeba", f"model={tiny_model}", f"output_dir={out}", "layers=[1]", "layer=1", *given]
    )
    results = read_results(out)
    columns, rows = report_of(results).table()
    title = "target -> source: Another, T,"
    assert columns[-2:] == [f"{title} as ours", f"{title} R [≠ pooling mean with special tokens]"], (
        "the comparable first"
    )
    assert [cells[-2:] for cells in rows] == [["90.0", "90.0≠"], ["", ""], ["", "85.0≠"]]
    assert "published, Another, T: half of it is torn" in results["warnings"]
    assert "| 90.0 |" in (out / "results.md").read_text(encoding="utf-8")
