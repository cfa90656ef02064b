"""The training loop: phases, accumulation, scaling, clipping, schedule. It does not depend on models or objectives.

The rule of the loss: gradient = sum over objectives of weight x (sum of cross-entropies) / (number of predictions in
the global batch, over objectives, processes and micro-batches). The labels of a step give this number before its
forward passes, and it divides the losses. DWA and KD count theirs in the forward pass; then the gradients are scaled
again, before clipping. The loop waits for the device once a step.
"""

import math
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    ProjectConfiguration,
    parse_flag_from_env,
    send_to_device,
    set_seed,
)
from transformers import PreTrainedTokenizerBase, get_scheduler

from crosslingual_zoo.modeling.checkpoints import readable
from crosslingual_zoo.modeling.configuration_encoder import EncoderConfig, longest_input
from crosslingual_zoo.modeling.masked_lm import ForPreTraining, PreTrainingOutput
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
from crosslingual_zoo.pretraining.data.batches import load_corpora, phase_collators, phase_corpora, training_batches
from crosslingual_zoo.pretraining.data.corpora import Corpus
from crosslingual_zoo.pretraining.data.languages import Languages
from crosslingual_zoo.pretraining.evaluation import Meter, evaluate
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.recipe_phases import Phase, scheduled_together
from crosslingual_zoo.pretraining.start.initialization import Start, compiler_errors
from crosslingual_zoo.pretraining.start.pretrained import tokenizer_of
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
        parts = read_parts(recipe, accelerator, checkpoint)
        start = parts.start
        if resume:
            check_same_data(Path(recipe.output_dir), data_facts(parts.corpora, parts.tokenizer, parts.teacher))
        # a resumed run loads the weights of its checkpoint
        matching = None if checkpoint else start.match(parts.tokenizer)
        model = start.build_model(parts.config, matching, checkpoint)
        if recipe.head_phase and start.lacks_head:
            recipe = recipe.with_head_phase()
        parameter_names = [name for name, _ in model.named_parameters()]
        for phase in recipe.phases:
            phase.check_trainable(parameter_names)
        start_run_folder(recipe, accelerator.is_main_process, checkpoint)
        training = Training(recipe, model, parts.corpora, parts.tokenizer, accelerator, parts.teacher)
        # a resumed run has it in its run.json
        meta_pretrained = start.source.facts() if start.source and not checkpoint else None
        training.run(argv or [], checkpoint, meta_pretrained)
        accelerator.end_training()


class RunParts(NamedTuple):
    """What a recipe names: start, configuration of the model, tokenizer, text and teacher."""

    start: Start
    config: EncoderConfig
    tokenizer: PreTrainedTokenizerBase
    corpora: list[Corpus]
    teacher: TeacherModel | None


def read_parts(recipe: Recipe, accelerator: Accelerator, checkpoint: Path | None = None) -> RunParts:
    """Reads what a recipe names. Text is tokenized, once. `checkpoint`: that of a resumed run."""
    with main_first():  # of each machine; then tokenized text and remote code are in the cache
        start = Start(recipe)
        tokenizer = tokenizer_of(recipe)
        config = start.build_config(tokenizer, checkpoint)
        # the length of `truncation=True`, for users of the model folder
        # pyrefly: ignore[bad-specialization]  # our models all set a limit
        tokenizer.model_max_length = min(tokenizer.model_max_length, longest_input(config))
        corpora = load_corpora(recipe, tokenizer, accelerator.num_processes)
        teacher = None
        if recipe.teacher:
            teacher = TeacherModel(recipe.teacher, tokenizer, recipe.hub_root, recipe.trust_remote_code)
    return RunParts(start, config, tokenizer, corpora, teacher)


