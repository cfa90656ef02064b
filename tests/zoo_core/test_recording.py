"""Checkpoints are uploaded to a Hub on loopback during a run, and no failure there stops the run."""

import pytest

from zoo_core import recording
from zoo_core.recording import CheckpointUploads, check_recording

REPO = "owner/model"


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json", "training_args.bin"):
        (folder / name).write_text(f"content of {name}")
    return folder


def test_uploads_push_the_model_alone_and_report_failures(checkpoint, hub, monkeypatch):
    check_recording(None, REPO)
    said = []
    uploads = CheckpointUploads(REPO, said.append)
    monkeypatch.setenv("HF_TOKEN", "nonsense")
    uploads.push(checkpoint, "step 3")
    monkeypatch.setenv("HF_TOKEN", "writer")
    assert len(said) == 1 and REPO in said[0] and "step 3" in said[0]
    assert "config.json" not in hub.files(REPO)
    uploads.push(checkpoint, "step 4")
    files = hub.files(REPO)
    assert set(files) == {".gitattributes", "config.json", "model.safetensors"}
    assert files["model.safetensors"] == b"content of model.safetensors"
    assert "step 4" in hub.titles(REPO)[-1] and len(said) == 1


def test_check_recording_refuses_a_tracker_or_a_repository_that_cannot_be(hub, monkeypatch):
    monkeypatch.setattr(recording, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install trackio"):
        check_recording("trackio", None)
    monkeypatch.setenv("HF_TOKEN", "nonsense")
    for repo in (REPO, "no id at all"):
        with pytest.raises(ValueError, match="push_to_hub"):
            check_recording(None, repo)
