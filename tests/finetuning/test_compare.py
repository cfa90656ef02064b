"""Runs side by side, from results.json files of which the scores are known."""

import csv
import json

import pytest

from finetuning.results.comparison import read_runs, score_table
from finetuning.results.table import read_results
from finetuning.tools.compare import main
from zoo_core.provenance import write_json

TABLE = {"path": "local/captions", "config": None, "split": "test", "fingerprint": "sha256:1"}


def translation(folder, seeds, scores, curve, processes=1, **hyperparameters):
    """The results.json of a translation run; `curve` of every seed is {step: BLEU}."""
    rows = [
        {"language": "en-de", "seed": seed, "split": "test", "metric": "sacrebleu", "value": score}
        for seed, score in zip(seeds, scores, strict=True)
    ]
    points = [{"step": step, "bleu": bleu, "loss": 1.0} for step, bleu in curve.items()]
    record = {
        "format": 2, "model": {"folder": f"{folder.name}/model"}, "task": "captions", "kind": "translation",
        "setting": "supervised", "seeds": seeds, "processes": [processes] * len(seeds),
        "hyperparameters": {"learning_rate": 1e-3, "updates": [200] * len(seeds), **hyperparameters},
        "protocol": {
            "training_data": [TABLE], "evaluation_data": [TABLE], "evaluated_split": "test", "max_length": 64,
            "selection": {"rule": "last", "data": None, "selected_steps": [200], "scores": [None]},
            "metric": {"name": "sacrebleu", "version": "1.0.0"},
        },
        "scores": rows, "warnings": [], "published": [],
        "curve": {str(seed): points for seed in seeds},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "results.json", record)
    return str(folder)


@pytest.fixture
def folders(tmp_path):
    return {
        "veco_1": translation(tmp_path / "veco_1", [1], [16.0], {100: 5.0, 200: 14.0}),
        "veco_2": translation(tmp_path / "veco_2", [2], [18.0], {100: 7.0, 200: 16.0, 300: 17.0}, processes=2),
        "xlm": translation(tmp_path / "xlm", [1, 2], [3.0, 5.0], {100: 1.0, 200: 4.0}, learning_rate=5e-4),
    }


def test_seeds_of_several_folders_are_one_run(folders, tmp_path, capsys, monkeypatch):
    from matplotlib.axes import Axes

    drawn, original = {}, Axes.plot

    def recording(axes, steps, means, label, **style):
        drawn[label] = (steps, means)
        return original(axes, steps, means, label=label, **style)

    monkeypatch.setattr(Axes, "plot", recording)
    out = tmp_path / "out"
    runs = ["--run", "VECO", folders["veco_1"], folders["veco_2"], "--run", "XLM", folders["xlm"]]
    main([*runs, "--output", str(out)])
    page = (out / "comparison.md").read_text(encoding="utf-8")
    assert "| VECO | 17.0 ± 1.4 | 1, 2 |" in page and "| XLM | 4.0 ± 1.4 | 1, 2 |" in page
    assert "- hyperparameters.learning_rate: VECO 0.001; XLM 0.0005" in page
    assert "- processes: VECO [1, 2]; XLM [1]" in page, "seeds of one run may have different numbers"
    assert "protocol" not in page, "what is the same is not named"
    # only the steps that all seeds have
    assert drawn == {"VECO": ([100, 200], [6.0, 15.0]), "XLM": ([100, 200], [1.0, 4.0])}
    with (out / "comparison.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["run"], row["seed"], row["value"]) for row in rows] == [
        ("VECO", "1", "16.0"), ("VECO", "2", "18.0"), ("XLM", "1", "3.0"), ("XLM", "2", "5.0")
    ]  # fmt: skip
    assert "differs: model" in capsys.readouterr().out


def test_classification_runs_show_languages_and_their_average(tmp_path, topics_run, capsys):
    found = read_results(topics_run[0])
    other = {**found, "hyperparameters": {**found["hyperparameters"], "learning_rate": 1e-3}}
    other["protocol"] = {**found["protocol"], "selection": {**found["protocol"]["selection"], "selected_steps": [1, 2]}}
    (tmp_path / "slow").mkdir()
    write_json(tmp_path / "slow" / "results.json", other)
    folders = {"slow": str(tmp_path / "slow"), "fast": str(topics_run[0])}
    columns, rows = score_table(read_runs({name: [folder] for name, folder in folders.items()}))
    assert columns == ["run", "en", "de", "zh", "average", "seeds"]
    means = [found.languages[language]["mean"] for language in ("en", "de", "zh")]
    for row in rows:
        assert [float(cell.split()[0]) for cell in row[1:5]] == pytest.approx([*means, found.average["mean"]], abs=0.05)
        assert row[5] == "1, 2"
    main(["--run", "slow", folders["slow"], "--run", "fast", folders["fast"], "--output", str(tmp_path / "out")])
    out = capsys.readouterr().out
    assert "differs: hyperparameters.learning_rate: slow 0.001; fast 0.01" in out
    assert out.count("differs:") == 1, "outcomes such as the selected step are no difference"


def test_what_cannot_stand_in_one_table_is_refused(folders, tmp_path, capsys):
    def message(*arguments):
        with pytest.raises(SystemExit):
            main([*arguments, "--output", str(tmp_path / "out")])
        return " ".join(capsys.readouterr().err.split())

    xlm = folders["xlm"]
    assert "seed 1 is in more than one" in message("--run", "XLM", xlm, folders["veco_1"])
    assert "is given twice" in message("--run", "XLM", xlm, "--run", "XLM", xlm)
    assert "has no folder" in message("--run", "XLM")
    assert "has no results.json" in message("--run", "XLM", str(tmp_path))
    other = tmp_path / "other"
    record = json.loads((tmp_path / "xlm" / "results.json").read_text(encoding="utf-8"))
    for change, expected in (
        ({"task": "news"}, "has task news, XLM has captions"),
        ({"scores": [{**row, "language": "en-fr"} for row in record["scores"]]}, "has languages ['en-fr']"),
        ({"kind": "parsing"}, "has kind parsing"),
    ):
        other.mkdir(exist_ok=True)
        write_json(other / "results.json", {**record, **change})
        assert expected in message("--run", "XLM", xlm, "--run", "other", str(other))
    assert not (tmp_path / "out").exists()
