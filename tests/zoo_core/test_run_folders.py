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


@pytest.fixture
def holder(pytestconfig):
    """holder(folder) -> a process that holds the lock of a folder until it ends."""
    command, started = [sys.executable, "-c", HOLDER], []

    def start(folder):
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=pytestconfig.rootpath)
        started.append(process := subprocess.Popen([*command, str(folder)], **pipes))
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_run_is_refused_until_the_first_ends_however_it_ends(holder, tmp_path):
    folder = tmp_path / "runs" / "mine"
    killed = holder(folder)
    with pytest.raises(ValueError, match=f"{folder}.*in use"), run_lock(folder):
        pass
    assert os.listdir(folder) == [LOCK]
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert os.listdir(folder) == [LOCK]  # the file alone holds nothing
    ended = holder(folder)
    ended.communicate()
    with run_lock(folder):
        (folder / "results").touch()
    assert os.listdir(folder) == ["results"]


def test_only_folders_that_it_made_are_removed_again(tmp_path):
    (tmp_path / "empty").mkdir()
    for place in ("empty", "new/deep"):
        with run_lock(tmp_path / place):
            assert (tmp_path / place / LOCK).exists()
    assert os.listdir(tmp_path) == ["empty"]


def test_of_several_processes_the_first_one_holds_it(tmp_path, monkeypatch):
    with run_lock(tmp_path):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        with run_lock(tmp_path):
            pass
        assert (tmp_path / LOCK).exists()


def test_what_is_not_of_the_given_names_stays(tmp_path):
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
