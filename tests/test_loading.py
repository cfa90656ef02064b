"""Commands say what they load before the libraries, whose import takes seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# ends at the first import that takes seconds
PROGRAM = """
import importlib, os, sys
class Slow:
    def find_spec(self, name, *_):
        if name in ("accelerate", "datasets", "torch", "transformers"):
            os._exit(7)
sys.meta_path.insert(0, Slow())
module, *arguments = sys.argv[1:]
importlib.import_module(module).main(arguments)
"""
ALIGN = "crosslingual_zoo.finetuning.align.command"
PRETRAINING = "--config pretraining/recipes/xlm_align/smoke.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arguments", "named"),
    [
        (ALIGN, "pairs.txt --model m", "m"),
        (ALIGN, "score pairs.txt --gold gold.txt --links gold.txt", "the links"),
        (ALIGN, "adapt pairs.txt --output new --model m", "m"),
        (ALIGN, "project a.conll pairs.txt --model m", "m"),
        ("crosslingual_zoo.pretraining.run", f"{PRETRAINING} output_dir=runs/new", "the corpora"),
        ("crosslingual_zoo.pretraining.tools.prepare", PRETRAINING, "the corpora"),
        ("crosslingual_zoo.pretraining.tools.trim_vocabulary", f"{PRETRAINING} model.start_from=m output_dir=new", "m"),
        ("crosslingual_zoo.finetuning.run", "--config finetuning/recipes/xlm_align/sample.yaml model=m", "m"),
        (
            "crosslingual_zoo.finetuning.tools.label_text",
            "--model m --languages de --input a.jsonl --output b.jsonl",
            "m",
        ),
        ("crosslingual_zoo.hub_cards.card", "--model m", "m"),
    ],
)
def test_commands_say_what_they_load(tmp_path, module, arguments, named):
    files = {"pairs.txt": "a ||| b\n", "gold.txt": "0-0\n", "a.conll": "a\tX\n\n", "a.jsonl": '{"text": "a"}\n'}
    for name, line in files.items():
        (tmp_path / name).write_text(line * 50)
    arguments = arguments.replace("pretraining/", f"{ROOT}/pretraining/").replace("finetuning/", f"{ROOT}/finetuning/")
    command = [sys.executable, "-c", PROGRAM, module, *arguments.split()]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 7 and ended.stderr.endswith(f"then {named}\n"), ended.stderr


@pytest.mark.slow
def test_word_align_quiet_says_nothing():
    command = [sys.executable, "-c", PROGRAM, ALIGN, "a b", "c d", "--quiet"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (7, "")
