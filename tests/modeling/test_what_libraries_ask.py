"""What from_pretrained and Trainer ask of every model."""

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments, XLMRobertaConfig, XLMRobertaForMaskedLM

from tests.conftest import PREFIXES
from tests.modeling.tiny import SIZES, class_of, far_from_initial

IDS = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 10, 2, 1, 1]])
LABELS = torch.tensor([[-100, 7, -100, -100, 9, -100], [-100, -100, 5, -100, -100, -100]])


@pytest.mark.parametrize("model_type", PREFIXES)
def test_save_pretrained_of_another_model_s_folder_has_the_files_of_the_class(model_type, tmp_path):
    cls = class_of(model_type, "ForPreTraining")
    model = cls(cls.config_class(**SIZES))
    other = class_of("metaxlm" if model_type == "veco" else "veco", "Model")
    model.save_pretrained(tmp_path / "ours")
    auto_map = other.from_pretrained(tmp_path / "ours").config.auto_map  # of its own files
    assert auto_map["AutoModel"] == f"{other.__module__.rpartition('.')[2]}.{other.__name__}"


@pytest.mark.parametrize("model_type", PREFIXES)
def test_trainer_metrics_read_the_logits_of_xlm_r(model_type, tmp_path):
    theirs = far_from_initial(XLMRobertaForMaskedLM(XLMRobertaConfig(**SIZES)))
    theirs.save_pretrained(tmp_path)
    ours = class_of(model_type, "ForMaskedLM").from_pretrained(tmp_path)
    batch = {"input_ids": IDS, "attention_mask": IDS.ne(1).long(), "labels": LABELS}
    rows = [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
    arguments = TrainingArguments(str(tmp_path / "trainer"), use_cpu=True, report_to=[], disable_tqdm=True)

    def predict(model):
        return Trainer(model, arguments, compute_metrics=lambda _: {}).predict(rows)

    expected = predict(theirs)
    output = predict(ours)
    assert output.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], abs=1e-5)
    is_real = batch["attention_mask"].bool().numpy()
    np.testing.assert_allclose(output.predictions[is_real], expected.predictions[is_real], atol=1e-4)
    np.testing.assert_array_equal(output.label_ids, expected.label_ids)
    # at |V| = 250,002 they would be the largest tensor of a step, and nobody reads them
    assert ours.train()(**batch).logits is None
