"""What keeps a folder from being pushed: each fault that somebody can put into one, and the file that is named."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from crosslingual_zoo.hub_cards.card import write_card
from crosslingual_zoo.hub_cards.folder_check import check_folder
from crosslingual_zoo.hub_cards.fresh_load import load_folder
from crosslingual_zoo.hub_cards.sentence_transformer import write_modules
from crosslingual_zoo.modeling import MODEL_TYPES

TOKEN = b"hf_" + b"a1B2c3D4e5" * 4


def change(folder, path, to):
    """None removes a file, a path makes a link, a dictionary sets fields of JSON, a function gets the content."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if to is None:
        file.unlink()
    elif isinstance(to, Path):
        file.symlink_to(to)
    elif isinstance(to, dict):
        fields = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(fields | to))
    elif callable(to):
        file.write_bytes(to(file.read_bytes()))
    else:
        file.write_bytes(to)


def weights(edit, **metadata):
    """For `change`: `edit` gets the tensors."""

    def edit_content(content):
        tensors = load(content)
        edit(tensors)
        return save(tensors, {"format": "pt", **metadata})

    return edit_content


INDEX = "model.safetensors.index.json"
CODE = "modeling_xlm_align.py"
TAMPERED = {  # a file, what is done to it, and the file that is named if it is another one
    # weights
    "a configuration that is none": ("config.json", b"[]"),
    "cut short": ("model.safetensors", lambda content: content[:-10]),
    "a shard missing": (INDEX, b'{"weight_map": {"a": "model-2.safetensors"}}', "model-2.safetensors"),
    "index and file": (INDEX, b'{"weight_map": {}}'),
    "an adapter": ("adapter_config.json", b"{}"),
    "no tokenizer": ("tokenizer.json", None),
    # pickles and states of training
    "a pickle by name": ("extra.pkl", b"x"),
    "a pickle as a vocabulary": ("sentencepiece.bpe.model", pickle.dumps(print)),
    "a zip": ("weights.model", b"PK\x03\x04"),
    "an optimizer": ("optimizer.safetensors", b"x"),
    "a checkpoint": ("old/Step-10/a.json", b"{}"),
    # code
    "changed code": ("encoder.py", lambda content: content + b"\nprint('hello')\n"),
    "code missing": ("encoder.py", None, "config.json"),
    "part of the auto_map": ("config.json", lambda content: content.replace(b"ForTokenClass", b"ForClass")),
    "code elsewhere": ("config.json", {"auto_map": {"AutoModel": "a/b--modeling_xlm_align.C"}}),
    "a pipeline outside": ("config.json", {"custom_pipelines": {"x": {"impl": "../x.Y"}}}),
    "code of a folder below": ("more.json", {"a": [{"auto_map": {"AutoModel": "evil.Model"}}]}),
    "a module of others": ("modules.json", b'[{"type": "os.path.Module"}]'),
    "a library": ("fast.so", b"\x7fELF"),
    # links and paths
    "a link": ("notes.txt", Path("/etc/hostname")),
    "a linked folder": ("figures", Path("/etc")),
    "a path of Unix": ("config.json", {"trained_on": "/home/me/corpus"}),
    "a path of Windows": ("config.json", {"trained_on": "C:\\Users\\me\\corpus"}),
    "a file URL": ("tokenizer_config.json", {"source": "file:///srv/x"}),
    "a path with the weights": ("model.safetensors", weights(lambda tensors: None, source="/home/me/corpus")),
    "a path in a picture": ("curves.png", b"\x89PNG\r\ntEXtSoftware\0/home/me/plot.py"),
    "is_local": ("tokenizer_config.json", {"is_local": False}),
    # secrets and what is hidden
    "a token": ("notes.md", b"login %s\n" % TOKEN),
    "a key": ("notes.md", b"-----BEGIN OPENSSH PRIVATE KEY-----\n"),
    "a password": ("notes.md", b"from https://me:secret@example.com/x\n"),
    "a hidden folder": (".idea/notes.txt", b"x"),
    # what is not what it says
    "no picture": ("curves.png", b"MZ"),
    "no JSON": ("more.json", b"{"),
    # card
    "no card": ("README.md", None),
    "metadata": ("README.md", b"---\nlicense: [\n---\n# A\n"),
    "no license": ("README.md", lambda content: content.replace(b"license: apache-2.0\n", b"")),
    "a dead link": ("README.md", lambda content: content + b"\n![x](figures/x.png)\n"),
    "other weights": ("model.safetensors", weights(lambda tensors: tensors["lm_head.bias"].add_(1)), "README.md"),
}


@pytest.mark.parametrize("tampered", TAMPERED)
def test_check_folder_refuses_a_tampered_folder(ready_folder, tampered):
    folder = ready_folder()
    path, to, *other_file = TAMPERED[tampered]
    [named] = other_file or [path]
    change(folder, path, to)
    assert named in {problem.file for problem in check_folder(folder, load=False)}


def test_check_folder_never_runs_code_that_is_not_ours(ready_folder, tmp_path):
    folder = ready_folder()
    change(folder, CODE, lambda content: content + f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n".encode())
    assert check_folder(folder)
    assert not (tmp_path / "ran").exists()


BIAS = "roberta.encoder.layer.1.output.dense.bias"
POSITIONS = "roberta.embeddings.position_embeddings.weight"


@pytest.mark.parametrize(
    "tensors, config, reason",
    [
        (lambda tensors: tensors[POSITIONS][-1].fill_(torch.nan), {}, "AutoModel: "),  # which short texts do not read
        (lambda tensors: tensors.pop(BIAS), {}, "AutoModel: 1 of its weights"),
        (lambda tensors: tensors.update({"decoder.weight": torch.zeros(2)}), {}, "such as decoder.weight"),
        (lambda tensors: None, {"vocab_size": 1900}, "ids up to 1999"),
        (lambda tensors: None, {"intermediate_size": 50}, "AutoModel: "),
    ],
)
def test_check_loads_finds_faults_that_only_loading_shows(zoo_model_dir, tensors, config, reason):
    """In this process: what `check_folder` starts in a fresh one."""
    folder = zoo_model_dir("xlm_align", copy=True)
    change(folder, "model.safetensors", weights(tensors))
    change(folder, "config.json", config)
    assert reason in " ".join(load_folder(str(folder)))


@pytest.mark.slow
def test_check_folder_loads_in_a_fresh_process(ready_folder):
    folder = ready_folder()
    change(folder, "model.safetensors", weights(lambda tensors: tensors[BIAS].fill_(torch.nan)))
    write_card(folder, repo="owner/model", license="apache-2.0", overwrite=True)  # for weights that were changed
    assert any("not finite" in problem.what for problem in check_folder(folder))
    assert check_folder(folder, load=False) == []


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_check_folder_accepts_what_pretraining_and_the_card_leave(ready_folder, model_type):
    folder = ready_folder(model_type)
    write_modules(folder, layer=1)  # and what sentence-transformers reads
    assert check_folder(folder, load=False) == []
    (folder / "tokenizer.json").rename(folder / "sentencepiece.bpe.model")  # as ERNIE-M's own tokenizer has it
    assert check_folder(folder, load=False) == []
