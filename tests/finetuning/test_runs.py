"""Many runs of one recipe: products, sweeps, resuming, and errors."""

import csv
import math
import shutil

import pytest

import finetuning.training
from finetuning.recipe import Recipe
from finetuning.results import read_results
from finetuning.run import main as finetune
from finetuning.runs import main
from finetuning.trainer import FineTuningTrainer
from finetuning.training import Diverged
from tests.finetuning.tasks import Killed, record_of
from zoo_core.recipes import load_recipe, save_recipe

FAST = ("training.max_steps=1", "training.batch_size=8", "max_evaluation_examples=9", "seeds=[1]", "selection=last")


@pytest.fixture
def product(topics, tmp_path):
    """product(*arguments): a command, with a recipe of one step whose training table names the language."""
    path = tmp_path / "recipe.yaml"
    save_recipe(load_recipe(Recipe, None, [*topics, *FAST, "train.0.config={language}"]), path)
    return lambda *arguments: main(["--config", str(path), "--output", str(tmp_path / "out"), *arguments])


@pytest.fixture
def executed(monkeypatch):
    """The folders of the runs that were executed."""
    run, folders = finetuning.training.run, []

    def counted(task, resume, command):
        folders.append(task.recipe.output_dir.partition("/out/")[2])
        return run(task, resume, command)

    monkeypatch.setattr(finetuning.training, "run", counted)
    return folders


def rows_of(path):
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_transfer_matrix_runs_each_language_as_the_source_once(product, executed, tiny_model, tmp_path, drawn):
    other = shutil.copytree(tiny_model, tmp_path / "other")
    asked = ["--model", f"XLM={tiny_model}", "--model", f"M={other}", "--vary", "source_language=zh,en"]
    asked += ["evaluation.0.languages=[zh, en]"]
    product(*asked)
    out = tmp_path / "out"
    rows = rows_of(out / "runs.csv")
    page = (out / "runs.md").read_text(encoding="utf-8")
    for name in ("XLM", "M"):
        for source in ("zh", "en"):
            run = read_results(out / name / source)
            assert run["source_language"] == source and sorted(run.languages) == ["en", "zh"]
            (table,) = run["protocol"]["training_data"]
            assert table["config"] == source and table["languages"] == [source]
            own = [float(row["value"]) for row in rows if (row["run"], row["source_language"]) == (name, source)]
            assert own == [score for entry in run.languages.values() for score in entry["scores"]]
            means = [run.of(of)["mean"] for of in ("zh", "en", "average", "mean of others", "transfer gap")]
            assert f"| {name}, {source} | {' | '.join(f'{mean:.1f}' for mean in means)} |" in page
    assert len(rows) == 8 and (out / "runs.png").stat().st_size > 5000
    assert not (out / "M/en/seed-1/model").exists()  # models are kept on demand
    del executed[:]
    (out / "M" / "en" / "results.json").unlink()  # as if killed
    shutil.rmtree(out / "M" / "en" / "seed-1")
    product(*asked)
    assert executed == ["M/en"]


@pytest.mark.slow
def test_runs_of_checkpoints_have_steps(product, executed, tiny_model, tmp_path):
    for place in ("checkpoints/step-4/model", "model"):
        shutil.copytree(tiny_model, tmp_path / "one" / place)
    (tmp_path / "one" / "run.json").write_text('{"steps": 20}')
    models = [f"--model=XLM={tmp_path}/one/{place}" for place in ("checkpoints/step-4/model", "model")]
    product(*models, "train.0.config=en")
    rows = {row["step"]: float(row["value"]) for row in rows_of(tmp_path / "out" / "runs.csv")}
    assert rows.keys() == {"4", "20"} and rows["4"] == read_results(tmp_path / "out/XLM/4").of("en")["mean"]
    product(*models, f"--model=M={tiny_model}", "train.0.config=en")  # one of them without steps
    assert executed == ["XLM/4", "XLM/20", "M"]


GRID = "sweep={training.learning_rate: [1e-3, 1e-2]}"
NAMES = ["learning_rate=0.001", "learning_rate=0.01"]


@pytest.mark.slow
def test_sweep_is_resumed_and_runs_the_best_point_with_all_seeds(topics, tmp_path, monkeypatch):
    argv, steps, predicted = [*topics, GRID, "--sweep"], [], []
    update, score = FineTuningTrainer.training_step, FineTuningTrainer.outcomes

    def counted(self, *args, **kwargs):
        steps.append((self.args.learning_rate, self.state.global_step))
        if len(steps) == 9:  # in the second point, after its first checkpoint
            raise Killed
        return update(self, *args, **kwargs)

    monkeypatch.setattr(FineTuningTrainer, "training_step", counted)
    monkeypatch.setattr(
        FineTuningTrainer, "outcomes", lambda self: predicted.append(self.args.learning_rate) or score(self)
    )
    with pytest.raises(Killed):
        finetune(argv)
    with pytest.raises(SystemExit):  # its choice would be hidden
        finetune([*topics, "--resume"])
    finetune([*argv, "--resume"])
    assert steps[8:10] == [(1e-2, 3), (1e-2, 2)]  # from the checkpoint, and no point before
    out = tmp_path / "out"
    results, scores = (
        read_results(out),
        [record_of(out / "sweep" / name / "seed-1")["selection_score"] for name in NAMES],
    )
    rate = (1e-3, 1e-2)[scores.index(max(scores))]
    # the points' evaluated rows were not predicted; the best point's were, once a seed
    assert predicted == [rate] * 2 and results["seeds"] == [1, 2]
    assert results["hyperparameters"]["learning_rate"] == rate
    stamped = results["protocol"]["selection"]["sweep"]
    assert stamped == {"fields": {"training.learning_rate": [1e-3, 1e-2]}, "points": 2, "score": max(scores)}
    assert results["protocol"]["selection"]["scores"][0] == max(scores)  # the same seed again, the same score

    # again: nothing is trained, and a run that is resumed without --sweep says the same of its choice
    monkeypatch.setattr(FineTuningTrainer, "training_step", lambda self, *args, **kwargs: pytest.fail("trained"))
    finetune([*argv, "--resume"])
    assert read_results(out) == results
    finetune([*topics, f"training.learning_rate={rate}", "--resume"])
    assert read_results(out)["protocol"]["selection"]["sweep"] == stamped


@pytest.mark.parametrize(
    ("scores", "taken"),
    [((50.0, 50.0), 1e-3), ((40.0, 50.0), 1e-2), ((Diverged(1, "not finite"), 40.0), 1e-2), ((math.nan, 40.0), 1e-2)],
)
def test_sweep_takes_the_first_of_equal_points_and_none_that_diverged(topics, tmp_path, monkeypatch, scores, taken):
    dev, ran = dict(zip(NAMES, scores, strict=True)), []

    def run(task, resume, command, evaluate=True, sweep=None):
        ran.append((task.recipe.training.learning_rate, task.recipe.seeds, sweep and sweep["score"]))
        found = None if evaluate else dev[task.recipe.output_dir.rpartition("/")[2]]
        if isinstance(found, Exception):
            raise found
        return [{"selection_score": found}]

    monkeypatch.setattr(finetuning.training, "run", run)
    finetune([*topics, GRID, "--sweep"])
    best = scores[(1e-3, 1e-2).index(taken)]
    assert ran == [(1e-3, [1], None), (1e-2, [1], None), (taken, [1, 2], best)]
