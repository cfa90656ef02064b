"""LoRA by PEFT's own interface on every model: trained, saved, loaded on a fresh base, merged."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

pytest.importorskip("peft", reason="peft is not installed: pip install -e '.[dev]'")

from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402

from tests.conftest import PREFIXES  # noqa: E402

# PEFT asks the model for a property by its old name
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

# Every model with a sequence head, a backbone, and translation models, whose decoder shares weights or does not:
# the task, the queries and values to adapt, as hub_cards/README.md names them, and what the folder has.
CASES = {name: ("SEQ_CLS", ["query", "value"], {}) for name in PREFIXES}
CASES["xlm_align on modernbert"] = ("SEQ_CLS", ["Wqkv"], {})
TRANSLATION = dict(head="ForConditionalGeneration", decoder_layers=1, decoder_layer_indices=[1])
for tie in (True, False):
    CASES[f"veco tie={tie}"] = ("SEQ_2_SEQ_LM", ["query", "value"], TRANSLATION | {"tie_decoder": tie})


def is_used(key):
    """Cross-attention is part of VECO's encoder, and stays unused without another sequence."""
    return "roberta" not in key or ".crossattention." not in key


def train(model, **batch):
    """Takes three steps; returns which parameters moved."""
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(3):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {key for key, parameter in model.named_parameters() if not torch.equal(parameter, before[key])}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_peft_adapters_of_every_model_train_load_and_merge(name, zoo_model_dir, sample_tokenizer, tmp_path):
    task, targets, options = CASES[name]
    is_translation = task == "SEQ_2_SEQ_LM"
    auto_class = AutoModelForSeq2SeqLM if is_translation else AutoModelForSequenceClassification
    folder = zoo_model_dir(name.partition(" tie")[0], **options)
    texts = ["The house is small.", "Das Haus ist klein, und der Garten ist groß.", "x", "y z"]
    inputs = dict(sample_tokenizer(texts, padding=True, return_tensors="pt"))
    labels = torch.tensor([0, 1, 0, 1])
    if is_translation:
        labels = torch.tensor([[5, 7], [6, 7], [5, 7], [6, 7]])

    torch.manual_seed(0)
    base = auto_class.from_pretrained(folder, trust_remote_code=True)
    model = get_peft_model(base, LoraConfig(task_type=task, r=2, target_modules=targets)).train()
    trainable = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    assert is_translation or any(".classifier.modules_to_save." in key for key in trainable)
    assert train(model, labels=labels, **inputs) == {key for key in trainable if is_used(key)}

    model.save_pretrained(tmp_path)
    adapted = PeftModel.from_pretrained(auto_class.from_pretrained(folder, trust_remote_code=True), tmp_path).eval()
    if is_translation:
        inputs["decoder_input_ids"] = torch.tensor([[2, 5, 7]] * 4)
    with torch.no_grad():
        expected = model.eval()(**inputs)[0]
        loaded = adapted(**inputs)[0]
        merged = adapted.merge_and_unload()(**inputs)[0]
    torch.testing.assert_close(loaded, expected, atol=1e-5, rtol=1e-5)
    if options.get("tie_decoder", False):
        # each side has LoRA of its own, and one weight, which cannot hold both
        assert (merged - loaded).abs().max() > 1e-3
    else:
        torch.testing.assert_close(merged, loaded, atol=1e-4, rtol=1e-4)
