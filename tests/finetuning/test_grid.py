"""Grids: the data of each run, the tables, resuming, and errors."""

import csv
import json
import re
import shutil

import pytest
from datasets import Dataset

import finetuning.running
from finetuning.experiments.engine import RecipeJob
from finetuning.experiments.grid import GRIDS, evaluate_in, load_grid, train_in
from finetuning.experiments.table import cells_of, minus_first, published_column
from finetuning.recipe import Published, Recipe
from finetuning.results.table import Results, read_results, summary
from finetuning.tools.grid import main
from zoo_core.recipes import load_recipe, save_recipe
from zoo_core.run_folders import run_lock

FAST = ("training.max_steps=1", "training.batch_size=8", "max_evaluation_examples=9", "seeds=[1]", "selection=last")
REVIEWS = """
task: reviews
output_dir: nowhere
train:
- path: {folder}/{{language}}
  language_names: {{ja: jp}}
  where: {{domain: "{{domain}}"}}
evaluation:
- path: {folder}/{{language}}
  where: {{domain: "{{domain}}"}}
  languages: [en, ja]
  language_names: {{ja: jp}}
selection: last
max_length: 16
training: {{learning_rate: 1e-3, batch_size: 8, max_steps: 1}}
seeds: [1]
published:
  paper: P
  table: T
  row: R
  languages: {{en dvd: 80.0, ja dvd: 50.0, fr dvd: 10.0}}
  average_over: [en dvd, ja dvd]
  average: 65.0
"""


@pytest.fixture
def grid(topics, tmp_path):
    """grid(name, *arguments): a command, with a recipe of one step whose training table names the language."""
    path = tmp_path / "recipe.yaml"
    save_recipe(load_recipe(Recipe, None, [*topics, *FAST, "train.0.config={language}"]), path)
    return lambda name, *arguments: main([name, "--config", str(path), "--output", str(tmp_path / "out"), *arguments])


@pytest.fixture
def refusal(grid, refused):
    """refusal(name, *arguments) -> the message with which the command refuses them."""
    return lambda *arguments: " ".join(refused(arguments, lambda given: grid(*given)).split())


@pytest.fixture
def executed(monkeypatch):
    """The folders of the runs that were executed."""
    run, folders = finetuning.running.run, []

    def counted(task, resume, command):
        folders.append("/".join(task.recipe.output_dir.rsplit("/", 2)[-2:]))
        return run(task, resume, command)

    monkeypatch.setattr(finetuning.running, "run", counted)
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


@pytest.fixture
def reviews(tiny_model, tmp_path):
    """Arguments: reviews of two domains in two languages, train and test, and the output."""
    for language in ("en", "jp"):
        for split, count in (("train", 12), ("test", 8)):
            rows = [
                {"text": f"{split} {number}", "label": ("negative", "positive")[number % 2], "domain": domain}
                for domain, more in (("books", 0), ("dvd", 3))
                for number in range(count + more)
            ]
            folder = tmp_path / "data" / language
            folder.mkdir(parents=True, exist_ok=True)
            Dataset.from_list(rows).to_json(folder / f"{split}.jsonl", force_ascii=False)
    config = tmp_path / "reviews.yaml"
    config.write_text(REVIEWS.format(folder=tmp_path / "data"), encoding="utf-8")
    return ["--config", str(config), "--output", str(tmp_path / "out"), "--model", f"XLM={tiny_model}"]


