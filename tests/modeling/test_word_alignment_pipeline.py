"""`pipeline("word-alignment")`: from folders in fresh processes, and its conventions."""

import pytest
import torch

from crosslingual_zoo.modeling.modeling_xlm_align import XlmAlignConfig, XlmAlignForPreTraining, XlmAlignModel
from crosslingual_zoo.modeling.pipeline_word_alignment import WordAlignmentPipeline
from crosslingual_zoo.modeling.word_alignment import WordAligner
from tests.conftest import TINY

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
outputs = []
for folder in folders:
    aligner = pipeline("word-alignment", model=folder, trust_remote_code=True)
    outputs.append([aligner(pairs, probabilities=True), type(aligner.model).__module__])
if again:
    model = AutoModelForTokenClassification.from_pretrained(folder, trust_remote_code=True)
    model.save_pretrained(again + "_model")
    aligner.tokenizer.save_pretrained(again + "_model")
    aligner.save_pretrained(again + "_pipeline")
torch.save(outputs, sys.argv[1])
"""


@pytest.mark.slow
def test_pipeline_of_a_folder_that_is_saved_again(sample_tokenizer, fresh_process, tmp_path):
    """From a model with another head, and from a pipeline."""
    torch.manual_seed(0)
    model = XlmAlignForPreTraining(XlmAlignConfig(vocab_size=len(sample_tokenizer), **TINY)).eval()
    model.save_pretrained(tmp_path / "first")
    sample_tokenizer.save_pretrained(tmp_path / "first")
    expected = WordAlignmentPipeline(model, sample_tokenizer)(PAIRS, probabilities=True)
    assert expected[0]["links"]
    assert not expected[2]["links"]
    again = str(tmp_path / "again")
    runs = fresh_process(FRESH, [str(tmp_path / "first")], again, PAIRS)
    runs += fresh_process(FRESH, [again + "_model", again + "_pipeline"], "", PAIRS)
    for outputs, module in runs:
        assert outputs == expected
        assert "transformers_modules" in module


@pytest.fixture(scope="module")
def aligner(sample_tokenizer):
    """A pipeline of a tiny model."""
    torch.manual_seed(0)
    model = XlmAlignModel(XlmAlignConfig(vocab_size=len(sample_tokenizer), **TINY))
    return WordAlignmentPipeline(model, sample_tokenizer, device="cpu", method="mutual")


def test_pipeline_of_one_pair(aligner):
    output = aligner(PAIRS[0])
    assert set(output) == {"source", "target", "links", "windows", "source_offsets", "target_offsets"}
    assert output["source"][-2:] == ["which", "?"]
    assert output["target"][:4] == ["Weiß", "ein", "Modell", ","]
    assert output["links"]
    _, target = PAIRS[0]
    assert [target[begin:end] for begin, end in output["target_offsets"]] == output["target"]


def test_pipeline_takes_dictionaries_words_lists_and_anything_that_iterates(aligner):
    source, target = PAIRS[0]
    expected = aligner((source, target))
    assert aligner({"source": source, "target": target, "id": 7}) == expected
    of_words = aligner((expected["source"], expected["target"]))
    assert of_words == {name: value for name, value in expected.items() if "offsets" not in name}
    assert aligner([(source, target), [source, target]]) == [expected, expected]
    assert aligner([]) == []
    assert next(aligner(iter(PAIRS))) == expected


def test_pipeline_parameters_and_those_of_a_call(aligner, sample_tokenizer):
    by_hand = WordAligner(aligner.model, sample_tokenizer, method="softmax", layer=1, threshold=0.3)
    expected = vars(next(by_hand.align(PAIRS[:1], probabilities=True)))
    options = dict(method="softmax", layer=1, threshold=0.3, probabilities=True)
    assert aligner(PAIRS[0], **options) == expected
    with_options = WordAlignmentPipeline(aligner.model, sample_tokenizer, device="cpu", batch_size=5, **options)
    assert with_options.aligner.batch_size == 5
    assert with_options(PAIRS[0]) == expected
    assert aligner(PAIRS[0]) != expected  # the call left nothing behind
    assert aligner.aligner.method == "mutual"
