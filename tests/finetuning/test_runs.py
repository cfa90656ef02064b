"""Many runs of one recipe: figures, sweeps, resuming, and errors."""

import csv
import json
import math
import re
import shutil

import pytest
from datasets import Dataset

import finetuning.training
from finetuning.recipe import Recipe
from finetuning.results import read_results
from finetuning.run import main as finetune
from finetuning.runs import as_table, cells, figures_of, in_language, main, points_of
from finetuning.trainer import FineTuningTrainer
from finetuning.training import Diverged
from tests.finetuning.tasks import Killed
from tests.finetuning.test_compare import made_up
from zoo_core.recipes import load_recipe, save_recipe

FAST = ("training.max_steps=1", "training.batch_size=8", "max_evaluation_examples=9", "seeds=[1]", "selection=last")
REVIEWS = """
task: amazon_reviews
output_dir: nowhere
train: [{{path: "{folder}/{{language}}", language_names: {{ja: jp}}, where: {{domain: "{{domain}}"}}}}]
evaluation:
- {{path: "{folder}/{{language}}", languages: [en, ja], language_names: {{ja: jp}}, where: {{domain: "{{domain}}"}}}}
selection: last
max_length: 16
training: {{learning_rate: 1e-3, batch_size: 8, max_steps: 1}}
seeds: [1]
published: {{paper: metaxlm, table: Table 2, row: "MetaXLM base, supervised"}}
"""


@pytest.fixture
def figure(topics, tmp_path):
    """figure(name, *arguments): a command, with a recipe of one step whose training table names the language."""
    path = tmp_path / "recipe.yaml"
    save_recipe(load_recipe(Recipe, None, [*topics, *FAST, "train.0.config={language}"]), path)
    return lambda name, *arguments: main([name, "--config", str(path), "--output", str(tmp_path / "out"), *arguments])


@pytest.fixture
def executed(monkeypatch):
    """The folders of the runs that were executed."""
    run, folders = finetuning.training.run, []

    def counted(task, resume, command, evaluate=True):
        folders.append(task.recipe.output_dir.partition("/out/")[2])
        return run(task, resume, command, evaluate)

    monkeypatch.setattr(finetuning.training, "run", counted)
    return folders


@pytest.fixture
def pretrained(tiny_model, tmp_path):
    """pretrained(name, steps, last=0) -> folder of a pre-training run with checkpoints, and a final model at `last`."""

    def make(name, steps, last=0):
        folder = tmp_path / name
        for step in steps:
            shutil.copytree(tiny_model, folder / "checkpoints" / f"step-{step}" / "model")
        if last:
            shutil.copytree(tiny_model, folder / "model")
            (folder / "run.json").write_text(json.dumps({"steps": last}))
        (folder / "checkpoints" / ".step-99.tmp" / "model").mkdir(parents=True)  # being written
        return folder

    return make


def rows_of(path):
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_transfer_matrix_runs_each_language_as_the_source_once(figure, executed, tiny_model, tmp_path, refused, drawn):
    other = shutil.copytree(tiny_model, tmp_path / "other")
    asked = ["transfer_matrix", "--model", f"XLM={tiny_model}", "--model", f"M={other}", "--languages", "zh,en"]
    figure(*asked)
    out = tmp_path / "out"
    rows = rows_of(out / "transfer_matrix.csv")
    page = (out / "transfer_matrix.md").read_text(encoding="utf-8")
    for name in ("XLM", "M"):
        for source in ("zh", "en"):
            run = read_results(out / name / source)
            assert run["source_language"] == source and sorted(run.languages) == ["en", "zh"]
            (table,) = run["protocol"]["training_data"]
            assert table["config"] == source and table["languages"] == [source]
            own = [float(row["value"]) for row in rows if (row["run"], row["from"]) == (name, source)]
            assert own == [score for entry in run.languages.values() for score in entry["scores"]]
            assert f"{run.transfer_gap:.1f}" in next(
                line for line in page.splitlines() if line.startswith(f"| {source} |")
            )
    assert len(rows) == 8 and (out / "transfer_matrix.png").stat().st_size > 5000
    del executed[:]
    (out / "M" / "en" / "results.json").unlink()  # as if killed
    shutil.rmtree(out / "M" / "en" / "seed-1")
    figure(*asked)
    assert executed == ["M/en"]
    assert "another recipe: max_length" in refused([*asked, "max_length=20"], lambda given: figure(*given))


