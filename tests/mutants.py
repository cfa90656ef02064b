"""Plants the faults of mutants.tsv one at a time in a copy of the repository, and runs the tests that should see each.

`make mutants` prints a line for each fault: killed, if one of its tests fails, or survived. Columns of mutants.tsv: a
file, a text that it has once, what is put there, and tests. CONTRIBUTING.md says how many were killed last.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Prints a line for each fault, and how many were killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "only faults whose file or tests have this text in their names, as in finetuning/test_vectors.py"
    parser.add_argument("names", nargs="*", metavar="NAME", help=about)
    names = parser.parse_args().names
    root = Path(__file__).parents[1]
    killed = 0
    with open(root / "tests" / "mutants.tsv", encoding="utf-8", newline="") as file:
        faults = list(csv.DictReader(file, dialect="excel-tab", quoting=csv.QUOTE_NONE))
    if names:
        faults = [fault for fault in faults if any(name in fault["file"] + " " + fault["tests"] for name in names)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".*", "runs", "build", "_build", "__pycache__")
        shutil.copytree(root, copy, ignore=ignored, symlinks=True)  # the tests import what the faults are planted in
        for fault in faults:
            path, old, new = copy / fault["file"], fault["old"], fault["new"]
            text = path.read_text(encoding="utf-8")
            if text.count(old) != 1:
                sys.exit(f"{fault['file']} has {text.count(old)} places {old!r}. Correct mutants.tsv.")
            path.write_text(text.replace(old, new), encoding="utf-8")
            tests = [f"tests/{name}" for name in fault["tests"].split()]
            command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests]
            code = subprocess.run(command, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True)
            path.write_text(text, encoding="utf-8")
            outcome = {0: "survived", 1: "killed"}.get(code.returncode, "not run")
            killed += outcome == "killed"
            print(f"{outcome:9}{fault['file']}: {old} → {new}", flush=True)
    print(f"{killed} of {len(faults)} killed")


if __name__ == "__main__":
    main()
