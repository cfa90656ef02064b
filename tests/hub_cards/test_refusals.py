"""What the commands of hub_cards refuse, and what the one line names. Nothing is written or sent."""

import importlib
import json
import shlex
import shutil

import pytest

from crosslingual_zoo.hub_cards import folder_check
from crosslingual_zoo.hub_cards.card import write_card

REFUSED = [  # of the folders that the test makes
    ("card --model pickled", "safetensors"),
    ("card --model model --results few.json", "few.json"),
    ("card --model model --results other.json", "other.json"),
    ("card --model model --repo 'my model'", "--repo"),
    ("card --model model --base-model me/other", "FacebookAI/xlm-roberta-base"),
    ("card --model edited", "--overwrite"),
    ("card --model extended", "--overwrite"),
    ("push --model pickled --repo owner/model", "pytorch_model.bin"),
    ("push --model none --repo owner/model", "none"),
    ("push --model named --repo https://huggingface.co/owner/model", "owner/model"),
    ("push --model named --repo owner/mod", "owner/mod"),
    ("sentence_transformer --model edited", "modules.json"),
]


@pytest.fixture
def folders(made_up_run, monkeypatch):
    """The working directory, with the folders and results that REFUSED names."""
    model, [results] = made_up_run("veco", "classification")
    root = model.parent
    monkeypatch.chdir(root)
    for name in ("edited", "extended", "named", "pickled"):
        shutil.copytree(model, root / name)
    (root / "pickled" / "model.safetensors").rename(root / "pickled" / "pytorch_model.bin")
    (root / "edited" / "README.md").write_text("Mine.\n")
    (root / "edited" / "modules.json").write_text("[]")
    write_card(root / "named", repo="owner/model", license="mit")
    card = write_card(root / "extended")
    card.write_text(card.read_text() + "\n## Mine\n")
    (root / "few.json").write_text('{"format": 3, "protocol": {}}')
    of_another_model = {"model": {"folder": "model", "fingerprint": "sha256:of another one"}}
    (root / "other.json").write_text(json.dumps(json.loads(results.read_text()) | of_another_model))
    return root


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("command", "named"), REFUSED)
def test_commands_of_hub_cards_refuse(command, named, folders, hub, monkeypatch, capsys):
    monkeypatch.setattr(folder_check, "_load", lambda folder: [])
    before = contents(folders)
    module, *arguments = shlex.split(command)
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(f"crosslingual_zoo.hub_cards.{module}").main(arguments)
    assert stop.value.code == 2
    assert named in capsys.readouterr().err
    assert hub.requests == []
    assert contents(folders) == before
