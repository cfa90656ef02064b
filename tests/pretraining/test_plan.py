"""What a dry run says about time and memory, and about saving."""

from types import SimpleNamespace

import pytest
import torch

from crosslingual_zoo.pretraining import costs as costs_module
from crosslingual_zoo.pretraining import plan
from crosslingual_zoo.pretraining.costs import measure, part_of_step, state_bytes, tokens_of
from crosslingual_zoo.pretraining.data.batches import load_corpora
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.zoo_core.recipes import load_recipe

MLM = {"batch_size": 8, "max_length": 64}
PHASES = (
    "phases=[{name: a, steps: 10, learning_rate: 0.1, objectives: {mlm: {batch_size: 8}, tlm: {batch_size: 4}}}, "
    "{name: b, steps: 100, learning_rate: 0.1, objectives: {mlm: {batch_size: 4}}}]"
)


def fields_of(num_tokens: int) -> dict[str, dict]:
    """A micro-batch of which only the number of tokens is looked at; one position is padding."""
    return {"mlm": {"segment_ids": torch.tensor([[0] * num_tokens + [-1]])}}


@pytest.fixture
def timed(recipe_file, sample_tokenizer):
    """`timed(durations, first_steps, *overrides)`: the costs if steps take these seconds, and the timed batches."""

    def costs_of(durations: list[float], first_steps: list[list[dict]], *overrides: str):
        recipe = load_recipe(Recipe, recipe_file, [PHASES, *overrides])
        corpora = load_corpora(recipe, sample_tokenizer)
        timed_batches = []

        def time_steps(index, micro_batches):
            timed_batches.append(micro_batches)
            return durations

        parts = SimpleNamespace(
            recipe=recipe,
            corpora=corpora,
            tokenizer=sample_tokenizer,
            config=None,
            model=torch.nn.Linear(2, 3),
            accelerator=SimpleNamespace(device=torch.device("cpu"), num_processes=1, process_index=0),
            time_steps=time_steps,
        )
        costs = measure(parts, first_steps)
        return costs, timed_batches

    return costs_of


def rows_of(batch) -> dict[str, int]:
    """The rows of each objective in a micro-batch."""
    return {name: len(fields["corpus_names"]) for name, fields in batch.items()}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_measure_scales_timed_steps_to_the_tokens_of_the_run(timed, accumulation):
    """The first step of each phase, which is slow, does not count."""
    first_steps = [[fields_of(600)] * accumulation, [fields_of(90)] * accumulation]
    costs, timed_batches = timed([50.0, 1.0, 2.0], first_steps, f"gradient_accumulation_steps={accumulation}")
    fastest = 0.0
    slowest = 0.0
    for tokens, batches in zip((10 * 600 * accumulation, 100 * 90 * accumulation), timed_batches, strict=True):
        _, second, third = batches
        seconds_per_token = [1.0 / tokens_of(second), 2.0 / tokens_of(third)]
        fastest += tokens * min(seconds_per_token)
        slowest += tokens * max(seconds_per_token)
    assert costs.fastest == pytest.approx(fastest)
    assert costs.slowest == pytest.approx(slowest)
    first_phase, second_phase = timed_batches
    # micro-batches of the run's size
    assert [rows_of(batch) for batch in first_phase] == [{"mlm": 8 // accumulation, "tlm": 4 // accumulation}] * 3
    assert [rows_of(batch) for batch in second_phase] == [{"mlm": 4 // accumulation}] * 3


def test_measure_times_a_part_of_a_large_step(timed, monkeypatch):
    """Memory that a step takes beside weights and Adam grows with its tokens."""
    state = 4 * 9 + 12 * 9
    others = 1000
    activations = 70
    peaks = iter([4 * 9 + others, others + state + activations, others + state + activations])
    monkeypatch.setattr(costs_module, "peak_bytes", lambda device: next(peaks))
    costs, (first_phase, _) = timed([1.0, 1.0, 1.0], [[fields_of(8192)], [fields_of(1)]])
    assert rows_of(first_phase[0]) == {"mlm": 2, "tlm": 1}
    scale = 8192 / max(map(tokens_of, first_phase))
    assert costs.num_bytes == pytest.approx(others + state + activations * scale)


def test_part_of_step_gives_every_process_an_example(recipe_file):
    phase = load_recipe(Recipe, recipe_file, [PHASES]).phases[0]
    part = part_of_step(phase, 0.01, num_processes=3)
    assert [objective.batch_size for objective in part.objectives.values()] == [3, 3]
    assert phase.steps == 10


def test_state_bytes_are_those_of_weights_gradients_and_moments(recipe_file):
    phase = load_recipe(Recipe, recipe_file, [PHASES, "phases.0.trainable=['*bias']"]).phases[0]
    model = torch.nn.Linear(10, 3)  # 30 weights, 3 biases
    assert state_bytes(model, phase, num_processes=1) == 4 * 33 + 12 * 3
    assert state_bytes(model, phase, num_processes=2) == 4 * 33 + 16 * 3


def test_dry_run_of_a_model_that_is_too_large_for_this_machine_measures_nothing(train, monkeypatch, capsys):
    monkeypatch.setattr(plan, "memory_of", lambda device: 1e5)
    monkeypatch.setattr(plan, "measure", None)
    train("--dry_run")
    assert "not measured" in capsys.readouterr().out
