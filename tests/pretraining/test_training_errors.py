"""Errors of a training run, and the files that it leaves."""

import contextlib
import json
import os
import re
import shutil
import sys
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

from crosslingual_zoo.pretraining.checkpoints import checkpoints_of, open_run_folder, publish_model, start_run_folder
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.start.initialization import Start
from crosslingual_zoo.pretraining.tools.train_tokenizer import train_tokenizer
from crosslingual_zoo.pretraining.tracking import read_events
from crosslingual_zoo.zoo_core.recipes import load_recipe


@pytest.mark.slow
def test_run_refuses_folders(train, fails, recipe_file):
    train("--resume")  # before the folder has begun, it starts the run
    fails()
    fails("--resume")
    message = fails("--resume", "phases.0.learning_rate=0.5", "seed=3")
    assert "phases.0.learning_rate" in message and "seed" in message
    assert "recipe.yaml" in fails(f"output_dir={recipe_file}", "--dry_run")


def test_open_run_folder_resumes_before_a_run_has_begun(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".recipe.yaml.71.tmp").touch()  # of a run that was killed while it wrote its first file
    for name in ("missing", "empty", "begun"):
        recipe = Recipe(output_dir=str(tmp_path / name))
        assert open_run_folder(recipe, resume=True) == (recipe, None)


@pytest.mark.parametrize("name", [".git", ".mine.tmp", ".recipe.yaml.swp", "thesis.txt", "model"])
def test_open_run_folder_refuses_a_folder_that_holds_anything(tmp_path, name):
    (tmp_path / name).mkdir()
    recipe = Recipe(output_dir=str(tmp_path))
    with pytest.raises(ValueError, match=re.escape(name)):
        open_run_folder(recipe, resume=False)
    with pytest.raises(ValueError, match="recipe.yaml"):
        open_run_folder(recipe, resume=True)
    assert os.listdir(tmp_path) == [name]


def test_open_run_folder_resumes_with_another_mirror_of_the_hub(recipe_file, tmp_path):
    """The fingerprints of what it holds are compared."""
    recipe = load_recipe(Recipe, str(recipe_file), [f"output_dir={tmp_path / 'run'}"])
    start_run_folder(recipe)
    moved = replace(recipe, hub_root="elsewhere", trust_remote_code=True)
    assert open_run_folder(moved, resume=True) == (moved, None)
    with pytest.raises(ValueError, match="seed"):
        open_run_folder(replace(recipe, hub_root="elsewhere", seed=7), resume=True)


def test_start_run_folder_removes_leftovers_by_their_own_names(tmp_path):
    leftovers = [".recipe.yaml.71.tmp", ".model.tmp/a", "checkpoints/.step-4.tmp/a", "checkpoints/.step-2.old.tmp/a"]
    others = [".mine.tmp/a", ".recipe.yaml.tmp/a", "checkpoints/.step-4.bak.tmp/a", ".git/a"]
    for name in leftovers + others:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    start_run_folder(Recipe(output_dir=str(tmp_path)))
    assert [name for name in leftovers if (tmp_path / name).exists()] == []
    assert [name for name in others if (tmp_path / name).exists()] == others


class Killed(BaseException):
    """The end of the process, which no handler of an Exception sees."""


@pytest.fixture(scope="session")
def killed_at():
    """`killed_at(n, folder, function)`: calls it, and raises Killed before its n-th change of or in the folder."""
    changes = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "shutil.copyfile")
    state = {"folder": None, "left": 0}

    def hook(event, arguments):
        if state["folder"] and event in changes and any(state["folder"] in str(argument) for argument in arguments):
            state["left"] -= 1
            if state["left"] == 0:
                raise Killed

    sys.addaudithook(hook)  # it stays to the end of the process, and does nothing outside of a call

    def call(number, folder, function):
        state.update(folder=str(folder), left=number)
        try:
            function()
        finally:
            state["folder"] = None

    return call


def test_publish_model_is_whole_or_missing_wherever_it_is_killed(killed_at, tmp_path):
    files = {"config.json": b"{}", "model.safetensors": b"weights" * 1000, "tokenizer.json": b"[]"}
    checkpoint = tmp_path / "checkpoints" / "step-3"
    model = tmp_path / "model"
    (checkpoint / "model").mkdir(parents=True)
    for name, content in files.items():
        (checkpoint / "model" / name).write_bytes(content)
    number = 0
    while not model.exists():
        number += 1
        with contextlib.suppress(Killed):
            killed_at(number, tmp_path, lambda: publish_model(tmp_path, checkpoint))
    assert number > 3 * len(files)
    assert {path.name: path.read_bytes() for path in model.iterdir()} == files
    assert not (tmp_path / ".model.tmp").exists()


