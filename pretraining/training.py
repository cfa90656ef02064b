"""The training loop: phases, accumulation, scaling, clipping, schedule. It does not depend on models or objectives.

The rule of the loss: gradient = sum over objectives of weight x (sum of cross-entropies) / (number of predictions in
the global batch, over objectives, processes and micro-batches). The labels of a step give this number before its
forward passes, and it divides the losses. DWA and KD count theirs in the forward pass; then the gradients are scaled
again, before clipping. The loop waits for the device once a step.
"""

import math
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    ProjectConfiguration,
    parse_flag_from_env,
    send_to_device,
    set_seed,
)
from transformers import PreTrainedConfig, get_scheduler

from crosslingual_zoo.modeling.checkpoints import readable
from crosslingual_zoo.modeling.configuration_encoder import longest_input
from crosslingual_zoo.modeling.masked_lm import ForPreTraining
from crosslingual_zoo.modeling.symmetrization import wide_type
from crosslingual_zoo.pretraining.checkpoints import (
    check_same_data,
    data_facts,
    newest_checkpoint,
    open_run_folder,
    publish_model,
    register_model_folder,
    save_checkpoint,
    start_run_folder,
)
from crosslingual_zoo.pretraining.data.batches import Feed, phase_corpora
from crosslingual_zoo.pretraining.data.corpora import load_corpora
from crosslingual_zoo.pretraining.evaluation import Meter, evaluate
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.recipe_phases import Phase, scheduled_together
from crosslingual_zoo.pretraining.start.initialization import Start
from crosslingual_zoo.pretraining.start.teacher import TeacherModel
from crosslingual_zoo.pretraining.stopping import Stops
from crosslingual_zoo.pretraining.tracking import RunReport
from crosslingual_zoo.zoo_core.console import quiet_libraries
from crosslingual_zoo.zoo_core.processes import Stopped, at_once, hold_signals, main_first, start_processes
from crosslingual_zoo.zoo_core.provenance import read_json
from crosslingual_zoo.zoo_core.recording import check_recording
from crosslingual_zoo.zoo_core.run_folders import run_lock

SCHEDULES = {"constant": "constant_with_warmup"}  # the others have the same names in transformers
AFTER_DIVERGENCE = (
    "A resumed run would reach the same batch. Start a new run from that state (model.start_from=<that folder>/model, "
    "another output_dir) with a lower learning_rate, a longer warm-up or a lower optimizer.max_grad_norm."
)


def pretrain(recipe: Recipe, resume: bool = False, argv: list[str] | None = None) -> None:
    """Trains the model of a checked recipe and writes its run folder.

    Raises `ValueError` for errors that the user can correct; see `Recipe.check`, `Start`, `load_corpora` and
    `open_run_folder`.
    """
    quiet_libraries()
    start_processes()
    with run_lock(recipe.output_dir):
        recipe, checkpoint = open_run_folder(recipe, resume)
        accelerator = make_accelerator(recipe.precision, recipe.tracker, recipe.output_dir)
        check_recording(recipe.tracker, recipe.push_to_hub)
        if resume and not checkpoint and accelerator.is_main_process:
            print(f"no checkpoint in {recipe.output_dir}: the run starts from the beginning", file=sys.stderr)
        start, config, feed, teacher = read_parts(recipe, accelerator, checkpoint)
        if resume:
            check_same_data(Path(recipe.output_dir), data_facts(feed.corpora, feed.tokenizer, teacher))
        # a resumed run loads the weights of its checkpoint
        matching = None if checkpoint else start.match(feed.tokenizer)
        model = start.build_model(config, matching, checkpoint)
        if recipe.head_phase and start.lacks_head:
            recipe = recipe.with_head_phase()
        for phase in recipe.phases:
            phase.check_trainable([name for name, _ in model.named_parameters()])
        start_run_folder(recipe, accelerator.is_main_process, checkpoint)
        Training(recipe, model, feed, accelerator, argv or [], teacher).run(checkpoint)
        accelerator.end_training()


