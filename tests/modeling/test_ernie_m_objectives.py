"""CAMLM and BTMLM against MLM and TLM of the same rows; which changed input may move which prediction."""

import pytest
import torch

from crosslingual_zoo.modeling.attention_masks import btmlm_generation_mask, camlm_mask
from tests.modeling.tiny import LAYOUTS, MASK, PAD, batch_of, gradients, made, pair_row, places_of

LANGUAGES = dict(mask_token_id=MASK, languages=["en", "de", "zh"])


def ernie(attention="sdpa", **config):
    return made("ernie_m", attention=attention, **LANGUAGES | config)


PAIRS = [pair_row(1, (6, 5), (2, 3, 5, 9, 12), (0, 1)), pair_row(2, (4, 7), (1, 4, 8, 9), (2, 0))]


def camlm_of(batch):
    """The batch under the mask of its collator."""
    mask = camlm_mask(batch["attention_mask"], batch["segment_ids"], batch["labels"] != -100)
    return batch | {"attention_mask": mask}


def changed(batch, row, column):
    """The batch with another ordinary token in one place."""
    ids = batch["input_ids"].clone()
    ids[row, column] = 4 + (ids[row, column] - 3) % 50
    return batch | {"input_ids": ids}


@torch.no_grad()
def predictions(model, name, batch):
    """Logits (B, T, V) of an objective."""
    batch = camlm_of(batch) if name == "camlm" else batch
    ((_, found),) = model.predictions(name, batch, {})
    return model.lm_head(found.states_BTH)


