"""Several processes and machines: who sees which example, runs that go on with more or fewer of them, and what
accelerate is told."""

import json
import re
from collections import Counter, defaultdict

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from safetensors.torch import load_file

from modeling.modeling_xlm_align import XlmAlignForPreTraining
from pretraining import sharding
from pretraining.checkpoints import checkpoints_of

pytestmark = pytest.mark.slow

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
            print(json.dumps({"step": step, "seen": seen}), file=file)
        yield batch

training.training_batches = recorded
run.main(sys.argv[1:])
"""
CONFIGURATIONS = ("ddp", "fsdp2")


def examples_of(record):
    """step -> how often each example was seen, by all processes of a run."""
    seen = defaultdict(Counter)
    for file in record.parent.glob(f"{record.name}-*.jsonl"):
        for line in map(json.loads, file.read_text().splitlines()):
            seen[line["step"]].update(map(tuple, line["seen"]))
    return seen


@pytest.mark.slow
def test_a_run_goes_on_with_more_or_fewer_processes(launch, difference, cut_back, tmp_path):
    """And every example is seen once."""
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
        cut_back(tmp_path / start, 2, tmp_path / name)
        printed = run(name, processes, "--resume").stderr
        assert re.search(rf"the run had {3 - processes} processes and has {processes} now", " ".join(printed.split()))
        assert seen[name] == {step: seen["one"][step] for step in (2, 3)}
        assert difference(tmp_path / name, tmp_path / "one") < 1e-5
        assert difference(tmp_path / name, tmp_path / "two") < 1e-5


@pytest.mark.slow
def test_two_processes_resume_bit_equal(launch, difference, cut_back, tmp_path):
    """Dropout is on: the random states of both come back."""
    options = ("model.config.hidden_dropout_prob=0.1", "save_every_steps=1", "keep_checkpoints=0")
    launch(*options, f"output_dir={tmp_path / 'whole'}", processes=2)
    cut_back(tmp_path / "whole", 1, tmp_path / "resumed")
    launch(*options, f"output_dir={tmp_path / 'resumed'}", "--resume", processes=2)
    assert difference(tmp_path / "resumed", tmp_path / "whole") == 0


DIGEST_DRIVER = """
import hashlib, os, sys
from pathlib import Path
from pretraining import run, training

run_phase = training.Training._run_phase

def recorded(self):
    run_phase(self)
    digest = hashlib.sha256()
    for parameter in self.accelerator.unwrap_model(self.model).parameters():
        digest.update(parameter.detach().numpy().tobytes())
    name = f"phase-{self.index}-rank-{self.accelerator.process_index}.txt"
    Path(os.environ["RECORD"], name).write_text(digest.hexdigest())

training.Training._run_phase = recorded
run.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_phases_on_two_processes(launch, difference, tmp_path):
    """Embeddings alone first, everything next: equal on both ranks, equal to one process."""
    phase = "steps: 2, learning_rate: 1.0e-3, objectives: {mlm: {batch_size: 8}, tlm: {batch_size: 8}}"
    phases = f"phases=[{{name: first, trainable: ['*embeddings*'], {phase}}}, {{name: second, {phase}}}]"
    phases = phases.replace("batch_size: 8", "batch_size: 8, max_length: 128")
    driver = tmp_path / "driver.py"
    driver.write_text(DIGEST_DRIVER)
    for processes in (1, 2):
        record, output = tmp_path / f"record-{processes}", tmp_path / f"run-{processes}"
        record.mkdir()
        launch(phases, f"output_dir={output}", processes=processes, script=driver, RECORD=str(record))
        for index in (0, 1):
            digests = [path.read_text() for path in record.glob(f"phase-{index}-rank-*.txt")]
            assert len(digests) == processes and len(set(digests)) == 1
    assert difference(tmp_path / "run-1", tmp_path / "run-2") < 1e-5

    run = tmp_path / "run-1"
    after_first, after_second = (
        load_file(folder / "model" / "model.safetensors") for folder in (checkpoints_of(run)[0], run)
    )
    torch.manual_seed(1)
    config = XlmAlignForPreTraining.config_class.from_pretrained(run / "model")
    fresh = XlmAlignForPreTraining._from_config(config).state_dict()
    for name, tensor in after_first.items():
        assert torch.equal(tensor, fresh[name]) != ("embeddings" in name), name
        moved = not torch.equal(tensor, after_second[name])
        idle = name.startswith(("q_linear.", "k_linear."))  # without dwa nothing points
        assert moved or idle or name.endswith(("key.bias", "token_type_embeddings.weight")), name


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


@pytest.mark.slow
def test_sharding_that_accelerate_has_not_turned_on(launch):
    assert "has not turned it on" in " ".join(launch(processes=2, by="fsdp2", fails=True).stderr.split())


@pytest.mark.slow
def test_machines_that_do_not_share_the_run_folder(launch, tmp_path):
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import os, sys\n"
        "from zoo_core import processes\n"
        "from pretraining import run\n"
        "processes.SECONDS_TO_APPEAR = 0\n"
        f"run.main([*sys.argv[1:], 'output_dir={tmp_path}/of-machine-' + os.environ['RANK']])\n"
    )
    launch(processes=2, script=driver, fails=True)
    assert not (tmp_path / "of-machine-0" / "checkpoints").exists()


class Launched:
    """An accelerator, as far as `check_sharding` looks at it."""

    distributed_type = DistributedType.FSDP

    def __init__(self, **options):
        self.state = type("State", (), {"fsdp_plugin": FullyShardedDataParallelPlugin(**options)})


@pytest.mark.parametrize(
    ("options", "precision", "named"),
    [
        ({"fsdp_version": 1}, "fp32", "fsdp_version is 1"),
        ({"cpu_ram_efficient_loading": True}, "fp32", "fsdp_cpu_ram_efficient_loading is True"),
        ({"activation_checkpointing": True}, "fp32", "fsdp_activation_checkpointing is True"),
        ({"cpu_offload": True}, "fp32", "fsdp_offload_params is True"),
        ({}, "fp16", "precision is fp16"),
    ],
)
def test_sharding_that_cannot_be_followed_is_refused(options, precision, named, monkeypatch):
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")  # the plugin writes it
    sharding.check_sharding(Launched(fsdp_version=2), "bf16")
    with pytest.raises(ValueError, match=named):
        sharding.check_sharding(Launched(**{"fsdp_version": 2} | options), precision)


@pytest.mark.parametrize("name", ["DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"])
def test_other_ways_of_sharing_out_are_refused(name, fails, monkeypatch):
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    assert name.lower() in fails()
