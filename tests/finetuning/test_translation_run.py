"""Translation runs from the command line to results, resumed and on several processes; errors."""

import ast
import contextlib
import json
import math

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks.registry import kind_of, task_of
from finetuning.tasks.translation.batches import Examples, collate, layout_of
from finetuning.tasks.translation.model import average_weights, build_model
from finetuning.tasks.translation.recipe import TranslationRecipe
from finetuning.tasks.translation.trainer import TranslationTrainer, make_plan
from hub_cards.card import write_card
from modeling.modeling_veco import VecoForConditionalGeneration
from tests.finetuning.tasks import Killed, encode, predictions, record_of, weights
from zoo_core.recipes import load_recipe


def same(one, other, tolerance=0.0):
    return one.keys() == other.keys() and all(torch.allclose(one[k], other[k], rtol=0, atol=tolerance) for k in one)


SHARED = ["seeds=[1, 2]", "dev_bleu_examples=4", "training.max_steps=4", "training.gradient_accumulation_steps=2"]
SHARED += ["training.dropout=0.1", "training.max_tokens=2000", "generation.max_tokens=60"]


@pytest.fixture(scope="module")
def base(printed_by, captions_recipe, tmp_path_factory):
    """Folder of a run of two seeds, for reading alone, and what it printed."""
    out = tmp_path_factory.mktemp("base") / "out"
    return out, printed_by([*captions_recipe(out), *SHARED])


@pytest.mark.slow
def test_translation_run_writes_results(base, capsys):
    out, _ = base
    assert {path.name for path in out.iterdir()} == {
        "recipe.yaml", "run.json", "results.json", "results.md", "results.csv", "scores.png", "seed-1", "seed-2",
    }  # fmt: skip
    results = read_results(out)
    assert (results["kind"], results["seeds"], list(results.languages)) == ("translation", [1, 2], ["en-de"])
    for entry in (results.of("en-de", name) for name in results.metrics):
        assert entry["mean"] == pytest.approx(sum(entry["scores"]) / 2)
        assert entry["sd"] == pytest.approx(abs(entry["scores"][0] - entry["scores"][1]) / 2**0.5)
    assert results.metric == "sacrebleu"
    signatures = results["protocol"]["metric"]["signatures"]["en-de"]
    assert "case:mixed" in signatures["sacrebleu"] and "tok:13a" in signatures["sacrebleu"]
    assert "case:lc" in signatures["bleu"]
    assert [point["step"] for point in results["curve"]["1"]] == [2, 4]
    assert all(point["loss"] > 0 and point["bleu"] >= 0 for curve in results["curve"].values() for point in curve)
    assert results["protocol"]["selection"]["selected_steps"] == [4, 4]
    assert results["hyperparameters"]["updates"] == [4, 4]
    assert len((out / "results.csv").read_text(encoding="utf-8").splitlines()) == 1 + 3 * 2  # metrics, seeds
    for seed in (1, 2):
        rows = predictions(out / f"seed-{seed}", "en-de")
        numbers = [row["row"] for row in rows]
        assert len(rows) == 3 and numbers == sorted(set(numbers)) and numbers[-1] > 2  # drawn among the table's 30
    model = out / "seed-1" / "model"
    card = write_card(str(model), [str(out / "results.json")]).read_text(encoding="utf-8")
    assert "AutoModelForSeq2SeqLM.from_pretrained" in card and "pipeline_tag: translation" in card
    data = ModelCard(card).data
    assert (data.language, data.model_name) == (["en", "de"], "out")
    assert [entry.metric_name for entry in data.eval_results] == ["sacrebleu, en-de, supervised, 2 seeds"]
    exec(card.partition("```python\n")[2].partition("```")[0].replace("path/to/this/folder", str(model)), {})
    assert len(ast.literal_eval(capsys.readouterr().out)) == 2  # a translation of each sentence
    assert load_recipe(TranslationRecipe, str(out / "recipe.yaml"), []).seeds == [1, 2]


