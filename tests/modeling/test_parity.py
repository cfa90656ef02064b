"""Same weights, same outputs as transformers' XLM-R."""

import pytest
import torch
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

from tests.modeling.tiny import PREFIXES, SIZES, batch_of, class_of, far_from_initial, pair_row


def xlmr():
    """XLM-R with weights far from their initial values, so that no term of the computation vanishes."""
    return far_from_initial(XLMRobertaForMaskedLM(XLMRobertaConfig(**SIZES)))


def batch(padding):
    """(input_ids, attention_mask, labels), padded on one side by different amounts."""
    rows = [pair_row(length, (length,), range(1, length, 4)) for length in (22, 19, 16, 13)]
    fields = batch_of(rows, f"padded {padding}")
    return fields["input_ids"], fields["attention_mask"], fields["labels"]


def assert_parity(reference, ours, padding, exact):
    input_ids, attention_mask, labels = batch(padding)
    expected = reference(input_ids, attention_mask=attention_mask, labels=labels, output_hidden_states=True)
    actual = ours(input_ids, attention_mask=attention_mask, labels=labels, output_hidden_states=True)
    real = attention_mask.bool()
    assert len(actual.hidden_states) == len(expected.hidden_states)
    for a, b in zip(actual.hidden_states, expected.hidden_states, strict=True):
        assert torch.equal(a[real], b[real]) if exact else (a - b)[real].abs().max() < 1e-5
    assert abs(actual.loss.item() - expected.loss.item()) < 1e-5
    assert (actual.logits - expected.logits)[real].abs().max() < 1e-4 * expected.logits.abs().max()
    expected.loss.backward()
    actual.loss.backward()
    gradients = dict(ours.named_parameters(remove_duplicate=False))
    everything = torch.cat([p.grad.flatten() for p in reference.parameters()]).norm()
    for name, parameter in reference.named_parameters():
        # a key's bias moves no attention weight: its gradient is rounding, compared with the whole gradient's size
        bound = 1e-4 * parameter.grad.norm() + 1e-7 * everything
        assert (gradients[name].grad - parameter.grad).norm() <= bound, name


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", PREFIXES)
def test_encoder_states_loss_and_gradients_equal_xlm_r_s(model_type, attention, padding, tmp_path):
    reference = xlmr()
    reference.save_pretrained(tmp_path)
    reference.set_attn_implementation(attention)
    ours = class_of(model_type, "ForMaskedLM").from_pretrained(tmp_path, attn_implementation=attention).eval()
    assert_parity(reference, ours, padding, exact=True)  # the same operations in the same order


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("model_type", PREFIXES)
def test_encoder_embeddings_alone_have_xlm_r_s_positions(model_type, padding, tmp_path):
    reference = xlmr()
    reference.save_pretrained(tmp_path)
    ours = class_of(model_type, "ForMaskedLM").from_pretrained(tmp_path).eval()
    input_ids, attention_mask, _ = batch(padding)
    embedded = reference.get_input_embeddings()(input_ids)
    real = attention_mask.bool()
    with torch.no_grad():
        for inputs in ({"inputs_embeds": embedded}, {"inputs_embeds": embedded, "attention_mask": attention_mask}):
            torch.testing.assert_close(ours(**inputs).logits[real], reference(**inputs).logits[real])
        ours.set_skip_padding(True)
        torch.testing.assert_close(ours(**inputs).logits[real], reference(**inputs).logits[real], atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="58 positions"):
        ours(inputs_embeds=embedded.repeat(1, 3, 1))
