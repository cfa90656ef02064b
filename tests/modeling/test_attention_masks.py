"""Block masks are right on every attention implementation that takes them."""

import pytest
import torch

from modeling.attention_masks import Packing, as_block_mask
from modeling.configuration_veco import VecoConfig
from modeling.modeling_veco import VecoModel
from tests.modeling.tiny import SIZES

TINY = SIZES | dict(vocab_size=97, hidden_size=64)


def model(attention, layers=2):
    torch.manual_seed(0)
    config = VecoConfig(**TINY | {"num_hidden_layers": layers})
    return VecoModel._from_config(config, attn_implementation=attention).eval()


@pytest.fixture(params=["eager", "sdpa", "flex_attention"])
def attention(request):
    return request.param


@torch.no_grad()
def test_encoder_packed_rows_equal_the_same_texts_alone(attention):
    """Two texts in one row, each attending to itself, positions restarting: the states of the texts alone."""
    encoder = model(attention)
    first, second = torch.randint(4, 97, (1, 9)), torch.randint(4, 97, (1, 14))
    packed = torch.cat([first, second, torch.ones(1, 3, dtype=torch.long)], 1)
    example = torch.tensor([[0] * 9 + [1] * 14 + [-1] * 3])
    allow = (example[:, :, None] == example[:, None, :]) & (example[:, None, :] >= 0)
    positions = torch.cat([torch.arange(9) + 2, torch.arange(14) + 2, torch.ones(3, dtype=torch.long)])[None]
    states = encoder(packed, attention_mask=allow, position_ids=positions).last_hidden_state
    assert torch.isfinite(states).all()
    torch.testing.assert_close(states[:, :9], encoder(first).last_hidden_state, atol=1e-5, rtol=0)
    torch.testing.assert_close(states[:, 9:23], encoder(second).last_hidden_state, atol=1e-5, rtol=0)


@torch.no_grad()
def test_encoder_reads_along_its_mask_only(attention):
    """Row t attends to columns up to t: a changed token moves the states from its position on and no other."""
    encoder = model(attention)
    text = torch.randint(4, 97, (1, 16))
    causal = torch.ones(1, 16, 16, dtype=torch.bool).tril()
    before = encoder(text, attention_mask=causal).last_hidden_state
    changed = text.clone()
    changed[0, 10] = 3 + (text[0, 10] - 2) % 90
    after = encoder(changed, attention_mask=causal).last_hidden_state
    moved = (before - after).abs().amax(-1)[0] > 0
    assert moved.tolist() == [position >= 10 for position in range(16)]


@torch.no_grad()
def test_encoder_cross_attention_reads_along_its_mask_only(attention):
    """In one layer, each position alone: the first half reads columns 0-2 of the other sequence, the rest all of it."""
    encoder = model(attention, layers=1)
    text, other = torch.randint(4, 97, (1, 8)), torch.randn(1, 6, 64)
    alone = torch.eye(8, dtype=torch.bool)[None]
    allow = torch.ones(1, 8, 6, dtype=torch.bool)
    allow[:, :4, 3:] = False

    def states(keys):
        return encoder(
            text, attention_mask=alone, encoder_hidden_states=keys, encoder_attention_mask=allow
        ).last_hidden_state

    before = states(other)
    late, early = other.clone(), other.clone()
    late[:, 3:] += 1.0
    early[:, :3] += 1.0
    moved = (states(late) - before).abs().amax(-1)[0] > 0
    assert moved.tolist() == [False] * 4 + [True] * 4
    assert ((states(early) - before).abs().amax(-1)[0] > 0).all()
    assert (before - encoder(text, attention_mask=alone).last_hidden_state).abs().max() > 1e-3


def test_packing_rows_are_nearly_full_and_keep_every_token():
    generator = torch.Generator().manual_seed(0)
    for longest in (12, 60, 200):
        lengths = torch.randint(3, longest, (16,), generator=generator)
        is_real = torch.arange(longest) < lengths[:, None]
        is_real[3] = is_real[3].flip(0)
        packing, values = Packing(is_real), torch.randn(16, longest, 4, generator=generator)
        rows, width = packing.shape
        assert rows * width < 1.1 * is_real.sum() and width < 4 * longest
        assert torch.equal(packing.unpack(packing.pack(values)), values * is_real[:, :, None])
        other = Packing(is_real.roll(1, 0), packing.row_of)
        texts, theirs = (side.pack(torch.arange(1, 17)[:, None]) for side in (packing, other))
        allowed = torch.rand(16, longest, longest, generator=generator) < 0.5
        same = (texts[:, :, None] == theirs[:, None]) & texts[:, :, None].ne(0)
        assert torch.equal(packing.mask(other), same)
        assert torch.equal(packing.mask(packing, allowed).sum(), (allowed & as_block_mask(is_real)).sum())
