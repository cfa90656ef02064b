"""Several processes and machines: who sees which example, runs that go on with more or fewer of them, and what
accelerate is told."""

import json
import re
import shutil
from collections import Counter, defaultdict

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from safetensors.torch import load_file

from pretraining import sharding

# writes the (objective, corpus, example) of each batch as the loop takes it, a line each, to a file of this process
RECORDING_DRIVER = """
import json, os, sys
from pretraining import run, training

batches = training.training_batches

def recorded(corpora, phase, recipe, index, tokenizer, start, processes, rank, *others):
    for number, batch in enumerate(batches(corpora, phase, recipe, index, tokenizer, start, processes, rank, *others)):
        step = start + number // recipe.gradient_accumulation_steps
        seen = [
            (name, corpus, int(example))
            for name, sub_batch in batch.items()
            for corpus, example in zip(sub_batch["languages"], sub_batch["examples"], strict=True)
        ]
        with open(f"{os.environ['RECORD']}-{rank}.jsonl", "a") as file:
            print(json.dumps({"update": step, "seen": seen}), file=file)
        yield batch

training.training_batches = recorded
run.main(sys.argv[1:])
"""
CONFIGURATIONS = ("ddp", "fsdp2")


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def largest_difference(first, second):
    assert first.keys() == second.keys()
    return max((first[key] - second[key]).abs().max().item() for key in first)


def examples_of(record):
    """update -> how often each example was seen, by all processes of a run."""
    seen = defaultdict(Counter)
    for file in record.parent.glob(f"{record.name}-*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            seen[line["update"]].update(map(tuple, line["seen"]))
    return seen


def test_a_run_goes_on_with_more_or_fewer_processes_and_every_example_is_seen_once(launch, tmp_path):
    driver = tmp_path / "driver.py"
    driver.write_text(RECORDING_DRIVER)
    common = ("phases.0.steps=4", "save_every_steps=2", "keep_checkpoints=0", "gradient_accumulation_steps=2")
    seen = {}

    def run(name, processes, *arguments):
        record, folder = tmp_path / f"record-{name}", f"output_dir={tmp_path / name}"
        done = launch(*common, folder, *arguments, processes=processes, script=driver, RECORD=str(record))
        assert len(list(tmp_path.glob(f"record-{name}-*"))) == processes
        seen[name] = examples_of(record)
        return done

    run("one", 1)
    run("two", 2)
    assert sorted(seen["one"]) == [0, 1, 2, 3]
    for name, examples in seen["one"].items():
        assert sum(examples.values()) == 16 and set(examples.values()) == {1}, name  # 8 of mlm, 8 of tlm
    assert seen["two"] == seen["one"]
    for start, processes in (("one", 2), ("two", 1)):
        name = f"{start}-then-{processes}"
        shutil.copytree(tmp_path / start, tmp_path / name)
        shutil.rmtree(tmp_path / name / "model")
        shutil.rmtree(tmp_path / name / "checkpoints" / "step-4")
        said = run(name, processes, "--resume").stderr
        assert re.search(rf"the run had {3 - processes} processes and has {processes} now", " ".join(said.split()))
        assert seen[name] == {update: seen["one"][update] for update in (2, 3)}
        assert largest_difference(weights(tmp_path / name), weights(tmp_path / "one")) < 1e-5
        assert largest_difference(weights(tmp_path / name), weights(tmp_path / "two")) < 1e-5


def test_two_processes_resume_bit_equal(launch, tmp_path):
    """Dropout is on: the random states of both come back."""
    options = ("model.config.hidden_dropout_prob=0.1", "save_every_steps=1", "keep_checkpoints=0")
    launch(*options, f"output_dir={tmp_path / 'whole'}", processes=2)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "model")
    for step in (2, 3):
        shutil.rmtree(tmp_path / "resumed" / "checkpoints" / f"step-{step}")
    launch(*options, f"output_dir={tmp_path / 'resumed'}", "--resume", processes=2)
    assert largest_difference(weights(tmp_path / "resumed"), weights(tmp_path / "whole")) == 0


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_says_what_accelerate_reads(name, pytestconfig):
    path = pytestconfig.rootpath / "pretraining" / "accelerate" / f"{name}.yaml"
    config = load_config_from_file(str(path))
    assert config.distributed_type == (DistributedType.FSDP if name == "fsdp2" else DistributedType.MULTI_GPU)
    known = vars(launch_command_parser().parse_args(["script.py"]))
    # of what stands below fsdp_config accelerate drops unknown keys without a word
    assert config.fsdp_config.keys() <= known.keys()
    text = path.read_text(encoding="utf-8")
    assert yaml.safe_load(text).keys() <= vars(config).keys()
    commands = re.findall(r"accelerate launch.*?(?=\n# [A-Z]|\n\w)", text, re.S)
    assert len(commands) == 2
    for command in commands:
        words = re.sub(r"\\?\n#", " ", command).split()[2:]
        arguments = launch_command_parser().parse_args(words)
        assert arguments.config_file == f"pretraining/accelerate/{name}.yaml"
        assert arguments.training_script == "pretraining/run.py"
        for file in (arguments.config_file, arguments.training_script, arguments.training_script_args[1]):
            assert (pytestconfig.rootpath / file).exists()
    assert arguments.num_processes == 64 and arguments.num_machines == 8 and arguments.main_process_ip


