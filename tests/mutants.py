"""`make mutants` plants the faults of mutants.tsv one at a time in a copy, and runs the tests that should see each.

A line of the table: what is wrong, file, text (once in the file), text in its place, tests. Words after the command
select the lines that have all of them. Prints a line for each fault, and ends with 1 if one survives.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    lines = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8").splitlines()[1:]
    lines = [line for line in lines if all(word in line for word in sys.argv[1:])]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(
            ROOT, Path(folder) / "copy", ignore=shutil.ignore_patterns(".*", "_build"), symlinks=True
        )
        environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        for line in lines:
            what, name, text, instead, tests = line.split("\t")
            file = copy / name
            whole = file.read_text(encoding="utf-8")
            if whole.count(text) != 1:
                survived += 1
                print(f"not planted  {what}: {name} has {text!r} {whole.count(text)} times", flush=True)
                continue
            file.write_text(whole.replace(text, instead), encoding="utf-8")
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
            file.write_text(whole, encoding="utf-8")
            # 1: tests failed; others are errors of pytest itself, such as no such file
            survived += done.returncode != 1
            killed = next((part for part in done.stdout.splitlines() if part.startswith(("FAILED", "ERROR"))), "")
            verdict = "killed" if done.returncode == 1 else f"survived ({done.returncode})"
            print(f"{verdict:12} {what}: {name}  {killed[:100]}", flush=True)
    print(f"{len(lines) - survived} of {len(lines)} killed")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
