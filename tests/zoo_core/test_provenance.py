import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from crosslingual_zoo.zoo_core import provenance
from crosslingual_zoo.zoo_core.provenance import folder_fingerprint, model_fingerprint, read_json, run_facts, write_json


def test_run_facts_have_the_run_and_no_names(monkeypatch):
    home = str(Path.home())
    monkeypatch.setenv("WORLD_SIZE", "2")
    facts = run_facts([str(Path(__file__).resolve()), "output_dir=" + os.path.join(home, "runs", "a b")])
    assert set(facts) == {"command", "started", "git", "python", "platform", "versions", "hardware"}
    assert facts["command"] == "tests/zoo_core/test_provenance.py 'output_dir=~/runs/a b'"
    assert facts["started"].endswith("+00:00")
    assert facts["hardware"]["processes"] == 2
    assert {"torch", "transformers", "accelerate", "datasets"} <= set(facts["versions"])
    assert socket.gethostname() not in json.dumps({**facts, "git": None})


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """`checkout(*command)` runs git in a checkout with one commit, which takes the place of this one."""
    folder = tmp_path / "checkout"
    monkeypatch.setattr(provenance, "REPOSITORY", folder)

    def git(*command):
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"]
        return subprocess.run(["git", "-C", folder, *identity, *command], check=True, capture_output=True, text=True)

    (folder / "bench" / "results").mkdir(parents=True)
    for name in ("code.py", "bench/results/figures.json"):
        (folder / name).write_text("1\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        git(*command)
    return git


@pytest.mark.parametrize(
    "change, is_dirty",
    [
        (None, False),
        (("code.py", "2\n"), True),
        (("code.py", None), True),
        (("bench/results/figures.json", "2\n"), False),
        (("notes.txt", "mine\n"), False),
    ],
)
def test_run_facts_say_whether_there_are_uncommitted_changes(checkout, change, is_dirty):
    """Results of benchmarks, and files that git does not know, do not count."""
    head = checkout("rev-parse", "HEAD").stdout.strip()
    if change:
        name, content = change
        file = provenance.REPOSITORY / name
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
    assert run_facts([])["git"] == {"commit": head, "dirty": is_dirty}
    checkout("add", "-A")  # staged
    assert run_facts([])["git"]["dirty"] == (is_dirty or change == ("notes.txt", "mine\n"))


def test_run_facts_without_a_checkout_have_no_commit(checkout, monkeypatch, tmp_path):
    inside = provenance.REPOSITORY / "venv"
    inside.mkdir()
    for folder in (inside, tmp_path):  # in another project's checkout; in none
        monkeypatch.setattr(provenance, "REPOSITORY", folder)
        assert run_facts([])["git"] is None


def test_folder_fingerprint_is_of_names_and_bytes(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    fingerprint = folder_fingerprint(model)
    shutil.copytree(model, tmp_path / "copy")
    assert folder_fingerprint(tmp_path / "copy") == fingerprint
    (model / "README.md").write_text("a card is no weight")
    (model / "training_args.bin").write_bytes(b"nor are these")
    assert folder_fingerprint(model) == fingerprint
    (model / "model.safetensors").write_bytes(b"Weights")
    of_other_weights = folder_fingerprint(model)
    assert of_other_weights != fingerprint
    (model / "config.json").write_text('{"num_hidden_layers": 1}')
    assert folder_fingerprint(model) != of_other_weights
    (model / "config.json").unlink()
    with pytest.raises(ValueError, match="config.json"):
        folder_fingerprint(model)


def test_write_json_replaces_a_file_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "facts.json"
    write_json(path, {"language": "中文"})
    with pytest.raises(ValueError):
        write_json(path, {"score": float("nan")})
    monkeypatch.setattr(os, "replace", lambda source, target: os.stat("/no disk"))
    with pytest.raises(OSError):
        write_json(path, {"language": "new"})
    assert read_json(path) == {"language": "中文"}
    assert os.listdir(tmp_path) == ["facts.json"]


def test_write_json_removes_what_killed_processes_left(tmp_path):
    path = tmp_path / "facts.json"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left_by_ended = f".facts.json.{ended.pid}.tmp"
    others = {f".facts.json.{os.getppid()}.tmp", ".facts.json.note.tmp", f".other.json.{ended.pid}.tmp"}
    for name in (left_by_ended, *others):
        (tmp_path / name).write_text("{")
    write_json(path, {"score": 1})
    assert set(os.listdir(tmp_path)) == {"facts.json", *others}


def test_model_fingerprint_is_the_commit_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--own--one"
    commit = "a" * 40
    (cached / "snapshots" / commit).mkdir(parents=True)
    (cached / "snapshots" / commit / "config.json").write_text("{}")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    assert model_fingerprint("own/one") == f"hub:own/one@{commit}"
    with pytest.raises(ValueError, match="own/two"):
        model_fingerprint("own/two")
