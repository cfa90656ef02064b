"""Whose code runs: a checkpoint's code leaves a file where it runs, and only trusted code does."""

import importlib
import json
import logging
import shlex
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from crosslingual_zoo.modeling import checkpoints
from crosslingual_zoo.modeling.checkpoints import download_pinned, load_auto_model, load_config, load_tokenizer

CODE = """
import pathlib
from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM, XLMRobertaForTokenClassification, XLMRobertaModel
from transformers import XLMRobertaTokenizer
pathlib.Path({marker!r}).touch()
class StrangerConfig(XLMRobertaConfig):
    model_type = "stranger"
class StrangerModel(XLMRobertaModel):
    config_class = StrangerConfig
class StrangerForMaskedLM(XLMRobertaForMaskedLM):
    config_class = StrangerConfig
class StrangerForTokenClassification(XLMRobertaForTokenClassification):
    config_class = StrangerConfig
class StrangerTokenizer(XLMRobertaTokenizer):
    pass
"""
CLASSES = ("Config", "Model", "ModelForMaskedLM", "ModelForTokenClassification")
PHASE = "{name: all, steps: 1, learning_rate: 1e-4, objectives: {mlm: {batch_size: 2}}}"
TEXT = "[{language: en, path: sample_corpus, config: en}]"


def edit(file: Path, **fields) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.fixture
def stranger(library_model_dir, tmp_path):
    """`stranger(part, repository="")` -> a folder whose `model` or `tokenizer` needs code, of its own or of another
    repository, and the file that this code makes when it runs."""

    def made(part: str, repository: str = "") -> tuple[Path, Path]:
        marker = tmp_path / f"{part}-ran"
        folder = library_model_dir("xlm-roberta", AutoModelForMaskedLM)
        (folder / "stranger_code.py").write_text(CODE.format(marker=str(marker)))
        module = f"{repository}--stranger_code" if repository else "stranger_code"
        if part == "model":
            entries = {f"Auto{name}": f"{module}.Stranger{name.removeprefix('Model') or 'Model'}" for name in CLASSES}
            edit(folder / "config.json", model_type="stranger", auto_map=entries)
        else:
            entry = {"AutoTokenizer": [None, f"{module}.StrangerTokenizer"]}
            edit(folder / "tokenizer_config.json", tokenizer_class="StrangerTokenizer", auto_map=entry)
        return folder, marker

    return made


@pytest.fixture
def notices(caplog):
    """`notices()`: what was logged of code that is not run."""
    caplog.set_level(logging.WARNING, logger=checkpoints.__name__)
    return lambda: [record.getMessage() for record in caplog.records if record.name == checkpoints.__name__]


# ---- what is loaded


@pytest.mark.parametrize("repository", ["", "owner/other"])
@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_load_config_and_load_tokenizer_run_only_code_that_is_trusted(stranger, hub, part, repository):
    folder, marker = stranger(part, repository)
    hub.create("owner/other")
    hub.edit("owner/other", {"stranger_code.py": (folder / "stranger_code.py").read_text()})
    load = load_config if part == "model" else load_tokenizer
    with pytest.raises(ValueError, match=f"stranger_code.py.*{repository or folder}"):
        load(str(folder))
    assert not marker.exists()
    found = load(str(folder), trust_remote_code=True)
    assert marker.exists() and type(found).__module__.startswith("transformers_modules.")


