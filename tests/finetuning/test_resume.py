"""Runs that are resumed after damage: files that are empty or cut off, full disks, folders that were moved."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer
from crosslingual_zoo.zoo_core.provenance import read_json, write_json
from tests.finetuning.tasks import Killed, assert_same_seed
from tests.finetuning.test_finetuning_run import kill_at

STEPS = 5  # of a seed of `topics`, with checkpoints at 2, 4 and 5


@pytest.fixture(scope="module")
def killed_run(topics_recipe, tmp_path_factory):
    """Folder of a run of a seed that was killed in its last step."""
    folder = tmp_path_factory.mktemp("killed") / "out"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, STEPS, [])
        main([*topics_recipe(folder), "seeds=[1]"])
    return folder


@pytest.fixture
def killed(killed_run, tmp_path):
    """Folder of the seed of a copy of that run, which `topics` resumes."""
    return shutil.copytree(killed_run, tmp_path / "out") / "seed-1"


def steps_of(patch, arguments):
    """The steps that a run trains."""
    steps = []
    kill_at(patch, None, steps)
    main(arguments)
    return steps


DAMAGE = {
    "empty": lambda content: b"",
    "cut": lambda content: content[:-9],
    "zeros": lambda content: bytes(len(content)),
}


def damage_file(file, damage):
    """The file as a crash of the machine or a full disk may leave it."""
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(DAMAGE[damage](file.read_bytes()))


def is_one_line(message):
    """Whether an error is the last line of what a run printed, and has no traceback."""
    *before, last = message.splitlines()
    return "error: " in last and not any("error: " in line or "Traceback" in line for line in before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damages"),
    [
        ("model.safetensors", "empty cut zeros missing"),
        ("optimizer.pt", "empty cut zeros missing"),
        ("scheduler.pt", "missing empty"),
        ("rng_state.pth", "empty cut"),
        ("config.json", "cut"),
        ("tokenizer.json", "zeros"),
        ("trainer_state.json", "empty zeros"),
    ],
)
def test_run_resumes_from_the_checkpoint_before_a_damaged_one(
    name, damages, killed_run, topics, topics_run, tmp_path, monkeypatch, capsys
):
    for damage in damages.split():
        out = shutil.copytree(killed_run, tmp_path / damage)
        file = out / "seed-1" / "checkpoints" / "checkpoint-4" / name
        damage_file(file, damage)
        with monkeypatch.context() as patch:
            assert steps_of(patch, [*topics, "seeds=[1]", f"output_dir={out}", "--resume"]) == [2, 3, 4], damage
        printed = capsys.readouterr().err
        assert "checkpoint-2" in printed
        if name != "trainer_state.json":  # the Trainer writes it last: a kill may have left it
            assert str(file) in printed
        assert_same_seed(out / "seed-1", topics_run / "seed-1")


@pytest.mark.slow
def test_run_refuses_checkpoints_that_are_all_damaged(killed, topics, refused, monkeypatch):
    for step in (2, 4):
        damage_file(killed / "checkpoints" / f"checkpoint-{step}" / "optimizer.pt", "empty")
    before = sorted(killed.rglob("*"))
    message = refused([*topics, "seeds=[1]", "--resume"])
    assert str(killed / "checkpoints" / "checkpoint-4" / "optimizer.pt") in message
    assert is_one_line(message)
    assert sorted(killed.rglob("*")) == before
    shutil.rmtree(killed / "checkpoints")
    assert steps_of(monkeypatch, [*topics, "seeds=[1]", "--resume"]) == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_run_refuses_a_damaged_checkpoint_whose_weights_it_will_read(damage, killed, topics, refused):
    state = read_json(killed / "checkpoints" / "checkpoint-4" / "trainer_state.json")
    assert state["best_global_step"] == 2
    weights_of_best = killed / "checkpoints" / "checkpoint-2" / "model.safetensors"
    damage_file(weights_of_best, damage)
    message = refused([*topics, "seeds=[1]", "--resume"])
    assert str(weights_of_best) in message
    assert is_one_line(message)


class DiskIsFull(Exception):
    """As safetensors and torch.save raise it: no OSError."""


def fill_disk_at(patch, target):
    """From now on, writing the file whose path ends with `target` ends before its end."""
    save_model = FineTuningTrainer.save_model
    save_other = torch.save

    def check(file):
        if str(file).endswith(target):
            damage_file(Path(file), "cut")
            raise DiskIsFull("I/O error: No space left on device (os error 28)\nmore")

    def full_save_model(self, output_dir=None, _internal_call=False):
        save_model(self, output_dir, _internal_call)
        check(f"{output_dir}/model.safetensors")

    def full_save(value, file, *arguments, **options):
        save_other(value, file, *arguments, **options)
        check(file)

    patch.setattr(FineTuningTrainer, "save_model", full_save_model)
    patch.setattr(torch, "save", full_save)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "resumed"),
    [
        ("seed-1/checkpoints/checkpoint-2/model.safetensors", [0, 1, 2, 3, 4]),
        ("seed-1/checkpoints/checkpoint-4/model.safetensors", [2, 3, 4]),
        ("seed-1/checkpoints/checkpoint-4/optimizer.pt", [2, 3, 4]),
        ("seed-1/checkpoints/checkpoint-4/rng_state.pth", [2, 3, 4]),
        ("seed-1/model/model.safetensors", []),
    ],
)
def test_run_on_a_full_disk_is_one_line_and_resumes(
    target, resumed, topics, topics_run, tmp_path, refused, monkeypatch
):
    with monkeypatch.context() as patch:
        fill_disk_at(patch, target)
        message = refused([*topics, "seeds=[1]"])
    half = (tmp_path / "out" / target).parent
    assert str(half) in message
    assert "No space left" in message
    assert not half.exists()
    assert is_one_line(message)
    assert steps_of(monkeypatch, [*topics, "seeds=[1]", "--resume"]) == resumed
    assert_same_seed(tmp_path / "out" / "seed-1", topics_run / "seed-1")


@pytest.mark.slow
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("selection", ["source_dev", "last"])
def test_run_killed_before_its_results_and_moved(selection, copied, topics, tmp_path, monkeypatch):
    """The Trainer's state names the best checkpoint by the path that it had."""
    arguments = [*topics, "seeds=[1]", f"selection={selection}"]
    main([*arguments, f"output_dir={tmp_path / 'whole'}"])
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(FineTuningTrainer, "outcomes", Mock(side_effect=Killed))
        main(arguments)
    (shutil.copytree if copied else shutil.move)(tmp_path / "out", tmp_path / "moved")
    if copied:  # and is another run by now
        for file in (tmp_path / "out").rglob("model.safetensors"):
            damage_file(file, "empty")
    assert steps_of(monkeypatch, [*arguments, f"output_dir={tmp_path / 'moved'}", "--resume"]) == []
    assert_same_seed(tmp_path / "moved" / "seed-1", tmp_path / "whole" / "seed-1")


