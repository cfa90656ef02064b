"""Adapters of the word aligner: what is written of a trained encoder, how it is merged, cards and pushes of it."""

import json
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from crosslingual_zoo.finetuning.align import adapt, common
from crosslingual_zoo.finetuning.align.adapter import RANK, low_rank, save_adapter
from crosslingual_zoo.hub_cards.card import write_card
from crosslingual_zoo.hub_cards.folder_check import check_folder
from crosslingual_zoo.hub_cards.push import push
from crosslingual_zoo.modeling.word_alignment import (
    ADAPTER_SETTINGS,
    DEFAULT_ADAPTER,
    DEFAULT_MODEL,
    WordAligner,
    find_adapter,
    merge_adapter,
)
from crosslingual_zoo.zoo_core.provenance import read_json

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # plain PEFT calls it
PAIR = ("the house is small", "das Haus ist klein")


def layers_of(encoder):
    return {name: layer for name, layer in encoder.named_modules() if isinstance(layer, torch.nn.Linear)}


@pytest.fixture(scope="module")
def trained(tiny_model):
    """The tiny encoder with other matrices in its first layer: a change of rank RANK and a smaller one of full rank."""
    torch.manual_seed(1)
    encoder = AutoModel.from_pretrained(tiny_model)
    with torch.no_grad():
        for name, layer in layers_of(encoder).items():
            if name.startswith("encoder.layer.0."):
                outputs, inputs = layer.weight.shape
                layer.weight += 0.1 * torch.randn(outputs, RANK) @ torch.randn(RANK, inputs)
                layer.weight += 1e-3 * torch.randn(outputs, inputs)
    return encoder


@pytest.fixture(scope="module")
def adapter(tiny_model, trained, tmp_path_factory):
    """Folder of the adapter, with the files that `word-align adapt` adds."""
    folder = tmp_path_factory.mktemp("adapter") / "tiny"
    save_adapter(AutoModel.from_pretrained(tiny_model), trained, folder, "owner/base")
    settings = {"word_alignment_layer": 1, "word_alignment_calibration": [2.0, 0.5]}
    (folder / ADAPTER_SETTINGS).write_text(json.dumps(settings))
    data = [{"name": "gold links: a.tsv", "rows": 900, "license": "cc-by-4.0", "url": "https://example.org"}]
    scores = [{"name": "held-out sentences", "sentences": 100, "before": 30.0, "after": 20.0}]
    facts = {"data": data, "settings": {"steps": 150}, "scores": scores, "notes": ["A limit."]}
    (folder / "adaptation.json").write_text(json.dumps(facts))
    return folder


def test_low_rank_is_the_nearest_matrix():
    torch.manual_seed(0)
    matrix = torch.randn(12, 9)
    output_OR, input_RI = low_rank(matrix, 3)
    assert output_OR.shape == (12, 3)
    assert input_RI.shape == (3, 9)
    smaller = torch.linalg.svdvals(matrix)[3:]
    error = torch.linalg.matrix_norm(matrix - output_OR @ input_RI)
    assert torch.isclose(error, smaller.square().sum().sqrt())


def test_adapter_merged_is_the_trained_encoder_up_to_its_rank(tiny_model, trained, adapter):
    base = AutoModel.from_pretrained(tiny_model)
    before = {name: layer.weight.clone() for name, layer in layers_of(base).items()}
    merged = layers_of(merge_adapter(base, adapter))
    for name, layer in layers_of(trained).items():
        change = layer.weight - before[name]
        learned = merged[name].weight - before[name]
        if name.startswith("encoder.layer.0."):
            assert (learned - change).norm() < 0.02 * change.norm()
        else:
            assert not learned.any()
    assert all(tensor.dtype == torch.float16 for tensor in load_file(adapter / "adapter_model.safetensors").values())


def test_adapter_gives_the_vectors_of_plain_peft(tiny_model, adapter, sample_tokenizer):
    inputs = sample_tokenizer("Das Haus ist klein.", return_tensors="pt")
    plain = PeftModel.from_pretrained(AutoModel.from_pretrained(tiny_model), str(adapter)).eval()
    merged = merge_adapter(AutoModel.from_pretrained(tiny_model).eval(), adapter)
    with torch.no_grad():
        expected = plain(**inputs).last_hidden_state
        without = AutoModel.from_pretrained(tiny_model).eval()(**inputs).last_hidden_state
        states = merged(**inputs).last_hidden_state
    assert torch.allclose(states, expected, atol=1e-5)
    assert not torch.allclose(states, without, atol=1e-2)


def test_names_that_help_needs_before_torch_are_those_of_the_aligner():
    assert (common.DEFAULT_MODEL, adapt.ADAPTER_SETTINGS) == (DEFAULT_MODEL, ADAPTER_SETTINGS)


def test_adapter_sets_layer_and_calibration(tiny_model, adapter):
    aligner = WordAligner.from_pretrained(str(tiny_model), adapter=str(adapter))
    assert aligner.layer == 1
    assert aligner.adapter == adapter
    assert [aligner.matching[name] for name in ("slope", "offset")] == [2.0, 0.5]
    higher = WordAligner.from_pretrained(str(tiny_model), layer=2, adapter=str(adapter))
    assert higher.layer == 2
    assert WordAligner.from_pretrained(str(tiny_model)).adapter is None


