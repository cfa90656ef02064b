"""kill -9, SIGTERM and Ctrl-C at random points: what was saved goes on to the weights of a run that nobody stopped."""

import contextlib
import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from pretraining.checkpoints import checkpoints_of, damage, newest_checkpoint
from pretraining.interruption import stop_signals
from pretraining.tracking import read_events

pytestmark = pytest.mark.slow

STEPS = 8
# Dropout is on: random states have to come back too. Evaluation and checkpoints at steps of their own.
SETTINGS = [
    f"phases.0.steps={STEPS}",
    "phases.0.warmup_steps=3",
    "phases.0.schedule=linear",
    "phases.0.objectives={mlm: {batch_size: 4, max_length: 48}, tlm: {batch_size: 4, max_length: 64}}",
    "model.config.hidden_dropout_prob=0.1",
    "evaluation={held_out_fraction: 0.1, every_steps: 4, max_examples: 8}",
    "save_every_steps=3",
    "keep_checkpoints=1",
]
SAVED_AT = (3, 6, 8)

# Holds the last step but one until a signal has come, to this process or, with `gate`, to another: on a slow machine
# too, no signal comes too late.
HOLD = """
import os, time
from pretraining import interruption, training
step = training.Training._step
def held(self, predictions):
    while self.phase_step == {last} - 1 and not interruption.received() and not os.path.exists({gate!r}):
        time.sleep(0.01)
    return step(self, predictions)
training.Training._step = held
"""


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resume(folder):
    return ["--resume"] if (folder / "recipe.yaml").exists() else []


def finish(started, settings, folder):
    run = started(*settings, f"output_dir={folder}", *resume(folder))
    assert run.wait() == 0, run.printed()[-3000:]


@pytest.mark.parametrize("when", ["while", "after"])
def test_kill_9_at_files(started, whole, kill_at_file, assert_same_run, tmp_path, when):
    """At random files of each checkpoint in turn, or after it; before the first one; while the model is published."""
    reference, folder, chance = whole(*SETTINGS), tmp_path / "killed", random.Random(when)
    events = [json.loads(line) for line in (reference.parent / "files.jsonl").read_text().splitlines()]

    def first(name):
        return next(place for place, event in enumerate(events) if name in " ".join(event))

    def renamed(name):  # an event is told before it happens: there is nothing of that name yet
        targets = [event[2] if event[0] == "os.rename" else "" for event in events]
        return next(place for place, target in enumerate(targets) if target.endswith(f"/run/{name}"))

    kills, kept = [("", chance.randint(1, first(".step-3.tmp")), None)], None
    for step, following in zip(SAVED_AT, [*(f".step-{step}.tmp" for step in SAVED_AT[1:]), ".model.tmp"], strict=True):
        begin = f".step-{step}.tmp"
        start, whole_at, end = first(begin), renamed(f"checkpoints/step-{step}"), first(following)
        if when == "while":
            kills.append((begin, chance.randint(1, whole_at - start + 1), kept))
        else:
            kills.append((begin, chance.randint(whole_at - start + 2, end - start), f"step-{step}"))
        kept = f"step-{step}"
    if when == "while":
        files = renamed("model") - first(".model.tmp") + 1
        kills += [(".model.tmp", at, kept) for at in chance.sample(range(1, files + 1), 3)]
    for begin, at, kept in kills:
        run = started(*SETTINGS, f"output_dir={folder}", *resume(folder), fault=kill_at_file(folder, begin, at))
        assert run.wait() == -signal.SIGKILL, (begin, at, run.printed()[-3000:])
        newest = newest_checkpoint(folder)
        assert (newest and newest.name) == kept, (begin, at)
        assert all(damage(checkpoint) is None for checkpoint in checkpoints_of(folder))
        assert not (folder / "model").exists()
    finish(started, SETTINGS, folder)
    assert_same_run(folder, reference)


@pytest.mark.parametrize("number, workers", [(signal.SIGTERM, 2), (signal.SIGINT, 0)])
def test_a_signal_at_random_moments(started, whole, assert_same_run, tmp_path, number, workers):
    """Saves after the step in hand, exits with 143 or 130."""
    reference = whole(*SETTINGS)
    settings = [*SETTINGS, f"num_workers={workers}", "save_every_steps=0"]
    folder, chance = tmp_path / "stopped", random.Random(number + workers)
    step = 0
    for target in (chance.randint(1, 2), chance.randint(4, STEPS - 2)):
        target = max(target, step + 1)
        if target > STEPS - 2:  # the first signal took its time: the run is all but through
            break
        run = started(*settings, f"output_dir={folder}", *resume(folder), fault=HOLD.format(last=STEPS - 1, gate=""))
        run.until(lambda text, target=target: any(int(n) >= target for n in re.findall(r"step (\d+)/", text)))
        children = children_of(run.pid) if workers else []  # workers get it too, as a job scheduler does it
        os.kill(run.pid, number)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):  # it has nothing more to load
                os.kill(pid, number)
        code, printed = run.wait(), run.printed()
        assert code == 128 + number, printed[-3000:]
        session = json.loads((folder / "run.json").read_text())["sessions"][-1]
        step = session["stopped_at"]
        assert session["stopped_by"] == number.name and step >= target
        assert "Traceback" not in printed and "Exception" not in printed, printed[-3000:]
        assert newest_checkpoint(folder).name == f"step-{step}" and damage(newest_checkpoint(folder)) is None
        assert not (folder / ".lock").exists()
    finish(started, settings, folder)
    assert_same_run(folder, reference)


