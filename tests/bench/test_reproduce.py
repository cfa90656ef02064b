"""`make reproduce`: which jobs the claims need, how they are run and resumed, and the page."""

import json
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest

from bench import reproduce
from bench.reproduce import Claim, Column, Job, Plan, jobs_of
from crosslingual_zoo.finetuning.results import FORMAT
from crosslingual_zoo.finetuning.tasks.registry import KINDS, kind_of
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.zoo_core.recipes import load_recipe

PLANS = {name: load_recipe(Plan, f"bench/{name}.yaml", []) for name in ("reproduce", "reproduce_full")}
PLAN = PLANS["reproduce"]


@pytest.fixture
def flags(tmp_path):
    """The flags of a command."""
    return SimpleNamespace(plan=tmp_path / "reproduce.yaml", seeds=[2, 3], hub_root=None, output=tmp_path / "runs")


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_reproduce_recipes_can_be_read_and_claims_name_what_is_there(plan):
    for work in (*plan.models.values(), *plan.tasks.values()):
        assert (work.recipe is None) == (work.folder is not None)
    for model in plan.models.values():
        overrides = [*model.set, "output_dir=x"]
        if model.start:
            overrides.append(f"{model.start_field}=y")
        if model.recipe is not None:
            load_recipe(Recipe, model.recipe, overrides)
    for task in plan.tasks.values():
        recipe_class = KINDS[kind_of(["--config", task.recipe])]
        load_recipe(recipe_class, task.recipe, [*task.set, "model=x", "output_dir=x"])
    for claim in plan.claims:
        assert set(claim.models) <= plan.models.keys()
        assert set(claim.tasks) <= plan.tasks.keys()
        assert {column.task for column in claim.columns} <= {*claim.tasks, reproduce.RUN}


def test_jobs_of_lists_a_job_once_behind_what_it_needs(flags):
    jobs = {name: job.command for name, job in jobs_of(PLAN, PLAN.claims, flags).items()}
    names = list(jobs)
    assert names.index("head") < names.index("xlm-2") < names.index("xlm-2 alignment")
    # "start" has no seed, and "mini_body" one
    assert {"xlm-3", "start alignment", "mini_body-3"} <= set(names)
    assert {"start-2 alignment", "mini_body-2"}.isdisjoint(names)
    expected = {
        "xlm-2": f"model.start_from={flags.output / 'head' / 'model'}",  # one head for all seeds
        "xlm-2 alignment": f"model={flags.output / 'xlm-2' / 'model'}",
        "mini_xlm_200-3 udpos": f"model={flags.output / 'mini_xlm-3' / 'checkpoints' / 'step-200' / 'model'}",
        "mini_distilled-3": f"teacher.path={flags.output / 'mini_teacher' / 'model'}",
    }
    for name, override in expected.items():
        assert override in jobs[name]


def test_run_jobs_runs_the_others_after_a_failure_and_resumes(flags):
    def job_of(name, program):
        folder = flags.output / name
        folder.mkdir(parents=True, exist_ok=True)
        program = f"import pathlib, sys; p = pathlib.Path({str(folder)!r}); {program}"
        return Job(["-c", program], folder, folder / "done", 0.5)

    resumed = job_of("a", "'--resume' in sys.argv and (p / 'done').touch(); (p / 'recipe.yaml').touch()")
    jobs = {"a": resumed, "b": job_of("b", "(p / 'done').touch()")}
    assert reproduce.run_jobs(jobs, flags) == ["a"]
    assert not jobs["a"].result.exists()
    assert jobs["b"].result.exists()
    with pytest.raises(ValueError):  # the present result was made by another command
        reproduce.run_jobs({"a": resumed, "b": job_of("b", "(p / 'done').touch(); pass")}, flags)
    assert reproduce.run_jobs(jobs, flags) == []
    assert (flags.output / "jobs" / "a.txt").read_text().count("python -c") == 2
    assert (flags.output / "jobs" / "b.txt").read_text().count("python -c") == 1


def write_results(folder, values):
    """results.json of an alignment task: {(language, layer): AER}."""
    common = {"method": "ot", "seed": 1, "split": "test", "metric": "aer"}
    rows = [{"language": pair, "layer": layer, "value": value, **common} for (pair, layer), value in values.items()]
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps({"format": FORMAT, "kind": "tagging", "scores": rows}))


def test_write_page_has_means_over_seeds_and_keeps_what_is_gone(flags, tmp_path):
    column = Column(name="AER", task="alignment", metric="aer", where={"method": "ot", "layer": 8}, better="down")
    plot = {"plot": "layers", "plot_title": "A title"}
    claim = Claim(name="dwa", says="lower", paper="P", models=["start", "xlm"], columns=[column], **plot)
    plan = Plan(models={name: PLAN.models[name] for name in ("start", "head", "xlm")}, claims=[claim])
    for run, (german, french) in {"start": (20, 10), "xlm-3": (16, 8), "xlm-2": (14, 8)}.items():
        values = {("de-en", 8): german, ("en-fr", 8): french, ("de-en", 7): 99.0}
        write_results(flags.output / run / "tasks" / "alignment", values)

    def page():
        reproduce.write_page(plan, flags)
        return (tmp_path / "reproduce.md").read_text()

    assert "| start | 15.0 |" in page()
    assert "| MLM + TLM | 11.5 ± 0.7 |" in page()
    assert (tmp_path / "results" / "reproduce-dwa.png").stat().st_size > 10_000
    written = (tmp_path / "results" / "reproduce.csv").read_bytes()
    assert set(pandas.read_csv(tmp_path / "results" / "reproduce.csv")["seed"]) == {0, 2, 3}
    flags.output = tmp_path / "elsewhere"  # another machine, where nothing has run, and then one run again
    assert "| start | 15.0 |" in page()
    assert (tmp_path / "results" / "reproduce.csv").read_bytes() == written
    write_results(flags.output / "xlm-3" / "tasks" / "alignment", {("de-en", 8): 12.0, ("en-fr", 8): 8.0})
    assert "| start | 15.0 |" in page()
    assert "| MLM + TLM | 10.5 ± 0.7 |" in page()
    claim.seeds = [3]  # rows of one seed are compared
    assert "| MLM + TLM | 10.0 |" in page()


def test_write_page_of_the_committed_results_is_the_committed_page(tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "reproduce.csv").write_bytes(Path("bench/results/reproduce.csv").read_bytes())
    monkeypatch.setattr(reproduce, "draw", lambda claim, *_: Path(f"reproduce-{claim.name}.png"))
    reproduce.write_page(PLAN, SimpleNamespace(plan=tmp_path / "reproduce.yaml", seeds=[1, 2], output=tmp_path))
    assert (tmp_path / "reproduce.md").read_text("utf-8") == Path("bench/reproduce.md").read_text("utf-8")
    assert all(claim.plot_title for claim in PLAN.claims if claim.plot)
    assert None not in [claim.outcome for claim in PLAN.claims]
