"""Several processes and machines: who sees which example, runs that go on with more or fewer of them, and what
accelerate is told."""

import json
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

from pretraining import sharding

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
        launch(*common, folder, *arguments, processes=processes, script=driver, RECORD=str(record))
        assert len(list(tmp_path.glob(f"record-{name}-*"))) == processes
        seen[name] = examples_of(record)

    run("one", 1)
    run("two", 2)
    assert sorted(seen["one"]) == [0, 1, 2, 3]
    for name, examples in seen["one"].items():
        assert sum(examples.values()) == 16 and set(examples.values()) == {1}, name  # 8 of mlm, 8 of tlm
    assert seen["two"] == seen["one"]
    for start, processes in (("one", 2), ("two", 1)):
        name = f"{start}-then-{processes}"
        cut_back(tmp_path / start, 2, tmp_path / name)
        run(name, processes, "--resume")
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


@pytest.mark.slow
def test_sharding_that_accelerate_has_not_turned_on(launch):
    assert "turned it on" in " ".join(launch(processes=2, by="fsdp2", fails=True).stderr.split())


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


@pytest.mark.parametrize("name", ["DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"])
def test_other_ways_of_sharing_out_are_refused(name, fails, monkeypatch):
    monkeypatch.setenv(f"ACCELERATE_USE_{name}", "true")
    assert name.lower() in fails()


@pytest.mark.parametrize(
    ("options", "precision", "named"),
    [
        ({"fsdp_version": 1}, "fp32", "fsdp_version"),
        ({"cpu_ram_efficient_loading": True}, "fp32", "fsdp_cpu_ram_efficient_loading"),
        ({"activation_checkpointing": True}, "fp32", "fsdp_activation_checkpointing"),
        ({"cpu_offload": True}, "fp32", "fsdp_offload_params"),
        ({}, "fp16", "precision"),
    ],
)
def test_sharding_that_cannot_be_followed_is_refused(options, precision, named, monkeypatch):
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")  # the plugin writes it

    def launched(**of):
        state = SimpleNamespace(fsdp_plugin=FullyShardedDataParallelPlugin(**of))
        return SimpleNamespace(distributed_type=DistributedType.FSDP, state=state)

    sharding.check_sharding(launched(fsdp_version=2), "bf16")
    with pytest.raises(ValueError, match=named):
        sharding.check_sharding(launched(**{"fsdp_version": 2} | options), precision)
