"""Runs that are stopped, and have the weights of an uninterrupted run after resuming: kill -9, signals, losses that are
not finite, unreadable text, full disks, damaged checkpoints, two runs into one folder."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from crosslingual_zoo.pretraining.checkpoints import checkpoints_of, newest_checkpoint
from crosslingual_zoo.pretraining.tracking import read_events
from tests.pretraining.run_folders import weights_of

pytestmark = pytest.mark.slow

STEPS = 6
# Dropout is on: random states have to come back too. Evaluation and checkpoints at steps of their own.
WITHOUT_DROPOUT = (
    f"phases.0.steps={STEPS}",
    "phases.0.warmup_steps=3",
    "phases.0.schedule=linear",
    "phases.0.objectives={mlm: {batch_size: 4, max_length: 48}, tlm: {batch_size: 4, max_length: 64}}",
    "evaluation={held_out_fraction: 0.1, every_steps: 3, max_examples: 8}",
    "save_every_steps=2",
    "keep_checkpoints=1",
)
SETTINGS = (*WITHOUT_DROPOUT, "model.config.hidden_dropout_prob=0.1")

# Calls `told` with every event of Python's that opens, makes, renames or removes something in the run folder.
FILE_EVENTS = """
import json, os, signal, sys
CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "shutil.copyfile")
def hook(event, arguments):
    if event in CHANGES and any({folder!r} in str(argument) for argument in arguments):
        told([event, *map(str, arguments)])
sys.addaudithook(hook)
"""
RECORD = """
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT)
def told(event):
    os.write(log, (json.dumps(event) + "\\n").encode())
"""
KILL = """
seen = 0
def told(event):
    global seen
    seen += bool(seen) or {begin!r} in " ".join(event)
    if seen == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
"""

# Holds the last step but one until a signal has come, to this process or, with `gate`, to another: on a slow machine
# too, no signal comes too late.
HOLD = f"""
import os, time
from crosslingual_zoo.pretraining import training
from crosslingual_zoo.zoo_core import processes
step = training.Training._step
def held(self, *counts):
    while self.phase_step == {STEPS} - 2 and not processes.received() and not os.path.exists({{gate!r}}):
        time.sleep(0.01)
    return step(self, *counts)
training.Training._step = held
"""
SIGNAL_IN = """
import os, signal
from crosslingual_zoo.pretraining import {module} as module
original = module.{name}
def signalled(*arguments, **keywords):
    for _ in range({times}):
        os.kill(os.getpid(), signal.SIGTERM)
    return original(*arguments, **keywords)
module.{name} = signalled
"""
# In micro-batch `at`, the loss (`loss`), or the gradient alone, is not finite.
POISON = """
from crosslingual_zoo.pretraining import training
build, calls = training.Start.build_model, 0
def poisoned(*arguments):
    model = build(*arguments)
    forward = model.forward
    def spoilt(**batch):
        global calls
        output = forward(**batch)
        calls += model.training
        if model.training and calls == {at}:
            if {loss}:
                output.loss_sum = output.loss_sum * float("nan")
            else:
                weight = model.get_input_embeddings().weight
                output.loss_sum = output.loss_sum + (weight.sum() * 0).sqrt() * 0  # 0, of a slope that is none
        return output
    model.forward = spoilt
    return model
training.Start.build_model = poisoned
"""
UNEXPECTED = """
from crosslingual_zoo.pretraining import training
def broken(self, *counts):
    raise RuntimeError("out of memory")
training.Training._step = broken
"""
# The `at`-th batch that a process makes cannot be read.
GONE = """
from crosslingual_zoo.pretraining.data import batches
made, really = 0, batches.MaskedExamples.__getitem__
def gone(self, draws):
    global made
    made += 1
    if made == {at}:
        raise OSError(5, "gone")
    return really(self, draws)
batches.MaskedExamples.__getitem__ = gone
"""


@pytest.fixture
def folder(tmp_path):
    """The folder of the test's run."""
    return tmp_path / "run"


