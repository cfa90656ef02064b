"""Word-alignment accuracy during pre-training: on states with a known answer, and in a run."""

import copy
import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from modeling.configuration_veco import VecoConfig
from modeling.modeling_veco import VecoForPreTraining
from pretraining.data.examples import Example
from pretraining.evaluation import ENCODINGS, aligned_tokens, alignment_accuracy
from pretraining.held_out import Evaluator
from pretraining.objectives.ca_mlm import cross_attention_alignment
from pretraining.tracking import read_events

TWIN = 20  # id of a token's twin - id of the token


class XlmRsSpecials:
    """The part of a tokenizer that rows need."""

    pad_token_id = 1

    def __call__(self, x, y, return_special_tokens_mask):
        return {"input_ids": [0, 5, 2, 2, 6, 2], "special_tokens_mask": [1, 0, 1, 1, 0, 1]}


TOKENIZER = XlmRsSpecials()
ACCELERATOR = SimpleNamespace(device=torch.device("cpu"), autocast=nullcontext)


SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)


def evaluator(model, batch_size):
    return Evaluator(model, TOKENIZER, ACCELERATOR, batch_size, objectives=[], alignment=True)


MAX_LENGTH = 64


def corpus_of(*pairs):
    sides = [[np.array(side, dtype=np.int32) for side in pair] for pair in pairs]
    return SimpleNamespace(
        max_length=MAX_LENGTH, held_out=[Example(pair, "en-fake", number) for number, pair in enumerate(sides)]
    )


def twins(*texts):
    return corpus_of(*((text, [token + TWIN for token in text]) for text in texts))


class Encoder:
    """Layers made by hand. 0: a token has its twin's vector; 1: it has that of the twin of the token before it (ids
    follow each other); 2: as 0 for the first three tokens, all others share one vector; 3: a token lies nearest to the
    special tokens. Special tokens have vectors of their own."""

    config = VecoConfig(pad_token_id=TOKENIZER.pad_token_id)

    def roberta(self, input_ids, attention_mask, position_ids, output_hidden_states):
        assert output_hidden_states and attention_mask.equal(input_ids.ne(TOKENIZER.pad_token_id).long())
        original = torch.where(input_ids >= 5 + TWIN, input_ids - TWIN, input_ids)
        is_twin = (input_ids >= 5 + TWIN).long()
        ordinary = input_ids > 4
        table = torch.eye(40)
        near_specials = table[original] + 9 * table[0] * ordinary[..., None]
        near_specials = torch.where(ordinary[..., None], near_specials, table[0])
        states = (
            table[original],
            table[original + is_twin],
            table[torch.where(original > 7, 30, original)],
            near_specials,
        )
        return SimpleNamespace(hidden_states=states)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("batch_size", [2, 8])
def test_known_states_have_known_accuracies(encoding, batch_size):
    """Of `5 6 7 8 9` layer 1 finds none: x_i meets y_{i-1}, and x_1 and y_5 (no equal) meet some token by chance."""
    corpus = twins([5, 6, 7, 8, 9], [5, 6], [5])
    exact, moved, pooled, special = alignment_accuracy(evaluator(Encoder(), batch_size), corpus, encoding)
    assert exact == special == 1.0
    # argmax takes the first of equals: right for the single token (2) and for one of the tokens without an equal (3)
    assert moved == pytest.approx(4 / 16)
    # 8 and 9 share a vector, and both meet the first of the two: one of them rightly
    assert pooled == pytest.approx(14 / 16)


def test_tokens_are_counted_as_a_plain_loop_counts_them():
    torch.manual_seed(0)
    x_BTH, y_BSH = torch.randn(3, 9, 4), torch.randn(3, 7, 4)
    lengths = [5, 2, 1]
    x_BT, y_BS = torch.zeros(3, 9, dtype=torch.bool), torch.zeros(3, 7, dtype=torch.bool)
    for row, length in enumerate(lengths):
        x_BT[row, 2 : 2 + length] = True
        y_BS[row, 1 : 1 + length] = True
    right = 0
    for x, y, x_own, y_own in zip(x_BTH, y_BSH, x_BT, y_BS, strict=True):
        cosine = torch.nn.functional.cosine_similarity(x[x_own][:, None], y[y_own][None], dim=-1)
        right += sum(int(row.argmax()) == number for number, row in enumerate(cosine))
        right += sum(int(column.argmax()) == number for number, column in enumerate(cosine.T))
    assert int(aligned_tokens(x_BTH, y_BSH, x_BT, y_BS)) == right > 2


