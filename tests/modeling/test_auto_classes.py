"""Saved from any head, loaded through every Auto class: in a fresh process, offline, from another directory."""

import hashlib
import importlib
import json
import os
import subprocess
import sys

import pytest
import torch

from modeling.configuration_encoder import HEADS

MODELS = {"veco": "Veco", "ernie_m": "ErnieM", "xlm_align": "XlmAlign", "metaxlm": "MetaXlm"}
TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)

LOAD = """
import hashlib, json, sys
import transformers
folder, classes = sys.argv[1], sys.argv[2].split(",")
transformers.utils.logging.set_verbosity_error()
result = {"config": type(transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)).__name__}
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
batch = tokenizer(["a b", "c"], padding=True, return_tensors="pt")
for name in classes:
    model = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True)
    assert "transformers_modules" in type(model).__module__, type(model).__module__
    inputs = {"mlm": {**batch, "labels": batch["input_ids"]}} if name == "AutoModelForPreTraining" else batch
    model(**inputs)
    result[name] = {"class": type(model).__name__, "weights": {
        key: hashlib.sha256(value.numpy().tobytes()).hexdigest() for key, value in model.state_dict().items()}}
print(json.dumps(result))
"""


def digests(model):
    return {key: hashlib.sha256(value.numpy().tobytes()).hexdigest() for key, value in model.state_dict().items()}


def without_prefix(weights):
    return {key.removeprefix("roberta."): value for key, value in weights.items()}


@pytest.mark.slow
@pytest.mark.parametrize("saved", HEADS)
@pytest.mark.parametrize("model_type", MODELS)
def test_every_head_loads_through_every_auto_class(model_type, saved, sample_tokenizer, tmp_path):
    prefix = MODELS[model_type]
    cls = getattr(importlib.import_module(f"modeling.modeling_{model_type}"), prefix + HEADS[saved])
    torch.manual_seed(0)
    model = cls(cls.config_class(vocab_size=len(sample_tokenizer), **TINY))
    folder = tmp_path / f"{model_type}_{HEADS[saved].lower()}"
    model.save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "PYTHONPATH"))}
    environment |= {"HF_HOME": str(tmp_path / "hf_home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), ",".join(HEADS)],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["config"] == f"{prefix}Config"
    original = without_prefix(digests(model))
    for auto, suffix in HEADS.items():
        loaded = without_prefix(result[auto]["weights"])
        assert result[auto]["class"] == prefix + suffix
        common = {key for key in original.keys() & loaded.keys() if not key.startswith("classifier")}
        assert {key for key in original if key.startswith(("embeddings", "encoder"))} <= common
        assert [key for key in sorted(common) if original[key] != loaded[key]] == []
        if auto == saved:
            assert loaded == original


def test_the_folder_names_every_auto_class_and_carries_its_code(tmp_path):
    from modeling.modeling_xlm_align import XlmAlignConfig, XlmAlignForTokenClassification

    XlmAlignForTokenClassification(XlmAlignConfig(vocab_size=50, **TINY)).save_pretrained(tmp_path)
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert set(auto_map) == {"AutoConfig", *HEADS}
    for target in auto_map.values():
        assert (tmp_path / f"{target.split('.')[0]}.py").exists()


@pytest.mark.slow
def test_importing_modeling_registers_nothing():
    script = (
        "import transformers, modeling.modeling_veco, modeling.modeling_ernie_m, modeling.modeling_xlm_align, "
        "modeling.modeling_metaxlm\n"
        "from transformers.models.auto.configuration_auto import CONFIG_MAPPING\n"
        "assert not {'veco', 'xlm_align', 'metaxlm', 'ernie_m'} & set(CONFIG_MAPPING)\n"
        "from transformers import AutoModel\n"
        "assert not [c for c in AutoModel._model_mapping._extra_content if c.__module__.startswith('modeling')]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
