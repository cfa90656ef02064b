import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from zoo_core.provenance import folder_fingerprint, forget_machine, model_fingerprint, read_json, run_facts, write_json


def test_run_facts_say_what_ran_and_where_but_not_who(monkeypatch):
    home = str(Path.home())
    monkeypatch.setenv("WORLD_SIZE", "2")
    facts = run_facts([str(Path(__file__).resolve()), "output_dir=" + os.path.join(home, "runs", "a b")])
    assert set(facts) == {"command", "started", "git", "python", "platform", "versions", "hardware"}
    assert facts["command"] == "tests/zoo_core/test_provenance.py 'output_dir=~/runs/a b'"
    assert facts["started"].endswith("+00:00")
    assert facts["hardware"]["processes"] == 2
    assert {"torch", "transformers", "accelerate", "datasets"} <= set(facts["versions"])
    assert socket.gethostname() not in json.dumps({**facts, "git": None})


def test_the_fingerprint_is_of_names_and_bytes(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    first = folder_fingerprint(model)
    shutil.copytree(model, tmp_path / "copy")
    assert folder_fingerprint(tmp_path / "copy") == first
    (model / "README.md").write_text("a card is no weight")
    (model / "training_args.bin").write_bytes(b"nor are these")
    assert folder_fingerprint(model) == first
    (model / "model.safetensors").write_bytes(b"Weights")
    assert folder_fingerprint(model) != first
    (model / "config.json").unlink()
    with pytest.raises(ValueError, match="config.json"):
        folder_fingerprint(model)


def test_json_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    path = tmp_path / "facts.json"
    write_json(path, {"language": "中文"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"score": float("nan")})
    assert json.loads(path.read_text(encoding="utf-8")) == {"language": "中文"}

    def full_disk(source, target):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", full_disk)
        with pytest.raises(OSError, match="No space"):
            write_json(path, {"language": "new"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"language": "中文"}
    assert [item.name for item in tmp_path.iterdir()] == ["facts.json"]


def test_a_model_folder_forgets_where_it_was_made(tmp_path):
    settings = {"is_local": True, "local_files_only": True, "name_or_path": "/somewhere", "pad_token": "<pad>"}
    write_json(tmp_path / "tokenizer_config.json", settings)
    (tmp_path / "training_args.bin").write_bytes(b"pickle")
    forget_machine(tmp_path)
    forget_machine(tmp_path / "not there")
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == {"pad_token": "<pad>"}
    assert not (tmp_path / "training_args.bin").exists()


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff{}", b"{}", b'{"a":' * 9999 + b"1" + b"}" * 9999])
def test_a_damaged_file_is_named(tmp_path, content):
    file = tmp_path / "run.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"^[^\n]*run\.json[^\n]*$"):
        read_json(file, {}, needs=["sessions"], advice="Do this.")


def test_a_model_of_the_hub_has_the_commit_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name, commit in (("one", "a" * 40), ("two", "b" * 40)):
        cached = tmp_path / f"models--own--{name}"
        (cached / "snapshots" / commit).mkdir(parents=True)
        (cached / "snapshots" / commit / "config.json").write_text("{}")
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(commit)
        assert model_fingerprint(f"own/{name}") == f"hub:own/{name}@{commit}"
    with pytest.raises(ValueError, match="own/three"):
        model_fingerprint("own/three")
