"""A full disk, damaged checkpoints, and two runs into one folder."""

import json
import os
import random
import re
import shutil
import signal
import socket

import pytest
import torch
from safetensors.torch import load_file

from pretraining.checkpoints import checkpoints_of, newest_checkpoint
from pretraining.checksums import damage, write_checksums
from pretraining.tracking import read_events

SETTINGS = [
    "phases.0.steps=5",
    "phases.0.objectives={mlm: {batch_size: 4, max_length: 48}, tlm: {batch_size: 4, max_length: 64}}",
    "evaluation={held_out_fraction: 0.1, every_steps: 3, max_examples: 8}",
    "save_every_steps=2",
    "keep_checkpoints=0",
]


def assert_same_run(folder, whole):
    ours, reference = (load_file(path / "model" / "model.safetensors") for path in (folder, whole))
    assert all(torch.equal(ours[key], reference[key]) for key in reference)
    assert [event["step"] for event in read_events(folder)] == [event["step"] for event in read_events(whole)]


@pytest.fixture
def copied(whole, tmp_path):
    """`copied(name)`: a copy of the finished run, of which only model/ is missing."""

    def copy(name):
        folder = shutil.copytree(whole(*SETTINGS), tmp_path / name)
        shutil.rmtree(folder / "model")
        return folder

    return copy


# Writing Python's own files fails as on a full disk: from the `at`-th time on that one of the run folder is opened.
FULL_DISK = """
import builtins, errno, io, os, pathlib, sys
seen, really, really_os, really_path = 0, builtins.open, os.open, io.open
def refuse(path, mode):
    global seen
    if isinstance(path, (str, os.PathLike)) and {folder!r} in os.fspath(path) and any(c in str(mode) for c in "wa+x"):
        seen += 1
        if seen >= {at} and not os.fspath(path).endswith(".lock"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
def opened(path, mode="r", *arguments, **keywords):
    refuse(path, mode)
    return really(path, mode, *arguments, **keywords)
builtins.open = io.open = opened
"""

# The system itself refuses to make files longer than `size` bytes from step `step` on, whoever writes them.
NO_LONG_FILES = """
import resource, signal
from pretraining import training
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
update = training.Training._update
def limited(self, predictions, number, phase):
    if number == {step}:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))
    return update(self, predictions, number, phase)
training.Training._update = limited
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_a_full_disk_at_random_writes(started, whole, tmp_path, seed):
    """Of recipe.yaml, run.json, events.jsonl, curves.png, progress.json, checksums.json or the model's small files."""
    folder, chance = tmp_path / "full", random.Random(seed)
    events = map(json.loads, (whole(*SETTINGS).parent / "files.jsonl").read_text().splitlines())
    writes = sum(event[0] == "open" and any(letter in event[2] for letter in "wax+") for event in events)
    messages = []
    for part in range(4):  # at first early, at last late: in a run that goes on there is less to write
        resume = ["--resume"] if (folder / "recipe.yaml").exists() else []
        at = chance.randint(1 + writes * part // 8, writes * (part + 1) // 8)
        run = started(*SETTINGS, f"output_dir={folder}", *resume, fault=FULL_DISK.format(folder=str(folder), at=at))
        if run.wait() == 0:
            break
        printed = run.printed()
        assert "Traceback" not in printed, printed[-3000:]
        (message,) = re.findall(r"^\S+: error: .*$", printed, re.MULTILINE)
        assert "No space left on device" in message, message
        messages.append(message)
        assert all(damage(checkpoint) is None for checkpoint in checkpoints_of(folder))
        assert not list(folder.glob("checkpoints/.*")) and not (folder / "model").exists()
    assert len(messages) > 2 and len(set(messages)) > 1, messages
    run = started(*SETTINGS, f"output_dir={folder}", *(["--resume"] if (folder / "recipe.yaml").exists() else []))
    assert run.wait() == 0, run.printed()[-3000:]
    assert_same_run(folder, whole(*SETTINGS))


@pytest.mark.parametrize("step", [2, 4])
def test_the_system_refuses_to_write(started, whole, tmp_path, step):
    folder = tmp_path / "full"
    run = started(*SETTINGS, f"output_dir={folder}", fault=NO_LONG_FILES.format(step=step, size=20_000))
    assert run.wait() == 2
    printed = run.printed()
    assert (
        f"the checkpoint of step {step}" in printed and "could not be written" in printed and "--resume" in printed
    ), printed[-3000:]
    assert len(checkpoints_of(folder)) == (step > 2)
    run = started(*SETTINGS, f"output_dir={folder}", "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    assert_same_run(folder, whole(*SETTINGS))


def test_a_full_disk_while_the_model_is_published(started, whole, copied):
    folder = copied("full")
    fault = """
import errno, os, shutil
copytree = shutil.copytree
def fails(*arguments, **keywords):
    copytree(*arguments, **keywords)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
shutil.copytree = fails
"""
    run = started(*SETTINGS, f"output_dir={folder}", "--resume", fault=fault)
    assert run.wait() == 2 and "model/ of" in run.printed() and "step-5 is untouched" in run.printed()
    assert not (folder / "model").exists() and not list(folder.glob(".model*"))
    assert started(*SETTINGS, f"output_dir={folder}", "--resume").wait() == 0
    assert_same_run(folder, whole(*SETTINGS))


def test_a_full_disk_while_text_is_tokenized(started, tmp_path):
    """Of the cache, not the run folder: nothing has begun, and the next start is a first one."""
    home = tmp_path / "cache"
    # a cache of its own, as another test may have tokenized this text before
    cache = f"import datasets, pathlib\ndatasets.config.HF_DATASETS_CACHE = pathlib.Path({str(home)!r})\n"
    full = """
import errno, os
import datasets.arrow_writer as writer
def full(*arguments, **keywords):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
writer.ArrowWriter.write_table = writer.ArrowWriter.write_batch = full
"""
    run = started(*SETTINGS, "monolingual.0.language=fr", "monolingual.0.config=fr", fault=cache + full)
    code, printed = run.wait(), run.printed()
    assert code == 2 and "No space left on device" in printed and "Traceback" not in printed, printed[-3000:]
    assert not list(home.rglob("*.arrow")) and not (tmp_path / "run").exists()
    run = started(*SETTINGS, "monolingual.0.language=fr", "monolingual.0.config=fr", fault=cache)
    assert run.wait() == 0, run.printed()[-3000:]
    assert list(home.rglob("*.arrow"))


def spoil(path, chance):
    """Truncates a file, flips one bit of it, or removes it; what was done."""
    kind, size = chance.choice(["cut", "flipped", "removed"]), path.stat().st_size
    if kind == "removed":
        path.unlink()
        return kind
    with path.open("r+b") as file:
        place = chance.randrange(size)
        if kind == "cut":
            file.truncate(place)
        else:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ (1 << chance.randrange(8))]))
    return kind


