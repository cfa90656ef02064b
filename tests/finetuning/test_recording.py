"""Uploads during training: scores to a tracker, checkpoints to the Hub."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from finetuning.run import main
from tests.finetuning.tasks import record_of

# huggingface_hub's way of sending a file over HTTP, which Xet has replaced, is deprecated in the HTTP library
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def test_run_is_recorded(topics, hub, tmp_path):
    main([*topics, "seeds=[1]", "tracker=tensorboard", "push_to_hub=owner/model"])
    seed = tmp_path / "out" / "seed-1"
    history = record_of(seed)["history"]
    (folder,) = (seed / "checkpoints" / "runs").iterdir()
    tracked = EventAccumulator(str(folder))
    tracked.Reload()
    for name in ("eval_loss", "eval_selection", "eval_en_accuracy"):
        found = {scalar.step: scalar.value for scalar in tracked.Scalars(name.replace("eval_", "eval/", 1))}
        assert found == pytest.approx({entry["step"]: entry[name] for entry in history if name in entry}, rel=1e-6)
        assert len(found) > 1

    files = hub.files("owner/model")
    files.pop(".gitattributes")
    assert files == {path.name: path.read_bytes() for path in (seed / "model").iterdir()}
    assert "step 2" in hub.titles("owner/model")[1]


def test_check_recording_refuses(topics, hub, capsys, tmp_path):
    for overrides in (["push_to_hub=owner/model"], ["push_to_hub=stranger/model", "seeds=[1]"]):
        with pytest.raises(SystemExit) as stop:
            main([*topics, *overrides])
        assert stop.value.code == 2 and "push_to_hub" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
