"""What torch.compile and from_pretrained ask of every model."""

import importlib

import pytest
import torch
from transformers import ElectraConfig, ElectraModel, XLMRobertaConfig, XLMRobertaForMaskedLM

PREFIXES = {"veco": "Veco", "ernie_m": "ErnieM", "xlm_align": "XlmAlign", "metaxlm": "MetaXlm"}
IDS = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 10, 2, 1, 1]])
LABELS = {
    "ForMaskedLM": {"labels": torch.tensor([[-100, 7, -100, -100, 9, -100], [-100, -100, 5, -100, -100, -100]])},
    "ForSequenceClassification": {"labels": torch.tensor([0, 1])},
    "ForTokenClassification": {"labels": torch.tensor([[-100, 1, 0, 1, 1, -100], [-100, 1, 0, -100, -100, -100]])},
    "ForQuestionAnswering": {"start_positions": torch.tensor([1, 1]), "end_positions": torch.tensor([2, 2])},
}
CASES = [(name, "ForMaskedLM") for name in PREFIXES] + [("ernie_m", head) for head in LABELS if head != "ForMaskedLM"]


def class_of(model_type: str, head: str):
    return getattr(importlib.import_module(f"modeling.modeling_{model_type}"), PREFIXES[model_type] + head)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_a_training_step_with_labels_is_one_graph(model_type, head, tiny):
    cls = class_of(model_type, head)
    settings = tiny | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = cls(cls.config_class(**settings)).train()
    batch = {"input_ids": IDS, "attention_mask": IDS.ne(1).long(), **LABELS[head]}
    found = []
    with torch.compiler.set_stance("default"):
        for step in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
            model.zero_grad()
            loss = step(**batch).loss
            loss.backward()
            found.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("model_type", PREFIXES)
def test_only_weights_that_fit_are_loaded(model_type, tiny, tmp_path, caplog):
    cls = class_of(model_type, "ForPreTraining")
    ElectraModel(ElectraConfig(**tiny)).save_pretrained(tmp_path / "electra")
    with pytest.raises(ValueError, match="'electra'.* xlm-roberta"):
        cls.from_pretrained(tmp_path / "electra")
    XLMRobertaForMaskedLM(XLMRobertaConfig(**tiny)).save_pretrained(tmp_path / "xlmr")
    model = cls.from_pretrained(tmp_path / "xlmr")
    assert "You are using a model of type" not in caplog.text
    assert model.config.model_type == model_type
    other = class_of("metaxlm" if model_type == "veco" else "veco", "Model")
    model.save_pretrained(tmp_path / "ours")
    auto_map = other.from_pretrained(tmp_path / "ours").config.auto_map  # of its own files
    assert auto_map["AutoModel"] == f"{other.__module__.rpartition('.')[2]}.{other.__name__}"
