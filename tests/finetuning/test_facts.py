"""Facts of a run in words: what pages and cards say of a protocol and of hyperparameters."""

import dataclasses

import pytest

from crosslingual_zoo.finetuning.facts import lines_of, training_in_words
from crosslingual_zoo.finetuning.recipe import Training

SELECTION = {"rule": "source_dev", "data": None, "rows": {"en": 20, "de": 1020}, "selected_steps": [42, 1056]}
SELECTION |= {"scores": [95.8333, 100.0], "losses": [0.424, 1.5]}


@pytest.mark.parametrize(
    ("facts", "texts"),
    [
        ({"metric": {"name": "aer", "unit": "percent", "module": "aer", "version": "1", "greater_is_better": False}},
         ["aer in percent, lower is better; by aer 1"]),
        ({"selection": SELECTION},
         ["the best checkpoint in the source language (1,040 rows): step 42, 1,056, "
          "with score 95.8, 100.0 and loss 0.424, 1.500"]),
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
)  # fmt: skip
def test_lines_of_facts(facts, texts):
    assert [line.split(": ", 1)[1] for line in lines_of(facts)] == texts


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"warmup_steps": 0.1}, ["10% of the steps", "3 epochs (700 or 701 steps)"]),
        ({"warmup_steps": 100, "epochs": 1.0}, ["100 steps", "1 epoch ("]),
        ({"warmup_steps": 0, "max_steps": 2000}, ["no warm-up", "2,000 steps"]),
        ({"gradient_checkpointing": True, "layerwise_decay": 0.9}, ["gradient checkpointing,", "layerwise decay 0.9"]),
    ],
)
def test_training_in_words(fields, parts):
    hyperparameters = dataclasses.asdict(Training(**{"learning_rate": 2e-5, **fields})) | {"updates": [700, 701]}
    text = training_in_words(hyperparameters)
    assert all(part in text for part in parts)
