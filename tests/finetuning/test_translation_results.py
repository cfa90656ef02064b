"""results.json of a translation run and what is made from it, from made-up scores."""

import pytest

from finetuning.results.files import table_names
from finetuning.tasks.registry import report_of, task_of
from finetuning.tasks.translation.recipe import TranslationRecipe
from finetuning.tasks.translation.results import TranslationProtocol
from zoo_core.recipes import load_recipe

MODEL = {"folder": "runs/m/model", "fingerprint": "sha256:" + "0" * 64, "type": "veco"}
BASE = [
    "model=runs/m/model", "output_dir=o", "task=wmt", "source_language=en", "target_language=de",
    "training.learning_rate=1e-4", "seeds=[1, 2]", "test=[{path: a/b, source_column: en, target_column: de}]",
]  # fmt: skip
TABLE = {"path": "a/b", "config": "de-en", "split": "test", "languages": ["en-de"]}
PROTOCOL = {
    "training_data": [{**TABLE, "split": "train"}],
    "training_rows": 4_500_000,
    "evaluation_data": [TABLE],
    "evaluated_split": "test",
    "evaluated_rows": {"en-de": 3003},
    "empty_pairs_left_out": {"train": {"en-de": 2}, "dev": {}},
    "too_long": {"rule": "drop", "train": 7, "dev": {}, "test_sources": {"en-de": 1}},
    "selection": {"rule": "average", "data": None, "rows": {}},
    "max_source_length": 256,
    "max_length": 256,
    "fine_tuned_before": [],
}
DECODER = {"decoder_layers": 2, "decoder_layer_indices": [4, 5], "tie_decoder": False}


def record(seed, score, ratio=1.0):
    scores = {"sacrebleu": score, "bleu": score + 1, "chrf": score + 30, "length_ratio": ratio}
    return {
        "seed": seed,
        "metric": {"name": "sacrebleu", "version": "1.0.0"},
        "scores": {"en-de": score},
        "all_scores": {"en-de": {**scores, "signatures": {"sacrebleu": "tok:13a"}}},
        "steps": 100,
        "selected_step": [90, 100],
        "selection_score": None,
        "parameters": 661_000_000,
        "decoder": DECODER,
        "curve": [],
    }


def results(*overrides, records=None):
    recipe = load_recipe(TranslationRecipe, None, [*BASE, *overrides])
    records = records or [record(1, 30.0), record(2, 31.0)]
    return task_of(recipe).results(MODEL, TranslationProtocol.of(PROTOCOL), records, ["of the data"])


def test_the_decoder_is_that_of_the_model_and_not_that_of_the_recipe():
    found = results("decoder_layers=6", "tie_decoder=true")["hyperparameters"]
    assert {name: found[name] for name in DECODER} == DECODER


@pytest.mark.parametrize("ratio", [0.49, 2.01])
def test_translations_of_half_or_twice_the_length_are_told(ratio):
    found = results(records=[record(1, 30.0, ratio), record(2, 31.0, 1.9)])
    assert found["warnings"] == [
        "of the data",
        f"seed 1: translations of en-de have {ratio:.2f} times the references' length",
    ]


def test_what_a_reader_must_know_is_a_warning():
    test = "test=[{path: a/b, split: validation, note: of 2013, source_column: en, target_column: de}]"
    warnings = results(test, "max_test_examples=9", "max_train_examples=8")["warnings"]
    for part in ("of 2013", "a/b, split validation: not comparable", "at most 9 pairs", "at most 8 training pairs"):
        assert any(part in warning for warning in warnings)


def test_the_table_of_the_translations_is_named():
    side = {"path": "local/bible", "config": "en", "split": "test"}
    assert table_names([side | {"target": side | {"config": "de"}}]) == "local/bible en test with local/bible de test"


def test_published_figures_stand_beside_ours():
    published = "published={paper: VECO, table: Table 3, row: VECO, sacrebleu: {en-de: 30.6}, bleu: {en-de: 31.7}}"
    found = results(published)
    columns, rows = report_of(found).table()
    bleu, source = "BLEU (tokenized, case-insensitive)", "VECO, Table 3, VECO"
    assert columns == ["pair", "sacreBLEU", bleu, "chrF", "seed 1", "seed 2", source, f"{bleu}: {source}"]
    assert rows == [["en-de", "30.5 ± 0.7", "31.5 ± 0.7", "60.5 ± 0.7", "30.0", "31.0", "30.6", "31.7"]]
    assert len(found["scores"]) == 3 * 2


def test_tokenized_bleu_says_which_published_score_it_stands_for():
    published = "published={paper: VECO, table: Table 3, row: VECO, sacrebleu: {en-de: 30.6}, bleu: {en-de: 31.7}}"
    found = results(published)
    metric = found["protocol"]["metric"]
    assert list(metric["stands_for"]) == ["bleu"] and "multi-bleu.perl" in metric["stands_for"]["bleu"]
    assert metric["signatures"]["en-de"]["sacrebleu"] == "tok:13a"
    assert any("multi-bleu.perl" in line for line in report_of(found).protocol_lines())
    assert sum("multi-bleu.perl" in warning for warning in found["warnings"]) == 1
    for other in ("published={paper: VECO, table: Table 3, row: VECO, sacrebleu: {en-de: 30.6}}", "published=null"):
        assert not any("multi-bleu.perl" in warning for warning in results(other)["warnings"])
