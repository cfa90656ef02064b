"""Saved from any head, loaded through every Auto class: in a fresh process, offline, from another directory."""

import pytest
import torch
from safetensors.torch import load_file

from crosslingual_zoo.modeling.configuration_encoder import HEADS
from tests.modeling.tiny import PREFIXES

MODELS = [*PREFIXES, "xlm_align on modernbert", "ernie_m on eurobert", "metaxlm on deberta-v2"]


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
def test_auto_classes_load_every_head(model_type, zoo_model_dir, fresh_process):
    folders = {saved: zoo_model_dir(model_type, suffix) for saved, suffix in HEADS.items()}
    prefix = PREFIXES[model_type.split(" on ")[0]]
    for saved, found in fresh_process(
        LOAD, {saved: str(folder) for saved, folder in folders.items()}, list(HEADS)
    ).items():
        assert found["config"] == f"{prefix}Config"
        original = without_prefix(load_file(folders[saved] / "model.safetensors"))
        for auto, suffix in HEADS.items():
            name, weights = found[auto]
            loaded = without_prefix(weights)
            assert name == prefix + suffix
            common = {key for key in original.keys() & loaded.keys() if not key.startswith("classifier")}
            assert {key for key in original if key.startswith(("embeddings", "encoder", "backbone"))} <= common
            assert [key for key in sorted(common) if not torch.equal(original[key], loaded[key])] == []
            if auto == saved:
                assert original.keys() <= loaded.keys()


IMPORT = """
import sys
import torch
from crosslingual_zoo.modeling import modeling_ernie_m, modeling_metaxlm, modeling_veco, modeling_xlm_align
from transformers import CONFIG_MAPPING
torch.save({"veco", "xlm_align", "metaxlm", "ernie_m"} & set(CONFIG_MAPPING), sys.argv[1])
"""


@pytest.mark.slow
def test_auto_classes_are_not_registered_by_the_import(fresh_process, pytestconfig):
    assert fresh_process(IMPORT, path=pytestconfig.rootpath) == set()
