"""Many runs of one recipe: products, sweeps, resuming, and errors."""

import itertools
import math
import shutil
import signal
import weakref

import numpy as np
import pandas
import pytest
import torch

from crosslingual_zoo.finetuning import run_task, runs
from crosslingual_zoo.finetuning.recipe import Recipe
from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.run import main as finetune
from crosslingual_zoo.finetuning.runs import main, run_all
from crosslingual_zoo.finetuning.seed import Diverged
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer
from crosslingual_zoo.zoo_core.processes import Stopped
from crosslingual_zoo.zoo_core.provenance import read_json
from crosslingual_zoo.zoo_core.recipes import load_recipe, save_recipe
from tests.finetuning.tasks import Killed, run_in

FAST = ("training.max_steps=1", "training.batch_size=8", "max_evaluation_examples=9", "seeds=[1]", "selection=last")


@pytest.fixture
def product(topics, tmp_path):
    """product(*arguments): a command, with a recipe of one step whose training table names the language."""
    path = tmp_path / "recipe.yaml"
    save_recipe(load_recipe(Recipe, None, [*topics, *FAST, "train.0.config='{language}'"]), path)
    return lambda *arguments: main(["--config", str(path), "--output", str(tmp_path / "out"), *arguments])


@pytest.fixture
def executed(monkeypatch):
    """The folders of the runs that were executed."""
    run = run_task.run_task
    folders = []

    def counted(recipe, resume, command, evaluate=True):
        folders.append(recipe.output_dir.partition("/out/")[2])
        return run(recipe, resume, command, evaluate)

    monkeypatch.setattr(run_task, "run_task", counted)
    return folders


@pytest.mark.slow
def test_transfer_matrix_runs_each_language_as_the_source_once(product, executed, tiny_model, tmp_path, drawn):
    other = shutil.copytree(tiny_model, tmp_path / "other")
    models = ["--model", f"XLM={tiny_model}", "--model", f"M={other}"]
    command = [*models, "--vary", "source_language=zh,en", "evaluation.0.languages=[zh, en]"]
    product(*command)
    out = tmp_path / "out"
    table = pandas.read_csv(out / "runs.csv").set_index(["run", "source_language"])["value"]
    page = (out / "runs.md").read_text(encoding="utf-8")
    for name, source in itertools.product(("XLM", "M"), ("zh", "en")):
        run = read_results(out / name / source)
        assert run["source_language"] == source
        assert sorted(run.languages) == ["en", "zh"]
        (trained,) = run["protocol"]["training_data"]
        assert (trained["config"], trained["languages"]) == (source, [source])
        assert table[name, source].tolist() == [entry["scores"][0] for entry in run.languages.values()]
        means = [run.of(figure)["mean"] for figure in ("zh", "en", "average", "mean of others", "transfer gap")]
        assert f"| {name}, {source} | {' | '.join(f'{mean:.1f}' for mean in means)} |" in page
    assert len(table) == 8
    assert (out / "runs.png").stat().st_size > 5000
    assert not (out / "M/en/seed-1/model").exists()  # models are kept on demand
    executed.clear()
    (out / "M" / "en" / "results.json").unlink()  # as if killed
    shutil.rmtree(out / "M" / "en" / "seed-1")
    product(*command)
    assert executed == ["M/en"]


@pytest.mark.slow
def test_runs_of_checkpoints_have_steps(product, executed, tiny_model, tmp_path):
    models = []
    for checkpoint in ("checkpoints/step-4/model", "model"):
        folder = shutil.copytree(tiny_model, tmp_path / "one" / checkpoint)
        models.append(f"--model=XLM={folder}")
    (tmp_path / "one" / "run.json").write_text('{"steps": 20}')
    product(*models, "train.0.config=en")
    value_of = pandas.read_csv(tmp_path / "out" / "runs.csv").set_index(["step", "language"])["value"]
    assert set(value_of.index.levels[0]) == {4, 20}
    assert value_of[4, "en"] == read_results(tmp_path / "out/XLM/4").of("en")["mean"]
    product(*models, f"--model=M={tiny_model}", "train.0.config=en")  # one of them without steps
    assert executed == ["XLM/4", "XLM/20", "M"]


