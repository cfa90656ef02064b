"""`pipeline("word-alignment")`: from folders in fresh processes, and its conventions."""

import pytest
import torch

from crosslingual_zoo.modeling.modeling_xlm_align import XlmAlignConfig, XlmAlignForPreTraining, XlmAlignModel
from crosslingual_zoo.modeling.pipeline_word_alignment import WordAlignmentPipeline
from crosslingual_zoo.modeling.word_alignment import WordAligner

TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, initializer_range=0.5)
PAIRS = [
    ("Does a model know which word is which?", "Weiß ein Modell, welches Wort welches ist?"),
    {"source": ["One", "two", "three"], "target": "Eins zwei"},
    ("", "nothing"),
]


FRESH = """
import json, sys
import torch
from transformers import AutoModelForTokenClassification, pipeline
folders, again, pairs = map(json.loads, sys.argv[2:])
found = []
for folder in folders:
    aligner = pipeline("word-alignment", model=folder, trust_remote_code=True)
    found.append([aligner(pairs, probabilities=True), type(aligner.model).__module__])
if again:
    model = AutoModelForTokenClassification.from_pretrained(folder, trust_remote_code=True)
    model.save_pretrained(again + "_model")
    aligner.tokenizer.save_pretrained(again + "_model")
    aligner.save_pretrained(again + "_pipeline")
torch.save(found, sys.argv[1])
"""


@pytest.mark.slow
def test_pipeline_of_a_folder_that_is_saved_again(sample_tokenizer, fresh_process, tmp_path):
    """From a model with another head, and from a pipeline."""
    torch.manual_seed(0)
    model = XlmAlignForPreTraining(XlmAlignConfig(vocab_size=len(sample_tokenizer), **TINY)).eval()
    model.save_pretrained(tmp_path / "first")
    sample_tokenizer.save_pretrained(tmp_path / "first")
    expected = WordAlignmentPipeline(model, sample_tokenizer)(PAIRS, probabilities=True)
    assert any(one["links"] for one in expected) and not expected[2]["links"]
    again = str(tmp_path / "again")
    runs = fresh_process(FRESH, [str(tmp_path / "first")], again, PAIRS)
    runs += fresh_process(FRESH, [again + "_model", again + "_pipeline"], "", PAIRS)
    for found, module in runs:
        assert found == expected and "transformers_modules" in module


@pytest.fixture(scope="module")
def aligner(sample_tokenizer):
    torch.manual_seed(0)
    model = XlmAlignModel(XlmAlignConfig(vocab_size=len(sample_tokenizer), **TINY))
    return WordAlignmentPipeline(model, sample_tokenizer, device="cpu", method="mutual")


def test_pipeline_one_pair_a_list_and_anything_that_iterates(aligner):
    one = aligner(PAIRS[0])
    assert set(one) == {"source", "target", "links", "windows", "source_offsets", "target_offsets"}
    assert one["source"][-2:] == ["which", "?"] and one["target"][:4] == ["Weiß", "ein", "Modell", ","] and one["links"]
    assert [PAIRS[0][1][begin:end] for begin, end in one["target_offsets"]] == one["target"]
    assert aligner({"source": PAIRS[0][0], "target": PAIRS[0][1], "id": 7}) == one
    of_words = aligner((one["source"], one["target"]))
    assert of_words == {name: value for name, value in one.items() if "offsets" not in name}
    assert aligner([PAIRS[0], list(PAIRS[0])]) == [one, one]
    assert aligner([]) == [] and next(aligner(iter(PAIRS))) == one


def test_pipeline_parameters_and_those_of_a_call(aligner, sample_tokenizer):
    own = WordAligner(aligner.model, sample_tokenizer, method="softmax", layer=1, threshold=0.3)
    expected = next(own.align(PAIRS[:1], probabilities=True))
    options = dict(method="softmax", layer=1, threshold=0.3, probabilities=True)
    in_a_call = aligner(PAIRS[0], **options)
    assert in_a_call == vars(expected)
    from_the_start = WordAlignmentPipeline(aligner.model, sample_tokenizer, device="cpu", batch_size=5, **options)
    assert from_the_start.aligner.batch_size == 5 and from_the_start(PAIRS[0]) == in_a_call
    assert aligner(PAIRS[0]) != in_a_call and aligner.aligner.method == "mutual"  # the call left nothing behind
