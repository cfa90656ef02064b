"""Pre-training runs side by side."""

import csv
import json
import re

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


def test_the_table_is_of_the_last_step_that_all_seeds_share(runs, tmp_path):
    first = runs("xlm-1", {100: figures(5.0, 0.1), 200: figures(4.0, 0.2), 300: figures(3.5, 0.3)})
    second = runs("xlm-2", {100: figures(5.2, 0.1), 200: figures(4.25, 0.15)})
    other = runs("metaxlm", {200: figures(2.0), 300: figures(1.0)})
    output = tmp_path / "out"
    main(["--run", "XLM", first, second, "--run", "MetaXLM", other, "--output", str(output)])
    page = (output / "comparison.md").read_text(encoding="utf-8")
    cells = [re.findall(r"\d\.\d{3}", line) for line in page.splitlines() if line.startswith("|")]
    assert [row for row in cells if row] == [["4.000", "4.250", "2.000"], ["0.200", "0.150"]]  # of step 200
    with (output / "comparison.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3 * 2 + 2 * 2 + 2
    fields = {"run": "MetaXLM", "folder": other, "step": "300", "figure": "held_out/mlm/de", "value": "1.0"}
    assert rows[-1] == fields and (output / "comparison.png").exists()


def test_errors(runs, tmp_path, capsys):
    empty = runs("empty", {})
    for arguments, named in (
        (["--run", "a"], "--run a"),
        (["--run", "a", "x", "--run", "a", "y"], "--run a"),
        (["--run", "a", empty], empty),
        (["--run", "a", "runs/nowhere"], "runs/nowhere"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--output", str(tmp_path / "out")])
        assert stop.value.code == 2 and named in " ".join(capsys.readouterr().err.split())
