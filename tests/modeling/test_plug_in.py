"""Plug-in fine-tuning: heads on [H:S] of a text and its translation, computed here once more by hand."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from crosslingual_zoo.modeling.modeling_veco import (
    VecoForQuestionAnswering,
    VecoForSequenceClassification,
    VecoForTokenClassification,
)
from tests.modeling.tiny import batch_of, made, pair_row

TINY = dict(num_hidden_layers=2, num_labels=3)
HEADS = (VecoForSequenceClassification, VecoForTokenClassification, VecoForQuestionAnswering)
STREAMS = ("bidirectional", "causal")


def make(head=VecoForSequenceClassification, **fields):
    return made("veco", head.__name__.removeprefix("Veco"), **TINY | {"plug_in": True} | fields)


def sides(rows=3):
    """x and y of 9 and 12 positions, padded on the right by different amounts."""
    batch = {}
    for prefix, length in (("", 9), ("translation_", 12)):
        fields = batch_of([pair_row(row, (length - 2 - row,)) for row in range(rows)], "padded right")
        batch |= {prefix + name: fields[name] for name in ("input_ids", "attention_mask")}
    return batch


def gold(head, batch):
    """Labels of x and of y for a head, as two dictionaries."""
    rows, x, y = len(batch["input_ids"]), batch["input_ids"], batch["translation_input_ids"]
    if head is VecoForSequenceClassification:
        return {"labels": torch.arange(rows) % 3}, {"translation_labels": (torch.arange(rows) + 1) % 3}
    if head is VecoForTokenClassification:
        return (
            {"labels": (x % 3).masked_fill(x == 1, -100)},
            {"translation_labels": (y % 3).masked_fill(y == 1, -100)},
        )
    starts, ends = torch.arange(rows), torch.arange(rows) + 2
    return (
        {"start_positions": starts, "end_positions": ends},
        {"translation_start_positions": starts + 1, "translation_end_positions": ends + 1},
    )


TYPES = ("token_type_ids", "translation_token_type_ids")


def logits_of(output):
    return torch.stack([output.start_logits, output.end_logits], -1) if "start_logits" in output else output.logits


def head_of(model, features):
    """The head of a model, on features."""
    if isinstance(model, VecoForQuestionAnswering):
        return model.qa_outputs(features)
    is_of_text = isinstance(model, VecoForSequenceClassification)
    return model.classifier(features[:, 0] if is_of_text else features)


def loss_of(head, logits, labels):
    if head is VecoForSequenceClassification:
        return cross_entropy(logits, *labels.values())
    if head is VecoForTokenClassification:
        return cross_entropy(logits.flatten(0, 1), *[label.flatten() for label in labels.values()])
    return sum(cross_entropy(logits[..., i], label) for i, label in enumerate(labels.values())) / 2


def by_hand(model, batch):
    """[H_x : S_x] and [H_y : S_y]."""

    def stream(input_ids, mask, **other):
        return model.roberta(input_ids, attention_mask=mask, **other).last_hidden_state

    x, mask_x = batch["input_ids"], batch["attention_mask"]
    y, mask_y = batch["translation_input_ids"], batch["translation_attention_mask"]
    alone_x, alone_y = stream(x, mask_x), stream(y, mask_y)

    def self_mask(mask):
        if model.config.cross_stream == "bidirectional":
            return mask
        places = range(mask.shape[1])  # padding neither attends nor is attended to
        return torch.tensor([[[s <= t and bool(row[s] and row[t]) for s in places] for t in places] for row in mask])

    crossed_x = stream(x, self_mask(mask_x), encoder_hidden_states=alone_y, encoder_attention_mask=mask_y)
    crossed_y = stream(y, self_mask(mask_y), encoder_hidden_states=alone_x, encoder_attention_mask=mask_x)
    return torch.cat([alone_x, crossed_x], -1), torch.cat([alone_y, crossed_y], -1)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("head", HEADS)
def test_plug_in_heads_read_both_streams_and_learn_from_both_sides(head, stream):
    model, batch = make(head, cross_stream=stream), sides()
    gold_x, gold_y = gold(head, batch)
    output = model(**batch, **gold_x, **gold_y)
    features_x, features_y = by_hand(model, batch)
    assert features_x.shape == (3, 9, 64)
    torch.testing.assert_close(logits_of(output), head_of(model, features_x), atol=1e-5, rtol=0)
    losses = loss_of(head, head_of(model, features_x), gold_x), loss_of(head, head_of(model, features_y), gold_y)
    torch.testing.assert_close(output.loss, sum(losses) / 2)
    torch.testing.assert_close(model(**batch, **gold_x).loss, losses[0])
    torch.testing.assert_close(model(**batch, **gold_y).loss, losses[1])
    assert model(**batch).loss is None
    # texts of one length need no masks
    texts = {name: ids[:1] for name, ids in batch.items() if "mask" not in name}
    torch.testing.assert_close(logits_of(model(**texts)), logits_of(output)[:1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("head", HEADS)
def test_plug_in_labels_of_either_side_alone_teach_everything(head):
    batch = sides()
    for labels in gold(head, batch):
        model = make(head)
        model(**batch, **labels).loss.backward()
        # a key's bias moves no attention weight
        idle = [n for n, p in model.named_parameters() if not p.grad.abs().max() > 0 and "key.bias" not in n]
        assert idle == []


@pytest.mark.parametrize("head, none", [(VecoForTokenClassification, -100), (VecoForQuestionAnswering, 99)])
def test_mean_loss_leaves_out_a_side_of_which_no_label_counts(head, none):
    model, batch = make(head), sides()
    gold_x, gold_y = gold(head, batch)
    nothing_x, nothing_y = ({name: torch.full_like(v, none) for name, v in g.items()} for g in (gold_x, gold_y))
    assert torch.equal(model(**batch, **gold_x, **nothing_y).loss, model(**batch, **gold_x).loss)
    assert torch.equal(model(**batch, **nothing_x, **gold_y).loss, model(**batch, **gold_y).loss)
    if head is VecoForQuestionAnswering:  # an answer that was cut off in the middle teaches its start
        output = model(**batch, **gold_x | {"end_positions": nothing_x["end_positions"]})
        assert torch.allclose(output.loss, cross_entropy(output.start_logits, gold_x["start_positions"]))
    loss = model(**batch, **nothing_x, **nothing_y).loss
    loss.backward()
    assert loss.item() == 0.0 and all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_plug_in_runs_each_pass_once_and_only_where_it_is_needed():
    model, batch = make(), sides()
    passes = []
    model.roberta.register_forward_pre_hook(
        lambda module, arguments, options: passes.append("encoder_hidden_states" in options), with_kwargs=True
    )
    model(**batch, labels=torch.tensor([0, 1, 2]))  # y has no label: its S stream serves nobody
    assert passes == [False, False, True]
    passes.clear()
    model(**batch, labels=torch.tensor([0, 1, 2]), translation_labels=torch.tensor([0, 1, 2]))
    assert sorted(passes) == [False, False, True, True]


def test_plug_in_further_inputs_and_outputs_belong_to_x():
    model, batch = make(), sides()
    words = model.roberta.embeddings.word_embeddings(batch["input_ids"])
    positions = (batch["attention_mask"].cumsum(1) * batch["attention_mask"]) + 1
    rest = {name: value for name, value in batch.items() if name != "input_ids"}
    embedded = model(inputs_embeds=words, position_ids=positions, output_hidden_states=True, **rest)
    torch.testing.assert_close(embedded.logits, model(**batch).logits, atol=1e-5, rtol=0)
    alone = model.roberta(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    assert len(embedded.hidden_states) == 3
    torch.testing.assert_close(embedded.hidden_states[-1], alone, atol=1e-5, rtol=0)
    # and plug-out models still hand them on
    plain = make(plug_in=False)
    one = {name: batch[name] for name in ("input_ids", "attention_mask")}
    shifted = plain(**one, position_ids=positions + 3).logits
    assert (shifted - plain(**one).logits).abs().max() > 1e-4


def test_plug_in_both_sides_have_token_types():
    model, batch = make(type_vocab_size=2), sides()
    x, y = ({name: torch.ones_like(batch[name.replace("token_type", "input")])} for name in TYPES)
    plain, of_x, of_y, of_both = (model(**batch, **given).logits for given in ({}, x, y, x | y))
    assert min((plain - other).abs().max() for other in (of_x, of_y, of_both)) > 1e-4
    table = model.roberta.embeddings.token_type_embeddings.weight
    with torch.no_grad():
        table.copy_(table.flip(0))
    torch.testing.assert_close(model(**batch).logits, of_both)


def test_plug_out_heads_are_xlm_r_s():
    model, batch = make(plug_in=False), sides()
    features = model.roberta(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    output = model(batch["input_ids"], batch["attention_mask"], labels=torch.tensor([0, 1, 2]))
    assert torch.equal(output.logits, model.classifier(features[:, 0]))
    assert torch.equal(output.loss, cross_entropy(output.logits, torch.tensor([0, 1, 2])))
    assert model.classifier.dense.weight.shape == (32, 32)
    assert make().classifier.dense.weight.shape == (32, 64) and make().classifier.out_proj.weight.shape == (3, 32)
