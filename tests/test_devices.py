"""Tensors of a model, the training loop or the aligner name their device. On a GPU, one of the CPU is an error."""

import ast
from pathlib import Path

import pytest
import torch

from crosslingual_zoo.modeling.word_alignment import WordAligner

ROOT = Path(__file__).parents[1]
CONSTRUCTORS = "tensor scalar_tensor empty zeros ones full arange linspace eye tril_indices triu_indices"
CONSTRUCTORS = {f"torch.{name}" for name in f"{CONSTRUCTORS} rand randn randint randperm".split()}
ON_CPU = {"masked_lm.py", "pair_aligner.py", "word_tokens.py", "teacher.py"}  # by intent, and moved


@pytest.mark.parametrize("package", ["modeling", "pretraining"])
def test_devices_are_named(package):
    for path in (ROOT / package).rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        made = [call for call in calls if ast.unparse(call.func) in CONSTRUCTORS and path.name not in ON_CPU]
        assert [call.lineno for call in made if "device" not in {of.arg for of in call.keywords}] == [], path


def test_devices_of_the_aligner_s_vectors(zoo_model_dir, sample_tokenizer):
    """What is not named would be made on the device "meta" here."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(zoo_model_dir("xlm_align"), trust_remote_code=True)
    aligner = WordAligner(model, sample_tokenizer)
    encode = aligner._encode

    def encode_elsewhere(*arguments):
        with torch.device("meta"):
            return encode(*arguments)

    aligner._encode = encode_elsewhere
    pairs = [("The house is small.", "Das Haus ist klein."), ("Yes", "Ja, das ist so.")]
    assert len(list(aligner.align_layers(pairs, [0, 1], {"mutual": {}}))) == 2
