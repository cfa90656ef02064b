"""LoRA by PEFT's own interface on every model: trained, saved, loaded on a fresh base in a fresh process, merged."""

import pytest
import torch
import transformers
from transformers import Trainer, TrainingArguments

pytest.importorskip("peft", reason="peft is not installed: pip install -e '.[dev]'")

from peft import LoraConfig, get_peft_model  # noqa: E402

from tests.modeling.tiny import PREFIXES  # noqa: E402

# PEFT asks the model for a property by its old name
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")

# Queries and values, as hub_cards/README.md names them: of XLM-R's shape, and of backbones.
TARGETS = {
    "": ["query", "value"],
    "modernbert": ["Wqkv"],
    "eurobert": ["q_proj", "v_proj"],
    "deberta-v2": ["query_proj", "value_proj"],
}
BACKBONES = ("xlm_align on modernbert", "metaxlm on eurobert", "metaxlm on deberta-v2")
# task -> Auto class, what is trained in addition to LoRA, labels of a row of T tokens
HEADS = {
    "SEQ_CLS": ("AutoModelForSequenceClassification", "classifier", lambda row, T: {"labels": row % 2}),
    "TOKEN_CLS": (
        "AutoModelForTokenClassification",
        "classifier",
        lambda row, T: {"labels": [position % 2 for position in range(T)]},
    ),
    "QUESTION_ANS": (
        "AutoModelForQuestionAnswering",
        "qa_outputs",
        lambda row, T: {"start_positions": 1 + row % 2, "end_positions": 2},
    ),
    "FEATURE_EXTRACTION": ("AutoModel", None, None),
    "SEQ_2_SEQ_LM": ("AutoModelForSeq2SeqLM", None, lambda row, T: {"labels": [5 + row % 2, 7, 2]}),
}
# The heads are the same code in all models except for ERNIE-M's, which reads the pooler.
CASES = [(name, "SEQ_CLS") for name in PREFIXES]
CASES += [("veco", "TOKEN_CLS"), ("ernie_m", "QUESTION_ANS"), ("xlm_align", "FEATURE_EXTRACTION")]
CASES += [(name, "TOKEN_CLS") for name in BACKBONES]
CASES += [("metaxlm", "TOKEN_CLS"), ("veco_tied", "SEQ_2_SEQ_LM"), ("veco_untied", "SEQ_2_SEQ_LM")]

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


class StatesTrainer(Trainer):
    """Trains an encoder without a head, to smaller states."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        return model(**inputs).last_hidden_state[:, 0].pow(2).mean()


@pytest.fixture(scope="module")
def folders(zoo_model_dir, sample_tokenizer, tmp_path_factory):
    """Of each model as pre-training leaves it, and of translation models, whose decoder shares weights or does not."""
    from modeling.modeling_veco import VecoForConditionalGeneration
    from pretraining.checkpoints import save_model_folder

    made = {name: zoo_model_dir(name) for name in (*PREFIXES, *BACKBONES)}
    for name, tie_decoder in {"veco_tied": True, "veco_untied": False}.items():
        made[name] = tmp_path_factory.mktemp(name) / "model"
        model = VecoForConditionalGeneration.from_encoder(made["veco"], decoder_layers=1, tie_decoder=tie_decoder)
        save_model_folder(model, sample_tokenizer, made[name])
    return made


def trained(name, folder, task, rows, out):
    """A model with LoRA after a few steps, saved; what moved is LoRA and the head."""
    auto_class, head, labels_of = HEADS[task]
    torch.manual_seed(0)
    base = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True)
    targets = TARGETS[name.partition(" on ")[2]]
    model = get_peft_model(base, LoraConfig(task_type=task, r=2, target_modules=targets))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or "modules_to_save" in name for name in trainable)
    assert head is None or any(f".{head}.modules_to_save." in name for name in trainable)
    T = len(rows["input_ids"][0])
    data = [
        {name: column[row] for name, column in rows.items()} | (labels_of(row, T) if labels_of else {})
        for row in range(len(rows["input_ids"]))
    ]
    arguments = TrainingArguments(
        str(out / "trainer"), max_steps=3, per_device_train_batch_size=4, learning_rate=0.05, use_cpu=True,
        save_strategy="no", report_to=[], disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    (Trainer if labels_of else StatesTrainer)(model, arguments, train_dataset=data).train()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    # cross-attention is part of VECO's encoder, and stays unused without another sequence
    used = {name for name in trainable if "roberta" not in name or ".crossattention." not in name}
    assert moved == used
    model.save_pretrained(out / "adapter")
    return model.eval(), auto_class


@pytest.mark.parametrize("name", PREFIXES)
def test_peft_is_told_which_modules_to_adapt(name, zoo_model_dir):
    """Its own tables stay unchanged, in any order of imports."""
    model = transformers.AutoModel.from_pretrained(zoo_model_dir(name), trust_remote_code=True)
    with pytest.raises(ValueError, match="target_modules"):
        get_peft_model(model, LoraConfig())
    adapted = get_peft_model(model, LoraConfig(target_modules=TARGETS[""]))
    assert any("lora_" in name for name, _ in adapted.named_parameters())


@pytest.mark.slow
def test_adapters_of_every_model_train_load_and_merge(folders, sample_tokenizer, fresh_process, tmp_path):
    texts = ["The house is small.", "Das Haus ist klein, und der Garten ist groß.", "x", "y z"]
    rows = {
        name: column.tolist() for name, column in sample_tokenizer(texts, padding=True, return_tensors="pt").items()
    }
    inputs = {name: torch.tensor(column) for name, column in rows.items()}
    expected, cases = {}, {}
    for name, task in CASES:
        case, out = f"{name} {task}", tmp_path / name / task
        model, auto_class = trained(name, folders[name], task, rows, out)
        further = {"decoder_input_ids": [[2, 5, 7]] * len(texts)} if task == "SEQ_2_SEQ_LM" else {}
        with torch.no_grad():
            expected[case] = model(**inputs, **{key: torch.tensor(value) for key, value in further.items()})[0]
        cases[case] = (auto_class, str(folders[name]), str(out / "adapter"), further)
    for case, (loaded, merged, class_name) in fresh_process(PROGRAM, cases, rows).items():
        torch.testing.assert_close(loaded, expected[case], atol=1e-5, rtol=1e-5, msg=case)
        assert not class_name.startswith("Peft")
        if case.startswith("veco_tied"):
            # both sides have LoRA of their own, and one weight, which cannot hold both
            assert (merged - loaded).abs().max() > 1e-3
        else:
            torch.testing.assert_close(merged, expected[case], atol=1e-4, rtol=1e-4, msg=case)