def read_parts(
    recipe: Recipe, accelerator: Accelerator, checkpoint: Path | None = None
) -> tuple[Start, PreTrainedConfig, Feed, TeacherModel | None]:
    """Reads what a recipe names: start, configuration of the model, text and teacher. Text is tokenized, once."""
    with main_first():  # of each machine; then tokenized text and remote code are in the cache
        start, teacher = Start(recipe), None
        tokenizer = start.load_tokenizer()
        config = start.build_config(tokenizer, checkpoint)
        # the length of `truncation=True`, for users of the model folder
        tokenizer.model_max_length = min(tokenizer.model_max_length, longest_input(config))
        corpora = load_corpora(recipe, tokenizer, accelerator.num_processes)
        if recipe.teacher:
            teacher = TeacherModel(recipe.teacher, tokenizer, recipe.hub_root, recipe.trust_remote_code)
    feed = Feed(recipe, corpora, tokenizer, config, accelerator.num_processes, accelerator.process_index)
    return start, config, feed, teacher


def make_accelerator(precision: str, tracker: str | None = None, folder: str | os.PathLike = ".") -> Accelerator:
    """Sets up process group, precision and tracker of the run in `folder`. Raises `ValueError` if that fails.

    The processes divide the examples, and each has the whole model. DeepSpeed clips and steps at the end of its
    backward pass, but this loop scales gradients by the number of predictions, which it counts later.
    """
    if precision == "fp16" and not torch.cuda.is_available():
        raise ValueError("precision is fp16, but there is no GPU. Use bf16 or fp32 on a CPU.")
    for name in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG"):
        if parse_flag_from_env(f"ACCELERATE_USE_{name}"):
            raise ValueError(f"accelerate uses {name.lower()}. Use --config_file pretraining/accelerate/ddp.yaml.")
    start_processes()
    return Accelerator(
        mixed_precision={"fp32": "no"}.get(precision, precision),
        log_with=tracker,
        project_config=ProjectConfiguration(logging_dir=folder),
        kwargs_handlers=[DistributedDataParallelKwargs()],
    )


