"""A suite: its runs, their order and overrides, resuming, and tasks that are left out."""

import re

import pytest

from crosslingual_zoo.finetuning.results import load_results
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.suite import SUITES, load_suite, read_recipes
from crosslingual_zoo.finetuning.tasks.vectors.recipe import expanded
from crosslingual_zoo.zoo_core.provenance import write_json
from crosslingual_zoo.zoo_core.run_folders import run_lock

FAST = ("training.max_steps=1", "training.batch_size=8", "max_evaluation_examples=9", "selection=last", "max_length=24")


@pytest.fixture
def suite(sample_corpus_dir, tiny_model, tmp_path):
    """suite(*arguments) runs a suite of two topic classifiers, the second from the first one's model, and retrieval."""
    corpus = str(sample_corpus_dir)
    topics = {"path": corpus, "label_column": "topic"}
    pairs = {"path": corpus, "config": "{language}", "source_column": "text", "target_column": "text"}
    pairs |= {"source_language": "{language}", "target_language": "en", "languages": ["de", "fr"]}
    pairs |= {"target": {"path": corpus, "config": "en"}, "join_on": "id"}
    recipes = {
        "topics": {
            "train": [{**topics, "config": "en"}],
            "evaluation": [{**topics, "config": "{language}", "languages": ["en", "de"]}],
            "training": {"learning_rate": 1e-2},
        },
        "retrieval": {"kind": "retrieval", "pairs": [pairs]},
    }
    for name, recipe in recipes.items():
        write_json(tmp_path / f"{name}.yaml", {"task": name, "output_dir": "unused", **recipe})
    tasks = [
        {"name": "topics", "recipe": "topics.yaml"},
        {"name": "further", "recipe": "topics.yaml", "init_from": "topics", "overrides": ["seeds=[1]"]},
        {"name": "retrieval", "recipe": "retrieval.yaml", "scores": ["source_to_target"]},
    ]
    path = tmp_path / "suite.yaml"
    write_json(path, {"name": "two kinds", "tasks": tasks})

    def run(*arguments):
        main(["--suite", str(path), f"model={tiny_model}", f"output_dir={tmp_path / 'out'}", *FAST, *arguments])

    return run


def results(tmp_path, task=""):
    return load_results(tmp_path / "out" / task / "results.json")


@pytest.fixture
def failed(suite, refused):
    """failed(*arguments) -> the error message of a suite."""

    def message(*arguments):
        error = refused(arguments, lambda flags: suite(*flags))
        return " ".join(error.split())

    return message


@pytest.mark.slow
def test_suite_in_parts_repeats_nothing_and_makes_one_table(suite, failed, tmp_path):
    batch = "topics.training.batch_size=4"
    suite("--tasks", "topics", batch)
    scores = tmp_path / "out" / "topics" / "seed-1" / "scores.json"
    before = scores.stat().st_mtime_ns

    suite(batch)
    assert scores.stat().st_mtime_ns == before
    topics = results(tmp_path, "topics")
    further = results(tmp_path, "further")
    assert topics["hyperparameters"]["batch_size"] == 4
    assert further["hyperparameters"]["batch_size"] == 8
    means = {"topics": topics.average["mean"], "further": further.average["mean"]}
    means["retrieval"] = results(tmp_path, "retrieval").of("average", "source_to_target")["mean"]
    means["average"] = sum(means.values()) / 3
    (column,) = results(tmp_path)["scores"].values()
    assert {name: entry["mean"] for name, entry in column.items()} == pytest.approx(means)
    # a chained run says what it started from
    assert further["model"]["init_from"]["task"] == "topics"
    assert further["model"]["init_from"]["seed"] == 1
    assert further["protocol"]["fine_tuned_before"] == ["topics (zero_shot)"]
    # only the model that another task starts from is kept
    assert (tmp_path / "out/topics/seed-1/model").is_dir()
    assert not (tmp_path / "out/further/seed-1/model").exists()

    assert "started with another recipe" in failed(batch, "training.learning_rate=1e-3")


