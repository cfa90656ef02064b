"""What every kind of task does with a seed: hardware, arithmetic, models that cannot be built, numbers without JSON."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from accelerate import DistributedType
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, Trainer

from finetuning import seeds
from finetuning.recipe import Recipe
from finetuning.run import main
from finetuning.seeds import check_hardware, finite
from finetuning.tasks.classification.task import KIND
from finetuning.trainer import task_arguments
from zoo_core.recipes import load_recipe

KINDS = ["topics", "captions"]  # the fixtures with a recipe of each kind
SHORT = ["seeds=[1]", "training.max_steps=1"]


@pytest.fixture
def of_kind(request):
    """The overrides of a recipe of the kind that the test is parametrised with."""
    return request.getfixturevalue(request.param)


@pytest.mark.slow
@pytest.mark.parametrize("of_kind", KINDS, indirect=True)
def test_an_infinite_gradient_norm_does_not_make_a_run_unfinishable(of_kind, tmp_path, monkeypatch):
    log = Trainer.log

    def overflow(self, logs, *args, **kwargs):  # of fp16's loss scaling, on a logged step
        log(self, {**logs, "grad_norm": math.inf, "loss": math.nan}, *args, **kwargs)

    monkeypatch.setattr(Trainer, "log", overflow)
    main([*of_kind, *SHORT])
    record = json.loads((tmp_path / "out" / "seed-1" / "scores.json").read_text(encoding="utf-8"))
    assert all(entry["grad_norm"] is None and entry["loss"] is None for entry in record["history"])
    assert (tmp_path / "out" / "results.json").exists()


def test_only_what_is_no_number_becomes_none():
    assert finite({"a": [1.5, -math.inf, {"b": math.nan}], "c": "nan", "d": 3, "e": True}) == {
        "a": [1.5, None, {"b": None}],
        "c": "nan",
        "d": 3,
        "e": True,
    }


@pytest.mark.parametrize("of_kind", KINDS, indirect=True)
def test_fp16_is_refused_on_a_cpu_before_anything_is_written(of_kind, tmp_path, refused):
    message = refused([*of_kind, *SHORT, "training.precision=fp16"])
    assert "training.precision is fp16, and this run is on a CPU" in message and "or bf16" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("of_kind", KINDS, indirect=True)
def test_bf16_and_gradient_checkpointing_run_on_a_cpu(of_kind, tmp_path, monkeypatch):
    seen, step = [], Trainer.training_step

    def watched(self, model, *args, **kwargs):
        recomputed = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
        seen.append((self.accelerator.mixed_precision, recomputed))
        return step(self, model, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", watched)
    main([*of_kind, *SHORT, "training.precision=bf16", "training.gradient_checkpointing=true"])
    assert seen == [("bf16", True)]


def test_arithmetic_is_the_recipes_and_not_that_of_accelerate_config(topics, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    arguments = task_arguments(load_recipe(Recipe, None, topics), KIND, 1, tmp_path)
    assert arguments.mixed_precision == "no"


def test_one_process_with_several_gpus_is_refused(monkeypatch):
    def with_gpus(count, kind):
        state = SimpleNamespace(device=torch.device("cuda"), distributed_type=kind)
        monkeypatch.setattr(seeds, "PartialState", lambda: state)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        check_hardware("fp16")

    with_gpus(1, DistributedType.NO)
    with_gpus(2, DistributedType.MULTI_GPU)
    with pytest.raises(ValueError, match="One process sees 2 GPUs"):
        with_gpus(2, DistributedType.NO)


@pytest.mark.slow
def test_an_encoder_of_another_shape_leaves_nothing_and_the_corrected_command_runs(
    captions, tmp_path, sample_tokenizer, refused
):
    sizes = dict(vocab_size=len(sample_tokenizer), hidden_size=32, num_attention_heads=2, intermediate_size=64)
    config = BertConfig(num_hidden_layers=2, max_position_embeddings=66, pad_token_id=1, **sizes)
    folder = tmp_path / "bert"
    BertForMaskedLM(config).save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)
    message = refused([*captions, *SHORT, f"model={folder}"])
    assert "weights of the encoder" in message and "initialize=random" in message and "random=True" not in message
    assert not (tmp_path / "out").exists()
    main([*captions, *SHORT])


def test_a_classifier_that_cannot_be_built_leaves_nothing(topics, tmp_path, tiny_model, sample_tokenizer, refused):
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    tensors = load_file(tiny_model / "model.safetensors")
    renamed = {name.replace("roberta.encoder", "bert.encoder"): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    sample_tokenizer.save_pretrained(folder)
    assert "weights of the encoder" in refused([*topics, *SHORT, f"model={folder}"])
    assert not (tmp_path / "out").exists()
