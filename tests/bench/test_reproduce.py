"""`make reproduce`: which jobs the claims need, how they are run and resumed, and the page."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest

from bench import reproduce
from bench.reproduce import Claim, Column, Job, Plan, jobs_of
from finetuning.tasks.registry import KINDS, kind_of
from pretraining.recipe import Recipe
from zoo_core.recipes import load_recipe

PLANS = {name: load_recipe(Plan, f"bench/{name}.yaml", []) for name in reproduce.NAMES.values()}
PLAN = PLANS["reproduce"]


def of_all(kind):
    """What all plans list, as parameters of a test."""
    return [
        pytest.param(plan, one, id=f"{name}-{getattr(one, 'name', one)}")
        for name, plan in PLANS.items()
        for one in getattr(plan, kind)
    ]


@pytest.fixture
def flags(tmp_path):
    """The flags of a command."""
    return SimpleNamespace(name="reproduce", seeds=[2, 3], hub_root=None, output=tmp_path / "runs")


@pytest.mark.parametrize(("plan", "name"), of_all("models"))
def test_every_model_has_a_recipe_that_can_be_read(plan, name):
    work = plan.models[name]
    assert (work.recipe is None) == (work.folder is not None)
    if work.recipe is not None:
        start = [f"{work.start_field}=y"] if work.start else []
        load_recipe(Recipe, work.recipe, [*work.set, *start, "output_dir=x", "seed=1"])
        assert work.hours > 0


@pytest.mark.parametrize(("plan", "name"), of_all("tasks"))
def test_every_task_has_a_recipe_that_can_be_read(plan, name):
    work = plan.tasks[name]
    kind = KINDS[kind_of(["--config", work.recipe])]
    load_recipe(kind.recipe_class, work.recipe, [*work.set, "model=x", "output_dir=y"])
    assert work.hours > 0


@pytest.mark.parametrize(("plan", "claim"), of_all("claims"))
def test_claims_name_models_and_tasks_that_are_there(plan, claim):
    assert set(claim.models) <= plan.models.keys() and set(claim.tasks) <= plan.tasks.keys()
    assert (claim.columns or "| --- |" in claim.answer) and {column.task for column in claim.columns} - {None} <= set(
        claim.tasks
    )


def test_a_job_is_listed_once_behind_what_it_needs(flags):
    jobs = jobs_of(PLAN, PLAN.claims, flags)
    names = [job.name for job in jobs]
    assert len(set(names)) == len(names)
    assert names.index("head") < names.index("xlm-2") < names.index("xlm-2 alignment")
    assert names.count("head") == 1 and {"xlm-2", "xlm-3"} <= set(names)  # one head for all seeds
    by_name = {job.name: job.command for job in jobs}
    assert f"model.start_from={flags.output / 'head' / 'model'}" in by_name["xlm-2"]
    assert "start alignment" in names and "start-2 alignment" not in names  # nothing of it has a seed
    assert f"model={flags.output / 'xlm-2' / 'model'}" in by_name["xlm-2 alignment"]
    checkpoint = flags.output / "mini_xlm-3" / "checkpoints" / "step-200" / "model"
    assert f"model={checkpoint}" in by_name["mini_xlm_200-3 udpos"]
    assert "mini_body-3" in names and "mini_body-2" not in names  # of one seed
    assert f"teacher.path={flags.output / 'mini_teacher' / 'model'}" in by_name["mini_distilled-3"]


def job_of(flags, name, program):
    folder = flags.output / name
    return Job(name, [sys.executable, "-c", program, str(folder)], folder, "done", 0.5, flags.output / f"{name}.txt")


WRITES = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(exist_ok=True, parents=True); "
WORKS = WRITES + "(p / 'done').write_text('')"
STOPS = WRITES + "(p / 'recipe.yaml').write_text(''); print('no disk'); sys.exit('--resume' not in sys.argv)"


def test_run_jobs_runs_the_others_after_a_failure_and_resumes(flags, capsys):
    jobs = [job_of(flags, "a", STOPS), job_of(flags, "b", WORKS)]
    assert reproduce.run_jobs(jobs) == ["a"] and [job.is_done for job in jobs] == [False, True]
    assert "no disk" in jobs[0].log.read_text()

    resumed = job_of(flags, "a", STOPS.replace("sys.exit", "(p / 'done').write_text(''); sys.exit"))
    other = job_of(flags, "b", WORKS + "; pass")
    with pytest.raises(ValueError, match="pass"):  # the present result was made by another command
        reproduce.run_jobs([resumed, other])
    assert reproduce.run_jobs([resumed, jobs[1]]) == []
    assert resumed.log.read_text().count(resumed.typed) == 1 and jobs[1].log.read_text().count(jobs[1].typed) == 1


def write_results(folder, values):
    """results.json of an alignment task: {(language, layer): AER}."""
    rows = [
        dict(language=language, method="ot", layer=layer, seed=1, split="test", metric="aer", value=value)
        for (language, layer), value in values.items()
    ]
    content = dict(format=2, task="word_alignment", kind="word_alignment", setting="feature", seeds=[1], scores=rows)
    content |= dict(model={"folder": "x"}, protocol={"metric": {"name": "aer"}}, warnings=[])
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(content))


def test_the_page_has_means_over_seeds_and_keeps_what_is_gone(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "FOLDER", tmp_path)
    results = tmp_path / "results"
    column = Column(name="AER", task="alignment", metric="aer", where={"method": "ot", "layer": 8}, better="down")
    claim = Claim(name="dwa", says="lower", paper="P", models=["start", "xlm"], columns=[column], plot="layers")
    plan = Plan(models={name: PLAN.models[name] for name in ("start", "head", "xlm")}, claims=[claim])
    for run, (german, french) in {"start": (20, 10), "xlm-3": (16, 8), "xlm-2": (14, 8)}.items():
        values = {("de-en", 8): german, ("en-fr", 8): french, ("de-en", 7): 99.0}
        write_results(flags.output / run / "tasks" / "alignment", values)
    reproduce.write_page(plan, flags)
    page = (tmp_path / "reproduce.md").read_text()
    assert "| start | 15.0 |" in page and "| MLM + TLM | 11.5 ± 0.7 |" in page
    assert (results / "reproduce-dwa.png").stat().st_size > 10_000
    table = pandas.read_csv(results / "reproduce.csv")
    assert len(table) == 9 and set(table["seed"]) == {0, 2, 3}

    written = (results / "reproduce.csv").read_bytes()
    flags.output = tmp_path / "elsewhere"  # another machine, where nothing has run, and then one run again
    reproduce.write_page(plan, flags)
    assert (results / "reproduce.csv").read_bytes() == written
    write_results(flags.output / "xlm-3" / "tasks" / "alignment", {("de-en", 8): 12.0, ("en-fr", 8): 8.0})
    reproduce.write_page(plan, flags)
    page = (tmp_path / "reproduce.md").read_text()
    assert "| start | 15.0 |" in page and "| MLM + TLM | 10.5 ± 0.7 |" in page

    claim.seeds = [3]  # rows of one seed are compared
    reproduce.write_page(plan, flags)
    page = (tmp_path / "reproduce.md").read_text()
    assert "| start | 15.0 |" in page and "| MLM + TLM | 10.0 |" in page


def test_the_committed_page_is_what_the_committed_results_give(tmp_path, monkeypatch):
    for path in (reproduce.FOLDER / "results").glob("reproduce*.csv"):
        (tmp_path / "results").mkdir(exist_ok=True)
        (tmp_path / "results" / path.name).write_bytes(path.read_bytes())
    committed = (reproduce.FOLDER / "reproduce.md").read_text(encoding="utf-8")
    monkeypatch.setattr(reproduce, "FOLDER", tmp_path)
    monkeypatch.setattr(reproduce, "draw", lambda claim, *_: Path(f"reproduce-{claim.name}.png"))
    flags = SimpleNamespace(name="reproduce", seeds=[1, 2, 3], output=tmp_path / "runs")
    reproduce.write_page(PLAN, flags)
    assert (tmp_path / "reproduce.md").read_text(encoding="utf-8") == committed
    assert None not in [claim.outcome for claim in PLAN.claims]


def test_the_loss_that_a_translation_model_ends_with_is_a_score(flags):
    folder = flags.output / "veco-2" / "tasks" / "translation"
    write_results(folder, {("en-de", 1): 5.0})
    content = json.loads((folder / "results.json").read_text())
    content["scores"].insert(0, content["scores"][0] | {"metric": "chrf"})  # which the table leaves out
    content["curve"] = {"2": [{"step": 50, "loss": 4.5, "bleu": None}, {"step": 100, "loss": 4.25, "bleu": 1.0}]}
    (folder / "results.json").write_text(json.dumps(content))
    scores = pandas.DataFrame(reproduce.scores_of(Plan(models={"veco": PLAN.models["veco"]}), flags))
    assert scores.set_index("metric")["value"].to_dict() == {"aer": 5.0, "dev_loss": 4.25}
    assert set(scores["seed"]) == {2} and set(scores["task"]) == {"translation"}
