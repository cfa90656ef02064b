"""A program in several processes, as a launcher starts them."""

import json
import os
import socket
import subprocess
import sys


def run_in(processes, program, argument, folder):
    """(exit codes, what all printed) of a Python program that reads `argument` as JSON from its first argument."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    shared |= {"WORLD_SIZE": str(processes), "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, "-c", program, json.dumps(argument)]
    with (folder / "printed").open("w+", encoding="utf-8") as printed:
        started = []
        for rank in map(str, range(processes)):
            environment = os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank}
            started.append(subprocess.Popen(command, env=environment, stdout=printed, stderr=printed))
        try:
            codes = [process.wait(timeout=600) for process in started]
        finally:
            for process in started:
                process.kill()
        printed.seek(0)
        return codes, printed.read()
