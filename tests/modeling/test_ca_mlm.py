"""CA-MLM against XLM-R's decoder and the four losses alone; who may move which prediction."""

import pytest
import torch
from torch import nn
from transformers import XLMRobertaConfig, XLMRobertaForCausalLM

from tests.modeling.tiny import SIZES, batch_of, gradients, made, pair_row

OTHER_SIDE = {"x": "y", "y": "x"}
FIELDS = ("input_ids", "labels", "attention_mask")


def veco(stream="bidirectional", **config):
    return made("veco", cross_stream=stream, **config)


def side_of(lengths):
    """Rows of these lengths, padded on the right; every row has a prediction."""
    rows = [pair_row(length, (length - 2,), range(1, length - 1, 3)) for length in lengths]
    batch = batch_of(rows, "padded right")
    return {name: batch[name] for name in FIELDS}


@pytest.fixture
def batch():
    """Three pairs of different lengths."""
    return {"x": side_of((7, 5, 6)), "y": side_of((4, 9, 6))}


def states(model, batch):
    """(inner, cross), each the states (B, T, H) by side."""
    predictions = dict(model.predictions("ca_mlm_pairs", batch, {}))
    by_term = []
    for term in ("inner", "cross"):
        both_sides_BTH = predictions[f"ca_mlm_pairs.{term}"].states_BTH
        x_BTH, y_BTH = both_sides_BTH.chunk(2)
        x_length = batch["x"]["labels"].shape[1]
        y_length = batch["y"]["labels"].shape[1]
        by_term.append({"x": x_BTH[:, :x_length], "y": y_BTH[:, :y_length]})
    return by_term


def movements(before, after):
    """By side, how far each position of the only row has moved."""
    return {side: (after[side] - states_BTH).abs().amax(-1)[0] for side, states_BTH in before.items()}


@torch.no_grad()
@pytest.mark.parametrize("stream", ["bidirectional", "causal"])
@pytest.mark.parametrize("side", "xy")
def test_ca_mlm_information_flow(side, stream):
    """Of a changed token of one side, at each of its positions."""
    model = veco(stream)
    batch = {"x": side_of((6,)), "y": side_of((5,))}
    before = states(model, batch)
    other = OTHER_SIDE[side]
    for position in range(batch[side]["input_ids"].shape[1]):
        ids = batch[side]["input_ids"].clone()
        ids[0, position] = 4 + (ids[0, position] - 3) % 57
        after = states(model, batch | {side: batch[side] | {"input_ids": ids}})
        inner = movements(before[0], after[0])
        cross = movements(before[1], after[1])
        assert (inner[side] > 1e-4).all()  # P(x|x^) moves with x
        assert (inner[other] == 0).all()  # and with nothing else
        assert (cross[other] > 1e-4).all()  # P(y|x^,y^) moves with all of x
        first_moved = position if stream == "causal" else 0
        assert (cross[side][first_moved:] > 1e-4).all()
        assert (cross[side][:first_moved] == 0).all()


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("stream", ["bidirectional", "causal"])
def test_ca_mlm_s_stream_equals_xlm_r_s_decoder(stream, attention, batch, tmp_path):
    model = veco(stream)
    model.save_pretrained(tmp_path)
    model.set_attn_implementation(attention)
    config = XLMRobertaConfig(**SIZES, is_decoder=True, add_cross_attention=True)
    reference = XLMRobertaForCausalLM.from_pretrained(tmp_path, config=config).eval()
    inner, cross = states(model, batch)
    for side, other in OTHER_SIDE.items():
        is_real = batch[side]["attention_mask"].bool()
        may_read = is_real[:, None, :].expand(-1, is_real.shape[1], -1)
        if stream == "causal":
            may_read = may_read.tril()
        additive = torch.zeros(may_read.shape).masked_fill(~may_read, torch.finfo(torch.float32).min)[:, None]
        expected = reference(
            batch[side]["input_ids"],
            attention_mask=additive,
            encoder_hidden_states=inner[other],
            encoder_attention_mask=batch[other]["attention_mask"],
            use_cache=False,
            output_hidden_states=True,
        )
        assert (expected.hidden_states[-1] - cross[side])[is_real].abs().max() < 1e-5
        is_predicted = batch[side]["labels"] != -100
        logits = model.lm_head(cross[side])[is_predicted]
        assert (expected.logits[is_predicted] - logits).abs().max() < 1e-5 * logits.abs().max()


