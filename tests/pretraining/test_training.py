"""The loop: the same update however it is split, phases, resume after kill -9, and what goes wrong."""

import json
import os
import random
import re
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from accelerate.state import AcceleratorState, PartialState
from safetensors.torch import load_file

from pretraining import run
from pretraining.checkpoints import checkpoints_of, newest_checkpoint
from pretraining.tracking import plot_curves, read_events

LANGUAGES = ("en", "de", "zh")


@pytest.fixture
def recipe_file(tmp_path, sample_tokenizer_dir, pytestconfig):
    """A small recipe on the sample corpus; dropout is off, so that splitting a batch can change nothing."""
    corpus = str(pytestconfig.rootpath / "sample_corpus")
    recipe = {
        "output_dir": str(tmp_path / "run"),
        "model": {
            "type": "xlm_align",
            "config": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "max_position_embeddings": 130,
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
            },
        },
        "tokenizer": str(sample_tokenizer_dir),
        "monolingual": [{"language": name, "path": corpus, "config": name} for name in LANGUAGES],
        "bitext": [
            {
                "source_language": "en",
                "target_language": name,
                "join_on": "id",
                "source": {"path": corpus, "config": "en"},
                "target": {"path": corpus, "config": name},
            }
            for name in LANGUAGES[1:]
        ],
        "phases": [
            {
                "name": "main",
                "steps": 3,
                "learning_rate": 1e-3,
                "schedule": "constant",
                "objectives": {"mlm": {"batch_size": 8, "max_length": 64}, "tlm": {"batch_size": 8, "max_length": 128}},
            }
        ],
        "log_every_steps": 1,
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def train(recipe_file, *arguments):
    """The command of a user, in this process."""
    AcceleratorState._reset_state()
    PartialState._reset_state()
    run.main(["--config", str(recipe_file), *arguments])


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
            str(random.randint(20_000, 60_000)),
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


@pytest.mark.parametrize("objectives", [[], CA_MLM], ids=["mlm-tlm", "ca-mlm"])
def test_one_update_is_the_same_for_1x8_2x4_accumulated_and_2_processes(
    objectives, recipe_file, tmp_path, pytestconfig
):
    # VECO: its cross-attention gets no gradient from mlm and tlm, which plain DDP would not bear
    plain = ["optimizer.max_grad_norm=0.5", "model.type=veco", *objectives]
    train(recipe_file, *plain, f"output_dir={tmp_path / 'whole'}")
    train(recipe_file, *plain, f"output_dir={tmp_path / 'split'}", "gradient_accumulation_steps=2")
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
    """What makes the test above mean something: a mean of micro-batch means would give another update."""
    from common.recipes import load_recipe
    from pretraining.corpora import load_corpora, training_batches
    from pretraining.initialization import load_tokenizer
    from pretraining.recipe import Recipe

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


def test_vecos_two_phases(recipe_file, tmp_path):
    """Cross-attention alone, by the cross terms alone; then all by all terms. Resumed at every step, bit-equal."""
    recipe = yaml.safe_load(recipe_file.read_text(encoding="utf-8"))
    recipe["model"]["type"] = "veco"
    names, settings = ("ca_mlm_segments", "ca_mlm_pairs"), {"batch_size": 4, "max_length": 48}
    objectives = {name: settings | {"terms": ["cross"]} for name in names}
    first = {"name": "cross", "steps": 2, "learning_rate": 1e-3, "trainable": ["*.crossattention.*"]}
    second = {"name": "all", "steps": 2, "learning_rate": 1e-3, "objectives": {name: settings for name in names}}
    second["optimizer"] = "carried"
    recipe["model"]["config"]["hidden_dropout_prob"] = 0.1
    recipe["phases"] = [first | {"objectives": objectives}, second]
    recipe |= {"save_every_steps": 1, "keep_checkpoints": 0}
    recipe["evaluation"] = {"held_out_fraction": 0.1, "max_examples": 8}
    recipe_file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    train(recipe_file)
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
        train(recipe_file, f"output_dir={resumed}", "--resume")
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
        assert moved or name.endswith(("key.bias", "token_type_embeddings.weight")), name


