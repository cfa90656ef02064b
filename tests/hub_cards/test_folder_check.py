"""What keeps a folder from being pushed: each fault that somebody can put into one, and the reason given."""

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hub_cards.card import write_card
from hub_cards.folder_check import check_folder, files_of, main
from hub_cards.fresh_load import load_folder
from hub_cards.sentence_transformer import write_modules

PICKLED = pickle.dumps(print, protocol=4)
ASCII_PICKLE = b"cos\nsystem\n(S'true'\ntR."
TOKEN = "hf_" + "a1B2c3D4e5" * 4


def edit_json(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def setting(file, **values):
    return lambda folder: edit_json(folder / file, lambda content: content.update(values))


def writing(path, content):
    def write(folder):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def appending(path, text):
    return lambda folder: (folder / path).write_text((folder / path).read_text() + text)


def removing(path):
    return lambda folder: (folder / path).unlink()


def copying(path, target):
    return lambda folder: shutil.copy(folder / path, folder / target)


def linking(path, target):
    return lambda folder: (folder / path).symlink_to(target)


def moving_code_elsewhere(folder):
    edit_json(
        folder / "config.json",
        lambda c: c["auto_map"].update(AutoModel="somebody/code--modeling_xlm_align.XlmAlignModel"),
    )


def pipeline_from_outside(folder):
    edit_json(
        folder / "config.json",
        lambda c: c["custom_pipelines"]["word-alignment"].update(impl="../pipeline.Pipeline"),
    )


def zipped_weights(folder):
    with zipfile.ZipFile(folder / "weights.model", "w") as archive:
        archive.writestr("data.pkl", PICKLED)


def sharded(folder, first="model-1.safetensors"):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    for part, keys in parts.items():
        save_file({key: tensors[key] for key in keys}, folder / part, metadata={"format": "pt"})
    weight_map = {key: part for part, keys in parts.items() for key in keys}
    weight_map = {key: first if part == "model-1.safetensors" else part for key, part in weight_map.items()}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def without_a_shard(folder):
    sharded(folder)
    (folder / "model-2.safetensors").unlink()


def with_an_emptied_shard(folder):
    sharded(folder)
    save_file({"other": torch.zeros(1)}, folder / "model-2.safetensors")


def only_pickled_weights(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def noted(**notes):
    """Further notes in the header of the weights."""

    def note(folder):
        file = folder / "model.safetensors"
        save_file(load_file(file), file, metadata={"format": "pt", **notes})

    return note


PICTURE = (b"\x89PNG\r\n", b"IEND\xaeB`\x82")


def path_in_a_picture(folder):
    (folder / "curves.png").write_bytes(b"tEXtSoftware\0/home/me/plot.py".join(PICTURE))


def zip_behind_a_picture(folder):
    (folder / "curves.png").write_bytes(b"".join(PICTURE))
    with zipfile.ZipFile(folder / "curves.png", "a") as archive:
        archive.writestr("data.pkl", PICKLED)


def cut_short(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def no_licence(folder):
    card = folder / "README.md"
    card.write_text(card.read_text().replace("license: apache-2.0\n", ""))


def no_limits(folder):
    card = folder / "README.md"
    card.write_text(card.read_text().replace("## Limits", "## Other"))


def other_weights(folder):
    """After the card, and with it record.json, was written."""
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.bias"] = tensors["lm_head.bias"] + 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_anew(folder):
    """The card, for weights that were changed."""
    shutil.rmtree(folder / "record")
    (folder / "README.md").unlink()
    write_card(folder, repo="owner/model", licence="apache-2.0")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


TAMPERED = {
    # weights
    "no weights": (removing("model.safetensors"), "model.safetensors", "has no weights as safetensors"),
    "only a pickle": (only_pickled_weights, "model.safetensors", "only pytorch_model.bin"),
    "no configuration": (removing("config.json"), "config.json", "has none"),
    "cut short": (cut_short, "model.safetensors", "no whole safetensors file"),
    "a shard missing": (without_a_shard, "model-2.safetensors", "it is not there"),
    "a shard of others": (with_an_emptied_shard, "model-2.safetensors", "weights are not in it"),
    "a shard outside": (lambda f: sharded(f, "../model-1.safetensors"), "model.safetensors.index.json", "outside"),
    "further weights": (copying("model.safetensors", "old.safetensors"), "old.safetensors", "does not use it"),
    "weights below": (writing("more/x.safetensors", b"x"), "more/x.safetensors", "does not use it"),
    "index and file": (writing("model.safetensors.index.json", '{"weight_map": {}}'), "index.json", "as well"),
    # pickles and states of training
    "a pickle by name": (writing("extra.pkl", b"x"), "extra.pkl", "pickle"),
    "a pickle as text": (writing("notes.txt", PICKLED), "notes.txt", "pickle"),
    "a pickle of old": (writing("notes.txt", ASCII_PICKLE), "notes.txt", "pickle"),
    "a pickle as a vocabulary": (writing("sentencepiece.bpe.model", PICKLED), "sentencepiece.bpe.model", "pickle"),
    "a pickle that breaks off": (writing("notes.txt", ASCII_PICKLE[:-1] + b"!"), "notes.txt", "pickle"),
    "an archive behind a picture": (zip_behind_a_picture, "curves.png", "no png picture"),
    "a zip of pickles": (zipped_weights, "weights.model", "archive"),
    "an optimizer": (writing("optimizer.pt", b"x"), "optimizer.pt", "state of training"),
    "an optimizer as safetensors": (writing("optimizer.safetensors", b"x"), "optimizer.safetensors", "state"),
    "a checkpoint": (writing("checkpoint-10/config.json", "{}"), "checkpoint-10/config.json", "state of training"),
    "a checkpoint below": (writing("old/Step-10/a.json", "{}"), "old/Step-10/a.json", "state of training"),
    "arguments": (writing("training_args.bin", b"x"), "training_args.bin", "state of training"),
    # code
    "an extra python file": (writing("setup.py", "import os\n"), "setup.py", "neither config.json nor its code"),
    "python below": (writing("record/more.py", "import os\n"), "record/more.py", "neither config.json"),
    "changed code": (appending("encoder.py", "\nprint('hello')\n"), "encoder.py", "differs from modeling/encoder.py"),
    "code missing": (removing("encoder.py"), "encoder.py", "imports it, and it is not there"),
    "code of a class missing": (removing("modeling_xlm_align.py"), "config.json", "names modeling_xlm_align.py"),
    "code elsewhere": (moving_code_elsewhere, "config.json", "code in another repository, somebody/code--"),
    "a pipeline outside": (pipeline_from_outside, "config.json", "code outside of its folder, ../pipeline"),
    "an adapter": (writing("adapter_config.json", "{}"), "adapter_config", "adapter of"),
    "a module of others": (writing("modules.json", '[{"type": "os.path.Module"}]'), "modules.json", "os.path.Module"),
    "code in a list": (setting("config.json", auto_map=["a/b--c.D"]), "config.json", "another repository, a/b--c.D"),
    "python in capitals": (writing("EVIL.PY", "import os\n"), "EVIL.PY", "neither config.json"),
    "code of a folder below": (
        writing("0_Transformer/config.json", '{"auto_map": {"AutoModel": "evil.Model"}}'),
        "0_Transformer/config.json",
        "code outside of its folder, evil.Model",
    ),
    "code of another reader": (
        writing("preprocessor_config.json", '{"auto_map": {"AutoProcessor": "a/b--c.D"}}'),
        "preprocessor_config.json",
        "another repository, a/b--c.D",
    ),
    "a module that names modules": (
        writing("modules.json", '[{"type": "sentence_transformers.models.Router", "path": "r"}]'),
        "modules.json",
        "models.Router",
    ),
    "arguments of a module": (
        writing("sentence_bert_config.json", '{"model_args": {"subfolder": "x"}}'),
        "sentence_bert_config.json",
        "model_args",
    ),
    "a kernel": (setting("config.json", attn_implementation="a/kernel"), "config.json", "is a/kernel, another"),
    "a kernel of a part": (setting("config.json", _attn_implementation={"x": "a/k@v1"}), "config.json", "is a/k@v1"),
    "a library": (writing("fast.so", b"\x7fELF"), "fast.so", "no use for"),
    # links and paths
    "a link outside": (linking("notes.txt", "/etc/hostname"), "notes.txt", "link to /etc/hostname"),
    "a folder outside": (linking("figures", "/etc"), "figures", "link to /etc"),
    "a link to nothing": (linking("notes.txt", "nowhere"), "notes.txt", "link to nowhere"),
    "a path of Unix": (setting("config.json", trained_on="/home/me/corpus"), "config.json", "/home/me/corpus"),
    "a path of Windows": (setting("config.json", trained_on="C:\\Users\\me\\corpus"), "config.json", "C:"),
    "a file URL": (setting("tokenizer_config.json", source="file:///srv/x"), "tokenizer_config.json", "file:"),
    "a path in the card": (appending("README.md", "\nFound in /scratch/me/run.\n"), "README.md", "/scratch/me/run"),
    "a path upwards": (setting("config.json", decoder="../other"), "config.json", "names ../other, outside"),
    "a path as a key": (setting("config.json", where={"/home/me/corpus": 1}), "config.json", "/home/me/corpus"),
    "a path behind a key": (
        writing("more.json", '{"a": "/home/me/corpus", "a": "b"}'),
        "more.json",
        "the key a twice",
    ),
    "a path with the weights": (noted(source="/home/me/corpus"), "model.safetensors", "/home/me/corpus"),
    "a path in ONNX": (writing("model.onnx", b"\x08\x07/home/me/export.py\x12"), "model.onnx", "/home/me/export.py"),
    "data outside of ONNX": (writing("model.onnx", b"\n\x08location\x12\x0b../data.bin"), "model.onnx", "../data.bin"),
    "a path in a picture": (path_in_a_picture, "curves.png", "/home/me/plot.py"),
    "is_local": (setting("tokenizer_config.json", is_local=False), "tokenizer_config.json", "the key is_local"),
    # secrets and what is hidden
    "a token": (writing("notes.md", f"login {TOKEN}\n"), "notes.md", "a token or a key, hf_a1B"),
    "a token in JSON": (setting("generation_config.json", note=TOKEN), "generation_config.json", "token"),
    "a token with the weights": (noted(login=TOKEN), "model.safetensors", "token"),
    "a token behind an escape": (writing("more.json", json.dumps(TOKEN).replace("f", "\\u0066")), "more.json", "token"),
    "a token in a name": (writing("notes.md", f"my_{TOKEN}"), "notes.md", "token"),
    "a key": (writing("notes.md", "-----BEGIN OPENSSH PRIVATE KEY-----\n"), "notes.md", "key"),
    "a password": (writing("notes.md", "from https://me:secret@example.com/x\n"), "notes.md", "key"),
    "settings": (writing(".env", "A=b\n"), ".env", "hidden file"),
    "a hidden folder": (writing(".idea/notes.txt", "x"), ".idea/notes.txt", "hidden file"),
    # names
    "two names for one": (writing("CONFIG.json", "{}"), "config.json", "the name of CONFIG.json"),
    "a name that turns": (writing("notes\u202etxt.md", "x"), "notes\\u202etxt.md", "Its name holds '\\u202e'"),
    "a name of Windows": (writing("..\\..\\x.json", "{}"), "x.json", "Its name holds '\\\\'"),
    # what is not what it says
    "objects in YAML": (writing("more.yaml", "a: !!python/name:os.system\n"), "more.yaml", "Python objects"),
    "nested too deep": (writing("more.json", "[" * 100_000), "more.json", "not JSON"),
    "no picture": (writing("curves.png", b"MZ"), "curves.png", "no png picture"),
    "no text": (writing("notes.txt", b"\xff\xfe\0"), "notes.txt", "not text in UTF-8"),
    "no JSON": (writing("more.json", "{"), "more.json", "not JSON"),
    "no configuration in it": (writing("config.json", "[]"), "config.json", "not a JSON object"),
    # card and record
    "no card": (removing("README.md"), "README.md", "no card"),
    "metadata": (writing("README.md", "---\nlicense: [\n---\n# A\n"), "README.md", "metadata is not legible"),
    "no licence": (no_licence, "README.md", "names no licence"),
    "no limits": (no_limits, "README.md", 'no section "Limits"'),
    "a dead link": (appending("README.md", "\n![x](record/figures/x.png)\n"), "README.md", "record/figures/x.png"),
    "a link of the card upwards": (appending("README.md", "\n[x](../x.md)\n"), "README.md", "../x.md"),
    "other weights": (other_weights, "record/", "weights"),
}  # fmt: skip


@pytest.mark.parametrize("tampered", TAMPERED)
def test_a_tampered_folder_is_refused_with_the_reason(ready_folder, tampered):
    folder = ready_folder()
    if tampered == "a token in JSON":
        (folder / "generation_config.json").write_text("{}")
    change, file, reason = TAMPERED[tampered]
    change(folder)
    problems = check_folder(folder, load=False)
    found = [problem for problem in problems if file in problem.file and reason in problem.what]
    assert found, problems
    for problem in problems:
        assert problem.why.endswith(".") and problem.remedy.endswith((".", ").")), problem


def test_code_that_is_not_ours_is_never_run(ready_folder, tmp_path):
    folder = ready_folder()
    appending("modeling_xlm_align.py", f"\nopen({str(tmp_path / 'ran')!r}, 'w')\n")(folder)
    assert check_folder(folder) and not (tmp_path / "ran").exists()


def not_a_number(tensors, folder):
    tensors["roberta.encoder.layer.1.output.dense.bias"][3] = torch.nan


def without_a_part(tensors, folder):
    del tensors["roberta.encoder.layer.1.output.dense.bias"]


def with_a_part_of_others(tensors, folder):
    tensors["decoder.weight"] = torch.zeros(2)


def with_a_larger_tokenizer(tensors, folder):
    for key in ("roberta.embeddings.word_embeddings.weight", "lm_head.bias"):
        tensors[key] = tensors[key][:1900].clone()
    setting("config.json", vocab_size=1900)(folder)


def with_other_sizes(tensors, folder):
    setting("config.json", intermediate_size=50)(folder)


@pytest.mark.parametrize(
    "change, reason",
    [
        (not_a_number, "AutoModel: weights that are not finite, such as encoder.layer.1.output.dense.bias"),
        (without_a_part, "AutoModel: 1 of its weights are in no file, such as encoder.layer.1.output.dense.bias"),
        (with_a_part_of_others, "1 weights that AutoModelForPreTraining has no place for, such as decoder.weight"),
        (with_a_larger_tokenizer, "The tokenizer has ids up to 1999, and the model 1900 embeddings"),
        (with_other_sizes, "AutoModel does not load the folder: "),
    ],
)
def test_faults_that_only_loading_shows(zoo_model_dir, change, reason):
    """In this process: what `check_folder` starts in a fresh one."""
    folder = zoo_model_dir("xlm_align", copy=True)
    tensors = load_file(folder / "model.safetensors")
    change(tensors, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert reason in " ".join(what for _, what, _, _ in load_folder(str(folder)))


@pytest.mark.slow
def test_what_a_fresh_process_finds_is_told(ready_folder):
    folder = ready_folder()
    tensors = load_file(folder / "model.safetensors")
    not_a_number(tensors, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_anew(folder)
    problems = check_folder(folder)
    assert any("weights that are not finite" in problem.what for problem in problems)
    assert check_folder(folder, load=False) == []


@pytest.mark.parametrize("model_type", ["veco", "ernie_m", "xlm_align", "metaxlm"])
def test_a_folder_as_pretraining_and_the_card_leave_it_is_right(ready_folder, model_type):
    folder = ready_folder(model_type)
    before = contents(folder)
    assert check_folder(folder, load=False) == []
    assert contents(folder) == before


def test_shards_are_right_too(ready_folder):
    folder = ready_folder()
    sharded(folder)
    write_anew(folder)
    assert check_folder(folder, load=False) == []


def test_code_of_an_older_package_is_told_in_one_line(ready_folder):
    folder = ready_folder()
    for path in ("encoder.py", "masked_lm.py"):
        appending(path, "\n")(folder)
    (problem,) = check_folder(folder, load=False)
    assert problem.file == "encoder.py, masked_lm.py" and "They differ from" in problem.what


def test_what_sentence_transformers_reads_may_go_out(ready_folder):
    folder = ready_folder()
    write_modules(folder, layer=1)
    assert check_folder(folder, load=False) == []


def test_a_file_that_cannot_be_read(ready_folder, monkeypatch):
    folder = ready_folder()
    path_open = Path.open

    def refuse(self, *arguments, **options):
        if self.name == "NOTICE":
            raise PermissionError(13, "Permission denied")
        return path_open(self, *arguments, **options)

    (folder / "NOTICE").write_text("Made here.\n")
    monkeypatch.setattr(Path, "open", refuse)
    (problem,) = check_folder(folder, load=False)
    assert (problem.file, problem.what) == ("NOTICE", "It cannot be read: Permission denied")


def test_caches_are_left_out(ready_folder):
    folder = ready_folder()
    for path in ("__pycache__/encoder.cpython-311.pyc", ".cache/huggingface/x.lock", ".DS_Store", "record/.DS_Store"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"\x80\x04")
    kept, left_out = files_of(folder)
    assert left_out == [".DS_Store", ".cache/", "__pycache__/", "record/.DS_Store"]
    assert "model.safetensors" in kept and not [path for path in kept if "DS_Store" in path or "cache" in path]
    assert check_folder(folder, load=False) == []


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="There is no folder .* Name the folder with config.json"):
        check_folder(tmp_path / "model")
    (tmp_path / "model").mkdir()
    assert {Path(problem.file).name for problem in check_folder(tmp_path / "model")} == {
        "config.json",
        "model.safetensors",
    }


# the command


@pytest.mark.slow
def test_the_command_says_that_a_folder_is_whole(ready_folder, capsys):
    folder = ready_folder()
    (folder / "__pycache__").mkdir()
    main(["--model", str(folder)])
    shown = capsys.readouterr().out
    count = sum(file.is_file() for file in folder.rglob("*"))
    assert f"{folder} is whole, and a fresh process loads it: {count} files to push." in shown
    assert "Left out: __pycache__/" in shown


def test_the_command_names_every_reason(ready_folder, tmp_path, capsys):
    folder = ready_folder()
    (folder / "optimizer.pt").write_bytes(PICKLED)
    (folder / "more.py").write_text("")
    for model, told in ((folder, "for 2 reasons:\n- "), (tmp_path / "none", "There is no folder")):
        with pytest.raises(SystemExit) as stop:
            main(["--model", str(model)])
        assert stop.value.code == 2 and told in capsys.readouterr().err


# an edited card


@pytest.mark.parametrize(
    "part, told", [("    - type: accuracy\n      value: ", "model-index"), ("| **average** | ", "Results")]
)
def test_scores_that_were_edited_by_hand_are_refused(part, told, made_up_run, monkeypatch):
    monkeypatch.setattr("hub_cards.folder_check._is_picture", lambda *_: True)  # the plots are made up
    folder, files = made_up_run("veco", "classification")
    card = write_card(folder, files, repo="owner/model", licence="apache-2.0")
    text = card.read_text(encoding="utf-8")
    card.write_text(text.replace("## Limits", "I like it.\n\n## Limits", 1), encoding="utf-8")  # into the results
    assert [problem.what for problem in check_folder(folder, load=False)] == [
        "It was edited, and its Results are not what record/ holds"
    ]
    card.write_text(text.replace("## Limits and risks\n", "## Limits and risks\n\nI like it.\n", 1), encoding="utf-8")
    assert check_folder(folder, load=False) == []
    assert part in text
    card.write_text(text.replace(part, part + "9", 1), encoding="utf-8")
    assert f"its {told} are not what record/ holds" in str(check_folder(folder, load=False)[0])
