"""Curves over pre-training steps: what is run and what is not, the figures, and what is refused."""

import csv
import json
import shutil

import pytest

import finetuning.running
from finetuning.experiments.step_curves import main, panels_of
from finetuning.results.table import Results, read_results

FAST = ("training.max_steps=1", "training.batch_size=8", "selection=last", "seeds=[1]", "max_evaluation_examples=9")


@pytest.fixture
def pretrained(tiny_model, tmp_path):
    """pretrained(name, steps, last) -> folder of a pre-training run with checkpoints, and a final model at `last`."""

    def make(name, steps, last):
        folder = tmp_path / name
        for step in steps:
            shutil.copytree(tiny_model, folder / "checkpoints" / f"step-{step}" / "model")
        if last:
            shutil.copytree(tiny_model, folder / "model")
            (folder / "run.json").write_text(json.dumps({"steps": last}))
        (folder / "checkpoints" / ".step-99.tmp" / "model").mkdir(parents=True)  # being written
        return folder

    return make


@pytest.fixture
def recipe(topics, tmp_path):
    """Arguments: a recipe file of one step a seed, and the output."""
    from finetuning.recipe import Recipe
    from zoo_core.recipes import load_recipe, save_recipe

    path = tmp_path / "recipe.yaml"
    save_recipe(load_recipe(Recipe, None, [*topics, *FAST]), path)
    return ["--config", str(path), "--output", str(tmp_path / "curves")]


@pytest.fixture
def executed(monkeypatch):
    """The output folders of the runs that were really executed."""
    run, folders = finetuning.running.run, []

    def counted(task, resume, command):
        folders.append(task.recipe.output_dir.rsplit("/", 2)[-2:])
        return run(task, resume, command)

    monkeypatch.setattr(finetuning.running, "run", counted)
    return folders


@pytest.mark.slow
def test_every_checkpoint_is_run_once_and_stands_in_the_curve(recipe, pretrained, executed, tmp_path, capsys):
    xlm, meta = pretrained("xlm", (4,), 20), pretrained("meta", (4,), 4)
    asked = [*recipe, "--run", "XLM", str(xlm), "--run", "MetaXLM", str(meta)]
    main(asked)
    # the final model of the second run is that of its last checkpoint
    assert executed == [["XLM", "step-4"], ["XLM", "step-20"], ["MetaXLM", "step-4"]]
    assert "[3/3] MetaXLM, step 4" in capsys.readouterr().out
    out = tmp_path / "curves"
    curves = json.loads((out / "curves.json").read_text(encoding="utf-8"))["curves"]
    others, source, gap = "mean of 2 other languages", "en", "transfer gap (en - others)"
    assert list(curves) == [others, source, gap] and list(curves[gap]["XLM"]) == ["4", "20"]
    results = read_results(out / "MetaXLM" / "step-4")
    assert curves[source]["MetaXLM"]["4"]["scores"] == results.languages["en"]["scores"]
    assert curves[gap]["MetaXLM"]["4"]["mean"] == pytest.approx(results.transfer_gap)
    page = (out / "curves.md").read_text(encoding="utf-8")
    assert f"| run | {others} | en | {gap} |" in page
    assert page.count("| MetaXLM, step") == 1 and page.count("| XLM, step") == 2
    with (out / "curves.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 3 and {row["step"] for row in rows} == {"4", "20"}
    assert (out / "curves.png").is_file()
    assert not (out / "XLM" / "step-4" / "seed-1" / "model").exists(), "models are kept on demand"

    del executed[:]
    (out / "XLM" / "step-20" / "results.json").unlink()  # as if killed in its seed
    shutil.rmtree(out / "XLM" / "step-20" / "seed-1")
    main(asked)
    assert executed == [["XLM", "step-20"]]
    shutil.copytree(xlm / "model", xlm / "checkpoints" / "step-40" / "model")
    main([*asked, "--steps", "4"])
    assert len(executed) == 1, "step 40 was not asked for"
    again = json.loads((out / "curves.json").read_text(encoding="utf-8"))["curves"]
    assert again[source]["XLM"] == {"4": curves[source]["XLM"]["4"]}


@pytest.mark.slow
def test_seeds_of_pretraining_are_pooled_at_the_steps_that_all_have(recipe, pretrained, change_weights, tmp_path):
    first, second = pretrained("xlm-1", (2, 4, 6), 0), pretrained("xlm-2", (4, 6, 8), 0)
    change_weights(second / "checkpoints" / "step-4" / "model")
    main([*recipe, "--run", "XLM", str(first), str(second), "--steps", "4", "seeds=[3]"])
    curves = json.loads((tmp_path / "curves" / "curves.json").read_text(encoding="utf-8"))["curves"]
    found = [read_results(tmp_path / "curves" / "XLM" / name / "step-4") for name in ("xlm-1", "xlm-2")]
    assert [results["seeds"] for results in found] == [[3], [3]]
    assert curves["en"]["XLM"]["4"]["scores"] == [s for r in found for s in r.languages["en"]["scores"]]


def test_what_is_scored_without_training_has_its_average():
    rows = [{"language": "en-de", "seed": 1, "metric": "aer", "value": 20.0}]
    results = Results({"seeds": [1], "scores": rows, "protocol": {"metric": {"name": "aer"}}})
    assert list(panels_of(results)) == ["average"]


@pytest.fixture
def message(recipe, capsys):
    """message(*arguments) -> that with which the command refuses them."""

    def refused(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main([*recipe, *arguments])
        return " ".join(capsys.readouterr().err.split())

    return refused


@pytest.mark.slow
def test_finished_runs_of_something_else_are_refused(recipe, pretrained, executed, change_weights, message, tmp_path):
    run = pretrained("xlm", (2, 4), 0)
    asked = ["--run", "XLM", str(run), "max_length=20"]
    # a run that fails in the middle keeps those before it
    (run / "checkpoints" / "step-4" / "model" / "tokenizer.json").unlink()
    error = message(*asked)
    assert "XLM, step 4" in error and "holds no tokenizer" in error and "the same command goes on here" in error
    del executed[:]
    assert "another recipe: max_length: 20 -> 16" in message(*asked, "max_length=16")
    change_weights(run / "checkpoints" / "step-2" / "model")
    assert "weights of" in message(*asked) and not executed


def test_what_makes_no_curve_is_refused(pretrained, message, tmp_path):
    run = pretrained("xlm", (2, 4), 0)
    asked = ["--run", "XLM", str(run)]
    assert "model is another one in each run" in message(*asked, "model=x")
    assert "no model of that step: [2, 4]" in message(*asked, "--steps", "3")
    assert "--steps has 'two'" in message(*asked, "--steps", "2", "two")
    (tmp_path / "file").touch()
    assert "is a file" in message(*asked, "--output", str(tmp_path / "file"))
    assert "has no folder" in message("--run", "XLM")
    assert "stands twice" in message(*asked, "--run", "XLM", str(run))
    assert "cannot name a folder" in message("--run", "../XLM", str(run))
    assert "called alike" in message("--run", "XLM", str(run), str(run))
    assert "no step in common" in message("--run", "X", str(run), str(pretrained("other", (3,), 0)))
    assert "no folder of a pre-training run" in message("--run", "XLM", str(tmp_path))
