"""What a dry run says about time and memory, and about saving."""

import logging
from types import SimpleNamespace

import pytest
import torch

from crosslingual_zoo.pretraining import costs as costs_module
from crosslingual_zoo.pretraining import plan
from crosslingual_zoo.pretraining.costs import measure, part_of_step, span, state_bytes, tokens_of
from crosslingual_zoo.pretraining.data.batches import load_corpora
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.tracking import read_events
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
def timed(recipe_file, sample_tokenizer, monkeypatch):
    """`timed(durations, first_steps, *overrides)`: the costs if steps take these seconds, and the timed batches."""

    def costs_of(durations: list[float], first_steps: list[list[dict]], *overrides: str):
        recipe = load_recipe(Recipe, recipe_file, [PHASES, *overrides])
        corpora = load_corpora(recipe, sample_tokenizer)
        asked = []

        def time_steps(index, micro_batches):
            asked.append(micro_batches)
            return durations

        accelerator = SimpleNamespace(device=torch.device("cpu"), num_processes=1, process_index=0)
        shared = {"recipe": recipe, "corpora": corpora, "tokenizer": sample_tokenizer, "config": None}
        shared |= {"accelerator": accelerator, "time_steps": time_steps}
        return measure(SimpleNamespace(model=torch.nn.Linear(2, 3), **shared), first_steps), asked

    return costs_of


@pytest.mark.parametrize("accumulation", [1, 2])
def test_measure_scales_timed_steps_to_the_tokens_of_the_run(timed, accumulation):
    """The first step of each phase, which is slow, does not count."""
    first_steps = [[fields_of(600)] * accumulation, [fields_of(90)] * accumulation]
    overrides = [f"gradient_accumulation_steps={accumulation}"]
    costs, asked = timed([50.0, 1.0, 2.0], first_steps, *overrides)
    shares = [[seconds / tokens_of(batch) for seconds, batch in zip((1.0, 2.0), of[1:], strict=True)] for of in asked]
    tokens = (10 * 600 * accumulation, 100 * 90 * accumulation)
    assert costs.fastest == pytest.approx(tokens[0] * min(shares[0]) + tokens[1] * min(shares[1]))
    assert costs.slowest == pytest.approx(tokens[0] * max(shares[0]) + tokens[1] * max(shares[1]))
    rows = [{name: len(part["corpus_names"]) for name, part in batch.items()} for of in asked for batch in of]
    first, second = {"mlm": 8 // accumulation, "tlm": 4 // accumulation}, {"mlm": 4 // accumulation}
    assert rows == [first] * 3 + [second] * 3  # micro-batches of the run's size


def test_measure_times_a_part_of_a_large_step(timed, monkeypatch):
    """Memory that a step takes beside weights and Adam grows with its tokens."""
    state, others, activations = 4 * 9 + 12 * 9, 1000, 70
    peaks = iter([4 * 9 + others, others + state + activations, others + state + activations])
    monkeypatch.setattr(costs_module, "peak_bytes", lambda device: next(peaks))
    costs, asked = timed([1.0, 1.0, 1.0], [[fields_of(8192)], [fields_of(1)]])
    assert {name: len(part["corpus_names"]) for name, part in asked[0][0].items()} == {"mlm": 2, "tlm": 1}
    scale = 8192 / max(tokens_of(batch) for batch in asked[0])
    assert costs.num_bytes == pytest.approx(others + state + activations * scale)


def test_part_of_step_gives_every_process_an_example(recipe_file):
    phase = load_recipe(Recipe, recipe_file, [PHASES]).phases[0]
    sizes = [one.batch_size for one in part_of_step(phase, 0.01, num_processes=3).objectives.values()]
    assert sizes == [3, 3] and phase.steps == 10


def test_state_bytes_are_those_of_weights_gradients_and_moments(recipe_file):
    phase = load_recipe(Recipe, recipe_file, [PHASES, "phases.0.trainable=['*bias']"]).phases[0]
    model = torch.nn.Linear(10, 3)  # 30 weights, 3 biases
    assert state_bytes(model, phase, num_processes=1) == 4 * 33 + 12 * 3
    assert state_bytes(model, phase, num_processes=2) == 4 * 33 + 16 * 3


@pytest.mark.parametrize(
    "ends, text",
    [
        ((0.31, 0.42), "0.3 to 0.4 seconds"),
        ((40, 40.2), "40 seconds"),
        ((100, 150), "1.7 to 2.5 minutes"),
        ((7000, 7300), "1.9 to 2.0 hours"),
        ((1e6, 2e6), "12 to 23 days"),
    ],
)
def test_span_has_a_unit_of_its_size(ends, text):
    assert span(*ends) == text


def test_dry_run_of_a_model_that_is_too_large_for_this_machine_measures_nothing(train, monkeypatch, capsys):
    monkeypatch.setattr(plan, "memory_of", lambda device: 1e5)
    monkeypatch.setattr(plan, "measure", None)
    train("--dry_run")
    assert "not measured" in capsys.readouterr().out


def test_dry_run_says_when_it_saves_and_keeps_nothing(train, tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO)
    held_out = "evaluation={held_out_fraction: 0.3, max_examples: 7, every_steps: 13}"
    train("--dry_run", held_out, "save_every_steps=17", "keep_checkpoints=3", "phases.0.steps=50")
    lines = capsys.readouterr().out.splitlines()
    (saves,) = [line for line in lines if line.startswith("saves")]
    assert all(number in saves.split() for number in ("17", "13")) and "3" in saves
    assert any(line.startswith("time:") and "GiB" in line for line in lines)
    assert not any("estimated" in line for line in lines) and not (tmp_path / "run").exists()
    held = [record.getMessage() for record in caplog.records if "held_out" in record.getMessage()]
    assert held and all("held_out 7" in message for message in held)
    train("--dry_run", "bitext=[]", f"phases.0.objectives={{mlm: {MLM}}}", "monolingual.0.max_rows=30")
    assert "estimated" in capsys.readouterr().out


def test_evaluation_is_shown_with_the_loss_that_token_frequencies_give(train, capsys, tmp_path):
    train("evaluation={held_out_fraction: 0.1, max_examples: 8}", "phases.0.steps=1", "phases.0.objectives.dwa={}")
    (event,) = [event for event in read_events(tmp_path / "run") if "held_out/mlm/en" in event]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "held_out/mlm" in line]
    for objective, names in (("mlm", ("en", "de", "zh")), ("tlm", ("en-de", "en-zh"))):
        for kind in ("held_out", "unigram_entropy"):
            mean = sum(event[f"{kind}/{objective}/{name}"] for name in names) / len(names)
            assert f"{mean:.3f}" in line
    assert line.count("(") == 2 and "dwa" in line  # which predicts no tokens