def test_damage_is_found_wherever_it_is(tmp_path):
    chance = random.Random(0)
    (tmp_path / "whole" / "model").mkdir(parents=True)
    for name in ("model/weights.bin", "progress.json", "optimizer.bin"):
        (tmp_path / "whole" / name).write_bytes(chance.randbytes(3000))
    write_checksums(tmp_path / "whole")
    assert damage(tmp_path / "whole") is None
    names, kinds = ["model/weights.bin", "progress.json", "optimizer.bin"], set()
    for number in range(60):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / str(number))
        name = chance.choice(names)
        kinds.add(spoil(folder / name, chance))
        assert name in damage(folder)
    assert kinds == {"cut", "flipped", "removed"}
    for content in (b"", b"{", b"[]", b"{}", b"7", b"\xff"):
        (tmp_path / "whole" / "checksums.json").write_bytes(content)
        assert "checksums.json" in damage(tmp_path / "whole")


@pytest.mark.parametrize("bad", [1, 2])
def test_of_a_damaged_checkpoint_the_one_before_is_used(started, whole, copied, bad):
    """`bad` of the newest ones are damaged, each in a file and a way of its own."""
    chance, folder, names = random.Random(bad), copied("spoilt"), []
    for checkpoint in checkpoints_of(folder)[-bad:]:
        files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != "checksums.json")
        file = chance.choice(files)
        spoil(file, chance)
        names.append((checkpoint, str(file.relative_to(checkpoint))))
    run = started(*SETTINGS, f"keep_checkpoints={2 - bad}", f"output_dir={folder}", "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    for checkpoint, name in names:
        assert f"{checkpoint} is damaged: {name}" in run.printed()
        assert (checkpoint.parent / f"damaged-{checkpoint.name}").is_dir()
    sessions = json.loads((folder / "run.json").read_text())["sessions"]
    assert sessions[-1]["resumed_from"] == ["step-4", "step-2"][bad - 1]
    assert newest_checkpoint(folder).name == "step-5" and damage(newest_checkpoint(folder)) is None
    assert_same_run(folder, whole(*SETTINGS))


def test_where_no_checkpoint_is_sound_nothing_is_resumed(fails, copied):
    folder = copied("spoilt")
    for checkpoint in checkpoints_of(folder):
        (checkpoint / "optimizer.bin").unlink()
    for _ in range(2):  # it stays so
        message = fails(*SETTINGS, f"output_dir={folder}", "--resume")
        assert "no checkpoint of" in message and "step-5: optimizer.bin is missing" in message
        assert "another output_dir" in message and len(checkpoints_of(folder)) == 3


HOLD = """
import os, time
from pretraining import training
really = training.{name}
def held(*arguments, **keywords):
    print("held", flush=True)
    while not os.path.exists({gate!r}):
        time.sleep(0.01)
    return really(*arguments, **keywords)
training.{name} = held
"""


@pytest.mark.parametrize("name", ["load_corpora", "training_batches", "save_checkpoint", "publish_model"])
def test_two_runs_into_one_folder(started, fails, tmp_path, name):
    """The second one is refused wherever the first one stands, and the first one does not notice."""
    gate = tmp_path / "gate"
    first = started(*SETTINGS, fault=HOLD.format(name=name, gate=str(gate)))
    first.until(lambda printed: "held" in printed)
    for arguments in ([], ["--resume"]):
        message = fails(*SETTINGS, *arguments)
        assert f"in use by another run (process {first.pid} on {socket.gethostname()}, started 20" in message
    gate.touch()
    assert first.wait() == 0, first.printed()[-3000:]
    assert not (tmp_path / "run" / ".lock").exists()
    assert "is finished" in fails(*SETTINGS, "--resume")


@pytest.mark.parametrize("name", ["load_corpora", "save_checkpoint"])
def test_the_lock_of_a_killed_run_is_free(started, tmp_path, name):
    """At once, though its data-loading workers live on for some seconds; the file that is left means nothing."""
    folder = tmp_path / "run"
    first = started(*SETTINGS, "num_workers=2", fault=HOLD.format(name=name, gate="never"))
    first.until(lambda printed: "held" in printed)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL and (folder / ".lock").exists()
    run = started(*SETTINGS, *(["--resume"] if (folder / "recipe.yaml").exists() else []))
    assert run.wait() == 0, run.printed()[-3000:]
    assert (folder / "model").exists() and not (folder / ".lock").exists()
