"""Which checkpoint is kept: of equal scores, the one with the lower loss on the held-out rows, then the later one."""

import contextlib
import math

import pytest
from transformers import Trainer

from crosslingual_zoo.finetuning.run import main
from tests.finetuning.tasks import Killed, assert_same_seed, record_of
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


CASES = [  # score and loss of each evaluation, and the kept step
    ([(50.0, 0.9), (50.0, 0.5), (50.0, 0.7)], 4),
    ([(50.0, 0.5), (50.0, 0.5), (50.0, 0.5)], 5),
    ([(0.0, 0.3), (0.0, 0.4), (0.0, 0.5)], 2),
    ([(50.0, 0.1), (60.0, 0.9), (50.0, 0.1)], 4),
    # means over languages, of equal scores in another order
    ([(50.0, 0.5), (50.0 + 1e-13, 0.9), (40.0, 0.1)], 2),
    ([(50.0, 0.5), (50.0 - 1e-13, 0.4), (40.0, 0.1)], 4),
    ([(50.0, math.nan), (50.0, 0.5), (40.0, 0.1)], 4),
    ([(50.0, 0.5), (50.0, math.nan), (40.0, 0.1)], 2),
    ([(50.0, math.nan), (40.0, 0.5), (40.0, 0.1)], 2),
]
SLOW_CASES = [pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1:]]


@pytest.mark.parametrize(("figures", "kept_step"), [CASES[0], *SLOW_CASES])
def test_kept_checkpoint_of_equal_scores(figures, kept_step, topics, tmp_path, monkeypatch, capsys):
    figures = dict(zip(STEPS, figures, strict=True))
    evaluate_as(monkeypatch, figures)
    main([*topics, "seeds=[1]"])
    record = record_of(tmp_path / "out" / "seed-1")
    score, loss = figures[kept_step]
    assert (record["selected_step"], record["selection_score"]) == (kept_step, score)
    assert record["selection_loss"] == (None if math.isnan(loss) else loss)
    assert f"step {kept_step} of 5" in capsys.readouterr().err


@pytest.mark.slow
def test_kept_checkpoint_of_a_resumed_run(topics_recipe, tmp_path, monkeypatch):
    evaluate_as(monkeypatch, {2: (50.0, 0.4), 4: (50.0, 0.3), 5: (50.0, 0.35)})
    main([*topics_recipe(tmp_path / "whole"), "seeds=[1]"])
    resumed = [*topics_recipe(tmp_path / "resumed"), "seeds=[1]", "--resume"]
    for step in (4, 2, 1):  # before the second evaluation, the third, and the end
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            kill_at(patch, step, [])
            main(resumed)
    main(resumed)
    assert_same_seed(tmp_path / "resumed" / "seed-1", tmp_path / "whole" / "seed-1")
    assert record_of(tmp_path / "resumed" / "seed-1")["selected_step"] == 4


@pytest.mark.slow
def test_kept_checkpoint_without_selection(topics, tmp_path):
    main([*topics, "seeds=[1]", "selection=last", "save_models=false"])
    record = record_of(tmp_path / "out" / "seed-1")
    selection = [record[name] for name in ("selected_step", "selection_score", "selection_loss")]
    assert selection == [5, None, None]
    assert not (tmp_path / "out" / "seed-1" / "model").exists()