def resume(folder):
    return ["--resume"] if (folder / "recipe.yaml").exists() else []


@pytest.fixture
def goes_on(finished, whole, assert_same_run, folder):
    """The stopped run is resumed, and ends like an uninterrupted run."""

    def check(*more):
        finished(*SETTINGS, *more, *resume(folder))
        assert_same_run(folder, whole(*SETTINGS, *more))

    return check


class Kill(NamedTuple):
    """A kill at the `at`-th change of a file from the first one on whose names have `begin`."""

    begin: str
    at: int
    newest: list[str]  # the checkpoint that the run must have then, if any


def random_kills(events: list[list[str]]) -> list[Kill]:
    """Kills in the order of a run whose changes of files these are."""
    chance = random.Random(0)

    def first(name):
        return next(number for number, event in enumerate(events) if name in " ".join(event))

    kills = [Kill("", chance.randint(1, first(".step-2.tmp")), [])]
    newest = []
    for step, following in ((2, ".step-4.tmp"), (4, ".step-6.tmp"), (6, ".model.tmp")):
        begin = f".step-{step}.tmp"
        final = f"/checkpoints/step-{step}"
        renamed = first(final)
        # an event comes before the action: at the event of the renaming, the final name does not exist yet
        kills.append(Kill(begin, chance.randint(1, renamed - first(begin) + 1), newest))
        newest = [f"step-{step}"]
        at = 2 if step == 4 else chance.randint(2, first(following) - renamed)  # 2: at once
        kills.append(Kill(final, at, newest))
    renames = [number for number, event in enumerate(events) if event[0] == "os.rename"]
    published = next(number for number in renames if events[number][2].endswith("/run/model"))
    for _ in range(2):
        kills.append(Kill(".model.tmp", chance.randint(1, published - first(".model.tmp") + 1), newest))
    return kills


def test_run_killed_at_files(started, finished, goes_on, folder, tmp_path):
    """Kills at a random file of each checkpoint and after it, before the first one, and during publishing."""
    recorded = tmp_path / "recorded" / "run"
    log = tmp_path / "files.jsonl"
    record = FILE_EVENTS.format(folder=str(recorded)) + RECORD.format(log=str(log))
    finished(*SETTINGS, f"output_dir={recorded}", fault=record)
    for kill in random_kills([json.loads(line) for line in log.read_text().splitlines()]):
        fault = FILE_EVENTS.format(folder=str(folder)) + KILL.format(begin=kill.begin, at=kill.at)
        run = started(*SETTINGS, *resume(folder), fault=fault)
        assert run.wait() == -signal.SIGKILL, (kill, run.printed()[-3000:])
        assert checkpoints_of(folder)[-1:] == [folder / "checkpoints" / name for name in kill.newest], kill
        assert not (folder / "model").exists()
    goes_on()


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_at(target):
    """Whether what a run has printed names this step or a later one."""
    return lambda text: any(int(step) >= target for step in re.findall(r"step (\d+)/", text))


def last_session(folder) -> dict:
    return json.loads((folder / "run.json").read_text())["sessions"][-1]


@pytest.mark.parametrize("number, workers", [(signal.SIGTERM, 2), (signal.SIGINT, 0)])
def test_run_signaled_at_a_random_moment(started, goes_on, folder, number, workers):
    """Finishes the step, saves, and exits with 143 or 130."""
    target = random.Random(number + workers).randint(1, STEPS - 2)
    run = started(*SETTINGS, f"num_workers={workers}", "save_every_steps=0", fault=HOLD.format(gate=""))
    run.until(is_at(target))
    children = children_of(run.pids[0]) if workers else []  # workers get it too, as a job scheduler does it
    os.kill(run.pids[0], number)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):  # it has nothing more to load
            os.kill(pid, number)
    assert run.wait() == 128 + number, run.printed()[-3000:]
    assert not re.search("Traceback|Exception", run.printed()), run.printed()[-3000:]
    session = last_session(folder)
    assert session["stopped_by"] == number.name
    assert session["stopped_at"] >= target
    assert newest_checkpoint(folder).name == f"step-{session['stopped_at']}"
    assert not (folder / ".zoo-run.lock").exists()
    goes_on()


