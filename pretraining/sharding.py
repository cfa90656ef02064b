"""Sharded training (FSDP2): every process keeps a part of weights, gradients and Adam's moments. The results are those
of an unsharded run.

Each layer is gathered when it is needed. Embeddings and head, which share a matrix, stay gathered for a whole forward
and backward pass. Weights are gathered in float32, and the arithmetic is that of `precision`, so the step is the same
as without sharding. A checkpoint has the format of an unsharded run: it can be resumed on another number of processes,
sharded or not.
"""

import copy
import os

import torch
from accelerate import Accelerator
from accelerate.checkpointing import load_accelerator_state, save_accelerator_state
from accelerate.utils import DistributedDataParallelKwargs, DistributedType, ProjectConfiguration, parse_flag_from_env
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from zoo_core.processes import start_processes

CONFIGURATIONS = "pretraining/accelerate"


class ShardingAccelerator(Accelerator):
    """An `Accelerator` that shards a model if it was launched with FSDP2, but writes unsharded checkpoints.

    Without FSDP2 it is like `Accelerator`: `shard` does nothing, and `whole_model` unwraps.
    """

    def shard(self, model: nn.Module) -> nn.Module:
        """Shards `model` in place, unless the phase before has done so. Call this before making the optimizer."""
        if not self.is_fsdp2 or isinstance(model, FSDPModule):
            return model
        self._skeleton = without_storage(model)
        model.to(self.device)
        for tensor in (*model.parameters(), *model.buffers()):  # as DDP does, so that all start with equal weights
            torch.distributed.broadcast(tensor.data, src=0)
        reshard = self.state.fsdp_plugin.reshard_after_forward
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                fully_shard(layer, reshard_after_forward=reshard)
        return fully_shard(model)

    def prepare(self, *args, **kwargs):
        """Like `Accelerator.prepare`, which replaces the optimizer's parameters by sharded ones.

        `Accelerator` identifies parameters that are already sharded by their address, which empty shards do not have.
        They are restored here.
        """
        optimizers = [item for item in args if isinstance(item, torch.optim.Optimizer)]
        of_groups = [group["params"][:] for optimizer in optimizers for group in optimizer.param_groups]
        prepared = super().prepare(*args, **kwargs)
        if self.is_fsdp2:
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            for group, parameters in zip(groups, of_groups, strict=True):
                group["params"] = parameters
        return prepared

    def whole_model(self, model: nn.Module) -> nn.Module:
        """Returns the model with all its weights, for reading, on every process; of a sharded model it is a copy.

        All processes must call this together.
        """
        return self._gathered(model) if self.is_fsdp2 else self.unwrap_model(model)

    def save_state(self, output_dir: str | None = None, **kwargs) -> str:
        """Like `Accelerator.save_state`; sharded state is gathered tensor by tensor and written by the main process."""
        if not self.is_fsdp2:
            return super().save_state(output_dir, **kwargs)
        os.makedirs(output_dir, exist_ok=True)
        model = self._gathered(self._models[0], on_main_alone=True)
        for hook in self._save_model_state_pre_hook.values():
            hook([model], [], output_dir)
        optimizer = _WholeOptimizer(self._optimizers[0], self.is_main_process)
        return save_accelerator_state(output_dir, [], [optimizer], [], [], self.process_index, self.step)

    def load_state(self, input_dir: str | None = None, **kwargs) -> None:
        """Like `Accelerator.load_state`; every process reads the whole state and keeps its part."""
        if not self.is_fsdp2:
            return super().load_state(input_dir, **kwargs)
        model = self._models[0]
        whole = copy.deepcopy(self._skeleton).to_empty(device="cpu")
        whole.tie_weights()
        for hook in self._load_model_state_pre_hook.values():
            hook([whole], input_dir)
        set_model_state_dict(model, whole.state_dict(), options=StateDictOptions(full_state_dict=True))
        load_accelerator_state(input_dir, [], [_WholeOptimizer(self._optimizers[0])], [], [], self.process_index)

    def _gathered(self, model: nn.Module, on_main_alone: bool = False) -> nn.Module:
        """Returns the skeleton with the weights of `model`; `on_main_alone`: on the CPU, only in the main process."""
        whole = copy.deepcopy(self._skeleton)
        options = StateDictOptions(full_state_dict=True, cpu_offload=on_main_alone)
        if weights := get_model_state_dict(model, options=options):
            whole.load_state_dict(weights, assign=True)
            whole.tie_weights()
            for name, buffer in model.named_buffers():  # also those that are in no checkpoint
                owner, _, own = name.rpartition(".")
                setattr(whole.get_submodule(owner), own, buffer.cpu() if on_main_alone else buffer)
        return whole.train(model.training)


