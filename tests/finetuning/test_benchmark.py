"""The table of a benchmark, from results.json files of which the scores are known."""

import json
import statistics

import pytest

from finetuning.experiments.benchmark import build, footnotes, score_table, screen_table
from finetuning.results.table import Results
from finetuning.tools.compare import main
from zoo_core.provenance import write_json

SUITE = {
    "name": "two tasks",
    "note": None,
    "published": [],
    "tasks": [
        {"name": "xnli", "category": "pairs", "recipe": "r", "overrides": [], "scores": [], "init_from": None},
        {"name": "xquad", "category": "qa", "recipe": "r", "overrides": [], "scores": ["f1", "exact_match"],
         "init_from": None},
    ],
}  # fmt: skip


def record(task, metrics, seeds=(1, 2), warnings=(), **protocol):
    """The results.json of a task; `metrics` are {name: {language: scores of the seeds}}."""
    table = {"path": "google/xtreme", "config": task, "split": "test", "fingerprint": "sha256:1"}
    name = next(iter(metrics))

    rows = [
        {"language": language, "seed": seed, "split": "test", "metric": metric, "value": value}
        for metric, of in metrics.items()
        for language, values in of.items()
        for seed, value in zip(seeds, values, strict=True)
    ]
    return Results({
        "format": 2, "model": {"folder": "runs/m/model", "fingerprint": "sha256:0"}, "task": task,
        "kind": "classification", "setting": "zero_shot", "source_language": "en", "seeds": list(seeds),
        "hyperparameters": {"updates": [5] * len(seeds)},
        "protocol": {
            "training_data": [table], "evaluation_data": [table], "evaluated_split": "test", "max_length": 128,
            "evaluated_rows": {"en": 10, "de": 10}, "fine_tuned_before": [],
            "selection": {"rule": "last", "data": None}, "metric": {"name": name, "version": "1"}, **protocol,
        },
        "scores": rows, "published": [], "warnings": list(warnings),
    })  # fmt: skip


XNLI = {"accuracy": {"en": [80.0, 82.0], "de": [70.0, 72.0]}}  # means 75 and 77
XQUAD = {"f1": {"en": [60.0, 70.0], "de": [40.0, 50.0]}, "exact_match": {"en": [50.0, 60.0], "de": [30.0, 40.0]}}


def folder_of(path, records):
    for one in records:
        (path / one["task"]).mkdir(parents=True)
        write_json(path / one["task"] / "results.json", one)
    write_json(path / "results.json", {"format": 2, "kind": "benchmark", "suite": SUITE})
    return str(path)


def test_scores_are_means_of_languages_and_the_average_is_over_tasks_seed_by_seed():
    records = {"xnli": record("xnli", XNLI), "xquad": record("xquad", XQUAD)}
    report = build({"m": SUITE}, {"m": records})
    run = report["runs"]["m"]
    assert run["tasks"]["xnli"]["score"]["scores"] == [75.0, 77.0]
    assert run["tasks"]["xquad"]["scores"]["f1"]["scores"] == [50.0, 60.0]
    assert run["tasks"]["xquad"]["score"]["scores"] == [45.0, 55.0], "the mean of F1 and exact match"
    assert run["average"]["scores"] == [60.0, 66.0] and run["average"]["sd"] == pytest.approx(
        statistics.stdev([60, 66])
    )
    header, (row,) = score_table(report)
    assert header == ["model", "xnli", "xquad", "avg. pairs", "avg. qa", "average"]
    assert row[1:3] == ["76.0 ± 1.4", "55.0 ± 7.1 / 45.0 ± 7.1"] and row[-1] == "63.0 ± 4.2"
    assert [line[0] for line in screen_table(report)[1]] == ["xnli", "xquad", "average"]


def test_seeds_that_are_not_the_same_have_no_deviation_of_the_average():
    few = {name: {lang: scores[:1] for lang, scores in of.items()} for name, of in XNLI.items()}
    report = build({"m": SUITE}, {"m": {"xnli": record("xnli", few, [3]), "xquad": record("xquad", XQUAD)}})
    assert report["runs"]["m"]["average"] == {"scores": [], "mean": 62.5, "sd": None}


def test_what_is_missing_at_chance_or_tuned_before_is_marked():
    warned = record("xnli", XNLI, warnings=["seed 2: accuracy is at chance in de 72.0"], fine_tuned_before=["panx"])
    _, (row,) = score_table(build({"m": SUITE}, {"m": {"xnli": warned}}))
    assert row[1] == "76.0 ± 1.4†‡" and row[2] == "" and row[-1].endswith("§")


