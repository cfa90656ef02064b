"""Sharded training (FSDP2): every process keeps a part of weights, gradients and Adam's moments, and the run stays the
one it would be without.

The layers are gathered one after the other when they are needed; embeddings and head, which share a matrix, stay
together for the whole of a forward and backward. Gathered is float32: the arithmetic is `precision`'s, as it is without
sharding, and so is the step. A checkpoint is written whole, in the format of an unsharded run: it can be resumed on
another number of processes, sharded or not.
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
    """An `Accelerator` that shards a model when it was launched with FSDP2, and whose checkpoints do not show it.

    Without FSDP2 it is `Accelerator`: `shard` does nothing, and `whole_model` unwraps.
    """

    def shard(self, model: nn.Module) -> nn.Module:
        """Shards `model` in place; a sharded one, of the phase before, stays as it is. Before the optimizer is made."""
        if not self.is_fsdp2 or isinstance(model, FSDPModule):
            return model
        self._skeleton = without_storage(model)
        model.to(self.device)
        for tensor in (*model.parameters(), *model.buffers()):  # as DDP does: equal weights whatever made them
            torch.distributed.broadcast(tensor.data, src=0)
        reshard = self.state.fsdp_plugin.reshard_after_forward
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                fully_shard(layer, reshard_after_forward=reshard)
        return fully_shard(model)

    def prepare(self, *args, **kwargs):
        """As `Accelerator.prepare`, which exchanges the optimizer's parameters for the sharded ones. Those that are
        sharded already it tells apart by address, and empty shards have none: they are put back here."""
        optimizers = [item for item in args if isinstance(item, torch.optim.Optimizer)]
        of_groups = [group["params"][:] for optimizer in optimizers for group in optimizer.param_groups]
        prepared = super().prepare(*args, **kwargs)
        if self.is_fsdp2:
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            for group, parameters in zip(groups, of_groups, strict=True):
                group["params"] = parameters
        return prepared

    def whole_model(self, model: nn.Module) -> nn.Module:
        """The model with all its weights, on every process, to look at: a copy where it is sharded.

        All processes have to call it together.
        """
        return self._gathered(model) if self.is_fsdp2 else self.unwrap_model(model)

    def save_state(self, output_dir: str | None = None, **kwargs) -> str:
        """As `Accelerator.save_state`; sharded state is gathered tensor by tensor and written by the main process."""
        if not self.is_fsdp2:
            return super().save_state(output_dir, **kwargs)
        os.makedirs(output_dir, exist_ok=True)
        model = self._gathered(self._models[0], on_main_alone=True)
        for hook in self._save_model_state_pre_hook.values():
            hook([model], [], output_dir)
        optimizer = _WholeOptimizer(self._optimizers[0], self.is_main_process)
        return save_accelerator_state(output_dir, [], [optimizer], [], [], self.process_index, self.step)

    def load_state(self, input_dir: str | None = None, **kwargs) -> None:
        """As `Accelerator.load_state`; every process reads the whole and keeps its part."""
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
        """The skeleton with the weights of `model`; `on_main_alone`: on the CPU, and in the main process alone."""
        whole = copy.deepcopy(self._skeleton)
        options = StateDictOptions(full_state_dict=True, cpu_offload=on_main_alone)
        if weights := get_model_state_dict(model, options=options):
            whole.load_state_dict(weights, assign=True)
            whole.tie_weights()
            for name, buffer in model.named_buffers():  # those that no checkpoint has, too
                owner, _, own = name.rpartition(".")
                setattr(whole.get_submodule(owner), own, buffer.cpu() if on_main_alone else buffer)
        return whole.train(model.training)


class _WholeOptimizer:
    """The state of an optimizer of sharded parameters, as one of whole parameters would have it."""

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
    """`whole`, which every process has, sharded as `parameter` is; nothing is sent."""
    mesh = parameter.device_mesh
    return distribute_tensor(whole.detach().to(mesh.device_type), mesh, parameter.placements, src_data_rank=None)


def without_storage(model: nn.Module) -> nn.Module:
    """A copy of a model with its switches and hooks and without weights: tied as there, on the meta device."""
    tensors = {}
    for parameter in model.parameters():
        tensors[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
    for buffer in model.buffers():
        tensors[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, tensors)


def gradient_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Norm of all gradients as one vector, on every process."""
    norm = nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def local_parts(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """What this process holds of each: a view, to be changed in place."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def all_finite(model: nn.Module, accelerator: Accelerator) -> bool:
    """Whether all weights are finite, the same answer on every process."""
    finite = all(torch.isfinite(part).all() for part in local_parts([p.detach() for p in model.parameters()]))
    return bool(accelerator.reduce(torch.tensor(float(not finite), device=accelerator.device)).item() == 0)


def make_accelerator(
    precision: str, tracker: str | None = None, folder: str | os.PathLike = "."
) -> ShardingAccelerator:
    """The process group, precision and tracker of the run in `folder`. Raises `ValueError` for those that cannot be."""
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
    """Raises `ValueError` where accelerate was told to share out the training in a way that this loop cannot follow.

    DeepSpeed clips and steps at the end of its backward pass, before the predictions are counted that the gradients are
    scaled by. Where layers, tensors or sequences are split, processes do not share examples.
    """
    for name in ("DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG"):
        if parse_flag_from_env(f"ACCELERATE_USE_{name}"):
            raise ValueError(
                f"accelerate was told to use {name.lower()}, which this training cannot follow. Use --config_file "
                f"{CONFIGURATIONS}/ddp.yaml or fsdp2.yaml."
            )


def check_sharding(accelerator: Accelerator, precision: str) -> None:
    """Raises `ValueError` where accelerate was told to shard and has not turned it on, or shards in a way that would
    give another run than without."""
    if accelerator.distributed_type != DistributedType.FSDP:
        if parse_flag_from_env("ACCELERATE_USE_FSDP"):
            raise ValueError(
                f"accelerate was told to use FSDP, and has not turned it on: it shards between two GPUs or more, and "
                f"there is {accelerator.num_processes} process(es) on {accelerator.device.type}. Use --config_file "
                f"{CONFIGURATIONS}/ddp.yaml, or more GPUs."
            )
        return
    plugin = accelerator.state.fsdp_plugin
    is_offloaded = isinstance(plugin.cpu_offload, CPUOffloadPolicy)
    for name, value, wanted in (
        ("fsdp_version", plugin.fsdp_version, 2),  # flattened parameters can neither be frozen nor kept by name
        ("fsdp_cpu_ram_efficient_loading", plugin.cpu_ram_efficient_loading, False),  # others start from empty weights
        # `model.gradient_checkpointing` of the recipe does this, so that the run folder records it
        ("fsdp_activation_checkpointing", plugin.activation_checkpointing, False),
        ("fsdp_offload_params", is_offloaded, False),  # gradients are scaled and clipped on the GPU
        ("precision", precision == "fp16" and "fp16", False),  # each process would decide its loss scaling for itself
    ):
        if value != wanted:
            advice = "bf16 or fp32" if name == "precision" else f"{wanted}, as {CONFIGURATIONS}/fsdp2.yaml has it"
            raise ValueError(f"{name} is {value}, with which a model cannot be sharded here. Set it to {advice}.")
