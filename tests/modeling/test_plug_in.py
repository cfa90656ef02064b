"""Plug-in fine-tuning: heads on [H:S] of a text and its translation, computed here once more by hand."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.modeling.tiny import batch_of, made, pair_row

TINY = dict(num_hidden_layers=2, num_labels=3)
HEADS = ["sequence", "token", "span"]
CLASSES = {"sequence": "ForSequenceClassification", "token": "ForTokenClassification", "span": "ForQuestionAnswering"}
STREAMS = ("bidirectional", "causal")


def make(head="sequence", **fields):
    return made("veco", CLASSES[head], **TINY | {"plug_in": True} | fields)


def rows_of(length):
    """Three rows of up to `length` - 2 tokens, padded on the right by different amounts."""
    batch = batch_of([pair_row(row, (length - 2 - row,)) for row in range(3)], "padded right")
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def of_translation(fields):
    return {f"translation_{name}": value for name, value in fields.items()}


@pytest.fixture
def batch():
    """x of 9 positions and y of 12."""
    return rows_of(9) | of_translation(rows_of(12))


def gold_of(head, ids, shift):
    """Labels of one side."""
    if head == "sequence":
        return {"labels": (torch.arange(3) + shift) % 3}
    if head == "token":
        return {"labels": (ids % 3).masked_fill(ids == 1, -100)}
    return {"start_positions": torch.arange(3) + shift, "end_positions": torch.arange(3) + 2 + shift}


@pytest.fixture
def gold(head, batch):
    """Labels of x, and of y."""
    of_x = gold_of(head, batch["input_ids"], shift=0)
    of_y = gold_of(head, batch["translation_input_ids"], shift=1)
    return of_x, of_translation(of_y)


def logits_of(output):
    return torch.stack([output.start_logits, output.end_logits], -1) if "start_logits" in output else output.logits


def head_logits(head, model, features):
    """What the model's head makes of features."""
    if head == "span":
        return model.qa_outputs(features)
    return model.classifier(features[:, 0] if head == "sequence" else features)


def loss_of(head, logits, labels):
    if head == "sequence":
        return cross_entropy(logits, *labels.values())
    if head == "token":
        return cross_entropy(logits.flatten(0, 1), *[label.flatten() for label in labels.values()])
    starts, ends = labels.values()
    return (cross_entropy(logits[..., 0], starts) + cross_entropy(logits[..., 1], ends)) / 2


def causal_mask(mask_BT):
    """Padding neither attends nor is attended to."""
    return (mask_BT[:, :, None] * mask_BT[:, None, :]).tril().bool()


