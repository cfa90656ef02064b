"""Knowledge distillation of MetaXLM's baseline XLM+KD, against Hinton's formulas for its loss and gradient."""

import pytest
import torch

from crosslingual_zoo.modeling.masked_lm import ForPreTraining
from tests.modeling.tiny import batch_of, gradients, made, pair_row

TOKENS = [4, 9, 17, 18, 33, 52]


def metaxlm():
    return made("metaxlm").train()


def texts(**fields):
    """An `mlm` sub-batch of three rows, the last two padded."""
    rows = [pair_row(length, (length - 2,), range(1, length - 1, 3)) for length in (12, 9, 7)]
    batch = batch_of(rows, "padded right")
    return {name: batch[name] for name in ("input_ids", "attention_mask", "labels")} | fields


def answers(positions, temperature=2.0):
    """Of a teacher, at (row, column) positions."""
    logits_NC = torch.randn(len(positions), len(TOKENS), generator=torch.Generator().manual_seed(2)) * 2
    return {
        "positions_N": torch.tensor([row * 12 + column for row, column in positions], dtype=torch.long),
        "tokens_C": torch.tensor(TOKENS),
        "log_probabilities_NC": (logits_NC / temperature).log_softmax(-1),
        "temperature": temperature,
    }


def hinton_loss(logits_V, log_probabilities_C, temperature):
    """T^2 sum p (log p - log q), where q is the softmax of logits / T over the teacher's tokens."""
    powers_C = (logits_V[TOKENS] / temperature).exp()
    q_C = powers_C / powers_C.sum()
    return temperature**2 * (log_probabilities_C.exp() * (log_probabilities_C - q_C.log())).sum()


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_kd_loss_and_gradient_are_hinton_s(temperature):
    positions = [(0, 2), (0, 7), (1, 3), (2, 1)]
    model = metaxlm()
    teacher = answers(positions, temperature)
    output = model(mlm=texts(teacher=teacher), objective_weights={"mlm": 0.0, "kd": 3.0})
    batch = texts()
    states_BTH = model.roberta(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    losses = []
    for (row, column), log_probabilities_C in zip(positions, teacher["log_probabilities_NC"], strict=True):
        losses.append(hinton_loss(model.lm_head(states_BTH[row, column]), log_probabilities_C, temperature))
    expected = torch.stack(losses)
    assert output.token_losses.keys() == {"kd"}
    torch.testing.assert_close(output.token_losses["kd"], expected.detach(), rtol=1e-4, atol=1e-8)
    assert output.batch_rows["kd"].tolist() == [0, 0, 1, 2]
    learned = gradients(model, output.loss_sum)
    torch.testing.assert_close(learned, gradients(model, 3.0 * expected.sum()), rtol=1e-3, atol=1e-5)


def test_kd_shares_a_forward_with_mlm():
    model = metaxlm()
    calls = []
    model.roberta.register_forward_hook(lambda *_: calls.append(1))
    batch = texts(teacher=answers([(0, 2), (1, 3)]))
    output = model(mlm=batch, objective_weights={"mlm": 2.0, "kd": 0.5})
    assert len(calls) == 1
    assert list(output.token_losses) == ["mlm", "kd"]
    alone = ForPreTraining.forward(model, mlm=texts())
    assert torch.equal(output.token_losses["mlm"], alone.token_losses["mlm"])
    expected = 2.0 * output.token_losses["mlm"].sum() + 0.5 * output.token_losses["kd"].sum()
    assert torch.allclose(output.loss_sum, expected)
    # it needs answers and a weight
    assert list(model(mlm=texts()).token_losses) == ["mlm"]
    assert list(model(mlm=batch, objective_weights={"kd": 0.0}).token_losses) == ["mlm"]


def test_kd_of_no_position_is_zero_with_a_gradient():
    """A micro-batch without text of the teacher's language may have nothing to learn."""
    model = metaxlm()
    output = model(mlm=texts(teacher=answers([])), objective_weights={"mlm": 0.0, "kd": 1.0})
    assert output.loss_sum == 0
    assert len(output.token_losses["kd"]) == 0
    assert not any(gradient.any() for gradient in gradients(model, output.loss_sum).values())
