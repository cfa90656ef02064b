"""Block masks are right on every attention implementation that takes them."""

import pytest
import torch

from modeling.attention_masks import Packing, as_block_mask
from tests.modeling.tiny import MASK, made


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
def test_encoder_packed_rows_equal_the_same_texts_alone(attention):
    """Two texts in one row, each attending to itself, positions restarting: the states of the texts alone."""
    encoder = made("veco", "Model", attention)
    first, second = torch.randint(4, MASK, (1, 9)), torch.randint(4, MASK, (1, 14))
    packed = torch.cat([first, second, torch.ones(1, 3, dtype=torch.long)], 1)
    example = torch.tensor([[0] * 9 + [1] * 14 + [-1] * 3])
    allow = (example[:, :, None] == example[:, None, :]) & (example[:, None, :] >= 0)
    positions = torch.cat([torch.arange(9) + 2, torch.arange(14) + 2, torch.ones(3, dtype=torch.long)])[None]
    states = encoder(packed, attention_mask=allow, position_ids=positions).last_hidden_state
    assert torch.isfinite(states).all()
    torch.testing.assert_close(states[:, :9], encoder(first).last_hidden_state, atol=1e-5, rtol=0)
    torch.testing.assert_close(states[:, 9:23], encoder(second).last_hidden_state, atol=1e-5, rtol=0)


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
