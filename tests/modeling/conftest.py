"""What tests of several files build on: programs that load saved folders in a process of their own."""

import json
import os
import subprocess
import sys

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    """Flex attention by its own eager code: its masks are what is tested, and a machine may have no C++ compiler."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(scope="session")
def fresh_process(tmp_path_factory):
    """`fresh_process(program, *arguments, path=None)`: what a Python program of its own leaves in a file of torch.save.

    It runs offline, in another directory, with an empty HF_HOME and warnings as errors. The arguments reach it as JSON
    in sys.argv[1:], behind the name of the file, sys.argv[1]; `path` goes first on its PYTHONPATH.
    """

    def run(program, *arguments, path=None):
        home = tmp_path_factory.mktemp("fresh_process")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
        environment |= {"HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1"}
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        command = [sys.executable, "-W", "error", "-c", program, str(home / "found.pt"), *map(json.dumps, arguments)]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return torch.load(home / "found.pt", weights_only=False)

    return run
