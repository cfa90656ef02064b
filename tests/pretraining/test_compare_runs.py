"""Pre-training runs side by side."""

import csv
import json

import pytest

from pretraining.tools.compare import main


@pytest.fixture
def runs(tmp_path):
    """Writes a run folder whose evaluations are {step: {figure: value}}; returns its path."""

    def make(name, evaluations):
        folder = tmp_path / name
        folder.mkdir()
        events = [{"step": 1, "loss": 9.0}]
        events += [{"step": step, "phase": "a", **figures} for step, figures in evaluations.items()]
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
        return str(folder)

    return make


def figures(loss, right=None):
    found = {"held_out/mlm/de": loss, "unigram_entropy/mlm/de": 6.0, "retrieval_by_layer/en-de/ntrex": [0.1, 0.2]}
    return found if right is None else found | {"retrieval/en-de/ntrex": right}


def test_the_table_is_of_the_last_step_that_all_seeds_share(runs, tmp_path, capsys):
    first = runs("xlm-1", {100: figures(5.0, 0.1), 200: figures(4.0, 0.2), 300: figures(3.5, 0.3)})
    second = runs("xlm-2", {100: figures(5.2, 0.1), 200: figures(4.25, 0.15)})
    other = runs("metaxlm", {200: figures(2.0), 300: figures(1.0)})
    output = tmp_path / "out"
    main(["--run", "XLM", first, second, "--run", "MetaXLM", other, "--output", str(output)])
    page = (output / "comparison.md").read_text(encoding="utf-8")
    assert page in capsys.readouterr().out
    assert "After 200 steps" in page
    assert "| held-out loss (nats), mlm de | 4.000, 4.250 | 2.000 |" in page
    assert "| retrieval accuracy, en-de/ntrex | 0.200, 0.150 |  |" in page
    assert "unigram" not in page and "by_layer" not in page
    with (output / "comparison.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 2 + 2 * 2 + 2
    assert rows[-1] == {
        "run": "MetaXLM",
        "folder": other,
        "step": "300",
        "figure": "held_out/mlm/de",
        "value": "1.0",
    }
    assert (output / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_runs_without_a_common_step_show_the_last_of_each(runs, tmp_path, capsys):
    arguments = ["--run", "a", runs("a", {100: figures(5.0)}), "--run", "b", runs("b", {150: figures(4.0)})]
    main([*arguments, "--output", str(tmp_path / "out")])
    page = capsys.readouterr().out
    assert "no step at which all of them were evaluated. The last of each: a 100, b 150." in page
    assert "| held-out loss (nats), mlm de | 5.000 | 4.000 |" in page and "tokenizers" not in page
    assert (tmp_path / "out" / "comparison.png").exists()


def test_losses_of_other_tokens_are_marked(runs, tmp_path, capsys):
    folders = [runs(name, {100: figures(5.0)}) for name in ("a", "b")]
    for number, folder in enumerate(folders):
        (tmp_path / folder / "run.json").write_text(json.dumps({"tokenizer_fingerprint": f"f{number}"}))
    main(["--run", "first", folders[0], "--run", "second", folders[1], "--output", str(tmp_path / "out")])
    assert "tokenizers of their own (first; second): losses a token" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--run", "a"], "--run a names no folder"),
        (["--run", "a", "x", "--run", "a", "y"], "--run a names no folder, or is given twice"),
        (["--run", "a", "EMPTY"], "holds no evaluations of a pre-training run"),
        (["--run", "a", "runs/nowhere"], "holds no evaluations of a pre-training run"),
    ],
)
def test_errors(runs, tmp_path, capsys, arguments, message):
    empty = runs("empty", {})
    arguments = [argument.replace("EMPTY", empty) for argument in arguments]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--output", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
