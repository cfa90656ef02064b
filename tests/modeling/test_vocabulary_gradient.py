"""The gradient of the vocabulary's matrix, which embeddings and head add to in place: that of plain autograd."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from modeling import masked_lm
from modeling.configuration_metaxlm import MetaXlmConfig
from modeling.embeddings import WordEmbeddings, grad_to_add_to
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
def test_accumulated_gradients_are_those_of_autograd(skip_padding, autocast, monkeypatch):
    monkeypatch.setattr(masked_lm, "ROWS_CAST_AT_ONCE", 77)  # tiles that do not divide the vocabulary
    ours, expected = make(skip_padding), plain(make())
    matrices = []
    for step in range(3):  # the first makes the gradient, the others add to it
        for model in (ours, expected):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(mlm=batch(step)).loss_sum
            (loss / 7).backward()
        tolerance = {"rtol": 0.05, "atol": 0.02} if autocast else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(gradients(ours), gradients(expected), **tolerance)
        matrices.append(ours.roberta.embeddings.word_embeddings.weight.grad.data_ptr())
    assert len(set(matrices)) == 1


def test_no_second_matrix_is_made(monkeypatch):
    """Once the gradient is there, neither end of the model makes anything of the vocabulary's size."""
    model = make()
    model(mlm=batch()).loss_sum.backward()
    made = []
    zeros_like = torch.zeros_like
    monkeypatch.setattr(torch, "zeros_like", lambda t, **kw: made.append(t.shape) or zeros_like(t, **kw))
    dense = torch.ops.aten.embedding_dense_backward
    monkeypatch.setattr(torch.ops.aten, "embedding_dense_backward", lambda *a: made.append("dense") or dense(*a))
    model(mlm=batch()).loss_sum.backward()
    assert torch.Size([300, 32]) not in made and "dense" not in made
    model.zero_grad()
    model(mlm=batch()).loss_sum.backward()
    assert torch.Size([300, 32]) in made and "dense" in made


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


def found_in_backward(table, ids):
    """What `grad_to_add_to` says in a backward pass through a table."""
    found = []
    words = table(ids)
    words.register_hook(lambda _: found.append(grad_to_add_to(table.weight)))
    words.sum().backward()
    return found[0]


def test_hooks_are_called():
    """A gradient that somebody waits for goes the ordinary way."""
    table, calls = WordEmbeddings(20, 4, padding_idx=1), []
    ids = torch.tensor([[3, 1, 3]])
    assert found_in_backward(table, ids) is None
    assert not table.weight.grad[1].any() and table.weight.grad[3].eq(2).all()
    assert found_in_backward(table, ids) is table.weight.grad
    table.weight.register_post_accumulate_grad_hook(lambda p: calls.append(p))
    assert found_in_backward(table, ids) is None
    assert len(calls) == 1 and table.weight.grad[3].eq(6).all()
    other = WordEmbeddings(20, 4)
    other(ids).sum().backward()
    assert other.weight.grad[1].any()
    other.weight.grad = torch.zeros(20, 4).to_sparse()
    assert found_in_backward(other, ids) is None and grad_to_add_to(other.weight * 1) is None
    # not trained: nothing of ours is in the way
    table.weight.requires_grad_(False)
    assert not table(ids).requires_grad


def test_gradients_that_are_asked_for_are_returned_and_added_to_nothing():
    """`torch.autograd.grad`, and `backward(inputs=...)` for others, with a gradient there that could be added to."""
    model = make()
    matrix, bias = model.roberta.embeddings.word_embeddings.weight, model.lm_head.bias
    model(mlm=batch()).loss_sum.backward()
    expected, biases = matrix.grad.clone(), bias.grad.clone()
    torch.testing.assert_close(torch.autograd.grad(model(mlm=batch()).loss_sum, [matrix])[0], expected)
    model(mlm=batch()).loss_sum.backward(inputs=[bias])
    assert torch.equal(matrix.grad, expected)
    torch.testing.assert_close(bias.grad, 2 * biases)
    model(mlm=batch()).loss_sum.backward(inputs=[matrix])
    torch.testing.assert_close(matrix.grad, 2 * expected)


def test_a_table_can_be_gone_through_twice_and_differentiated_twice():
    ids = torch.tensor([[3, 1, 3], [4, 5, 0]])
    table, words = WordEmbeddings(20, 4, padding_idx=1), nn.Embedding(20, 4, padding_idx=1)
    words.load_state_dict(table.state_dict())
    for module in (table, words):
        loss = module(ids).pow(3).sum()
        for _ in range(3):  # the first makes the gradient, the others add to it
            loss.backward(retain_graph=True)
        (gradient,) = torch.autograd.grad(module(ids).pow(3).sum(), [module.weight], create_graph=True)
        gradient.pow(2).sum().backward()
    torch.testing.assert_close(table.weight.grad, words.weight.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_factor_of_a_loss_is_not_rounded(dtype):
    """A mean, and fp16's loss scaling, which is larger than any number in fp16."""
    torch.manual_seed(0)
    hidden, labels = 8 * torch.randn(5, 32), torch.randint(300, (5,))
    weight, bias = nn.Parameter(torch.randn(300, 32)), nn.Parameter(torch.randn(300))
    gradients = []
    for factor in (1.0, 1 / 7, 2.0**16 / 7):
        weight.grad = torch.zeros_like(weight)
        with torch.autocast("cpu", dtype=dtype):
            loss, _ = linear_cross_entropy(hidden, weight, bias, labels)
        (loss * factor).backward()
        gradients.append(weight.grad / factor)
    assert gradients[0].any()
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-5, atol=1e-8)
