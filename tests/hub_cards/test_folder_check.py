"""What keeps a folder from being pushed: each fault that somebody can put into one, and the file that is named."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from hub_cards.card import write_card
from hub_cards.folder_check import check_folder, files_of
from hub_cards.fresh_load import load_folder
from hub_cards.sentence_transformer import write_modules

TOKEN = "hf_" + "a1B2c3D4e5" * 4
PICTURE = b"\x89PNG\r\ntEXtSoftware\0/home/me/plot.py"


def setting(file, **values):
    def change(folder):
        content = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        (folder / file).write_text(json.dumps(content | values))

    return change


def writing(path, content):
    def write(folder):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def replacing(path, old, new):
    def replace(folder):
        text = (folder / path).read_text()
        assert old in text
        (folder / path).write_text(text.replace(old, new))

    return replace


def appending(path, text):
    return lambda folder: (folder / path).write_text((folder / path).read_text() + text)


def removing(path):
    return lambda folder: (folder / path).unlink()


def linking(path, target):
    return lambda folder: (folder / path).symlink_to(target)


def sharded(folder):
    tensors = load_file(folder / "model.safetensors")
    weight_map = {name: f"model-{1 + place % 2}.safetensors" for place, name in enumerate(sorted(tensors))}
    for shard in set(weight_map.values()):
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == shard}
        save_file(part, folder / shard, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def without_a_shard(folder):
    sharded(folder)
    (folder / "model-2.safetensors").unlink()


def cut_short(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def path_with_the_weights(folder):
    file = folder / "model.safetensors"
    save_file(load_file(file), file, metadata={"format": "pt", "source": "/home/me/corpus"})


def part_of_auto_map(folder):
    content = json.loads((folder / "config.json").read_text())
    del content["auto_map"]["AutoModelForTokenClassification"]
    (folder / "config.json").write_text(json.dumps(content))


def other_weights(folder):
    """After the card was written."""
    change_weights(folder, lambda tensors: tensors["lm_head.bias"].add_(1))


def change_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_anew(folder):
    """The card, for weights that were changed."""
    write_card(folder, repo="owner/model", license="apache-2.0", overwrite=True)


TAMPERED = {
    # weights
    "a configuration that is none": (writing("config.json", "[]"), "config.json"),
    "cut short": (cut_short, "model.safetensors"),
    "a shard missing": (without_a_shard, "model-2.safetensors"),
    "further weights": (writing("more/old.safetensors", b"x"), "more/old.safetensors"),
    "index and file": (writing("model.safetensors.index.json", '{"weight_map": {}}'), "model.safetensors.index.json"),
    "an adapter": (writing("adapter_config.json", "{}"), "adapter_config.json"),
    # pickles and states of training
    "a pickle by name": (writing("extra.pkl", b"x"), "extra.pkl"),
    "a pickle as text": (writing("notes.txt", pickle.dumps(print)), "notes.txt"),
    "a pickle as a vocabulary": (writing("sentencepiece.bpe.model", pickle.dumps(print)), "sentencepiece.bpe.model"),
    "a zip": (writing("weights.model", b"PK\x03\x04"), "weights.model"),
    "an optimizer": (writing("optimizer.safetensors", b"x"), "optimizer.safetensors"),
    "a checkpoint": (writing("old/Step-10/a.json", "{}"), "old/Step-10/a.json"),
    # code
    "python in capitals": (writing("EVIL.PY", "import os\n"), "EVIL.PY"),
    "changed code": (appending("encoder.py", "\nprint('hello')\n"), "encoder.py"),
    "code missing": (removing("encoder.py"), "config.json"),
    "code of a class missing": (removing("modeling_xlm_align.py"), "config.json"),
    "part of the auto_map": (part_of_auto_map, "config.json"),
    "code elsewhere": (setting("config.json", auto_map={"AutoModel": "a/b--modeling_xlm_align.C"}), "config.json"),
    "a pipeline outside": (setting("config.json", custom_pipelines={"x": {"impl": "../x.Y"}}), "config.json"),
    "code of a folder below": (setting("more.json", a=[{"auto_map": {"AutoModel": "evil.Model"}}]), "more.json"),
    "a module of others": (writing("modules.json", '[{"type": "os.path.Module"}]'), "modules.json"),
    "a library": (writing("fast.so", b"\x7fELF"), "fast.so"),
    # links and paths
    "a link": (linking("notes.txt", "/etc/hostname"), "notes.txt"),
    "a linked folder": (linking("figures", "/etc"), "figures"),
    "a path of Unix": (setting("config.json", trained_on="/home/me/corpus"), "config.json"),
    "a path of Windows": (setting("config.json", trained_on="C:\\Users\\me\\corpus"), "config.json"),
    "a file URL": (setting("tokenizer_config.json", source="file:///srv/x"), "tokenizer_config.json"),
    "a path with the weights": (path_with_the_weights, "model.safetensors"),
    "a path in a picture": (writing("curves.png", PICTURE), "curves.png"),
    "is_local": (setting("tokenizer_config.json", is_local=False), "tokenizer_config.json"),
    # secrets and what is hidden
    "a token": (writing("notes.md", f"login {TOKEN}\n"), "notes.md"),
    "a key": (writing("notes.md", "-----BEGIN OPENSSH PRIVATE KEY-----\n"), "notes.md"),
    "a password": (writing("notes.md", "from https://me:secret@example.com/x\n"), "notes.md"),
    "settings": (writing(".env", "A=b\n"), ".env"),
    "a hidden folder": (writing(".idea/notes.txt", "x"), ".idea/notes.txt"),
    # what is not what it says
    "no picture": (writing("curves.png", b"MZ"), "curves.png"),
    "no JSON": (writing("more.json", "{"), "more.json"),
    # card
    "no card": (removing("README.md"), "README.md"),
    "metadata": (writing("README.md", "---\nlicense: [\n---\n# A\n"), "README.md"),
    "no license": (replacing("README.md", "license: apache-2.0\n", ""), "README.md"),
    "no limits": (replacing("README.md", "## Limits", "## Other"), "README.md"),
    "a dead link": (appending("README.md", "\n![x](figures/x.png)\n"), "README.md"),
    "a link upwards": (appending("README.md", "\n[x](../x.md)\n"), "README.md"),
    "other weights": (other_weights, "README.md"),
}


@pytest.mark.parametrize("tampered", TAMPERED)
def test_check_folder_refuses_a_tampered_folder(ready_folder, tampered):
    folder = ready_folder()
    change, file = TAMPERED[tampered]
    change(folder)
    assert file in {problem.file for problem in check_folder(folder, load=False)}


def test_check_folder_never_runs_code_that_is_not_ours(ready_folder, tmp_path):
    folder = ready_folder()
    appending("modeling_xlm_align.py", f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n")(folder)
    assert check_folder(folder) and not (tmp_path / "ran").exists()


BIAS, POSITIONS = "roberta.encoder.layer.1.output.dense.bias", "roberta.embeddings.position_embeddings.weight"


@pytest.mark.parametrize(
    "change, config, reason",
    [
        (lambda tensors: tensors[POSITIONS][-1].fill_(torch.nan), {}, "AutoModel: "),  # which short texts do not read
        (lambda tensors: tensors.pop(BIAS), {}, "AutoModel: 1 of its weights"),
        (lambda tensors: tensors.update({"decoder.weight": torch.zeros(2)}), {}, "such as decoder.weight"),
        (lambda tensors: None, {"vocab_size": 1900}, "ids up to 1999"),
        (lambda tensors: None, {"intermediate_size": 50}, "AutoModel: "),
    ],
)
def test_check_loads_finds_faults_that_only_loading_shows(zoo_model_dir, change, config, reason):
    """In this process: what `check_folder` starts in a fresh one."""
    folder = zoo_model_dir("xlm_align", copy=True)
    change_weights(folder, change)
    setting("config.json", **config)(folder)
    assert reason in " ".join(load_folder(str(folder)))


@pytest.mark.slow
def test_check_folder_loads_in_a_fresh_process(ready_folder):
    folder = ready_folder()
    change_weights(folder, lambda tensors: tensors[BIAS].fill_(torch.nan))
    write_anew(folder)
    assert any("not finite" in problem.what for problem in check_folder(folder))
    assert check_folder(folder, load=False) == []


@pytest.mark.parametrize("model_type", ["veco", "ernie_m", "xlm_align", "metaxlm"])
def test_check_folder_accepts_what_pretraining_and_the_card_leave(ready_folder, model_type):
    folder = ready_folder(model_type)
    write_modules(folder, layer=1)  # and what sentence-transformers reads
    if model_type == "veco":
        sharded(folder)
        write_anew(folder)
    assert check_folder(folder, load=False) == []


def test_check_folder_leaves_out_caches(ready_folder):
    folder = ready_folder()
    kept = files_of(folder)
    for path in ("__pycache__/encoder.cpython-311.pyc", ".cache/x.lock", ".DS_Store", "1_Pooling/.DS_Store"):
        writing(path, b"\x80\x04")(folder)
    assert files_of(folder) == kept and "model.safetensors" in kept and check_folder(folder, load=False) == []


def test_check_folder_of_folders_without_a_model(tmp_path):
    with pytest.raises(ValueError, match="no folder"):
        check_folder(tmp_path / "model")
    assert {problem.file for problem in check_folder(tmp_path)} == {"config.json", "model.safetensors"}
