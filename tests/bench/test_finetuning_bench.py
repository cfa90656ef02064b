"""What bench/finetuning.py compares does the same work, and it writes its figures."""

import argparse

import pytest

from bench.finetuning import (
    ALL_ROWS,
    APART,
    APART_WHOLE,
    GROUPED,
    LONGEST,
    OURS,
    TOGETHER,
    TRAINING,
    WHOLE,
    Contest,
    save_models,
    tables,
    texts_of,
)

SIZES = dict(
    layers=1, hidden=64, rows=2000, used=900, vocab=600, max_length=40, batch=8, updates=3, evaluated=5, rounds=1
)


@pytest.fixture(scope="module")
def contest(tmp_path_factory):
    flags, folder = argparse.Namespace(**SIZES, hub_root=None), tmp_path_factory.mktemp("contest")
    (overrides,) = tables(None).values()
    save_models(folder, texts_of(overrides, flags), flags)
    return Contest(overrides, folder, flags, folder / "out")


@pytest.mark.slow
def test_padding_adds_nothing_that_is_read_or_scored(contest):
    for row, other in zip(contest.data.train, contest.whole.train, strict=True):
        length = row["length"]
        assert len(other["input_ids"]) == len(other["attention_mask"]) == 40 and other["labels"] == row["labels"]
        assert other["input_ids"][:length] == row["input_ids"] and sum(other["attention_mask"]) == length
        assert set(other["input_ids"][length:]) <= {contest.tokenizer.pad_token_id}
    assert contest.evaluate(TOGETHER)[1] == contest.evaluate(APART)[1] == contest.evaluate(APART_WHOLE)[1]


def test_a_round_is_drawn_from_a_whole_epoch_of_each_way(contest):
    def spread(name):
        """Positions that differ within a batch, on average."""
        batches = [batch for number in range(9) for batch in contest.batches(name, number)]
        assert all(len(batch) == 8 and len(set(batch)) == 8 for batch in batches)
        lengths = [[contest.lengths[row] for row in batch] for batch in batches]
        return sum(max(batch) - min(batch) for batch in lengths) / len(lengths)

    assert spread(OURS) < spread(LONGEST) / 2
    assert contest.batches(OURS, 1) == contest.batches(GROUPED, 1) != contest.batches(OURS, 2)


@pytest.mark.slow
def test_ways_train_what_they_say(contest):
    found = {name: contest.train(name, 0) for name in TRAINING}
    assert found[WHOLE]["positions"] == 40 >= found[LONGEST]["positions"] > found[GROUPED]["positions"]
    assert found[GROUPED]["positions"] > found[OURS]["positions"] == found[ALL_ROWS]["positions"]
    states = {name: of["state_mib"] for name, of in found.items()}
    # two moments in float32 of the rows that are left out
    assert states[ALL_ROWS] - states[OURS] == pytest.approx(8 * (2000 - 900) * SIZES["hidden"] / 2**20)
    assert states[ALL_ROWS] == pytest.approx(states[WHOLE], rel=0.01)
    assert type(contest.theirs).__module__.startswith("transformers.")


@pytest.mark.slow
def test_the_command_writes_its_figures(figures):
    sizes = [item for name, value in SIZES.items() for item in (f"--{name}", str(value))]
    (part,) = figures("finetuning", *sizes)["parts"].values()
    assert [line["way"] for line in part["ways"]] == [*TRAINING, TOGETHER, APART, APART_WHOLE]
    assert part["used_rows"] == 900
    assert part["evaluated_rows"] == dict.fromkeys(["en", "de", "fr", "es", "zh"], 5)
    for line in part["ways"]:
        assert line["examples_per_second"] > 0
        assert (line["ours_is_faster_by"] is None) == (line["way"] in (OURS, TOGETHER))
        assert ("state_mib" in line) == (line["way"] in TRAINING)
