"""Pushes to a Hub on loopback: what is sent, what is not, and what is refused.

The check of the folder is the real one, except that it is not loaded in a new process, which test_folder_check.py and
test_from_the_hub.py do.
"""

import json

import pytest
from huggingface_hub import HfApi
from safetensors.torch import load_file

from crosslingual_zoo.hub_cards import folder_check, push
from crosslingual_zoo.hub_cards.card import write_card

REPO = "owner/model"
pytestmark = pytest.mark.filterwarnings("ignore:No files have been modified:UserWarning")


@pytest.fixture
def run(hub, capsys, monkeypatch):
    """Runs the command; what it printed, after an exit with this status."""
    monkeypatch.setattr(folder_check, "_load", lambda folder: [])
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def run_push(folder, *arguments, repo=REPO, status=0):
        ended = 0
        try:
            push.main(["--model", str(folder), "--repo", repo, *arguments])
        except SystemExit as stopped:
            ended = stopped.code
        printed = capsys.readouterr()
        assert ended == status, printed.err
        assert "Traceback" not in printed.err
        return printed.out + printed.err

    return run_push


def contents(folder):
    return {path: (folder / path).read_bytes() for path in folder_check.files_of(folder)}


def test_push_sends_the_folder_and_then_what_changed(hub, run, ready_folder):
    folder = ready_folder()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    listed = run(folder, "--dry_run")
    assert hub.requests == []
    for path, content in contents(folder).items():
        assert f"{len(content):,}  {path}\n" in listed
    run(folder)
    assert hub.files(REPO) == contents(folder) | {".gitattributes": hub.files(REPO)[".gitattributes"]}
    run(folder)
    assert len(hub.titles(REPO)) == 2
    assert REPO not in hub.private

    (folder / "NOTICE").write_text("Made here.\n")
    hub.requests.clear()
    run(folder)
    [size] = [size for path, size in hub.requests if "/commit/" in path]
    assert hub.files(REPO)["NOTICE"] == b"Made here.\n"
    assert size < 500  # NOTICE alone


def test_push_notices_a_push_in_between(hub, run, ready_folder, monkeypatch):
    folder = ready_folder()
    run(folder)
    (folder / "NOTICE").write_text("Made here.\n")
    create_commit = HfApi.create_commit

    def come_too_late(*arguments, **options):
        hub.edit(REPO, {"NOTICE": "Made there.\n"})
        return create_commit(*arguments, **options)

    monkeypatch.setattr(HfApi, "create_commit", come_too_late)
    run(folder, status=2)
    assert hub.files(REPO)["NOTICE"] == b"Made there.\n"


def test_push_does_not_overwrite_a_card_edited_on_the_hub(hub, run, ready_folder):
    folder = ready_folder()
    run(folder)
    theirs = hub.files(REPO)["README.md"].decode().replace("## Limits", "A line of ours.\n\n## Limits")
    hub.edit(REPO, {"README.md": theirs.replace("\n", "\r\n"), "NOTICE": "Made there.\n"})  # the Hub's editor
    assert "--overwrite-card" in run(folder, status=2)
    assert b"A line of ours." in hub.files(REPO)["README.md"]
    ours = (folder / "README.md").read_text()
    (folder / "README.md").write_text(theirs)  # which has the edits
    run(folder)
    (folder / "README.md").write_text(ours)
    run(folder, "--overwrite-card")
    assert hub.files(REPO)["README.md"] == ours.encode()
    assert hub.files(REPO)["NOTICE"] == b"Made there.\n"
    write_card(folder, repo=REPO, license="mit")  # written anew, over one that was not edited
    run(folder)
    assert b"license: mit" in hub.files(REPO)["README.md"]


def test_push_removes_weights_of_an_earlier_push(hub, run, ready_folder):
    """transformers would read them in place of the shards."""
    folder = ready_folder()
    run(folder)
    hub.edit(REPO, {"notes.md": "theirs", "model.pt": b"x"})
    shard = (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(shard), shard.name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_card(folder, repo=REPO, license="apache-2.0")
    run(folder)
    assert set(hub.files(REPO)) == {*contents(folder), "notes.md", "model.pt", ".gitattributes"}


def test_push_to_private_repositories(hub, run, ready_folder):
    folder = ready_folder()
    run(folder, "--private")
    run(folder)  # without --private it stays so
    assert REPO in hub.private
    hub.create(REPO)
    run(folder, "--private", status=2)  # of a public one
    assert len(hub.titles(REPO)) == 1