class _WholeOptimizer:
    """Converts the state of an optimizer of sharded parameters to and from that of an unsharded optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, keep: bool = True):
        self.optimizer, self.keep = optimizer, keep

    def state_dict(self) -> dict:
        state = self.optimizer.state_dict()
        whole = {
            number: {name: self._gathered(value) for name, value in entry.items()}
            for number, entry in state["state"].items()
        }
        return state | {"state": whole}

    def load_state_dict(self, state: dict) -> None:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        sharded = {
            number: {
                name: shard_like(parameters[number], value) if value.dim() else value for name, value in entry.items()
            }
            for number, entry in state["state"].items()
        }
        self.optimizer.load_state_dict(state | {"state": sharded})

    def _gathered(self, value: torch.Tensor) -> torch.Tensor | None:
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        return whole.cpu() if self.keep else None


def shard_like(parameter: DTensor, whole: torch.Tensor) -> DTensor:
    """Shards `whole`, which every process has, like `parameter`, without communication."""
    mesh = parameter.device_mesh
    return distribute_tensor(whole.detach().to(mesh.device_type), mesh, parameter.placements, src_data_rank=None)


def without_storage(model: nn.Module) -> nn.Module:
    """Returns a copy of a model on the meta device: with its settings, hooks and tied weights, but without values."""
    tensors = {}
    for parameter in model.parameters():
        tensors[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    for buffer in model.buffers():
        tensors[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, tensors)


def gradient_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Returns the norm of all gradients as one vector, on every process."""
    norm = nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def local_parts(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns this process's part of each tensor: a view, to be changed in place."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def all_finite(model: nn.Module, accelerator: Accelerator) -> bool:
    """Returns whether all weights are finite, with the same result on every process."""
    finite = all(torch.isfinite(part).all() for part in local_parts([p.detach() for p in model.parameters()]))
    return bool(accelerator.reduce(torch.tensor(float(not finite), device=accelerator.device)).item() == 0)


def make_accelerator(
    precision: str, tracker: str | None = None, folder: str | os.PathLike = "."
) -> ShardingAccelerator:
    """Sets up process group, precision and tracker of the run in `folder`. Raises `ValueError` if that fails."""
    if precision == "fp16" and not torch.cuda.is_available():
        raise ValueError("precision is fp16, but there is no GPU. Use bf16 or fp32 on a CPU.")
    check_launch()
    start_processes()
    accelerator = ShardingAccelerator(
        mixed_precision={"fp32": "no"}.get(precision, precision),
        log_with=tracker,
        project_config=ProjectConfiguration(logging_dir=folder),
        # a batch may leave parameters without gradient: cross-attention under MLM, an objective without a query
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    check_sharding(accelerator, precision)
    return accelerator


def check_launch() -> None:
    """Raises `ValueError` for settings of accelerate that this training loop does not support.

    DeepSpeed clips and steps at the end of its backward pass, but this loop scales gradients by the number of
    predictions, which it counts later. If layers, tensors or sequences are split, processes do not divide the examples.
    """
    for name in ("DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"):
        if parse_flag_from_env(f"ACCELERATE_USE_{name}"):
            raise ValueError(
                f"accelerate is configured to use {name.lower()}, which this training does not support. Use "
                f"--config_file {CONFIGURATIONS}/ddp.yaml or fsdp2.yaml."
            )


def check_sharding(accelerator: Accelerator, precision: str) -> None:
    """Raises `ValueError` if sharding is requested but not active, or if its settings would change the results."""
    if accelerator.distributed_type != DistributedType.FSDP:
        if parse_flag_from_env("ACCELERATE_USE_FSDP"):
            raise ValueError(
                f"accelerate is configured to use FSDP, which needs two GPUs or more, but the number of processes on "
                f"{accelerator.device.type} is {accelerator.num_processes}. Use --config_file "
                f"{CONFIGURATIONS}/ddp.yaml, or more GPUs."
            )
        return
    plugin = accelerator.state.fsdp_plugin
    is_offloaded = isinstance(plugin.cpu_offload, CPUOffloadPolicy)
    for name, value, wanted in (
        ("fsdp_version", plugin.fsdp_version, 2),  # flattened parameters can neither be frozen nor kept by name
        ("fsdp_cpu_ram_efficient_loading", plugin.cpu_ram_efficient_loading, False),  # weights would be empty
        # the recipe's `model.gradient_checkpointing` does this, so that the run folder records it
        ("fsdp_activation_checkpointing", plugin.activation_checkpointing, False),
        ("fsdp_offload_params", is_offloaded, False),  # gradients are scaled and clipped on the GPU
        ("precision", precision == "fp16" and "fp16", False),  # each process would choose its own loss scaling
    ):
        if value != wanted:
            advice = "bf16 or fp32" if name == "precision" else f"{wanted}, as in {CONFIGURATIONS}/fsdp2.yaml"
            raise ValueError(f"{name} is {value}, which sharded training does not support. Set it to {advice}.")
