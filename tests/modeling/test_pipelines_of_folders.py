"""`pipeline("fill-mask")` from the folder of every model."""

import pytest
import torch

from tests.modeling.tiny import PREFIXES, class_of

NAMES = [*PREFIXES, "metaxlm on modernbert", "xlm_align on eurobert", "ernie_m on deberta-v2"]
# of different lengths, so that a batch is padded; one has two masks
TEXTS = ["The house is <mask>.", "Der Garten <mask> sehr groß, und das Haus ist klein.", "<mask> and <mask>"]
TOP_K = 4

PROGRAM = """
import json, sys
import torch
from transformers import pipeline
folders, texts, top_k = map(json.loads, sys.argv[2:])
found = {}
for name, folder in folders.items():
    fill = pipeline("fill-mask", model=folder, trust_remote_code=True)
    answers = [fill(text, top_k=top_k) for text in texts], fill(texts, top_k=top_k, batch_size=3)
    found[name] = answers, type(fill.model).__module__.split(".")[0]
torch.save(found, sys.argv[1])
"""


@pytest.fixture(scope="module")
def found(zoo_model_dir, fresh_process):
    """What the pipelines of each folder give in a process of their own."""
    return fresh_process(PROGRAM, {name: str(zoo_model_dir(name)) for name in NAMES}, TEXTS, TOP_K)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_fill_mask_is_the_softmax_of_the_head(zoo_model_dir, found, sample_tokenizer, name):
    (alone, batch), code = found[name]
    assert code == "transformers_modules"
    model = class_of(name.split(" on ")[0], "ForMaskedLM").from_pretrained(zoo_model_dir(name)).eval()
    for position, text in enumerate(TEXTS):
        inputs = sample_tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            logits_NV = model(**inputs).logits[0, inputs["input_ids"][0] == sample_tokenizer.mask_token_id]
        scores_NK, tokens_NK = logits_NV.softmax(-1).topk(TOP_K)
        # of a text with one mask the entries, of one with several a list for each
        for answer in (alone[position], batch[position]):
            entries = answer if isinstance(answer[0], list) else [answer]
            assert [[entry["token"] for entry in of_mask] for of_mask in entries] == tokens_NK.tolist()
            scores = torch.tensor([[entry["score"] for entry in of_mask] for of_mask in entries])
            torch.testing.assert_close(scores, scores_NK, atol=1e-5, rtol=1e-4)
