"""Losses that are not finite, text that is damaged, and sources that go away while they are read."""

import json
import random
import textwrap

import pytest
import torch
from safetensors.torch import load_file

from pretraining.checkpoints import damage, newest_checkpoint

pytestmark = pytest.mark.slow

STEPS = 6
SETTINGS = [
    f"phases.0.steps={STEPS}",
    "phases.0.objectives={mlm: {batch_size: 4, max_length: 48}, tlm: {batch_size: 4, max_length: 64}}",
    "model.config.hidden_dropout_prob=0.1",
]


# From micro-batch `at` on, the loss (`loss`) of the first row with a prediction, or the gradient alone, is not finite.
POISON = """
from pretraining import training
build, calls = training.build_model, 0
def poisoned(*arguments):
    model = build(*arguments)
    forward = model.forward
    def spoilt(**batch):
        global calls
        output = forward(**batch)
        calls += model.training
        if model.training and calls == {at}:
            rows = output.batch_rows["mlm"]
            row = int(rows[0])
            print("spoilt:", batch["mlm"]["languages"][row], int(batch["mlm"]["examples"][row]), flush=True)
            if {loss}:
                output.token_losses["mlm"][rows == row] = float("nan")
                output.loss = output.loss * float("nan")
            else:
                weight = model.get_input_embeddings().weight
                output.loss = output.loss + (weight.sum() * 0).sqrt() * 0  # 0, of a slope that is none
        return output
    model.forward = spoilt
    return model
training.build_model = poisoned
"""


@pytest.mark.parametrize(
    "loss, precision, accumulation", [(True, "fp32", 1), (True, "bf16", 2), (False, "fp32", 2), (False, "bf16", 1)]
)
def test_a_loss_or_gradient_that_is_not_finite(
    started, whole, assert_same_run, tmp_path, loss, precision, accumulation
):
    """Nothing is learned of it, the batch is named, and the run could go on as if it had not been."""
    settings = [*SETTINGS, f"precision={precision}", f"gradient_accumulation_steps={accumulation}"]
    reference, folder = whole(*settings), tmp_path / "run"
    chance = random.Random(f"{loss} {precision}")
    for _ in range(1 + loss):  # the second time in a run that goes on
        at = chance.randint(2, 3) * accumulation
        before = newest_checkpoint(folder) if folder.exists() else None
        done = int(before.name.removeprefix("step-")) if before else 0
        resume = ["--resume"] if before else []
        run = started(*settings, *resume, fault=POISON.format(at=at, loss=loss))
        assert run.wait() == 2
        printed = run.printed()
        step = done + at // accumulation
        kept = newest_checkpoint(folder)
        assert kept.name == f"step-{step - 1}" and damage(kept) is None and "Traceback" not in printed
        corpus, example = printed.partition("spoilt: ")[2].split()[:2]
        report = json.loads((folder / "not_finite.json").read_text())
        (process,) = report["processes"]
        assert f"at step {step} " in report["what"] and len(process["examples"]) == accumulation
        assert int(example) in process["examples"][-1]["mlm"][corpus]
        if loss:
            assert process["first"]["micro_batch"] == accumulation - 1
            assert process["first"]["examples"] == {corpus: [int(example)]}
        else:
            assert process["first"] is None
        assert all(torch.isfinite(weight).all() for weight in load_file(kept / "model" / "model.safetensors").values())
    run = started(*settings, "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    assert_same_run(folder, reference)


def test_of_two_processes_one_meets_a_loss_that_is_not_finite(launch, tmp_path):
    """Both stop before the step, the report says in which it was, and one process can go on."""
    settings = [setting for setting in SETTINGS if "dropout" not in setting]
    driver, at = tmp_path / "driver.py", random.Random("two").randint(2, STEPS - 1)
    in_the_second = 'import os, sys\nif os.environ["RANK"] == "1":\n' + textwrap.indent(POISON, "    ")
    driver.write_text(in_the_second.format(at=at, loss=True) + "from pretraining import run\nrun.main(sys.argv[1:])\n")
    launch(*settings, processes=2, script=driver, fails=True)
    assert newest_checkpoint(tmp_path / "run").name == f"step-{at - 1}"
    processes = json.loads((tmp_path / "run" / "not_finite.json").read_text())["processes"]
    assert [of["first"] is None for of in processes] == [True, False]
    launch(*settings, "--resume")


# What nobody expects: an error in the second step, as where a GPU's memory is full, one in a worker, and one that the
# system kills
UNEXPECTED = """
import multiprocessing, os, signal, sys, time
from pretraining.data import corpora
from pretraining import run, training
update, made, make = training.Training._step, 0, corpora.MaskedExamples.__getitems__
def broken(self, predictions):
    while "{where}" == "killed" and len(multiprocessing.active_children()) == 2:  # while the run waits for no batch
        time.sleep(0.01)
    if "{where}" == "step" and self.phase_step == 1:
        raise RuntimeError("out of memory")
    return update(self, predictions)
def missing(self, draws):
    global made
    made += 1
    if "{where}" == "worker" and made == 2:
        raise KeyError("not there")
    if "{where}" == "killed" and made == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return make(self, draws)
training.Training._step, corpora.MaskedExamples.__getitems__ = broken, missing
run.main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "where, processes, said", [("step", 2, "out of memory"), ("worker", 1, "KeyError"), ("killed", 1, "at step")]
)
def test_an_error_that_nobody_expects_ends_the_run_and_its_workers(launch, tmp_path, where, processes, said):
    """Its traceback holds the loader: the workers would be waited for without end."""
    driver = tmp_path / "driver.py"
    driver.write_text(UNEXPECTED.format(where=where))
    done = launch(*SETTINGS, "num_workers=2", processes=processes, script=driver, fails=True, seconds=300)
    assert said in done.stderr


# The `at`-th batch that a process makes cannot be read.
GONE = """
from pretraining.data import corpora
made = 0
really = corpora.MaskedExamples.__getitems__
def gone(self, draws):
    global made
    made += 1
    if made == {at}:
        raise OSError(5, "gone")
    return really(self, draws)
corpora.MaskedExamples.__getitems__ = gone
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_data_that_cannot_be_read_stops_the_run_resumably(started, whole, assert_same_run, tmp_path, workers):
    settings, folder, at = [*SETTINGS, f"num_workers={workers}"], tmp_path / "run", 2
    run = started(*settings, fault=GONE.format(at=at))
    # of two workers each makes every other batch: their `at`-th are 2 at - 1 and 2 at
    step = (2 * at - 1 if workers else at) - 1
    assert run.wait() == 2
    assert "gone" in run.printed() and "Traceback" not in run.printed(), run.printed()[-3000:]
    kept = newest_checkpoint(folder)
    assert kept.name == f"step-{step}" and damage(kept) is None
    run = started(*settings, "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    assert_same_run(folder, whole(*SETTINGS))
