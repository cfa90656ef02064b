"""A suite: its runs, their order and overrides, resuming, and tasks that are left out."""

import json
import shutil

import pytest

from finetuning.experiments import suite as suite_module
from finetuning.experiments.missing_tables import skip_missing
from finetuning.experiments.suite import read_recipes
from finetuning.experiments.suite_recipe import SUITES, load_suite
from finetuning.results.table import load_results
from finetuning.run import main
from finetuning.tasks.features.task import reported_layer
from finetuning.tasks.registry import KINDS
from zoo_core.provenance import write_json
from zoo_core.recipes import load_recipe
from zoo_core.run_folders import run_lock

FAST = ("training.max_steps=1", "training.batch_size=8", "max_evaluation_examples=9", "selection=last", "max_length=24")


@pytest.fixture
def suite(sample_corpus_dir, tiny_model, tmp_path):
    """suite(*arguments) runs a suite of two topic classifiers, the second from the first one's model, and retrieval."""
    table = f"path: {sample_corpus_dir}, label_column: topic"
    (tmp_path / "topics.yaml").write_text(
        f"""
task: topics
output_dir: unused
train: [{{{table}, config: en}}]
evaluation: [{{{table}, config: "{{language}}", languages: [en, de]}}]
training: {{learning_rate: 1e-2}}
""",
        encoding="utf-8",
    )
    (tmp_path / "retrieval.yaml").write_text(
        f"""
kind: retrieval
task: retrieval
output_dir: unused
pairs:
- {{path: {sample_corpus_dir}, config: "{{language}}", source_column: text, source_language: "{{language}}",
   languages: [de, fr], target: {{path: {sample_corpus_dir}, config: en}}, target_column: text, target_language: en,
   join_on: id}}
""",
        encoding="utf-8",
    )
    path = tmp_path / "suite.yaml"
    path.write_text(
        """
name: two kinds
tasks:
- {name: further, category: classification, recipe: topics.yaml, init_from: topics, overrides: ["seeds=[1]"]}
- {name: topics, category: classification, recipe: topics.yaml}
- {name: retrieval, category: retrieval, recipe: retrieval.yaml, scores: [source_to_target]}
""",
        encoding="utf-8",
    )

    def run(*arguments):
        main(["--suite", str(path), f"model={tiny_model}", f"output_dir={tmp_path / 'out'}", *FAST, *arguments])

    return run


def results(tmp_path, task=""):
    return load_results(tmp_path / "out" / task / "results.json")


@pytest.fixture
def failed(suite, refused):
    """failed(*arguments) -> the error message of a suite."""
    return lambda *arguments: " ".join(refused(arguments, lambda given: suite(*given)).split())


def changed_copy(model, place):
    """A model folder whose weights are read as another model's."""
    other = shutil.copytree(model, place)
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    write_json(other / "config.json", {**config, "note": 1})
    return other


