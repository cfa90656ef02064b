"""`python -m pretraining.plan`: its table agrees with training."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from modeling import MODEL_TYPES
from pretraining import plan
from pretraining.plan import objectives_of
from pretraining.start.pretrained import Pretrained


@pytest.mark.parametrize(
    ("kind", "without"),
    [
        ("modernbert", {"ca_mlm_segments", "ca_mlm_pairs"}),
        ("deberta-v2", {"camlm", "btmlm", "ca_mlm_segments", "ca_mlm_pairs"}),
        ("bert", set()),
    ],
)
def test_supported_objectives_of_an_architecture(kind, without, sample_tokenizer, tmp_path, capsys):
    ids = {name: getattr(sample_tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    shape = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    config = AutoConfig.for_model(kind, vocab_size=len(sample_tokenizer), **shape, **ids)
    with torch.random.fork_rng():
        AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    sample_tokenizer.save_pretrained(tmp_path)
    checkpoint = Pretrained(str(tmp_path), "CHECKPOINT")
    can = {name for model in MODEL_TYPES for name in objectives_of(model, checkpoint)[0].split(", ")}
    assert {"mlm", "tlm", "dwa", "camlm", "btmlm", "kd", "ca_mlm_segments", "ca_mlm_pairs"} - can == without
    plan.main([str(tmp_path)])
    assert "encoder and LM head: nothing" in capsys.readouterr().out
