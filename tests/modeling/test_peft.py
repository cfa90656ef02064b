"""LoRA by PEFT's own interface on every model: trained, saved, loaded on a fresh base in a fresh process, merged."""

import pytest
import torch
import transformers

pytest.importorskip("peft", reason="peft is not installed: pip install -e '.[dev]'")

from peft import LoraConfig, get_peft_model  # noqa: E402

from tests.modeling.tiny import PREFIXES  # noqa: E402

# PEFT asks the model for a property by its old name
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

# Every model with a sequence head, a backbone, and translation models, whose decoder shares weights or does not:
# Auto class, and the queries and values to adapt, as hub_cards/README.md names them.
CASES = {name: ("AutoModelForSequenceClassification", ["query", "value"]) for name in PREFIXES}
CASES["xlm_align on modernbert"] = ("AutoModelForSequenceClassification", ["Wqkv"])
CASES |= {name: ("AutoModelForSeq2SeqLM", ["query", "value"]) for name in ("veco_tied", "veco_untied")}

PROGRAM = """
import json, sys, warnings
import peft, torch, transformers
from peft import PeftModel
warnings.filterwarnings("ignore", message=".is_gradient_checkpointing. is deprecated", category=FutureWarning)
cases, inputs = map(json.loads, sys.argv[2:])
inputs = {name: torch.tensor(value) for name, value in inputs.items()}
found = {}
for name, (auto_class, folder, adapter, further) in cases.items():
    base = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)
    model = PeftModel.from_pretrained(base, adapter).eval()
    further = {name: torch.tensor(value) for name, value in further.items()}
    with torch.no_grad():
        loaded = model(**inputs, **further)[0]
        merged = model.merge_and_unload()
        found[name] = loaded, merged(**inputs, **further)[0], type(merged).__name__
torch.save(found, sys.argv[1])
"""


@pytest.fixture(scope="module")
def folders(zoo_model_dir, sample_tokenizer, tmp_path_factory):
    """Of each model as pre-training leaves it, and of translation models, whose decoder shares weights or does not."""
    from modeling.modeling_veco import VecoForConditionalGeneration
    from pretraining.checkpoints import save_model_folder

    made = {name: zoo_model_dir(name) for name in CASES if "tied" not in name}
    for name, tie_decoder in {"veco_tied": True, "veco_untied": False}.items():
        made[name] = tmp_path_factory.mktemp(name) / "model"
        model = VecoForConditionalGeneration.from_encoder(made["veco"], decoder_layers=1, tie_decoder=tie_decoder)
        save_model_folder(model, sample_tokenizer, made[name])
    return made


def trained(name, folder, rows, out):
    """A model with LoRA after a few steps, saved; what moved is LoRA and the head."""
    auto_class, targets = CASES[name]
    is_translation = "tied" in name
    torch.manual_seed(0)
    base = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)
    task = "SEQ_2_SEQ_LM" if is_translation else "SEQ_CLS"
    model = get_peft_model(base, LoraConfig(task_type=task, r=2, target_modules=targets)).train()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert is_translation or any(".classifier.modules_to_save." in name for name in trainable)
    labels = torch.tensor([[5 + row % 2, 7] if is_translation else row % 2 for row in range(4)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(3):
        model(**rows, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    # cross-attention is part of VECO's encoder, and stays unused without another sequence
    assert moved == {name for name in trainable if "roberta" not in name or ".crossattention." not in name}
    model.save_pretrained(out / "adapter")
    return model.eval(), auto_class


@pytest.mark.slow
def test_peft_adapters_of_every_model_train_load_and_merge(folders, sample_tokenizer, fresh_process, tmp_path):
    texts = ["The house is small.", "Das Haus ist klein, und der Garten ist groß.", "x", "y z"]
    inputs = dict(sample_tokenizer(texts, padding=True, return_tensors="pt"))
    expected, cases = {}, {}
    for name in CASES:
        model, auto_class = trained(name, folders[name], inputs, tmp_path / name)
        further = {"decoder_input_ids": [[2, 5, 7]] * len(texts)} if "tied" in name else {}
        with torch.no_grad():
            expected[name] = model(**inputs, **{key: torch.tensor(value) for key, value in further.items()})[0]
        cases[name] = (auto_class, str(folders[name]), str(tmp_path / name / "adapter"), further)
    for name, (loaded, merged, class_name) in fresh_process(
        PROGRAM, cases, {name: column.tolist() for name, column in inputs.items()}
    ).items():
        torch.testing.assert_close(loaded, expected[name], atol=1e-5, rtol=1e-5, msg=name)
        assert not class_name.startswith("Peft")
        if name == "veco_tied":
            # both sides have LoRA of their own, and one weight, which cannot hold both
            assert (merged - loaded).abs().max() > 1e-3
        else:
            torch.testing.assert_close(merged, expected[name], atol=1e-4, rtol=1e-4, msg=name)