@pytest.mark.parametrize("model_type", ["veco", "ernie_m", "xlm_align", "metaxlm", "metaxlm on modernbert"])
def test_load_auto_model_of_the_zoo_by_the_installed_code(zoo_model_dir, tmp_path, notices, model_type):
    folder, marker = zoo_model_dir(model_type, copy=True), tmp_path / "ran"
    assert load_config(str(folder)).model_type == model_type.partition(" ")[0] and not notices()
    expected = load_auto_model(AutoModelForMaskedLM, str(folder), trust_remote_code=True).eval()
    for file in folder.glob("*.py"):
        file.write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n" + file.read_text())
    load_config(str(folder))
    (said,) = notices()
    assert f"modeling_{model_type.partition(' ')[0]}.py" in said
    model, tokenizer = load_auto_model(AutoModelForMaskedLM, str(folder)).eval(), load_tokenizer(str(folder))
    assert type(model).__module__.startswith("crosslingual_zoo.modeling.") and not marker.exists()
    batch = tokenizer(["The house is small.", "Ein Haus"], padding=True, return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, expected(**batch).logits)
    model.save_pretrained(tmp_path / "saved")  # with the code that it was loaded by
    assert load_config(str(tmp_path / "saved")).auto_map == load_config(str(folder)).auto_map
    assert len(notices()) == 1


def test_load_config_drops_a_map_to_another_repository(zoo_model_dir, tmp_path, notices):
    folder = zoo_model_dir("veco", copy=True)
    entries = json.loads((folder / "config.json").read_text())["auto_map"]
    edit(folder / "config.json", auto_map={name: f"owner/other--{value}" for name, value in entries.items()})
    load_auto_model(AutoModel, str(folder)).save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["auto_map"] == entries
    load_config(str(folder))
    assert "modeling_veco.py of owner/other" in notices()[0]


def test_load_config_leaves_out_code_of_a_known_type_in_a_line(stranger, notices):
    folder, marker = stranger("model")
    edit(folder / "config.json", model_type="xlm-roberta")
    assert load_config(str(folder)).model_type == "xlm-roberta"
    assert type(load_auto_model(AutoModel, str(folder))).__module__.startswith("transformers.models.")
    assert "stranger_code.py" in notices()[0] and not marker.exists()


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "_experts_implementation"])
def test_load_config_refuses_a_kernel_of_the_hub(zoo_model_dir, name):
    folder = zoo_model_dir("metaxlm", copy=True)
    for value in ("owner/kernel", {"": "owner/kernel@v1:flash"}):
        edit(folder / "config.json", **{name: value})
        with pytest.raises(ValueError, match="owner/kernel"):
            load_config(str(folder))


def test_load_tokenizer_refuses_code_that_the_configuration_names(stranger):
    folder, marker = stranger("tokenizer")
    entries = json.loads((folder / "tokenizer_config.json").read_text())["auto_map"]
    edit(folder / "tokenizer_config.json", auto_map={})
    edit(folder / "config.json", auto_map=entries)
    with pytest.raises(ValueError, match="stranger_code.py"):
        load_tokenizer(str(folder))
    assert not marker.exists()


# ---- owner/name@revision


def test_download_pinned_code_and_weights_are_of_its_revision(stranger, hub):
    """Also where the map names the repository itself, as transformers writes it."""
    folder, marker = stranger("model", "owner/own")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    hub.create("owner/own")
    hub.edit("owner/own", files)
    commit, code = hub.head("owner/own"), files["stranger_code.py"].decode()
    edit(folder / "config.json", layer_norm_eps=0.5)
    later = {"stranger_code.py": f"raise SystemExit\n{code}", "config.json": (folder / "config.json").read_bytes()}
    hub.edit("owner/own", later)
    there = download_pinned(f"owner/own@{commit}")
    with pytest.raises(ValueError, match="stranger_code.py.*owner/own"):
        load_config(there)
    assert not marker.exists()
    assert load_config(there, trust_remote_code=True).layer_norm_eps != 0.5
    model = load_auto_model(AutoModel, there, trust_remote_code=True)
    assert marker.exists() and model.config.layer_norm_eps != 0.5
    with pytest.raises(ValueError, match="owner/own@nowhere"):
        download_pinned("owner/own@nowhere")


# ---- every command