def test_runs_stand_side_by_side_and_their_differences_are_named(tmp_path, capsys):
    one = folder_of(tmp_path / "one", [record("xnli", XNLI), record("xquad", XQUAD)])
    other = folder_of(tmp_path / "other", [record("xnli", XNLI, fine_tuned_before=["tatoeba"]), record("xquad", XQUAD)])
    out = tmp_path / "out"
    main(["--run", "XLM", one, "--run", "VECO", other, "--output", str(out)])
    page = (out / "benchmark.md").read_text(encoding="utf-8")
    assert "| XLM | 76.0 ± 1.4 |" in page and "| VECO | 76.0 ± 1.4‡ |" in page
    assert '- xnli: protocol.fine_tuned_before: XLM []; VECO ["tatoeba"]' in page
    assert (out / "benchmark.png").is_file()
    found = json.loads((out / "benchmark.json").read_text(encoding="utf-8"))
    assert found["runs"]["XLM"]["tasks"]["xnli"]["languages"] == {"en": 81.0, "de": 71.0}
    rows = (out / "benchmark.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + 2 * (4 + 8)  # languages and seeds of three metrics


def test_seeds_of_several_folders_are_pooled(tmp_path):
    def half(place, seed):
        cut = [{m: {k: [v[place]] for k, v in of.items()} for m, of in one.items()} for one in (XNLI, XQUAD)]
        return [record(name, of, [seed]) for name, of in zip(("xnli", "xquad"), cut, strict=True)]

    folders = [folder_of(tmp_path / str(seed), half(place, seed)) for place, seed in enumerate((1, 2))]
    main(["--run", "m", *folders, "--output", str(tmp_path / "out")])
    run = json.loads((tmp_path / "out" / "benchmark.json").read_text(encoding="utf-8"))["runs"]["m"]
    assert run["average"]["scores"] == [60.0, 66.0] and run["tasks"]["xnli"]["seeds"] == [1, 2]


def test_what_trains_nothing_has_the_seeds_of_its_folder(tmp_path):
    def half(seed, score, folder):
        cut = {"accuracy": {language: [score] for language in ("en", "de")}}
        raw = record("xquad", {"f1": {"en": [score]}, "exact_match": {"en": [score]}}, [1])
        raw["protocol"]["training_data"], raw["model"] = [], {"folder": "m", "fingerprint": folder}
        return [Results({**record("xnli", cut, [seed]), "model": raw["model"]}), raw]

    # one model: scored once; two pre-trained models: each with its seed
    for number, prints in enumerate((("sha256:0", "sha256:0"), ("sha256:0", "sha256:1"))):
        scores = (60.0, 60.0 + 10 * number)
        made = zip((1, 2), scores, prints, strict=True)
        folders = [folder_of(tmp_path / f"{number}{s}", half(s, score, print_)) for s, score, print_ in made]
        main(["--run", "m", *folders, "--output", str(tmp_path / "out")])
        run = json.loads((tmp_path / "out" / "benchmark.json").read_text(encoding="utf-8"))["runs"]["m"]
        assert run["tasks"]["xquad"]["seeds"] == ([1, 2] if number else [1])
        assert run["average"]["scores"] == list(scores)


def test_only_rows_of_tasks_stand_below_the_table():
    suite = {
        **SUITE,
        "published": [{"paper": "veco", "table": "Table 9", "row": "VECO_out large, cross-lingual transfer"}],
    }
    with pytest.raises(ValueError, match="has columns for languages"):
        build({"m": suite}, {"m": {"xnli": record("xnli", XNLI)}})
    suite["published"] = [{"paper": "xlm_align", "table": "Table 1", "row": "XLM-R base, zero-shot"}]
    _, rows = score_table(build({"m": suite}, {"m": {"xnli": record("xnli", XNLI)}}))
    assert rows[-1][1] and rows[-1][-1] == "66.4§", "an average over other tasks"


def test_published_figures_that_were_measured_otherwise_are_marked_in_their_row():
    names = {"udpos": [], "bucc": [], "tatoeba": ["source_to_target"]}
    tasks = [{**SUITE["tasks"][0], "name": name, "scores": scores} for name, scores in names.items()]
    rows = ["XLM-R large, cross-lingual transfer", "VECO_out large, cross-lingual transfer"]
    published = [{"paper": "veco", "table": "Table 2", "row": row} for row in rows]
    of_bucc = dict.fromkeys(["de-en", "fr-en", "ru-en", "zh-en"], [1.0, 2.0])
    records = {
        "udpos": record("udpos", XNLI, differs=["other tokens"]),
        "bucc": record("bucc", {"f1": of_bucc}, pooling="mean_with_special_tokens"),
        "tatoeba": record("tatoeba", {"source_to_target": {"de-en": [1.0, 2.0]}}, pooling="mean_with_special_tokens"),
    }
    runs = {"m": records}
    report = build({"m": {**SUITE, "tasks": tasks, "published": published}}, runs)
    table = score_table(report)
    _, own, quoted = table[1]
    assert quoted[1:4] == ["72.6≠", "66.0≠", "57.3≠"]
    assert own[2] == "85.0", "the authors took the mean: nothing differs, and the row is first"
    (how,) = (line for line in footnotes(table, report["published"]) if line.startswith("≠"))
    for part in ("udpos: other tokens, other languages", "bucc: pooling cls", "tatoeba: from English, other languages"):
        assert part in how


def test_averages_of_other_tasks_are_marked():
    suite = {**SUITE, "tasks": [{**task, "category": "pairs"} for task in SUITE["tasks"]]}
    _, (part, whole) = score_table(
        build(dict.fromkeys("ab", suite), {"a": {"xnli": record("xnli", XNLI)}, "b": {
            "xnli": record("xnli", XNLI), "xquad": record("xquad", XQUAD)}})
    )  # fmt: skip
    assert part[-2:] == ["76.0 ± 1.4§", "76.0 ± 1.4§"], "of the category, and of all"
    assert not any("§" in cell for cell in whole)


def test_what_all_runs_warn_of_is_said_once():
    def runs(*lines):
        return {"xnli": record("xnli", XNLI, warnings=lines), "xquad": record("xquad", XQUAD, warnings=lines)}

    report = build(dict.fromkeys("ab", SUITE), {"a": runs("few rows"), "b": runs("few rows", "cut")})
    assert report["warnings"] == ["few rows", "b, xnli, b, xquad: cut"]


def test_only_chance_is_marked_as_chance():
    warned = record("xnli", XNLI, warnings=["seed 1: de-en: the threshold takes the highest margin alone"])
    _, (row,) = score_table(build({"m": SUITE}, {"m": {"xnli": warned}}))
    assert row[1] == "76.0 ± 1.4"


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ({"max_length": 256}, "measured by different protocols: protocol.max_length"),
        ({"evaluated_rows": {"en": 9, "de": 10}}, "protocol.evaluated_rows"),
        ({"metric": {"name": "accuracy", "version": "2"}}, "protocol.metric.version"),
    ],
)
def test_scores_of_another_protocol_are_refused(tmp_path, capsys, protocol, message):
    one = folder_of(tmp_path / "one", [record("xnli", XNLI)])
    other = folder_of(tmp_path / "other", [record("xnli", XNLI, **protocol)])
    with pytest.raises(SystemExit):
        main(["--run", "a", one, "--run", "b", other, "--output", str(tmp_path / "out")])
    assert message in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "out").exists()


