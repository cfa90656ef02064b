"""What a run says while it trains, in a file and on a terminal."""

import io

import pytest
from rich.console import Console
from transformers import TrainerState

from crosslingual_zoo.finetuning.progress import SeedProgress
from crosslingual_zoo.zoo_core import console


def test_progress_on_a_terminal_has_bars(monkeypatch):
    screen = io.StringIO()
    terminal = {"file": screen, "force_terminal": True, "color_system": None, "highlight": False, "width": 100}
    monkeypatch.setattr(console, "CONSOLE", Console(**terminal))
    progress = SeedProgress(3, "f1")
    state = TrainerState(global_step=0, max_steps=8, num_train_epochs=2)
    with progress.bar:
        progress.on_train_begin(None, state, None)
        state.global_step = 4
        progress.on_step_end(None, state, None)
        progress.on_log(None, state, None, {"loss": 0.25, "epoch": 1.0})
        progress.on_prediction_step(None, state, None, eval_dataloader=[1, 2, 3])
        assert [task.total for task in progress.bar.tasks] == [8, 3]
        progress.on_evaluate(None, state, None, {"eval_selection": 75.0, "eval_loss": 0.5})
        assert [task.completed for task in progress.bar.tasks] == [4]
    assert "f1 75.0, loss 0.500" in screen.getvalue()


@pytest.mark.parametrize(("done", "lines"), [(0, []), (20, ["seed 3  step 21/40"])])
def test_progress_in_a_file_has_a_line_early(monkeypatch, done, lines):
    """Of a new run, the line is the Trainer's log of step 1."""
    output = io.StringIO()
    monkeypatch.setattr(console, "CONSOLE", Console(file=output))
    progress = SeedProgress(3, "f1")
    state = TrainerState(global_step=done, max_steps=40, num_train_epochs=2)
    progress.on_train_begin(None, state, None)
    state.global_step += 1
    progress.on_step_end(None, state, None)
    assert output.getvalue().splitlines() == lines
