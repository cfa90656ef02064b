"""`python -m pretraining.supported`: its table agrees with training."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from modeling.model_types import MODEL_TYPES
from pretraining import supported
from pretraining.start.pretrained import Pretrained


@pytest.mark.parametrize(
    ("kind", "without"),
    [("modernbert", {"ca_mlm_pairs"}), ("deberta-v2", {"camlm", "btmlm", "ca_mlm_pairs"}), ("bert", set())],
)
def test_objectives_are_told_by_model(kind, without, sample_tokenizer, tmp_path, capsys):
    ids = {name: getattr(sample_tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    shape = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=len(sample_tokenizer), **shape, **ids)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    sample_tokenizer.save_pretrained(tmp_path)
    found = [supported.objectives_of(model, Pretrained(str(tmp_path), "CHECKPOINT")) for model in MODEL_TYPES]
    can = {name for one in found if not isinstance(one, str) for name in one[0].split(", ")}
    everything = {"mlm", "tlm", "dwa", "camlm", "btmlm", "kd", "ca_mlm_segments", "ca_mlm_pairs"}
    assert everything - can == without | ({"ca_mlm_segments"} if "ca_mlm_pairs" in without else set())
    supported.main([str(tmp_path)])
    told = capsys.readouterr().out
    assert "2 layers of 32" in told and "newly initialized: nothing" in told and "<s> x </s>" in told


def test_a_folder_of_the_zoo_says_of_its_backbone_what_its_checkpoint_does(zoo_model_dir):
    folder = str(zoo_model_dir("metaxlm on deberta-v2"))
    told = {model: supported.objectives_of(model, Pretrained(folder, "CHECKPOINT")) for model in MODEL_TYPES}
    can, cannot = told["metaxlm"]
    assert can == "mlm, tlm, kd" and cannot.startswith("camlm") and "deberta-v2" in cannot
    assert told["ernie_m"][0] == "mlm, tlm"
    assert "deberta-v2" in told["veco"]


def test_another_architecture_is_refused(tmp_path, capsys):
    AutoConfig.for_model("electra").save_pretrained(tmp_path)
    with pytest.raises(SystemExit):
        supported.main([str(tmp_path)])
    assert capsys.readouterr().err
