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
    ("push --model pickled --repo owner/model", "pytorch_model.bin"),
    ("push --model none --repo owner/model", "none"),
    ("push --model named --repo https://huggingface.co/owner/model", "owner/model"),
    ("push --model named --repo owner/mod", "owner/mod"),
    ("sentence_transformer --model edited", "modules.json"),
]


@pytest.mark.parametrize(("command", "named"), REFUSED)
def test_commands_of_hub_cards_refuse(command, named, made_up_run, hub, monkeypatch, capsys):
    folder, (file,) = made_up_run("veco", "classification")
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(folder_check, "_load", lambda folder: [])
    for name in ("edited", "named", "pickled"):
        shutil.copytree(folder, name)
    (folder.parent / "pickled" / "model.safetensors").rename("pickled/pytorch_model.bin")
    (folder.parent / "edited" / "README.md").write_text("Mine.\n")
    (folder.parent / "edited" / "modules.json").write_text("[]")
    write_card("named", repo="owner/model", license="mit")
    (folder.parent / "few.json").write_text('{"format": 3, "protocol": {}}')
    other = json.loads(file.read_text()) | {"model": {"folder": "model", "fingerprint": "sha256:of another one"}}
    (folder.parent / "other.json").write_text(json.dumps(other))
    before = {path: path.is_file() and path.read_bytes() for path in folder.parent.rglob("*")}
    module, *arguments = shlex.split(command)
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(f"crosslingual_zoo.hub_cards.{module}").main(arguments)
    assert stop.value.code == 2 and named in capsys.readouterr().err
    assert hub.requests == [] and before == {path: path.is_file() and path.read_bytes() for path in before}
