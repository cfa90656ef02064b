"""Removing tokens that do not occur in a text from a model and its tokenizer."""

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from crosslingual_zoo.pretraining.tools.trim_vocabulary import main


@pytest.mark.parametrize("name", ["ernie_m", "xlm_align on modernbert", "metaxlm on eurobert", "ernie_m on deberta-v2"])
@torch.no_grad()
def test_main_keeps_tokens_and_logits_of_the_text(name, recipe_file, zoo_model_dir, sample_corpus_dir, tmp_path):
    start = zoo_model_dir(name)
    table = sample_corpus_dir / "de" / "train.jsonl"
    main(
        [
            f"--config={recipe_file}",
            f"output_dir={tmp_path}",
            f"model={{type: {name.split()[0]}, start_from: {start}}}",
            f"monolingual=[{{language: de, path: {table}}}]",
            "bitext=[]",
            "tokenizer=null",
            "evaluation={}",
            "phases.0.objectives={mlm: {batch_size: 2, max_length: 32}}",
        ]
    )
    texts = [json.loads(line)["text"] for line in table.read_text(encoding="utf-8").splitlines()[:20]]

    def read(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
        batch = tokenizer(texts, texts[::-1], padding=True, return_tensors="pt")
        tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in batch["input_ids"]]
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return tokenizer, model.config, tokens, logits

    whole, _, expected_tokens, expected_logits = read(start)
    trimmed, config, tokens, logits = read(tmp_path / "model")
    assert len(trimmed) == config.vocab_size < 0.8 * len(whole)
    assert tokens == expected_tokens
    ids = whole.convert_tokens_to_ids(trimmed.convert_ids_to_tokens(range(len(trimmed))))
    torch.testing.assert_close(logits, expected_logits[..., ids])
    for settings in filter(None, (config, config.backbone_config)):
        assert settings.pad_token_id == trimmed.pad_token_id
        assert getattr(settings, "mask_token_id", None) in (None, trimmed.mask_token_id)
