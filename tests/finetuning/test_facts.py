"""Facts of a run in words: what pages and cards say of a protocol and of hyperparameters."""

import dataclasses

import pytest

from crosslingual_zoo.finetuning.facts import in_words, lines_of, training_in_words
from crosslingual_zoo.finetuning.recipe import Training

METRIC = {"name": "aer", "module": "aer", "version": "1.0.0", "unit": "percent"}
SELECTION = {"rule": "source_dev", "data": None, "rows": {"en": 20, "de": 1020}, "selected_steps": [42, 1056]}


def texts_of(**facts):
    """The lines by the names of facts."""
    return dict(line.split(": ", 1) for line in lines_of(facts))


@pytest.mark.parametrize(("greater_is_better", "better"), [(True, "higher is better"), (False, "lower is better")])
def test_a_metric_says_what_is_better(greater_is_better, better):
    [text] = texts_of(metric=METRIC | {"greater_is_better": greater_is_better}).values()
    assert better in text
    assert "aer" in text
    assert "1.0.0" in text
    assert "True" not in text


@pytest.mark.parametrize(
    ("scores", "sweep", "expected", "unsaid"),
    [
        ([95.8333, 100.0], None, ["42, 1,056", "95.8, 100.0", "1,040 rows"], ["source_dev", "None", "sweep"]),
        ([None, None], None, ["42, 1,056"], ["None", "score"]),
        (
            [0.0, 0.0],
            {"fields": {"training.learning_rate": [1e-5]}, "points": 3},
            ["0.0, 0.0", "1e-05", "points 3"],
            [],
        ),
    ],
)
def test_a_selection_names_steps_scores_and_a_sweep(scores, sweep, expected, unsaid):
    losses = [0.424, 1.5] if None not in scores else [None, None]
    selection = SELECTION | {"scores": scores, "losses": losses} | ({"sweep": sweep} if sweep else {})
    [text] = texts_of(selection=selection).values()
    assert ("0.424, 1.500" in text) == (None not in scores)
    assert all(part in text for part in expected)
    assert not any(part in text for part in unsaid)


@pytest.mark.parametrize(
    ("facts", "texts"),
    [
        ({"cut_texts": {"train": {"all": 1000}, "evaluation": {"en": 2, "de": [3, 4]}}}, ["1,009"]),
        ({"plug_in": True, "translations": None, "differs": []}, ["yes"]),
        ({"layers": [0, 1, 2, 3], "depth": 3}, ["0 to 3", "3"]),
        ({"layers": [0, 2, 4]}, ["0, 2, 4"]),
        ({"methods": {"mean": {}}, "method": "mean"}, ["mean"]),
        ({"methods": {"ot": {"slope": 1.0, "link_all": False}, "argmax": {}}}, ["ot (slope 1), argmax"]),
        ({"fresh_parameters": {"count": 0, "names": [], "seeds": [1]}}, []),
        ({"fresh_parameters": {"count": 6545, "names": ["a", "b"], "seeds": [1, 2]}}, ["6,545, from seeds 1, 2: a, b"]),
        ({"fresh_parameters": {"count": 0, "names": [], "seeds": [1], "head": "rows moved"}}, ["head: rows moved"]),
        ({"setting": "zero_shot", "chance": {"en": 1}, "texts": 2}, ["zero-shot"]),
    ],
)
def test_lines_of_facts(facts, texts):
    assert list(texts_of(**facts).values()) == texts


@pytest.mark.parametrize(
    ("fields", "expected", "unsaid"),
    [
        ({"warmup_steps": 0.1}, ["10% of the steps", "3 epochs (700 or 701 steps)"], ["0.1,", "max steps", "True"]),
        ({"warmup_steps": 100, "epochs": 1.0}, ["100 steps", "1 epoch ("], ["%"]),
        ({"warmup_steps": 0, "max_steps": 2000}, ["no warm-up", "2,000 steps"], ["epoch"]),
        (
            {"gradient_checkpointing": True, "layerwise_decay": 0.9},
            ["gradient checkpointing,", "layerwise decay 0.9"],
            [],
        ),
        ({}, ["learning rate 2e-05"], ["checkpointing", "accumulation", "layerwise", "updates"]),
    ],
)
def test_training_in_words(fields, expected, unsaid):
    hyperparameters = dataclasses.asdict(Training(**{"learning_rate": 2e-5, **fields})) | {"updates": [700, 701]}
    text = training_in_words(hyperparameters)
    assert all(part in text for part in expected)
    assert not any(part in text for part in unsaid)


def test_in_words_of_a_number_is_short():
    assert in_words(95.83333333) == "95.8333"
    assert in_words(1234567) == "1,234,567"
    assert in_words([1.0, 2]) == "1, 2"