@pytest.mark.parametrize("stream", ["bidirectional", "causal"])
def test_ca_mlm_no_gradient_of_the_s_stream_reaches_the_pass_that_made_h(stream, batch):
    model = veco(stream)
    predictions = dict(model.predictions("ca_mlm_pairs", batch, {}))
    h_states = predictions["ca_mlm_pairs.inner"].states_BTH
    s_states = predictions["ca_mlm_pairs.cross"].states_BTH
    [gradient] = torch.autograd.grad(s_states.pow(2).sum(), h_states, allow_unused=True, retain_graph=True)
    assert gradient is None  # not even zeros: there is no path
    assert h_states.requires_grad

    def learned(**weights):
        return gradients(model, model(ca_mlm_pairs=batch, objective_weights=weights).loss_sum)

    inner = learned(**{"ca_mlm_pairs.cross": 0.0})
    cross = learned(**{"ca_mlm_pairs.inner": 0.0})
    for name, gradient in learned().items():
        torch.testing.assert_close(gradient, inner.get(name, 0.0) + cross[name], rtol=1e-4, atol=1e-5)
        is_learned_by_inner = name in inner and inner[name].any()
        assert is_learned_by_inner != (".crossattention." in name), name


def test_ca_mlm_losses_are_the_four_terms(batch):
    model = veco()
    output = model(ca_mlm_pairs=batch)
    sums = {}
    for term, by_side in zip(("inner", "cross"), states(model, batch), strict=True):
        losses = []
        rows = []
        for side, states_BTH in by_side.items():
            labels = batch[side]["labels"]
            is_predicted = labels != -100
            logits = model.lm_head(states_BTH[is_predicted])
            losses.append(nn.functional.cross_entropy(logits, labels[is_predicted], reduction="none").detach())
            rows.append(is_predicted.nonzero()[:, 0])
        name = f"ca_mlm_pairs.{term}"
        torch.testing.assert_close(output.token_losses[name], torch.cat(losses), rtol=1e-4, atol=1e-4)
        assert torch.equal(output.batch_rows[name], torch.cat(rows))
        sums[term] = output.token_losses[name].sum()
    torch.testing.assert_close(output.loss_sum.detach(), sums["inner"] + sums["cross"])
    weighted = model(ca_mlm_pairs=batch, objective_weights={"ca_mlm_pairs.inner": 0.5, "ca_mlm_pairs.cross": 2.0})
    torch.testing.assert_close(weighted.loss_sum.detach(), 0.5 * sums["inner"] + 2 * sums["cross"])


def passes(model, **batches):
    """Of each pass of the encoder, whether its states have a gradient."""
    have_gradient = []

    def record(module, inputs, output):
        have_gradient.append(output.last_hidden_state.requires_grad)

    hook = model.roberta.register_forward_hook(record)
    model(**batches)
    hook.remove()
    return have_gradient


def test_ca_mlm_computes_each_h_once_and_only_what_the_losses_need(batch):
    model = veco().train()
    assert passes(model, ca_mlm_pairs=batch) == [True, True]  # H of both sides, S of both sides
    assert passes(model, ca_mlm_pairs=batch, tlm=batch["x"]) == [True] * 3
    assert passes(model, ca_mlm_pairs=batch, objective_weights={"ca_mlm_pairs.cross": 0.0}) == [True]
    # the first phase: H is a constant, no graph is kept for it
    assert passes(model, ca_mlm_pairs=batch, objective_weights={"ca_mlm_pairs.inner": 0.0}) == [False, True]
