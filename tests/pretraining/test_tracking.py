"""Figures of a run: its curves, a tracker, and the model on the Hub."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from crosslingual_zoo.pretraining.tracking import read_events


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
        scalars = {scalar.step: scalar.value for scalar in tracked.Scalars(name)}
        assert scalars == pytest.approx(expected, rel=1e-6)

    model = {path.name: path.read_bytes() for path in (written / "model").iterdir()}
    files = hub.files("owner/model")
    files.pop(".gitattributes")
    assert files == model
    assert "step 2" in hub.titles("owner/model")[1]
