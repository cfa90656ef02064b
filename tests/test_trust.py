"""Whose code runs: no command runs the code of a checkpoint unless it is trusted."""

import importlib
import json
import logging
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from modeling import checkpoints
from modeling.checkpoints import download_pinned, load_auto_model, load_config, load_tokenizer

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
RECIPE = "finetuning/recipes/xlm_align/sample.yaml"
PHASE = "{name: all, steps: 1, learning_rate: 1e-4, objectives: {mlm: {batch_size: 2}}}"
TEXT = "[{language: en, path: sample_corpus, config: en}]"


def edit(file: Path, **fields) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.fixture
def stranger(sample_tokenizer, tmp_path):
    """`stranger(part, repository="")` -> a folder whose `model` or `tokenizer` needs code, of its own or of another
    repository, and the file that this code makes when it runs."""
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    def made(part: str, repository: str = "") -> tuple[Path, Path]:
        folder, marker = tmp_path / f"stranger-{part}" / "weights", tmp_path / f"{part}-ran"
        sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
        XLMRobertaForMaskedLM(XLMRobertaConfig(vocab_size=len(sample_tokenizer), **sizes)).save_pretrained(folder)
        sample_tokenizer.save_pretrained(folder)
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


@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_load_config_and_load_tokenizer_refuse_code_by_name(stranger, part):
    folder, marker = stranger(part)
    load = load_config if part == "model" else load_tokenizer
    with pytest.raises(ValueError, match=f"stranger_code.py of {folder}"):
        load(str(folder))
    assert not marker.exists()


@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_load_auto_model_runs_code_that_is_trusted(stranger, part):
    folder, marker = stranger(part)
    config = load_config(str(folder), trust_remote_code=True)
    tokenizer = load_tokenizer(str(folder), trust_remote_code=True)
    model = load_auto_model(AutoModel, str(folder), trust_remote_code=True)
    assert marker.exists()
    found = [type(config), type(model)] if part == "model" else [type(tokenizer)]
    assert all(cls.__module__.startswith("transformers_modules.") for cls in found)


@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_load_auto_model_code_of_a_second_repository(stranger, hub, part):
    folder, marker = stranger(part, "owner/other")
    hub.create("owner/other")
    hub.edit("owner/other", {"stranger_code.py": (folder / "stranger_code.py").read_text()})
    load = load_config if part == "model" else load_tokenizer
    with pytest.raises(ValueError, match="stranger_code.py of owner/other"):
        load(str(folder))
    assert not marker.exists()
    load(str(folder), trust_remote_code=True)
    assert marker.exists()


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
    assert type(model).__module__.startswith("modeling.") and not marker.exists()
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
@pytest.mark.parametrize("value", ["owner/kernel", {"": "owner/kernel@v1:flash"}])
def test_load_config_refuses_a_kernel_of_the_hub(zoo_model_dir, name, value):
    folder = zoo_model_dir("metaxlm", copy=True)
    edit(folder / "config.json", **{name: value})
    for load in (load_config, lambda path: load_auto_model(AutoModel, path)):
        with pytest.raises(ValueError, match="owner/kernel"):
            load(str(folder))


def test_load_tokenizer_refuses_code_that_the_configuration_names(stranger):
    folder, marker = stranger("tokenizer")
    entries = json.loads((folder / "tokenizer_config.json").read_text())["auto_map"]
    edit(folder / "tokenizer_config.json", auto_map={})
    edit(folder / "config.json", auto_map=entries)
    with pytest.raises(ValueError, match="stranger_code.py"):
        load_tokenizer(str(folder))
    assert not marker.exists()


# ---- owner/name@revision


def test_download_pinned_code_is_of_its_revision(stranger, hub):
    """Also where the map names the repository itself, as transformers writes it."""
    folder, marker = stranger("model", "owner/own")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    hub.create("owner/own")
    hub.edit("owner/own", files)
    commit = hub.head("owner/own")
    hub.edit(
        "owner/own",
        {"stranger_code.py": f"open({str(marker) + '-of-main'!r}, 'w')\n" + files["stranger_code.py"].decode()},
    )
    there = download_pinned(f"owner/own@{commit}")
    with pytest.raises(ValueError, match="stranger_code.py of owner/own"):
        load_config(there)
    load_config(there, trust_remote_code=True)
    load_auto_model(AutoModel, there, trust_remote_code=True)
    assert marker.exists() and not marker.with_name(marker.name + "-of-main").exists()


def test_download_pinned_revision(hub, zoo_model_dir):
    first, second = zoo_model_dir("metaxlm", copy=True), zoo_model_dir("metaxlm", copy=True)
    edit(second / "config.json", layer_norm_eps=0.5)
    hub.create("owner/pinned")
    hub.edit("owner/pinned", {file.name: file.read_bytes() for file in first.iterdir()})
    commit = hub.head("owner/pinned")
    hub.edit("owner/pinned", {file.name: file.read_bytes() for file in second.iterdir()})
    assert load_config("owner/pinned").layer_norm_eps == 0.5
    there = download_pinned(f"owner/pinned@{commit}")
    assert load_config(there).layer_norm_eps == load_config(str(first)).layer_norm_eps != 0.5
    assert len(load_tokenizer(there)) == len(load_tokenizer(str(first)))
    load_auto_model(AutoModel, there)
    with pytest.raises(ValueError, match="owner/pinned@nowhere"):
        download_pinned("owner/pinned@nowhere")


