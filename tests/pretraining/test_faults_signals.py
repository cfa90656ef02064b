"""kill -9, SIGTERM and Ctrl-C at random points: what was saved goes on to the weights of a run that nobody stopped."""

import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pretraining.checkpoints import checkpoints_of, newest_checkpoint
from pretraining.checksums import damage
from pretraining.tracking import read_events

STEPS = 14
# Dropout is on: random states have to come back too. Evaluation and checkpoints at steps of their own.
SETTINGS = [
    f"phases.0.steps={STEPS}",
    "phases.0.warmup_steps=3",
    "phases.0.schedule=linear",
    "phases.0.objectives={mlm: {batch_size: 4, max_length: 48}, tlm: {batch_size: 4, max_length: 64}}",
    "model.config.hidden_dropout_prob=0.1",
    "evaluation={held_out_fraction: 0.1, every_steps: 4, max_examples: 8}",
    "save_every_steps=3",
]

# Kills the process at the `at`-th time that it opens, makes, renames or removes something in the run folder.
KILL_AT_FILE = """
import os, signal, sys
seen = 0
def hook(event, arguments):
    global seen
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "shutil.copyfile"):
        if any(isinstance(a, str) and {folder!r} in a for a in map(str, arguments)):
            seen += 1
            if seen == {at}:
                os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
"""


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def facts_of(events):
    """Events without what the clock says."""
    return [
        {key: value for key, value in event.items() if "per_second" not in key and key != "memory_gib"}
        for event in events
    ]


def assert_same_run(folder, whole):
    ours, reference = (load_file(path / "model" / "model.safetensors") for path in (folder, whole))
    assert ours.keys() == reference.keys()
    assert all(torch.equal(ours[key], reference[key]) for key in reference)
    assert facts_of(read_events(folder)) == facts_of(read_events(whole))
    assert not list(folder.glob("**/.*")), "something unfinished was left"


@pytest.fixture
def whole(started, tmp_path):
    """The run folder of a run that nobody stops."""

    def make(*settings):
        run = started(*settings, f"output_dir={tmp_path / 'whole'}")
        assert run.wait() == 0, run.printed()
        return tmp_path / "whole"

    return make


def resume(folder):
    return ["--resume"] if (folder / "recipe.yaml").exists() else []


def finish(started, settings, folder):
    run = started(*settings, f"output_dir={folder}", *resume(folder))
    assert run.wait() == 0, run.printed()[-3000:]


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_at_files(started, whole, tmp_path, seed):
    """In the middle of checkpoints, of events.jsonl, of the model that is published: wherever files change."""
    reference, folder, chance = whole(*SETTINGS), tmp_path / "killed", random.Random(seed)
    points, steps = [], []
    for _ in range(5):
        points.append(chance.randint(20, 220))
        fault = KILL_AT_FILE.format(folder=str(folder), at=points[-1])
        run = started(*SETTINGS, f"output_dir={folder}", *resume(folder), fault=fault)
        code = run.wait()
        if code == 0:
            break
        assert code == -signal.SIGKILL, run.printed()[-3000:]
        for checkpoint in checkpoints_of(folder):
            assert damage(checkpoint) is None
        steps.append(newest_checkpoint(folder) and newest_checkpoint(folder).name)
    assert len(steps) > 1 and len(set(steps)) > 1, (points, steps)
    if not (folder / "model").exists():
        finish(started, SETTINGS, folder)
    assert_same_run(folder, reference)


def test_kill_9_while_the_model_is_published(started, whole, tmp_path):
    """Every file of model/ in turn, from one finished run."""
    reference = whole(*SETTINGS)
    folder = tmp_path / "killed"
    for at in random.Random(5).sample(range(1, 25), 4):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(reference, folder)
        shutil.rmtree(folder / "model")
        fault = KILL_AT_FILE.format(folder=str(folder / ".model.tmp"), at=at)
        assert started(*SETTINGS, f"output_dir={folder}", "--resume", fault=fault).wait() == -signal.SIGKILL
        assert not (folder / "model").exists() and (folder / ".model.tmp").exists()
        finish(started, SETTINGS, folder)
        assert_same_run(folder, reference)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_signal_at_random_moments(started, whole, tmp_path, number, workers):
    """Saves after the update in hand, says so in one line, exits with 143 or 130."""
    settings = [*SETTINGS, f"num_workers={workers}", "save_every_steps=0"]
    reference, folder, chance = whole(*settings), tmp_path / "stopped", random.Random(number + workers)
    stops = []
    for _ in range(3):
        run = started(*settings, f"output_dir={folder}", *resume(folder))
        before = int(newest_checkpoint(folder).name.removeprefix("step-")) if resume(folder) else 0
        target = before + chance.randint(1, 3)
        run.until(lambda text, target=target: any(int(n) >= target for n in re.findall(r"step (\d+)/", text)))
        time.sleep(chance.random() / 20)
        to_group = chance.random() < 0.5 and workers  # as a job scheduler does: workers get it too
        children = children_of(run.pid)
        for pid in [run.pid, *(children if to_group else [])]:
            os.kill(pid, number)
        code, printed = run.wait(), run.printed()
        if code == 0:
            break
        assert code == 128 + number, printed[-3000:]
        (line,) = re.findall(r"^stopped by .*$", printed, re.MULTILINE)
        step = int(re.fullmatch(rf"stopped by {number.name} at step (\d+): continue with --resume", line)[1])
        assert "Traceback" not in printed and "Exception" not in printed, printed[-3000:]
        assert newest_checkpoint(folder).name == f"step-{step}" and damage(newest_checkpoint(folder)) is None
        session = json.loads((folder / "run.json").read_text())["sessions"][-1]
        assert (session["stopped_by"], session["stopped_at"]) == (number.name, step)
        assert not (folder / ".lock").exists()
        stops.append(step)
    assert stops and stops == sorted(set(stops))
    if not (folder / "model").exists():
        finish(started, settings, folder)
    assert_same_run(folder, reference)


