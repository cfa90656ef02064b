"""The loop: the same step however it is split, phases, resume after kill -9."""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from pretraining.checkpoints import checkpoints_of, newest_checkpoint
from pretraining.tracking import plot_curves, read_events


def free_port():
    """Of the system, not of `random`: a run in this process seeds that, and two tests would meet at one port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def command(recipe_file, *arguments, processes=1, script="pretraining/run.py"):
    """The command of a user, for a process of its own (or two)."""
    launch = [sys.executable]
    if processes > 1:
        launch += [
            "-m",
            "accelerate.commands.launch",
            "--multi_gpu",
            "--num_processes",
            str(processes),
            "--num_machines",
            "1",
            "--mixed_precision",
            "no",
            "--dynamo_backend",
            "no",
            "--main_process_port",
            str(free_port()),
        ]
    return [*launch, script, "--config", str(recipe_file), *arguments]


def environment(**more):
    return os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"} | more


def launched(pytestconfig, *arguments, **options):
    done = subprocess.run(
        command(*arguments, **options), cwd=pytestconfig.rootpath, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def largest_difference(first, second):
    assert first.keys() == second.keys()
    return max((first[key] - second[key]).abs().max().item() for key in first)


CA_MLM = [
    f"phases.0.objectives.ca_mlm_{kind}={{batch_size: 8, max_length: 48, mask_probability: 0.25}}"
    for kind in ("segments", "pairs")
]


ERNIE_M = [
    "model.type=ernie_m",
    *(f"phases.0.objectives.{name}={{batch_size: 8, max_length: 96}}" for name in ("camlm", "btmlm")),
]


XLM_ALIGN = ["model.type=xlm_align", "phases.0.objectives.dwa={}", "model.config.query_positions=all_aligned"]


METAXLM = ["model.type=metaxlm", "phases.0.objectives.kd={}", "teacher={path: TEACHER, language: en}"]


@pytest.mark.parametrize(
    "objectives",
    [[], CA_MLM, ERNIE_M, XLM_ALIGN, METAXLM],
    ids=["mlm-tlm", "ca-mlm", "ernie-m", "xlm-align", "metaxlm"],
)
def test_one_update_is_the_same_for_1x8_2x4_accumulated_and_2_processes(
    train, objectives, teacher_dir, recipe_file, tmp_path, pytestconfig
):
    # VECO: its cross-attention gets no gradient from mlm and tlm, which plain DDP would not bear
    plain = ["optimizer.max_grad_norm=0.5", "model.type=veco", *objectives]
    plain = [override.replace("TEACHER", str(teacher_dir)) for override in plain]
    train(*plain, f"output_dir={tmp_path / 'whole'}")
    train(*plain, f"output_dir={tmp_path / 'split'}", "gradient_accumulation_steps=2")
    launched(pytestconfig, recipe_file, *plain, f"output_dir={tmp_path / 'two'}", processes=2)
    whole = weights(tmp_path / "whole")
    assert largest_difference(whole, weights(tmp_path / "split")) < 1e-5
    assert largest_difference(whole, weights(tmp_path / "two")) < 1e-5
    for name in ("split", "two"):
        for a, b in zip(read_events(tmp_path / "whole"), read_events(tmp_path / name), strict=True):
            assert a["predictions"] == b["predictions"]
            assert abs(a["loss"] - b["loss"]) < 1e-5 and abs(a["grad_norm"] - b["grad_norm"]) < 1e-4
    assert json.loads((tmp_path / "two" / "run.json").read_text())["sessions"][0]["hardware"]["processes"] == 2


def test_micro_batches_differ_in_their_predictions(recipe_file, tmp_path):
    """What makes the test above mean something: a mean of micro-batch means would give another step."""
    from pretraining.data.corpora import load_corpora, training_batches
    from pretraining.recipe import Recipe
    from pretraining.start.initialization import load_tokenizer
    from zoo_core.recipes import load_recipe

    recipe = load_recipe(Recipe, str(recipe_file), ["gradient_accumulation_steps=2"])
    tokenizer = load_tokenizer(recipe)
    corpora = load_corpora(recipe, tokenizer)
    loader = training_batches(corpora, recipe.phases[0], recipe, 0, tokenizer, 0, 1, 0)
    counts = [int(batch["mlm"]["labels"].ne(-100).sum()) for batch in loader]
    assert len(counts) == 6 and any(a != b for a, b in zip(counts[::2], counts[1::2], strict=True))


RECORDING_DRIVER = """
import hashlib, json, os, sys
from pathlib import Path
from pretraining import run, training

run_phase = training.Training._run_phase

