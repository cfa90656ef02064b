"""The card of a model folder: its metadata as the Hub reads them, its figures as the results have them."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM, XLMRobertaForSequenceClassification

from common.provenance import folder_fingerprint
from hub_cards.card import count_parameters, main, write_card
from modeling.configuration_veco import VecoConfig
from modeling.modeling_veco import VecoForSequenceClassification

RECIPE = """
output_dir: runs/m
model: {type: xlm_align, start_from: FacebookAI/xlm-roberta-base}
precision: bf16
seed: 3
alpha: 0.7
phases:
- name: first
  steps: 1500
  learning_rate: 0.0002
  schedule: linear
  warmup_steps: 100
  objectives: {mlm: {batch_size: 2048}, tlm: {batch_size: 2048}}
"""
SESSION = {
    "hardware": {"cpu": "A CPU", "cores": 2, "gpus": [], "processes": 1},
    "versions": {"torch": "2.13.0", "transformers": "5.23.0"},
    "git": {"commit": "0123456789abcdef", "dirty": False},
}
CORPUS = {
    "name": "en-de",
    "languages": ["en", "de"],
    "size": 213,
    "tables": [{"path": "owner/bitext", "config": "en-de", "split": "train"}],
}


def make_model(folder, model_class=XLMRobertaForMaskedLM, **config):
    torch.manual_seed(0)
    sizes = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model_class(XLMRobertaConfig(max_position_embeddings=20, **sizes, **config)).save_pretrained(folder)
    return folder


@pytest.fixture
def run(tmp_path):
    """A pre-training run folder with its model."""
    folder = tmp_path / "my-run"
    make_model(folder / "model")
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "run.json").write_text(json.dumps({"sessions": [SESSION], "corpora": [CORPUS]}))
    return folder


@pytest.fixture
def results(run):
    """A results.json of that model, in two languages, from two seeds."""
    entry = {"en": [80.125, 82.0], "de": [70.0, 74.5]}
    table = {"path": "google/xtreme", "config": "XNLI", "split": "test", "languages": ["en", "de"]}
    content = {
        "model": {"folder": "runs/m/model", "fingerprint": folder_fingerprint(run / "model")},
        "task": "xnli",
        "kind": "classification",
        "setting": "zero_shot",
        "source_language": "en",
        "seeds": [1, 2],
        "protocol": {
            "training_data": [{"path": "nyu-mll/multi_nli", "config": None, "split": "train"}],
            "training_rows": 392702,
            "evaluation_data": [table],
            "evaluated_split": "test",
            "selection": {"rule": "last", "data": None},
            "fine_tuned_before": [],
            "max_length": 128,
            "cut_texts": {},
            "metric": {"name": "accuracy", "module": "accuracy", "version": "1.0.0", "unit": "percent"},
        },
        "languages": {name: {"scores": scores, "mean": sum(scores) / 2, "sd": 1.25} for name, scores in entry.items()},
        "average": {"scores": [75.0625, 78.25], "mean": 76.65625, "sd": 2.25},
        "transfer_gap": 8.8125,
        "published": {
            "paper": "XLM-Align",
            "table": "Table 18",
            "row": "base",
            "languages": {"de": 78.8},
            "average": None,
        },
        "warnings": ["at most 9 training rows were used"],
    }
    path = run / "results.json"
    path.write_text(json.dumps(content))
    return path


def test_the_hub_reads_the_metadata(run, results):
    card = ModelCard.load(write_card(run / "model", [results], licence="apache-2.0"))
    data = card.data
    assert data.language == ["en", "de"]
    assert data.base_model == "FacebookAI/xlm-roberta-base"
    assert data.datasets == ["owner/bitext", "nyu-mll/multi_nli"]
    assert (data.pipeline_tag, data.library_name, data.license) == ("fill-mask", "transformers", "apache-2.0")
    assert data.tags == ["xlm-roberta", "cross-lingual"] and data.metrics == ["accuracy"]
    assert data.model_name == "my-run"
    found = {entry.metric_name: entry for entry in data.eval_results}
    assert list(found) == [f"accuracy, {name}, zero_shot, 2 seeds" for name in ("en", "de", "average")]
    german = found["accuracy, de, zero_shot, 2 seeds"]
    assert (german.metric_value, german.metric_type, german.task_type) == (72.25, "accuracy", "text-classification")
    assert (german.dataset_type, german.dataset_config, german.dataset_split) == ("google/xtreme", "XNLI", "test")


def test_a_folder_that_no_run_left_is_called_by_its_own_name(run):
    folder = run.parent / "my-translation"
    shutil.copytree(run / "model", folder)
    assert ModelCard.load(write_card(folder, [])).data.model_name == "my-translation"


def test_every_figure_of_the_table_is_in_the_results(run, results):
    text = write_card(run / "model", [results]).read_text(encoding="utf-8")
    content = json.loads(results.read_text())
    known = {f"{content['transfer_gap']:.1f}", "78.8"}
    for entry in [*content["languages"].values(), content["average"]]:
        known |= {f"{value:.1f}" for value in [entry["mean"], entry["sd"], *entry["scores"]]}
    section = text.partition("## Results")[2].partition("## Limits")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    shown = {word for row in rows for word in row.replace("|", " ").split() if word[0].isdigit()}
    assert len(rows) == 4 and len(shown) > 8 and shown <= known
    for fact in ("nyu-mll/multi_nli train (392,702 rows)", "google/xtreme XNLI test", "max length: 128", "seeds: 1, 2"):
        assert fact in section
    assert "> Warning: at most 9 training rows were used" in section


def test_pre_training_is_told_from_the_run(run):
    text = write_card(run / "model", []).read_text(encoding="utf-8")
    assert "Started from `FacebookAI/xlm-roberta-base`" in text
    assert "| first | 1,500 | mlm (2048), tlm (2048) | 0.0002, linear, 100 warm-up |" in text
    assert "| en-de | en, de | owner/bitext en-de train | 213 |" in text
    assert "precision bf16, seed 3" in text and "2 cores of A CPU" in text and "0123456789ab" in text
    assert str(run.parent) not in text


def test_what_is_not_known_is_left_out(tmp_path):
    text = write_card(make_model(tmp_path / "model"), []).read_text(encoding="utf-8")
    card = ModelCard(text)
    for name in ("language", "license", "base_model", "datasets", "metrics", "eval_results"):
        assert getattr(card.data, name) is None
    for section in ("## Pre-training", "## Results", "Paper:", "None", "{{", "{%"):
        assert section not in text
    assert "## Use" in text and "No results are recorded" in text


def test_a_local_start_is_no_base_model(run):
    (run / "recipe.yaml").write_text(RECIPE.replace("FacebookAI/xlm-roberta-base", str(run / "elsewhere")))
    text = write_card(run / "model", []).read_text(encoding="utf-8")
    assert ModelCard(text).data.base_model is None
    assert "Started from `elsewhere`" in text and str(run) not in text


def test_small_models_are_called_demonstrations(run):
    parameters = count_parameters(run / "model")
    model = XLMRobertaForMaskedLM.from_pretrained(run / "model")
    assert parameters == sum(parameter.numel() for parameter in model.parameters())
    text = write_card(run / "model", []).read_text(encoding="utf-8")
    assert f"{parameters:,} parameters. It is a demonstration" in text


def test_large_models_are_not(run, monkeypatch):
    monkeypatch.setattr("hub_cards.card.count_parameters", lambda folder: 278_000_000)
    assert "demonstration" not in write_card(run / "model", []).read_text(encoding="utf-8")


def example_of(text, folder):
    """The code that a card shows, for a model in this folder."""
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1].replace("path/to/this/folder", str(folder))


@pytest.mark.parametrize("plug_in", [False, True])
def test_the_example_of_a_classifier_runs(tmp_path, sample_tokenizer, capsys, plug_in):
    config = VecoConfig(
        vocab_size=len(sample_tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=20, plug_in=plug_in, id2label={0: "so", 1: "so"},
    )  # fmt: skip
    VecoForSequenceClassification(config).save_pretrained(tmp_path)
    sample_tokenizer.save_pretrained(tmp_path)
    text = write_card(tmp_path, []).read_text(encoding="utf-8")
    assert ("plug-in: it reads a sentence and its translation" in text) == plug_in
    exec(example_of(text, tmp_path), {})
    assert capsys.readouterr().out == "so\n"


def test_the_example_runs(run, sample_tokenizer):
    config = XLMRobertaConfig.from_pretrained(run / "model", vocab_size=len(sample_tokenizer), pad_token_id=1)
    XLMRobertaForMaskedLM(config).save_pretrained(run / "model")
    sample_tokenizer.save_pretrained(run / "model")
    text = write_card(run / "model", [], repo="me/my-model").read_text(encoding="utf-8")
    assert text.startswith("---\n") and "# me/my-model" in text
    example = example_of(text.replace("me/my-model", "path/to/this/folder"), run / "model")
    shown = subprocess.run(
        [sys.executable, "-c", example + "print(tuple(states.shape)[::2])"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "(2, 16)"


def test_a_classifier_is_shown_as_one(tmp_path):
    folder = make_model(tmp_path / "model", XLMRobertaForSequenceClassification, fine_tuned_on=["xnli (zero_shot)"])
    text = write_card(folder, []).read_text(encoding="utf-8")
    assert ModelCard(text).data.pipeline_tag == "text-classification"
    assert "AutoModelForSequenceClassification.from_pretrained" in text and "Fine-tuned on: xnli (zero_shot)." in text


def test_a_card_of_ones_own_is_not_lost(run):
    card = write_card(run / "model", [])
    first = card.read_text(encoding="utf-8")
    assert write_card(run / "model", []).read_text(encoding="utf-8") == first
    card.write_text(first.replace("## Use", "## How to use"), encoding="utf-8")
    with pytest.raises(ValueError, match="was edited since it was written here.*--overwrite"):
        write_card(run / "model", [])
    card.write_text("# My model\n", encoding="utf-8")
    with pytest.raises(ValueError, match="was not written by hub_cards"):
        write_card(run / "model", [])
    assert card.read_text(encoding="utf-8") == "# My model\n"
    assert write_card(run / "model", [], overwrite=True).read_text(encoding="utf-8") == first


def test_results_of_another_model_are_refused(run, results):
    tensors = load_file(run / "model" / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, run / "model" / "model.safetensors")
    with pytest.raises(ValueError, match="These scores are another model's"):
        write_card(run / "model", [results])


def test_a_seeds_model_takes_the_results_of_its_run(run, results, tmp_path):
    tuned = make_model(tmp_path / "tuned" / "seed-1" / "model", XLMRobertaForSequenceClassification)
    moved = results.rename(tmp_path / "tuned" / "results.json")
    text = write_card(tuned, [moved]).read_text(encoding="utf-8")
    assert "### xnli, zero_shot" in text and ModelCard(text).data.model_name == "tuned"


def test_user_errors_end_with_code_2(run, capsys):
    for arguments, message in (
        (["--model", str(run)], "is not a model folder"),
        (["--model", str(run / "model"), "--results", "nowhere.json"], "Results not found: nowhere.json"),
        (["--model", str(run / "model"), "--results", str(run / "run.json")], "is not a results.json"),
        (["--model", str(run / "model"), "--run", str(run.parent)], "is not the folder of a pre-training run"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    main(["--model", str(run / "model")])
    assert "README.md" in capsys.readouterr().out
