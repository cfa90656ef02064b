"""What a run costs on this machine: seconds and memory, from steps that a dry run times on the spot."""

from dataclasses import replace
from typing import NamedTuple

import torch

from crosslingual_zoo.pretraining.data.batches import training_batches
from crosslingual_zoo.pretraining.evaluation import peak_bytes
from crosslingual_zoo.pretraining.recipe import Phase
from crosslingual_zoo.pretraining.rows import inputs_of
from crosslingual_zoo.pretraining.training import Training
from crosslingual_zoo.zoo_core.provenance import memory_gib

TOKENS_TIMED = 2048  # on a CPU, where a step of a paper's size would take hours; a GPU gets a whole micro-batch
STEPS_TIMED = 2  # after one that makes buffers and loads kernels
WEIGHT = 4  # bytes of a parameter
TRAINED = 12  # bytes that a trained parameter adds: its gradient and Adam's two moments
SENT = 4  # bytes that it adds where processes exchange gradients
UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


class Costs(NamedTuple):
    """Of a whole run: seconds at the speed of the fastest and of the slowest timed steps, and bytes of a process."""

    fastest: float
    slowest: float
    num_bytes: float


def measure(training: Training, first_steps: list[list[dict]]) -> Costs:
    """Times steps of each phase, without evaluating and saving, and scales them to the tokens of a whole step.

    `first_steps` are the micro-batches of the first step of each phase. Raises `torch.OutOfMemoryError` if a GPU cannot
    hold a micro-batch.
    """
    recipe, device, model = training.recipe, training.accelerator.device, training.model
    num_processes = training.accelerator.num_processes
    shares = {"num_processes": num_processes, "process_index": training.accelerator.process_index}
    num_parameters = sum(weight.numel() for weight in model.parameters())
    others = max(0, peak_bytes(device) - WEIGHT * num_parameters)  # on a CPU, Python and its libraries
    fastest = slowest = num_bytes = 0.0
    for index, micro_batches in enumerate(first_steps):
        phase = recipe.phases[index]
        tokens = [tokens_of(batch) for batch in micro_batches]
        share = 1 / len(tokens)
        if device.type != "cuda":
            share = min(share, TOKENS_TIMED / sum(tokens))
        phases = list(recipe.phases)
        phases[index] = part_of_step(phase, share, num_processes)
        part = replace(recipe, gradient_accumulation_steps=1, phases=phases)
        batches = list(training_batches(part, index, training.corpora, training.tokenizer, training.config, **shares))
        timed = [tokens_of(batch) for batch in batches]
        durations = training.time_steps(index, batches)
        seconds_a_token = [seconds / count for seconds, count in zip(durations, timed, strict=True)][1:]
        tokens_of_phase = phase.steps * sum(tokens)
        fastest += tokens_of_phase * min(seconds_a_token)
        slowest += tokens_of_phase * max(seconds_a_token)
        state = state_bytes(model, phase, num_processes)
        activations = max(0, peak_bytes(device) - others - state)
        scale = max(1.0, max(tokens) / max(timed))  # activations grow with the tokens of a micro-batch
        num_bytes = max(num_bytes, others + state + activations * scale)
    return Costs(fastest, slowest, num_bytes)


def tokens_of(batch: dict[str, dict]) -> int:
    """Returns the number of tokens of a micro-batch, without padding."""
    count = 0
    for part in batch.values():
        for fields in inputs_of(part):
            count += int((fields["segment_ids"] >= 0).sum())
    return count


def part_of_step(phase: Phase, share: float, num_processes: int) -> Phase:
    """Returns a phase with a `share` of the examples of each step, at least one for each process."""
    objectives = dict(phase.objectives)
    for name, objective in phase.with_examples.items():
        batch_size = max(num_processes, round(share * objective.batch_size))
        objectives[name] = replace(objective, batch_size=batch_size)
    return replace(phase, steps=1 + STEPS_TIMED, objectives=objectives)


def state_bytes(model: torch.nn.Module, phase: Phase, num_processes: int) -> int:
    """Returns the bytes of weights, gradients and Adam's moments in a phase."""
    trained_bytes = TRAINED + SENT if num_processes > 1 else TRAINED
    num_bytes = 0
    for name, weight in model.named_parameters():
        num_bytes += WEIGHT * weight.numel()
        if phase.trains(name):
            num_bytes += trained_bytes * weight.numel()
    return num_bytes


def memory_of(device: torch.device) -> float | None:
    """Returns the bytes of a GPU, or of the machine; None where the system does not tell them."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    gib = memory_gib()
    return gib and gib * 2**30


def span(fastest: float, slowest: float) -> str:
    """Writes a range of seconds in a unit of its size, such as `3.1 to 3.6 hours`."""
    large_enough = [(unit, size) for unit, size in UNITS if slowest >= 2 * size]
    unit, size = large_enough[0] if large_enough else UNITS[-1]
    digits = 0 if slowest >= 10 * size else 1
    first = f"{fastest / size:.{digits}f}"
    last = f"{slowest / size:.{digits}f}"
    return f"{first} {unit}" if first == last else f"{first} to {last} {unit}"