def test_adapter_of_more_layers_than_are_read(tiny_model, trained, tmp_path):
    """Its lower layers are merged: layer 1 of the whole and of the short encoder are equal."""
    upper = AutoModel.from_pretrained(tiny_model)
    upper.encoder.load_state_dict(trained.encoder.state_dict())
    with torch.no_grad():
        upper.encoder.layer[1].output.dense.weight += 1
    save_adapter(AutoModel.from_pretrained(tiny_model), upper, tmp_path / "two", "owner/base")
    short = WordAligner.from_pretrained(str(tiny_model), layer=1, adapter=str(tmp_path / "two"))
    whole = WordAligner.from_pretrained(str(tiny_model), layer=1, adapter=str(tmp_path / "two"), all_layers=True)
    assert short.num_layers == 1
    assert whole.num_layers == 2
    alignments = [next(aligner.align([PAIR], probabilities=True)) for aligner in (short, whole)]
    assert alignments[0] == alignments[1]


def test_save_adapter_refuses_an_unchanged_encoder(tiny_model, tmp_path):
    base = AutoModel.from_pretrained(tiny_model)
    with pytest.raises(ValueError, match="changed"):
        save_adapter(base, AutoModel.from_pretrained(tiny_model), tmp_path / "a", "owner/base")


@pytest.mark.parametrize(
    ("adapter", "model", "expected"),
    [
        ("auto", DEFAULT_MODEL, DEFAULT_ADAPTER),
        ("auto", f"{DEFAULT_MODEL}@main", DEFAULT_ADAPTER),
        ("default", "runs/copy", DEFAULT_ADAPTER),
        ("auto", "runs/m", None),
        ("none", DEFAULT_MODEL, None),
        (None, DEFAULT_MODEL, None),
    ],
)
def test_find_adapter(adapter, model, expected):
    assert find_adapter(adapter, model) == expected


def change_tensors(folder, change):
    """The adapter with other tensors: `change` gets a name and a tensor, and returns both."""
    file = folder / "adapter_model.safetensors"
    save_file(dict(change(*entry) for entry in load_file(file).items()), file)


def change_kind(folder):
    file = folder / "adapter_config.json"
    file.write_text(file.read_text().replace("LORA", "IA3"))


FAULTS = {
    "missing": shutil.rmtree,
    "no adapter": lambda folder: (folder / "adapter_config.json").unlink(),
    "damaged": lambda folder: (folder / "adapter_config.json").write_text("{"),
    "another kind": change_kind,
    "another shape": lambda folder: change_tensors(folder, lambda name, matrix: (name, matrix[:, :5].contiguous())),
    "other names": lambda folder: change_tensors(folder, lambda name, matrix: (name.replace("encoder", "x"), matrix)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_adapter_refused(tiny_model, adapter, tmp_path, fault):
    folder = shutil.copytree(adapter, tmp_path / "a")
    FAULTS[fault](folder)
    with pytest.raises(ValueError) as caught:
        WordAligner.from_pretrained(str(tiny_model), adapter=str(folder))
    assert "\n" not in str(caught.value)


def test_command_uses_an_adapter(word_align, align_refused, adapter, tmp_path):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text(" ||| ".join(PAIR) + "\n")
    written = (pairs, "--probabilities", f"--output={tmp_path / 'links'}", f"--adapter={adapter}")
    word_align(*written)
    assert (tmp_path / "links").read_text() != word_align(pairs, "--probabilities", "--adapter=none").out
    # the links of another adapter are not those of this file
    assert "adapter" in align_refused(*written[:-1], "--resume")


def test_card_and_push_of_an_adapter(adapter, tmp_path, capsys):
    folder = shutil.copytree(adapter, tmp_path / "a")
    card = write_card(folder, repo="owner/aligner", license="cc-by-sa-4.0").read_text(encoding="utf-8")
    facts = ["base_model: owner/base", "library_name: peft", "license: cc-by-sa-4.0", "| 30.0 | 20.0 |", "A limit."]
    assert all(fact in card for fact in facts)
    assert check_folder(folder) == []
    assert push(folder, "owner/aligner", dry_run=True) is None
    assert "adapter_model.safetensors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.py", "import os"),
        ("adapter_model.bin", "x"),
        ("other.safetensors", None),
        ("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "/home/me/base"}'),
        ("adapter_config.json", '{"peft_type": "IA3", "base_model_name_or_path": "owner/base"}'),
        ("adapter_model.safetensors", None),
    ],
)
def test_check_finds_faults_of_an_adapter(adapter, tmp_path, file, content):
    folder = shutil.copytree(adapter, tmp_path / "a")
    write_card(folder, repo="owner/aligner", license="cc-by-sa-4.0")
    if content is None:  # the weights have another name
        shutil.move(folder / "adapter_model.safetensors", folder / "other.safetensors")
    else:
        (folder / file).write_text(content)
    assert file in {problem.file for problem in check_folder(folder)}


def test_zoo_adapter_is_small_and_of_the_lower_layers():
    settings = read_json(DEFAULT_ADAPTER / "adapter_config.json")
    alignment = read_json(DEFAULT_ADAPTER / ADAPTER_SETTINGS)
    assert settings["base_model_name_or_path"] == DEFAULT_MODEL
    assert settings["layers_to_transform"] == list(range(alignment["word_alignment_layer"]))
    assert (DEFAULT_ADAPTER / "adapter_model.safetensors").stat().st_size < 1_000_000
    assert check_folder(DEFAULT_ADAPTER) == []