@pytest.mark.slow
def test_a_suite_is_run_in_parts_and_makes_one_table(suite, failed, tmp_path, tiny_model, capsys, refused):
    batch = "topics.training.batch_size=4"
    suite("--tasks", "topics", batch)
    scores = tmp_path / "out" / "topics" / "seed-1" / "scores.json"
    before = scores.stat().st_mtime_ns
    (run,) = results(tmp_path)["runs"].values()
    assert run["missing"] == ["further", "retrieval"]
    assert "§" in (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    other = changed_copy(tiny_model, tmp_path / "other")
    assert "were not run with the same model" in failed("--tasks", "retrieval", batch, f"model={other}")
    shutil.rmtree(tmp_path / "out" / "retrieval", ignore_errors=True)

    suite(batch)
    shown = capsys.readouterr().out
    assert shown.index("1 finished before") < shown.index("[1/2] further, to do") < shown.index("[2/2] retrieval")
    assert scores.stat().st_mtime_ns == before
    record = results(tmp_path)
    (run,) = record["runs"].values()
    assert list(run["tasks"]) == ["further", "topics", "retrieval"] and run["missing"] == []
    topics, further, retrieval = (results(tmp_path, name) for name in ("topics", "further", "retrieval"))
    assert (topics["hyperparameters"]["batch_size"], further["hyperparameters"]["batch_size"]) == (4, 8)
    means = [topics.average["mean"], further.average["mean"]]
    forward = [entry["mean"] for entry in [retrieval.of(pair, "source_to_target") for pair in retrieval.names]]
    assert run["categories"]["classification"]["mean"] == pytest.approx(sum(means) / 2)
    assert run["tasks"]["retrieval"]["score"]["mean"] == pytest.approx(sum(forward) / 2)
    assert run["average"]["mean"] == pytest.approx((sum(means) + sum(forward) / 2) / 3)
    # a chained run says what it started from, and its figure is marked
    assert further["model"]["init_from"]["task"] == "topics" and further["model"]["init_from"]["seed"] == 1
    assert further["model"]["fingerprint"] == topics["model"]["fingerprint"]
    assert further["protocol"]["fine_tuned_before"] == ["topics (zero_shot)"]
    assert run["tasks"]["further"]["marks"][-1] == "‡" and "‡" not in run["tasks"]["topics"]["marks"]
    # only the model that another task starts from is kept
    assert (tmp_path / "out/topics/seed-1/model").is_dir() and not (tmp_path / "out/further/seed-1/model").exists()
    page = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert "| model | further | topics | retrieval |" in page and "‡ the model was fine-tuned" in page
    rows = (tmp_path / "out" / "results.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + 2 + 2 + 6  # languages of two tasks, and two pairs with three scores of the reported layer

    assert "started with another recipe" in failed(batch, "training.learning_rate=1e-3")
    # `init_from` wants a finished run of the same model
    shared = ["--config", str(tmp_path / "topics.yaml"), *FAST, f"output_dir={tmp_path / 'chained'}"]
    start = f"init_from={tmp_path / 'out' / 'topics'}"
    assert "was fine-tuned from" in refused([*shared, f"model={other}", start])
    assert "there is no results.json" in refused([*shared, f"model={tiny_model}", "init_from=nothing"])
    # a model may be deleted once everything that starts from it is done
    shutil.rmtree(tmp_path / "out" / "topics" / "seed-1" / "model")
    suite(batch)
    assert "3 finished before, 0 to do" in capsys.readouterr().out
    assert "that run kept no models" in refused([*shared, f"model={tiny_model}", start])


@pytest.mark.slow
def test_a_task_that_fails_is_told_and_the_others_are_run(suite, failed, tmp_path):
    error = failed("topics.train.0.label_column=subject")
    assert "topics failed:" in error and "further failed: it needs topics" in error
    (run,) = results(tmp_path)["runs"].values()
    assert list(run["tasks"]) == ["retrieval"]


@pytest.mark.slow
def test_missing_languages_are_left_out_and_named(suite, sample_corpus_dir, tmp_path):
    absent = "topics.evaluation.0.languages=[en, xx]"
    suite("--skip_missing", absent, "further.train.0.config=yy", "retrieval.pairs.0.languages=[xx, de]")
    record = results(tmp_path)
    assert "topics: not there: xx" in record["warnings"]
    assert "¶" in next(iter(record["runs"].values()))["tasks"]["topics"]["marks"]
    assert record["left_out"] == {
        "topics": "not there: xx",
        "further": f"its training rows are not there: {sample_corpus_dir}, config yy",
        "retrieval": "not there: xx",
    }  # fmt: skip
    assert list(results(tmp_path, "topics").languages) == ["en"]
    assert list(results(tmp_path, "retrieval").languages) == ["de-en"]
    assert "not run: further: its training rows are not there" in (tmp_path / "out/results.md").read_text("utf-8")


def test_a_single_recipe_leaves_out_what_is_missing_and_says_it(topics, tmp_path, capsys, refused):
    here = [argument for argument in topics if not argument.startswith(("seeds", "selection", "evaluate_every"))]
    first = next(argument for argument in topics if argument.startswith("evaluation=")).replace("[en,", "[en, xx,")
    absent = f"{first.removesuffix(']')}, {{path: {tmp_path}/absent.jsonl, languages: [fr]}}]"
    arguments = [*here, *FAST, "training.epochs=1", absent, "--skip_missing"]
    main(arguments)
    assert "left out, not there: xx, fr" in capsys.readouterr().out
    found = results(tmp_path)
    assert list(found.languages) == ["en", "de", "zh"] and "left out, not there: xx, fr" in found["warnings"]
    main([*arguments, "--resume", "seeds=[1, 2]"])
    assert results(tmp_path)["seeds"] == [1, 2]
    message = refused([*arguments, "train.0.config=yy", f"output_dir={tmp_path / 'other'}"])
    assert "training rows are not there" in " ".join(message.split())


def test_missing_files_of_word_alignment_are_left_out_too(sample_corpus_dir):
    recipe_class = KINDS["word_alignment"].recipe_class
    files = {"de": "en-de", "zh": "zh-en", "fr": "en-fr"}
    pairs = ", ".join(
        f"{{source_language: {code}, target_language: en, path: {sample_corpus_dir}/alignments, source: {name}.txt, "
        f"gold: {name}.gold}}"
        for code, name in files.items()
    )
    recipe = load_recipe(recipe_class, None, ["model=m", "task=t", f"pairs=[{pairs}]"])
    assert skip_missing(recipe) == "not there: fr-en"
    assert [pair.name for pair in recipe.pairs] == ["de-en", "zh-en"] and "fr-en" in recipe.pairs[0].note


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trainin.epochs=1",), "no recipe of suite two kinds has a field trainin.epochs"),
        (("--tasks", "topics", "retrieval.layr=1"), "Task retrieval: override `layr=1`"),
        (("retrieval.model=other",), "model is the whole suite's"),
        (("further.init_from=elsewhere",), "init_from is the whole suite's"),
        (("topics.training.precision=fp16",), "this run is on a CPU"),
        (("retrieval.max_length=512",), "Set retrieval.max_length=64"),
        (("--tasks", "topic"), "--tasks has topic"),
        (("topics.training.epoch=1",), "training.epoch is not a field"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(failed, tmp_path, arguments, message):
    assert message in failed(*arguments)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(suite, failed, tmp_path, tiny_model, refused):
    before = sorted(path.name for path in tiny_model.iterdir())
    assert "holds something else" in failed(f"output_dir={tiny_model}")
    assert sorted(path.name for path in tiny_model.iterdir()) == before
    suite("--tasks", "retrieval", "published=null")
    path = tmp_path / "other.yaml"
    path.write_text("name: other\ntasks: [{name: b, category: c, recipe: retrieval.yaml}]", encoding="utf-8")
    message = refused(["--suite", str(path), f"model={tiny_model}", f"output_dir={tmp_path / 'out'}"])
    assert "holds the suite two kinds" in " ".join(message.split())


def test_a_folder_is_that_of_one_suite_at_a_time(failed, tmp_path):
    (tmp_path / "out").mkdir()
    with run_lock(tmp_path / "out"):
        assert "in use" in failed()
    (tmp_path / "out" / ".git").mkdir()
    assert "something else" in failed()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".git"]


@pytest.mark.slow
def test_a_task_that_another_run_works_at_fails_and_the_others_are_run(suite, failed, tmp_path):
    write_json(tmp_path / "out" / "suite.json", {"name": "two kinds", "tasks": ["further", "topics", "retrieval"]})
    with run_lock(tmp_path / "out" / "retrieval"):
        assert "retrieval failed" in (message := failed()) and "in use" in message
    assert (tmp_path / "out" / "further" / "results.json").exists()
    suite()
    assert (tmp_path / "out" / "retrieval" / "results.json").exists()


def test_data_are_checked_without_training(suite, tmp_path, capsys):
    suite("--check_data")
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("topics", "further", "retrieval")) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("arguments", "message"), [(["sample"], "model="), (["xtrem", "model=m"], "'xtreme'")])
def test_a_suite_without_a_model_and_one_that_is_not_there(refused, arguments, message):
    assert message in " ".join(refused(["--suite", *arguments]).split())


