"""The steps of an epoch against those of one process; all languages in one pass against each alone."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import skip_first_batches
from datasets import Dataset

from crosslingual_zoo.finetuning.models import describe_model
from crosslingual_zoo.finetuning.recipe import QuestionAnsweringRecipe, TaggingRecipe
from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.steps import LengthGroups, MicroBatches
from crosslingual_zoo.finetuning.trainer import CountedRows, FineTuningTrainer
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.tasks import assert_same_seed, evaluations, task_with, weights

ROWS, SIZE = 50, 12  # 5 steps an epoch, the last one of 2 rows
LENGTHS = np.random.default_rng(0).integers(5, 60, ROWS).tolist()


def steps_of(accumulation, processes, epoch):
    """Keys of each step over all processes."""
    plan = LengthGroups(LENGTHS, SIZE, seed=1)
    loaders = [MicroBatches(plan, accumulation, processes, process) for process in range(processes)]
    for loader in loaders:
        loader.epoch = epoch
    by_process = [list(loader) for loader in loaders]
    steps = []
    for first in range(0, len(plan) * accumulation, accumulation):
        keys_of_step = []
        for micro_batches in by_process:
            keys_of_step += itertools.chain(*micro_batches[first : first + accumulation])
        steps.append(keys_of_step)
    return steps


def counted(steps):
    return [sorted(row for row, _, counts in keys if counts) for keys in steps]


@pytest.mark.parametrize(("accumulation", "processes"), [(2, 1), (1, 2), (1, 3), (2, 3), (1, 12)])
def test_micro_batches_of_a_step(accumulation, processes):
    for epoch in (0, 1):
        whole = counted(steps_of(1, 1, epoch))
        assert counted(steps_of(accumulation, processes, epoch)) == whole
        assert sorted(itertools.chain(*whole)) == list(range(ROWS))
        assert [len(rows) for rows in whole] == [SIZE] * 4 + [2]


def test_length_groups_depend_on_seed_and_epoch():
    plan = LengthGroups(LENGTHS, SIZE, seed=1)
    first = plan.steps(0)
    torch.rand(3)  # as dropout draws from the same generator
    assert np.array_equal(np.concatenate(plan.steps(0)), np.concatenate(first))
    for other in (plan.steps(1), LengthGroups(LENGTHS, SIZE, seed=2).steps(0)):
        assert not np.array_equal(np.concatenate(other), np.concatenate(first))
    lengths = LENGTHS * 20
    spread = np.mean([np.std(np.take(lengths, rows)) for rows in LengthGroups(lengths, SIZE, seed=1).steps(0)])
    assert spread < np.std(lengths) / 2


def test_micro_batches_of_a_resumed_epoch():
    batches = MicroBatches(LengthGroups(LENGTHS, SIZE, seed=1), 2, 1, 0)
    batches.on_epoch_begin(None, SimpleNamespace(global_step=3 * len(batches.plan)), None)
    assert batches.epoch == 3
    loader = torch.utils.data.DataLoader(range(ROWS), batch_sampler=batches)
    assert list(skip_first_batches(loader, 4).batch_sampler) == list(batches)[4:]


def test_counted_rows_without_labels():
    rows = [{"input_ids": [1, 2], "labels": [3, 4], "translation_labels": 5}] * 2
    full, filler = CountedRows(Dataset.from_list(rows)).__getitems__([(0, 0, True), (1, 0, False)])
    assert full == rows[0]
    assert filler == {"input_ids": [1, 2], "labels": [IGNORED] * 2, "translation_labels": IGNORED}


KINDS = {"people": TaggingRecipe, "number_questions": QuestionAnsweringRecipe}


def task_and_data(overrides, recipe_class, folder):
    """The task of a recipe, its data, and a function that makes a trainer of some data, of the same random model."""
    recipe = load_recipe(recipe_class, None, [*overrides, "evaluation_batch_size=7"])
    path, _, tokenizer, _ = describe_model(recipe.model)
    task = task_with(recipe, tokenizer)
    data = task.encode(task.read())
    model = task.load_model(path, 3, data)
    return task, data, lambda some: FineTuningTrainer(task, model, some, task.arguments(3, folder))


def scores_of(trainer):
    return {language: outcome.scores for language, outcome in trainer.outcomes().items()}


@pytest.mark.parametrize("fixture", KINDS)
def test_outcomes_of_all_languages_are_those_of_each(fixture, request, tmp_path):
    task, data, make = task_and_data(request.getfixturevalue(fixture), KINDS[fixture], tmp_path)
    data = replace(data, dev=data.evaluation)
    trainer = make(data)
    passes = []
    trainer.model.register_forward_pre_hook(lambda *_: passes.append(None))
    together = scores_of(trainer)
    dev = trainer.evaluate()
    rows = sum(len(rows) for rows in data.evaluation.values())
    assert len(passes) == 2 * -(-rows // 7)  # no batch is cut short where a language ends
    main_score = task.recipe.main_score
    assert dev["eval_selection"] == pytest.approx(np.mean([scores[main_score] for scores in together.values()]))
    for language, rows in data.evaluation.items():
        single = replace(data, evaluation={language: rows})
        assert scores_of(make(single)) == {language: together[language]}
        assert {name: dev[f"eval_{language}_{name}"] for name in together[language]} == together[language]


@pytest.mark.slow
def test_run_depends_on_the_seed_alone(topics, topics_run, tmp_path):
    main([*topics, "seeds=[2, 1]"])
    for name in ("seed-1", "seed-2"):  # also where the seeds come in another order
        assert_same_seed(tmp_path / "out" / name, topics_run / name)
    # losses, not the scores alone, which may be equal by chance
    losses = [evaluations(topics_run / name)[2]["eval_loss"] for name in ("seed-1", "seed-2")]
    assert losses[0] != losses[1]
    first = weights(topics_run / "seed-1")
    second = weights(topics_run / "seed-2")
    heads = [name for name in first if "classifier" in name]
    assert not any(torch.equal(first[name], second[name]) for name in heads)
    fresh_parameters = read_results(topics_run)["protocol"]["fresh_parameters"]
    assert fresh_parameters["names"] == sorted(heads)
    assert fresh_parameters["seeds"] == [1, 2]