def content(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_each_language_is_the_source_once(grid, tiny_model, tmp_path, capsys, drawn):
    other = shutil.copytree(tiny_model, tmp_path / "other")
    models = ("--model", f"XLM={tiny_model}", "--model", f"MetaXLM={other}")
    asked = ["transfer_matrix", *models, "--languages", "zh", "en"]
    grid(*asked, "training.learning_rate=1e-3")  # an override after a list
    out = tmp_path / "out"
    found = content(out / "matrix.json")
    for name in ("XLM", "MetaXLM"):
        for source in ("zh", "en"):
            run = read_results(out / name / f"from-{source}")
            assert run["source_language"] == source and list(run.languages) == ["zh", "en"]
            (table,) = run["protocol"]["training_data"]
            assert table["config"] == source and table["languages"] == [source]
            assert run["hyperparameters"]["learning_rate"] == 1e-3
            own = [row["value"] for row in found["scores"] if (row["run"], row["source"]) == (name, source)]
            assert own == [score for entry in run.languages.values() for score in entry["scores"]]
            assert found["table"][name]["transfer gap"][source]["mean"] == run.transfer_gap
    assert not found["differing"]
    page = (out / "matrix.md").read_text(encoding="utf-8")
    assert (
        page.count("| from | zh | en | mean of others | transfer gap |") == 2
        and page.count("| from | zh | en |\n") == 1
    )
    assert "MetaXLM - XLM: higher in 0 of 4 cells" in page, "equal weights give equal figures"
    with (out / "matrix.csv").open(encoding="utf-8") as stream:
        rows = [(row["run"], row["source"], row["language"]) for row in csv.DictReader(stream)]
    assert len(rows) == len(set(rows)) == 8
    assert (out / "matrix.png").stat().st_size > 5000 and (out / "matrix-differences.png").is_file()
    capsys.readouterr()
    grid(*asked, "training.learning_rate=1e-3")
    assert "4 finished before, 0 to do" in capsys.readouterr().out


@pytest.mark.slow
def test_each_language_and_domain_has_runs_of_its_own(reviews, tmp_path, capsys):
    main(["supervised_domains", *reviews, "--languages", "en", "ja", "--domains", "dvd"])
    out = tmp_path / "out"
    value = {row["trained_in"]: row["value"] for row in content(out / "supervised.json")["scores"]}
    for language, figure in (("en", 80.0), ("ja", 50.0)):
        run = read_results(out / "XLM" / f"{language}-dvd")
        protocol = run["protocol"]
        assert run["setting"] == "supervised" and list(run.languages) == [language]
        assert (protocol["training_rows"], protocol["evaluated_rows"][language]) == (12 + 3, 8 + 3)
        for entry in (*protocol["training_data"], *protocol["evaluation_data"]):
            assert entry["where"] == {"domain": "dvd"} and entry["path"].endswith({"en": "/en", "ja": "/jp"}[language])
        assert run["published"][0]["figures"] == {"accuracy": {language: figure}}
        assert [value[language]] == run.languages[language]["scores"]
    page = (out / "supervised.md").read_text(encoding="utf-8")
    assert "| trained and tested on | XLM | P, T, R |" in page and "10.0 |" not in page
    assert f"| average | {sum(value.values()) / 2:.1f} | 65.0 |" in page
    assert (out / "supervised.png").is_file()
    capsys.readouterr()
    main(["supervised_domains", *reviews, "--languages", "en", "--domains", "dvd"])
    assert "1 finished before, 0 to do" in capsys.readouterr().out
    assert "65.0" not in (out / "supervised.md").read_text(encoding="utf-8"), "an average over other rows"


@pytest.mark.slow
def test_supervised_runs_hold_out_development_rows(reviews, tmp_path):
    tables = [f"{part}.0.where={{}}" for part in ("train", "evaluation")]
    options = ["selection=source_dev", "dev_fraction=0.25", "seeds=[1]", "published=null"]
    main(["supervised", *reviews, "--languages", "en", *tables, *options])
    run = read_results(tmp_path / "out" / "XLM" / "en")
    assert run["protocol"]["selection"]["rows"] == {"en": 7} and run["protocol"]["training_rows"] == 20


@pytest.mark.slow
def test_every_checkpoint_is_run_once_and_stands_in_the_curve(grid, pretrained, executed, tmp_path):
    xlm, meta = pretrained("xlm", (4,), 20), pretrained("meta", (4,), 4)
    asked = ["step_curves", "--run", "XLM", str(xlm), "--run", "MetaXLM", str(meta), "train.0.config=en"]
    grid(*asked)
    # the final model of the second run is that of its last checkpoint
    assert executed == ["xlm/step-4", "xlm/step-20", "meta/step-4"]
    out = tmp_path / "out"
    (table,) = content(out / "curves.json")["table"].values()
    assert list(table) == ["mean of others", "en", "transfer gap"]
    assert list(table["en"]) == ["XLM, step 4", "XLM, step 20", "MetaXLM, step 4"]
    results = read_results(out / "MetaXLM" / "meta" / "step-4")
    assert table["en"]["MetaXLM, step 4"]["scores"] == results.languages["en"]["scores"]
    assert table["transfer gap"]["MetaXLM, step 4"]["mean"] == pytest.approx(results.transfer_gap)
    assert "| run | mean of others | en | transfer gap |" in (out / "curves.md").read_text(encoding="utf-8")
    with (out / "curves.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 3 and {row["step"] for row in rows} == {"4", "20"}
    assert (out / "curves.png").is_file()
    assert not (out / "XLM/xlm/step-4/seed-1/model").exists(), "models are kept on demand"

    del executed[:]
    (out / "XLM/xlm/step-20/results.json").unlink()  # as if killed in its seed
    shutil.rmtree(out / "XLM/xlm/step-20/seed-1")
    grid(*asked)
    assert executed == ["xlm/step-20"]
    shutil.copytree(xlm / "model", xlm / "checkpoints" / "step-40" / "model")
    grid(*asked, "--steps", "4")
    assert len(executed) == 1, "step 40 was not asked for"
    assert content(out / "curves.json")["table"][""]["en"]["XLM, step 4"] == table["en"]["XLM, step 4"]


@pytest.mark.slow
def test_seeds_of_pretraining_are_pooled_at_the_steps_that_all_have(grid, pretrained, change_weights, tmp_path):
    first, second = pretrained("xlm-1", (2, 4, 6)), pretrained("xlm-2", (4, 6, 8))
    change_weights(second / "checkpoints" / "step-4" / "model")
    grid("step_curves", "--run", "XLM", str(first), str(second), "--steps", "4", "seeds=[3]", "train.0.config=en")
    table = content(tmp_path / "out" / "curves.json")["table"][""]
    found = [read_results(tmp_path / "out" / "XLM" / name / "step-4") for name in ("xlm-1", "xlm-2")]
    assert [results["seeds"] for results in found] == [[3], [3]]
    assert table["en"]["XLM, step 4"]["scores"] == [s for r in found for s in r.languages["en"]["scores"]]


@pytest.mark.slow
def test_a_grid_of_ones_own_is_one_file(grid, tiny_model, tmp_path):
    path = tmp_path / "few.yaml"
    path.write_text(
        """
name: few
title: with few examples
axes:
- {name: run, given_by: model}
- {name: examples, values: [20, 40]}
set: ["train.0.config=en", "max_train_examples={examples}"]
run: "{run}, {examples} examples"
folder: "{run}/{examples}"
table: {corner: examples, rows: "{examples}", columns: run}
plot: {kind: lines, lines: run, x: examples}
"""
    )
    grid(str(path), "--model", f"A={tiny_model}", "--model", f"B={tiny_model}")
    found = content(tmp_path / "out" / "few.json")
    assert {name: list(rows) for name, rows in found["table"][""].items()} == {"A": ["20", "40"], "B": ["20", "40"]}
    assert {row["examples"] for row in found["scores"]} == {20, 40} and not found["differing"]
    for examples in (20, 40):
        assert read_results(tmp_path / "out" / "A" / str(examples))["protocol"]["training_rows"] == examples
    assert (tmp_path / "out" / "few.png").is_file()


def test_the_cells_of_a_table():
    def job(**keys):
        found = object.__new__(RecipeJob)
        found.keys = keys
        return found

    def results(values, source):
        rows = [
            {"language": name, "seed": seed, "metric": "accuracy", "value": value}
            for name, of_seeds in values.items()
            for seed, value in enumerate(of_seeds)
        ]
        protocol = {"metric": {"name": "accuracy"}}
        return Results({"source_language": source, "seeds": [0, 1], "scores": rows, "protocol": protocol})

    values = {"en": (80.0, 70.0), "de": (60.0, 65.0), "fr": (40.0, 45.0)}
    jobs = [job(run="X", source="en"), job(run="X", source="en"), job(run="M", source="de")]
    of = [results(values, "en"), results({**values, "de": (0.0, 5.0)}, "en"), results(values, "de")]
    cells = cells_of(load_grid("transfer_matrix"), jobs, of)
    # gaps are taken seed by seed; runs of one cell are seeds of it
    assert cells["X"]["transfer gap"]["en"]["scores"] == [30.0, 15.0, 60.0, 45.0]
    assert cells["X"]["mean of others"]["en"]["scores"] == [50.0, 55.0, 20.0, 25.0]
    assert cells["M"]["fr"]["de"]["scores"] == [40.0, 45.0]
    jobs = [job(run="A", folder="a", step=2)]
    assert list(cells_of(load_grid("step_curves"), jobs, of[:1])[""]) == ["mean of others", "en", "transfer gap"]
    # what is scored without training has its average
    assert list(cells_of(load_grid("step_curves"), jobs, [results(values, None)])[""]) == ["average"]


def test_differences_are_to_the_first_model():
    def matrix(*means):
        found = iter(means)
        return {target: {source: summary([next(found)]) for source in "ab"} for target in ("a", "b", "transfer gap")}

    found = minus_first({"X": matrix(50, 40, 30, 60, 1, 1), "M": matrix(55, 39, 30, 61, 2, 2), "D": matrix(*[70] * 6)})
    assert list(found) == ["M - X", "D - X"] and list(found["M - X"]) == ["a", "b"]
    assert [entry["mean"] for rows in found["M - X"].values() for entry in rows.values()] == [5, -1, 0, 1]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["de", "en"], {"de": 60.0, "en": 80.0}),
        (["en", "de", "fr"], {"en": 80.0, "de": 60.0, "fr": 10.0, "average": 50.0}),
    ],
)
def test_the_published_average_stands_beside_the_same_rows_alone(rows, expected):
    printed = Published(paper="P", table="T", row="R", languages={"en": 80.0, "de": 60.0, "fr": 10.0}, average=50.0)
    cells = {"": {"XLM": {row: summary([1.0]) for row in [*rows, "average"]}}}
    assert published_column(load_grid("supervised"), printed, cells)[1] == expected
    assert published_column(load_grid("supervised"), None, cells) == ({}, {})