def test_a_signal_that_is_ignored_stays_so():
    """As SIGINT is in a background job of a shell: a Ctrl-C is for the job in front."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


SIGNAL_IN = """
import os, signal
from {module} import {name} as original
import {module} as module
from pretraining import training
def signalled(*arguments, **keywords):
    os.kill(os.getpid(), signal.{signal})
    {again}
    return original(*arguments, **keywords)
for place in (module, training):
    if hasattr(place, "{name}"):
        setattr(place, "{name}", signalled)
"""


def test_a_signal_before_the_first_step_has_nothing_to_save(started, tmp_path):
    fault = SIGNAL_IN.format(module="pretraining.data.corpora", name="load_corpora", signal="SIGTERM", again="")
    run = started(*SETTINGS, fault=fault)
    assert run.wait() == 143
    assert "Traceback" not in run.printed() and not (tmp_path / "run").exists()
    fault = SIGNAL_IN.format(module="pretraining.data.corpora", name="training_batches", signal="SIGINT", again="")
    run = started(*SETTINGS, fault=fault)
    assert run.wait() == 130
    assert not checkpoints_of(tmp_path / "run")
    finish(started, SETTINGS, tmp_path / "run")


# To the run, once, and to each worker, as soon as it is there.
AT_FORK = """
import os, signal
from pretraining import interruption
told = lambda: interruption.received() or os.kill(os.getpid(), signal.SIGTERM)
os.register_at_fork(after_in_parent=told, after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
"""


def test_a_signal_while_workers_start(started):
    run = started(*SETTINGS, "num_workers=2", fault=AT_FORK)
    assert run.wait() == 143, run.printed()[-3000:]
    assert not re.search("Traceback|Exception", run.printed()), run.printed()[-3000:]


def test_a_signal_during_an_evaluation(started, whole, assert_same_run, tmp_path):
    """The evaluation is left, and made when the run goes on: once."""
    reference, folder = whole(*SETTINGS), tmp_path / "stopped"
    fault = SIGNAL_IN.format(module="pretraining.evaluation", name="retrieval_accuracy", signal="SIGTERM", again="")
    for _ in range(2):  # the second time it is the run that goes on which is stopped in it
        run = started(*SETTINGS, f"output_dir={folder}", *resume(folder), fault=fault)
        assert run.wait() == 143
        assert newest_checkpoint(folder).name == "step-4"
    finish(started, SETTINGS, folder)
    assert_same_run(folder, reference)


def test_a_second_signal_stops_at_once(started, tmp_path):
    again = "os.kill(os.getpid(), signal.SIGTERM)"
    # held from the start of training on: the first one, in a checkpoint, is only noted
    fault = SIGNAL_IN.format(module="pretraining.checkpoints", name="save_checkpoint", signal="SIGTERM", again=again)
    run = started(*SETTINGS, fault=fault)
    assert run.wait() == -signal.SIGTERM
    assert not checkpoints_of(tmp_path / "run")


@pytest.mark.parametrize("to", ["the launcher", "one process"])
def test_two_processes_stop_at_the_same_step(two_processes, started, whole, difference, tmp_path, to):
    chance = random.Random(to)
    settings = [setting for setting in SETTINGS if "dropout" not in setting]
    gate, target = tmp_path / "gate", chance.randint(1, STEPS - 2)
    launched = two_processes(*settings, "save_every_steps=0", fault=HOLD.format(last=STEPS - 1, gate=str(gate)))
    log = tmp_path / "log.txt"
    while not any(int(step) >= target for step in re.findall(r"step (\d+)/", log.read_text())):
        assert launched.poll() is None, log.read_text()[-3000:]
        time.sleep(0.01)
    if to == "one process":
        os.kill(chance.choice(children_of(launched.pid)), signal.SIGTERM)
        gate.touch()  # for the other one
    else:
        os.kill(launched.pid, signal.SIGTERM)
    assert launched.wait() != 0
    step = json.loads((tmp_path / "run" / "run.json").read_text())["sessions"][-1]["stopped_at"]
    assert newest_checkpoint(tmp_path / "run").name == f"step-{step}" and step >= target
    finish(started, settings, tmp_path / "run")  # in one process: dropout is off
    assert difference(tmp_path / "run", whole(*settings)) < 1e-5
    steps = [[event["step"] for event in read_events(path)] for path in (tmp_path / "run", whole(*settings))]
    assert steps[0] == steps[1]