SIGNAL_IN = """
import os, signal
from {module} import {name} as original
import {module} as module
from pretraining import training
def told(*arguments, **keywords):
    os.kill(os.getpid(), signal.{signal})
    {again}
    return original(*arguments, **keywords)
for place in (module, training):
    if hasattr(place, "{name}"):
        setattr(place, "{name}", told)
"""


def test_a_signal_before_the_first_update_has_nothing_to_save(started, tmp_path):
    fault = SIGNAL_IN.format(module="pretraining.corpora", name="load_corpora", signal="SIGTERM", again="")
    run = started(*SETTINGS, fault=fault)
    assert run.wait() == 143
    assert "stopped by SIGTERM before the first update: there is nothing to save" in run.printed()
    assert "Traceback" not in run.printed() and not (tmp_path / "run").exists()
    fault = SIGNAL_IN.format(module="pretraining.corpora", name="training_batches", signal="SIGINT", again="")
    run = started(*SETTINGS, fault=fault)
    assert run.wait() == 130
    assert "stopped by SIGINT at step 0, with nothing to save: continue with --resume" in run.printed()
    run = started(*SETTINGS, "--resume")
    assert run.wait() == 0, run.printed()


def test_a_signal_during_an_evaluation(started, whole, tmp_path):
    """The evaluation is left, and made when the run goes on: once."""
    reference, folder = whole(*SETTINGS), tmp_path / "stopped"
    fault = SIGNAL_IN.format(module="pretraining.evaluation", name="retrieval_accuracy", signal="SIGTERM", again="")
    for _ in range(2):  # the second time it is the run that goes on which is stopped in it
        run = started(*SETTINGS, f"output_dir={folder}", *resume(folder), fault=fault)
        assert run.wait() == 143
        assert "stopped by SIGTERM at step 4: continue with --resume" in run.printed()
        assert newest_checkpoint(folder).name == "step-4"
    finish(started, SETTINGS, folder)
    assert_same_run(folder, reference)


def test_a_second_signal_stops_at_once(started, tmp_path):
    again = "os.kill(os.getpid(), signal.SIGTERM)"
    # held from the start of training on: the first one, in a checkpoint, is only noted
    fault = SIGNAL_IN.format(module="pretraining.checkpoints", name="save_checkpoint", signal="SIGTERM", again=again)
    run = started(*SETTINGS, fault=fault)
    assert run.wait() == -signal.SIGTERM
    assert not checkpoints_of(tmp_path / "run") and "stopped by" not in run.printed()
    run = started(*SETTINGS, "--resume")
    assert run.wait() == 0, run.printed()


@pytest.mark.parametrize("to", ["the launcher", "one process"])
def test_two_processes_stop_at_the_same_update(two_processes, whole, tmp_path, to):
    chance, settings = random.Random(to), [setting for setting in SETTINGS if "dropout" not in setting]
    settings.append("save_every_steps=0")
    started_run = two_processes(*settings)
    log, target = tmp_path / "log.txt", chance.randint(1, 6)
    while not any(int(step) >= target for step in re.findall(r"step (\d+)/", log.read_text())):
        assert started_run.poll() is None, log.read_text()[-3000:]
        time.sleep(0.01)
    pid = started_run.pid
    if to == "one process":
        pid = chance.choice(children_of(pid))
    os.kill(pid, signal.SIGTERM)
    assert started_run.wait() != 0
    printed = log.read_text()
    (line,) = re.findall(r"^stopped by .*$", printed, re.MULTILINE)
    step = int(re.search(r"stopped by SIGTERM at step (\d+): continue with --resume", line)[1])
    assert newest_checkpoint(tmp_path / "run").name == f"step-{step}" and step >= target
    resumed = two_processes(*settings, "--resume")
    assert resumed.wait() == 0, log.read_text()[-3000:]
    reference = whole(*settings)
    ours, theirs = (load_file(path / "model" / "model.safetensors") for path in (tmp_path / "run", reference))
    assert max((ours[key] - theirs[key]).abs().max().item() for key in theirs) < 1e-5
    steps = [[event["step"] for event in read_events(path)] for path in (tmp_path / "run", reference)]
    assert steps[0] == steps[1]