def recording(self, index, start):
    run_phase(self, index, start)
    model = self.accelerator.unwrap_model(self.model)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    name = f"phase-{index}-rank-{self.accelerator.process_index}.txt"
    Path(os.environ["RECORD"], name).write_text(digest.hexdigest())

training.Training._run_phase = recording
run.main(sys.argv[1:])
"""


def test_vecos_two_phases(train, recipe_file, tmp_path):
    """Cross-attention alone, by the cross terms alone; then all by all terms. Resumed at every step, bit-equal."""
    recipe = yaml.safe_load(recipe_file.read_text(encoding="utf-8"))
    recipe["model"]["type"] = "veco"
    names, settings = ("ca_mlm_segments", "ca_mlm_pairs"), {"batch_size": 4, "max_length": 48}
    objectives = {name: settings | {"terms": ["cross"]} for name in names}
    first = {"name": "cross", "steps": 2, "learning_rate": 1e-3, "trainable": ["*.crossattention.*"]}
    second = {"name": "all", "steps": 2, "optimizer": "carried", "objectives": {name: settings for name in names}}
    recipe["model"]["config"]["hidden_dropout_prob"] = 0.1
    recipe["phases"] = [first | {"objectives": objectives}, second]
    recipe |= {"save_every_steps": 1, "keep_checkpoints": 0}
    recipe["evaluation"] = {"held_out_fraction": 0.1, "max_examples": 8}
    recipe_file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    train()
    run = tmp_path / "run"
    before, after = (weights(run / "checkpoints" / f"step-{step}") for step in (1, 2))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all(".crossattention." in name for name in moved)
    moved = {name for name in after if not torch.equal(after[name], weights(run)[name])}
    assert any(".crossattention." in name for name in moved) and any("embeddings" in name for name in moved)
    events = read_events(run)
    of_first = {key.split("/")[1] for key in events[0] if key.startswith("loss/")}
    assert of_first == {f"{name}.cross" for name in names}
    of_second = {key.split("/")[1] for key in events[-2] if key.startswith("loss/")}
    assert of_second == {f"{name}.{term}" for name in names for term in ("inner", "cross")}
    # both terms are looked at in both phases, and the sentences are compared plugged out
    held_out = [event for event in events if "held_out/ca_mlm_pairs.inner/en-de" in event]
    assert [event["step"] for event in held_out] == [2, 4]
    assert all("unigram_entropy/ca_mlm_pairs.cross/en-de" in e and "retrieval/en-de" in e for e in held_out)
    for step in (1, 2, 3):
        resumed = tmp_path / f"resumed-{step}"
        shutil.copytree(run, resumed)
        shutil.rmtree(resumed / "model")
        for later in range(step + 1, 5):
            shutil.rmtree(resumed / "checkpoints" / f"step-{later}")
        train(f"output_dir={resumed}", "--resume")
        assert largest_difference(weights(resumed), weights(run)) == 0.0


def test_phases_on_two_processes(recipe_file, tmp_path, pytestconfig):
    """Embeddings alone first, everything next: equal on both ranks, equal to one process."""
    phase = "steps: 2, learning_rate: 1.0e-3, objectives: {mlm: {batch_size: 8}, tlm: {batch_size: 8}}"
    phases = f"phases=[{{name: first, trainable: ['*embeddings*'], {phase}}}, {{name: second, {phase}}}]"
    phases = phases.replace("batch_size: 8", "batch_size: 8, max_length: 128")
    driver = tmp_path / "driver.py"
    driver.write_text(RECORDING_DRIVER)
    results = {}
    for processes in (1, 2):
        record = tmp_path / f"record-{processes}"
        record.mkdir()
        output = tmp_path / f"run-{processes}"
        done = subprocess.run(
            command(recipe_file, phases, f"output_dir={output}", processes=processes, script=str(driver)),
            cwd=pytestconfig.rootpath,
            env=environment(RECORD=str(record), PYTHONPATH=str(pytestconfig.rootpath)),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        for index in (0, 1):
            digests = {path.read_text() for path in record.glob(f"phase-{index}-rank-*.txt")}
            assert len(list(record.glob(f"phase-{index}-*"))) == processes and len(digests) == 1
        results[processes] = output
    assert largest_difference(weights(results[1]), weights(results[2])) < 1e-5

    after_first = weights(checkpoints_of(results[1])[0])
    after_second = weights(results[1])
    torch.manual_seed(1)
    from modeling.modeling_xlm_align import XlmAlignForPreTraining

    fresh = XlmAlignForPreTraining._from_config(
        XlmAlignForPreTraining.config_class.from_pretrained(results[1] / "model")
    ).state_dict()
    for name, tensor in after_first.items():
        trained = "embeddings" in name
        assert torch.equal(tensor, fresh[name]) != trained, name
        moved = not torch.equal(tensor, after_second[name])
        idle = name.startswith(("q_linear.", "k_linear."))  # without dwa nothing points
        assert moved or idle or name.endswith(("key.bias", "token_type_embeddings.weight")), name


def test_a_carried_phase_goes_on_with_moments_and_schedule(train, tmp_path):
    """Two phases have the learning rates of one as long as both, also where the second is resumed in its midst."""
    rate, objectives = "learning_rate: 1.0e-3, warmup_steps: 2", "objectives: {mlm: {batch_size: 8, max_length: 64}}"
    every = ["log_every_steps=1", "save_every_steps=1", "keep_checkpoints=0"]
    head = f"{{name: a, trainable: ['*word_embeddings.weight'], steps: 2, {rate}, {objectives}}}"  # one group of Adam's

    def rates(run):
        return [event["learning_rate"] for event in read_events(tmp_path / run) if "learning_rate" in event]

    def moments(run):
        state = torch.load(newest_checkpoint(tmp_path / run) / "optimizer.bin", weights_only=True)
        return {int(entry["step"]) for entry in state["state"].values()}

    train(f"phases=[{{name: a, steps: 6, {rate}, {objectives}}}]", f"output_dir={tmp_path / 'one'}", *every)
    carried = f"phases=[{head}, {{name: b, optimizer: carried, steps: 4, {objectives}}}]"
    train(carried, f"output_dir={tmp_path / 'two'}", *every)
    assert rates("two") == rates("one") == pytest.approx([0.0, 5e-4, 1e-3, 7.5e-4, 5e-4, 2.5e-4])
    assert moments("two") == {4, 6}
    for step in (2, 4):
        resumed = tmp_path / f"resumed-{step}"
        shutil.copytree(tmp_path / "two", resumed)
        shutil.rmtree(resumed / "model")
        for later in range(step + 1, 7):
            shutil.rmtree(resumed / "checkpoints" / f"step-{later}")
        train(carried, f"output_dir={resumed}", *every, "--resume")
        assert rates(resumed.name) == rates("one")

    train(f"phases=[{head}, {{name: b, steps: 4, {rate}, {objectives}}}]", f"output_dir={tmp_path / 'fresh'}", *every)
    assert rates("fresh") == pytest.approx([0.0, 5e-4, 0.0, 5e-4, 1e-3, 5e-4]) and moments("fresh") == {4}


def test_killed_ten_times_the_weights_are_bit_equal(recipe_file, tmp_path, pytestconfig):
    """Dropout is on here: random states have to come back too."""
    steps = 240
    arguments = [
        f"phases.0.steps={steps}",
        "phases.0.warmup_steps=5",
        "phases.0.schedule=linear",
        "save_every_steps=4",
        "model.config.hidden_dropout_prob=0.1",
        "model.config.attention_probs_dropout_prob=0.1",
    ]
    launched(pytestconfig, recipe_file, *arguments, f"output_dir={tmp_path / 'whole'}")
    folder, chance, resumed = tmp_path / "killed", random.Random(), []
    for _ in range(10):
        resume = ["--resume"] if (folder / "recipe.yaml").exists() else []
        process = subprocess.Popen(
            command(recipe_file, *arguments, f"output_dir={folder}", *resume),
            cwd=pytestconfig.rootpath,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        # killed as soon as a random one of the next steps is announced; after every fourth, a checkpoint is written
        target = newest_step(folder) + chance.randint(1, steps // 12)
        with process:
            for line in process.stderr:
                if (step := re.search(r"step (\d+)/", line)) and int(step[1]) >= target:
                    break
            assert process.poll() is None, "the run ended before it could be killed"
            process.kill()
        resumed.append(newest_step(folder))
        assert not (folder / "model").exists()
        for checkpoint in checkpoints_of(folder):
            assert weights(checkpoint).keys() and (checkpoint / "progress.json").exists()
    launched(pytestconfig, recipe_file, *arguments, f"output_dir={folder}", "--resume")
    assert max(resumed) > 0
    ours, reference = weights(folder), weights(tmp_path / "whole")
    assert ours.keys() == reference.keys()
    assert all(torch.equal(ours[key], reference[key]) for key in reference)
    steps_of = [[event["step"] for event in read_events(run_folder)] for run_folder in (folder, tmp_path / "whole")]
    assert steps_of[0] == steps_of[1]


def newest_step(folder):
    checkpoint = newest_checkpoint(folder) if folder.exists() else None
    return int(checkpoint.name.removeprefix("step-")) if checkpoint else 0


def test_a_half_written_checkpoint_is_never_picked_up(train, tmp_path):
    train("save_every_steps=1")
    folder = tmp_path / "run"
    last = newest_checkpoint(folder)
    half = folder / "checkpoints" / ".step-99.tmp"
    last.rename(half)
    (half / "progress.json").unlink()
    assert newest_checkpoint(folder).name == "step-2"
    for path in (folder / "model").iterdir():
        path.unlink()
    (folder / "model").rmdir()
    train("save_every_steps=1", "--resume")
    assert not half.exists() and (folder / "checkpoints" / "step-3").exists()
    assert json.loads((folder / "run.json").read_text())["sessions"][1]["resumed_from"] == "step-2"


def test_full_disk_leaves_the_checkpoint_before_it(train, recipe_file, tmp_path, pytestconfig):
    """The system refuses to write more than a small file, as a full disk would, from the second checkpoint on."""
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import resource, sys\n"
        "from pretraining import run, training\n"
        "save = training.save_checkpoint\n"
        "def limited(accelerator, folder, progress, keep):\n"
        "    if progress['step'] == 2:\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))\n"
        "    return save(accelerator, folder, progress, keep)\n"
        "training.save_checkpoint = limited\n"
        "run.main(sys.argv[1:])\n"
    )
    arguments = ["save_every_steps=1"]
    done = subprocess.run(
        command(recipe_file, *arguments, script=str(driver)),
        cwd=pytestconfig.rootpath,
        env=environment(PYTHONPATH=str(pytestconfig.rootpath)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "checkpoint of step 2 could not be written" in done.stderr and "--resume" in done.stderr
    folder = tmp_path / "run"
    assert [path.name for path in checkpoints_of(folder)] == ["step-1"]
    assert not list((folder / "checkpoints").glob(".*"))
    train(*arguments, "--resume")
    train(*arguments, f"output_dir={tmp_path / 'whole'}")
    assert largest_difference(weights(folder), weights(tmp_path / "whole")) == 0


def test_bfloat16_and_gradient_checkpointing_train_the_same_model(train, tmp_path):
    train(f"output_dir={tmp_path / 'fp32'}")
    train(f"output_dir={tmp_path / 'checkpointed'}", "model.gradient_checkpointing=true")
    AcceleratorState._reset_state()
    train(f"output_dir={tmp_path / 'bf16'}", "precision=bf16")
    exact = weights(tmp_path / "fp32")
    assert largest_difference(exact, weights(tmp_path / "checkpointed")) < 1e-6
    rounded = weights(tmp_path / "bf16")
    assert all(tensor.dtype == torch.float32 for tensor in rounded.values())
    assert 0 < largest_difference(exact, rounded) < 0.01
    first, second = (read_events(tmp_path / name)[0]["loss"] for name in ("fp32", "bf16"))
    assert abs(first - second) < 0.01 * first


def test_training_learns_and_shows_it(train, recipe_file, tmp_path):
    train(
        "phases.0.steps=30",
        "phases.0.learning_rate=0.003",
        "evaluation.held_out_fraction=0.1",
        "evaluation.every_steps=15",
        "log_every_steps=5",
    )
    folder = tmp_path / "run"
    events = read_events(folder)
    logged = [event for event in events if "loss" in event]
    assert logged[-1]["loss"] < logged[0]["loss"]
    assert {f"loss/mlm/{name}" for name in ("en", "de", "zh")} | {"loss/tlm/en-de", "loss/tlm/en-zh"} <= {
        key for event in logged for key in event
    }
    evaluations = [event for event in events if "held_out/mlm/en" in event]
    assert [event["step"] for event in evaluations] == [15, 30]
    assert 3 < evaluations[0]["unigram_entropy/mlm/en"] < 7
    assert 0 <= evaluations[0]["retrieval/en-de"] <= 1 and len(evaluations[0]["retrieval_by_layer/en-de"]) == 3
    assert (folder / "curves.png").stat().st_size > 10_000
    assert plot_curves(tmp_path) is None
    facts = json.loads((folder / "run.json").read_text())
    assert facts["steps"] == 30 and facts["parameters"] > 0 and len(facts["corpora"]) == 5


def test_dry_run_prints_the_plan_and_writes_nothing(train, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    train("--dry_run", "model.type=veco")
    printed = capsys.readouterr().out
    for part in (
        "embeddings",
        "cross-attention",
        "masked-LM head",
        "Adam",
        "predictions of one step",
        "en-zh",
        "<mask>",
    ):
        assert part in printed
    assert not (tmp_path / "run").exists()