@pytest.mark.parametrize("optimizer", ["fresh", "carried"])
def test_adams_moments_between_phases(recipe_file, tmp_path, optimizer):
    body = "steps: 2, learning_rate: 1.0e-3, objectives: {mlm: {batch_size: 8, max_length: 64}}"
    train(recipe_file, f"phases=[{{name: a, {body}}}, {{name: b, optimizer: {optimizer}, {body}}}]")
    state = torch.load(newest_checkpoint(tmp_path / "run") / "optimizer.bin", weights_only=True)
    steps = {int(entry["step"]) for entry in state["state"].values()}
    assert steps == ({4} if optimizer == "carried" else {2})


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
        # killed as soon as a random one of the next updates is announced; after every fourth, a checkpoint is written
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


def test_a_half_written_checkpoint_is_never_picked_up(recipe_file, tmp_path):
    train(recipe_file, "save_every_steps=1")
    folder = tmp_path / "run"
    last = newest_checkpoint(folder)
    half = folder / "checkpoints" / ".step-99.tmp"
    last.rename(half)
    (half / "progress.json").unlink()
    assert newest_checkpoint(folder).name == "step-2"
    for path in (folder / "model").iterdir():
        path.unlink()
    (folder / "model").rmdir()
    train(recipe_file, "save_every_steps=1", "--resume")
    assert not half.exists() and (folder / "checkpoints" / "step-3").exists()
    assert json.loads((folder / "run.json").read_text())["sessions"][1]["resumed_from"] == "step-2"


def test_full_disk_leaves_the_checkpoint_before_it(recipe_file, tmp_path, pytestconfig):
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
    train(recipe_file, *arguments, "--resume")
    train(recipe_file, *arguments, f"output_dir={tmp_path / 'whole'}")
    assert largest_difference(weights(folder), weights(tmp_path / "whole")) == 0


