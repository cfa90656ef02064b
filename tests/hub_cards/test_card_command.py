"""The command that writes a card: what it refuses, and what it must not lose."""

import json

import pytest
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from hub_cards.card import as_written, main, write_card
from zoo_core import provenance


def test_weights_that_are_no_safetensors_are_refused(small_model, tmp_path):
    folder = small_model(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"has no \*\.safetensors.*save_pretrained"):
        write_card(folder)
    assert not (folder / "provenance").exists()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="There is no folder .*nowhere.*Relative paths start at"):
        write_card(tmp_path / "nowhere")


def test_a_card_of_ones_own_is_not_lost(small_model, tmp_path):
    folder = small_model(tmp_path / "model")
    card = write_card(folder)
    first = card.read_text(encoding="utf-8")
    assert as_written(first) and as_written(first.replace("\n", "\r\n")) and not as_written("# My model\n")
    assert write_card(folder).read_text(encoding="utf-8") == first
    card.write_text(first.replace("## Use", "## How to use"), encoding="utf-8")
    assert not as_written(card.read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="was edited since it was written here.*--overwrite"):
        write_card(folder)
    card.write_text("# My model\n", encoding="utf-8")
    with pytest.raises(ValueError, match="was not written by hub_cards"):
        write_card(folder)
    assert card.read_text(encoding="utf-8") == "# My model\n"
    card.write_text("\n", encoding="utf-8")  # nothing to lose
    assert write_card(folder).read_text(encoding="utf-8") == first
    card.write_bytes(b"# Mon mod\xe8le\n")
    with pytest.raises(ValueError, match="was not written by hub_cards.*Move it away"):
        write_card(folder)
    assert write_card(folder, overwrite=True).read_text(encoding="utf-8") == first


def test_a_record_of_other_weights_is_refused(made_up_run):
    folder, files = made_up_run("veco", "classification")
    write_card(folder, files)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="weights"):
        write_card(folder)
    with pytest.raises(ValueError, match="These scores are another model's"):
        write_card(folder, files, overwrite=True)
    fingerprint = provenance.folder_fingerprint(folder)
    content = json.loads(files[0].read_text())
    content["model"]["fingerprint"] = fingerprint
    files[0].write_text(json.dumps(content))
    write_card(folder, files, overwrite=True)  # measured again


def test_a_write_that_the_system_refuses_ends_with_code_2(small_model, tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", "model/record")

    monkeypatch.setattr("hub_cards.record.os.replace", refuse)
    with pytest.raises(SystemExit) as stop:
        main(["--model", str(small_model(tmp_path / "model"))])
    assert stop.value.code == 2
    assert "model/record: Permission denied. The card is not whole. Mend that" in capsys.readouterr().err


def test_user_errors_end_with_code_2(made_up_run, capsys):
    folder, files = made_up_run("veco", "classification")
    model = ["--model", str(folder)]
    for arguments, message in (
        (["--model", str(folder.parent)], "is not a model folder: it has no"),
        ([*model, "--results", "nowhere.json"], "Results not found: nowhere.json"),
        ([*model, "--results", str(folder.parent / "run.json")], "is not a results.json"),
        ([*model, "--run", str(files[0].parent)], "is not the folder of a pre-training run"),
        ([*model, "--repo", "my model"], "--repo is 'my model', which is no id of the Hub"),
        ([*model, "--repo", "me/modèle"], "--repo is 'me/modèle', which is no id of the Hub"),
        ([*model, "--base-model", "runs/minilm"], "--base-model is 'runs/minilm', which is no id of the Hub"),
        ([*model, "--base-model", "me/other"], "the weights started from FacebookAI/xlm-roberta-base"),
        ([*model, "--license", "apache"], "is no license identifier of the Hub"),
        ([*model, "--license", "other"], "without name and link"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert not (folder / "README.md").exists() and not (folder / "provenance").exists()
    main(
        [*model, "--license", "other", "--license-name", "ours", "--license-link", "https://huggingface.co/me/license"]
    )
    assert "README.md" in capsys.readouterr().out
    data = ModelCard.load(folder / "README.md").data
    assert (data.license, data.license_name) == ("other", "ours")


def test_a_card_that_is_interrupted_says_how_to_go_on(small_model, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    folder = small_model(tmp_path / "model")
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr("hub_cards.record.os.replace", interrupt)
        main(["--model", str(folder)])
    assert stop.value.code == 130 and "Stopped. The same command goes on from there." in capsys.readouterr().err
    main(["--model", str(folder)])
    assert (folder / "README.md").is_file()