def test_a_chain_is_run_from_its_first_link(tmp_path, tiny_model):
    starts = {"a": "", "b": ", init_from: a", "c": ", init_from: b"}
    chain = [f"{{name: {name}, category: c, recipe: r.yaml{start}}}" for name, start in starts.items()]
    (tmp_path / "suite.yaml").write_text(f"name: chain\ntasks: [{', '.join(chain)}]", encoding="utf-8")
    (tmp_path / "r.yaml").write_text("task: t\noutput_dir: o\ntraining: {learning_rate: 1}", encoding="utf-8")
    suite, path = load_suite(str(tmp_path / "suite.yaml"))
    assert list(read_recipes(suite, path, [f"model={tiny_model}"], ["c"])) == ["a", "b", "c"]


@pytest.mark.slow
def test_seeds_that_are_added_to_a_source_are_noticed(suite, failed, tmp_path):
    only = ("--tasks", "topics", "further", "topics.seeds=[1,2]")
    suite(*only)
    record = results(tmp_path, "topics")
    record["protocol"]["selection"]["scores"] = [1.0, 9.0]
    write_json(tmp_path / "out" / "topics" / "results.json", record)
    shown = failed(*only)
    assert "further failed" in shown and "seeds were added" in shown


def test_what_has_no_language_to_score_by_is_refused(tmp_path, tiny_model):
    (tmp_path / "suite.yaml").write_text("name: s\ntasks: [{name: mt, category: c, recipe: r.yaml}]", encoding="utf-8")
    (tmp_path / "r.yaml").write_text("kind: translation", encoding="utf-8")
    suite, path = load_suite(str(tmp_path / "suite.yaml"))
    with pytest.raises(ValueError, match="Task mt of suite s"):
        read_recipes(suite, path, [f"model={tiny_model}"], ["mt"])


