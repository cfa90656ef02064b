"""Seeds of every kind of task: hardware, precision, models that cannot be built, numbers that JSON lacks."""

import math

import pytest
from transformers import Trainer

from finetuning.recipe import Recipe
from finetuning.run import main
from finetuning.tasks.registry import task_of
from finetuning.training import finite
from tests.finetuning.tasks import record_of
from zoo_core.recipes import load_recipe

KINDS = ["topics", "captions"]  # the fixtures with a recipe of each kind
SHORT = ["seeds=[1]", "training.max_steps=1"]


@pytest.fixture
def of_kind(request):
    """The overrides of a recipe of the kind that the test is parametrized with."""
    return request.getfixturevalue(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("of_kind", KINDS, indirect=True)
def test_run_in_bf16_with_checkpointing_and_infinite_norms(of_kind, tmp_path, monkeypatch):
    seen, step, log = [], Trainer.training_step, Trainer.log

    def watched(self, model, *args, **kwargs):
        recomputed = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
        seen.append((self.accelerator.mixed_precision, recomputed))
        return step(self, model, *args, **kwargs)

    def overflow(self, logs, *args, **kwargs):  # of fp16's loss scaling, on a logged step
        log(self, {**logs, "grad_norm": math.inf, "loss": math.nan}, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", watched)
    monkeypatch.setattr(Trainer, "log", overflow)
    main([*of_kind, *SHORT, "training.precision=bf16", "training.gradient_checkpointing=true"])
    assert seen == [("bf16", True)]
    record = record_of(tmp_path / "out" / "seed-1")
    assert all(entry["grad_norm"] is None and entry["loss"] is None for entry in record["history"])
    assert (tmp_path / "out" / "results.json").exists()


def test_finite():
    numbers = {"c": "nan", "d": 3, "e": True}
    found = finite({"a": [1.5, -math.inf, {"b": math.nan}], **numbers})
    assert found == {"a": [1.5, None, {"b": None}], **numbers}


def test_check_hardware_refuses_fp16_on_a_cpu(topics, tmp_path, refused):
    assert "training.precision is fp16" in refused([*topics, *SHORT, "training.precision=fp16"])
    assert not (tmp_path / "out").exists()


def test_training_arguments_precision(topics, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    arguments = task_of(load_recipe(Recipe, None, topics)).arguments(1, tmp_path)
    assert arguments.mixed_precision == "no"
