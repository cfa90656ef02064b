"""Both loops of bench/masked_lm_step.py do the same work, and its figures are what it says."""

import json

import numpy as np
import pytest
import torch

from bench._common import peak_bytes
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
    bytes_needed,
    flops_ratio,
    measure_memory,
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


def test_gradients_between_updates_are_those_of_each_loop(contest):
    examples = made_up_examples(PAIRS, SIZE.vocab, np.random.default_rng(0))
    contest.ours(examples)
    matrix = contest.ours.model.get_input_embeddings().weight
    left = {name for name, p in contest.ours.model.named_parameters() if p.grad is not None}
    contest.clear(for_ours=True)
    assert left == {name for name, p in contest.ours.model.named_parameters() if p.grad is not None}
    assert matrix.grad.eq(0).all()
    contest.peer(examples)
    assert all(p.grad is None for p in contest.peer.model.parameters())
    contest.clear(for_ours=False)
    assert matrix.grad is None


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


def test_flops_that_the_peer_wastes_are_padding_and_logits():
    size = Size(12, 768, 250_002)
    packed = flops_ratio(size, [np.full((4, 1), 510)])
    assert packed == pytest.approx(2.4, abs=0.1)  # of the head alone
    assert flops_ratio(size, [np.array([[30, 30], [10, 10]])]) > 1.3 * packed


def test_what_the_peer_needs_is_foreseen(in_this_process):
    """Of logits and of states, above weights, gradients and moments."""
    in_this_process("masked_lm_step")
    for size in (Size(1, 64, 20_000), Size(6, 128, 2_000)):
        part = Part("random", "fp32", 8, 5)
        batches = round_batches(part, PAIRS, 0, 1)[0]
        found = measure_memory(size, part, PAIRS, PEER)["above_mib"] * 2**20
        weights = 16 * (size.vocab * size.hidden + 12 * size.layers * size.hidden**2)
        assert 0.7 * found < bytes_needed(size, part, batches) - weights < 2 * found


def test_a_part_that_does_not_fit_is_made_smaller():
    part, size = PARTS["random-bf16"], Size(12, 768, 250_002)
    pairs_M2, _ = read_lengths()
    smaller, asked = that_fits(size, part, pairs_M2, 2, 1, 12 * 2**30)
    assert 1 <= smaller.pairs < part.pairs == 32 and asked > 12 * 2**30
    assert that_fits(size, part, pairs_M2, 2, 1, asked) == (part, asked)
    with pytest.raises(ValueError, match="even with one row a batch, and 1.0 GiB.*Lower --vocab or --layers"):
        that_fits(size, part, pairs_M2, 2, 1, 2**30)


@pytest.mark.slow
def test_the_command_writes_its_figures(in_this_process, tmp_path, capsys):
    bench, output = in_this_process("masked_lm_step"), tmp_path / "results" / "step.json"
    sizes = ["--layers", "1", "--hidden", "64", "--vocab", "300", "--pairs", "2", "--rounds", "2", "--batches", "1"]
    bench.main([*sizes, "--parts", "random-fp32", "grouped-fp32", "--output", str(output)])
    found = json.loads(output.read_text(encoding="utf-8"))
    assert list(found["parts"]) == ["random-fp32", "grouped-fp32"] and found["model"]["vocab"] == 300
    for part in found["parts"].values():
        assert [row["way"] for row in part["ways"]] == [PEER, OURS, WITHOUT]
        assert part["skips_padding"] and part["pairs"] == part["pairs_asked"] == 2
        peer, ours, _ = part["ways"]
        assert ours["ratio"] == pytest.approx(np.median(np.divide(peer["seconds"], ours["seconds"])))
        assert ours["memory_ratio"] == pytest.approx(peer["memory_mib"] / ours["memory_mib"])
        assert part["losses"][PEER] == pytest.approx(part["losses"][OURS], abs=1e-3)
        assert ours["milliseconds_per_token"] == pytest.approx(
            1000 * np.median(np.divide(ours["seconds"], part["real_tokens_a_round"]))
        )
    assert "grouped-fp32: TLM, 2 pairs a batch, fp32" in capsys.readouterr().out


def test_a_tokenizer_without_text_is_refused(in_this_process, tmp_path, capsys):
    with pytest.raises(SystemExit):
        in_this_process("masked_lm_step").main(["--tokenizer", "x", "--output", str(tmp_path / "out.json")])
    assert "--hub_root is not given" in capsys.readouterr().err


def test_memory_above_what_stays_is_an_updates_own(contest):
    """Its largest moment, less the gradients that are made in it."""
    examples = made_up_examples(PAIRS, SIZE.vocab, np.random.default_rng(0))
    contest.ours(examples)
    from bench._steps import missing_gradients

    matrix = contest.ours.model.get_input_embeddings().weight
    whole = sum(p.numel() for p in contest.ours.model.parameters())
    assert missing_gradients(contest.ours.model) == 4 * (whole - matrix.numel())
    assert peak_bytes(lambda: contest.ours(examples), "cpu") > missing_gradients(contest.ours.model)
