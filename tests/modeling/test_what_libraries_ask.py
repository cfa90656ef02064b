"""What torch.compile, from_pretrained and Trainer ask of every model."""

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments, XLMRobertaConfig, XLMRobertaForMaskedLM

from tests.modeling.tiny import PREFIXES, SIZES, class_of, far_from_initial

IDS = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 10, 2, 1, 1]])
LABELS = {
    "ForMaskedLM": {"labels": torch.tensor([[-100, 7, -100, -100, 9, -100], [-100, -100, 5, -100, -100, -100]])},
    "ForSequenceClassification": {"labels": torch.tensor([0, 1])},
    "ForTokenClassification": {"labels": torch.tensor([[-100, 1, 0, 1, 1, -100], [-100, 1, 0, -100, -100, -100]])},
    "ForQuestionAnswering": {"start_positions": torch.tensor([1, 1]), "end_positions": torch.tensor([2, 2])},
}
CASES = [(name, "ForMaskedLM") for name in PREFIXES] + [("ernie_m", head) for head in LABELS if head != "ForMaskedLM"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("model_type", "head"), CASES)
def test_compile_a_training_step_with_labels_is_one_graph(model_type, head):
    cls = class_of(model_type, head)
    model = cls(cls.config_class(**SIZES)).train()
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
    batch = {"input_ids": IDS, "attention_mask": IDS.ne(1).long(), **LABELS["ForMaskedLM"]}
    rows = [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
    arguments = TrainingArguments(str(tmp_path / "trainer"), use_cpu=True, report_to=[], disable_tqdm=True)
    seen, losses = [], []
    for model in (theirs, ours):
        trainer = Trainer(model, arguments, eval_dataset=rows, compute_metrics=lambda found: seen.append(found) or {})
        losses.append(trainer.evaluate()["eval_loss"])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    real = batch["attention_mask"].bool().numpy()
    np.testing.assert_allclose(seen[1].predictions[real], seen[0].predictions[real], atol=1e-4)
    np.testing.assert_array_equal(seen[1].label_ids, seen[0].label_ids)
    # at |V| = 250,002 they would be the largest tensor of a step, and nobody reads them
    assert ours.train()(**batch).logits is None and ours.eval()(**batch, output_logits=False).logits is None