def test_sharding_that_accelerate_has_not_turned_on_is_said(launch):
    said = " ".join(launch(processes=2, by="fsdp2", fails=True).stderr.split())
    assert (
        "accelerate was told to use FSDP, and has not turned it on: it shards between GPUs, two or more, and there is 2"
        in said
    )


def test_machines_that_do_not_share_the_run_folder_are_told(launch, tmp_path):
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import os, sys\n"
        "from zoo_core import processes\n"
        "from pretraining import run\n"
        "processes.SECONDS_TO_APPEAR = 0\n"
        f"run.main([*sys.argv[1:], 'output_dir={tmp_path}/of-machine-' + os.environ['RANK']])\n"
    )
    said = " ".join(launch(processes=2, script=driver, fails=True).stderr.split())
    assert "process(es) 1 of 2 do not see what the first one wrote there" in said
    assert not (tmp_path / "of-machine-0" / "checkpoints").exists()


class Launched:
    """An accelerator, as far as `check_sharding` looks at it."""

    distributed_type = DistributedType.FSDP

    def __init__(self, **options):
        self.state = type("State", (), {"fsdp_plugin": FullyShardedDataParallelPlugin(**options)})


@pytest.mark.parametrize(
    ("options", "precision", "wrong"),
    [
        ({"fsdp_version": 1}, "fp32", "fsdp_version is 1.*Set fsdp_version to 2"),
        ({"cpu_ram_efficient_loading": True}, "fp32", "fsdp_cpu_ram_efficient_loading is true.*Set it to false"),
        ({"activation_checkpointing": True}, "fp32", "fsdp_activation_checkpointing is true.*gradient_checkpointing"),
        ({"cpu_offload": True}, "fp32", "fsdp_offload_params is true"),
        ({}, "fp16", "precision is fp16, and the model is to be sharded"),
    ],
)
def test_sharding_that_cannot_be_followed_is_refused(options, precision, wrong, monkeypatch):
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")  # the plugin writes it
    sharding.check_sharding(Launched(fsdp_version=2), "bf16")
    with pytest.raises(ValueError, match=wrong):
        sharding.check_sharding(Launched(**{"fsdp_version": 2} | options), precision)


@pytest.mark.parametrize(
    ("variable", "wrong"),
    [
        ("ACCELERATE_USE_DEEPSPEED", "told to use DeepSpeed.*fsdp2.yaml"),
        ("ACCELERATE_USE_MEGATRON_LM", "told to split layers, tensors or sequences"),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", "told to split layers, tensors or sequences"),
    ],
)
def test_other_ways_of_sharing_out_are_refused(variable, wrong, fails, monkeypatch):
    monkeypatch.setenv(variable, "true")
    with pytest.raises(ValueError, match=wrong):
        sharding.check_launch()
    assert "accelerate was told" in fails()