ALIGN, TUNE = (
    "crosslingual_zoo.finetuning.align.command",
    "crosslingual_zoo.finetuning.run output_dir=run model={model}",
)
TRAIN = f"crosslingual_zoo.pretraining.run output_dir=run model.type=metaxlm monolingual='{TEXT}' phases='[{PHASE}]'"
COMMANDS = {
    "links": f"{ALIGN} 'A house' 'Ein Haus' --quiet --model {{model}}",
    "links of a file": f"{ALIGN} pairs.txt --quiet --model {{model}}",
    "gold links": f"{ALIGN} score pairs.txt --gold gold.txt --quiet --model {{model}}",
    "adapt": f"{ALIGN} adapt many.txt --output adapted --quiet --model {{model}}",
    "project": f"{ALIGN} project labels.conll de.txt --quiet --model {{model}}",
    "fine-tuning": f"{TUNE} --config finetuning/recipes/xlm_align/sample.yaml",
    "data": f"{TUNE} --config finetuning/recipes/xlm_align/sample.yaml --check_data",
    "vectors": f"{TUNE} --config finetuning/recipes/sample_retrieval.yaml",
    "a suite": f"{TUNE} --suite sample",
    "translation": f"{TUNE} --config finetuning/recipes/veco/multi30k.yaml",
    "a start": f"{TRAIN} model.start_from={{model}}",
    "a model of one language": f"{TRAIN} model.meta_pretrained.path={{model}} tokenizer={{model}}",
    "a teacher": f"{TRAIN} teacher.path={{model}} teacher.language=en tokenizer={{model}} phases.0.objectives.kd={{}}",
    "supported": "crosslingual_zoo.pretraining.plan {model}",
    "sentence-transformers": "crosslingual_zoo.hub_cards.sentence_transformer --model {model}",
    "labels": "crosslingual_zoo.finetuning.tools.label_text --model {model} --languages de --input de.txt --output o",
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`run(name, folder, *arguments)`: a command, in a folder with small inputs."""
    texts = {"pairs.txt": "A house ||| Ein Haus\n", "gold.txt": "0-0 1-1\n", "labels.conll": "Anna\tB-PER\n\n"}
    for name, text in (texts | {"many.txt": texts["pairs.txt"] * 60, "de.txt": "Anna\n"}).items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    def command(name: str, folder: Path, *arguments: str) -> None:
        module, *given = shlex.split(COMMANDS[name])
        importlib.import_module(module).main([part.replace("{model}", str(folder)) for part in (*given, *arguments)])

    return command


@pytest.mark.parametrize("part", ["model", "tokenizer"])
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_run_no_code_that_is_not_trusted(stranger, run, capfd, name, part):
    folder, marker = stranger(part)
    with pytest.raises(SystemExit) as ended:
        run(name, folder)
    assert ended.value.code == 2 and "stranger_code.py" in capfd.readouterr().err and not marker.exists()


@pytest.mark.parametrize(
    ("name", "short", "trust"),
    [
        ("a start", ["phases.0.objectives.mlm.max_length=32"], ["trust_remote_code=true", "output_dir=trusted"]),
        ("supported", [], ["--trust-remote-code"]),
    ],
)
def test_pre_train_start_is_computed_by_its_own_code_where_that_is_trusted(
    zoo_model_dir, run, tmp_path, name, short, trust
):
    folder, marker = zoo_model_dir("metaxlm", copy=True), tmp_path / "ran"
    file = folder / "modeling_metaxlm.py"
    file.write_text(file.read_text() + f"\nimport pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    run(name, folder, *short)
    assert not marker.exists()
    run(name, folder, *short, *trust)
    assert marker.exists()
    if name == "a start":  # and the saved model keeps it
        assert (tmp_path / "trusted" / "model" / file.name).read_text() == file.read_text()


@pytest.mark.parametrize(
    "name, trust", [("links of a file", "--trust-remote-code"), ("data", "trust_remote_code=true")]
)
def test_commands_run_code_that_is_trusted(stranger, run, name, trust):
    folder, marker = stranger("tokenizer")
    run(name, folder, trust)
    assert marker.exists()
