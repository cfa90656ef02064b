"""Which checkpoint is kept: of equal scores, the one with the lower loss on the held-out rows, then the later one."""

import contextlib
import math

import pytest
import torch
from transformers import Trainer

from crosslingual_zoo.finetuning.run import main
from tests.finetuning.tasks import Killed, record_of, weights
from tests.finetuning.test_finetuning_run import kill_at

STEPS = [2, 4, 5]  # of the evaluations of `topics`, each with a checkpoint


def evaluate_as(patch, figures):
    """From now on, the evaluation after a step gives these scores and losses."""
    loop = Trainer.evaluation_loop

    def planned(self, *arguments, **options):
        output = loop(self, *arguments, **options)
        if "eval_selection" in output.metrics:
            score, loss = figures[self.state.global_step]
            output.metrics.update(eval_selection=score, eval_loss=loss)
        return output

    patch.setattr(Trainer, "evaluation_loop", planned)


@pytest.mark.parametrize(
    ("scores", "losses", "kept_step"),
    [
        ([50.0, 50.0, 50.0], [0.9, 0.5, 0.7], 4),
        pytest.param([50.0, 50.0, 50.0], [0.5, 0.5, 0.5], 5, marks=pytest.mark.slow),
        pytest.param([0.0, 0.0, 0.0], [0.3, 0.4, 0.5], 2, marks=pytest.mark.slow),
        pytest.param([50.0, 60.0, 50.0], [0.1, 0.9, 0.1], 4, marks=pytest.mark.slow),
        # means over languages, of equal scores in another order
        pytest.param([50.0, 50.0 + 1e-13, 40.0], [0.5, 0.9, 0.1], 2, marks=pytest.mark.slow),
        pytest.param([50.0, 50.0 - 1e-13, 40.0], [0.5, 0.4, 0.1], 4, marks=pytest.mark.slow),
        pytest.param([50.0, 50.0, 40.0], [math.nan, 0.5, 0.1], 4, marks=pytest.mark.slow),
        pytest.param([50.0, 50.0, 40.0], [0.5, math.nan, 0.1], 2, marks=pytest.mark.slow),
        pytest.param([50.0, 40.0, 40.0], [math.nan, 0.5, 0.1], 2, marks=pytest.mark.slow),
    ],
)
def test_kept_checkpoint_of_equal_scores(scores, losses, kept_step, topics, tmp_path, monkeypatch, capsys):
    figures = dict(zip(STEPS, zip(scores, losses, strict=True), strict=True))
    evaluate_as(monkeypatch, figures)
    main([*topics, "seeds=[1]"])
    record = record_of(tmp_path / "out" / "seed-1")
    score, loss = figures[kept_step]
    assert (record["selected_step"], record["selection_score"]) == (kept_step, score)
    assert record["selection_loss"] == (None if math.isnan(loss) else loss)
    printed = capsys.readouterr()
    (line,) = [line for line in printed.err.splitlines() if f"step {kept_step} of 5" in line]
    assert f"{score:.1f}" in line
    assert f"{loss:.3f}" in line
    assert str(tmp_path / "out" / "seed-1" / "model") in printed.out


@pytest.mark.slow
def test_kept_checkpoint_of_a_resumed_run(topics_recipe, tmp_path, monkeypatch):
    evaluate_as(monkeypatch, {2: (50.0, 0.4), 4: (50.0, 0.3), 5: (50.0, 0.35)})
    main([*topics_recipe(tmp_path / "whole"), "seeds=[1]"])
    resumed = [*topics_recipe(tmp_path / "resumed"), "seeds=[1]"]
    for step in (4, 2, 1):  # before the second evaluation, the third, and the end
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            kill_at(patch, step, [])
            main([*resumed, "--resume"])
    main([*resumed, "--resume"])
    folders = [tmp_path / name / "seed-1" for name in ("whole", "resumed")]
    assert [record_of(folder)["selected_step"] for folder in folders] == [4, 4]
    ours, others = map(weights, folders)
    assert all(torch.equal(ours[name], others[name]) for name in ours)


@pytest.mark.slow
def test_kept_checkpoint_without_selection(topics, tmp_path, capsys):
    main([*topics, "seeds=[1]", "selection=last", "save_models=false"])
    record = record_of(tmp_path / "out" / "seed-1")
    selection = [record[name] for name in ("selected_step", "selection_score", "selection_loss")]
    assert selection == [5, None, None]
    printed = capsys.readouterr()
    assert "step 5 of 5" in printed.err
    assert "held-out rows:" not in printed.err
    assert str(tmp_path / "out" / "seed-1" / "model") not in printed.out