# ---- every command


def word_align(*options):
    return lambda folder, work: ("finetuning.align.command", [*options, "--model", folder, "--quiet"])


def fine_tune(*options):
    return lambda folder, work: ("finetuning.run", [*options, f"model={folder}", f"output_dir={work / 'run'}"])


def pre_train(**fields):
    def arguments(folder, work):
        values = {"model.type": "metaxlm", "monolingual": TEXT, "phases": f"[{PHASE}]", "output_dir": work / "run"}
        values |= {name.replace("__", "."): folder for name in fields}
        return "pretraining.run", [f"{name}={value}" for name, value in values.items()]

    return arguments


COMMANDS = {
    "links of two sentences": word_align("A house", "Ein Haus"),
    "links of a file": word_align("pairs.txt"),
    "gold links": word_align("score", "pairs.txt", "--gold", "gold.txt"),
    "layers": word_align("score", "pairs.txt", "--gold", "gold.txt", "--sweep-layers"),
    "adapt": word_align("adapt", "many.txt", "--output", "adapted"),
    "project": word_align("project", "labels.conll", "de.txt"),
    "fine-tuning": fine_tune("--config", RECIPE),
    "data": fine_tune("--config", RECIPE, "--check_data"),
    "vectors": fine_tune("--config", "finetuning/recipes/sample_retrieval.yaml"),
    "a suite": fine_tune("--suite", "sample"),
    "a start": pre_train(model__start_from=None),
    "a model of one language": pre_train(model__meta_pretrained__path=None, tokenizer=None),
    "a teacher": lambda folder, work: (
        "pretraining.run",
        [
            *pre_train(teacher__path=None, tokenizer=None)(folder, work)[1],
            *("teacher.language=en", "phases.0.objectives.kd={}"),
        ],
    ),
    "translation": fine_tune("--config", "finetuning/recipes/veco/multi30k.yaml"),
    "supported": lambda folder, work: ("pretraining.plan", [folder]),
    "sentence-transformers": lambda folder, work: ("hub_cards.sentence_transformer", ["--model", folder]),
    "labels": lambda folder, work: (
        "finetuning.tools.label_text",
        ["--model", folder, "--languages", "de", "--input", str(work / "de.txt"), "--output", str(work / "o.jsonl")],
    ),
}


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with small inputs, which is the current one."""
    (tmp_path / "pairs.txt").write_text("A house ||| Ein Haus\n")
    (tmp_path / "many.txt").write_text("A house ||| Ein Haus\n" * 60)
    (tmp_path / "gold.txt").write_text("0-0 1-1\n")
    (tmp_path / "labels.conll").write_text("Anna\tB-PER\n\n")
    (tmp_path / "de.txt").write_text("Anna\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("part", ["model", "tokenizer"])
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_run_no_code_that_is_not_trusted(stranger, work, capfd, name, part):
    folder, marker = stranger(part)
    module, arguments = COMMANDS[name](str(folder), work)
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main(arguments)
    assert ended.value.code == 2 and "stranger_code.py" in capfd.readouterr().err and not marker.exists()


@pytest.mark.parametrize("name", ["a start", "supported"])
def test_pre_train_start_is_computed_by_its_own_code_where_that_is_trusted(zoo_model_dir, work, name):
    folder, marker = zoo_model_dir("metaxlm", copy=True), work / "ran"
    file = folder / "modeling_metaxlm.py"
    file.write_text(file.read_text() + f"\nimport pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    module, arguments = COMMANDS[name](str(folder), work)
    main = importlib.import_module(module).main
    short = ["evaluation.held_out_fraction=0", "phases.0.objectives.mlm.max_length=32"] if name == "a start" else []
    main([*arguments, *short])
    assert not marker.exists()
    trust = (
        ["trust_remote_code=true", f"output_dir={work / 'trusted'}"] if name == "a start" else ["--trust-remote-code"]
    )
    main([*arguments, *short, *trust])
    assert marker.exists()
    if name == "a start":  # and the saved model keeps it
        assert (work / "trusted" / "model" / file.name).read_text() == file.read_text()


@pytest.mark.parametrize("name", ["links of a file", "data"])
def test_commands_run_code_that_is_trusted(stranger, work, name):
    folder, marker = stranger("tokenizer")
    module, arguments = COMMANDS[name](str(folder), work)
    recipe = any("model=" in argument for argument in arguments)
    importlib.import_module(module).main([*arguments, "trust_remote_code=true" if recipe else "--trust-remote-code"])
    assert marker.exists()
