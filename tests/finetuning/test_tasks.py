"""The registry of tasks."""

import subprocess
import sys


def test_help_needs_no_torch():
    code = "import sys, finetuning.run; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