def test_folders_that_are_not_seeds_of_one_experiment_are_refused(tmp_path, capsys):
    one = folder_of(tmp_path / "one", [record("xnli", XNLI)])
    twice = folder_of(tmp_path / "twice", [record("xnli", XNLI)])
    tuned = folder_of(tmp_path / "tuned", [record("xnli", XNLI, [3, 4], selection={"rule": "mean_dev", "data": None})])
    (tmp_path / "single").mkdir()
    write_json(tmp_path / "single" / "results.json", record("xnli", XNLI))
    for folders, message in (
        ([one, twice], "seed 1 is in more than one"),
        ([one, tuned], "not trained and measured in the same way: protocol.selection.rule"),
        ([one, str(tmp_path / "single")], "holds no results of `finetuning/run.py --suite`"),
        ([], "has no folder"),
    ):
        with pytest.raises(SystemExit):
            main(["--run", "m", *folders, "--output", str(tmp_path / "out")])
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_score_that_the_results_do_not_have_is_refused():
    suite = {**SUITE, "tasks": [{**SUITE["tasks"][0], "scores": ["f1"]}]}
    with pytest.raises(ValueError, match="shows 'f1', and its results have accuracy"):
        build({"m": suite}, {"m": {"xnli": record("xnli", XNLI)}})
