"""Saved from any head, loaded through every Auto class: in a fresh process, offline, from another directory."""

import pytest
import torch
from safetensors.torch import load_file

from crosslingual_zoo.modeling.configuration_encoder import HEADS
from tests.conftest import PREFIXES

MODELS = [*PREFIXES, "xlm_align on modernbert", "ernie_m on eurobert", "metaxlm on deberta-v2"]


LOAD = """
import json, sys
import torch, transformers
folders, classes = map(json.loads, sys.argv[2:])
loaded = {}
for saved, folder in folders.items():
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer(["a b", "c"], padding=True, return_tensors="pt")
    loaded[saved] = {"config": type(transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)).__name__}
    for name in classes:
        model = getattr(transformers, name).from_pretrained(folder, trust_remote_code=True)
        assert "transformers_modules" in type(model).__module__, type(model).__module__
        model(**{"mlm": {**batch, "labels": batch["input_ids"]}} if name == "AutoModelForPreTraining" else batch)
        loaded[saved][name] = type(model).__name__, model.state_dict()
torch.save(loaded, sys.argv[1])
"""


def without_prefix(weights):
    return {key.removeprefix("roberta."): value for key, value in weights.items()}


def assert_has_weights(weights, original):
    """Those of the encoder, and those of heads that both have, except for what is drawn for each task."""
    common = {key for key in original.keys() & weights.keys() if not key.startswith("classifier")}
    assert {key for key in original if key.startswith(("embeddings", "encoder", "backbone"))} <= common
    for key in common:
        assert torch.equal(original[key], weights[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODELS)
def test_auto_classes_load_every_head(model_type, zoo_model_dir, fresh_process):
    folders = {saved: str(zoo_model_dir(model_type, suffix)) for saved, suffix in HEADS.items()}
    prefix = PREFIXES[model_type.split(" on ")[0]]
    loaded = fresh_process(LOAD, folders, list(HEADS))
    for saved, folder in folders.items():
        assert loaded[saved]["config"] == f"{prefix}Config"
        original = without_prefix(load_file(f"{folder}/model.safetensors"))
        for auto_class, suffix in HEADS.items():
            class_name, weights = loaded[saved][auto_class]
            assert class_name == prefix + suffix
            assert_has_weights(without_prefix(weights), original)
        _, weights = loaded[saved][saved]
        assert original.keys() <= without_prefix(weights).keys()


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