def test_run_signaled_during_an_evaluation(started, goes_on, folder):
    """The evaluation is stopped, and is repeated once after resuming."""
    fault = SIGNAL_IN.format(module="evaluation", name="unigram_entropy", times=1)
    for _ in range(2):  # the second time, the resumed run is stopped in it
        assert started(*SETTINGS, *resume(folder), fault=fault).wait() == 143
        assert newest_checkpoint(folder).name == "step-3"
    goes_on()


def test_run_stops_at_once_after_a_second_signal(started, folder):
    # held from the start of training on: the first one, in a checkpoint, is only noted
    fault = SIGNAL_IN.format(module="training", name="save_checkpoint", times=2)
    assert started(*SETTINGS, fault=fault).wait() == -signal.SIGTERM
    assert not checkpoints_of(folder)


def check_stopped_and_go_on(folder, target, finished, reference, difference):
    step = last_session(folder)["stopped_at"]
    assert step >= target
    assert newest_checkpoint(folder).name == f"step-{step}"
    finished(*WITHOUT_DROPOUT, "--resume")  # in one process: dropout is off
    assert difference(folder, reference) < 1e-5
    expected = [event["step"] for event in read_events(reference)]
    assert [event["step"] for event in read_events(folder)] == expected


def test_run_of_two_processes_of_which_one_is_signaled(started, finished, whole, difference, folder, tmp_path):
    run = started(*WITHOUT_DROPOUT, "save_every_steps=0", fault=HOLD.format(gate=str(tmp_path / "gate")), processes=2)
    run.until(is_at(2))
    os.kill(run.pids[1], signal.SIGTERM)
    (tmp_path / "gate").touch()  # for the other one
    assert run.wait() == 143
    check_stopped_and_go_on(folder, 2, finished, whole(*WITHOUT_DROPOUT), difference)


def test_run_whose_launcher_is_signaled(finished, whole, difference, recipe_file, folder, tmp_path, pytestconfig):
    """Runs the command of the documentation, with two processes on a CPU."""
    driver = tmp_path / "driver.py"
    log = tmp_path / "launched.txt"
    root = str(pytestconfig.rootpath)
    fault = HOLD.format(gate=str(tmp_path / "gate"))
    driver.write_text(f"import sys\nfrom crosslingual_zoo.pretraining import run\n{fault}\nrun.main(sys.argv[1:])\n")
    config = "--config_file pretraining/accelerate/ddp.yaml --num_processes 2 --main_process_port 0"
    command = [sys.executable, "-m", "accelerate.commands.launch", *config.split(), str(driver)]
    command += ["--config", str(recipe_file), f"output_dir={folder}", *WITHOUT_DROPOUT, "save_every_steps=0"]
    options = dict(cwd=root, env=os.environ | {"ACCELERATE_USE_CPU": "true", "PYTHONPATH": root})
    with log.open("w") as output:  # in a session of its own, so that all of it can be ended
        launched = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output, **options)
    try:
        while not is_at(1)(log.read_text()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"{launched.wait(0.1)}\n{log.read_text()[-3000:]}")
        os.kill(launched.pid, signal.SIGTERM)
        assert launched.wait() != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launched.pid, signal.SIGKILL)
    check_stopped_and_go_on(folder, 1, finished, whole(*WITHOUT_DROPOUT), difference)


@pytest.fixture
def assert_stops_at_poison(started, folder):
    """`assert_stops_at_poison(*settings, at, loss, step, saved)`: the run names the step, and keeps a good checkpoint
    of the step `saved`."""

    def check(*settings, at, loss, step, saved):
        run = started(*SETTINGS, *settings, *resume(folder), fault=POISON.format(at=at, loss=loss))
        assert run.wait() == 2
        assert "Traceback" not in run.printed()
        assert f"at step {step} " in " ".join(run.printed().split())
        checkpoint = newest_checkpoint(folder)
        assert checkpoint.name == f"step-{saved}"
        for weight in weights_of(checkpoint).values():
            assert torch.isfinite(weight).all()

    return check


