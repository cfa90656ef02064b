"""Processes that end with the one that forked them."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# the fork has the pipe of stdout, which the test reads to its end, open as long as it runs
PROGRAM = """
import os, signal, time
from crosslingual_zoo.zoo_core.processes import forks_end_with_this_process
with forks_end_with_this_process():
    if os.fork() == 0:
        print("forked", flush=True)
        time.sleep(120)
time.sleep(120)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_forks_end_with_a_process_that_is_killed(number):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "forked\n"
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("", None)
