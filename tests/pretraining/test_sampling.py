import numpy as np
import pytest

from crosslingual_zoo.pretraining.data import sampling
from crosslingual_zoo.pretraining.data.example_index import ExampleIndex
from crosslingual_zoo.pretraining.data.languages import sampling_probabilities
from crosslingual_zoo.pretraining.data.sampling import BatchSampler, corpus_probabilities, micro_batches
from crosslingual_zoo.pretraining.objectives import OBJECTIVES
from crosslingual_zoo.zoo_core.keyed_random import keyed_rng


class Counted:
    """A corpus with only languages and sizes."""

    def __init__(self, name, examples):
        self.name = name
        self.size = examples
        self.languages = name.partition("/")[0].split("-")
        stops = np.random.default_rng(examples).integers(3, 60, (1, examples))
        self.training = ExampleIndex(np.arange(examples), np.arange(examples)[None], np.zeros_like(stops), stops)
        self.lengths = self.training.lengths


CORPORA = {0: Counted("en", 900), 1: Counted("de", 300), 3: Counted("sw", 20)}


def sampler_of(corpora=CORPORA, seed=1, phase=0, name="mlm", batch_size=16, alpha=0.7):
    return BatchSampler((seed, phase), OBJECTIVES[name](batch_size=batch_size), corpora, alpha)


def drawn_of(sampler, updates, start=0):
    """[(corpus, epoch, row)] of each step."""
    return [np.stack(batch, 1).tolist() for batch in sampler.batches(range(start, updates))]


def test_corpus_probabilities_of_a_pair_are_shared_by_size():
    sizes = {"en-de/ntrex": 200, "en-fr": 300, "de-en/multi30k": 600, "de-fr": 50}
    corpora = [Counted(name, size) for name, size in sizes.items()]
    for alpha in (0.0, 0.3, 1.0):
        total = 800**alpha + 300**alpha + 50**alpha
        expected = [800**alpha / total / 4, 300**alpha / total, 800**alpha / total * 3 / 4, 50**alpha / total]
        assert corpus_probabilities(corpora, alpha) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0])
def test_draws_follow_the_formula(alpha):
    drawn = sampler_of(batch_size=64, alpha=alpha).choices(0, 1000)
    shares = np.bincount(drawn, minlength=3) / len(drawn)
    expected = sampling_probabilities([900, 300, 20], alpha)
    assert np.abs(shares - expected).max() < 4 * np.sqrt(0.25 / len(drawn))


def test_counts_before_a_step_are_those_of_the_past_choices():
    """They are counted in parts."""
    sampler = sampler_of(batch_size=3)
    expected = np.bincount(sampler.choices(0, 10_000), minlength=3)
    assert sampler.counts_before(10_000).tolist() == expected.tolist()


@pytest.mark.parametrize("at_once", [1, 16, 100])
def test_draws_are_the_same_in_parts_of_any_size(at_once, monkeypatch):
    whole = drawn_of(sampler_of(), 40)
    monkeypatch.setattr(sampling, "EXAMPLES_AT_ONCE", at_once)
    assert drawn_of(sampler_of(), 40) == whole


def test_draws_follow_their_definition():
    """One by one: the corpus by its number, then its next row in the order of its epoch; sorted by length."""
    sampler = sampler_of()
    counts = dict.fromkeys(CORPORA, 0)

    def length_of(drawn) -> int:
        number, _, row = drawn
        return CORPORA[number].lengths[row]

    for step, batch in enumerate(drawn_of(sampler_of(), 30)):
        expected = []
        for choice in sampler.choices(step).tolist():
            number = list(CORPORA)[choice]
            corpus = CORPORA[number]
            epoch, position = divmod(counts[number], corpus.size)
            order = keyed_rng(1, 0, "monolingual", "order", corpus.name, epoch).permutation(corpus.size)
            expected.append([number, epoch, int(order[position])])
            counts[number] += 1
        assert batch == sorted(expected, key=length_of)


def test_draws_depend_on_seed_phase_and_kind_of_text():
    first = drawn_of(sampler_of(), 3)
    for other in (sampler_of(seed=2), sampler_of(phase=1), sampler_of(name="tlm")):
        assert drawn_of(other, 3) != first
    assert drawn_of(sampler_of(name="tlm"), 1) == drawn_of(sampler_of(name="ca_mlm_pairs"), 1)


def test_micro_batches_hold_examples_of_like_length():
    corpora = {"mlm": CORPORA, "tlm": {2: Counted("en-de", 100)}}
    samplers = {name: sampler_of(corpora[name], name=name) for name in ("mlm", "tlm")}
    batches = list(micro_batches(samplers, range(5), num_processes=1, process_index=0, accumulation=2))
    assert [list(batch) for batch in batches] == [["mlm", "tlm"]] * 10

    def lengths_of(batch, name) -> list[int]:
        return [corpora[name][number].lengths[row] for number, _, row in zip(*batch[name], strict=True)]

    for first, second in zip(batches[::2], batches[1::2], strict=True):
        for name in ("mlm", "tlm"):
            shorter = lengths_of(first, name)
            longer = lengths_of(second, name)
            assert len(shorter) == len(longer) == 8
            assert max(shorter) <= min(longer)
