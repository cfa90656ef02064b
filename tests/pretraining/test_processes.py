"""Several processes: they make the steps of one process, divide the examples, and resume with
another number of processes. They are forked with the environment of `accelerate launch`; test_faults.py runs that.
"""

import json

import pytest
import torch

from crosslingual_zoo.pretraining.checkpoints import newest_checkpoint
from crosslingual_zoo.pretraining.tracking import read_events
from tests.pretraining.run_folders import CA_MLM, adam_of

pytestmark = pytest.mark.slow

# of each model; VECO's cross-attention gets no gradient from mlm and tlm, which plain DDP would not bear
OBJECTIVES = {
    "mlm-tlm": ["model.type=veco"],
    "ca-mlm": ["model.type=veco", *CA_MLM],
    "ernie-m": [
        "model.type=ernie_m",
        *(f"phases.0.objectives.{name}={{batch_size: 8, max_length: 96}}" for name in ("camlm", "btmlm")),
    ],
    "xlm-align": ["phases.0.objectives.dwa={}", "model.config.query_positions=all_aligned"],
    "metaxlm": ["model.type=metaxlm", "phases.0.objectives.kd={}", "teacher={path: TEACHER, language: en}"],
    # steps in which one process has no masked token, or none has; DDP does not search for missing gradients here
    "few masks": [
        "model.type=metaxlm",
        "phases.0.steps=8",
        "phases.0.objectives={mlm: {batch_size: 4, max_length: 32, mask_probability: 0.02}}",
    ],
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_run_update_of_two_processes_is_that_of_one(name, whole, finished, difference, teacher_dir, tmp_path):
    common = ["phases.0.steps=2", "optimizer.max_grad_norm=0.5", "evaluation={held_out_fraction: 0.1, max_examples: 9}"]
    settings = [override.replace("TEACHER", str(teacher_dir)) for override in common + OBJECTIVES[name]]
    alone = whole(*settings)
    if name == "few masks":
        assert {0, 1} <= {event.get("predictions") for event in read_events(alone)}
    finished(*settings, f"output_dir={tmp_path / 'divided'}", processes=2)
    finished(*settings, f"output_dir={tmp_path / 'accumulated'}", "gradient_accumulation_steps=2", processes=2)
    for run in (tmp_path / "divided", tmp_path / "accumulated"):
        assert difference(alone, run) < 1e-5
        for event, expected in zip(read_events(run), read_events(alone), strict=True):
            assert event.keys() == expected.keys()
            for figure, value in expected.items():
                if figure.startswith(("loss", "held_out")) or figure in ("grad_norm", "predictions"):
                    # the norm of no gradient is None
                    assert event[figure] == (value and pytest.approx(value, rel=1e-4, abs=1e-4)), figure
        assert json.loads((run / "run.json").read_text())["sessions"][0]["hardware"]["processes"] == 2


def test_run_of_two_processes_resumes_bit_equal(finished, difference, cut_back, tmp_path):
    """Dropout is on: the random states of both processes are restored."""
    options = ("model.config.hidden_dropout_prob=0.1", "save_every_steps=1", "keep_checkpoints=0")
    finished(*options, f"output_dir={tmp_path / 'whole'}", processes=2)
    cut_back(tmp_path / "whole", 1, tmp_path / "resumed")
    finished(*options, f"output_dir={tmp_path / 'resumed'}", "--resume", processes=2)
    assert difference(tmp_path / "resumed", tmp_path / "whole") == 0
    checkpoint = newest_checkpoint(tmp_path / "whole")
    seeds = set()
    for rank in (0, 1):
        states = torch.load(checkpoint / f"random_states_{rank}.pkl", weights_only=False)
        seeds.add(torch.Generator().set_state(states["torch_manual_seed"]).initial_seed())
    assert len(seeds) == 2  # the processes drop other units


def test_run_of_two_phases_resumes_with_one_process_and_two(veco_phases, finished, difference, cut_back, tmp_path):
    """VECO's two phases, Adam's moments carried over. Checkpoints are resumed by the other kind of run."""
    settings = [*veco_phases, "model.gradient_checkpointing=true", "gradient_accumulation_steps=2"]
    whole = tmp_path / "whole"
    divided = tmp_path / "divided"
    finished(*settings, f"output_dir={whole}")
    finished(*settings, f"output_dir={divided}", processes=2)
    for step in (1, 2, 3, 4):
        assert difference(whole / "checkpoints" / f"step-{step}", divided / "checkpoints" / f"step-{step}") < 1e-5
        adam = adam_of(divided, step)
        expected = adam_of(whole, step)
        assert adam["param_groups"] == expected["param_groups"]
        torch.testing.assert_close(adam["state"], expected["state"], atol=1e-5, rtol=1e-5)
    # in the first phase, and in the second
    for run, processes, step in ((divided, 1, 1), (whole, 2, 3)):
        resumed = cut_back(run, step, tmp_path / f"resumed-{run.name}")
        finished(*settings, f"output_dir={resumed}", "--resume", processes=processes)
        assert newest_checkpoint(resumed).name == "step-4"
        assert difference(resumed, whole) < 1e-5


def test_run_refuses_other_ways_to_divide_the_work(fails, monkeypatch):
    for name in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG"):
        with monkeypatch.context() as patch:
            patch.setenv(f"ACCELERATE_USE_{name}", "true")
            assert name.lower() in fails()


def test_run_of_two_processes_whose_parts_cannot_be_read_ends_with_one_message(started, tmp_path):
    """The first process of the machine reads first, and the other learns of its error."""
    run = started(f"tokenizer={tmp_path}", processes=2)
    assert run.wait() == 2
    lines = [line for line in run.printed().splitlines() if "loading " not in line]
    (message,) = set(lines)  # of both: the launcher's processes let the first one print it
    assert "error: tokenizer" in message
