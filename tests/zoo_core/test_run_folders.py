"""One run at a time in a folder, and only files of runs are removed from it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from crosslingual_zoo.zoo_core.run_folders import LOCK, damaged_file, newest_whole, not_own, remove_own, run_lock

HOLDER = """
import sys
from crosslingual_zoo.zoo_core.run_folders import run_lock
with run_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_run_lock_refuses_a_second_run_until_the_first_ends_in_any_way(pytestconfig, tmp_path, is_killed):
    folder = tmp_path / "runs" / "mine"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **pipes, cwd=pytestconfig.rootpath) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=str(folder)), run_lock(folder):
            pass
        if is_killed:
            holder.kill()
        else:
            holder.stdin.close()
        holder.wait()
    with run_lock(folder):
        (folder / "results").touch()
    assert os.listdir(folder) == ["results"]


def test_remove_own_leaves_other_names_and_links(tmp_path):
    folder = tmp_path / "steps"
    for name in ("step-1", "step-2", "step-3", "step-3.bak", "my-step-3", ".git"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "step-4").symlink_to(elsewhere)
    (folder / "step-5").touch()
    (folder / LOCK).touch()
    remove_own(folder, r"step-\d+", needed=[folder / "step-2"])
    assert set(os.listdir(folder)) == {".git", LOCK, "my-step-3", "step-2", "step-3.bak", "step-4"}
    assert elsewhere.exists()
    assert not_own(folder, "") == [".git", "my-step-3", "step-2", "step-3.bak", "step-4"]
    assert not_own(folder, r"step-\d") == [".git", "my-step-3", "step-3.bak"]


def test_remove_own_removes_a_folder_without_other_names(tmp_path):
    folder = tmp_path / "own"
    (folder / "step-1").mkdir(parents=True)
    remove_own(folder, r"step-\d+")
    assert not folder.exists()
    assert not_own(folder, "") == []


def make_checkpoint(folder):
    """Files of every format that a checkpoint has."""
    (folder / "model").mkdir(parents=True)
    save_file({"a": np.arange(100.0), "b": np.ones((3, 4))}, folder / "model" / "model.safetensors")
    torch.save({"state": {0: torch.ones(9)}, "rate": 0.1}, folder / "optimizer.pt")
    torch.save([1, "two"], folder / "random.pkl")
    (folder / "state.json").write_text(json.dumps({"step": 3, "text": "ä"}), encoding="utf-8")
    (folder / "model" / "sentencepiece.bpe.model").write_bytes(b"abc")
    (folder / "model" / "__init__.py").touch()
    return folder


NEEDED = ("optimizer.pt", "model/model.safetensors")


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.pt", "random.pkl", "state.json"])
@pytest.mark.parametrize("size", [0, 1, 8, 9, "half", -30, -1])
def test_damaged_file_is_the_one_that_is_cut_off(name, size, tmp_path):
    folder = make_checkpoint(tmp_path / "step-1")
    assert damaged_file(folder, NEEDED) is None
    file = folder / name
    content = file.read_bytes()
    if size == "half":
        size = len(content) // 2
    file.write_bytes(content[:size])
    assert damaged_file(folder, NEEDED) == file
    file.write_bytes(bytes(len(content)))  # blocks that were never written
    assert damaged_file(folder, NEEDED) == file
    file.unlink()
    missing = file if name in NEEDED else None
    assert damaged_file(folder, NEEDED) == missing


def test_damaged_file_that_is_empty_is_damaged_in_any_format(tmp_path):
    folder = make_checkpoint(tmp_path / "step-1")
    file = folder / "model" / "sentencepiece.bpe.model"
    file.write_bytes(b"")
    assert damaged_file(folder, NEEDED) == file


def test_newest_whole_passes_over_damaged_ones_and_says_so(tmp_path, capsys):
    checkpoints = [make_checkpoint(tmp_path / f"step-{step}") for step in (1, 2, 3)]
    assert newest_whole([], NEEDED) is None
    assert newest_whole(checkpoints, NEEDED) == checkpoints[2]
    assert not capsys.readouterr().err
    for checkpoint in checkpoints[1:]:
        (checkpoint / "optimizer.pt").write_bytes(b"")
    assert newest_whole(checkpoints, NEEDED) == checkpoints[0]
    [line] = capsys.readouterr().err.splitlines()
    assert str(checkpoints[2] / "optimizer.pt") in line
    assert str(checkpoints[0]) in line
    (checkpoints[0] / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match=str(checkpoints[2] / "optimizer.pt")):
        newest_whole(checkpoints, NEEDED)