def test_run_with_a_loss_that_is_not_finite(assert_stops_at_poison, goes_on):
    settings = ["precision=bf16", "gradient_accumulation_steps=2"]
    assert_stops_at_poison(*settings, at=8, loss=True, step=4, saved=2)
    assert_stops_at_poison(*settings, at=6, loss=True, step=5, saved=4)  # the third step of the resumed run
    goes_on(*settings)


def test_run_with_a_gradient_that_is_not_finite(assert_stops_at_poison, goes_on):
    assert_stops_at_poison(at=4, loss=False, step=4, saved=2)
    goes_on()


def test_run_of_two_processes_of_which_one_has_a_loss_that_is_not_finite(started, folder):
    """Both stop before the step."""
    fault = 'import os\nif os.environ["RANK"] == "1":\n' + textwrap.indent(POISON.format(at=3, loss=True), "    ")
    assert started(*SETTINGS, fault=fault, processes=2).wait() == 2
    assert newest_checkpoint(folder).name == "step-2"


def test_run_ends_with_its_workers_at_an_unexpected_error(started):
    """Its traceback keeps the loader alive, so that Python would wait forever for the workers."""
    run = started(*SETTINGS, "num_workers=2", fault=UNEXPECTED, processes=2)
    assert run.wait() > 0
    assert "out of memory" in run.printed()


# of two workers each makes every other batch: their second ones are 3 and 4
@pytest.mark.parametrize("workers, step", [(0, 1), (2, 2)])
def test_run_stops_resumably_at_data_that_cannot_be_read(started, goes_on, folder, workers, step):
    run = started(*SETTINGS, f"num_workers={workers}", fault=GONE.format(at=2))
    assert run.wait() == 2
    assert "gone" in run.printed(), run.printed()[-3000:]
    assert "Traceback" not in run.printed(), run.printed()[-3000:]
    assert newest_checkpoint(folder).name == f"step-{step}"
    goes_on()


def damage(file, size):
    """Keeps this share of a file."""
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * size)])


@pytest.mark.parametrize(
    "name",
    ["progress.json", "model/model.safetensors", "model/tokenizer.json", "optimizer.bin", "random_states_0.pkl"],
)
@pytest.mark.parametrize("size", [0, 0.5])
def test_run_resumes_the_checkpoint_before_a_damaged_one(
    name, size, started, whole, cut_back, assert_same_run, tmp_path
):
    settings = [*SETTINGS, "keep_checkpoints=0"]
    copied = cut_back(whole(*settings), 4, tmp_path / "copied")
    damage(copied / "checkpoints" / "step-4" / name, size)
    run = started(*settings, f"output_dir={copied}", "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    assert str(copied / "checkpoints" / "step-4" / name) in run.printed()
    assert_same_run(copied, whole(*settings))


def test_run_refuses_checkpoints_that_are_all_damaged(finished, fails, whole, cut_back, assert_same_run, tmp_path):
    settings = [*SETTINGS, "keep_checkpoints=0", f"output_dir={tmp_path / 'copied'}", "--resume"]
    copied = cut_back(whole(*SETTINGS, "keep_checkpoints=0"), 4, tmp_path / "copied")
    for checkpoint in checkpoints_of(copied):
        damage(checkpoint / "optimizer.bin", 0.9)
    before = sorted(copied.rglob("*"))
    assert str(copied / "checkpoints" / "step-4" / "optimizer.bin") in fails(*settings)
    assert sorted(copied.rglob("*")) == before
    shutil.rmtree(copied / "checkpoints")
    finished(*settings)
    assert_same_run(copied, whole(*SETTINGS, "keep_checkpoints=0"))