def test_tables_are_read_in_the_source_language_alone():
    tables = (
        "train=[{path: a/en}, {path: 'a/{language}', languages: [nl, es]}, {path: all, language_column: language}]",
        "evaluation=[{path: b/en, languages: [en]}, {path: 'b/{language}', languages: [nl, es, de]}, "
        "{path: all, language_column: language, split: dev}]",
    )

    def recipe():
        return load_recipe(Recipe, None, ["model=m", "output_dir=o", "task=t", "training.learning_rate=1e-3", *tables])

    for source, expected in (
        ("en", [("a/en", []), ("all", ["en"])]),
        ("es", [("a/{language}", ["es"]), ("all", ["es"])]),
        ("ja", [("all", ["ja"])]),
    ):
        changed = recipe()
        train_in(changed, source)
        assert [(table.path, table.languages) for table in changed.train] == expected
        assert changed.source_language == source
    changed = recipe()
    evaluate_in(changed, ["ja", "es", "en"])
    assert [(table.path, table.languages) for table in changed.evaluation] == [
        ("b/en", ["en"]), ("b/{language}", ["es"]), ("all", ["ja"]),
    ]  # fmt: skip
    changed = recipe()
    changed.train = changed.train[:2]
    with pytest.raises(ValueError, match="No training table of the recipe has rows in ja"):
        train_in(changed, "ja")
    changed.evaluation = changed.evaluation[:2]
    with pytest.raises(ValueError, match="The recipe evaluates no ja"):
        evaluate_in(changed, ["en", "ja"])


