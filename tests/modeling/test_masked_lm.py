"""The head on predicted positions and the cross-entropy that never holds all logits."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from crosslingual_zoo.modeling import masked_lm
from crosslingual_zoo.modeling.configuration_metaxlm import MetaXlmConfig
from crosslingual_zoo.modeling.masked_lm import linear_cross_entropy
from crosslingual_zoo.modeling.modeling_metaxlm import MetaXlmForMaskedLM, MetaXlmForPreTraining
from tests.modeling.tiny import SIZES, batch_of, pair_row


def sub_batch(seed, rows=3):
    return batch_of([pair_row(seed + row, (18,), range(1 + row, 18, 4)) for row in range(rows)], "padded right")


class Largest(TorchDispatchMode):
    """Keeps the size of the largest tensor that an operation gives."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = function(*args, **kwargs or {})
        self.size = max([self.size, *(part.numel() for part in tree_leaves(given) if torch.is_tensor(part))])
        return given


def test_for_pretraining_loss_is_the_sum_over_the_predictions_of_the_call():
    model = MetaXlmForPreTraining(MetaXlmConfig(**SIZES)).eval()
    mlm, other = sub_batch(1), sub_batch(2, rows=2)
    output = model(mlm=mlm, of_another_name=other, objective_weights={"mlm": 0.5})
    losses = output.token_losses
    assert list(losses) == ["mlm", "of_another_name"]
    expected = 0.5 * losses["mlm"].sum() + losses["of_another_name"].sum()
    torch.testing.assert_close(output.loss_sum.detach(), expected)
    torch.testing.assert_close(output.loss.detach(), expected / sum(map(len, losses.values())))
    assert torch.equal(model(tlm=other).token_losses["tlm"], losses["of_another_name"])  # masked LM under any name
    assert model(mlm=mlm, return_loss=False).loss is None


@pytest.mark.parametrize("cls", [MetaXlmForPreTraining, MetaXlmForMaskedLM])
def test_for_pretraining_without_predictions_gives_zero_loss_and_gradient(cls):
    model = cls(MetaXlmConfig(**SIZES))
    batch = sub_batch(1)
    batch["labels"].fill_(-100)
    output = model(mlm=batch) if cls is MetaXlmForPreTraining else model(batch["input_ids"], labels=batch["labels"])
    output.loss.backward()
    assert output.loss.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("rows_at_once", [1, 4, 11, 100])  # chunks of one, several, exactly one, and room to spare
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2, 1.0])
def test_linear_cross_entropy_is_torch_s_whatever_fits(rows_at_once, label_smoothing, monkeypatch):
    monkeypatch.setattr(masked_lm, "LOGITS_AT_ONCE", 300 * rows_at_once)
    torch.manual_seed(0)
    hidden, labels, weights = torch.randn(11, 4, requires_grad=True), torch.randint(300, (11,)), torch.rand(11)
    leaves = hidden, nn.Parameter(torch.randn(300, 4)), nn.Parameter(torch.randn(300))
    logits = hidden @ leaves[1].T + leaves[2]
    expected_N = F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
    expected = torch.autograd.grad((expected_N * weights).sum(), leaves)
    for times in (1, 2):  # the second adds to the gradients that are there
        with Largest() as largest:
            loss, losses_N = linear_cross_entropy(*leaves, labels, weights, label_smoothing)
        assert largest.size <= 300 * max(rows_at_once, 4)  # logits of a chunk, or the gradient of the weights
        torch.testing.assert_close(losses_N, expected_N.detach())
        loss.backward()
        for tensor, gradient in zip(leaves, expected, strict=True):
            torch.testing.assert_close(tensor.grad, times * gradient, rtol=1e-4, atol=1e-5)
        with pytest.raises(RuntimeError, match="once"):
            loss.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_linear_cross_entropy_does_not_round_the_factor_of_a_loss(dtype):
    """A mean, and fp16's loss scaling, which is larger than any number in fp16; the gradient is that of float32."""
    torch.manual_seed(0)
    hidden, labels = 8 * torch.randn(5, 32), torch.randint(300, (5,))
    weight, bias = nn.Parameter(torch.randn(300, 32)), nn.Parameter(torch.randn(300))
    F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="sum").backward()
    expected, gradients = weight.grad, []
    for factor in (1.0, 1 / 7, 2.0**16 / 7):
        weight.grad = None
        with torch.autocast("cpu", dtype=dtype):
            loss, _ = linear_cross_entropy(hidden, weight, bias, labels)
        (loss * factor).backward()
        gradients.append(weight.grad / factor)
    assert (gradients[0] - expected).norm() < 0.1 * expected.norm()
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-5, atol=1e-8)
