import collections

import numpy as np
import pytest

from crosslingual_zoo.pretraining.data.languages import sampling_probabilities
from crosslingual_zoo.pretraining.data.sampling import ObjectivePlan, UpdateSampler, corpus_probabilities
from crosslingual_zoo.pretraining.objectives import OBJECTIVES
from crosslingual_zoo.pretraining.recipe_phases import Phase


class Counted:
    """A corpus with only languages and sizes."""

    def __init__(self, name, examples):
        self.name, self.size = name, examples
        self.languages = name.partition("/")[0].split("-")
        self.lengths = np.random.default_rng(examples).integers(3, 60, examples)


CORPORA = {0: Counted("en", 900), 1: Counted("de", 300), 3: Counted("sw", 20)}


def plan(corpora=CORPORA, seed=1, phase=0, name="mlm", batch_size=16, alpha=0.7):
    return ObjectivePlan(seed, phase, OBJECTIVES[name](batch_size=batch_size), corpora, alpha)


def draws_of(a_plan, updates, start=0):
    counts = a_plan.counts_before(start)
    return [a_plan.draws(update, counts) for update in range(start, updates)]


def test_corpus_probabilities_of_a_pair_are_shared_by_size():
    sizes = {"en-de/ntrex": 200, "en-fr": 300, "de-en/multi30k": 600, "de-fr": 50}
    corpora = [Counted(name, size) for name, size in sizes.items()]
    for alpha in (0.0, 0.3, 1.0):
        total = 800**alpha + 300**alpha + 50**alpha
        wanted = [800**alpha / total / 4, 300**alpha / total, 800**alpha / total * 3 / 4, 50**alpha / total]
        assert corpus_probabilities(corpora, alpha) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0])
def test_draws_follow_the_formula(alpha):
    drawn = plan(batch_size=64, alpha=alpha).choices(0, 1000)
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    wanted = sampling_probabilities([900, 300, 20], alpha)
    assert np.abs(shares - wanted).max() < 4 * np.sqrt(0.25 / len(drawn))


def test_draws_of_an_update_are_a_pure_function_of_its_number():
    whole = draws_of(plan(), 40)
    assert draws_of(plan(), 40, start=25) == whole[25:]
    assert draws_of(plan(), 40, start=39) == whole[39:]
    # the past is counted in parts
    many = plan(batch_size=3)
    assert (many.counts_before(10_000) == np.bincount(many.choices(0, 10_000), minlength=3)).all()


def test_draws_of_other_seeds_phases_and_objectives():
    first = draws_of(plan(), 3)
    for other in (plan(seed=2), plan(phase=1), plan(name="tlm")):
        drawn = draws_of(other, 3)
        assert [[d._replace(objective="mlm") for d in update] for update in drawn] != first


def test_draws_of_objectives_of_the_same_text():
    tlm, ca_mlm = ([draw[1:] for draw in draws_of(plan(name=name), 1)[0]] for name in ("tlm", "ca_mlm_pairs"))
    assert tlm == ca_mlm


def test_draws_visit_every_example_once_an_epoch():
    by_epoch = collections.defaultdict(list)
    small = {0: Counted("sw", 23)}
    for draw in sum(draws_of(plan(small), 23), []):
        by_epoch[draw.epoch].append(draw.row)
    assert len(by_epoch) == 16
    for rows in by_epoch.values():
        assert sorted(rows) == list(range(23))
    assert by_epoch[0] != by_epoch[1]


def test_sampler_micro_batches_hold_examples_of_like_length():
    objectives = {name: OBJECTIVES[name](batch_size=16) for name in ("mlm", "tlm")}
    read = {"mlm": CORPORA, "tlm": {2: Counted("en-de", 100)}}
    plans = [ObjectivePlan(1, 0, objective, read[name], 0.7) for name, objective in objectives.items()]
    phase = Phase(name="a", steps=5, objectives=objectives, learning_rate=1.0)
    sampler = UpdateSampler(plans, phase, 0, num_processes=1, process_index=0, accumulation=2)
    assert len(list(sampler)) == len(sampler) == 10
    for first, second in zip(*[iter(sampler)] * 2, strict=True):
        for name in ("mlm", "tlm"):
            before, after = (
                [read[name][draw.corpus].lengths[draw.row] for draw in micro_batch if draw.objective == name]
                for micro_batch in (first, second)
            )
            assert max(before) <= min(after) and len(before) == len(after) == 8