@pytest.mark.slow
def test_supervised_runs_each_language_and_domain(tiny_model, tmp_path):
    for language in ("en", "jp"):
        for split, count in (("train", 12), ("test", 8)):
            rows = [
                {"text": f"{split} {number}", "label": ("negative", "positive")[number % 2], "domain": domain}
                for domain, more in (("books", 0), ("dvd", 3))
                for number in range(count + more)
            ]
            (tmp_path / "data" / language).mkdir(parents=True, exist_ok=True)
            Dataset.from_list(rows).to_json(tmp_path / "data" / language / f"{split}.jsonl", force_ascii=False)
    config = tmp_path / "reviews.yaml"
    config.write_text(REVIEWS.format(folder=tmp_path / "data"), encoding="utf-8")
    out = tmp_path / "out"
    asked = ["supervised", "--config", str(config), "--output", str(out), "--model", f"XLM={tiny_model}"]
    main([*asked, "--languages", "en,ja", "--domains", "dvd"])
    values = {}
    for language, folder in (("en", "/en"), ("ja", "/jp")):
        run = read_results(out / "XLM" / f"{language} dvd")
        protocol = run["protocol"]
        assert run["setting"] == "supervised" and list(run.languages) == [language]
        assert (protocol["training_rows"], protocol["evaluated_rows"][language]) == (12 + 3, 8 + 3)
        for entry in (*protocol["training_data"], *protocol["evaluation_data"]):
            assert entry["where"] == {"domain": "dvd"} and entry["path"].endswith(folder)
        values[language] = run.average["mean"]
    page = (out / "supervised.md").read_text(encoding="utf-8")
    assert f"| ja dvd | {values['ja']:.1f} | 77.5 |" in page
    assert f"| average | {sum(values.values()) / 2:.1f} |  |" in page  # the paper's is over other rows
    with pytest.raises(SystemExit):
        main([*asked, "--languages", "en"])


@pytest.mark.slow
def test_step_curves_run_every_checkpoint_once(figure, pretrained, executed, tmp_path):
    xlm, meta = pretrained("xlm", (4,), 20), pretrained("meta", (4,), 4)
    asked = ["step_curves", "--run", f"XLM={xlm}", "--run", f"MetaXLM={meta}", "train.0.config=en"]
    figure(*asked)
    # the final model of the second run is that of its last checkpoint
    assert executed == ["XLM/xlm/4", "XLM/xlm/20", "MetaXLM/meta/4"]
    out = tmp_path / "out"
    results = read_results(out / "MetaXLM" / "meta" / "4")
    page = (out / "step_curves.md").read_text(encoding="utf-8")
    assert f"| {results.of('en')['mean']:.1f} |" in page and f"| {results.transfer_gap:.1f} |" in page
    assert {row["step"] for row in rows_of(out / "step_curves.csv")} == {"4", "20"}
    assert not (out / "XLM/xlm/4/seed-1/model").exists()  # models are kept on demand
    del executed[:]
    shutil.copytree(xlm / "model", xlm / "checkpoints" / "step-40" / "model")
    figure(*asked, "--steps", "4")
    assert not executed


@pytest.mark.slow
def test_product_runs_every_combination(figure, tiny_model, tmp_path):
    figure("product", "--model", f"A={tiny_model}", "--vary", "max_train_examples=20,40", "train.0.config=en")
    for examples in (20, 40):
        assert read_results(tmp_path / "out" / "A" / str(examples))["protocol"]["training_rows"] == examples
    assert "| max_train_examples | en |" in (tmp_path / "out" / "product.md").read_text(encoding="utf-8")


