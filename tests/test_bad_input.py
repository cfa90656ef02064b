"""What users give by mistake ends every command with one line and exit code 2, and nothing is written or run."""

import importlib
import importlib.util
import json
import logging
import os
import pickle
from pathlib import Path

import pytest
import torch

from pretraining.tracking import read_events

DEEP = '{"a":' * 9999 + "1" + "}" * 9999
FINE_TUNE = ("finetuning.run", "--config", "finetuning/recipes/xlm_align/sample.yaml", "model={model}", "--check_data")
PRE_TRAIN = (
    "pretraining.run",
    "--config",
    "pretraining/recipes/xlm_align/smoke.yaml",
    "tokenizer={model}",
    "--dry_run",
)
START = (*PRE_TRAIN, "model.start_from={model}", "model.config={{}}")
ALIGN = ("finetuning.align.command", "--model", "{model}", "a b", "c d")
SUPPORTED = ("pretraining.plan", "{model}")
MLM = "phases.0.objectives.mlm"


class Trap:
    """Unpickled, it makes the file `ran`."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def edited(**fields):
    """Changes fields of config.json."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def holding(name: str, content: str | bytes | None):
    """Puts another file of that name there; None: none."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Trap()}, folder / "pytorch_model.bin")


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


FOLDERS = {  # what is done to a model's folder: what the line names
    "padding": (edited(pad_token_id=50_000), "pad_token_id"),
    "flash attention": (edited(_attn_implementation="flash_attention_3"), "flash_attention_3"),
    "kernel": (edited(backbone_config={"text_config": {"_attn_implementation": "owner/kernel"}}), "owner/kernel"),
    "config deep": (holding("config.json", DEEP), "RecursionError"),
    "config cut off": (holding("config.json", '{"model_type": "veco'), "config.json"),
    "tokenizer_config cut off": (holding("tokenizer_config.json", '{"mask'), "JSONDecodeError"),
    "tokenizer missing": (holding("tokenizer.json", None), "tokenizer"),
    "weights cut off": (cut_off, "SafetensorError"),
    "weights pickled": (pickled, "UnpicklingError"),
}
VALUES = [  # one of each kind of bound, and of each kind of value
    (PRE_TRAIN, f"{MLM}.batch_size", "[8]"),
    (PRE_TRAIN, f"{MLM}.mask_probability", ".nan"),
    (PRE_TRAIN, "optimizer.betas", "[0.9]"),
    (PRE_TRAIN, "seed", "-1"),
    (PRE_TRAIN, "model.config.num_attention_heads", "7"),
    (FINE_TUNE, "training.epochs", "1e300"),
    (FINE_TUNE, "training.max_steps", str(10**20)),
    (FINE_TUNE, "seeds", "[]"),
    (FINE_TUNE, "max_length", "7"),
]
FILES = {  # a file's name and content: commands that are given its path as `{file}`
    "deep.yaml": (
        "a: " + "[" * 5000,
        [(PRE_TRAIN[0], "--config", "{file}"), (FINE_TUNE[0], "--suite={file}", "model=x")],
    ),
    "recipe.pkl": (pickle.dumps(Trap()), [(name, "--config", "{file}") for name in (PRE_TRAIN[0], FINE_TUNE[0])]),
    "table.pt": (
        pickle.dumps(Trap()),
        [(*FINE_TUNE, "train=[{{path: {file}}}]"), (*PRE_TRAIN, "monolingual=[{{path: {file}, language: en}}]")],
    ),
}


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """`refused(command, **places)`: the one line with which it ends."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    logging.disable(logging.INFO)  # what was read before the fault

    def run(command: tuple[str, ...], **places) -> str:
        capsys.readouterr()  # of what made the model
        before = sorted(tmp_path.rglob("*"))
        module, *arguments = (part.format(**places) for part in command)
        if module.endswith(".run"):
            arguments.append("output_dir=out")
        with pytest.raises(SystemExit) as stop:
            importlib.import_module(module).main(arguments)
        said = capsys.readouterr()
        assert stop.value.code == 2
        assert said.err.count("\n") == 1 and "error: " in said.err and "Traceback" not in said.err, said.err
        assert sorted(tmp_path.rglob("*")) == before
        return said.err

    yield run
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("command", [FINE_TUNE, START, ALIGN, SUPPORTED], ids=lambda command: command[0])
@pytest.mark.parametrize("fault", FOLDERS)
def test_commands_refuse_damaged_models(refused, zoo_model_dir, command, fault):
    change, named = FOLDERS[fault]
    if command == FINE_TUNE and "weights" in fault:
        pytest.skip("reads no weights")
    folder = zoo_model_dir("xlm_align", copy=True)
    change(folder)
    assert named in refused(command, model=folder)


@pytest.mark.parametrize(("command", "name", "value"), [pytest.param(*case, id="=".join(case[1:])) for case in VALUES])
def test_commands_refuse_numbers(refused, zoo_model_dir, command, name, value):
    change = f"{name}={value}".replace("{", "{{")
    assert name.removeprefix("model.config.") in refused((*command, change), model=zoo_model_dir("xlm_align"))


@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name, (_, commands) in FILES.items() for command in commands]
)
def test_commands_refuse_files(refused, zoo_model_dir, tmp_path, name, command):
    content, _ = FILES[name]
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert name in refused(command, file=file, model=zoo_model_dir("xlm_align"))


@pytest.mark.parametrize("content", ["[1]\n", f"{DEEP}\n", '{"step": "x"}\n', "\xff\n"])
def test_commands_refuse_torn_events_of_a_run(tmp_path, content):
    (tmp_path / "events.jsonl").write_text(content)
    with pytest.raises(ValueError, match="events.jsonl"):
        read_events(tmp_path)
