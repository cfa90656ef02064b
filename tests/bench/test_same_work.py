"""What the benchmarks compare does the same work."""

import argparse

import numpy as np
import pytest
import torch

from bench import finetuning, generation
from bench._flops import Size
from bench._lengths import read_lengths
from bench._steps import ENCODERS, Contest, features, made_up_examples, made_up_tokenizer, our_batch
from bench.masked_lm_step import LONGEST, OURS, PARTS, PEER, Part, round_batches, row_lengths, that_fits
from bench.paper_steps import STEPS, make_batches, make_model, run
from bench.word_alignment import draw_sorted, require_same

SIZE = Size(layers=1, hidden=64, vocab=300)
PAIRS = np.array([[5, 9], [12, 8], [30, 3], [7, 7]])


def test_masked_lm_steps_read_the_same_rows():
    tokenizer, rng = made_up_tokenizer(SIZE.vocab), np.random.default_rng(0)
    examples = made_up_examples(PAIRS, SIZE.vocab, rng)
    ours = our_batch(tokenizer, examples)["tlm"]
    gold = torch.where(ours["labels"] != -100, ours["labels"], ours["input_ids"])
    for row, peer in zip(range(len(PAIRS)), features(examples, tokenizer), strict=True):
        length = len(peer["input_ids"])
        assert length == row_lengths(PAIRS)[row] == ours["attention_mask"][row].sum()
        assert gold[row, :length].tolist() == peer["input_ids"]
        assert ours["special_tokens_mask"][row, :length].tolist() == peer["special_tokens_mask"]
    assert 0.05 < (ours["labels"] != -100).sum() / ours["attention_mask"].sum() < 0.25


@pytest.mark.parametrize("encoder", ENCODERS)
def test_masked_lm_steps_have_the_same_weights_and_loss(encoder, in_this_process):
    in_this_process("masked_lm_step")
    contest = Contest.of(encoder, SIZE, LONGEST, "fp32", "tlm")
    examples = made_up_examples(PAIRS, SIZE.vocab, np.random.default_rng(0))
    for _ in range(2):
        losses = contest.losses(examples)
        assert losses[PEER] == pytest.approx(losses[OURS], abs=1e-4)
        contest.peer(examples)  # a step of either changes the weights of both
    contest.share_moments()
    contest.clear(for_ours=True)
    contest.ours(examples)
    after = contest.losses(examples)
    assert after[PEER] == pytest.approx(after[OURS], abs=1e-4) and after[OURS] != losses[OURS]


def test_masked_lm_rounds_have_the_same_sentences():
    pairs_M2, _ = read_lengths()
    peers, ours = round_batches(Part("grouped", "fp32", 8, 2), pairs_M2, 0, 3)
    assert sorted(np.concatenate(peers).tolist()) == sorted(np.concatenate(ours).tolist())
    packed, _ = round_batches(Part("packed", "fp32", 4, 2), pairs_M2, 0, 2)
    assert [row_lengths(batch).tolist() for batch in packed] == [[512] * 4] * 2
    part, size = PARTS["random-bf16"], Size(12, 768, 250_002)
    smaller, asked = that_fits(size, part, pairs_M2, 2, 1, 12 * 2**30)
    assert 1 <= smaller.pairs < part.pairs == 32 and asked > 12 * 2**30
    assert that_fits(size, part, pairs_M2, 2, 1, asked) == (part, asked)


def test_papers_steps_have_the_same_tokens_and_labels():
    batches = make_batches(PAIRS, SIZE.vocab, "cpu")
    assert all(batches["camlm"][name].equal(batches["tlm"][name]) for name in ("input_ids", "labels"))
    for field in ("labels", "attention_mask", "segment_ids"):
        assert torch.equal(batches["btmlm"][field], batches["tlm of btmlm's rows"][field])
    gold = {}
    for name in ("tlm", "ca_mlm_pairs", "ca_mlm_segments"):
        sides = [batches[name]] if name == "tlm" else [batches[name][side] for side in "xy"]
        rows = [torch.where(side["labels"] != -100, side["labels"], side["input_ids"]) for side in sides]
        gold[name] = [sorted(torch.cat([row[i][(row[i] > 2)] for row in rows]).tolist()) for i in range(len(PAIRS))]
    assert gold["tlm"] == gold["ca_mlm_pairs"] == gold["ca_mlm_segments"]


def test_one_forward_for_tlm_and_dwa_learns_what_two_do():
    batches, gradients = make_batches(PAIRS, SIZE.vocab, "cpu"), []
    for step in ("tlm + dwa", "tlm, then dwa"):
        model = make_model("xlm_align", SIZE, 64)
        run(model, STEPS["xlm_align"][step], batches)
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_translation_models_are_the_same_function():
    sizes = dict(layers=1, decoder_layers=1, hidden=64, vocab=200, sentences=6, length=9, new=5, rounds=1)
    flags = generation.read_flags([item for name, value in sizes.items() for item in (f"--{name}", str(value))])
    models, sources = generation.make_models(flags), generation.make_sources(flags)
    assert set(generation.peer_state(models[generation.OURS].state_dict())) == set(
        models[generation.PEER].state_dict()
    ), "no weight of the peer is its own"
    target = torch.randint(4, 199, (6, 5))
    with torch.no_grad():
        logits = [model(**sources, decoder_input_ids=target).logits for model in models.values()]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
    with pytest.raises(AssertionError):
        generation.same_share(torch.zeros(6, 6), torch.ones(6, 6), flags)


@pytest.mark.slow
def test_fine_tuning_by_another_padding_scores_the_same(tmp_path):
    sizes = dict(layers=1, hidden=64, rows=2000, used=900, vocab=600, max_length=40)
    flags = argparse.Namespace(**sizes, batch=8, updates=3, evaluated=5, rounds=1, hub_root=None)
    (overrides,) = finetuning.tables(None).values()
    finetuning.save_models(tmp_path, finetuning.texts_of(overrides, flags), flags)
    contest = finetuning.Contest(overrides, tmp_path, flags, tmp_path / "out")
    ways = (finetuning.TOGETHER, finetuning.APART, finetuning.APART_WHOLE)
    together, apart, whole = (contest.evaluate(name)[1] for name in ways)
    assert together == apart == whole
    ours, all_rows = (contest.train(name, 0) for name in (finetuning.OURS, finetuning.ALL_ROWS))
    assert ours["positions"] == all_rows["positions"]
    # two moments in float32 of the rows that are left out
    assert all_rows["state_mib"] - ours["state_mib"] == pytest.approx(8 * (2000 - 900) * 64 / 2**20)


def test_pairs_to_align():
    batches = draw_sorted(64, 16)
    drawn = [sum(pair) for batch in batches for pair in batch]
    assert [len(batch) for batch in batches] == [16] * 4 and drawn == sorted(drawn)
    assert require_same(1, 200, "x") == "same links in 199 of 200 pairs"
    with pytest.raises(ValueError, match="3 of 200"):
        require_same(3, 200, "x")
