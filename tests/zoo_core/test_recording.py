"""Checkpoints are uploaded to a Hub on loopback during a run, and no failure there stops the run."""

import pytest

from zoo_core import recording
from zoo_core.recording import CheckpointUploads, check_recording

REPO = "owner/model"


@pytest.fixture
def said():
    return []


@pytest.fixture
def uploads(hub, said, tmp_path):
    check_recording(None, REPO)
    return CheckpointUploads(REPO, tmp_path, said.append)


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json", "training_args.bin"):
        (folder / name).write_text(f"content of {name}")
    return folder


def test_what_is_of_the_model_is_uploaded(uploads, checkpoint, hub, said):
    uploads.push(checkpoint, "step 3")
    for file in checkpoint.iterdir():  # older checkpoints are removed while they are uploaded
        file.unlink()
    uploads.wait()
    files = hub.files(REPO)
    assert set(files) == {".gitattributes", "config.json", "model.safetensors"}
    assert files["model.safetensors"] == b"content of model.safetensors"
    assert "step 3" in hub.titles(REPO)[-1] and not said


def test_a_failed_upload_is_said_in_a_line_and_the_next_one_works(uploads, checkpoint, hub, fault, said):
    fault("POST", "/commit/", 403)
    uploads.push(checkpoint, "step 3")
    uploads.wait()
    (line,) = said
    assert REPO in line and "step 3" in line and "\n" not in line and "config.json" not in hub.files(REPO)
    uploads.push(checkpoint.parent / "not_there", "step 4")
    assert len(said) == 2
    uploads.finish(checkpoint, "the model of step 5")
    assert "step 5" in hub.titles(REPO)[-1] and len(said) == 2


def test_while_one_is_under_way_others_are_left_out(uploads, checkpoint, hub, fault):
    fault("POST", "/preupload/", "hang")
    uploads.push(checkpoint, "step 3")
    uploads.push(checkpoint, "step 6")
    hub.stopped.set()  # ends what hangs
    uploads.wait()
    assert not any("step 6" in title for title in hub.titles(REPO))


def test_a_tracker_or_a_repository_that_cannot_be_is_refused(hub, monkeypatch):
    monkeypatch.setattr(recording, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install trackio"):
        check_recording("trackio", None)
    monkeypatch.setenv("HF_TOKEN", "reader")
    for repo in (REPO, "no id at all"):
        with pytest.raises(ValueError, match="push_to_hub"):
            check_recording(None, repo)