def fails(capsys, recipe_file, *arguments):
    """The message with which a command ends."""
    with pytest.raises(SystemExit) as stop:
        train(recipe_file, *arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_run_folder_errors(recipe_file, tmp_path, capsys):
    assert "nothing to resume" in fails(capsys, recipe_file, "--resume")
    train(recipe_file)
    assert "is not empty" in fails(capsys, recipe_file)
    assert "is finished" in fails(capsys, recipe_file, "--resume")
    message = fails(capsys, recipe_file, "--resume", "phases.0.learning_rate=0.5", "seed=3")
    assert "phases.0.learning_rate: 0.001 -> 0.5" in message and "seed: 1 -> 3" in message
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert "is not empty" in fails(capsys, recipe_file, f"output_dir={tmp_path / 'mine'}")
    assert "not a run folder" in fails(capsys, recipe_file, f"output_dir={tmp_path / 'mine'}", "--resume")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    assert "is a file" in fails(capsys, recipe_file, f"output_dir={recipe_file}")


def test_recipe_errors(recipe_file, capsys):
    def message(*arguments):
        return fails(capsys, recipe_file, *arguments)

    assert "learning_rate" in message("phases.0.learning_rat=1")
    assert "phases.0.steps" in message("phases.0.steps=ten")
    assert "no objective 'mlmm'" in message("phases.0.objectives={mlmm: {batch_size: 4}}")
    assert "lists no corpus" in message("bitext=[]")
    assert "evaluation.batch_size" in message("evaluation.batch_size=0")
    assert "keep_checkpoints" in message("keep_checkpoints=-1")
    assert "peak rate would never be reached" in message("phases.0.warmup_steps=10")
    assert "betas" in message("optimizer.betas=[2, 3]")
    assert "seed" in message("seed=-1")
    assert "monolingual.0.size" in message("monolingual.0.size=0")
    assert "is not there" in message("tokenizer=runs/no/such/folder")
    assert "nothing would be learnt" in message("phases.0.objectives={}")
    assert "phases is empty" in message("phases=[]")
    assert "mask_probability" in message("phases.0.objectives.mlm.mask_probability=1.5")
    assert "'hidden_size'" in message("model.config.hiden_size=32")
    assert "matches no parameter" in message("phases.0.trainable=['*crosattention*']")
    assert "128 positions" in message("phases.0.objectives.mlm.max_length=500")
    assert "no GPU" in message("precision=fp16")
    assert "no backward pass on a CPU" in message("model.attention=flex_attention")
    assert "use sdpa" in message("model.attention=flash_attention_2")
    assert "names no tokenizer" in message("tokenizer=null")
    assert "Lower it" in message("model.config.max_position_embeddings=60")
    assert "gradient_accumulation_steps" in message("gradient_accumulation_steps=9")
    assert "held_out_fraction keeps none" in message("evaluation.alignment=true", "evaluation.held_out_fraction=0")
    only_text = ("bitext=[]", "phases.0.objectives={mlm: {batch_size: 4}}")
    assert "no phase has an objective" in message("evaluation.alignment=true", *only_text)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["phases.0.objectives.ca_mlm_pairs={batch_size: 4}"], "a 'xlm_align' model does not have this objective"),
        (
            [
                "phases.0.objectives.ca_mlm_pairs={batch_size: 4}",
                "model.type=veco",
                "model.config.cross_attention=false",
            ],
            "needs cross-attention",
        ),
        (["phases.0.objectives.tlm.terms=[cross]"], "tlm has no terms to choose from"),
        (
            ["phases.0.objectives.ca_mlm_pairs={batch_size: 4, terms: [crosss]}", "model.type=veco"],
            "the terms of ca_mlm_pairs are inner, cross",
        ),
        (["monolingual.0.document_pattern=x"], "it needs document_column"),
        (["monolingual.0.document_column=id", "monolingual.0.document_pattern='('"], "no regular expression"),
        (["monolingual.0.document_column=id", "monolingual.0.document_pattern='^zz'"], "matches nothing in"),
        (
            ["model.type=veco", "phases.0.trainable=['*.crossattention.*']"],
            "its losses (mlm, tlm) pass through none of these parameters",
        ),
    ],
)
def test_veco_recipe_errors(recipe_file, capsys, overrides, message):
    with pytest.raises(SystemExit) as stop:
        train(recipe_file, *overrides)
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_translation_model_is_no_start(recipe_file, tmp_path, capsys):
    from modeling.modeling_veco import VecoForConditionalGeneration

    train(recipe_file, "model.type=veco", "phases.0.steps=1")
    folder = tmp_path / "translation"
    VecoForConditionalGeneration.from_encoder(tmp_path / "run" / "model").save_pretrained(folder)
    start = [f"model.start_from={folder}", "model.type=veco", f"output_dir={tmp_path / 'never'}"]
    for config in ("{}", "{cross_attention: true}"):
        assert "is a translation model" in fails(capsys, recipe_file, *start, f"model.config={config}")


