"""--sweep: a grid of hyperparameters, chosen by development scores alone."""

import csv
import dataclasses
import json
import re
import shutil

import pytest

from finetuning import sweep_points
from finetuning.checkpoints import describe_start
from finetuning.experiments import sweep
from finetuning.recipe import Recipe
from finetuning.results.protocol import Protocol, Selection
from finetuning.results.table import read_results
from finetuning.run import main
from finetuning.run_folder import RunFolder
from finetuning.seeds import Diverged
from finetuning.trainer import FineTuningTrainer
from zoo_core.recipes import load_recipe, save_recipe

GRID = "sweep={training.learning_rate: [1e-3, 1e-2], training.batch_size: [24, 48]}"
NAMES = [f"learning_rate={rate},batch_size={size}" for rate in (0.001, 0.01) for size in (24, 48)]


class Killed(Exception):
    """Raised in place of a signal that ends the process."""


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def scored(dev, calls):
    """Replaces the runner of a kind: returns the development score of a point by the name of its folder."""

    def execute(task, resume, command, evaluate=True):
        recipe = task.recipe
        name = recipe.output_dir.rpartition("/")[2]
        calls.append((name, evaluate, recipe.seeds, recipe.training.learning_rate, recipe.training.batch_size, resume))
        if evaluate:
            return None
        if isinstance(dev[name], Exception):
            raise dev[name]
        return [{"selection_score": dev[name], "selected_step": 4, "scores": {}}]

    return execute


@pytest.fixture
def recipe(topics):
    return load_recipe(Recipe, None, [*topics, GRID])