def test_separate_sides_do_not_see_each_other_and_joint_sides_do():
    torch.manual_seed(0)
    config = VecoConfig(vocab_size=60, max_position_embeddings=66, cross_attention=False, **SIZES)
    model = VecoForPreTraining(config).eval()
    inputs = []
    forward = model.roberta.forward
    model.roberta.forward = lambda ids, **fields: inputs.append((ids, fields["position_ids"])) or forward(ids, **fields)
    corpus = twins([5, 6, 7], [8, 9])
    alignment_accuracy(evaluator(model, 8), corpus, "joint")
    alignment_accuracy(evaluator(model, 8), corpus, "separate")
    joint, x, y = inputs
    assert joint[0].tolist() == [[0, 8, 9, 2, 2, 28, 29, 2, 1, 1], [0, 5, 6, 7, 2, 2, 25, 26, 27, 2]]
    assert x[0].tolist() == [[0, 8, 9, 2, 1], [0, 5, 6, 7, 2]]
    assert y[0].tolist() == [[0, 28, 29, 2, 1], [0, 25, 26, 27, 2]]
    # positions count from 2; those of y continue after `<s> x </s>`, padding stays at 1
    assert x[1].tolist() == [[2, 3, 4, 5, 1], [2, 3, 4, 5, 6]]
    assert y[1].tolist() == [[6, 7, 8, 9, 1], [7, 8, 9, 10, 11]]


def test_a_pair_cut_to_an_odd_room_is_one_to_one_and_others_are_not():
    room = MAX_LENGTH - 4
    cut = list(range(5, 5 + room // 2))
    corpus = corpus_of((cut, [token + TWIN for token in cut]))
    corpus.max_length += 1
    corpus.held_out[0].sides[0] = np.append(corpus.held_out[0].sides[0], 5)
    for encoding in ENCODINGS:
        model = SimpleNamespace(
            config=Encoder.config,
            roberta=lambda ids, **_: SimpleNamespace(hidden_states=(torch.eye(99)[torch.where(ids < 5, 98, ids)],)),
        )
        alignment_accuracy(evaluator(model, 4), corpus, encoding)
        for pair in (([5, 6], [25, 26, 27]), ([5, 6, 7, 8], [25])):
            with pytest.raises(ValueError, match="evaluation.alignment"):
                alignment_accuracy(evaluator(model, 4), corpus_of(pair), encoding)


@pytest.mark.parametrize("stream", ["bidirectional", "causal"])
def test_cross_attention_is_the_one_of_each_pair_by_itself(stream):
    torch.manual_seed(0)
    config = VecoConfig(vocab_size=60, max_position_embeddings=70, initializer_range=0.4, cross_stream=stream, **SIZES)
    model = VecoForPreTraining(config).eval()
    texts = [[5, 6, 7, 8, 9], [12, 5], [8], [20, 9, 14, 14, 7, 21, 6]]
    right, count = torch.zeros(2), 0
    eager = VecoForPreTraining._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    for text in texts:
        rows = [torch.tensor([[0, *text, 2]]), torch.tensor([[0, *(token + TWIN for token in text), 2]])]
        for own, other in (rows, rows[::-1]):
            with torch.no_grad():
                read = eager.roberta(other).last_hidden_state
                mask = torch.ones_like(own)
                if stream == "causal":
                    mask = torch.ones(1, own.shape[1], own.shape[1], dtype=torch.bool).tril()
                output = eager.roberta(own, attention_mask=mask, encoder_hidden_states=read, output_attentions=True)
            for layer, weights_BATS in enumerate(output.cross_attentions):
                best = weights_BATS[0].mean(0)[1:-1, 1:-1].argmax(-1)
                right[layer] += (best == torch.arange(len(text))).sum()
            count += len(text)
    assert 0 < right.min() < count
    for batch_size in (1, 3):
        found = cross_attention_alignment(evaluator(model, batch_size), twins(*texts))
        assert found == pytest.approx((right / count).tolist())
    assert model.config._attn_implementation == "sdpa"


def test_a_run_logs_it(train, sample, tmp_path):
    side = json.dumps(sample("en"))  # of both: a pair is one to one
    train(
        "model.type=veco",
        "phases.0.steps=2",
        "phases.0.objectives={tlm: {batch_size: 4, max_length: 64}, ca_mlm_pairs: {batch_size: 4, max_length: 32}}",
        f"bitext=[{{source_language: en, target_language: fake, join_on: id, source: {side}, target: {side}}}]",
        "evaluation={held_out_fraction: 0.1, max_examples: 20, every_steps: 1, alignment: true}",
    )
    events = [event for event in read_events(tmp_path / "run") if "alignment_joint/en-fake" in event]
    assert [event["step"] for event in events] == [1, 2]
    for event in events:
        for encoding in ENCODINGS:
            by_layer = event[f"alignment_{encoding}_by_layer/en-fake"]
            assert len(by_layer) == 3 and event[f"alignment_{encoding}/en-fake"] == max(by_layer)
            assert all(0 <= accuracy <= 1 for accuracy in by_layer)
        assert len(event["alignment_cross_by_layer/en-fake"]) == 2  # the embeddings have no cross-attention
