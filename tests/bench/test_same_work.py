"""What the benchmarks compare does the same work; their ratios and memory."""

import numpy as np
import pytest
import torch

from bench import collators, mining
from bench import masked_lm_step as mlm
from bench._common import median_ratio, peak_bytes
from crosslingual_zoo.finetuning.tasks.vectors.search import nearest_neighbors
from crosslingual_zoo.pretraining.objectives import OBJECTIVES

SIZE = mlm.Size(layers=1, hidden=64, vocab=300)
PAIRS = np.array([[5, 9], [12, 8], [30, 3], [7, 7]])


def test_masked_lm_steps_read_the_same_rows():
    tokenizer = mlm.made_up_tokenizer(SIZE.vocab)
    examples = mlm.made_up_examples(PAIRS, SIZE.vocab, np.random.default_rng(0))
    ours = OBJECTIVES["tlm"](tokenizer, mask_probability=mlm.PREDICTED).sub_batch(examples, ("bench",))
    lengths = ours["attention_mask"].sum(1).tolist()
    assert lengths == mlm.row_lengths(PAIRS).tolist()
    gold = torch.where(ours["labels"] != -100, ours["labels"], ours["input_ids"])
    for row, peer in enumerate(mlm.features(examples, tokenizer)):
        assert gold[row, : lengths[row]].tolist() == peer["input_ids"]
        assert ours["special_tokens_mask"][row, : lengths[row]].tolist() == peer["special_tokens_mask"]
    assert 0.05 < (ours["labels"] != -100).sum() / sum(lengths) < 0.25


@pytest.mark.parametrize("name, sides", [("mlm", 1), ("tlm", 2)])
def test_collators_of_the_benchmark_mask_the_same_rows(name, sides, sample_tokenizer):
    texts = collators.read_sentences(5)[:sides]
    rows = []
    for work in collators.ways_of(OBJECTIVES[name](sample_tokenizer), texts).values():
        made = work()
        batch = made.get(name, made)  # transformers' batch has no objective
        gold_BT = torch.where(batch["labels"] != -100, batch["labels"], batch["input_ids"])
        rows.append(gold_BT.tolist())
    assert len(rows) == 4
    assert rows[1:] == rows[:-1]
    assert len(rows[0]) == 5


@pytest.mark.parametrize("encoder", mlm.ENCODERS)
def test_masked_lm_steps_have_the_same_weights_and_loss(encoder):
    steps = mlm.steps_of(encoder, SIZE, mlm.Part("random", "fp32", 4))
    examples = mlm.made_up_examples(PAIRS, SIZE.vocab, np.random.default_rng(0))
    losses_of_peer = set()
    for step in steps.values():
        losses = mlm.losses_of(steps, examples)
        assert losses == pytest.approx(dict.fromkeys(steps, losses[mlm.PEER]), abs=1e-4)
        losses_of_peer.add(losses[mlm.PEER])
        step.model.zero_grad()
        step(examples)  # a step of one changes the weights of all
    assert len(losses_of_peer) == len(steps)


def test_masked_lm_rounds_are_grouped_by_length():
    grouped = mlm.round_batches(mlm.Part("grouped", "fp32", 8), mlm.read_lengths(), 0, 3)
    for batch in grouped:
        lengths = mlm.row_lengths(batch)
        assert 2 * np.ptp(lengths) < lengths.min()


def test_median_ratio_and_peak_bytes():
    assert median_ratio([1, 9, 4], [1, 1, 2]) == 2  # of the rounds, not of the medians: 4 / 1

    def allocate():
        torch.ones(2**18).sum()
        return torch.ones(2**19) + torch.ones(2**19)

    peak = peak_bytes(allocate)
    assert peak == pytest.approx(3 * 4 * 2**19, rel=0.01)


def test_compiled_ways_share_weights():
    steps = mlm.steps_of("xlm-roberta", SIZE, mlm.Part("random", "fp32", 4), compiles=True)
    assert list(steps) == [mlm.PEER, mlm.PACKED, mlm.COMPILED[mlm.PACKED], mlm.OURS, mlm.COMPILED[mlm.OURS]]
    weights = [{id(parameter) for parameter in step.model.parameters()} for step in steps.values()]
    assert weights[1:] == weights[:-1]


def test_comparisons_leave_out_a_way_that_does_not_fit():
    timed = {mlm.PACKED: [2.0], mlm.OURS: [1.0], mlm.COMPILED[mlm.OURS]: [0.5]}
    of_ours = mlm.comparisons(mlm.OURS, timed)
    assert of_ours == {"faster by": None, "than packed": 2, "than packed, compiled": None}
    assert mlm.comparisons(mlm.COMPILED[mlm.OURS], timed)["than packed"] == 4
    assert mlm.comparisons(mlm.PACKED, timed) == {"faster by": None}


@pytest.mark.parametrize("mean_cosine", mining.CONES.values(), ids=mining.CONES)
def test_the_peer_of_mining_finds_the_same_neighbors(mean_cosine):
    source_SH, target_SH = mining.make_pools(50, mean_cosine)
    ours, _ = nearest_neighbors(source_SH, target_SH, mining.NEIGHBORS)
    peer_SK = mining.product(source_SH, target_SH)
    assert (ours.numbers_NK == peer_SK).float().mean() > 0.9  # float32 exchanges near ones in the cone
    cosines = torch.nn.functional.cosine_similarity(source_SH[:, None], target_SH[None], dim=-1)
    assert cosines.mean() == pytest.approx(mean_cosine, abs=0.02)