MLM = "learning_rate: 0.1, steps: 2, objectives: {mlm: {batch_size: 4}}"
CARRIED = f"phases=[{{name: a, {MLM}}}, {{name: b, optimizer: carried, {MLM}}}]"
DWA = "phases.0.objectives.dwa={}"
KD = "phases.0.objectives.kd={}"
MLM_AND_BTMLM = "phases.0.objectives={mlm: {batch_size: 4, max_length: 48}, btmlm: {batch_size: 4, max_length: 48}}"
ERNIE_M = ["model.type=ernie_m", MLM_AND_BTMLM]
METAXLM = "model.type=metaxlm"
TAUGHT = [METAXLM, KD, "teacher={path: TEACHER, language: en}"]
REFUSED = [  # (overrides, what is named)
    (["phases.0.optimizer=carried"], "phases.0.optimizer"),
    ([CARRIED], "phases.1.learning_rate"),
    (["phases.0.objectives.ca_mlm_pairs={batch_size: 4}"], "objectives.ca_mlm_pairs"),
    (["phases.0.objectives={mlm: {batch_size: 8}, dwa: {}}"], "dwa"),
    ([DWA, "model.config.alignment_layer=3"], "alignment_layer"),
    ([*ERNIE_M, "model.attention=flash_attention_2"], "model.attention"),
    ([*ERNIE_M, "model.config.languages=[en, de]"], "'zh'"),
    ([METAXLM, KD], "phases.0.objectives.kd"),
]
STOPPED = [  # by what is read or made
    (["phases.0.trainable=['*crosattention*']"], "*crosattention*"),
    (["model.type=veco", "phases.0.trainable=['*.crossattention.*']"], "(mlm, tlm)"),
    (["precision=fp16"], "precision"),
    ([*TAUGHT, "teacher.language=sw"], "'sw'"),
    ([*TAUGHT, "phases.0.corpora=[de, en-de]"], "kd"),
]


@pytest.mark.parametrize("overrides, named", REFUSED)
def test_run_refuses_recipes(recipe_file, sample_tokenizer, overrides, named):
    with pytest.raises(ValueError, match=re.escape(named)):
        recipe = load_recipe(Recipe, str(recipe_file), overrides)
        recipe.check()
        Start(recipe).build_config(sample_tokenizer)


@pytest.mark.parametrize("overrides, named", STOPPED)
def test_run_refuses_to_begin(fails, teacher_dir, overrides, named):
    overrides = [override.replace("TEACHER", str(teacher_dir)) for override in overrides]
    assert named in " ".join(fails(*overrides).split())


@pytest.mark.slow
def test_start_from_continues_a_run_and_refuses_another_tokenizer(train, fails, tmp_path):
    train()
    start = f"model.start_from={tmp_path / 'run' / 'model'}"
    train_tokenizer((f"word {number}" for number in range(200)), tmp_path / "small", 40)
    refused = [f"tokenizer={tmp_path / 'small'}", f"output_dir={tmp_path / 'no'}"]
    assert "vocab_size" in fails(start, "model.config={}", *refused)
    train(start, "model.config={}", f"output_dir={tmp_path / 'continued'}")
    assert read_events(tmp_path / "continued")[0]["loss"] < read_events(tmp_path / "run")[0]["loss"]


@pytest.mark.slow
def test_run_refuses_to_resume_on_changed_text(train, fails, tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("one line of text\nand another line\n", encoding="utf-8")
    settings = [f"monolingual=[{{language: en, path: {text}}}]", "bitext=[]", "save_every_steps=1"]
    settings.append("phases.0.objectives={mlm: {batch_size: 2, max_length: 64}}")
    train(*settings)
    shutil.rmtree(tmp_path / "run" / "model")
    text.write_text("one line of text\nand another one\n", encoding="utf-8")
    assert "corpus en" in fails(*settings, "--resume")


def swap_two_tokens(folder):
    """Changes the ids of two ordinary tokens of a tokenizer, and nothing else."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, dict):  # WordPiece's
        first, second = sorted(vocabulary, key=vocabulary.get)[-2:]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    else:
        vocabulary[50], vocabulary[51] = vocabulary[51], vocabulary[50]
    file.write_text(json.dumps(content), encoding="utf-8")


def add_to_weights(folder):
    file = folder / "model.safetensors"
    weights = {name: tensor + 1.0 for name, tensor in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, change, named",
    [
        ("tokenizer", swap_two_tokens, "the tokenizer"),
        ("student-of", add_to_weights, "the teacher"),
        ("student-of", swap_two_tokens, "the teacher"),
    ],
)
def test_run_refuses_to_resume_with_what_has_changed_at_the_same_path(
    name, change, named, train, fails, sample_tokenizer_dir, teacher_dir, assert_same_run, tmp_path
):
    """The folder of the run stays as it was, and the run ends like an uninterrupted one after all is restored."""
    folder = tmp_path / name
    settings = ["phases.0.steps=2", "save_every_steps=1", "keep_checkpoints=0"]
    if name == "tokenizer":
        shutil.copytree(sample_tokenizer_dir, folder)
        settings.append(f"tokenizer={folder}")
    else:
        shutil.copytree(teacher_dir, folder)
        settings += ["model.type=metaxlm", "phases.0.objectives.kd={}", f"teacher={{path: {folder}, language: en}}"]
    train(*settings)
    run = shutil.copytree(tmp_path / "run", tmp_path / "stopped")
    shutil.rmtree(run / "model")
    shutil.rmtree(checkpoints_of(run)[-1])
    times = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    original = shutil.copytree(folder, tmp_path / "original")
    change(folder)
    message = " ".join(fails(*settings, f"output_dir={run}", "--resume").split())
    assert re.findall(r"the tokenizer|the teacher|corpus \w+", message) == [named]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == times
    shutil.rmtree(folder)
    shutil.copytree(original, folder)
    train(*settings, f"output_dir={run}", "--resume")
    assert_same_run(run, tmp_path / "run")
