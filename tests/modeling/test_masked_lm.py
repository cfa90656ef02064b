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
from tests.modeling.tiny import SIZES, batch_of, gradients, pair_row


def sub_batch(seed, rows=3):
    return batch_of([pair_row(seed + row, (18,), range(1 + row, 18, 4)) for row in range(rows)], "padded right")


class Largest(TorchDispatchMode):
    """Keeps the size of the largest tensor that an operation gives."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **kwargs or {})
        for leaf in tree_leaves(output):
            if torch.is_tensor(leaf):
                self.size = max(self.size, leaf.numel())
        return output


def test_for_pretraining_loss_is_the_sum_over_the_predictions_of_the_call():
    model = MetaXlmForPreTraining(MetaXlmConfig(**SIZES)).eval()
    mlm = sub_batch(1)
    other = sub_batch(2, rows=2)
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
    if cls is MetaXlmForPreTraining:
        output = model(mlm=batch)
    else:
        output = model(batch["input_ids"], labels=batch["labels"])
    assert output.loss.item() == 0
    assert not any(gradient.any() for gradient in gradients(model, output.loss).values())


@pytest.mark.parametrize("rows_at_once", [1, 4, 11, 100])  # chunks of one, several, exactly one, and room to spare
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2, 1.0])
def test_linear_cross_entropy_is_torch_s_whatever_fits(rows_at_once, label_smoothing, monkeypatch):
    monkeypatch.setattr(masked_lm, "LOGITS_AT_ONCE", 300 * rows_at_once)
    torch.manual_seed(0)
    hidden = torch.randn(11, 4, requires_grad=True)
    labels = torch.randint(300, (11,))
    weights = torch.rand(11)
    matrix = nn.Parameter(torch.randn(300, 4))
    bias = nn.Parameter(torch.randn(300))
    leaves = (hidden, matrix, bias)
    logits = F.linear(hidden, matrix, bias)
    expected_N = F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
    expected_gradients = torch.autograd.grad((expected_N * weights).sum(), leaves)
    for times in (1, 2):  # the second adds to the gradients of the first
        with Largest() as largest:
            loss, losses_N = linear_cross_entropy(*leaves, labels, weights, label_smoothing)
        assert largest.size <= 300 * max(rows_at_once, 4)  # logits of a chunk, or the gradient of the weights
        torch.testing.assert_close(losses_N, expected_N.detach())
        loss.backward()
        for leaf, gradient in zip(leaves, expected_gradients, strict=True):
            torch.testing.assert_close(leaf.grad, times * gradient, rtol=1e-4, atol=1e-5)
        with pytest.raises(RuntimeError, match="once"):
            loss.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_linear_cross_entropy_does_not_round_the_factor_of_a_loss(dtype):
    """A mean, and fp16's loss scaling, which is larger than any number in fp16; the gradient is that of float32."""
    torch.manual_seed(0)
    hidden = 8 * torch.randn(5, 32)
    labels = torch.randint(300, (5,))
    weight = nn.Parameter(torch.randn(300, 32))
    bias = nn.Parameter(torch.randn(300))
    loss = F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="sum")
    [in_float32] = torch.autograd.grad(loss, weight)

    def gradient_of(factor):
        weight.grad = None
        with torch.autocast("cpu", dtype=dtype):
            loss, _ = linear_cross_entropy(hidden, weight, bias, labels)
        (loss * factor).backward()
        return weight.grad / factor

    expected = gradient_of(1.0)
    assert (expected - in_float32).norm() < 0.1 * in_float32.norm()
    for factor in (1 / 7, 2.0**16 / 7):
        torch.testing.assert_close(gradient_of(factor), expected, rtol=1e-5, atol=1e-8)
