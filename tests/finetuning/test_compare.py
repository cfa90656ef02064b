"""Runs and suites side by side, from results.json files of which the scores are known."""

from crosslingual_zoo.finetuning.compare import main
from crosslingual_zoo.finetuning.page import references_of, warnings_of
from crosslingual_zoo.finetuning.results import Results
from crosslingual_zoo.finetuning.suite import Suite, published_of, scores_of
from crosslingual_zoo.zoo_core.provenance import write_json
from crosslingual_zoo.zoo_core.recipes import load_recipe

TABLE = {"path": "local/captions", "config": None, "split": "test", "fingerprint": "sha256:1", "languages": ["en"]}
TASKS = [{"name": "xnli", "recipe": "r"}, {"name": "xquad", "recipe": "r", "scores": ["f1", "exact_match"]}]
XNLI = {"accuracy": {"en": [80.0, 82.0], "de": [70.0, 72.0]}}  # means 75 and 77
XQUAD = {"f1": {"en": [60.0, 70.0], "de": [40.0, 50.0]}, "exact_match": {"en": [50.0, 60.0], "de": [30.0, 40.0]}}


def made_up(task, metrics, seeds=(1, 2), warnings=(), **changes):
    """Results of a task; `metrics` are {name: {language: scores of the seeds}}, `changes` are of the protocol."""
    rows = [
        {"language": language, "seed": seed, "split": "test", "metric": metric, "value": value}
        for metric, by_language in metrics.items()
        for language, values in by_language.items()
        for seed, value in zip(seeds, values, strict=True)
    ]
    return Results({
        "format": 3, "model": {"folder": "runs/m/model", "fingerprint": "sha256:0"}, "task": task,
        "kind": "classification", "setting": "zero_shot", "source_language": "en", "seeds": list(seeds),
        "hyperparameters": {"learning_rate": 1e-3, "updates": [5] * len(seeds)},
        "protocol": {
            "training_data": [TABLE], "evaluation_data": [TABLE], "evaluated_split": "test", "max_length": 128,
            "evaluated_rows": dict.fromkeys(metrics[next(iter(metrics))], 1000), "fine_tuned_before": [],
            "selection": {"rule": "last", "data": None, "selected_steps": [5] * len(seeds)},
            "metric": {"name": next(iter(metrics)), "module": "m", "version": "1", "unit": "percent"}, **changes,
        },
        "scores": rows, "published": [], "curves": {}, "notes": [], "warnings": list(warnings),
    })  # fmt: skip


def suite_of(tasks=TASKS, **more):
    return load_recipe(Suite, {"name": "two tasks", "tasks": tasks, **more}, [])


def run_of(path, results):
    """The folder of a run with these results."""
    path.mkdir(parents=True)
    write_json(path / "results.json", results)
    return str(path)


def folder_of(path, *tasks):
    """The folder of a suite with these results."""
    for results in tasks:
        run_of(path / results["task"], results)
    scores = {"m": scores_of(suite_of(), {results["task"]: results for results in tasks})}
    write_json(path / "results.json", {"format": 3, "suite": {"name": "two", "tasks": TASKS}, "scores": scores})
    return str(path)


def test_scores_of_are_means_of_languages_metrics_and_tasks_seed_by_seed():
    xnli = made_up("xnli", XNLI)
    xquad = made_up("xquad", XQUAD)
    scores = scores_of(suite_of(), {"xnli": xnli, "xquad": xquad})
    assert scores["xnli"]["scores"] == [75.0, 77.0]
    assert scores["xquad"] == {"scores": [45.0, 55.0], "mean": 50.0, "sd": 50**0.5}
    assert scores["average"]["scores"] == [60.0, 66.0]
    assert list(scores_of(suite_of(), {"xnli": xnli})) == ["xnli", "average"]
    untrained = made_up("xquad", XQUAD, seeds=[3, 4], training_data=None)  # counts with its mean for every seed
    assert scores_of(suite_of(), {"xnli": xnli, "xquad": untrained})["average"]["scores"] == [62.5, 63.5]


def test_published_of_shows_rows_over_the_same_languages_and_what_they_measure_otherwise():
    row = {"paper": "veco", "table": "Table 2", "row": "XLM-R large, cross-lingual transfer"}
    suite = suite_of([{**TASKS[0], "name": name} for name in ("udpos", "bucc")], published=[row])
    pairs = dict.fromkeys(["de-en", "fr-en", "ru-en", "zh-en"], [1.0, 2.0])
    udpos = made_up("udpos", XNLI)
    bucc = made_up("bucc", {"f1": pairs}, differs=["part of the pools"], pooling="mean")
    (column,) = published_of(suite, {"udpos": udpos, "bucc": bucc}).values()
    assert column == {"bucc": "66.0"}
    assert not warnings_of(udpos, references_of(udpos))
    assert warnings_of(bucc, references_of(bucc))[0].endswith("part of the pools, pooling cls")


def test_compare_of_suites_where_they_were_measured_alike(tmp_path):
    suite = folder_of(tmp_path / "one", made_up("xnli", XNLI), made_up("xquad", XQUAD))
    other = folder_of(tmp_path / "other", made_up("xnli", XNLI, fine_tuned_before=["tatoeba"]))
    out = tmp_path / "out"
    main(["--run", "XLM", suite, "--run", "VECO", other, "--output", str(out)])
    page = (out / "comparison.md").read_text(encoding="utf-8")
    assert "| xnli | 76.0 ± 1.4 | 76.0 ± 1.4 |" in page
    assert "| xquad | 50.0 ± 7.1 |  |" in page
    assert "- xquad is missing in VECO" in page
    assert (out / "comparison.png").is_file()


def test_compare_of_tasks_lists_differences(tmp_path, refused):
    slow = made_up("xnli", XNLI)
    slow["hyperparameters"]["learning_rate"] = 5e-4
    fast = made_up("xnli", {"accuracy": {"en": [16.0, 18.0], "de": [70.0, 70.0]}})
    out = tmp_path / "out"
    command = ["--output", str(out), "--run", "A", run_of(tmp_path / "a", fast), "--run", "B"]
    main([*command, run_of(tmp_path / "b", slow)])
    page = (out / "comparison.md").read_text(encoding="utf-8")
    assert "| en | 17.0 ± 1.4 | 81.0 ± 1.4 |" in page
    assert "- hyperparameters.learning_rate: A 0.001; B 0.0005" in page
    assert len((out / "comparison.csv").read_text(encoding="utf-8").splitlines()) == 9  # a row a score
    assert "news" in refused([*command, run_of(tmp_path / "news", made_up("news", XNLI))], main)
