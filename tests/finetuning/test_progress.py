"""What a run says while it trains, in a file and on a terminal."""

import io
import re

import pytest
from rich.console import Console
from transformers import TrainerState

from crosslingual_zoo.finetuning.progress import SeedProgress
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.tasks.translation.trainer import TranslationTrainer
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer
from crosslingual_zoo.zoo_core import console
from tests.finetuning.tasks import record_of


@pytest.mark.parametrize(
    ("kind", "trainer"),
    [("topics", FineTuningTrainer), pytest.param("dev_captions", TranslationTrainer, marks=pytest.mark.slow)],
)
def test_run_says_a_line_a_log_and_an_evaluation(kind, trainer, request, tmp_path, monkeypatch, capsys):
    arguments = request.getfixturevalue(kind)
    first = []
    step = trainer.training_step

    def watched(self, *inputs, **options):
        if self.state.global_step == 1:
            first.append(capsys.readouterr().err)
        return step(self, *inputs, **options)

    monkeypatch.setattr(trainer, "training_step", watched)
    main([*arguments, "seeds=[1]"])
    printed = capsys.readouterr()
    assert re.search(r"step 1/\d", first[0])  # already there in the second step
    history = record_of(tmp_path / "out" / "seed-1")["history"]
    lines = (first[0] + printed.err).splitlines()
    for entry in history:
        loss = entry.get("loss", entry.get("eval_loss"))
        if loss is not None:
            assert [line for line in lines if f"step {entry['step']}/" in line and f"loss {loss:.3f}" in line]
    assert "{" not in first[0] + printed.err + printed.out


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
    printed = screen.getvalue()
    assert "4/8" in printed
    assert "loss 0.250" in printed
    assert "step 4/8" in printed
    assert "f1 75.0, loss 0.500" in printed
