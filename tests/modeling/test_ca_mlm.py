"""CA-MLM against XLM-R's decoder and the four losses alone; who may move which prediction."""

import pytest
import torch
from torch import nn
from transformers import XLMRobertaConfig, XLMRobertaForCausalLM

from tests.modeling.tiny import SIZES, batch_of, gradients, made, pair_row


def veco(stream="bidirectional", **config):
    return made("veco", cross_stream=stream, **config)


def pair(x_lengths=(7, 5, 6), y_lengths=(4, 9, 6)):
    """Pairs of rows of the given lengths, padded on the right; every row has a prediction."""
    fields = ("input_ids", "labels", "attention_mask")
    batch = {}
    for side, lengths in (("x", x_lengths), ("y", y_lengths)):
        rows = [pair_row(length, (length - 2,), range(1, length - 1, 3)) for length in lengths]
        batch[side] = {name: batch_of(rows, "padded right")[name] for name in fields}
    return batch


def states(model, batch):
    """(inner, cross), each the states (B, Tx, H) of x and (B, Ty, H) of y."""
    found = dict(model.predictions("ca_mlm_pairs", batch, {}))
    rows, lengths = len(batch["x"]["input_ids"]), [batch[name]["input_ids"].shape[1] for name in "xy"]
    return [
        [
            found[f"ca_mlm_pairs.{term}"].states_BTH[i * rows : (i + 1) * rows, :length]
            for i, length in enumerate(lengths)
        ]
        for term in ("inner", "cross")
    ]


@pytest.mark.parametrize("stream", ["bidirectional", "causal"])
def test_ca_mlm_information_flow(stream):
    model, batch = veco(stream), pair((6,), (5,))
    with torch.no_grad():
        before = states(model, batch)
        for own in (0, 1):  # the side that is changed, at each of its positions
            name = "xy"[own]
            for position in range(batch[name]["input_ids"].shape[1]):
                changed = {key: dict(fields) for key, fields in batch.items()}
                ids = batch[name]["input_ids"].clone()
                ids[0, position] = 4 + (ids[0, position] - 3) % 57
                changed[name]["input_ids"] = ids
                after = states(model, changed)
                inner, cross = (
                    [(a - b).abs().amax(-1)[0] for a, b in zip(*terms, strict=True)]
                    for terms in zip(before, after, strict=True)
                )
                assert (inner[own] > 1e-4).all()  # P(x|x^) moves with x
                assert (inner[1 - own] == 0).all()  # and with nothing else
                assert (cross[1 - own] > 1e-4).all()  # P(y|x^,y^) moves with all of x
                reached = torch.arange(len(cross[own])) >= (position if stream == "causal" else 0)
                assert (cross[own][reached] > 1e-4).all()
                assert (cross[own][~reached] == 0).all()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("stream", ["bidirectional", "causal"])
def test_ca_mlm_s_stream_equals_xlm_r_s_decoder(stream, attention, tmp_path):
    model, batch = veco(stream), pair()
    model.save_pretrained(tmp_path)
    model.set_attn_implementation(attention)
    reference = XLMRobertaForCausalLM.from_pretrained(
        tmp_path, config=XLMRobertaConfig(**SIZES, is_decoder=True, add_cross_attention=True)
    ).eval()
    with torch.no_grad():
        (inner_x, inner_y), (cross_x, cross_y) = states(model, batch)
        sides = [("x", "y", inner_y, cross_x), ("y", "x", inner_x, cross_y)]
        for own, other, other_states, ours in sides:
            mask = batch[own]["attention_mask"]
            length = mask.shape[1]
            allow = mask.bool()[:, None, :].expand(-1, length, -1)
            if stream == "causal":
                allow = allow.tril()
            additive = torch.zeros(allow.shape).masked_fill(~allow, torch.finfo(torch.float32).min)[:, None]
            output = reference(
                batch[own]["input_ids"],
                attention_mask=additive,
                encoder_hidden_states=other_states,
                encoder_attention_mask=batch[other]["attention_mask"],
                use_cache=False,
                output_hidden_states=True,
            )
            real = mask.bool()
            assert (output.hidden_states[-1] - ours)[real].abs().max() < 1e-5
            predicted = batch[own]["labels"] != -100
            logits = model.lm_head(ours)[predicted]
            assert (output.logits[predicted] - logits).abs().max() < 1e-5 * logits.abs().max()


