"""Saved from any head, loaded through every Auto class: in a fresh process, offline, from another directory."""

import importlib
import subprocess
import sys

import pytest
import torch

from modeling.configuration_encoder import HEADS

MODELS = {"veco": "Veco", "ernie_m": "ErnieM", "xlm_align": "XlmAlign", "metaxlm": "MetaXlm"}
TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)


LOAD = """
import json, sys
import torch, transformers
folders, classes = map(json.loads, sys.argv[2:])
found = {}
for saved, folder in folders.items():
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer(["a b", "c"], padding=True, return_tensors="pt")
    found[saved] = {"config": type(transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)).__name__}
    for name in classes:
        model = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True)
        assert "transformers_modules" in type(model).__module__, type(model).__module__
        model(**{"mlm": {**batch, "labels": batch["input_ids"]}} if name == "AutoModelForPreTraining" else batch)
        found[saved][name] = type(model).__name__, model.state_dict()
torch.save(found, sys.argv[1])
"""


def without_prefix(weights):
    return {key.removeprefix("roberta."): value for key, value in weights.items()}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODELS)
def test_every_head_loads_through_every_auto_class(model_type, sample_tokenizer, fresh_process, tmp_path):
    models = {}
    for saved, suffix in HEADS.items():
        cls = getattr(importlib.import_module(f"modeling.modeling_{model_type}"), MODELS[model_type] + suffix)
        torch.manual_seed(0)
        models[saved] = cls(cls.config_class(vocab_size=len(sample_tokenizer), **TINY))
        models[saved].save_pretrained(tmp_path / saved)
        sample_tokenizer.save_pretrained(tmp_path / saved)
    result = fresh_process(LOAD, {saved: str(tmp_path / saved) for saved in HEADS}, list(HEADS))
    for saved, found in result.items():
        assert found["config"] == f"{MODELS[model_type]}Config"
        original = without_prefix(models[saved].state_dict())
        for auto, suffix in HEADS.items():
            name, weights = found[auto]
            loaded = without_prefix(weights)
            assert name == MODELS[model_type] + suffix
            common = {key for key in original.keys() & loaded.keys() if not key.startswith("classifier")}
            assert {key for key in original if key.startswith(("embeddings", "encoder"))} <= common
            assert [key for key in sorted(common) if not torch.equal(original[key], loaded[key])] == []
            if auto == saved:
                assert loaded.keys() == original.keys()


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
