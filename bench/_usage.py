"""Runs a command; prints its processor seconds and MiB: `python -m bench._usage COMMAND ...`.

A process of its own, because the largest memory of a command is never below that of the process that starts it.
"""

import json
import os
import subprocess
import sys

from crosslingual_zoo.zoo_core.provenance import resident_bytes


def main(command: list[str]) -> int:
    """Returns the command's exit code."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)  # what only this process took, and its own processes
    process.returncode = os.waitstatus_to_exitcode(status)
    print(json.dumps({"seconds": usage.ru_utime + usage.ru_stime, "memory": resident_bytes(usage) / 2**20}))
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
