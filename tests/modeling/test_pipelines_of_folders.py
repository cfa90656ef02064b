"""`pipeline("fill-mask")` from the folder of every model, and `pipeline("word-alignment")` from XLM-Align's.

test_word_alignment_pipeline.py has the aligner's own conventions.
"""

import pytest
import torch

from modeling.word_alignment import WordAligner
from tests.modeling.tiny import PREFIXES, class_of

NAMES = [*PREFIXES, "metaxlm on modernbert", "xlm_align on eurobert", "ernie_m on deberta-v2"]
ALIGNERS = [name for name in NAMES if name.startswith("xlm_align")]
# of different lengths, so that a batch is padded; one has two masks
TEXTS = ["The house is <mask>.", "Der Garten <mask> sehr groß, und das Haus ist klein.", "<mask> and <mask>"]
PAIRS = [("the house is small", "das Haus ist klein"), ("one", "eins zwei drei"), ("a b c d e f", "f e d")]
TOP_K = 4

PROGRAM = """
import json, sys
import torch
from transformers import pipeline
folders, texts, pairs, top_k = map(json.loads, sys.argv[2:])
found = {}
for name, folder in folders.items():
    fill = pipeline("fill-mask", model=folder, trust_remote_code=True)
    found[name] = {
        "one": [fill(text, top_k=top_k) for text in texts],
        "list": fill(texts, top_k=top_k),
        "batch": fill(texts, top_k=top_k, batch_size=3),
        "default": fill(texts[0]),
        "targets": fill(texts[0], targets=["▁the", "."]),
        "code": type(fill.model).__module__.split(".")[0],
    }
    if name.startswith("xlm_align"):
        align = pipeline("word-alignment", model=folder, trust_remote_code=True)
        found[name] |= {
            "aligned": [align(pair, probabilities=True) for pair in map(tuple, pairs)],
            "aligned list": align(pairs, probabilities=True),
            "aligned batch": align(pairs, probabilities=True, batch_size=3),
        }
torch.save(found, sys.argv[1])
"""


@pytest.fixture(scope="module")
def folders(zoo_model_dir):
    """By model type, as pre-training leaves them."""
    return {name: str(zoo_model_dir(name)) for name in NAMES}


@pytest.fixture(scope="module")
def found(folders, fresh_process):
    """What the pipelines of each folder give in a process of their own."""
    return fresh_process(PROGRAM, folders, TEXTS, PAIRS, TOP_K)


def of_folder(folder, name, head):
    """The model by its class, in this process."""
    return class_of(name.split(" on ")[0], head).from_pretrained(folder).eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_fill_mask_is_the_softmax_of_the_head(folders, found, sample_tokenizer, name):
    found, model = found[name], of_folder(folders[name], name, "ForMaskedLM")
    assert found["code"] == "transformers_modules"
    for position, text in enumerate(TEXTS):
        inputs = sample_tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            logits_NV = model(**inputs).logits[0, inputs["input_ids"][0] == sample_tokenizer.mask_token_id]
        scores_NK, tokens_NK = logits_NV.softmax(-1).topk(TOP_K)
        for kind in ("one", "list", "batch"):
            # of a text with one mask the entries, of one with several a list for each
            answer = found[kind][position]
            entries = answer if isinstance(answer[0], list) else [answer]
            assert [[entry["token"] for entry in of_mask] for of_mask in entries] == tokens_NK.tolist(), kind
            scores = torch.tensor([[entry["score"] for entry in of_mask] for of_mask in entries])
            torch.testing.assert_close(scores, scores_NK, atol=1e-5, rtol=1e-4)
            assert entries[0][0]["token_str"] == sample_tokenizer.decode(tokens_NK[:1, :1].flatten())
    assert len(found["default"]) == 5
    assert {entry["token"] for entry in found["targets"]} == set(sample_tokenizer.convert_tokens_to_ids(["▁the", "."]))


@pytest.mark.parametrize("name", ALIGNERS)
def test_word_alignment_is_that_of_the_aligner_however_pairs_come(folders, found, sample_tokenizer, name):
    aligner = WordAligner(of_folder(folders[name], name, "Model"), sample_tokenizer)
    expected = list(aligner.align(PAIRS, probabilities=True))
    assert any(of.links for of in expected)
    for kind in ("aligned", "aligned list", "aligned batch"):
        for answer, of in zip(found[name][kind], expected, strict=True):
            assert (answer["source"], answer["target"], answer["links"]) == (of.source, of.target, of.links), kind
            assert answer["probabilities"] == pytest.approx(of.probabilities, abs=1e-5)