GRID = "sweep={training.learning_rate: [1e-3, 1e-2]}"
NAMES = ["learning_rate=0.001", "learning_rate=0.01"]


@pytest.mark.slow
def test_sweep_is_resumed_and_runs_the_best_point_with_all_seeds(topics, tmp_path, monkeypatch):
    command = [*topics, GRID, "--sweep"]
    steps = []
    predicted = []
    update = FineTuningTrainer.training_step
    score = FineTuningTrainer.outcomes

    def counted(self, *args, **kwargs):
        steps.append((self.args.learning_rate, self.state.global_step))
        if len(steps) == 9:  # in the second point, after its first checkpoint
            raise Killed
        return update(self, *args, **kwargs)

    def noted(self):
        predicted.append(self.args.learning_rate)
        return score(self)

    monkeypatch.setattr(FineTuningTrainer, "training_step", counted)
    monkeypatch.setattr(FineTuningTrainer, "outcomes", noted)
    with pytest.raises(Killed):
        finetune(command)
    with pytest.raises(SystemExit):  # its choice would be hidden
        finetune([*topics, "--resume"])
    finetune([*command, "--resume"])
    assert steps[8:10] == [(1e-2, 3), (1e-2, 2)]  # from the checkpoint, and no point before
    out = tmp_path / "out"
    results = read_results(out)
    scores = [read_json(out / "sweep" / name / "seed-1" / "scores.json")["selection_score"] for name in NAMES]
    rate = (1e-3, 1e-2)[np.argmax(scores)]
    # the points' evaluated rows were not predicted; the best point's were, once a seed
    assert predicted == [rate] * 2
    assert results["seeds"] == [1, 2]
    assert results["hyperparameters"]["learning_rate"] == rate
    selection = results["protocol"]["selection"]
    sweep = {"fields": {"training.learning_rate": [1e-3, 1e-2]}, "points": 2, "score": max(scores)}
    assert selection["sweep"] == sweep
    assert selection["scores"][0] == max(scores)  # the same seed again, the same score

    # again: nothing is trained, and a run that is resumed without --sweep says the same of its choice
    monkeypatch.setattr(FineTuningTrainer, "training_step", None)
    finetune([*command, "--resume"])
    assert read_results(out) == results
    finetune([*topics, f"training.learning_rate={rate}", "--resume"])
    assert read_results(out)["protocol"]["selection"]["sweep"] == sweep


@pytest.mark.parametrize(
    ("scores", "losses", "best"),
    [
        ((50.0, 50.0), (None, None), 0),
        ((40.0, 50.0), (None, None), 1),
        ((Diverged(1, "not finite"), 40.0), (None, None), 1),
        ((math.nan, 40.0), (None, None), 1),
        ((50.0, 50.0), (0.5, 0.4), 1),
        ((50.0, 50.0), (0.4, 0.5), 0),
        ((50.0, 50.0), (0.5, 0.5), 0),
        ((50.0, 50.0), (math.nan, 0.5), 1),
    ],
)
def test_sweep_takes_the_point_of_the_best_score_and_of_the_lower_loss(scores, losses, best, topics, monkeypatch):
    ran = []

    def run(recipe, resume, command, evaluate=True, sweep=None):
        ran.append((recipe.training.learning_rate, recipe.seeds, sweep and sweep["score"]))
        if evaluate:
            return []
        point = NAMES.index(recipe.output_dir.rpartition("/")[2])
        if isinstance(scores[point], Exception):
            raise scores[point]
        return [{"selection_score": scores[point], "selection_loss": losses[point]}]

    monkeypatch.setattr(run_task, "run_task", run)
    finetune([*topics, GRID, "--sweep"])
    assert ran == [(1e-3, [1], None), (1e-2, [1], None), ((1e-3, 1e-2)[best], [1, 2], scores[best])]


RUNS = ["one", "two", "three"]


@pytest.fixture
def recipes(topics, tmp_path):
    """Recipes of runs that are named one, two and three."""
    return {name: load_recipe(Recipe, None, [*topics, f"output_dir={tmp_path / name}"]) for name in RUNS}