@pytest.mark.slow
def test_translate_as_the_saved_model(base):
    folder = base[0] / "seed-1"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "model", trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.config.fine_tuned_on == ["sample (translation)"]
    rows = predictions(folder, "en-de")
    batch = tokenizer([row["source"] for row in rows], padding=True, return_tensors="pt")
    texts = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    assert [row["hypothesis"] for row in rows] == [text.strip() for text in texts]
    assert model.generation_config.num_beams == 2
    # an encoder can be loaded from it as from any folder of the zoo
    assert AutoModel.from_pretrained(folder / "model", trust_remote_code=True).config.num_hidden_layers == 2
    settings = json.loads((folder / "model" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert "local_files_only" not in settings
    assert not (folder / "checkpoints").exists() and not (folder / "model" / "training_args.bin").exists()


@pytest.mark.slow
def test_resume_of_a_killed_translation(dev_captions, base, tmp_path, monkeypatch, refused):
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
    for seed in (1, 2):
        assert same(weights(base[0] / f"seed-{seed}"), weights(tmp_path / "out" / f"seed-{seed}"))
    assert read_results(base[0])["scores"] == read_results(tmp_path / "out")["scores"]
    arguments = [*dev_captions, *SHARED]
    assert "--resume" in refused(arguments)
    assert "decoder_layers: None -> 1" in refused([*arguments, "--resume", "decoder_layers=1"])


# Clipping sees the scale of the gradient, which Adam alone would hide. Without warm-up the first step counts. A
# gradient of hardly more than rounding error, whose rest depends on what is summed together, moves little.
ONE_UPDATE = ["training.max_steps=2", "training.max_grad_norm=0.01", "training.label_smoothing=0.2"]
ONE_UPDATE += ["training.dropout=0", "training.attention_dropout=0", "training.warmup_steps=0", "training.epsilon=1e-6"]


@pytest.mark.slow
def test_step_smaller_than_its_micro_batches(captions, tmp_path):
    small = [*captions, *ONE_UPDATE, "training.max_tokens=60"]  # two or three pairs
    main(small)
    main([*small, f"output_dir={tmp_path / 'two'}", "training.gradient_accumulation_steps=7"])
    assert same(weights(tmp_path / "out" / "seed-1"), weights(tmp_path / "two" / "seed-1"), 1e-5)


@pytest.mark.slow
def test_evaluate_is_the_mean_over_tokens(base):
    record = record_of(base[0] / "seed-1")
    folder = base[0] / "seed-1" / "model"
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    recipe = load_recipe(TranslationRecipe, str(base[0] / "recipe.yaml"), [])
    total = count = 0
    for row in encode(recipe, task_of(recipe).read(), tokenizer).dev["en-de"]:
        with torch.no_grad():
            loss = model(torch.tensor([row["source_ids"]]), labels=torch.tensor([row["target_ids"]])).loss
        total, count = total + float(loss) * len(row["target_ids"]), count + len(row["target_ids"])
    assert record["curve"][-1]["loss"] == pytest.approx(total / count, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["dev_loss", "dev_bleu"])
def test_selection_of_the_best_weights(dev_captions, tmp_path, monkeypatch, rule):
    values = {2: (3.0, 5.0), 4: (2.0, 9.0), 6: (4.0, 7.0)}  # step 4 is best by both
    saved = {}

    def evaluate(self, *args, **kwargs):
        step = self.state.global_step
        saved[step] = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        scores = dict(zip(("eval_loss", "eval_bleu"), values[step], strict=True))
        self.log(scores)
        return scores

    monkeypatch.setattr(TranslationTrainer, "evaluate", evaluate)
    main([*dev_captions, f"selection={rule}", "dev_bleu_examples=4"])
    record = record_of(tmp_path / "out" / "seed-1")
    assert record["selected_step"] == 4 and record["selection_score"] == values[4][rule == "dev_bleu"]
    stored = weights(tmp_path / "out" / "seed-1")
    assert all(torch.equal(stored[name], saved[4][name]) for name in stored)


@pytest.mark.slow
def test_selection_of_the_mean_of_checkpoints(captions, tmp_path, monkeypatch):
    saved, save = {}, TranslationTrainer.save_model

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
    for number in (1, 2, 3):
        model.save_pretrained(tmp_path / f"same-{number}")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    folders = [tmp_path / f"same-{number}" for number in (1, 2, 3)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    average_weights(model, folders)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    query = model.decoder.layer[1].attention.self.query.weight
    assert query is model.roberta.encoder.layer[1].attention.self.query.weight
    assert model.lm_head.decoder.weight is model.roberta.embeddings.word_embeddings.weight

    with pytest.raises(ValueError, match="same-4 "):
        average_weights(model, [*folders, tmp_path / "same-4"])
    untied = VecoForConditionalGeneration.from_encoder(tiny_veco, tie_decoder=False)
    with pytest.raises(ValueError, match="are not of this model: .*decoder.layer.0.attention"):
        average_weights(untied, folders)


@pytest.mark.slow
def test_build_model_from_a_translation_model(captions, tmp_path, refused):
    main([*captions, "decoder_layers=1", "tie_decoder=false", "task=first", "training.max_steps=1"])
    first = tmp_path / "out" / "seed-1" / "model"
    second = [*captions, f"model={first}", f"output_dir={tmp_path / 'second'}", "training.max_steps=1"]
    main([*second, "training.learning_rate=1e-12", "training.dropout=0.3"])
    results = read_results(tmp_path / "second")
    assert results["protocol"]["fine_tuned_before"] == ["first (translation)"]
    stored = weights(tmp_path / "second" / "seed-1")
    assert same(stored, load_file(first / "model.safetensors"), 1e-6)
    config = json.loads((tmp_path / "second" / "seed-1" / "model" / "config.json").read_text())
    assert (config["decoder_layers"], config["hidden_dropout_prob"]) == (1, 0.3)
    assert config["fine_tuned_on"] == ["first (translation)", "sample (translation)"]
    decoder = {"decoder_layers": 1, "decoder_layer_indices": [1], "tie_decoder": False}
    for out in ("out", "second"):  # built by a recipe, and as it was
        found = read_results(tmp_path / out)["hyperparameters"]
        assert {name: found[name] for name in decoder} == decoder and "decoder_layer_selection" not in found
    assert "tie_decoder is True" in refused([*second, "decoder_layers=1", "tie_decoder=true"])


def test_build_model_with_random_weights(captions, tiny_veco):
    config = AutoConfig.from_pretrained(tiny_veco, trust_remote_code=True)

    def built(seed, start):
        recipe = load_recipe(TranslationRecipe, None, [*captions, f"initialize={start}"])
        return build_model(recipe, str(tiny_veco), config, seed).state_dict()

    one, two, again = (built(seed, "random") for seed in (1, 2, 1))
    assert not same(one, two, 1e-3) and same(one, again)
    assert not same(one, built(1, "pretrained"), 1e-3)


@pytest.mark.slow
def test_run_with_masked_text_as_its_own_target(captions, tmp_path, sample_corpus_dir):
    train = next(item for item in captions if item.startswith("train="))
    masked = "source_mask_probability: 0.3"
    mono = f"{{path: {sample_corpus_dir}, config: de, source_column: text, target_column: text, {masked},"
    mono += " predict: masked, source_language: de}"
    both = train.replace("[{", "[{" + masked + ", ").replace("}]", f"}}, {mono}]")
    main([*captions, both, "training.max_steps=2", "training.precision=bf16"])
    results = read_results(tmp_path / "out")
    assert [table["languages"] for table in results["protocol"]["training_data"]] == [["en-de"], ["de-de"]]
    assert results["protocol"]["training_data"][1]["predict"] == "masked"
    assert results["protocol"]["training_rows"] == 480
    record = record_of(tmp_path / "out" / "seed-1")
    assert math.isfinite(record["history"][-1]["train_loss"])


def test_kind_of(tmp_path, refused):
    file = tmp_path / "recipe.yaml"
    file.write_text("kind: translation\n")
    assert kind_of([]) == kind_of(["--resume", "model=x"]) == "classification"
    assert kind_of(["--config", str(file)]) == kind_of([f"--config={file}"]) == kind_of(["--conf", str(file)])
    assert kind_of(["--config", str(file), "kind=classification"]) == "classification"
    assert "kind is 'translatoin'" in refused(["kind=translatoin"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["decoder_layers=3"], "decoder_layers is 3"),
        (["selection=average"], "average_checkpoints is 10"),
        (["selection=dev_loss"], "dev_loss"),
        (["DEV", "selection=dev_bleu"], "dev_bleu_examples 0"),
        (["DEV", "selection=dev_loss", "save_every_steps=4"], "save_every_steps 4"),
    ],
)
def test_check_refuses(captions, dev_captions, tmp_path, refused, overrides, message):
    base = dev_captions if "DEV" in overrides else captions
    assert message in refused([*base, *(change for change in overrides if change != "DEV")])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_compute_loss_with_label_smoothing(captions, tmp_path, tiny_veco, sample_tokenizer):
    main(
        [
            *captions,
            "training.max_steps=1",
            "training.label_smoothing=0.5",
            "training.dropout=0",
            "training.attention_dropout=0",
        ]
    )
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
def test_beam_search_of_dev_and_test(dev_captions, tmp_path, monkeypatch):
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
def test_saved_steps_of_epochs(captions, tmp_path, capsys):
    two_and_a_half = ["training.max_steps=0", "training.epochs=2.5", "evaluate_every_steps=0", "max_train_examples=60"]
    main([*captions, *two_and_a_half, "training.max_tokens=1000", "selection=average", "average_checkpoints=3"])
    record, printed = record_of(tmp_path / "out" / "seed-1"), capsys.readouterr().err
    epoch = int(printed.partition("60 pairs, ")[2].partition(" steps an epoch")[0])
    assert epoch > 1 and record["steps"] == -(-5 * epoch // 2)
    assert record["selected_step"] == [epoch, 2 * epoch, record["steps"]]


def test_run_with_infinite_dev_loss_diverges(dev_captions, refused):
    wild = ["training.learning_rate=1e30", "training.warmup_steps=0", "training.max_grad_norm=0"]
    message = refused([*dev_captions, *wild, "selection=dev_loss"])
    assert "the loss on dev was never finite, training has diverged" in message and "checkpoint-None" not in message