def features_by_hand(model, batch):
    """[H_x : S_x] and [H_y : S_y]."""

    def stream(ids, mask, **other):
        return model.roberta(ids, attention_mask=mask, **other).last_hidden_state

    x = batch["input_ids"]
    y = batch["translation_input_ids"]
    x_mask = batch["attention_mask"]
    y_mask = batch["translation_attention_mask"]
    h_x = stream(x, x_mask)
    h_y = stream(y, y_mask)
    is_causal = model.config.cross_stream == "causal"
    x_self_mask = causal_mask(x_mask) if is_causal else x_mask
    y_self_mask = causal_mask(y_mask) if is_causal else y_mask
    s_x = stream(x, x_self_mask, encoder_hidden_states=h_y, encoder_attention_mask=y_mask)
    s_y = stream(y, y_self_mask, encoder_hidden_states=h_x, encoder_attention_mask=x_mask)
    return torch.cat([h_x, s_x], -1), torch.cat([h_y, s_y], -1)


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("head", HEADS)
def test_plug_in_heads_read_both_streams_and_learn_from_both_sides(head, stream, batch, gold):
    model = make(head, cross_stream=stream)
    x_gold, y_gold = gold
    output = model(**batch, **x_gold, **y_gold)
    x_features, y_features = features_by_hand(model, batch)
    assert x_features.shape == (3, 9, 64)
    x_logits = head_logits(head, model, x_features)
    torch.testing.assert_close(logits_of(output), x_logits, atol=1e-5, rtol=0)
    x_loss = loss_of(head, x_logits, x_gold)
    y_loss = loss_of(head, head_logits(head, model, y_features), y_gold)
    torch.testing.assert_close(output.loss, (x_loss + y_loss) / 2)
    torch.testing.assert_close(model(**batch, **x_gold).loss, x_loss)
    torch.testing.assert_close(model(**batch, **y_gold).loss, y_loss)
    assert model(**batch).loss is None
    # texts of one length need no masks
    first_texts = {name: ids[:1] for name, ids in batch.items() if "mask" not in name}
    torch.testing.assert_close(logits_of(model(**first_texts)), logits_of(output)[:1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("side", [0, 1])
def test_plug_in_labels_of_either_side_alone_teach_everything(side, head, batch, gold):
    model = make(head)
    model(**batch, **gold[side]).loss.backward()
    for name, parameter in model.named_parameters():
        # a key's bias moves no attention weight
        assert parameter.grad.any() or "key.bias" in name, name


@pytest.mark.parametrize(("head", "nothing"), [("token", -100), ("span", 99)])
def test_mean_loss_leaves_out_a_side_of_which_no_label_counts(head, nothing, batch, gold):
    model = make(head)
    x_gold, y_gold = gold
    x_nothing = {name: torch.full_like(labels, nothing) for name, labels in x_gold.items()}
    y_nothing = {name: torch.full_like(labels, nothing) for name, labels in y_gold.items()}
    assert torch.equal(model(**batch, **x_gold, **y_nothing).loss, model(**batch, **x_gold).loss)
    assert torch.equal(model(**batch, **x_nothing, **y_gold).loss, model(**batch, **y_gold).loss)
    loss = model(**batch, **x_nothing, **y_nothing).loss
    loss.backward()
    assert loss.item() == 0.0
    assert not any(parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)


def test_plug_in_an_answer_that_was_cut_off_in_the_middle_teaches_its_start(batch):
    starts = torch.arange(3)
    output = make("span")(**batch, start_positions=starts, end_positions=torch.full((3,), 99))
    torch.testing.assert_close(output.loss, cross_entropy(output.start_logits, starts))


def test_plug_in_runs_each_pass_once_and_only_where_it_is_needed(batch):
    model = make()
    are_crossed = []

    def record(module, arguments, options):
        are_crossed.append("encoder_hidden_states" in options)

    model.roberta.register_forward_pre_hook(record, with_kwargs=True)
    labels = torch.tensor([0, 1, 2])
    model(**batch, labels=labels)  # y has no label: its S stream serves nobody
    assert are_crossed == [False, False, True]
    are_crossed.clear()
    model(**batch, labels=labels, translation_labels=labels)
    assert sorted(are_crossed) == [False, False, True, True]


def positions_of(mask):
    """XLM-R's positions of a text that is padded on the right."""
    return mask.cumsum(1) * mask + 1


def test_plug_in_further_inputs_and_outputs_belong_to_x(batch):
    model = make()
    expected = model(**batch).logits
    h_x = model.roberta(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    batch["inputs_embeds"] = model.roberta.embeddings.word_embeddings(batch.pop("input_ids"))
    output = model(**batch, position_ids=positions_of(batch["attention_mask"]), output_hidden_states=True)
    torch.testing.assert_close(output.logits, expected, atol=1e-5, rtol=0)
    assert len(output.hidden_states) == 3
    torch.testing.assert_close(output.hidden_states[-1], h_x, atol=1e-5, rtol=0)


def test_plug_out_models_hand_positions_on():
    model = make(plug_in=False)
    batch = rows_of(9)
    shifted = model(**batch, position_ids=positions_of(batch["attention_mask"]) + 3).logits
    assert (shifted - model(**batch).logits).abs().max() > 1e-4


def test_plug_in_both_sides_have_token_types(batch):
    model = make(type_vocab_size=2)
    x_types = {"token_type_ids": torch.ones_like(batch["input_ids"])}
    y_types = {"translation_token_type_ids": torch.ones_like(batch["translation_input_ids"])}
    plain = model(**batch).logits
    of_both_sides = model(**batch, **x_types, **y_types).logits
    for logits in (model(**batch, **x_types).logits, model(**batch, **y_types).logits, of_both_sides):
        assert (plain - logits).abs().max() > 1e-4
    table = model.roberta.embeddings.token_type_embeddings.weight
    with torch.no_grad():
        table.copy_(table.flip(0))
    torch.testing.assert_close(model(**batch).logits, of_both_sides)


def test_plug_out_heads_are_xlm_r_s():
    model = make(plug_in=False)
    batch = rows_of(9)
    labels = torch.tensor([0, 1, 2])
    features = model.roberta(**batch).last_hidden_state
    output = model(**batch, labels=labels)
    assert torch.equal(output.logits, model.classifier(features[:, 0]))
    assert torch.equal(output.loss, cross_entropy(output.logits, labels))
    assert model.classifier.dense.weight.shape == (32, 32)
    plugged_in = make().classifier
    assert plugged_in.dense.weight.shape == (32, 64)
    assert plugged_in.out_proj.weight.shape == (3, 32)