class Training:
    """A training run. Its state: weights, phase `index`, finished steps of the phase (`phase_step`) and of all."""

    def __init__(self, recipe: Recipe, model, feed: Feed, accelerator: Accelerator, argv: list[str], teacher=None):
        """`teacher`, a `TeacherModel`, reads every batch before the model, and adds its predictions to the batch."""
        self.recipe, self.accelerator, self.argv = recipe, accelerator, argv
        self.model, self.feed, self.teacher = model, feed, teacher
        self.folder, self.stops, self.optimizer = Path(recipe.output_dir), Stops(), None
        self.index = self.phase_step = self.step = 0

    def run(self, checkpoint: Path | None = None) -> None:
        """Trains from the start or from `checkpoint` to the end, and writes the result to `<output_dir>/model`.

        Raises `Stopped` after a signal, and `ValueError` if a loss is not finite, the data cannot be read or the disk
        is full. Before that it saves the state, if possible, from which `resume` continues.
        """
        hold_signals()
        register_model_folder(self.accelerator, self.feed.tokenizer)
        progress = read_json(checkpoint / "progress.json") if checkpoint else {"phase": 0, "step": 0}
        is_main = self.accelerator.is_main_process
        facts = {"parameters": self.accelerator.unwrap_model(self.model).num_parameters()}
        facts |= data_facts(self.feed.corpora, self.feed.tokenizer, self.teacher) if is_main else {}
        self.report = RunReport(self.recipe, self.accelerator, self.argv, checkpoint, progress["step"], facts)
        with self.report.bar, self.stops:
            for index in range(progress["phase"], len(self.recipe.phases)):
                self._start_phase(index)
                if checkpoint and index == progress["phase"]:
                    self._resume(checkpoint, progress)
                self._run_phase()
            if is_main:
                publish_model(self.folder, self.folder / "checkpoints" / f"step-{self.step}")
            self.report.finish(self.step)
            self.accelerator.wait_for_everyone()
            self.report.uploads.push(self.folder / "model", f"the model of step {self.step}")

    def time_steps(self, index: int, micro_batches: list[dict]) -> list[float]:
        """Returns the seconds of a step on each of some micro-batches of phase `index`, of which nothing is kept.

        Raises ValueError for a loss or a gradient that is not finite.
        """
        self._start_phase(index)
        phase, device = self.recipe.phases[index], self.accelerator.device
        weights = phase.loss_weights(self.accelerator.unwrap_model(self.model))
        durations = []
        for batch in micro_batches:
            started = time.perf_counter()
            labels = phase.predictions(batch, weights)
            output = self._backward(send_to_device(batch, device), weights, labels, is_last=True)
            loss_sum = output.loss_sum.detach().to(wide_type(device))
            try:
                self._step(labels, torch.stack([loss_sum, torch.zeros_like(loss_sum)]))
            except FloatingPointError as error:
                raise ValueError(f"{error} in the first steps of phase {phase.name!r}.") from error
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            durations.append(time.perf_counter() - started)
        return durations

    def _start_phase(self, index: int) -> None:
        """Freezes and unfreezes parameters, makes optimizer and schedule, and wraps the model.

        The model is wrapped again for each phase: if parameters were unfrozen after wrapping, their gradients would
        silently not be synchronized.
        """
        recipe, phase = self.recipe, self.recipe.phases[index]
        self.index, self.phase_step = index, 0
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        before = self.optimizer.optimizer if self.optimizer else None
        self.accelerator.free_memory()
        model.zero_grad()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(phase.trains(name))
        together, settings = scheduled_together(recipe.phases, index), recipe.optimizer
        first, steps = together[0], sum(phase.steps for phase in together)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in trained if p.dim() > 1], "weight_decay": settings.weight_decay},
            {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},  # biases and LayerNorms
        ]
        options = {"lr": first.learning_rate, "betas": tuple(settings.betas), "eps": settings.epsilon, "fused": True}
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]], **options)
        scheduler = get_scheduler(SCHEDULES.get(first.schedule, first.schedule), optimizer, first.warmup_steps, steps)
        if phase.optimizer == "carried" and before:  # a run that is resumed here loads both from its checkpoint
            scheduler.last_epoch = self.scheduler.last_epoch
            for group in optimizer.param_groups:
                group["lr"] = before.param_groups[0]["lr"]
                optimizer.state.update({p: before.state[p] for p in group["params"] if p in before.state})
        self.scheduler = scheduler
        set_seed(recipe.seed + index, device_specific=True)  # for dropout; data and masks have their own numbers
        self.accelerator.ddp_handler.find_unused_parameters = may_lack_gradients(model, phase)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.model.train()

    def _run_phase(self) -> None:
        recipe, phase, accelerator = self.recipe, self.recipe.phases[self.index], self.accelerator
        model, device = accelerator.unwrap_model(self.model), accelerator.device
        weights, losses = phase.loss_weights(model), phase.losses(model)
        meter = Meter(losses, phase_corpora(self.feed.corpora, phase), accelerator, self.phase_step)

        def fetch() -> tuple[list[dict], torch.Tensor]:
            """The micro-batches of the next step; what all processes sum: its predictions, and reasons to stop."""
            micro_batches = self.stops.fetch(recipe.gradient_accumulation_steps)
            counts = [phase.predictions(batch, weights) for batch in micro_batches]
            numbers = torch.tensor([sum(counts), *self.stops.reasons()], dtype=wide_type(device), device="cpu")
            return micro_batches, numbers.to(device, non_blocking=True)

        if self.phase_step < phase.steps:
            self.stops.read(self.feed.training(phase, self.index, self.phase_step), recipe.num_workers > 0)
        micro_batches, numbers = fetch()
        labels, *reasons = accelerator.reduce(numbers).tolist()
        self._stop_if_asked(reasons)
        while self.phase_step < phase.steps:
            late, loss_sum = 0, torch.zeros((), dtype=wide_type(device), device=device)
            for number, batch in enumerate(micro_batches, start=1):
                batch = send_to_device(batch, device, non_blocking=True)
                output = self._backward(batch, weights, labels, is_last=number == len(micro_batches))
                meter.add(batch, output)
                late += sum(len(output.token_losses.get(name, ())) for name in phase.objectives.keys() - batch.keys())
                loss_sum += output.loss_sum.detach()
            # of the next step, while the device is busy; before the step, all processes learn if one has none
            micro_batches, numbers = fetch()
            totals = torch.cat([torch.stack([loss_sum, loss_sum.new_full((), late)]), numbers])
            try:
                grad_norm, predictions, labels, *reasons = self._step(labels, accelerator.reduce(totals))
            except FloatingPointError as error:  # before the optimizer's step; the last checkpoint is from before, too
                error = ValueError(f"{error} at step {self.step + 1} (phase {phase.name!r}).")
                self._end(error, AFTER_DIVERGENCE, saves=False)
            self.phase_step += 1
            self.step += 1

            self.report.bar.step(self.step, phase.name)
            if is_logged := self._is_due(recipe.log_every_steps):
                figures = meter.line(self.phase_step, predictions, grad_norm)
                self.report.log(self.step, phase.name, figures, self.optimizer.param_groups[0]["lr"])
            if not predictions or not self.optimizer.step_was_skipped:  # by fp16's loss scaling
                self.scheduler.step()
            self._stop_if_asked(reasons)
            if self._is_due(recipe.checkpoint_steps):
                self._save(recipe.keep_checkpoints)
            if self._is_due(recipe.evaluation.every_steps):
                self._evaluate()
            if is_logged:
                meter.restart(self.phase_step)

    def _backward(self, batch: dict, weights: dict[str, float], labels: float, is_last: bool):
        """Runs forward and backward of a micro-batch on the device; returns its `PreTrainingOutput`.

        `labels`: the number of labels of the step, in all processes, which divides the losses.
        """
        accelerator, phase = self.accelerator, self.recipe.phases[self.index]
        with accelerator.autocast():
            if self.teacher:
                self.teacher.answer(batch, phase.objectives, weights)
        with nullcontext() if is_last else accelerator.no_sync(self.model):  # gradients are sent once per step
            output = self.model(**batch, objective_weights=weights)
            if not output.loss_sum.requires_grad:
                losses, trained = ", ".join(output.token_losses), ", ".join(phase.trainable)
                raise ValueError(
                    f"phase {phase.name!r} trains {trained}, but its losses ({losses}) depend on none of these "
                    "parameters. Change `trainable` or the objectives of the phase."
                )
            # DDP averages over processes what the rule sums
            accelerator.backward(output.loss_sum * (accelerator.num_processes / max(labels, 1)))
        return output

    def _step(self, labels: float, totals: torch.Tensor) -> tuple[float, ...]:
        """Clips the gradients and makes the step. `totals` of all processes: the loss, the predictions in addition to
        the `labels` of the step, and any further numbers. Returns the gradient norm before clipping, the number of
        predictions, and the further numbers.

        Without predictions there is no gradient: the norm is NaN; weights, moments and Adam's step counter do not
        change. Raises FloatingPointError for a loss or a norm that is not finite.
        """
        accelerator, parameters = self.accelerator, list(self.model.parameters())
        if any(objective.reads for objective in self.recipe.phases[self.index].objectives.values()):
            scale = max(labels, 1) / (labels + totals[1]).clamp(min=1).float()
            for gradient in (parameter.grad for parameter in parameters if parameter.grad is not None):
                gradient.mul_(scale)
        norm = accelerator.clip_grad_norm_(parameters, self.recipe.optimizer.max_grad_norm or math.inf)
        grad_norm, loss_sum, late, *others = torch.cat([norm[None], totals]).tolist()  # the only wait for the device
        predictions = labels + late
        if not math.isfinite(loss_sum):
            raise FloatingPointError(f"the loss is {loss_sum}")
        if not predictions:
            grad_norm = math.nan
            self.optimizer.zero_grad()
        elif not math.isfinite(grad_norm) and accelerator.scaler is None:  # fp16's loss scaling skips such a step
            raise FloatingPointError(f"the norm of the gradient is {grad_norm}")
        self.optimizer.step()  # without gradients it does nothing
        self.optimizer.zero_grad()
        return grad_norm, predictions, *others

    def _is_due(self, every: int) -> bool:
        """Returns whether the current step is a multiple of `every` (0: never) or the end of a phase."""
        return self.phase_step == self.recipe.phases[self.index].steps or bool(every and self.step % every == 0)

    def _evaluate(self) -> None:
        phase, is_alone = self.recipe.phases[self.index], self.accelerator.num_processes == 1
        if not any(corpus.held_out for corpus in phase_corpora(self.feed.corpora, phase)):
            return
        model, size = self.accelerator.unwrap_model(self.model), self.recipe.evaluation.batch_size
        try:
            with at_once() if is_alone else nullcontext():  # several processes evaluate together: none may leave
                figures = evaluate(model, self.accelerator, self.feed, phase, size, self.teacher)
        except (Stopped, ValueError, OSError) as reason:
            if not is_alone:
                raise
            self._end(reason)
        for name, value in figures.items():
            if not math.isfinite(value):
                what = f"the held-out figure {name} is {value} at step {self.step} (phase {phase.name!r})."
                self._end(ValueError(what), AFTER_DIVERGENCE)
        self.report.evaluation(self.step, phase.name, figures)

    def _save(self, keep: int) -> None:
        is_finite = torch.stack([torch.isfinite(parameter).all() for parameter in self.model.parameters()]).all()
        if self.accelerator.reduce((~is_finite).float()):  # all processes stop together
            kept = newest_checkpoint(self.folder) or "the start"
            error = f"Weights are not finite at step {self.step}; the last good state is {kept}. {AFTER_DIVERGENCE}"
            raise ValueError(error) if self.accelerator.is_main_process else SystemExit(2)
        progress = {"phase": self.index, "step_of_phase": self.phase_step, "step": self.step}
        progress["scheduler"] = self.scheduler.state_dict()
        save_checkpoint(self.accelerator, self.folder, progress, keep)
        self.report.saved(self.step)

    def _resume(self, checkpoint: Path, progress: dict) -> None:
        with readable(str(checkpoint)):
            self.accelerator.load_state(str(checkpoint))
        self.scheduler.load_state_dict(progress["scheduler"])
        self.phase_step, self.step = progress["step_of_phase"], progress["step"]
        if self._is_due(self.recipe.evaluation.every_steps):
            self._evaluate()

    def _stop_if_asked(self, reasons: list[float]) -> None:
        """Ends the run if the processes have `reasons` to stop; see `Stops`."""
        if reason := self.stops.agreed(reasons):
            self._end(reason, "Continue with --resume when the data is back.")

    def _end(self, reason: BaseException, advice: str = "Continue with --resume.", saves: bool = True) -> NoReturn:
        """Saves the current state, unless this step already has a checkpoint, and stops all processes together."""
        kept = newest_checkpoint(self.folder)
        if saves and self.step and (kept is None or kept.name != f"step-{self.step}"):
            # after an error, an older checkpoint may be the one that is wanted
            self._save(self.recipe.keep_checkpoints if isinstance(reason, Stopped) else 0)
            kept = newest_checkpoint(self.folder)
        if isinstance(reason, Stopped):
            self.report.finish(self.step, reason.signal.name)
            self.accelerator.wait_for_everyone()
            raise Stopped(reason.signal)
        where = f"Training has stopped at step {self.step}; the newest checkpoint is {kept or 'none'}."
        error = ValueError(f"{reason} {where} {advice}")
        error.__cause__ = reason
        raise error if self.accelerator.is_main_process else SystemExit(2)  # one report


def may_lack_gradients(model: torch.nn.Module, phase: Phase) -> bool:
    """Returns whether a batch may leave trained parameters without gradient, so that DDP has to search for them.

    MLM and TLM read all layers and the head, also if a batch has no masked token. They do not read other parts, such as
    cross-attention.
    """
    plain = ("roberta.embeddings.", "roberta.encoder.", "lm_head.")
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    is_plain = all(name.startswith(plain) and ".crossattention." not in name for name in trained)
    learned = [name for name, objective in phase.objectives.items() if objective.weight]
    return not is_plain or not any(name in ForPreTraining.objectives for name in learned)
