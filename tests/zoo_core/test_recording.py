"""Checkpoints are uploaded to a Hub on loopback during a run, and no failure there stops the run."""

import pytest

from crosslingual_zoo.zoo_core.recording import CheckpointUploads, check_recording

REPO = "owner/model"


@pytest.fixture
def checkpoint(tmp_path):
    """The folder of a checkpoint: a model, and the state of its training."""
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json", "training_args.bin"):
        (folder / name).write_text(f"content of {name}")
    return folder


def test_uploads_push_the_model_alone_and_report_failures(checkpoint, hub, monkeypatch):
    check_recording(None, REPO)
    messages = []
    uploads = CheckpointUploads(REPO, messages.append)
    monkeypatch.setenv("HF_TOKEN", "nonsense")
    uploads.push(checkpoint, "step 3")
    [message] = messages
    assert REPO in message
    assert "step 3" in message
    assert "config.json" not in hub.files(REPO)

    monkeypatch.setenv("HF_TOKEN", "writer")
    uploads.push(checkpoint, "step 4")
    files = hub.files(REPO)
    assert set(files) == {".gitattributes", "config.json", "model.safetensors"}
    assert files["model.safetensors"] == b"content of model.safetensors"
    assert "step 4" in hub.titles(REPO)[-1]
    assert messages == [message]
