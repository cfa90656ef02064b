"""Knowledge distillation of MetaXLM's baseline XLM+KD, against Hinton's formulas for its loss and gradient."""

import pytest
import torch

from crosslingual_zoo.modeling.masked_lm import ForPreTraining
from tests.modeling.tiny import batch_of, gradients, made, pair_row

TOKENS = [4, 9, 17, 18, 33, 52]


def metaxlm():
    return made("metaxlm").train()


def texts(teacher=None):
    """An `mlm` sub-batch of three rows, the last two padded."""
    rows = [pair_row(length, (length - 2,), range(1, length - 1, 3)) for length in (12, 9, 7)]
    batch = {name: batch_of(rows, "padded right")[name] for name in ("input_ids", "attention_mask", "labels")}
    return batch | ({"teacher": teacher} if teacher else {})


def answers(positions, temperature=2.0, seed=2):
    """Of a teacher, at (row, column) positions."""
    logits_NC = torch.randn(len(positions), len(TOKENS), generator=torch.Generator().manual_seed(seed)) * 2
    return {
        "positions_N": torch.tensor([row * 12 + column for row, column in positions], dtype=torch.long),
        "tokens_C": torch.tensor(TOKENS),
        "log_probabilities_NC": (logits_NC / temperature).log_softmax(-1),
        "temperature": temperature,
    }


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_kd_loss_and_gradient_are_hinton_s(temperature):
    positions = [(0, 2), (0, 7), (1, 3), (2, 1)]
    model, taught = metaxlm(), answers(positions, temperature)
    output = model(mlm=texts(taught), objective_weights={"mlm": 0.0, "kd": 3.0})
    batch = texts()
    states_BTH = model.roberta(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    expected = []
    for (row, column), log_p in zip(positions, taught["log_probabilities_NC"], strict=True):
        logits = model.lm_head(states_BTH[row, column])
        q = torch.stack([(logits[token] / temperature).exp() for token in TOKENS])
        q = q / q.sum()
        terms = [p.exp() * (p - q_v.log()) for p, q_v in zip(log_p, q, strict=True)]
        expected.append(temperature**2 * sum(terms))
    assert torch.allclose(output.token_losses["kd"], torch.stack(expected), rtol=1e-4)
    assert output.batch_rows["kd"].tolist() == [0, 0, 1, 2] and "mlm" not in output.token_losses
    found, wanted = gradients(model, output.loss_sum), gradients(model, 3.0 * sum(expected))
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-3, atol=1e-5) for name in wanted)


def test_kd_shares_a_forward_with_mlm():
    model, taught = metaxlm(), answers([(0, 2), (1, 3)])
    calls = []
    model.roberta.register_forward_hook(lambda *_: calls.append(1))
    both = model(mlm=texts(taught), objective_weights={"mlm": 2.0, "kd": 0.5})
    assert len(calls) == 1 and list(both.token_losses) == ["mlm", "kd"]
    alone = ForPreTraining.forward(model, mlm=texts())
    assert torch.equal(both.token_losses["mlm"], alone.token_losses["mlm"])
    expected = 2.0 * both.token_losses["mlm"].sum() + 0.5 * both.token_losses["kd"].sum()
    assert torch.allclose(both.loss_sum, expected)


def test_kd_without_answers():
    """A micro-batch without text of the teacher's language may have nothing to learn: zero, with a gradient."""
    model = metaxlm()
    assert list(model(mlm=texts()).token_losses) == ["mlm"]
    assert list(model(mlm=texts(answers([(0, 2)])), objective_weights={"kd": 0.0}).token_losses) == ["mlm"]
    output = model(mlm=texts(answers([])), objective_weights={"mlm": 0.0, "kd": 1.0})
    assert output.loss_sum == 0 and len(output.token_losses["kd"]) == 0
    assert all((gradient == 0).all() for gradient in gradients(model, output.loss_sum).values())
