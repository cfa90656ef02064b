"""Seeds of every kind of task: hardware, precision, models that cannot be built, numbers that JSON lacks."""

import math
from types import SimpleNamespace

import pytest
import torch
from accelerate import DistributedType
from transformers import Trainer, XLMRobertaConfig, XLMRobertaForMaskedLM

from finetuning import training
from finetuning.recipe import Recipe
from finetuning.run import main
from finetuning.tasks.registry import task_of
from finetuning.training import check_hardware, finite
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
def test_bf16_and_checkpointing_run_on_a_cpu_and_an_infinite_norm_leaves_a_run_finishable(
    of_kind, tmp_path, monkeypatch
):
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


def test_only_what_is_no_number_becomes_none():
    numbers = {"c": "nan", "d": 3, "e": True}
    found = finite({"a": [1.5, -math.inf, {"b": math.nan}], **numbers})
    assert found == {"a": [1.5, None, {"b": None}], **numbers}


def test_fp16_is_refused_on_a_cpu_before_anything_is_written(topics, tmp_path, refused):
    assert "training.precision is fp16" in refused([*topics, *SHORT, "training.precision=fp16"])
    assert not (tmp_path / "out").exists()


def test_arithmetic_is_the_recipes_and_not_that_of_accelerate_config(topics, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    arguments = task_of(load_recipe(Recipe, None, topics)).arguments(1, tmp_path)
    assert arguments.mixed_precision == "no"


def test_one_process_with_several_gpus_is_refused(monkeypatch):
    def with_gpus(count, kind):
        state = SimpleNamespace(device=torch.device("cuda"), distributed_type=kind)
        monkeypatch.setattr(training, "PartialState", lambda: state)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        check_hardware("fp16")

    with_gpus(1, DistributedType.NO)
    with_gpus(2, DistributedType.MULTI_GPU)
    with pytest.raises(ValueError, match="One process sees 2 GPUs"):
        with_gpus(2, DistributedType.NO)


def test_an_encoder_without_some_of_its_weights_leaves_nothing(captions, tmp_path, sample_tokenizer, refused):
    sizes = dict(vocab_size=len(sample_tokenizer), hidden_size=32, num_attention_heads=2, intermediate_size=64)
    config = XLMRobertaConfig(num_hidden_layers=1, max_position_embeddings=66, pad_token_id=1, **sizes)
    folder = tmp_path / "shallow"
    model = XLMRobertaForMaskedLM(config)
    model.config.num_hidden_layers = 2
    model.save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)
    message = refused([*captions, *SHORT, f"model={folder}"])
    assert str(folder) in message
    assert not (tmp_path / "out").exists()