def test_tasks_that_start_from_each_other_are_refused(tmp_path):
    path = tmp_path / "suite.yaml"
    tasks = [f"{{name: {a}, category: c, recipe: r.yaml, init_from: {b}}}" for a, b in ("ab", "ba")]
    path.write_text(f"name: circle\ntasks: [{', '.join(tasks)}]", encoding="utf-8")
    with pytest.raises(ValueError, match="Task a of suite circle starts from 'b'"):
        load_suite(str(path))


@pytest.mark.parametrize(
    ("name", "size", "depth", "layer"), [("ernie_m", "base", 12, 6), ("ernie_m_large", "large", 24, 12)]
)
def test_ernie_ms_suites_are_of_one_size_each(name, size, depth, layer):
    """Tables 11 and 12, whose values differ for MLQA and PAWS-X; section 4.2: the middle layer."""
    suite, path = load_suite(name)
    recipes = suite_module.read_recipes(suite, path, ["model=m"], [task.name for task in suite.tasks])
    assert size in suite.name and list(recipes) == ["xnli", "conll", "mlqa", "pawsx", "tatoeba"]
    decays = {task: recipe.training.layerwise_decay for task, recipe in recipes.items() if task != "tatoeba"}
    of_two = {"base": 0.8, "large": 0.9}[size]
    assert decays == {"xnli": 0.8, "conll": 0.8, "mlqa": of_two, "pawsx": of_two}
    assert reported_layer(recipes["tatoeba"].layer, [], depth)[0] == layer
    for recipe in recipes.values():
        for item in recipe.published if isinstance(recipe.published, list) else filter(None, [recipe.published]):
            assert (" large" in item.row) == (size == "large")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in SUITES.glob("*.yaml")))
def test_shipped_suites_score_retrieval_and_mining_as_their_papers(name):
    """XTREME's script searches Tatoeba with English and takes the mean of all states, and BUCC by <s>; VECO's authors
    mine BUCC, too, by the mean."""
    suite, path = load_suite(name)
    recipes = suite_module.read_recipes(suite, path, ["model=m"], [task.name for task in suite.tasks])
    for task in suite.tasks:
        recipe = recipes[task.name]
        if task.name == "tatoeba":
            assert (task.scores, recipe.pooling) == (["target_to_source"], "mean_with_special_tokens")
            assert {pair.rpartition("-")[2] for pair in recipe.pair_names} == {"en"}
        if task.name == "bucc":
            assert recipe.pooling == ("mean_with_special_tokens" if name.startswith("veco") else "cls")
        if task.name in ("udpos", "panx"):
            assert recipe.label_subword == "first"
        if task.name == "udpos" and not name.endswith("plug_in"):
            assert {table.differs for table in recipe.evaluation} == {"other tokens"}