ERRORS = [
    RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore"),
    OSError(28, "No space left on device"),
    MemoryError(),
    KeyError("x"),
    ValueError("refused"),
]


@pytest.fixture
def fails_in(monkeypatch):
    """fails_in(name, error) -> the names of the runs that have begun; the run of this name raises the error."""

    def patch(failing, error):
        ran = []

        def run(recipe, resume, command, evaluate=True, sweep=None):
            name = recipe.output_dir.rpartition("/")[2]
            ran.append(name)
            if name == failing:
                raise error
            return [{"selection_score": 50.0}]

        monkeypatch.setattr(run_task, "run_task", run)
        return ran

    return patch


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_run_all_runs_the_others_after_any_error(error, recipes, tmp_path, fails_in, capsys):
    ran = fails_in("two", error)
    failed = run_all(recipes, []).failed
    assert ran == RUNS
    assert list(failed) == ["two"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"two failed: {failed['two'].reason}"
    trace = tmp_path / "two" / "failure.txt"
    is_of_users = isinstance(error, (ValueError, OSError))
    assert trace.exists() != is_of_users
    if not is_of_users:
        assert str(trace) in line
        assert trace.read_text(encoding="utf-8").startswith("Traceback")
    # the same command runs it again, in the same folder
    ran = fails_in(None, None)
    assert run_all({"two": recipes["two"]}, []).failed == {}
    assert ran == ["two"]
    assert not trace.exists()


@pytest.mark.parametrize(
    ("error", "received"),
    [
        (Stopped(signal.SIGTERM), None),
        (KeyboardInterrupt(), None),
        (RuntimeError("Connection closed by peer"), signal.SIGTERM),  # another process ended first, for example
    ],
)
def test_run_all_stops_at_a_signal_and_at_an_error_that_one_caused(error, received, recipes, fails_in, monkeypatch):
    ran = fails_in("one", error)
    monkeypatch.setattr(runs, "received", lambda: received)
    with pytest.raises(type(error)):
        run_all(recipes, [])
    assert ran == ["one"]


ONE_FAILS = """
import json, os, sys
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer
from crosslingual_zoo.finetuning.run import main
step = FineTuningTrainer.training_step
def fails(self, *arguments, **options):
    if os.environ["RANK"] == "1":
        raise RuntimeError("CUDA out of memory")
    return step(self, *arguments, **options)
FineTuningTrainer.training_step = fails
main(json.loads(sys.argv[1]))
"""


@pytest.mark.slow
def test_suite_of_two_processes_ends_at_an_error_of_one(topics_suite, tmp_path):
    """The other one waits for it in the middle of a step, and would take its next run for that."""
    codes, printed = run_in(2, ONE_FAILS, topics_suite(*FAST), tmp_path)
    assert 0 not in codes
    assert "CUDA out of memory" in printed
    assert not (tmp_path / "suite" / "two").exists()


def test_run_all_frees_the_memory_of_a_failed_run(recipes, monkeypatch):
    models = []

    def run(recipe, resume, command, evaluate=True):
        assert all(model() is None for model in models)
        model = torch.nn.Linear(2, 2)
        model.itself = [model]  # a cycle, as a Trainer's
        models.append(weakref.ref(model))
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(run_task, "run_task", run)
    assert len(run_all(recipes, []).failed) == 3 == len(models)


def test_sweep_runs_the_other_points_and_takes_none_after_an_error(topics, fails_in, refused):
    ran = fails_in(NAMES[0], MemoryError())
    message = refused([*topics, GRID, "--sweep"])
    assert ran == NAMES
    assert NAMES[0] in message


@pytest.mark.slow
def test_matrix_runs_the_others_after_an_error(product, tmp_path, monkeypatch, refused):
    step = FineTuningTrainer.training_step

    def fails_for_german(self, *args, **kwargs):
        if self.task.recipe.source_language == "de":
            raise RuntimeError("CUDA out of memory")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "training_step", fails_for_german)
    message = refused(["--vary", "source_language=de,zh"], lambda arguments: product(*arguments))
    assert "de failed: RuntimeError" in message
    assert (tmp_path / "out" / "zh" / "results.json").exists()
