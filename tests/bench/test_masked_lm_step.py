"""Both loops of bench/masked_lm_step.py do the same work, and its figures are what it says."""

import numpy as np
import pytest
import torch

from bench._flops import Size
from bench._lengths import read_lengths
from bench._steps import Contest, features, made_up_examples, made_up_tokenizer, our_batch
from bench.masked_lm_step import (
    LONGEST,
    OURS,
    PARTS,
    PEER,
    WITHOUT,
    Part,
    round_batches,
    row_lengths,
    that_fits,
)

SIZE = Size(layers=2, hidden=64, vocab=500)
PAIRS = np.array([[5, 9], [12, 8], [30, 3], [7, 7]])


@pytest.fixture
def contest(in_this_process):
    in_this_process("masked_lm_step")
    return Contest.of(SIZE, LONGEST, "fp32", "tlm", "cpu")


def test_both_read_the_same_rows():
    tokenizer, rng = made_up_tokenizer(SIZE.vocab), np.random.default_rng(0)
    assert len(tokenizer) == SIZE.vocab and tokenizer.mask_token_id == SIZE.vocab - 1
    examples = made_up_examples(PAIRS, SIZE.vocab, rng)
    ours = our_batch(tokenizer, examples)["tlm"]
    gold = torch.where(ours["labels"] != -100, ours["labels"], ours["input_ids"])
    for row, peer in zip(range(len(PAIRS)), features(examples, tokenizer), strict=True):
        length = len(peer["input_ids"])
        assert length == row_lengths(PAIRS)[row] == ours["attention_mask"][row].sum()
        assert gold[row, :length].tolist() == peer["input_ids"]
        assert ours["special_tokens_mask"][row, :length].tolist() == peer["special_tokens_mask"]
    assert 0.05 < (ours["labels"] != -100).sum() / ours["attention_mask"].sum() < 0.25


def test_both_have_the_same_weights_and_loss(contest):
    examples = made_up_examples(PAIRS, SIZE.vocab, np.random.default_rng(0))
    for _ in range(2):
        losses = contest.losses(examples)
        assert losses[PEER] == pytest.approx(losses[OURS], abs=1e-4)
        contest.peer(examples)  # a step of either changes the weights of both
    contest.share_moments()
    contest.clear(for_ours=True)
    before, moments = losses[OURS], contest.peer.optimizer.state
    step = next(iter(moments.values()))["step"].clone()
    contest.ours(examples)
    after = contest.losses(examples)
    assert after[PEER] == pytest.approx(after[OURS], abs=1e-4) and after[OURS] != before
    assert contest.ours.optimizer.state is moments and next(iter(moments.values()))["step"] == step + 1


def test_batches_of_a_round():
    pairs_M2, _ = read_lengths()
    random, ours = round_batches(Part("random", "fp32", 8, 5), pairs_M2, 0, 3)
    assert random is ours and [batch.shape for batch in random] == [(8, 2)] * 3
    peers, ours = round_batches(Part("grouped", "fp32", 8, 2), pairs_M2, 0, 3)
    assert sorted(np.concatenate(peers).tolist()) == sorted(np.concatenate(ours).tolist())  # the same sentences

    def waste(batches):
        lengths = [row_lengths(batch) for batch in batches]
        return sum(len(n) * n.max() for n in lengths) / sum(n.sum() for n in lengths)

    assert waste(peers) < 1.15 < 1.25 < waste(ours)
    again, _ = round_batches(Part("grouped", "fp32", 8, 2), pairs_M2, 0, 3)
    other, _ = round_batches(Part("grouped", "fp32", 8, 2), pairs_M2, 1, 3)
    assert np.concatenate(again).tolist() == np.concatenate(peers).tolist() != np.concatenate(other).tolist()
    packed, _ = round_batches(Part("packed", "fp32", 4, 2), pairs_M2, 0, 2)
    assert [row_lengths(batch).tolist() for batch in packed] == [[512] * 4] * 2


def test_a_part_that_does_not_fit_is_made_smaller():
    part, size = PARTS["random-bf16"], Size(12, 768, 250_002)
    pairs_M2, _ = read_lengths()
    smaller, asked = that_fits(size, part, pairs_M2, 2, 1, 12 * 2**30)
    assert 1 <= smaller.pairs < part.pairs == 32 and asked > 12 * 2**30
    assert that_fits(size, part, pairs_M2, 2, 1, asked) == (part, asked)
    with pytest.raises(ValueError, match="--vocab"):
        that_fits(size, part, pairs_M2, 2, 1, 2**30)


@pytest.mark.slow
def test_the_command_writes_its_figures(figures):
    sizes = ["--layers", "1", "--hidden", "64", "--vocab", "300", "--pairs", "2", "--rounds", "2", "--batches", "1"]
    found = figures("masked_lm_step", *sizes, "--parts", "random-fp32", "grouped-fp32")
    assert list(found["parts"]) == ["random-fp32", "grouped-fp32"] and found["model"]["vocab"] == 300
    for part in found["parts"].values():
        assert [row["way"] for row in part["ways"]] == [PEER, OURS, WITHOUT]
        assert part["pairs"] == part["pairs_asked"] == 2
        peer, ours, _ = part["ways"]
        assert ours["ratio"] == pytest.approx(np.median(np.divide(peer["seconds"], ours["seconds"])))
        assert ours["memory_ratio"] == pytest.approx(peer["memory_mib"] / ours["memory_mib"])
        assert part["losses"][PEER] == pytest.approx(part["losses"][OURS], abs=1e-3)
        assert ours["milliseconds_per_token"] == pytest.approx(
            1000 * np.median(np.divide(ours["seconds"], part["real_tokens_a_round"]))
        )
