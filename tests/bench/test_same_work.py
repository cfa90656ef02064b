"""What the benchmarks compare does the same work."""

import numpy as np
import pytest
import torch

from bench.masked_lm_step import (
    ENCODERS,
    PEER,
    PREDICTED,
    Part,
    Size,
    features,
    losses_of,
    made_up_examples,
    made_up_tokenizer,
    read_lengths,
    round_batches,
    row_lengths,
    steps_of,
)
from pretraining.data.examples import Texts
from pretraining.objectives import OBJECTIVES

SIZE = Size(layers=1, hidden=64, vocab=300)
PAIRS = np.array([[5, 9], [12, 8], [30, 3], [7, 7]])


def test_masked_lm_steps_read_the_same_rows():
    tokenizer, rng = made_up_tokenizer(SIZE.vocab), np.random.default_rng(0)
    examples = made_up_examples(PAIRS, SIZE.vocab, rng)
    ours = OBJECTIVES["tlm"](tokenizer, mask_probability=PREDICTED).sub_batch(Texts.of(examples), ("bench",))
    gold = torch.where(ours["labels"] != -100, ours["labels"], ours["input_ids"])
    for row, peer in zip(range(len(PAIRS)), features(examples, tokenizer), strict=True):
        length = len(peer["input_ids"])
        assert length == row_lengths(PAIRS)[row] == ours["attention_mask"][row].sum()
        assert gold[row, :length].tolist() == peer["input_ids"]
        assert ours["special_tokens_mask"][row, :length].tolist() == peer["special_tokens_mask"]
    assert 0.05 < (ours["labels"] != -100).sum() / ours["attention_mask"].sum() < 0.25


@pytest.mark.parametrize("encoder", ENCODERS)
def test_masked_lm_steps_have_the_same_weights_and_loss(encoder):
    steps = steps_of(encoder, SIZE, Part("random", "fp32", 4))
    examples = made_up_examples(PAIRS, SIZE.vocab, np.random.default_rng(0))
    seen = []
    for name in steps:
        seen.append(losses_of(steps, examples))
        assert list(seen[-1].values()) == pytest.approx([seen[-1][PEER]] * len(steps), abs=1e-4)
        steps[name].model.zero_grad()
        steps[name](examples)  # a step of one changes the weights of all
    assert len({losses[PEER] for losses in seen}) == len(steps)


def test_masked_lm_rounds_are_grouped_by_length():
    grouped = round_batches(Part("grouped", "fp32", 8), read_lengths(), 0, 3)
    assert all(2 * np.ptp(row_lengths(batch)) < row_lengths(batch).min() for batch in grouped)