def test_cells_pool_seeds_and_gaps_are_taken_seed_by_seed():
    import pandas

    values = {"en": [80.0, 70.0], "de": [60.0, 65.0], "fr": [40.0, 45.0]}
    one, other = made_up("t", {"accuracy": values}), made_up("t", {"accuracy": {**values, "de": [0.0, 5.0]}})
    rows = pandas.DataFrame([row for run in (one, other) for row in figures_of({"row": "en"}, run)])
    found = cells(rows, "figure")
    assert found["transfer gap"]["en"]["scores"] == [30.0, 15.0, 60.0, 45.0]
    assert found["mean of others"]["en"]["scores"] == [50.0, 55.0, 20.0, 25.0]
    assert as_table("from", {"fr": found["fr"]}, {"en": 50.0}) == (
        ["from", "fr", "published"],
        [["en", "42.5 ± 2.9", "50.0"]],
    )


def test_in_language_keeps_the_tables_of_the_source():
    tables = (
        "train=[{path: a/en}, {path: 'a/{language}', languages: [nl, es]}, {path: all, language_column: language}]",
        "evaluation=[{path: b/en, languages: [en]}, {path: 'b/{language}', languages: [nl, es, de]}, "
        "{path: all, language_column: language, split: dev}]",
    )
    recipe = load_recipe(Recipe, None, ["model=m", "output_dir=o", "task=t", "training.learning_rate=1e-3", *tables])
    for source, expected in (
        ("en", [("a/en", []), ("all", ["en"])]),
        ("es", [("a/{language}", ["es"]), ("all", ["es"])]),
        ("ja", [("all", ["ja"])]),
    ):
        changed = in_language(recipe, source, ["ja", "es", "en"])
        assert [(table.path, table.languages) for table in changed.train] == expected
        assert changed.source_language == source
        assert [(table.path, table.languages) for table in changed.evaluation] == [
            ("b/en", ["en"]), ("b/{language}", ["es"]), ("all", ["ja"]),
        ]  # fmt: skip


MATRIX = ("transfer_matrix", "--model", "XLM={model}", "--languages", "en,de")
CURVES = ("step_curves", "--run", "XLM={run}")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*MATRIX, "train.0.config=en"), "{language}"),
        (("transfer_matrix", "--model", "XLM={model}", "--languages", "en,it"), "it"),
        ((*MATRIX, "kind=word_alignment"), "word_alignment"),
        (("transfer_matrix", "--model", "{model}", "--languages", "en"), "{model}"),
        ((*MATRIX, "--model", "M={missing}"), "{missing}"),
        ((*MATRIX, "push_to_hub=me/m", "save_models=true"), "push_to_hub"),
        (("supervised", *MATRIX[1:], "--domains", "books"), "{domain}"),
        ((*CURVES, "--steps", "3"), "3"),
        ((*CURVES, "--run", "XLM={other}"), "step"),
    ],
)
def test_figures_that_cannot_be_run_are_refused(figure, refused, tiny_model, pretrained, tmp_path, arguments, named):
    places = {"model": tiny_model, "run": pretrained("xlm", (2, 4)), "other": pretrained("other", (3,))}
    places |= {"missing": tmp_path / "none"}

    def filled(text):
        return re.sub(r"\{(\w+)\}", lambda match: str(places.get(match[1], match[0])), text)

    message = refused([*map(filled, arguments)], lambda given: figure(*given))
    assert filled(named) in " ".join(message.split()) and not (tmp_path / "out").exists()


GRID = "sweep={training.learning_rate: [1e-3, 1e-2]}"
NAMES = ["learning_rate=0.001", "learning_rate=0.01"]


