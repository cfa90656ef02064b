"""`make demo` for one model, as a user runs it: every command of the path, and what it leaves behind."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from finetuning.results.table import read_results

pytestmark = pytest.mark.slow


def test_the_demo_runs_and_leaves_model_card_and_table(pytestconfig):
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "demo.py", "--models", "veco"],
        cwd=pytestconfig.rootpath,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    folder = pytestconfig.rootpath / re.search(r"model and card (runs/demo-\S+)/veco/model", done.stdout)[1]
    try:
        assert "veco/model is whole, and a fresh process loads it" in " ".join(done.stdout.split())
        assert "mean only that everything runs" in " ".join(done.stdout.split())
        results = read_results(folder / "veco-topics")
        row = re.search(r"│ veco +│(.+)│", done.stdout)[1].split("│")
        shown = [f"{entry['mean']:.1f}" for entry in results.languages.values()]
        assert list(results.languages) == ["en", "de", "fr", "es", "zh"]
        assert [cell.strip() for cell in row][:5] == shown
        card = (folder / "veco" / "model" / "README.md").read_text(encoding="utf-8")
        assert "pipeline_tag: fill-mask" in card and "not a model for use" in card
        for name in ("curves.png", "events.jsonl", "run.json", "recipe.yaml"):
            assert (folder / "veco" / name).stat().st_size > 0
    finally:
        shutil.rmtree(folder)
