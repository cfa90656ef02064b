"""Pushes to a Hub on loopback: what is sent, what is not, what is refused, and what an interruption leaves.

The check of the folder is the real one, except that it is not loaded in a new process, which test_folder_check.py and
test_from_the_hub.py do.
"""

import json
from unittest.mock import Mock

import pytest
from safetensors.torch import load_file

from hub_cards import folder_check, push
from hub_cards.card import write_card

REPO = "owner/model"
pytestmark = pytest.mark.filterwarnings("ignore:No files have been modified:UserWarning")


@pytest.fixture
def run(hub, capsys, monkeypatch):
    """Runs the command; the exit status, and what it printed."""
    monkeypatch.setattr(folder_check, "_load", lambda folder: [])
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def run_push(folder, *arguments, repo=REPO):
        try:
            push.main(["--model", str(folder), "--repo", repo, *arguments])
            status = 0
        except SystemExit as stopped:
            status = stopped.code
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return status, printed.out + printed.err

    return run_push


def contents(folder):
    return {path: (folder / path).read_bytes() for path in folder_check.files_of(folder)}


def test_push_sends_the_folder(hub, run, ready_folder):
    folder = ready_folder()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    status, printed = run(folder)
    assert status == 0, printed
    assert len(hub.titles(REPO)) == 2 and REPO not in hub.private
    there = hub.files(REPO)
    assert there.pop(".gitattributes") and there == contents(folder)


def test_push_dry_run_lists_the_files_and_asks_no_hub(hub, run, ready_folder):
    folder = ready_folder()
    status, printed = run(folder, "--dry_run")
    assert status == 0 and hub.requests == []
    assert all(f"{len(content):,}  {path}\n" in printed for path, content in contents(folder).items())


def test_push_again_sends_what_changed(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0 and run(folder)[0] == 0
    assert len(hub.titles(REPO)) == 2
    (folder / "NOTICE").write_text("Made here.\n")
    requests = len(hub.requests)
    assert run(folder)[0] == 0 and hub.files(REPO)["NOTICE"] == b"Made here.\n"
    (sent,) = [size for path, size in hub.requests[requests:] if "/commit/" in path]
    assert sent < 500  # NOTICE alone


def test_push_notices_a_push_in_between(hub, run, ready_folder, monkeypatch):
    folder = ready_folder()
    assert run(folder)[0] == 0
    (folder / "NOTICE").write_text("Made here.\n")
    is_weights = Mock(fullmatch=lambda path: hub.edit(REPO, {"NOTICE": "Made there.\n"}))
    monkeypatch.setattr(push, "WEIGHTS", is_weights)
    assert run(folder)[0] == 2 and hub.files(REPO)["NOTICE"] == b"Made there.\n"


def test_push_does_not_overwrite_a_card_edited_on_the_hub(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder)[0] == 0
    theirs = hub.files(REPO)["README.md"].decode().replace("## Limits", "A line of ours.\n\n## Limits")
    hub.edit(REPO, {"README.md": theirs.replace("\n", "\r\n")})  # the Hub's editor
    (folder / "NOTICE").write_text("Made here.\n")
    status, printed = run(folder)
    assert status == 2 and "--overwrite-card" in printed and "NOTICE" not in hub.files(REPO)
    own = (folder / "README.md").read_text()
    (folder / "README.md").write_text(theirs)  # which has the edits
    assert run(folder)[0] == 0
    (folder / "README.md").write_text(own)
    assert run(folder, "--overwrite-card")[0] == 0 and hub.files(REPO)["README.md"] == own.encode()
    write_card(folder, repo=REPO, license="mit")  # written anew, over one that was not edited
    assert run(folder)[0] == 0 and b"license: mit" in hub.files(REPO)["README.md"]


def test_push_removes_weights_of_an_earlier_push(hub, run, ready_folder):
    """transformers would read them in place of the shards."""
    folder = ready_folder()
    assert run(folder)[0] == 0
    hub.edit(REPO, {"notes.md": "theirs", "model.pt": b"x"})
    shard = (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(shard), shard.name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_card(folder, repo=REPO, license="apache-2.0")
    assert run(folder)[0] == 0
    assert set(hub.files(REPO)) == {*contents(folder), "notes.md", "model.pt", ".gitattributes"}


def test_push_to_private_repositories(hub, run, ready_folder):
    folder = ready_folder()
    assert run(folder, "--private")[0] == 0 and REPO in hub.private
    (folder / "NOTICE").write_text("Made here.\n")
    assert run(folder)[0] == 0 and REPO in hub.private  # without --private it stays so
    hub.create(REPO)
    assert run(folder, "--private")[0] == 2 and len(hub.titles(REPO)) == 1  # of a public one


@pytest.mark.parametrize("token", ["nonsense", None])
def test_push_without_permission(hub, run, ready_folder, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token) if token else monkeypatch.delenv("HF_TOKEN")
    status, printed = run(ready_folder())
    assert status == 2 and REPO in printed and hub.commits == {}


def test_push_of_a_faulty_folder_reaches_no_hub(hub, run, ready_folder, tmp_path):
    folder = ready_folder()
    (folder / "extra.pkl").write_bytes(b"x")
    faulty = ((folder, REPO, "extra.pkl"), (tmp_path, REPO, "model.safetensors"), (tmp_path / "no", REPO, "no"))
    for model, repo, named in (*faulty, (tmp_path, f"https://huggingface.co/{REPO}", REPO)):
        status, printed = run(model, repo=repo)
        assert status == 2 and named in printed
    assert hub.requests == []


@pytest.mark.parametrize("other", ["owner/model-large", "co-owner/model"])
def test_push_of_a_card_for_another_repository(hub, run, ready_folder, other):
    status, printed = run(ready_folder(repo=other))
    assert status == 2 and REPO in printed and hub.requests == []