def test_two_commands_do_not_share_an_output(refusal, tiny_model, tmp_path):
    asked = ("transfer_matrix", "--model", f"XLM={tiny_model}", "--languages", "zh", "en")
    with run_lock(tmp_path / "out"):
        assert "in use" in refusal(*asked)
    with run_lock(tmp_path / "out" / "XLM" / "from-zh"):
        assert "XLM, from zh" in (message := refusal(*asked)) and "in use" in message


MATRIX = ("transfer_matrix", "--model", "XLM={model}", "--languages", "en", "de")
CURVES = ("step_curves", "--run", "XLM", "{run}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*MATRIX, "train.0.config=en"), "Write {language} into its path or config"),
        (("transfer_matrix", "--model", "XLM={model}", "--languages", "en", "it"), "evaluates no it"),
        ((*MATRIX, "setting=supervised"), "setting is supervised"),
        ((*MATRIX, "source_language=de"), "source_language differs between the runs"),
        ((*MATRIX, "published=null"), "published differs"),
        (("transfer_matrix", "--model", "XLM={model}", "--languages", "en", "en"), "--languages en is given twice"),
        ((*MATRIX, "kind=word_alignment"), "has no language to be trained in"),
        (("transfer_matrix", "--model", "{model}", "--languages", "en"), "is not of the form NAME=PATH"),
        ((*MATRIX, "--model", "XLM={model}"), "--model XLM is given twice"),
        ((*MATRIX, "--model", "MetaXLM={missing}"), "Model folder not found: {missing}"),
        ((*MATRIX, "training.epoch=3"), "training.epoch is not a field"),
        (("transfer_matrx", *MATRIX[1:]), "'transfer_matrix'"),
        ((*CURVES, "model=x"), "model differs between the runs"),
        ((*CURVES, "--steps", "3"), "no model of that step: [2, 4]"),
        ((*CURVES, "--steps", "2", "two"), "--steps has 'two'"),
        ((*CURVES, "--output", "{file}"), "is a file"),
        (("step_curves", "--run", "XLM"), "has no folder"),
        ((*CURVES, "--run", "XLM", "{run}"), "is given twice"),
        (("step_curves", "--run", "../XLM", "{run}"), "cannot name a folder"),
        ((*CURVES, "{run}"), "with the same name"),
        ((*CURVES, "{other}"), "no step in common"),
        (("step_curves", "--run", "XLM", "{missing}"), "no folder of a pre-training run"),
    ],
)
def test_what_makes_no_grid_is_refused_before_anything_runs(
    refusal, tiny_model, pretrained, tmp_path, arguments, message
):
    (tmp_path / "file").touch()
    places = {"model": tiny_model, "run": pretrained("xlm", (2, 4)), "other": pretrained("other", (3,))}
    places |= {"missing": tmp_path / "none", "file": tmp_path / "file"}

    def filled(text):
        return re.sub(r"\{(\w+)\}", lambda match: str(places.get(match[1], match[0])), text)

    assert filled(message) in refusal(*map(filled, arguments))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["--domains", "books", *(f"{part}.0.where={{}}" for part in ("train", "evaluation"))],
            "no table with {domain}",
        ),
        (["--domains", "music"], "'music' in column domain"),
        (["--domains", "books", "setting=zero_shot"], "setting differs"),
        (["--domains", "books", 'train.0.where={area: "{domain}"}'], "no column area"),
    ],
)
def test_domains_that_say_nothing_are_refused(reviews, tmp_path, capsys, changes, message):
    with pytest.raises(SystemExit):
        main(["supervised_domains", *reviews, "--languages", "en", "ja", *changes])
    assert message in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("axes: []", "has no axes"),
        ("axes: [{name: source}]", "source has no values"),
        ("train_in: sources", "'source'"),
        ("plot: {kind: lines, lines: run, x: stp}", "plot.x is stp"),
        ("plot: {kind: lines}", "needs plot.lines"),
    ],
)
def test_a_grid_that_names_no_axis_of_its_own_is_refused(tmp_path, change, message):
    path = tmp_path / "grid.yaml"
    path.write_text(f"extends: {GRIDS}/transfer_matrix.yaml\n{change}\n")
    with pytest.raises(ValueError, match=message):
        load_grid(str(path))


@pytest.mark.parametrize("field", ["run", "folder"])
def test_two_runs_do_not_share_a_name_or_a_folder(refusal, tiny_model, tmp_path, field):
    path = tmp_path / "grid.yaml"
    path.write_text(f"extends: {GRIDS}/transfer_matrix.yaml\n{field}: '{{run}}'\n")
    asked = (str(path), "--model", f"XLM={tiny_model}", "--languages", "en", "de")
    assert f"Two runs of the grid have {field}" in refusal(*asked) and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_finished_runs_of_something_else_are_refused(refusal, pretrained, executed, change_weights):
    run = pretrained("xlm", (2, 4))
    asked = ("step_curves", "--run", "XLM", str(run), "train.0.config=en", "max_length=20")
    # a run that fails in the middle keeps those before it
    (run / "checkpoints" / "step-4" / "model" / "tokenizer.json").unlink()
    error = refusal(*asked)
    assert "XLM, step 4" in error and "holds no tokenizer" in error and "Finished runs are kept" in error
    del executed[:]
    assert "another recipe: max_length: 20 -> 16" in refusal(*asked, "max_length=16")
    change_weights(run / "checkpoints" / "step-2" / "model")
    assert "weights of" in refusal(*asked) and not executed
