"""CAMLM and BTMLM against MLM and TLM of the same rows; which changed input may move which prediction."""

import pytest
import torch

from crosslingual_zoo.modeling.attention_masks import btmlm_generation_mask, camlm_mask
from tests.modeling.tiny import LAYOUTS, MASK, PAD, batch_of, gradients, made, pair_row, starts_of

PAIRS = [pair_row(1, (6, 5), (2, 3, 5, 9, 12), (0, 1)), pair_row(2, (4, 7), (1, 4, 8, 9), (2, 0))]


def ernie(attention="sdpa", **config):
    return made("ernie_m", attention=attention, mask_token_id=MASK, languages=["en", "de", "zh"], **config)


def camlm_of(batch):
    """The batch under the mask of its collator."""
    mask = camlm_mask(batch["attention_mask"], batch["segment_ids"], batch["labels"] != -100)
    return batch | {"attention_mask": mask}


def another_token(token):
    return 4 + (token - 3) % 50


def changed(batch, field, cell, value):
    """The batch with another value of a field in one cell, (row, column)."""
    values = batch[field].clone()
    values[cell] = value
    return batch | {field: values}


@torch.no_grad()
def camlm_logits(model, batch):
    """Logits (B, T, V)."""
    [(_, prediction)] = model.predictions("camlm", camlm_of(batch), {})
    return model.lm_head(prediction.states_BTH)


def moved_positions(before, after, layout):
    """For each example, which of its positions have other values now; all comparisons are for equal bits."""
    is_moved_BT = (before != after).any(-1)
    examples = zip(is_moved_BT, PAIRS, starts_of(PAIRS, layout), strict=True)
    return [is_moved_T[start:][: len(fields["input_ids"])] for is_moved_T, fields, start in examples]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_camlm_predicts_a_side_from_the_other_one_only(attention, layout):
    model = ernie(attention)
    batch = batch_of(PAIRS, layout)
    before = camlm_logits(model, batch)
    for row, (fields, start) in enumerate(zip(PAIRS, starts_of(PAIRS, layout), strict=True)):
        is_masked = fields["labels"] != -100
        segments = fields["segment_ids"]
        for position in (~is_masked).nonzero().flatten().tolist():
            cell = (row, start + position)
            other = changed(batch, "input_ids", cell, another_token(batch["input_ids"][cell]))
            moved = moved_positions(before, camlm_logits(model, other), layout)
            is_same_side = segments == segments[position]
            assert not moved[row][is_masked & is_same_side].any(), position
            assert moved[row][is_masked & ~is_same_side].all(), position
            assert not moved[1 - row].any(), position


def test_camlm_is_mlm_under_its_mask():
    model = ernie()
    batch = camlm_of(batch_of(PAIRS, "padded right"))
    assert torch.equal(model(camlm=batch).loss_sum, model(mlm=batch).loss_sum)


def test_btmlm_generation_mask_allows_the_text_and_the_position_itself():
    batch = batch_of(PAIRS, "padded right")
    mask_BTT = btmlm_generation_mask(batch["attention_mask"], batch["segment_ids"])
    for allowed_TT, fields in zip(mask_BTT, PAIRS, strict=True):
        text = set((fields["segment_ids"] == 0).nonzero().flatten().tolist())
        for position in range(len(fields["segment_ids"])):
            assert set(allowed_TT[position].nonzero().flatten().tolist()) == text | {position}


def pseudo(batch):
    """The pairs as texts to be back-translated: segment 1 is <mask> between its </s>, and is not predicted."""
    is_y = (batch["segment_ids"] == 1) & ((batch["input_ids"] != 2) | (batch["labels"] != -100))
    return batch | {
        "input_ids": torch.where(is_y, MASK, batch["input_ids"]),
        "labels": torch.where(batch["segment_ids"] == 1, -100, batch["labels"]),
        "generation_mask": btmlm_generation_mask(batch["attention_mask"], batch["segment_ids"]),
    }