def moved_examples(before, after, places):
    """For each example, which of its positions have other values now; all comparisons are for equal bits."""
    moved = (before != after).any(-1)
    return [
        moved[row, start : start + len(fields["input_ids"])] for fields, (row, start) in zip(PAIRS, places, strict=True)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_camlm_predicts_a_side_from_the_other_one_only(attention, layout):
    model = ernie(attention)
    batch, places = batch_of(PAIRS, layout), places_of(PAIRS, layout)
    before = predictions(model, "camlm", batch)
    for index, (fields, (row, start)) in enumerate(zip(PAIRS, places, strict=True)):
        is_masked, segments = fields["labels"] != -100, fields["segment_ids"]
        for position in (~is_masked).nonzero().flatten().tolist():
            after = predictions(model, "camlm", changed(batch, row, start + position))
            moved = moved_examples(before, after, places)
            own = segments == segments[position]
            assert not moved[index][is_masked & own].any(), position
            assert moved[index][is_masked & ~own].all(), position
            assert not moved[1 - index].any(), position


def test_camlm_is_mlm_under_its_mask():
    model, batch = ernie(), camlm_of(batch_of(PAIRS, "padded right"))
    assert torch.equal(model(camlm=batch).loss_sum, model(mlm=batch).loss_sum)


def test_btmlm_generation_mask_allows_the_text_and_the_position_itself():
    batch = batch_of(PAIRS, "padded right")
    mask = btmlm_generation_mask(batch["attention_mask"], batch["segment_ids"])
    for allowed, fields in zip(mask, PAIRS, strict=True):
        text = set((fields["segment_ids"] == 0).nonzero().flatten().tolist())
        for place in range(len(fields["segment_ids"])):
            assert set(allowed[place].nonzero().flatten().tolist()) == text | {place}


def pseudo(batch):
    """The pairs as texts to be back-translated: segment 1 is <mask> between its </s>, and is not predicted."""
    is_y = (batch["segment_ids"] == 1) & ((batch["input_ids"] != 2) | (batch["labels"] != -100))
    return batch | {
        "input_ids": torch.where(is_y, MASK, batch["input_ids"]),
        "labels": torch.where(batch["segment_ids"] == 1, -100, batch["labels"]),
        "generation_mask": btmlm_generation_mask(batch["attention_mask"], batch["segment_ids"]),
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_btmlm_a_pseudo_position_reads_text_language_and_position(attention, layout):
    model = ernie(attention)
    batch, places = batch_of(PAIRS, layout), places_of(PAIRS, layout)
    batch = pseudo(batch)
    if "position_ids" not in batch:
        batch["position_ids"] = (batch["attention_mask"].cumsum(1) * batch["attention_mask"]) + PAD
    before = model.generation_states(batch)
    for index, (fields, (row, start)) in enumerate(zip(PAIRS, places, strict=True)):
        alone = pseudo(batch_of([fields], "padded right"))
        is_text = fields["segment_ids"] == 0
        is_pseudo = (alone["input_ids"][0] == MASK) & ~is_text
        assert is_pseudo.sum() > 1
        for position in range(len(is_text)):
            place = (row, start + position)
            changes = {"input_ids": 4 + (batch["input_ids"][place] - 3) % 50}
            if is_pseudo[position]:
                changes = {"language_ids": (batch["language_ids"][place] + 1) % 3, "position_ids": 40}
            elif fields["labels"][position] != -100:
                changes = {"labels": 4 + (batch["labels"][place] - 3) % 50}  # the text is read unmasked
            for name, value in changes.items():
                field = batch[name].clone()
                field[place] = value
                moved = moved_examples(before, model.generation_states(batch | {name: field}), places)
                assert not moved[1 - index].any()
                if is_text[position]:
                    assert moved[index][is_text | is_pseudo].all(), position
                else:
                    assert moved[index].nonzero().flatten().tolist() == [position], name


def test_btmlm_second_step_is_tlm_on_the_filled_tokens():
    """Equal loss, and equal gradients for every parameter: the first step leaves none."""
    model = ernie().train()
    batch = pseudo(batch_of(PAIRS, "padded right"))
    filled = model.back_translate(batch)
    assert not filled.requires_grad
    assert model.training
    slots = (batch["segment_ids"] == 1) & (batch["input_ids"] == MASK)
    assert (filled[slots] != MASK).all()
    assert torch.equal(filled[~slots], batch["input_ids"][~slots])

    tlm = {name: value for name, value in batch.items() if name != "language_ids"} | {"input_ids": filled}
    losses = model(btmlm=batch).loss_sum, model(tlm=tlm).loss_sum
    assert torch.equal(*losses)
    grads, expected = (gradients(model, loss) for loss in losses)
    assert grads.keys() == expected.keys()
    assert not any("language_embeddings" in name for name in grads)  # of the first step
    assert [name for name, gradient in grads.items() if not torch.equal(gradient, expected[name])] == []


def test_btmlm_generates_without_gradient_and_dropout():
    model = ernie(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5).train()
    batch = pseudo(batch_of(PAIRS, "padded right"))
    seen = []
    handle = model.roberta.register_forward_pre_hook(lambda *_: seen.append((torch.is_grad_enabled(), model.training)))
    model(btmlm=batch)
    handle.remove()
    assert seen == [(False, False), (True, True)]  # first step, second step
    assert torch.equal(model.back_translate(batch), model.back_translate(batch))


def test_btmlm_takes_the_best_token_and_no_special_one():
    model = ernie(special_token_ids=[3])
    with torch.no_grad():
        model.lm_head.decoder.weight.zero_()
        model.lm_head.bias.fill_(-torch.inf)
        model.lm_head.bias[torch.tensor([7, 8])] = torch.tensor([0.0, 2.0])
        model.lm_head.bias[torch.tensor([0, PAD, 2, 3, MASK])] = 30.0  # special tokens, never generated
    states = torch.zeros(3, 32)
    assert model._likeliest(states).tolist() == [8, 8, 8] and len(model._likeliest(states[:0])) == 0


def test_camlm_masks_read_the_masks_of_their_side():
    """Which language another mask of the side speaks moves a prediction: masks carry language and position."""
    model = ernie()
    batch = batch_of(PAIRS[:1], "padded right")
    before = predictions(model, "camlm", batch)
    languages = batch["language_ids"].clone()
    languages[0, 2] = 2
    moved = (before != predictions(model, "camlm", batch | {"language_ids": languages})).any(-1)[0]
    is_masked, is_x = batch["labels"][0] != -100, batch["segment_ids"][0] == 0
    assert moved[is_masked & is_x].all()
    assert not moved[~(is_masked & is_x)].any()
