"""The gradient of the vocabulary's matrix, which embeddings and head add to in place: that of plain autograd."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from modeling import masked_lm
from modeling.configuration_metaxlm import MetaXlmConfig
from modeling.masked_lm import linear_cross_entropy
from modeling.modeling_metaxlm import MetaXlmForPreTraining
from tests.modeling.tiny import SIZES


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 300, (4, 12), generator=generator)
    ids[1, 9:] = ids[3, 4:] = 1
    labels = ids.where((torch.rand(ids.shape, generator=generator) < 0.4) & ids.ne(1), -100)
    return {"input_ids": ids, "labels": labels, "attention_mask": ids.ne(1).long()}


def plain(model):
    """The same model with torch's own embedding and cross-entropy over all logits."""

    def loss(states_NH, labels_N, row_weights_N, label_smoothing=0.0):
        logits = model.lm_head(states_NH).float()
        losses = F.cross_entropy(logits, labels_N, reduction="none")
        return (losses * row_weights_N).sum(), losses.detach()

    model.lm_head.loss = loss
    words = model.roberta.embeddings.word_embeddings
    words.forward = lambda ids: F.embedding(ids, words.weight, padding_idx=words.padding_idx)
    return model


def make(skip_padding=False):
    torch.manual_seed(0)
    model = MetaXlmForPreTraining(MetaXlmConfig(**SIZES | dict(vocab_size=300))).train()
    model.set_skip_padding(skip_padding)
    return model


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("skip_padding", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_accumulated_gradients_are_those_of_autograd(skip_padding, autocast):
    ours, unmarked, expected = make(skip_padding), make(skip_padding), plain(make())
    matrix, matrices = ours.get_input_embeddings().weight, []
    matrix.adds_in_place = True
    tolerance = {"rtol": 0.05, "atol": 0.02} if autocast else {"rtol": 1e-4, "atol": 1e-6}
    for step in range(3):  # the first makes the gradient, the others add to it
        for model in (ours, unmarked, expected):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(mlm=batch(step)).loss_sum
            (loss / 7).backward()
        for model in (ours, unmarked):
            torch.testing.assert_close(gradients(model), gradients(expected), **tolerance)
        matrices.append(matrix.grad.data_ptr())
    assert len(set(matrices)) == 1


def test_nothing_of_the_vocabularys_size_is_made_where_the_matrix_is_marked(monkeypatch):
    model, made, zeros_like = make(), [], torch.zeros_like
    matrix = model.get_input_embeddings().weight
    matrix.adds_in_place, matrix.grad = True, torch.zeros_like(matrix)
    monkeypatch.setattr(torch, "zeros_like", lambda t, **kw: made.append(t.shape) or zeros_like(t, **kw))
    model(mlm=batch()).loss_sum.backward()
    assert matrix.shape not in made and matrix.grad.any()


@pytest.mark.parametrize("rows_at_once", [1, 4, 11, 100])  # chunks of one, several, exactly one, and room to spare
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2, 1.0])
def test_losses_and_gradients_are_torch_s_whatever_fits(rows_at_once, label_smoothing, monkeypatch):
    monkeypatch.setattr(masked_lm, "LOGITS_AT_ONCE", 300 * rows_at_once)
    torch.manual_seed(0)
    hidden, labels, weights = torch.randn(11, 32, requires_grad=True), torch.randint(300, (11,)), torch.rand(11)
    leaves = hidden, nn.Parameter(torch.randn(300, 32)), nn.Parameter(torch.randn(300))
    logits = hidden @ leaves[1].T + leaves[2]
    expected_N = F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
    expected = torch.autograd.grad((expected_N * weights).sum(), leaves)
    for times in (1, 2):  # the second adds to the gradients that are there
        loss, losses_N = linear_cross_entropy(*leaves, labels, weights, label_smoothing)
        torch.testing.assert_close(losses_N, expected_N.detach())
        loss.backward()
        for tensor, gradient in zip(leaves, expected, strict=True):
            torch.testing.assert_close(tensor.grad, times * gradient, rtol=1e-4, atol=1e-5)
        with pytest.raises(RuntimeError, match="once"):
            loss.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_factor_of_a_loss_is_not_rounded(dtype):
    """A mean, and fp16's loss scaling, which is larger than any number in fp16."""
    torch.manual_seed(0)
    hidden, labels = 8 * torch.randn(5, 32), torch.randint(300, (5,))
    weight, bias = nn.Parameter(torch.randn(300, 32)), nn.Parameter(torch.randn(300))
    gradients = []
    for factor in (1.0, 1 / 7, 2.0**16 / 7):
        weight.adds_in_place, weight.grad = True, torch.zeros_like(weight)
        with torch.autocast("cpu", dtype=dtype):
            loss, _ = linear_cross_entropy(hidden, weight, bias, labels)
        (loss * factor).backward()
        gradients.append(weight.grad / factor)
    assert gradients[0].any()
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-5, atol=1e-8)