@pytest.mark.parametrize("stream", ["bidirectional", "causal"])
def test_ca_mlm_no_gradient_of_the_s_stream_reaches_the_pass_that_made_h(stream):
    model, batch = veco(stream), pair()
    found = dict(model.predictions("ca_mlm_pairs", batch, {}))
    h_states = found["ca_mlm_pairs.inner"].states_BTH
    s_states = found["ca_mlm_pairs.cross"].states_BTH
    (gradient,) = torch.autograd.grad(s_states.pow(2).sum(), h_states, allow_unused=True, retain_graph=True)
    assert gradient is None  # not even zeros: there is no path
    assert h_states.requires_grad

    weights = ({}, {"ca_mlm_pairs.cross": 0.0}, {"ca_mlm_pairs.inner": 0.0})
    both, inner, cross = (
        gradients(model, model(ca_mlm_pairs=batch, objective_weights=chosen).loss_sum) for chosen in weights
    )
    for name, gradient in both.items():
        torch.testing.assert_close(gradient, inner.get(name, 0.0) + cross[name], rtol=1e-4, atol=1e-5)
        assert (name not in inner or not inner[name].any()) == (".crossattention." in name), name


def test_ca_mlm_losses_are_the_four_terms():
    model, batch = veco(), pair()
    output = model(ca_mlm_pairs=batch)
    inner, cross = states(model, batch)
    for term, found in (("inner", inner), ("cross", cross)):
        expected, rows = [], []
        for name, of_side in zip("xy", found, strict=True):
            predicted = batch[name]["labels"] != -100
            logits = model.lm_head(of_side[predicted])
            expected.append(nn.functional.cross_entropy(logits, batch[name]["labels"][predicted], reduction="none"))
            rows.append(predicted.nonzero()[:, 0])
        losses = output.token_losses[f"ca_mlm_pairs.{term}"]
        torch.testing.assert_close(losses, torch.cat(expected).detach(), rtol=1e-4, atol=1e-4)
        assert torch.equal(output.batch_rows[f"ca_mlm_pairs.{term}"], torch.cat(rows))
    total = sum(losses.sum() for losses in output.token_losses.values())
    torch.testing.assert_close(output.loss_sum.detach(), total)
    inner, cross = (losses.sum() for losses in output.token_losses.values())
    weighted = model(ca_mlm_pairs=batch, objective_weights={"ca_mlm_pairs.inner": 0.5, "ca_mlm_pairs.cross": 2.0})
    torch.testing.assert_close(weighted.loss_sum.detach(), 0.5 * inner + 2 * cross)


def passes(model, **batches):
    """Of each pass of the encoder, whether its states have a gradient."""
    seen = []
    handle = model.roberta.register_forward_hook(lambda *args: seen.append(args[2].last_hidden_state.requires_grad))
    model(**batches)
    handle.remove()
    return seen


def test_ca_mlm_computes_each_h_once_and_only_what_the_losses_need():
    model, batch = veco().train(), pair()
    assert passes(model, ca_mlm_pairs=batch) == [True, True]  # H of both sides, S of both sides
    assert passes(model, ca_mlm_pairs=batch, tlm=batch["x"]) == [True] * 3
    assert passes(model, ca_mlm_pairs=batch, objective_weights={"ca_mlm_pairs.cross": 0.0}) == [True]
    # the first phase: H is a constant, no graph is kept for it
    assert passes(model, ca_mlm_pairs=batch, objective_weights={"ca_mlm_pairs.inner": 0.0}) == [False, True]