def test_another_tokenizer_or_architecture_is_refused(recipe_file, tmp_path, capsys, sample_tokenizer_dir):
    train(recipe_file)
    start = f"model.start_from={tmp_path / 'run' / 'model'}"
    message = fails(capsys, recipe_file, start, "model.type=veco", f"output_dir={tmp_path / 'other'}")
    assert "is a checkpoint of 'xlm_align'" in message
    from pretraining.train_tokenizer import train_tokenizer

    train_tokenizer((f"word {number}" for number in range(200)), tmp_path / "small", 40)
    message = fails(
        capsys, recipe_file, start, f"tokenizer={tmp_path / 'small'}", "model.config={}", f"output_dir={tmp_path / 'o'}"
    )
    assert "pieces and the checkpoint" in message
    message = fails(
        capsys, recipe_file, start, "model.config={intermediate_size: 48}", f"output_dir={tmp_path / 'shape'}"
    )
    assert "other shapes than model.config asks for" in message
    run_folder = [f"model.start_from={tmp_path / 'run'}", f"output_dir={tmp_path / 'never'}"]
    assert "keeps its model in model/" in fails(capsys, recipe_file, *run_folder)
    damaged = shutil.copytree(tmp_path / "run" / "model", tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:1000])
    message = fails(
        capsys, recipe_file, f"model.start_from={damaged}", "model.config={}", f"output_dir={tmp_path / 'never'}"
    )
    assert "damaged or incomplete" in message and not (tmp_path / "never").exists()
    train(recipe_file, start, "model.config={}", f"output_dir={tmp_path / 'continued'}")
    first = read_events(tmp_path / "run")[0]["loss"]
    assert read_events(tmp_path / "continued")[0]["loss"] < first


def test_divergence_stops_and_keeps_the_last_good_checkpoint(recipe_file, tmp_path, capsys):
    message = fails(
        capsys,
        recipe_file,
        "phases.0.learning_rate=1e30",
        "phases.0.steps=8",
        "log_every_steps=8",
        "save_every_steps=1",
        "phases.0.warmup_steps=1",
    )
    assert "diverged" in message and "model.start_from=" in message
    assert all(torch.isfinite(tensor).all() for tensor in weights(newest_checkpoint(tmp_path / "run")).values())


def test_resuming_on_changed_text_is_refused(recipe_file, tmp_path, capsys):
    text = tmp_path / "mine.txt"
    text.write_text("one line of text\nand another line\n", encoding="utf-8")
    corpus = f"monolingual=[{{language: en, path: {text}}}]"
    only = "phases.0.objectives={mlm: {batch_size: 2, max_length: 64}}"
    train(recipe_file, corpus, only, "save_every_steps=1", "bitext=[]")
    shutil.rmtree(tmp_path / "run" / "model")
    text.write_text("one line of text\nand another one\n", encoding="utf-8")
    message = fails(capsys, recipe_file, corpus, only, "save_every_steps=1", "bitext=[]", "--resume")
    assert "corpus en changed since" in message


def test_an_update_that_predicts_nothing_is_an_error(recipe_file, tmp_path, capsys):
    message = fails(
        capsys,
        recipe_file,
        "phases.0.objectives={mlm: {batch_size: 1, max_length: 64, mask_probability: 0.0000001}}",
    )
    assert "predicts nothing" in message and "mask_probability" in message


def test_bfloat16_and_gradient_checkpointing_train_the_same_model(recipe_file, tmp_path):
    train(recipe_file, f"output_dir={tmp_path / 'fp32'}")
    train(recipe_file, f"output_dir={tmp_path / 'checkpointed'}", "model.gradient_checkpointing=true")
    AcceleratorState._reset_state()
    train(recipe_file, f"output_dir={tmp_path / 'bf16'}", "precision=bf16")
    exact = weights(tmp_path / "fp32")
    assert largest_difference(exact, weights(tmp_path / "checkpointed")) < 1e-6
    rounded = weights(tmp_path / "bf16")
    assert all(tensor.dtype == torch.float32 for tensor in rounded.values())
    assert 0 < largest_difference(exact, rounded) < 0.01
    first, second = (read_events(tmp_path / name)[0]["loss"] for name in ("fp32", "bf16"))
    assert abs(first - second) < 0.01 * first


def test_training_learns_and_shows_it(recipe_file, tmp_path, capsys):
    train(
        recipe_file,
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
    assert {f"loss/mlm/{name}" for name in LANGUAGES} | {"loss/tlm/en-de", "loss/tlm/en-zh"} <= {
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


def test_dry_run_prints_the_plan_and_writes_nothing(recipe_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    train(recipe_file, "--dry_run", "model.type=veco")
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