@pytest.mark.slow
def test_run_killed_in_training_and_moved(killed, topics, topics_run, tmp_path, monkeypatch):
    shutil.move(killed.parent, tmp_path / "moved")
    assert steps_of(monkeypatch, [*topics, "seeds=[1]", f"output_dir={tmp_path / 'moved'}", "--resume"]) == [4]
    assert_same_seed(tmp_path / "moved" / "seed-1", topics_run / "seed-1")


@pytest.fixture
def moved(tiny_model, sample_corpus_dir, topics, tmp_path):
    """moved(name) -> overrides of `topics` for copies of its model, tokenizer and tables in a folder of that name."""

    def overrides(name):
        folder = tmp_path / name
        shutil.copytree(tiny_model, folder / "model")
        shutil.copytree(tiny_model, folder / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors"))
        shutil.copytree(sample_corpus_dir, folder / "data")
        columns = "label_column: topic"
        return [
            *topics,
            f"model={folder / 'model'}",
            f"tokenizer={folder / 'tokenizer'}",
            f"train=[{{path: {folder / 'data/en/train.jsonl'}, {columns}}}]",
            f"evaluation=[{{path: '{folder}/data/{{language}}/test.jsonl', languages: [en, de], {columns}}}]",
            *"seeds=[1] training.max_steps=2".split(),
        ]

    return overrides


@pytest.mark.slow
def test_run_resumes_wherever_its_model_and_tables_are(moved, tmp_path, monkeypatch, capsys):
    main([*moved("here"), "save_models=false"])
    folder = tmp_path / "out"
    before = read_results(folder)
    resumed = [*moved("there"), "--resume", f"hub_root={tmp_path}", "trust_remote_code=true"]
    shutil.rmtree(tmp_path / "here")
    assert steps_of(monkeypatch, [*resumed, "save_models=false"]) == []
    after = read_results(folder)
    assert after["scores"] == before["scores"]
    assert after["model"]["folder"] == str(tmp_path / "there" / "model")
    capsys.readouterr()
    assert steps_of(monkeypatch, resumed) == []  # with save_models
    assert str(folder / "seed-1") in capsys.readouterr().err


@pytest.mark.slow
def test_run_refuses_another_run_and_to_resume_with_other_contents(moved, tmp_path, refused, change_weights):
    main(moved("here"))
    again = moved("there")
    assert "--resume" in refused(again)
    resumed = [*again, "--resume"]
    message = refused([*resumed, "training.batch_size=24", "max_length=20"])
    assert "training.batch_size: 48 -> 24; max_length: 24 -> 20" in message

    change_weights(tmp_path / "there" / "model")
    assert "fingerprint" in refused(resumed)
    restore("model/model.safetensors", tmp_path)

    file = tmp_path / "there" / "tokenizer" / "tokenizer.json"
    settings = read_json(file)
    pieces = settings["model"]["vocab"]
    pieces[100:102] = reversed(pieces[100:102])
    write_json(file, settings)
    assert "tokenizer_fingerprint" in refused(resumed)
    restore("tokenizer/tokenizer.json", tmp_path)

    table = tmp_path / "there" / "data" / "de" / "test.jsonl"
    table.write_text(table.read_text(encoding="utf-8").replace('"text": "', '"text": "So ', 1), encoding="utf-8")
    assert "evaluation_data.1.fingerprint" in refused(resumed)
    restore("data/de/test.jsonl", tmp_path)
    main(resumed)


def restore(name, folder):
    shutil.copy(folder / "here" / name, folder / "there" / name)
