"""The decoder of a translation model, what it may see, its loss, and what it refuses."""

import pytest
import torch
from torch import nn
from transformers import XLMRobertaConfig, XLMRobertaForCausalLM

from tests.modeling.tiny import SIZES, far_from_initial, sources, targets, translation

# The decoder


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("tie", [True, False])
def test_decoder_equals_xlm_r_s(attention, tie, tmp_path):
    """`XLMRobertaForCausalLM` with cross-attention, given states of any other encoder, is our decoder."""
    reference = XLMRobertaForCausalLM(XLMRobertaConfig(is_decoder=True, add_cross_attention=True, **SIZES))
    far_from_initial(reference).save_pretrained(tmp_path)
    reference.set_attn_implementation(attention)
    ours = translation(tmp_path, None, tie_decoder=tie, attn_implementation=attention)
    other = torch.randn(4, 9, 32, generator=torch.Generator().manual_seed(3))
    _, other_mask = sources()
    inputs = ours.prepare_decoder_input_ids_from_labels(targets())
    mask = inputs.ne(1).long()
    with torch.no_grad():
        expected = reference(
            inputs, attention_mask=mask, encoder_hidden_states=other, encoder_attention_mask=other_mask, use_cache=False
        ).logits
        actual = ours(
            attention_mask=other_mask, encoder_outputs=(other,), decoder_input_ids=inputs, decoder_attention_mask=mask
        ).logits
    assert expected.std() > 0.3
    torch.testing.assert_close(actual[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("padding", ["left", "right"])
def test_for_conditional_generation_padding_changes_nothing(veco_dir, padding):
    model = translation(veco_dir)
    source, mask = sources(padding)
    labels = targets()
    together = model(source, attention_mask=mask, labels=labels, output_logits=True)
    losses = []
    for row in range(4):
        label = labels[row : row + 1, : 7 - row]
        alone = model(source[row : row + 1, mask[row].bool()], labels=label, output_logits=True)
        torch.testing.assert_close(together.logits[row, : 7 - row], alone.logits[0], atol=1e-5, rtol=0)
        losses.append(alone.loss * label.numel())
    torch.testing.assert_close(together.loss, sum(losses) / (7 + 6 + 5 + 4))


# Loss


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_for_conditional_generation_loss_and_gradients_are_those_of_the_logits(veco_dir, label_smoothing):
    model = translation(veco_dir).train()
    source, mask = sources()
    batch = dict(input_ids=source, attention_mask=mask, labels=targets())
    out = model(**batch, label_smoothing=label_smoothing)
    assert out.logits is None and out.past_key_values is None
    out.loss.backward()
    ours = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    logits = model(**batch, output_logits=True).logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=label_smoothing)
    loss.backward()
    torch.testing.assert_close(out.loss, loss)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, atol=1e-5, rtol=1e-4, msg=name)
