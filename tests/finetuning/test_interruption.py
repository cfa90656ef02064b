"""Ctrl-C and SIGTERM: the step is saved, and the resumed run ends like an uninterrupted one."""

import multiprocessing
import os
import shutil
import signal

import pytest
import torch

from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.seed import complete_checkpoints
from crosslingual_zoo.finetuning.tasks.translation.trainer import TranslationTrainer
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer
from crosslingual_zoo.zoo_core.provenance import read_json, write_json
from tests.finetuning.tasks import assert_same_seed, evaluations, record_of, run_in, weights

BY_EPOCH = ["seeds=[1]", "evaluate_every_steps=0", "training.epochs=3"]  # of five steps
BY_STEPS = ["seeds=[1]", "training.epochs=2", "training.layerwise_decay=0.8"]  # evaluated every two steps
ONE_SIGNAL = """
import json, os, signal, sys
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer
from crosslingual_zoo.finetuning.run import main
train = FineTuningTrainer.training_step
def signaled(self, *arguments, **options):
    if self.state.global_step == 2 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return train(self, *arguments, **options)
FineTuningTrainer.training_step = signaled
main(json.loads(sys.argv[1]))
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def stop_at(monkeypatch, capsys):
    """stop_at(step, arguments) -> the output of a run that a signal stops during this step."""

    def run(step, arguments, number=signal.SIGINT, trainer=FineTuningTrainer):
        train = trainer.training_step

        def signaled(self, *inputs, **options):
            if self.state.global_step == step - 1:
                for process in (os.getpid(), *(worker.pid for worker in multiprocessing.active_children())):
                    os.kill(process, number)
            return train(self, *inputs, **options)

        with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
            patch.setattr(trainer, "training_step", signaled)
            main(arguments)
        assert stopped.value.code == 128 + number
        captured = capsys.readouterr()
        return " ".join((captured.out + captured.err).split())

    return run


@pytest.fixture
def dropping_topics(topics_recipe, tiny_model, tmp_path):
    """dropping_topics(name) -> overrides of a run with dropout, whose random numbers must be restored too."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    write_json(model / "config.json", read_json(model / "config.json") | {"hidden_dropout_prob": 0.1})
    return lambda name: [*topics_recipe(tmp_path / name), f"model={model}"]


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (BY_EPOCH, [3, 5, 6, 15]),  # within an epoch, at the end of one, in the next step, at the end of all
        (BY_STEPS, [2, 3, 5, 10]),  # with an evaluation and without one
        ([*BY_STEPS, "num_workers=2"], [3]),
        ([*BY_EPOCH, "training.max_steps=8"], [7, 8]),  # the last step is within an epoch
        ([*BY_EPOCH, "training.max_steps=8", "selection=last"], [8]),
    ],
)
def test_run_resumed_after_a_signal_gives_the_same_weights(settings, steps, dropping_topics, stop_at, tmp_path):
    main([*dropping_topics("whole"), *settings])
    whole = tmp_path / "whole" / "seed-1"
    seed = tmp_path / "stopped" / "seed-1"
    command = [*dropping_topics("stopped"), *settings]
    for step in steps:
        printed = stop_at(step, command)
        assert f"seed 1 is saved at step {step} in {seed}/checkpoints" in printed
        assert step in complete_checkpoints(seed / "checkpoints")
        assert not (seed / "scores.json").exists()
        command = [*dropping_topics("stopped"), *settings, "--resume"]
    main(command)
    assert_same_seed(seed, whole)
    for step, evaluation in evaluations(whole).items():
        resumed = evaluations(seed)[step]
        assert resumed["eval_loss"] == evaluation["eval_loss"]
        assert resumed["eval_selection"] == evaluation["eval_selection"]


def test_run_stopped_by_a_signal_keeps_averaged_checkpoints(captions_recipe, stop_at, tmp_path):
    settings = ["selection=average", "average_checkpoints=2", "evaluate_every_steps=2", "training.dropout=0.1"]
    main([*captions_recipe(tmp_path / "whole"), *settings])
    stopped = [*captions_recipe(tmp_path / "stopped"), *settings]
    assert "saved at step 3" in stop_at(3, stopped, signal.SIGTERM, TranslationTrainer)
    assert "saved at step 5" in stop_at(5, [*stopped, "--resume"], trainer=TranslationTrainer)
    main([*stopped, "--resume"])
    assert_same_seed(tmp_path / "stopped" / "seed-1", tmp_path / "whole" / "seed-1")
    assert record_of(tmp_path / "stopped" / "seed-1")["selected_step"] == [4, 6]


def test_run_in_two_processes_stops_after_a_signal_to_one(topics, topics_run, tmp_path):
    codes, printed = run_in(2, ONE_SIGNAL, [*topics, "seeds=[1]"], tmp_path)
    assert codes == [143, 143], printed
    assert printed.count("seed 1 is saved at step 3") == 1
    main([*topics, "seeds=[1]", "--resume"])  # in one process: there is no dropout
    ours = weights(tmp_path / "out" / "seed-1")
    torch.testing.assert_close(ours, weights(topics_run / "seed-1"), rtol=1e-5, atol=1e-5)


def test_run_stops_at_once_after_a_signal_outside_of_training(topics, tmp_path, monkeypatch):
    def signaled(self):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the signal came too late")

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(FineTuningTrainer, "outcomes", signaled)
        main([*topics, "seeds=[1]"])
    assert stopped.value.code == 143
    monkeypatch.setattr(FineTuningTrainer, "training_step", None)  # nothing is left to train
    main([*topics, "seeds=[1]", "--resume"])
    assert (tmp_path / "out" / "results.json").exists()


def test_suite_stops_after_a_signal_and_goes_on(topics_suite, stop_at, tmp_path):
    suite = topics_suite("seeds=[1]")
    assert "seed 1 is saved at step 3" in stop_at(3, suite)
    assert not (tmp_path / "suite" / "two").exists()
    main(suite)
    assert all((tmp_path / "suite" / name / "results.json").exists() for name in ("one", "two"))
