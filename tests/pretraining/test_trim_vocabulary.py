"""Removing tokens that do not occur in a text from a model and its tokenizer."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from pretraining.tools import trim_vocabulary
from pretraining.tools.trim_vocabulary import trim_tokenizer


@pytest.mark.parametrize("name", ["ernie_m", "xlm_align on modernbert", "metaxlm on eurobert", "ernie_m on deberta-v2"])
def test_text_of_kept_tokens_has_the_same_tokens_states_and_logits(
    name, recipe_file, zoo_model_dir, sample_corpus_dir, tmp_path
):
    start = zoo_model_dir(name)
    settings = ["monolingual=[{language: de, path: " + f"{sample_corpus_dir}/de/train.jsonl" + "}]", "bitext=[]"]
    settings += [f"model={{type: {name.split()[0]}, start_from: " + f"{start}" + "}", "tokenizer=null", "evaluation={}"]
    settings += ["phases.0.objectives={mlm: {batch_size: 2, max_length: 32}}", f"output_dir={tmp_path / 'trimmed'}"]
    trim_vocabulary.main(["--config", str(recipe_file), *settings])

    folders = {"whole": start, "trimmed": tmp_path / "trimmed" / "model"}
    tokenizers = {
        name: AutoTokenizer.from_pretrained(folder, trust_remote_code=True) for name, folder in folders.items()
    }
    models = {
        name: AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
        for name, folder in folders.items()
    }
    assert len(tokenizers["trimmed"]) < 0.8 * len(tokenizers["whole"])
    lines = (sample_corpus_dir / "de" / "train.jsonl").read_text(encoding="utf-8").splitlines()[:20]
    texts = [json.loads(line)["text"] for line in lines]
    found = {}
    for name, tokenizer in tokenizers.items():
        batch = tokenizer(texts, texts[::-1], padding=True, return_tensors="pt")
        assert batch["input_ids"].max() < models[name].config.vocab_size == len(tokenizer)
        with torch.no_grad():
            found[name] = models[name](batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        assert tokenizer.decode(tokenizer(texts[0])["input_ids"], skip_special_tokens=True) == texts[0]
    tokens = {
        name: [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]
        for name, tokenizer in tokenizers.items()
    }
    assert tokens["trimmed"] == tokens["whole"]
    kept = tokenizers["whole"].convert_tokens_to_ids(
        tokenizers["trimmed"].convert_ids_to_tokens(range(found["trimmed"].shape[-1]))
    )
    torch.testing.assert_close(found["trimmed"], found["whole"][..., kept])
    config, tokenizer = models["trimmed"].config, tokenizers["trimmed"]
    for of in filter(None, (config, config.backbone_config)):
        assert of.pad_token_id == tokenizer.pad_token_id
        assert getattr(of, "mask_token_id", None) in (None, tokenizer.mask_token_id)


def test_another_kind_of_tokenizer_is_refused():
    with pytest.raises(ValueError, match="WordPiece"):
        trim_tokenizer({"model": {"type": "WordPiece"}}, np.array([0]))
