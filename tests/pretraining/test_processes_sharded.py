"""FSDP2 on two processes: the same steps as one process, in every phase, and the same run after a resume.

accelerate shards on GPUs only, torch on a CPU too: the runs here are told that they were launched sharded.
"""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file

from pretraining.checkpoints import newest_checkpoint
from pretraining.tracking import read_events

pytestmark = pytest.mark.slow

SHARDING_DRIVER = """
import sys
from accelerate import state
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from pretraining import run, training

make = state.AcceleratorState.__init__

def sharding(self, *args, fsdp_plugin=None, **kwargs):
    is_first = not state.AcceleratorState._shared_state
    make(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if is_first and fsdp_plugin is not None:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
        state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP

start = training.Training._start_phase

def looking(self, index):
    start(self, index)
    assert all(isinstance(parameter, DTensor) for parameter in self.model.parameters())
    held = [p for group in self.optimizer.param_groups for p in group["params"]]
    assert len(set(held)) == len(held) == sum(p.requires_grad for p in self.model.parameters())
    print("sharded phase", index)
    dense = next(module for name, module in self.model.named_modules() if name.endswith("intermediate.dense"))
    hook = dense.register_forward_hook(lambda module, inputs, output: (hook.remove(), print("in", output.dtype))[1])

state.AcceleratorState.__init__ = sharding
training.Training._start_phase = looking
run.main(sys.argv[1:])
"""
OF_MODELS = {
    "veco": [
        f"phases.0.objectives.ca_mlm_{kind}={{batch_size: 8, max_length: 48, mask_probability: 0.25}}"
        for kind in ("segments", "pairs")
    ],
    "ernie_m": [f"phases.0.objectives.{name}={{batch_size: 8, max_length: 96}}" for name in ("camlm", "btmlm")],
    "xlm_align": ["phases.0.objectives.dwa={}", "model.config.query_positions=all_aligned"],
    "metaxlm": ["phases.0.objectives.kd={}", "teacher={path: TEACHER, language: en}"],
}


@pytest.fixture
def sharded(launch, tmp_path):
    """A run on two processes, sharded."""
    driver = tmp_path / "driver.py"
    driver.write_text(SHARDING_DRIVER)

    def run(*arguments):
        done = launch(*arguments, processes=2, by="fsdp2", script=driver)
        assert "sharded phase" in done.stdout
        return done

    return run


@pytest.mark.parametrize("model", OF_MODELS)
def test_a_sharded_update_is_that_of_one_process(model, whole, sharded, difference, teacher_dir, tmp_path):
    objectives = [override.replace("TEACHER", str(teacher_dir)) for override in OF_MODELS[model]]
    plain = [f"model.type={model}", "optimizer.max_grad_norm=0.5", "evaluation.held_out_fraction=0.1", *objectives]
    sharded(*plain, "gradient_accumulation_steps=2")
    runs = (whole(*plain), tmp_path / "run")
    assert difference(*runs) < 1e-5
    for ours, theirs in zip(*map(read_events, runs), strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours:
            if key.startswith(("loss", "held_out", "retrieval")) or key == "grad_norm":
                assert theirs[key] == pytest.approx(ours[key], rel=1e-4, abs=1e-4), key
    configs = [json.loads((folder / "model" / "config.json").read_text()) for folder in runs]
    names = [sorted(path.name for path in (folder / "model").iterdir()) for folder in runs]
    assert configs[0] == configs[1] and names[0] == names[1]


def test_bfloat16_is_that_of_one_process_too(whole, sharded, tmp_path):
    """Weights, gradients and what travels stay float32; layers compute in bfloat16, here as there."""
    options = ("precision=bf16", "model.type=metaxlm")
    assert "in torch.bfloat16" in sharded(*options).stdout
    for ours, theirs in zip(read_events(whole(*options)), read_events(tmp_path / "run"), strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-3)
        assert theirs["grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-2)
    state = torch.load(newest_checkpoint(tmp_path / "run") / "optimizer.bin", weights_only=True)["state"]
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    kept = [*weights.values(), *(value for entry in state.values() for value in entry.values())]
    assert all(tensor.dtype == torch.float32 for tensor in kept)


def test_phases_and_resume_sharded_and_not(recipe_file, train, sharded, difference, cut_back, tmp_path):
    """VECO's two phases, Adam's moments carried over. Every checkpoint is continued by the other kind of run."""
    recipe = yaml.safe_load(recipe_file.read_text(encoding="utf-8"))
    recipe["model"] |= {"type": "veco", "gradient_checkpointing": True}
    names, settings = ("ca_mlm_segments", "ca_mlm_pairs"), {"batch_size": 4, "max_length": 48}
    objectives = {name: settings | {"terms": ["cross"]} for name in names}
    first = {"name": "cross", "steps": 2, "learning_rate": 1e-3, "trainable": ["*.crossattention.*"]}
    second = {"name": "all", "steps": 2, "optimizer": "carried", "objectives": {name: settings for name in names}}
    recipe["phases"] = [first | {"objectives": objectives}, second]
    recipe |= {"save_every_steps": 1, "keep_checkpoints": 0}
    recipe_file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    train(f"output_dir={tmp_path / 'whole'}")
    sharded(f"output_dir={tmp_path / 'sharded'}")
    for step in (1, 2, 3, 4):
        checkpoints = [tmp_path / name / "checkpoints" / f"step-{step}" for name in ("whole", "sharded")]
        assert difference(*checkpoints) < 1e-5
        whole, theirs = (torch.load(folder / "optimizer.bin", weights_only=True) for folder in checkpoints)
        assert whole["param_groups"] == theirs["param_groups"] and whole["state"].keys() == theirs["state"].keys()
        for number, entry in whole["state"].items():
            for name, value in entry.items():
                assert torch.allclose(value, theirs["state"][number][name], atol=1e-5), (step, number, name)
    # in the first phase, and in the second
    for start, go_on, step in (("sharded", train, 1), ("whole", sharded, 3)):
        folder = cut_back(tmp_path / start, step, tmp_path / f"resumed-{start}")
        go_on(f"output_dir={folder}", "--resume")
        assert newest_checkpoint(folder).name == "step-4"
        assert difference(folder, tmp_path / "whole") < 1e-5


def test_a_sharded_run_resumes_bit_equal(sharded, difference, cut_back, tmp_path):
    """Dropout is on: the random states of both processes come back."""
    options = ("model.config.hidden_dropout_prob=0.1", "save_every_steps=1", "keep_checkpoints=0")
    sharded(*options, f"output_dir={tmp_path / 'whole'}")
    cut_back(tmp_path / "whole", 1, tmp_path / "resumed")
    sharded(*options, f"output_dir={tmp_path / 'resumed'}", "--resume")
    assert difference(tmp_path / "resumed", tmp_path / "whole") == 0
