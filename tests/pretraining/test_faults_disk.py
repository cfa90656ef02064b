"""A full disk, damaged checkpoints, and two runs into one folder."""

import json
import os
import random
import shutil
import signal

import pytest

from pretraining.checkpoints import CHECKSUMS, _checksums, checkpoints_of, damage, newest_checkpoint
from zoo_core.provenance import write_json

pytestmark = pytest.mark.slow

SETTINGS = [
    "phases.0.steps=5",
    "phases.0.objectives={mlm: {batch_size: 4, max_length: 48}, tlm: {batch_size: 4, max_length: 64}}",
    "evaluation={held_out_fraction: 0.1, every_steps: 3, max_examples: 8}",
    "save_every_steps=2",
    "keep_checkpoints=0",
]


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
make = training.Training._step
def limited(self, predictions):
    if self.phase_step == {step} - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))
    return make(self, predictions)
training.Training._step = limited
"""


def test_a_full_disk_at_random_writes(started, whole, assert_same_run, tmp_path):
    """Of recipe.yaml, run.json, events.jsonl, curves.png, progress.json, checksums.json or the model's small files."""
    folder, chance = tmp_path / "full", random.Random(1)
    events = map(json.loads, (whole(*SETTINGS).parent / "files.jsonl").read_text().splitlines())
    writes = sum(event[0] == "open" and any(letter in event[2] for letter in "wax+") for event in events)
    stopped = 0
    for part in range(4):  # at first early, at last late: in a run that goes on there is less to write
        resume = ["--resume"] if (folder / "recipe.yaml").exists() else []
        at = chance.randint(1 + writes * part // 8, writes * (part + 1) // 8)
        run = started(*SETTINGS, f"output_dir={folder}", *resume, fault=FULL_DISK.format(folder=str(folder), at=at))
        if run.wait() == 0:
            break
        printed = run.printed()
        assert "Traceback" not in printed and "No space left on device" in printed, printed[-3000:]
        stopped += 1
        assert all(damage(checkpoint) is None for checkpoint in checkpoints_of(folder))
        assert not list(folder.glob("checkpoints/.*")) and not (folder / "model").exists()
    assert stopped > 2
    run = started(*SETTINGS, f"output_dir={folder}", *(["--resume"] if (folder / "recipe.yaml").exists() else []))
    assert run.wait() == 0, run.printed()[-3000:]
    assert_same_run(folder, whole(*SETTINGS))


def test_the_system_refuses_to_write(started, whole, assert_same_run, tmp_path):
    folder = tmp_path / "full"
    run = started(*SETTINGS, f"output_dir={folder}", fault=NO_LONG_FILES.format(step=4, size=20_000))
    assert run.wait() == 2
    assert [path.name for path in checkpoints_of(folder)] == ["step-2"]
    assert not list((folder / "checkpoints").glob(".*"))
    run = started(*SETTINGS, f"output_dir={folder}", "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    assert_same_run(folder, whole(*SETTINGS))


def spoil(path, kind, chance):
    """Truncates a file, flips one bit of it, or removes it."""
    content = bytearray(path.read_bytes())
    place = chance.randrange(len(content))
    content[place] ^= 1 << chance.randrange(8)
    path.unlink()
    if kind != "removed":
        path.write_bytes(content if kind == "flipped" else content[:place])


def test_damage_is_found_wherever_it_is(tmp_path):
    chance, names = random.Random(0), ["model/weights.bin", "progress.json", "optimizer.bin"]
    (tmp_path / "whole" / "model").mkdir(parents=True)
    for name in names:
        (tmp_path / "whole" / name).write_bytes(chance.randbytes(3000))
    write_json(tmp_path / "whole" / CHECKSUMS, _checksums(tmp_path / "whole"))
    assert damage(tmp_path / "whole") is None
    for name in names:
        for kind in ("cut", "flipped", "removed"):
            folder = shutil.copytree(tmp_path / "whole", tmp_path / name / kind)
            spoil(folder / name, kind, chance)
            assert name in damage(folder)
    for content in (b"", b"{", b"[]", b"{}", b"7", b"\xff"):
        (tmp_path / "whole" / CHECKSUMS).write_bytes(content)
        assert CHECKSUMS in damage(tmp_path / "whole")


def test_of_damaged_checkpoints_the_one_before_is_used(started, fails, whole, cut_back, assert_same_run, tmp_path):
    """The two newest ones are damaged, each in a file and a way of its own."""
    copied, chance, names = cut_back(whole(*SETTINGS), 5, tmp_path / "copied"), random.Random(2), []
    for checkpoint, kind in zip(checkpoints_of(copied)[-2:], ("cut", "flipped"), strict=True):
        file = chance.choice(sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.name != CHECKSUMS))
        spoil(file, kind, chance)
        names.append((checkpoint, str(file.relative_to(checkpoint))))
    run = started(*SETTINGS, "keep_checkpoints=1", f"output_dir={copied}", "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    for checkpoint, name in names:
        assert name in run.printed() and (checkpoint.parent / f"damaged-{checkpoint.name}").is_dir()
    sessions = json.loads((copied / "run.json").read_text())["sessions"]
    assert sessions[-1]["resumed_from"] == "step-2"
    assert newest_checkpoint(copied).name == "step-5" and damage(newest_checkpoint(copied)) is None
    assert_same_run(copied, whole(*SETTINGS))
    # where none is sound, nothing is resumed
    (newest_checkpoint(copied) / "optimizer.bin").unlink()
    shutil.rmtree(copied / "model")
    for _ in range(2):  # it stays so
        assert "optimizer.bin" in fails(*SETTINGS, f"output_dir={copied}", "--resume")
        assert len(checkpoints_of(copied)) == 1


HOLD = """
import os, time
from pretraining import training
really = training.{name}
def held(*arguments, **keywords):
    print("at the gate", flush=True)
    while not os.path.exists({gate!r}):
        time.sleep(0.01)
    return really(*arguments, **keywords)
training.{name} = held
"""


def test_two_runs_into_one_folder(started, fails, tmp_path):
    """The second one is refused, and the first one does not notice."""
    gate = tmp_path / "gate"
    first = started(*SETTINGS, fault=HOLD.format(name="save_checkpoint", gate=str(gate)))
    first.until(lambda printed: "at the gate" in printed)
    for arguments in ([], ["--resume"]):
        assert "another run" in fails(*SETTINGS, *arguments)
    gate.touch()
    assert first.wait() == 0, first.printed()[-3000:]
    assert not (tmp_path / "run" / ".lock").exists()


def test_the_lock_of_a_killed_run_is_free(started, tmp_path):
    """At once, though its data-loading workers live on for some seconds; the file that is left means nothing."""
    folder = tmp_path / "run"
    first = started(*SETTINGS, "num_workers=2", fault=HOLD.format(name="save_checkpoint", gate="never"))
    first.until(lambda printed: "at the gate" in printed)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL and (folder / ".lock").exists()
    run = started(*SETTINGS, "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    assert (folder / "model").exists() and not (folder / ".lock").exists()
