"""Same weights, same outputs as transformers' XLM-R."""

import pytest
import torch
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

from tests.conftest import PREFIXES
from tests.modeling.tiny import SIZES, batch_of, class_of, far_from_initial, pair_row


def xlmr():
    """XLM-R with weights far from their initial values, so that no term of the computation vanishes."""
    return far_from_initial(XLMRobertaForMaskedLM(XLMRobertaConfig(**SIZES)))


def batch(padding):
    """(input_ids, attention_mask, labels), padded on one side by different amounts."""
    rows = [pair_row(length, (length,), range(1, length, 4)) for length in (22, 19, 16, 13)]
    fields = batch_of(rows, f"padded {padding}")
    return fields["input_ids"], fields["attention_mask"], fields["labels"]


def assert_same_outputs(ours, theirs, is_real):
    assert len(ours.hidden_states) == len(theirs.hidden_states)
    for our_states, their_states in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        assert torch.equal(our_states[is_real], their_states[is_real])  # the same operations in the same order
    assert abs(ours.loss.item() - theirs.loss.item()) < 1e-5
    assert (ours.logits - theirs.logits)[is_real].abs().max() < 1e-4 * theirs.logits.abs().max()


def assert_same_gradients(ours, theirs):
    parameters = dict(ours.named_parameters(remove_duplicate=False))
    whole_norm = torch.cat([parameter.grad.flatten() for parameter in theirs.parameters()]).norm()
    for name, parameter in theirs.named_parameters():
        # a key's bias moves no attention weight: its gradient is rounding, compared with the whole gradient's size
        bound = 1e-4 * parameter.grad.norm() + 1e-7 * whole_norm
        assert (parameters[name].grad - parameter.grad).norm() <= bound, name


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", PREFIXES)
def test_encoder_states_loss_and_gradients_equal_xlm_r_s(model_type, attention, padding, tmp_path):
    reference = xlmr()
    reference.save_pretrained(tmp_path)
    reference.set_attn_implementation(attention)
    ours = class_of(model_type, "ForMaskedLM").from_pretrained(tmp_path, attn_implementation=attention).eval()
    input_ids, attention_mask, labels = batch(padding)
    inputs = dict(input_ids=input_ids, attention_mask=attention_mask, labels=labels, output_hidden_states=True)
    expected = reference(**inputs)
    output = ours(**inputs)
    assert_same_outputs(output, expected, attention_mask.bool())
    expected.loss.backward()
    output.loss.backward()
    assert_same_gradients(ours, reference)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("model_type", PREFIXES)
def test_encoder_embeddings_alone_have_xlm_r_s_positions(model_type, padding, tmp_path):
    reference = xlmr()
    reference.save_pretrained(tmp_path)
    ours = class_of(model_type, "ForMaskedLM").from_pretrained(tmp_path).eval()
    input_ids, attention_mask, _ = batch(padding)
    is_real = attention_mask.bool()
    embeddings = {"inputs_embeds": reference.get_input_embeddings()(input_ids)}
    with torch.no_grad():
        for inputs in (embeddings, embeddings | {"attention_mask": attention_mask}):
            expected = reference(**inputs).logits[is_real]
            torch.testing.assert_close(ours(**inputs).logits[is_real], expected)
        ours.set_skip_padding(True)
        torch.testing.assert_close(ours(**inputs).logits[is_real], expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="58 positions"):
        ours(inputs_embeds=embeddings["inputs_embeds"].repeat(1, 3, 1))
