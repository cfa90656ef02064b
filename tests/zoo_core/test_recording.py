"""Checkpoints are uploaded to a Hub on loopback during a run, and no failure there stops the run."""

import pytest

from crosslingual_zoo.zoo_core.recording import CheckpointUploads, check_recording

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
