"""All languages in one pass of the Trainer, and the parts of a run that depend on its seed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

from finetuning.models import describe_model
from finetuning.recipe import QuestionAnsweringRecipe, TaggingRecipe
from finetuning.results import read_results
from finetuning.run import main
from finetuning.trainer import FineTuningTrainer, MergedLanguages, join
from tests.finetuning.tasks import record_of, task_with
from zoo_core.recipes import load_recipe

KINDS = {"people": TaggingRecipe, "places": QuestionAnsweringRecipe}


def task_and_data(overrides, recipe_class, folder):
    """The task of a recipe, its data, and a function that makes a trainer of some data, of the same random model."""
    recipe = load_recipe(recipe_class, None, [*overrides, "evaluation_batch_size=7"])
    path, _, tokenizer, _ = describe_model(recipe.model)
    task = task_with(recipe, tokenizer)
    data = task.encode(task.read())
    model = task.load_model(path, 3, data)
    return task, data, lambda some: FineTuningTrainer(task, model, some, task.arguments(3, folder))


def scores_of(trainer):
    return {language: found.scores for language, found in trainer.outcomes().items()}


@pytest.mark.parametrize("fixture", KINDS)
def test_outcomes_of_all_languages_are_those_of_each(fixture, request, tmp_path):
    task, data, make = task_and_data(request.getfixturevalue(fixture), KINDS[fixture], tmp_path)
    data = replace(data, dev=data.evaluation)
    trainer = make(data)
    passes = []
    trainer.model.register_forward_pre_hook(lambda *_: passes.append(None))
    together, dev = scores_of(trainer), trainer.evaluate()
    rows = sum(len(rows) for rows in data.evaluation.values())
    assert len(passes) == 2 * -(-rows // 7)  # no batch is cut short where a language ends
    main_score = task.recipe.main_score
    assert dev["eval_selection"] == pytest.approx(np.mean([scores[main_score] for scores in together.values()]))
    for language, rows in data.evaluation.items():
        single = replace(data, evaluation={language: rows})
        assert scores_of(make(single)) == {language: together[language]}
        assert {name: dev[f"eval_{language}_{name}"] for name in together[language]} == together[language]


def test_merged_languages_split():
    draw = np.random.default_rng(0)
    data = {
        name: Dataset.from_dict(
            {"number": range(100 * place, 100 * place + count), "length": draw.integers(1, 9, count)}
        )
        for place, (name, count) in enumerate({"en": 11, "de": 1, "zh": 7}.items())
    }
    merged = MergedLanguages(data)
    lengths = merged.rows["length"][:]
    assert lengths == sorted(lengths, reverse=True) and merged.languages == ["en", "de", "zh"]
    batches = []
    for begin in range(0, 19, 4):
        batch = merged.rows[begin : begin + 4]
        wide = np.tile(np.array(batch["number"])[:, None], (1, max(batch["length"])))
        batches.append((wide, wide.astype(np.float32) / 2))
    for language, (first, second) in merged.split(batches):
        assert first[:, 0].tolist() == data[language]["number"][:] and first.dtype == np.int64
        assert np.array_equal(second, np.where(first == -100, -100, first / 2))
        assert all((row[:size] >= 0).all() for row, size in zip(first, data[language]["length"][:], strict=True))
    assert join([np.array([5, 6]), np.array([7])], np.array([2, 0, 1])).tolist() == [6, 7, 5]


@pytest.mark.slow
def test_run_depends_on_the_seed_alone(topics, topics_run, tmp_path):
    main([*topics, "seeds=[2, 1]"])

    def of(folder, seed):
        record = record_of(folder / f"seed-{seed}")
        losses = [entry["eval_loss"] for entry in record["history"] if "eval_loss" in entry]
        tensors = load_file(folder / f"seed-{seed}" / "model" / "model.safetensors")
        return (record["scores"], record["selected_step"], losses), tensors

    for seed in (1, 2):  # also where the seeds come in another order
        (first, weights), (second, other) = of(topics_run[0], seed), of(tmp_path / "out", seed)
        assert first == second and all(torch.equal(weights[name], other[name]) for name in weights)
    (first, weights), (second, other) = of(topics_run[0], 1), of(topics_run[0], 2)
    assert first[2] != second[2]  # of all steps, not the scores alone, which may be equal by chance
    assert not any(torch.equal(weights[name], other[name]) for name in weights if "classifier" in name)


@pytest.mark.slow
def test_run_names_fresh_parameters(topics, topics_run, tmp_path):
    out, _ = topics_run
    fresh = read_results(out)["protocol"]["fresh_parameters"]
    names = [f"classifier.{name}.{kind}" for name in ("dense", "out_proj") for kind in ("bias", "weight")]
    labels = len(read_results(out)["protocol"]["labels"])
    assert fresh == {"count": 32 * 32 + 32 + 32 * labels + labels, "names": names, "seeds": [1, 2]}

    tuned = out / "seed-1" / "model"  # whose head is of this task
    main([*topics, f"model={tuned}", "seeds=[1]", "training.max_steps=1"])
    protocol = read_results(tmp_path / "out")["protocol"]
    assert protocol["fresh_parameters"] == {"count": 0, "names": [], "seeds": [1]}