def sweep_of(folder):
    return json.loads((folder / "sweep.json").read_text(encoding="utf-8"))


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
    finetune([*argv, "--resume"])
    assert steps[8:10] == [(1e-2, 3), (1e-2, 2)]  # from the checkpoint, and no point before
    out = tmp_path / "out"
    found, results = sweep_of(out), read_results(out)
    scores = [point["score"] for point in found["points"]]
    best = found["points"][scores.index(max(scores))]
    assert found["taken"] == best["values"] and found["fields"] == {"training.learning_rate": [1e-3, 1e-2]}
    (rate,) = best["values"].values()
    # the points' evaluated rows were not predicted; the best point's were, once a seed
    assert predicted == [rate] * 2 and results["seeds"] == [1, 2]
    assert results["hyperparameters"]["learning_rate"] == rate
    stamped = results["protocol"]["selection"]["sweep"]
    assert stamped == {"fields": found["fields"], "points": 2, "score": best["score"]}
    assert results["protocol"]["selection"]["scores"][0] == best["score"]  # the same seed again, the same score
    assert any("best of 2 points" in line for line in results["lines"])
    for name in NAMES:
        folder = out / "sweep" / name
        assert not (folder / "results.json").exists() and not (folder / "seed-1" / "model").exists()

    # again: nothing is trained, and a run that is resumed without --sweep says the same of its choice
    monkeypatch.setattr(FineTuningTrainer, "training_step", lambda self, *args, **kwargs: pytest.fail("trained"))
    finetune([*argv, "--resume"])
    assert sweep_of(out) == found
    finetune([*topics, f"training.learning_rate={rate}", "--resume"])
    assert read_results(out)["protocol"]["selection"]["sweep"] == stamped


@pytest.mark.parametrize(
    ("scores", "taken"), [((50.0, 50.0), 1e-3), ((Diverged("seed 1"), 40.0), 1e-2), ((math.nan, 40.0), 1e-2)]
)
def test_sweep_takes_the_first_of_equal_points_and_none_that_diverged(topics, tmp_path, monkeypatch, scores, taken):
    dev, ran = dict(zip(NAMES, scores, strict=True)), []

    def run(task, resume, command, evaluate=True):
        ran.append((task.recipe.training.learning_rate, task.recipe.seeds))
        found = None if evaluate else dev[task.recipe.output_dir.rpartition("/")[2]]
        if isinstance(found, Exception):
            raise found
        return [{"selection_score": found}]

    monkeypatch.setattr(finetuning.training, "run", run)
    finetune([*topics, GRID, "--sweep"])
    assert ran == [(1e-3, [1]), (1e-2, [1]), (taken, [1, 2])]
    assert sweep_of(tmp_path / "out")["taken"] == {"training.learning_rate": taken}


def test_points_of_change_the_last_field_fastest(topics):
    fields = "sweep={training.epochs: [1, 2], max_length: [24, 32]}"
    points = points_of(load_recipe(Recipe, None, [*topics, fields]))
    assert list(points)[:2] == ["epochs=1,max_length=24", "epochs=1,max_length=32"]
    assert points["epochs=2,max_length=24"][1] == ["training.epochs=2", "max_length=24"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (["sweep={}"], "sweep={training"),
        (["selection=last"], "selection"),
        (["sweep={train.0.split: [train, test]}"], "train.0.split"),
        (["sweep={training.learning_rate: [fast]}"], "training.learning_rate"),
        (["sweep={training.epochs: [3, 3]}"], "sweep.training.epochs"),
        (["sweep={max_length: [24, 4000]}"], "max_length=4000"),
    ],
)
def test_sweeps_that_cannot_be_run_are_refused(topics, tmp_path, refused, changes, named):
    assert named in " ".join(refused([*topics, GRID, *changes, "--sweep"]).split())
    assert not (tmp_path / "out").exists()


def test_sweep_refuses_kinds_without_development_scores(captions, refused):
    assert "sweep" in refused([*captions, "--sweep"])