def changes_of(batch, cell, is_pseudo):
    """What the first step reads in a cell, with other values: {field: value}."""
    if is_pseudo:
        return {"language_ids": (batch["language_ids"][cell] + 1) % 3, "position_ids": 40}
    if batch["labels"][cell] != -100:  # the text is read unmasked
        return {"labels": another_token(batch["labels"][cell])}
    return {"input_ids": another_token(batch["input_ids"][cell])}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_btmlm_a_pseudo_position_reads_text_language_and_position(attention, layout):
    model = ernie(attention)
    batch = pseudo(batch_of(PAIRS, layout))
    batch["position_ids"] = (batch["attention_mask"].cumsum(1) * batch["attention_mask"]) + PAD
    before = model.generation_states(batch)
    for row, (fields, start) in enumerate(zip(PAIRS, starts_of(PAIRS, layout), strict=True)):
        is_text = fields["segment_ids"] == 0
        is_pseudo = (batch["input_ids"][row, start:][: len(is_text)] == MASK) & ~is_text
        assert is_pseudo.sum() > 1
        for position in range(len(is_text)):
            cell = (row, start + position)
            for field, value in changes_of(batch, cell, is_pseudo[position]).items():
                after = model.generation_states(changed(batch, field, cell, value))
                moved = moved_positions(before, after, layout)
                assert not moved[1 - row].any()
                if is_text[position]:
                    assert moved[row][is_text | is_pseudo].all(), position
                else:
                    assert moved[row].nonzero().flatten().tolist() == [position], field


def test_btmlm_second_step_is_tlm_on_the_filled_tokens():
    """Equal loss, and equal gradients for every parameter: the first step leaves none."""
    model = ernie().train()
    batch = pseudo(batch_of(PAIRS, "padded right"))
    filled = model.back_translate(batch)
    assert not filled.requires_grad
    assert model.training
    is_slot = (batch["segment_ids"] == 1) & (batch["input_ids"] == MASK)
    assert (filled[is_slot] != MASK).all()
    assert torch.equal(filled[~is_slot], batch["input_ids"][~is_slot])

    tlm = {name: value for name, value in batch.items() if name != "language_ids"} | {"input_ids": filled}
    btmlm_loss = model(btmlm=batch).loss_sum
    tlm_loss = model(tlm=tlm).loss_sum
    assert torch.equal(btmlm_loss, tlm_loss)
    btmlm_gradients = gradients(model, btmlm_loss)
    assert not any("language_embeddings" in name for name in btmlm_gradients)  # of the first step
    torch.testing.assert_close(btmlm_gradients, gradients(model, tlm_loss), atol=0, rtol=0)


def test_btmlm_generates_without_gradient_and_dropout():
    model = ernie(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5).train()
    batch = pseudo(batch_of(PAIRS, "padded right"))
    modes = []
    hook = model.roberta.register_forward_pre_hook(lambda *_: modes.append((torch.is_grad_enabled(), model.training)))
    model(btmlm=batch)
    hook.remove()
    assert modes == [(False, False), (True, True)]  # first step, second step
    assert torch.equal(model.back_translate(batch), model.back_translate(batch))


def test_btmlm_takes_the_best_token_and_no_special_one():
    model = ernie(special_token_ids=[3])
    with torch.no_grad():
        model.lm_head.decoder.weight.zero_()
        bias_V = model.lm_head.bias.fill_(-torch.inf)
        bias_V[7] = 0.0
        bias_V[8] = 2.0
        bias_V[[0, PAD, 2, 3, MASK]] = 30.0  # special tokens, never generated
    states = torch.zeros(3, 32)
    assert model._likeliest(states).tolist() == [8, 8, 8]
    assert len(model._likeliest(states[:0])) == 0


def test_camlm_masks_read_the_masks_of_their_side():
    """Which language another mask of the side speaks moves a prediction: masks carry language and position."""
    model = ernie()
    batch = batch_of(PAIRS[:1], "padded right")
    after = camlm_logits(model, changed(batch, "language_ids", (0, 2), 2))
    is_moved = (camlm_logits(model, batch) != after).any(-1)
    is_mask_of_x = (batch["labels"] != -100) & (batch["segment_ids"] == 0)
    assert torch.equal(is_moved, is_mask_of_x)