@pytest.mark.slow
def test_the_grid_is_run_from_where_it_was_interrupted_and_its_best_point_with_all_seeds(
    topics, tmp_path, capsys, monkeypatch
):
    argv = [*topics, "sweep={training.learning_rate: [1e-3, 1e-2]}", "--sweep"]
    names = ["learning_rate=0.001", "learning_rate=0.01"]
    steps, predicted, update, score = [], [], FineTuningTrainer.training_step, FineTuningTrainer.outcomes

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
        main(argv)
    assert steps[-1] == (1e-2, 3)
    main([*argv, "--resume"])
    assert steps[9] == (1e-2, 2)  # from the checkpoint, and no point before
    out = tmp_path / "out"
    found = read_json(out / "sweep.json")
    assert [point["name"] for point in found["points"]] == names and not any(p["diverged"] for p in found["points"])
    scores = [point["score"] for point in found["points"]]
    best = found["points"][scores.index(max(scores))]
    assert found["taken"] == best["values"]
    results = read_results(out)
    (rate,) = best["values"].values()
    assert results["hyperparameters"]["learning_rate"] == rate
    # the points' evaluated rows were not predicted; the best point's were, once a seed
    assert predicted == [rate] * 2 and results["seeds"] == [1, 2]
    stamped = results["protocol"]["selection"]["sweep"]
    assert stamped == {"fields": found["fields"], "points": 2, "score": best["score"]}
    assert results["protocol"]["selection"]["scores"][0] == best["score"]  # the same seed again, the same score
    page = (out / "results.md").read_text(encoding="utf-8")
    assert "best of 2 points" in page and "training.learning_rate 0.001, 0.01" in page
    for name in names:
        folder = out / "sweep" / name
        assert read_json(folder / "seed-1" / "scores.json")["scores"] == {}
        assert not (folder / "results.json").exists() and not (folder / "seed-1" / "model").exists()
    with (out / "sweep.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["score"]) for row in rows] == scores
    assert [row["taken"] for row in rows].count("True") == 1
    assert (out / "sweep.png").is_file() and "| taken |" in (out / "sweep.md").read_text()
    assert f"[2/2] {names[1]}, to do" in capsys.readouterr().out

    # again: nothing is trained, and a run that is resumed without --sweep says the same of its choice
    monkeypatch.setattr(FineTuningTrainer, "training_step", lambda self, *args, **kwargs: pytest.fail("trained"))
    main([*argv, "--resume"])
    assert read_json(out / "sweep.json") == found
    main([*topics, f"training.learning_rate={rate}", "--resume"])
    assert read_results(out)["protocol"]["selection"]["sweep"] == stamped


def test_ties_go_to_the_first_and_what_diverges_is_out(recipe, tmp_path, capsys):
    dev = {NAMES[0]: Diverged("seed 1: diverged"), NAMES[1]: 50.0, NAMES[2]: 50.0, NAMES[3]: float("nan")}
    calls = []
    sweep.run(recipe, False, ["run"], scored(dev, calls))
    assert [call[:2] for call in calls] == [*((name, False) for name in NAMES), ("out", True)]
    assert all(call[2] == [1] for call in calls[:4])
    assert calls[-1][2:5] == ([1, 2], 1e-3, 48)
    found = read_json(tmp_path / "out" / "sweep.json")
    assert [point["diverged"] for point in found["points"]] == [True, False, False, True]
    assert "diverged" in (tmp_path / "out" / "sweep.md").read_text()
    # a point that diverged is not tried again
    calls.clear()
    sweep.run(recipe, True, ["run"], scored(dev, calls))
    assert [call[0] for call in calls] == [NAMES[1], NAMES[2], "out"]


def test_results_of_runs_with_the_chosen_values_say_so(recipe, tmp_path):
    model = describe_start(recipe)[-1]
    protocol = Protocol(training_data=[], evaluation_data=[], selection=Selection(data=None))
    assert sweep_points.sweep_facts(recipe, model, protocol) is None
    sweep.run(recipe, False, ["run"], scored(dict(zip(NAMES, (1.0, 2.0, 3.0, 4.0), strict=True)), []))
    best = sweep_points.recipe_of(recipe, sweep_points.points_of(recipe)[3], final=True)
    best.seeds = [7]  # the seed does not affect which values are chosen
    assert sweep_points.sweep_facts(best, model, protocol)["score"] == 4.0
    assert sweep_points.sweep_facts(best, {**model, "fingerprint": "sha256:other"}, protocol) is None
    point = tmp_path / "out" / "sweep" / NAMES[3]
    point.mkdir(parents=True)
    (point / "run.json").write_text(json.dumps({"data": {"training_data": [{"rows": 5}]}}))
    with pytest.raises(ValueError, match="data have changed"):
        sweep_points.sweep_facts(best, model, protocol)
    save_recipe(dataclasses.replace(best, selection="mean_dev", save_models=False), point / "recipe.yaml")
    assert sweep_points.sweep_facts(best, model, protocol) is None, "of another recipe"
    best.training.learning_rate = 1e-4
    assert sweep_points.sweep_facts(best, model, protocol) is None


@pytest.mark.slow
def test_points_with_other_data_are_not_compared(topics, sample_corpus_dir, tmp_path, monkeypatch):
    corpus = tmp_path / "corpus"
    shutil.copytree(sample_corpus_dir, corpus)
    grid = "sweep={training.learning_rate: [1e-3, 1e-2]}"
    argv = [*topics, grid, "--sweep", "seeds=[1]", f"train.0.path={corpus}", "training.max_steps=1"]
    argv += ["evaluate_every_steps=1"]
    main(argv)
    out = tmp_path / "out"
    facts = read_json(out / "run.json")
    assert facts["data"]["selection_data"].startswith("10% of the training rows")
    shutil.rmtree(out / "sweep" / "learning_rate=0.01")  # as if it had been interrupted before
    train = corpus / "en" / "train.jsonl"
    train.write_text("\n".join(train.read_text(encoding="utf-8").splitlines()[:100]) + "\n", encoding="utf-8")
    taken = read_json(out / "sweep.json")
    monkeypatch.setattr(
        sweep, "best_of", lambda points: pytest.fail("compared") if len(points) > 1 and points[1].score else points[0]
    )
    with pytest.raises(SystemExit):
        main([*argv, "--resume"])
    assert taken["taken"] and read_json(out / "run.json") == facts


def test_development_rows_of_a_resumed_run_have_to_be_the_same(recipe):
    def protocol(rows):
        return Protocol(training_data=[], evaluation_data=[], selection=Selection(data=[{"rows": rows}]))

    model = describe_start(recipe).identity
    RunFolder(recipe, model, False).begin(protocol(5), ["run"])
    with pytest.raises(ValueError, match="The data have changed since .* selection_data.0.rows: 5 -> 6"):
        RunFolder(recipe, model, True).begin(protocol(6), ["run"])


@pytest.mark.parametrize(("change", "message"), [({"seeds": [2]}, "seed 1"), ({}, "weights of .* have changed")])
def test_a_sweep_of_another_seed_or_model_is_not_gone_on_with(recipe, tmp_path, change, message):
    sweep.run(recipe, False, ["run"], scored({**dict.fromkeys(NAMES, 1.0), NAMES[1]: Diverged("x")}, []))
    file = tmp_path / "out" / "sweep.json"
    if not change:
        file.write_text(json.dumps({**read_json(file), "model": {"fingerprint": "sha256:other"}}))
    before = file.read_text()
    with pytest.raises(ValueError, match=message):
        sweep.run(dataclasses.replace(recipe, **change), True, ["run"], scored({}, []))
    assert file.read_text() == before


def test_what_diverged_is_remembered_over_two_interruptions(recipe):
    dev = {**dict.fromkeys(NAMES, 1.0), NAMES[3]: Diverged("x")}
    sweep.run(recipe, False, ["run"], scored(dev, []))
    with pytest.raises(Killed):
        sweep.run(recipe, True, ["run"], scored({**dev, NAMES[1]: Killed()}, []))
    calls = []
    sweep.run(recipe, True, ["run"], scored(dev, calls))
    assert NAMES[3] not in [call[0] for call in calls]


def test_windows_of_every_point_are_checked_before_the_first_runs(topics, tmp_path, refused):
    answers = "path: nowhere.parquet, text_columns: [question, context], label_column: answers"
    argv = [*topics, "kind=question_answering", f"train=[{{{answers}}}]", f"evaluation=[{{{answers}}}]", "--sweep"]
    argv += ["max_length=40", "max_question_length=8", "sweep={doc_stride: [12, 30]}"]
    assert "sweep, doc_stride=30: doc_stride is 30, and with a question" in " ".join(refused(argv).split())
    assert not (tmp_path / "out").exists()


def test_names_of_points_tell_them_apart(topics):
    fields = "sweep={training.epochs: [1, 2], max_length: [24], training.max_length: [1]}"
    points = sweep_points.points_of(load_recipe(Recipe, None, [*topics, fields]))
    assert points[1].name == "epochs=2,max_length=24,training.max_length=1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["sweep={}"], "its `sweep` is empty"),
        (["selection=last"], "selection is last"),
        (["sweep={train.0.split: [train, test]}"], "sweep names train.0.split"),
        (["sweep={selection: [last]}"], "sweep names selection"),
        (["sweep={training.learning_rates: [1]}"], "training.learning_rates is not a field.*'learning_rate'"),
        (["sweep={training.learning_rate: [fast]}"], "training.learning_rate is 'fast'"),
        (["sweep={training.learning_rate: []}"], r"sweep.training.learning_rate is \[\]"),
        (["sweep={training.epochs: [3, 3]}"], r"sweep.training.epochs is \[3, 3\]"),
        (["sweep={training.learning_rate: [1e-3, 0]}"], "training.learning_rate is 0"),
        (["sweep={max_length: [24, 4]}"], "max_length is 4:"),
        (["sweep={max_length: [24, 4000]}"], "sweep, max_length=4000: max_length is 4000, and the model of"),
        (["sweep={training.precision: [fp32, fp16]}"], "sweep, precision=fp16: training.precision is fp16, and this"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(topics, tmp_path, refused, changes, message):
    found = refused([*topics, GRID, *changes, "--sweep"])
    assert re.search(message, " ".join(found.split())), found
    assert not (tmp_path / "out").exists()


def test_kinds_without_development_scores_are_refused(captions, refused):
    assert "recipes of kind translation have no `sweep`" in refused([*captions, "--sweep"])


def test_folders_with_other_runs_are_refused(recipe, tmp_path, refused, topics):
    sweep.run(recipe, False, ["run"], scored(dict.fromkeys(NAMES, 1.0), []))
    assert "is not empty" in refused([*topics, GRID, "--sweep"])
    (tmp_path / "out" / "recipe.yaml").write_text("training: {learning_rate: 5, batch_size: 24}\n")
    with pytest.raises(ValueError, match="no point of the sweep"):
        sweep.run(recipe, True, ["run"], scored({}, []))


def test_a_sweep_in_which_all_diverge_has_no_best_point(recipe):
    with pytest.raises(ValueError, match="All 4 points"):
        sweep.run(recipe, False, ["run"], scored(dict.fromkeys(NAMES, Diverged("x")), []))
