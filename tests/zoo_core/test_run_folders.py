"""One run at a time in a folder, and only files of runs are removed from it."""

import os
import signal
import subprocess
import sys

import pytest

from zoo_core.run_folders import LOCK, not_own, remove_own, run_lock

HOLDER = """
import sys
from zoo_core.run_folders import run_lock
with run_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_run_lock_refuses_a_second_run_until_the_first_ends_in_any_way(pytestconfig, tmp_path):
    folder, pipes = tmp_path / "runs" / "mine", dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for end in (lambda holder: os.kill(holder.pid, signal.SIGKILL), lambda holder: holder.stdin.close()):
        command = [sys.executable, "-c", HOLDER, str(folder)]
        with subprocess.Popen(command, **pipes, cwd=pytestconfig.rootpath) as holder:
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(ValueError, match=str(folder)), run_lock(folder):
                pass
            end(holder)
            holder.wait()
    with run_lock(folder):
        (folder / "results").touch()
    assert os.listdir(folder) == ["results"]


def test_remove_own_leaves_other_names_and_links(tmp_path):
    folder, elsewhere = tmp_path / "steps", tmp_path / "elsewhere"
    for name in ("step-1", "step-2", "step-3", "step-3.bak", "my-step-3", ".git"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
    elsewhere.mkdir()
    (folder / "step-4").symlink_to(elsewhere)
    (folder / "step-5").touch()
    (folder / LOCK).touch()
    remove_own(folder, r"step-\d+", kept=[folder / "step-2"])
    left = [".git", "my-step-3", "step-2", "step-3.bak", "step-4"]
    assert sorted(os.listdir(folder)) == [".git", LOCK, *left[1:]] and elsewhere.exists()
    assert not_own(folder, "") == left and not_own(folder, r"step-\d") == [".git", "my-step-3", "step-3.bak"]
    (tmp_path / "own" / "step-1").mkdir(parents=True)
    remove_own(tmp_path / "own", r"step-\d+")
    assert not (tmp_path / "own").exists() and not_own(tmp_path / "own", "") == []