def make_accelerator(precision: str, tracker: str | None = None, folder: str = ".") -> Accelerator:
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
    """A training run. Its state: weights, optimizer and `scheduler`, `phase_index`, finished steps of the phase
    (`phase_step`) and of all phases (`step`).

    A `teacher` reads every batch before the model, and adds its predictions to the batch.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: ForPreTraining,
        corpora: list[Corpus],
        tokenizer: PreTrainedTokenizerBase,
        accelerator: Accelerator,
        teacher: TeacherModel | None = None,
    ):
        self.recipe = recipe
        self.model = model
        self.config = model.config
        self.corpora = corpora
        self.tokenizer = tokenizer
        self.accelerator = accelerator
        self.teacher = teacher
        self.folder = Path(recipe.output_dir)
        self.stops = Stops()
        self.optimizer: Any = None
        self.phase_index = 0
        self.phase_step = 0
        self.step = 0

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.recipe.phases[self.phase_index]

    def run(self, argv: list[str], checkpoint: Path | None = None, meta_pretrained: dict | None = None) -> None:
        """Trains from the start or from `checkpoint` to the end, and writes the result to `<output_dir>/model`.

        The command line `argv` and the facts of the checkpoint of one language, if any, are for run.json.

        Raises `Stopped` after a signal, and `ValueError` if a loss is not finite, the data cannot be read or the disk
        is full. Before that it saves the state, if possible, from which `resume` continues.
        """
        hold_signals()
        register_model_folder(self.accelerator, self.tokenizer)
        progress = read_json(checkpoint / "progress.json") if checkpoint else {"phase": 0, "step": 0}
        is_main = self.accelerator.is_main_process
        model: Any = self.accelerator.unwrap_model(self.model)
        facts: dict[str, Any] = {"parameters": model.num_parameters()}
        if is_main:
            facts |= data_facts(self.corpora, self.tokenizer, self.teacher)
            facts["meta_pretrained"] = meta_pretrained
        self.report = RunReport(self.recipe, self.accelerator, argv, checkpoint, progress["step"], facts)
        with self.report.bar, self.stops:
            for index in range(progress["phase"], len(self.recipe.phases)):
                self._start_phase(index)
                if self.recipe.model.compile:
                    self._compile()
                # for dropout; data and masks have their own numbers
                set_seed(self.recipe.seed + index, device_specific=True)
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
        device = self.accelerator.device
        weights = self.phase.loss_weights(self.accelerator.unwrap_model(self.model))
        durations = []
        for batch in micro_batches:
            started = time.perf_counter()
            num_labels = self.phase.predictions(batch, weights)
            batch_on_device: Any = send_to_device(batch, device)
            with compiler_errors(self.recipe.model.compile):
                output = self._backward(batch_on_device, weights, num_labels, is_last=True)
            loss_sum = output.loss_sum.detach().to(wide_type(device))
            no_more_predictions = torch.zeros_like(loss_sum)  # their number changes the gradients, but not the time
            try:
                self._step(num_labels, torch.stack([loss_sum, no_more_predictions]))
            except FloatingPointError as error:
                raise ValueError(f"{error} in the first steps of phase {self.phase.name!r}.") from error
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            durations.append(time.perf_counter() - started)
        return durations

    def _start_phase(self, index: int) -> None:
        """Freezes and unfreezes parameters, makes optimizer and schedule, and wraps the model.

        The model is wrapped again for each phase: if parameters were unfrozen after wrapping, their gradients would
        silently not be synchronized.
        """
        self.phase_index = index
        self.phase_step = 0
        model: Any = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        optimizer_before = self.optimizer.optimizer if self.optimizer else None
        self.accelerator.free_memory()
        model.zero_grad()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.phase.trains(name))
        optimizer = self._make_optimizer(model)
        scheduler = self._make_scheduler(optimizer)
        if self.phase.optimizer == "carried" and optimizer_before:  # a resumed run loads both from its checkpoint
            scheduler.last_epoch = self.scheduler.last_epoch
            _carry_over(optimizer_before, optimizer)
        self.scheduler = scheduler
        # pyrefly: ignore[missing-attribute]  # `make_accelerator` gives it one
        self.accelerator.ddp_handler.find_unused_parameters = may_lack_gradients(model, self.phase)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.model.train()

    def _compile(self) -> None:
        """Compiles the layers on the first micro-batch of the phase, of which nothing is kept.

        The sizes that the compiler sees first decide which code it makes. A resumed run shows it the same ones, and
        so has the same code, and the same last bits.

        Raises ValueError where torch cannot compile.
        """
        weights = self.phase.loss_weights(self.accelerator.unwrap_model(self.model))
        self.stops.read(self._training_batches(), self.recipe.num_workers > 0)
        for batch in self.stops.fetch(1):
            batch_on_device: Any = send_to_device(batch, self.accelerator.device)
            with compiler_errors():
                self._backward(batch_on_device, weights, num_labels=1, is_last=False)
        self.optimizer.zero_grad()

    def _make_optimizer(self, model: ForPreTraining) -> torch.optim.Optimizer:
        """Returns AdamW of the trained parameters, without weight decay of biases and LayerNorms."""
        phases = scheduled_together(self.recipe.phases, self.phase_index)
        settings = self.recipe.optimizer
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.dim() > 1]
        vectors = [parameter for parameter in trained if parameter.dim() <= 1]
        groups = []
        if matrices:
            groups.append({"params": matrices, "weight_decay": settings.weight_decay})
        if vectors:
            groups.append({"params": vectors, "weight_decay": 0.0})
        return torch.optim.AdamW(
            groups,
            lr=phases[0].learning_rate,  # pyrefly: ignore[bad-argument-type]  # `Phase.check` requires it
            betas=tuple(settings.betas),  # pyrefly: ignore[bad-argument-type]  # two, as the recipe's type says
            eps=settings.epsilon,
            fused=True,
        )

    def _make_scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """Returns the learning-rate schedule that this phase shares with its neighbors."""
        phases = scheduled_together(self.recipe.phases, self.phase_index)
        name = SCHEDULES.get(phases[0].schedule, phases[0].schedule)
        num_steps = sum(phase.steps for phase in phases)
        return get_scheduler(name, optimizer, phases[0].warmup_steps, num_steps)

    def _run_phase(self) -> None:
        """Trains to the end of the phase; logs, saves and evaluates when it is due."""
        phase = self.phase
        model: Any = self.accelerator.unwrap_model(self.model)
        weights = phase.loss_weights(model)
        corpora = phase_corpora(self.corpora, phase)
        meter = Meter(phase.losses(model), corpora, self.accelerator, self.phase_step)
        if self.phase_step < phase.steps:
            self.stops.read(self._training_batches(), self.recipe.num_workers > 0)
        micro_batches, numbers = self._fetch(weights)
        num_labels, *reasons = self.accelerator.reduce(numbers).tolist()
        self._stop_if_asked(reasons)
        while self.phase_step < phase.steps:
            sums = self._accumulate(micro_batches, weights, num_labels, meter)
            # Those of the next step, read while the device is busy. With the sums of this step, all processes learn
            # whether one of them has to stop.
            micro_batches, numbers = self._fetch(weights)
            totals = self.accelerator.reduce(torch.cat([sums, numbers]))
            try:
                step = self._step(num_labels, totals)
            except FloatingPointError as error:  # before the optimizer's step; the last checkpoint is from before, too
                reason = ValueError(f"{error} at step {self.step + 1} (phase {phase.name!r}).")
                self._end(reason, AFTER_DIVERGENCE, saves=False)
            num_labels, *reasons = step.next_numbers
            self.phase_step += 1
            self.step += 1

            self.report.bar.step(self.step, phase.name)
            is_logged = self._is_due(self.recipe.log_every_steps)
            if is_logged:
                figures = meter.line(self.phase_step, step.predictions, step.grad_norm)
                self.report.log(self.step, phase.name, figures, self.optimizer.param_groups[0]["lr"])
            # fp16's loss scaling skips steps, which then do not count; a step without predictions counts
            if not step.predictions or not self.optimizer.step_was_skipped:
                self.scheduler.step()
            self._stop_if_asked(reasons)
            if self._is_due(self.recipe.checkpoint_steps):
                self._save(self.recipe.keep_checkpoints)
            if self._is_due(self.recipe.evaluation.every_steps):
                self._evaluate()
            if is_logged:
                meter.restart(self.phase_step)

    def _training_batches(self) -> Iterable[dict]:
        """Returns the micro-batches of this process from the current step to the end of the phase."""
        return training_batches(
            self.recipe,
            self.phase_index,
            self.corpora,
            self.tokenizer,
            self.config,
            self.phase_step,
            self.accelerator.num_processes,
            self.accelerator.process_index,
        )

    def _fetch(self, weights: dict[str, float]) -> tuple[list[dict], torch.Tensor]:
        """Returns the micro-batches of the next step, and on the device (4,) what all processes sum: the number of its
        labels, and the three `Stops.reasons`."""
        device = self.accelerator.device
        micro_batches = self.stops.fetch(self.recipe.gradient_accumulation_steps)
        num_labels = sum(self.phase.predictions(batch, weights) for batch in micro_batches)
        numbers = torch.tensor([num_labels, *self.stops.reasons()], dtype=wide_type(device), device="cpu")
        return micro_batches, numbers.to(device, non_blocking=True)

    def _accumulate(
        self, micro_batches: list[dict], weights: dict[str, float], num_labels: float, meter: Meter
    ) -> torch.Tensor:
        """Runs forward and backward of a step's micro-batches. Returns (2,): the sum of the losses, and the number of
        predictions in addition to the labels."""
        device = self.accelerator.device
        loss_sum = torch.zeros((), dtype=wide_type(device), device=device)
        late_predictions = 0
        for number, batch in enumerate(micro_batches, start=1):
            batch: Any = send_to_device(batch, device, non_blocking=True)
            output = self._backward(batch, weights, num_labels, is_last=number == len(micro_batches))
            meter.add(batch, output)
            # objectives without a sub-batch, which read that of another: DWA and KD
            for name in self.phase.objectives.keys() - batch.keys():
                late_predictions += len(output.token_losses.get(name, ()))
            loss_sum += output.loss_sum.detach()
        return torch.stack([loss_sum, loss_sum.new_full((), late_predictions)])

    def _backward(self, batch: dict, weights: dict[str, float], num_labels: float, is_last: bool) -> PreTrainingOutput:
        """Runs forward and backward of a micro-batch on the device.

        `num_labels`: the number of labels of the step, in all processes, which divides the losses.
        """
        accelerator = self.accelerator
        with accelerator.autocast():
            if self.teacher:
                self.teacher.answer(batch, self.phase.objectives, weights)
        with nullcontext() if is_last else accelerator.no_sync(self.model):  # gradients are sent once per step
            output = self.model(**batch, objective_weights=weights)
            if not output.loss_sum.requires_grad:
                losses = ", ".join(output.token_losses)
                trained = ", ".join(self.phase.trainable)
                raise ValueError(
                    f"phase {self.phase.name!r} trains {trained}, but its losses ({losses}) depend on none of these "
                    "parameters. Change `trainable` or the objectives of the phase."
                )
            # DDP averages over processes what the rule sums
            accelerator.backward(output.loss_sum * (accelerator.num_processes / max(num_labels, 1)))
        return output

    def _step(self, num_labels: float, totals: torch.Tensor) -> "FinishedStep":
        """Clips the gradients and makes the step. `totals`: sums over all processes, of `_accumulate` and of `_fetch`
        for the next step: the loss, the predictions in addition to the labels, and `next_numbers`.

        Without predictions there is no gradient: the norm is NaN; weights, moments and Adam's step counter do not
        change. Raises FloatingPointError for a loss or a norm that is not finite.
        """
        parameters = list(self.model.parameters())
        if any(objective.reads for objective in self.phase.objectives.values()):
            scale = max(num_labels, 1) / (num_labels + totals[1]).clamp(min=1).float()
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        norm = self.accelerator.clip_grad_norm_(parameters, self.recipe.optimizer.max_grad_norm or math.inf)
        # the loop's only wait for the device
        # pyrefly: ignore[unsupported-operation]  # the library returns no norm with DeepSpeed alone
        grad_norm, loss_sum, late_predictions, *next_numbers = torch.cat([norm[None], totals]).tolist()
        predictions = num_labels + late_predictions
        if not math.isfinite(loss_sum):
            raise FloatingPointError(f"the loss is {loss_sum}")
        if not predictions:
            grad_norm = math.nan
            self.optimizer.zero_grad()
        elif not math.isfinite(grad_norm) and self.accelerator.scaler is None:  # fp16's loss scaling skips such a step
            raise FloatingPointError(f"the norm of the gradient is {grad_norm}")
        self.optimizer.step()  # does nothing without gradients
        self.optimizer.zero_grad()
        return FinishedStep(grad_norm, predictions, next_numbers)

    def _is_due(self, every: int) -> bool:
        """Returns whether the current step is a multiple of `every` (0: never) or the end of a phase."""
        return self.phase_step == self.phase.steps or bool(every and self.step % every == 0)

    def _evaluate(self) -> None:
        """Evaluates on the held-out text of the phase. Raises ValueError for a figure that is not finite."""
        phase = self.phase
        corpora = phase_corpora(self.corpora, phase)
        if not any(len(corpus.evaluated) for corpus in corpora):
            return
        model: Any = self.accelerator.unwrap_model(self.model)
        languages = Languages.of(self.config, self.corpora, self.recipe.alpha)
        collators = phase_collators(phase, self.tokenizer, languages)
        batch_size = self.recipe.evaluation.batch_size
        is_alone = self.accelerator.num_processes == 1
        try:
            # a signal ends an evaluation at once, unless several processes evaluate together: none may leave
            with at_once() if is_alone else nullcontext():
                figures = evaluate(model, self.accelerator, phase, corpora, collators, batch_size, self.teacher)
        except (Stopped, ValueError, OSError) as reason:
            if not is_alone:
                raise
            self._end(reason)
        for name, value in figures.items():
            if not math.isfinite(value):
                error = f"the held-out figure {name} is {value} at step {self.step} (phase {phase.name!r})."
                self._end(ValueError(error), AFTER_DIVERGENCE)
        self.report.evaluation(self.step, phase.name, figures)

    def _save(self, keep: int) -> None:
        """Saves a checkpoint, and keeps the newest `keep` of the run (0: all). Raises ValueError for weights that are
        not finite."""
        is_finite = torch.stack([torch.isfinite(parameter).all() for parameter in self.model.parameters()]).all()
        if self.accelerator.reduce((~is_finite).float()):  # all processes stop together
            newest = newest_checkpoint(self.folder) or "the start"
            self._raise(
                ValueError(
                    f"Weights are not finite at step {self.step}; the last good state is {newest}. {AFTER_DIVERGENCE}"
                )
            )
        progress: dict[str, Any] = {
            "phase": self.phase_index,
            "step_of_phase": self.phase_step,
            "step": self.step,
        }
        progress["scheduler"] = self.scheduler.state_dict()
        save_checkpoint(self.accelerator, self.folder, progress, keep)
        self.report.saved(self.step)

    def _resume(self, checkpoint: Path, progress: dict) -> None:
        """Loads the state of a checkpoint, whose `progress` is its progress.json."""
        with readable(str(checkpoint)):
            self.accelerator.load_state(str(checkpoint))
        self.scheduler.load_state_dict(progress["scheduler"])
        self.phase_step = progress["step_of_phase"]
        self.step = progress["step"]
        # a checkpoint is saved before the evaluation of its step, which the run may not have reached
        if self._is_due(self.recipe.evaluation.every_steps):
            self._evaluate()

    def _stop_if_asked(self, reasons: list[float]) -> None:
        """Ends the run if the processes have `reasons` to stop; see `Stops`."""
        reason = self.stops.agreed(reasons)
        if reason:
            self._end(reason, "Continue with --resume when the data is back.")

    def _end(self, reason: BaseException, advice: str = "Continue with --resume.", saves: bool = True) -> NoReturn:
        """Saves the current state, unless this step already has a checkpoint or `saves` is false, and stops all
        processes together. The `advice` ends the message."""
        newest = newest_checkpoint(self.folder)
        if saves and self.step and (newest is None or newest.name != f"step-{self.step}"):
            # after an error, an older checkpoint may be the one that is wanted
            self._save(self.recipe.keep_checkpoints if isinstance(reason, Stopped) else 0)
            newest = newest_checkpoint(self.folder)
        if isinstance(reason, Stopped):
            self.report.finish(self.step, reason.signal.name)
            self.accelerator.wait_for_everyone()
            raise Stopped(reason.signal)
        state = f"Training has stopped at step {self.step}; the newest checkpoint is {newest or 'none'}."
        error = ValueError(f"{reason} {state} {advice}")
        error.__cause__ = reason
        self._raise(error)

    def _raise(self, error: ValueError) -> NoReturn:
        """Raises an error in the main process, and ends the others: one report."""
        if self.accelerator.is_main_process:
            raise error
        raise SystemExit(2)


class FinishedStep(NamedTuple):
    """A step: the gradient norm before clipping, and the number of predictions; and numbers of the next step."""

    grad_norm: float
    predictions: float
    next_numbers: list[float]


def _carry_over(before: torch.optim.Optimizer, optimizer: torch.optim.Optimizer) -> None:
    """Continues with the learning rate of an optimizer, and with its moments of the same parameters."""
    for group in optimizer.param_groups:
        group["lr"] = before.param_groups[0]["lr"]
        for parameter in group["params"]:
            if parameter in before.state:
                optimizer.state[parameter] = before.state[parameter]


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
