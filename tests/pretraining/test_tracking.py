"""Figures of a run: its curves, a tracker, and the model on the Hub."""

import json

import pytest
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pretraining.tracking import TITLES, plot_curves, read_events


def test_plot_curves(tmp_path, monkeypatch):
    evaluated = {"held_out/mlm/de": 5.0, "unigram_entropy/mlm/de": 6.0, "held_out/tlm/en-de": 4.0}
    evaluated |= {"link_aer/en-de": 50.0}
    trained = {"loss": 7.0, "loss/mlm/de": 7.0, "learning_rate": 1e-3}
    events = enumerate((trained, evaluated, trained, evaluated), start=1)
    lines = [json.dumps({"step": step, "phase": "a", **event}) + "\n" for step, event in events]
    (tmp_path / "events.jsonl").write_text("".join(lines) + '{"step": 9, "loss/m', encoding="utf-8")
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: figures.append(self) or save(self, *a, **k))
    plot_curves(tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    axes = [axes for axes in figures[0].axes if axes.get_visible()]
    panels = {of.get_title(): [list(line.get_ydata()) for line in of.lines if len(line.get_xdata())] for of in axes}
    assert list(panels) == ["mlm loss (nats)", "tlm loss (nats)", TITLES["link_aer"], "learning rate"]
    assert panels["mlm loss (nats)"] == [[7.0, 7.0], [5.0, 5.0], [6.0, 6.0]]
    assert panels[TITLES["link_aer"]] == [[50.0, 50.0]]


def test_run_report_gives_the_tracker_figures_and_the_hub_the_model(train, hub, tmp_path):
    evaluation = "evaluation={held_out_fraction: 0.1, max_examples: 8}"
    train("tracker=tensorboard", "push_to_hub=owner/model", "save_every_steps=2", evaluation)
    written = tmp_path / "run"
    tracked = EventAccumulator(str(written / "tensorboard"))
    tracked.Reload()
    events = read_events(written)
    assert (written / "curves.png").exists()
    names = {"loss", "loss/mlm/de", "held_out/tlm/en-de", "unigram_entropy/mlm/en", "tokens_per_second"}
    assert names <= set(tracked.Tags()["scalars"])
    for name in tracked.Tags()["scalars"]:
        expected = {event["step"]: event[name] for event in events if event.get(name) is not None}
        found = {scalar.step: scalar.value for scalar in tracked.Scalars(name)}
        assert found == pytest.approx(expected, rel=1e-6)

    model = {path.name: path.read_bytes() for path in (written / "model").iterdir()}
    files = hub.files("owner/model")
    files.pop(".gitattributes")
    assert files == model
    assert "step 2" in hub.titles("owner/model")[1]