@pytest.mark.slow
def test_suite_runs_the_others_after_a_failure_and_resumes(suite, failed, tmp_path):
    with run_lock(tmp_path / "out" / "topics"):
        error = failed()
    assert "topics failed:" in error
    assert "further failed:" in error
    assert error.endswith("only these again.")
    assert list(*results(tmp_path)["scores"].values()) == ["retrieval", "average"]
    suite()
    assert "further" in next(iter(results(tmp_path)["scores"].values()))


def test_suite_leaves_out_missing_languages_and_tasks(suite, failed, tmp_path):
    absent = "topics.evaluation.0.languages=[en, xx]"
    fast = ["skip_missing=true", "max_train_examples=8", absent]
    suite(*fast, "--resume", "further.train.0.config=yy", "retrieval.pairs.0.languages=[xx, de]")
    record = results(tmp_path)
    assert "topics: not found, and left out of evaluation: xx" in record["warnings"]
    assert "retrieval: not found, and left out of pairs: xx-en" in record["warnings"]
    assert list(record["failed"]) == ["further"]
    assert "train: en" in record["failed"]["further"]
    assert list(results(tmp_path, "topics").languages) == ["en"]
    assert list(results(tmp_path, "retrieval").languages) == ["de-en"]
    (tmp_path / "damaged.jsonl").write_text('{"text"\n')
    damaged = [f"further.train.0.path={tmp_path}/damaged.jsonl", "further.train.0.config=null"]
    assert "further failed: " in failed(*fast, *damaged, "--tasks", "topics,further")


def test_suite_checks_the_data_of_all_tasks(suite, failed, tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    damaged = ["topics.train.0.path=nowhere.csv", "topics.train.0.config=null"]
    damaged += [f"further.train.0.path={tmp_path}/empty.jsonl", "further.train.0.config=null"]
    error = failed("--check_data", *damaged)
    assert re.findall(r"(\w+) failed: ", error) == ["topics", "further"]
    assert "nowhere.csv" in error
    suite("--check_data")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["trainin.epochs=1"], "Did you mean 'training'"),
        (["--tasks", "topic"], "--tasks has 'topic'"),
        (["topics.output_dir=elsewhere"], "topics.output_dir"),
    ],
)
def test_suite_refuses_what_cannot_be_run(failed, tmp_path, arguments, named):
    assert named in failed(*arguments)
    assert not list((tmp_path / "out").glob("*/seed-*"))


def test_suite_refuses_a_folder_of_something_else(failed, tiny_model):
    before = sorted(tiny_model.iterdir())
    assert str(tiny_model) in failed(f"output_dir={tiny_model}")
    assert sorted(tiny_model.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in SUITES.glob("*.yaml")))
def test_load_suite_scores_retrieval_and_mining_as_the_papers(name):
    """XTREME's script searches Tatoeba with English and takes the mean of all states, and BUCC by <s>; VECO's authors
    mine BUCC, too, by the mean."""
    suite, path = load_suite(name)
    recipes = read_recipes(suite, path, ["model=m"], None)
    if name.startswith("ernie_m"):  # of one size
        rows = [item["row"] for recipe in recipes.values() for item in recipe.references]
        assert {" large" in row for row in rows} == {name.endswith("large")}
    for task in suite.tasks:
        recipe = recipes[task.name]
        if task.name == "tatoeba":
            assert (task.scores, recipe.pooling) == (["target_to_source"], "mean_with_special_tokens")
            assert {pair.name.rpartition("-")[2] for pair in expanded(recipe.pairs)} == {"en"}
        if task.name == "bucc":
            assert recipe.pooling == ("mean_with_special_tokens" if name.startswith("veco") else "cls")
        if task.name in ("udpos", "panx"):
            assert recipe.label_subword == "first"
        if task.name == "udpos" and not name.endswith("plug_in"):
            assert {table.differs for table in recipe.evaluation} == {"other tokens"}
