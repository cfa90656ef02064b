"""Translation runs from the command line to results, resumed and on several processes; errors."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.finetuning.tasks.translation.batches import Examples, collate
from crosslingual_zoo.finetuning.tasks.translation.model import average_weights, build_model
from crosslingual_zoo.finetuning.tasks.translation.recipe import TranslationRecipe
from crosslingual_zoo.finetuning.tasks.translation.trainer import TranslationTrainer, make_plan
from crosslingual_zoo.modeling.modeling_veco import VecoForConditionalGeneration
from crosslingual_zoo.zoo_core.provenance import read_json
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.tasks import Killed, assert_same_seed, encode, evaluations, predictions, record_of, weights

SHARED = ["seeds=[1, 2]", "dev_bleu_examples=4", "training.max_steps=4", "training.gradient_accumulation_steps=2"]
SHARED += ["training.dropout=0.1", "training.max_tokens=2000", "generation.max_tokens=60"]


@pytest.fixture(scope="module")
def base(captions_recipe, tmp_path_factory):
    """Folder of a run of two seeds, for reading alone."""
    out = tmp_path_factory.mktemp("base") / "out"
    main([*captions_recipe(out), *SHARED])
    return out


@pytest.mark.slow
def test_translation_run_writes_results(base):
    results = read_results(base)
    assert (results["kind"], results["seeds"]) == ("translation", [1, 2])
    assert list(results.languages) == ["en-de"]
    signatures = results["protocol"]["metric"]["signatures"]["en-de"]
    assert "case:mixed" in signatures["sacrebleu"]
    assert "tok:13a" in signatures["sacrebleu"]
    assert "case:lc" in signatures["bleu"]
    assert [point["step"] for point in results["curves"]["1"]] == [2, 4]
    assert results["protocol"]["selection"]["selected_steps"] == [4, 4]
    for seed in (1, 2):
        numbers = [row["row"] for row in predictions(base / f"seed-{seed}", "en-de")]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 3
        assert numbers[-1] > 2  # drawn among the table's 30


@pytest.mark.slow
def test_translate_as_the_saved_model(base):
    folder = base / "seed-1"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model", trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.config.fine_tuned_on == ["sample (translation)"]
    rows = predictions(folder, "en-de")
    batch = tokenizer([row["source"] for row in rows], padding=True, return_tensors="pt")
    texts = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    assert [row["hypothesis"] for row in rows] == [text.strip() for text in texts]
    assert model.generation_config.num_beams == 2
    assert not (folder / "checkpoints").exists()
    assert not (folder / "model" / "training_args.bin").exists()


@pytest.mark.slow
def test_resume_of_a_killed_translation(dev_captions, base, tmp_path, monkeypatch):
    step = TranslationTrainer.training_step

    def run(kill_at, *more):
        """The steps of a run that stops in its `kill_at`-th micro-batch."""
        steps = []

        def counted(self, *args, **kwargs):
            steps.append(self.state.global_step)
            if len(steps) == kill_at:
                raise Killed
            return step(self, *args, **kwargs)

        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(TranslationTrainer, "training_step", counted)
            main([*dev_captions, *SHARED, *more])
        return steps[::2]

    assert run(6) == [0, 1, 2]  # in the third step of four, after the first checkpoint
    assert run(6, "--resume") == [2, 3, 0]  # in the first step of the second seed
    run(None, "--resume")
    for seed in ("seed-1", "seed-2"):
        assert_same_seed(tmp_path / "out" / seed, base / seed)


# Clipping sees the scale of the gradient, which Adam alone would hide. Without warm-up the first step counts. A
# gradient of hardly more than rounding error, whose rest depends on what is summed together, moves little.
ONE_UPDATE = ["training.max_steps=2", "training.max_grad_norm=0.01", "training.label_smoothing=0.2"]
ONE_UPDATE += ["training.dropout=0", "training.attention_dropout=0", "training.warmup_steps=0", "training.epsilon=1e-6"]


@pytest.mark.slow
def test_step_smaller_than_its_micro_batches(captions, tmp_path):
    small = [*captions, *ONE_UPDATE, "training.max_tokens=60"]  # two or three pairs
    main(small)
    main([*small, f"output_dir={tmp_path / 'two'}", "training.gradient_accumulation_steps=7"])
    ours = weights(tmp_path / "two" / "seed-1")
    torch.testing.assert_close(ours, weights(tmp_path / "out" / "seed-1"), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_evaluate_is_the_mean_over_tokens(base):
    folder = base / "seed-1" / "model"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True).eval()
    recipe = load_recipe(TranslationRecipe, str(base / "recipe.yaml"), [])
    data = encode(recipe, task_of(recipe).read(), AutoTokenizer.from_pretrained(folder))
    losses = []
    counts = []
    for row in data.dev["en-de"]:
        with torch.no_grad():
            loss = model(torch.tensor([row["source_ids"]]), labels=torch.tensor([row["target_ids"]])).loss
        losses.append(loss.item())
        counts.append(len(row["target_ids"]))
    expected = np.average(losses, weights=counts)
    assert evaluations(base / "seed-1")[4]["eval_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_selection_of_the_mean_of_checkpoints(captions, tmp_path, monkeypatch):
    saved = {}
    save = TranslationTrainer.save_model

    def keep(self, folder=None, *args, **kwargs):
        saved.setdefault(self.state.global_step, {k: v.clone() for k, v in self.model.state_dict().items()})
        save(self, folder, *args, **kwargs)

    monkeypatch.setattr(TranslationTrainer, "save_model", keep)
    main([*captions, "selection=average", "average_checkpoints=2"])
    assert list(saved) == [2, 4, 6]
    stored = weights(tmp_path / "out" / "seed-1")
    assert all(torch.allclose(stored[k], (saved[4][k] + saved[6][k]) / 2, atol=1e-7) for k in stored)
    results = read_results(tmp_path / "out")
    assert results["protocol"]["selection"]["selected_steps"] == [[4, 6]]


def test_average_weights_is_exact_and_keeps_ties(tiny_veco, tmp_path):
    model = VecoForConditionalGeneration.from_encoder(tiny_veco)
    folders = [tmp_path / f"same-{number}" for number in (1, 2, 3)]
    for folder in folders:
        model.save_pretrained(folder)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    average_weights(model, folders)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    query = model.decoder.layer[1].attention.self.query.weight
    assert query is model.roberta.encoder.layer[1].attention.self.query.weight


@pytest.mark.slow
def test_build_model_from_a_translation_model(captions, tmp_path, refused):
    main([*captions, "decoder_layers=1", "tie_decoder=false", "task=first", "training.max_steps=1"])
    first = tmp_path / "out" / "seed-1" / "model"
    second = [*captions, f"model={first}", f"output_dir={tmp_path / 'second'}", "training.max_steps=1"]
    main([*second, "training.learning_rate=1e-12", "training.dropout=0.3"])
    ours = weights(tmp_path / "second" / "seed-1")
    torch.testing.assert_close(ours, load_file(first / "model.safetensors"), rtol=0, atol=1e-6)
    config = read_json(tmp_path / "second" / "seed-1" / "model" / "config.json")
    assert (config["decoder_layers"], config["hidden_dropout_prob"]) == (1, 0.3)
    decoder = {"decoder_layers": 1, "decoder_layer_indices": [1], "tie_decoder": False}
    for out in ("out", "second"):  # built by a recipe, and as it was
        assert decoder.items() <= read_results(tmp_path / out)["protocol"].items()
    assert read_results(tmp_path / "second")["protocol"]["fine_tuned_before"] == ["first (translation)"]
    assert "tie_decoder is True" in refused([*second, "tie_decoder=true"])


def test_build_model_with_random_weights(captions, tiny_veco):
    config = AutoConfig.from_pretrained(tiny_veco, trust_remote_code=True)

    def built(seed, start):
        recipe = load_recipe(TranslationRecipe, None, [*captions, f"initialize={start}"])
        return build_model(recipe, str(tiny_veco), config, seed).state_dict()

    first = built(1, "random")
    torch.testing.assert_close(built(1, "random"), first, rtol=0, atol=0)
    for other in (built(2, "random"), built(1, "pretrained")):
        assert other.keys() == first.keys()
        assert not all(torch.allclose(first[name], other[name], rtol=0, atol=1e-3) for name in first)


@pytest.mark.slow
def test_compute_loss_with_label_smoothing(captions, tmp_path, tiny_veco, sample_tokenizer):
    fields = "max_steps=1 label_smoothing=0.5 dropout=0 attention_dropout=0".split()
    main([*captions, *(f"training.{field}" for field in fields)])
    recipe = load_recipe(TranslationRecipe, str(tmp_path / "out" / "recipe.yaml"), [])
    data = encode(recipe, task_of(recipe).read(), sample_tokenizer)
    first = make_plan(recipe, data.train, 1).steps(0)[0]
    rows = Examples(data.train, sample_tokenizer).__getitems__([(int(row), 0, True) for row in first])
    model = build_model(recipe, str(tiny_veco), AutoConfig.from_pretrained(tiny_veco, trust_remote_code=True), 1)
    plain = model(**collate(rows, 1, 2), label_smoothing=0.0).loss.item()
    smoothed = model(**collate(rows, 1, 2), label_smoothing=0.5).loss.item()
    assert record_of(tmp_path / "out" / "seed-1")["history"][-1]["train_loss"] == pytest.approx(smoothed, rel=1e-5)
    assert smoothed != pytest.approx(plain, rel=1e-4)


@pytest.mark.slow
def test_translate_searches_by_the_settings_and_keeps_the_order_of_the_rows(dev_captions, tmp_path, monkeypatch):
    calls = []

    def copied(self, input_ids, num_beams, length_penalty, **kwargs):
        calls.append((num_beams, length_penalty))
        return input_ids

    monkeypatch.setattr(VecoForConditionalGeneration, "generate", copied)
    search = ["generation.beams=4", "generation.length_penalty=0.5", "training.max_steps=1", "dev_bleu_examples=2"]
    main([*dev_captions, *search, "max_test_examples=6", "generation.max_tokens=60"])
    rows = predictions(tmp_path / "out" / "seed-1", "en-de")
    assert len(rows) == 6
    assert all(row["hypothesis"] == row["source"] for row in rows)
    assert list(dict.fromkeys(calls)) == [(1, 1.0), (4, 0.5)]
    settings = read_json(tmp_path / "out" / "seed-1" / "model" / "generation_config.json")
    assert (settings["num_beams"], settings["length_penalty"]) == (4, 0.5)
