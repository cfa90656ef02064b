"""Settings of a translation recipe take effect."""

import json

import pytest
from transformers import AutoConfig

from finetuning.run import main
from finetuning.tasks.registry import task_of
from finetuning.tasks.translation.batches import Examples, collate, layout_of
from finetuning.tasks.translation.model import build_model
from finetuning.tasks.translation.recipe import TranslationRecipe
from finetuning.tasks.translation.trainer import make_plan
from modeling.modeling_veco import VecoForConditionalGeneration
from tests.finetuning.tasks import encode, record_of
from zoo_core.recipes import load_recipe

NO_DROPOUT = ["training.dropout=0", "training.attention_dropout=0"]


@pytest.mark.slow
def test_label_smoothing_is_part_of_the_loss(captions, tmp_path, tiny_veco, sample_tokenizer):
    main([*captions, "training.max_steps=1", "training.label_smoothing=0.5", *NO_DROPOUT])
    recipe = load_recipe(TranslationRecipe, str(tmp_path / "out" / "recipe.yaml"), [])
    data = encode(recipe, task_of(recipe).read(), sample_tokenizer)
    layout = layout_of(sample_tokenizer, decoder_start_id=2)
    rows = Examples(data.train, layout).__getitems__(
        [(int(r), 0, True) for r in make_plan(recipe, data.train, 1).updates(0)[0]]
    )
    model = build_model(recipe, str(tiny_veco), AutoConfig.from_pretrained(tiny_veco, trust_remote_code=True), 1)
    plain, smoothed = (model(**collate(rows, layout), label_smoothing=share).loss.item() for share in (0.0, 0.5))
    assert record_of(tmp_path / "out" / "seed-1")["history"][-1]["train_loss"] == pytest.approx(smoothed, rel=1e-5)
    assert abs(plain - smoothed) > 1e-4 * plain


@pytest.mark.slow
def test_dev_is_translated_by_greedy_search_and_test_by_beams(dev_captions, tmp_path, monkeypatch):
    calls, generate = [], VecoForConditionalGeneration.generate

    def watched(self, *args, **kwargs):
        calls.append((kwargs["num_beams"], kwargs["length_penalty"]))
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(VecoForConditionalGeneration, "generate", watched)
    search = ["generation.beams=4", "generation.length_penalty=0.5", "training.max_steps=1", "dev_bleu_examples=2"]
    main([*dev_captions, *search, "max_test_examples=1"])
    assert list(dict.fromkeys(calls)) == [(1, 1.0), (4, 0.5)]
    settings = json.loads((tmp_path / "out" / "seed-1" / "model" / "generation_config.json").read_text())
    assert (settings["num_beams"], settings["length_penalty"]) == (4, 0.5)


@pytest.mark.slow
def test_epochs_are_updates_in_place_of_max_steps(captions, tmp_path, capsys):
    two_and_a_half = ["training.max_steps=0", "training.epochs=2.5", "evaluate_every_steps=0", "max_train_examples=60"]
    main([*captions, *two_and_a_half, "training.max_tokens=1000", "selection=average", "average_checkpoints=3"])
    record, printed = record_of(tmp_path / "out" / "seed-1"), capsys.readouterr().err
    epoch = int(printed.partition("60 pairs, ")[2].partition(" steps an epoch")[0])
    assert epoch > 1 and record["steps"] == -(-5 * epoch // 2)
    assert record["selected_step"] == [epoch, 2 * epoch, record["steps"]]


def test_a_run_whose_dev_loss_was_never_a_number_has_diverged(dev_captions, refused):
    wild = ["training.learning_rate=1e30", "training.warmup_steps=0", "training.max_grad_norm=0"]
    message = refused([*dev_captions, *wild, "selection=dev_loss"])
    assert "the loss on dev was never finite, training has diverged" in message and "checkpoint-None" not in message
