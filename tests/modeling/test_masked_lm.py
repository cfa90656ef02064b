"""The head on predicted positions and the cross-entropy that never holds all logits."""

import json
import subprocess
import sys

import pytest
import torch

from modeling.configuration_metaxlm import MetaXlmConfig
from modeling.modeling_metaxlm import MetaXlmForMaskedLM, MetaXlmForPreTraining
from tests.modeling.tiny import SIZES

TINY = SIZES | dict(vocab_size=97, hidden_size=48, num_hidden_layers=2, max_position_embeddings=40)


def sub_batch(seed, rows=3, length=20, share=0.2):
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(4, 97, (rows, length), generator=generator)
    labels = torch.where(torch.rand(rows, length, generator=generator) < share, input_ids, -100)
    return {"input_ids": input_ids, "labels": labels, "attention_mask": torch.ones_like(input_ids)}


PEAK = """
import json, resource, sys, torch
sys.path[:0] = [sys.argv[2]]
from modeling.masked_lm import linear_cross_entropy
torch.manual_seed(0)
V, H, N = 250_002, 768, 8 * 128
hidden, weight, bias = torch.randn(N, H, requires_grad=True), torch.randn(V, H) / 30, torch.zeros(V)
weight.requires_grad_()
labels = torch.randint(0, V, (N,))
predicted = torch.rand(N) < 0.15
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[1] == "ours":
    loss, _ = linear_cross_entropy(hidden[predicted], weight, bias, labels[predicted])
else:
    loss = torch.nn.functional.cross_entropy(hidden @ weight.T + bias, labels.where(predicted, -100), reduction="sum")
loss.backward()
print(json.dumps({"loss": loss.item(), "bytes": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)}))
"""


@pytest.mark.slow
def test_peak_memory_is_a_third_of_full_logits(pytestconfig):
    """8 x 128 tokens, |V| = 250,002, base width: bytes above inputs and weights, gradients included."""

    def peak(which):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, which, str(pytestconfig.rootpath)], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    ours, full = peak("ours"), peak("full")
    assert abs(ours["loss"] - full["loss"]) < 1e-5 * full["loss"]
    assert ours["bytes"] <= full["bytes"] / 3, (ours, full)


def test_the_loss_is_the_sum_over_the_predictions_of_the_call():
    model = MetaXlmForPreTraining(MetaXlmConfig(**TINY)).eval()
    mlm, other = sub_batch(1), sub_batch(2, rows=2, length=30)
    output = model(mlm=mlm, of_another_name=other, objective_weights={"mlm": 0.5})
    losses = output.token_losses
    assert list(losses) == ["mlm", "of_another_name"]
    expected = 0.5 * losses["mlm"].sum() + losses["of_another_name"].sum()
    torch.testing.assert_close(output.loss_sum.detach(), expected)
    torch.testing.assert_close(output.loss.detach(), expected / sum(map(len, losses.values())))
    assert torch.equal(model(tlm=other).token_losses["tlm"], losses["of_another_name"])  # masked LM under any name
    assert model(mlm=mlm, return_loss=False).loss is None


@pytest.mark.parametrize("cls", [MetaXlmForPreTraining, MetaXlmForMaskedLM])
def test_a_batch_without_predictions_gives_zero_loss_and_gradient(cls):
    model = cls(MetaXlmConfig(**TINY))
    batch = sub_batch(1)
    batch["labels"].fill_(-100)
    output = model(mlm=batch) if cls is MetaXlmForPreTraining else model(**batch)
    output.loss.backward()
    assert output.loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_errors_name_the_field():
    model, pretraining = MetaXlmForMaskedLM(MetaXlmConfig(**TINY)), MetaXlmForPreTraining(MetaXlmConfig(**TINY))
    for named, call in (
        ("sub-batch", lambda: pretraining()),
        ("38 positions", lambda: model(torch.full((1, 39), 5))),
        ("input_ids", lambda: model()),
        ("num_attention_heads", lambda: MetaXlmConfig(hidden_size=50, num_attention_heads=4)),
    ):
        with pytest.raises(ValueError, match=named):
            call()
