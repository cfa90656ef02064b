"""`make demo` for one model: every command of the path, and what it leaves behind. They run in this process and train a
few steps; `make test-install`, which CI runs, has them as a user has them."""

import contextlib
import io
import re
import runpy
import shutil
import sys
import warnings

import pytest

import demo
from finetuning.results import read_results
from tests.conftest import forget_accelerate

pytestmark = pytest.mark.slow

SHORT = {
    "pretraining.run": ("phases.0.steps=2", "phases.1.steps=2", "phases.1.warmup_steps=0", "log_every_steps=1"),
    "finetuning.run": ("training.max_steps=2", "seeds=[1]"),
}


class Here:
    """Runs what is submitted at once: only the main thread gets signals."""

    map = staticmethod(map)


def in_process(module, *arguments):
    """`python -m module arguments`."""
    forget_accelerate()
    arguments += () if "word_alignment" in " ".join(arguments) else SHORT.get(module, ())
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()) as out,
    ):
        patch.setattr(sys, "argv", [module, *arguments])
        warnings.filterwarnings("ignore", message=".* found in sys.modules", category=RuntimeWarning)
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            assert not stop.code, stop.code
    return out.getvalue().rstrip()


def test_demo_leaves_model_card_and_table(pytestconfig, monkeypatch, capsys):
    monkeypatch.chdir(pytestconfig.rootpath)
    monkeypatch.setattr(demo, "run", in_process)
    monkeypatch.setattr(demo, "ThreadPoolExecutor", lambda workers: contextlib.nullcontext(Here()))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--models", "veco"])
    demo.main()
    printed = capsys.readouterr().out
    folder = pytestconfig.rootpath / re.search(r"links in (runs/demo-[\d-]+)\.", printed)[1]
    try:
        languages = read_results(folder / "veco-topics").languages
        assert list(languages) == ["en", "de", "fr", "es", "zh"]
        assert all(f"{entry['mean']:.1f}" in printed for entry in languages.values())
        assert "pipeline_tag: fill-mask" in (folder / "veco" / "model" / "README.md").read_text(encoding="utf-8")
        for name in ("curves.png", "events.jsonl", "run.json", "recipe.yaml"):
            assert (folder / "veco" / name).stat().st_size > 0
    finally:
        shutil.rmtree(folder)
