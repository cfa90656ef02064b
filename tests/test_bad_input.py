"""Damaged folders and files end every command with one line and exit code 2, and nothing is written or run."""

import importlib
import json
import logging
import os
import pickle
from pathlib import Path

import pytest
import torch

DEEP = '{"a":' * 9999 + "1" + "}" * 9999
DEEP_YAML = b"a: " + b"[" * 5000
SAMPLE = ["--config", "finetuning/recipes/xlm_align/sample.yaml", "model=MODEL", "--check_data", "output_dir=out"]
SMOKE = ["--config", "pretraining/recipes/xlm_align/smoke.yaml", "tokenizer=MODEL", "--dry_run", "output_dir=out"]
COMMANDS = {
    "fine-tuning": ("crosslingual_zoo.finetuning.run", *SAMPLE),
    "pre-training": ("crosslingual_zoo.pretraining.run", *SMOKE, "model.start_from=MODEL", "model.config={}"),
    "alignment": ("crosslingual_zoo.finetuning.align.command", "--model", "MODEL", "a b", "c d"),
    "supported": ("crosslingual_zoo.pretraining.plan", "MODEL"),
}


class Trap:
    """Unpickled, it makes the folder `ran`."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Trap()}, folder / "pytorch_model.bin")


FOLDERS = {  # fields of config.json, a file's content, or what is done to a model's folder: what the message names
    "num_attention_heads": {"num_attention_heads": 7},
    "pad_token_id": {"pad_token_id": 50_000},
    "flash_attention_3": {"_attn_implementation": "flash_attention_3"},
    "owner/kernel": {"backbone_config": {"text_config": {"_attn_implementation": "owner/kernel"}}},
    "RecursionError": lambda folder: (folder / "config.json").write_text(DEEP),
    "JSONDecodeError": lambda folder: (folder / "tokenizer_config.json").write_text('{"mask'),
    "tokenizer": lambda folder: (folder / "tokenizer.json").unlink(),
    "SafetensorError": lambda folder: os.truncate(folder / "model.safetensors", 9999),
    "UnpicklingError": pickled,
}
FILES = [  # name, content, and a command that is given its path
    ("deep.yaml", DEEP_YAML, ["crosslingual_zoo.pretraining.run", "--config", "FILE", "output_dir=out"]),
    ("deep.yaml", DEEP_YAML, ["crosslingual_zoo.finetuning.run", "--suite=FILE", "model=x", "output_dir=out"]),
    ("recipe.pkl", pickle.dumps(Trap()), ["crosslingual_zoo.finetuning.run", "--config", "FILE", "output_dir=out"]),
    ("table.pt", pickle.dumps(Trap()), ["crosslingual_zoo.finetuning.run", *SAMPLE, "train=[{path: FILE}]"]),
]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """`refused(command, MODEL=path)`: the one line with which it ends."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    logging.disable(logging.INFO)  # what was read before the fault

    def run(command: list[str], **places) -> str:
        capsys.readouterr()  # of what made the model
        before = sorted(tmp_path.rglob("*"))
        for name, place in places.items():
            command = [part.replace(name, str(place)) for part in command]
        with pytest.raises(SystemExit) as stop:
            importlib.import_module(command[0]).main(command[1:])
        said = capsys.readouterr()
        assert stop.value.code == 2
        lines = [line for line in said.err.splitlines() if "loading " not in line]  # what a command loads, at its start
        assert len(lines) == 1 and "error: " in lines[0], said.err
        assert sorted(tmp_path.rglob("*")) == before
        return said.err

    yield run
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (command, named)
        for command in COMMANDS
        for named in FOLDERS
        if command != "fine-tuning"
        or named not in ("SafetensorError", "UnpicklingError")  # --check_data reads no weights
    ],
)
def test_commands_refuse_damaged_models(refused, zoo_model_dir, command, named):
    fault, folder = FOLDERS[named], zoo_model_dir("xlm_align", copy=True)
    if isinstance(fault, dict):
        config = folder / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | fault))
    else:
        fault(folder)
    assert named in refused(COMMANDS[command], MODEL=folder)


@pytest.mark.parametrize(("name", "content", "command"), FILES)
def test_commands_refuse_files(refused, zoo_model_dir, tmp_path, name, content, command):
    (tmp_path / name).write_bytes(content)
    assert name in refused(command, FILE=tmp_path / name, MODEL=zoo_model_dir("xlm_align"))
