"""The training loop: phases, accumulation, clipping, schedule, checkpoints, resume. It knows no model and no objective.

The one rule of the loss (DESIGN.md, "Loss"): gradient = sum over objectives of weight x (sum of cross-entropies) /
(number of predictions in the global batch, over objectives, processes and micro-batches). The number is known only
after the forward passes, so sums are back-propagated and the gradients are scaled once, before clipping.
"""

import logging
import math
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import NoReturn

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    broadcast_object_list,
    gather_object,
    send_to_device,
    set_seed,
)
from transformers import get_scheduler
from transformers.utils import logging as transformers_logging

from pretraining.checkpoints import (
    load_checkpoint,
    newest_checkpoint,
    open_run_folder,
    publish_model,
    read_progress,
    register_model_folder,
    save_checkpoint,
    sound_checkpoint,
    start_run_folder,
    writing,
)
from pretraining.data.corpora import Corpus, load_corpora, phase_corpora, training_batches
from pretraining.data.sampling import Languages
from pretraining.distillation import TeacherModel, load_teachers
from pretraining.evaluation import evaluate
from pretraining.interruption import Stopped, at_once, hold_signals, received, stop_all
from pretraining.not_finite import REPORT, LossTrace, describe_first, random_state, set_random_state
from pretraining.recipe import OBJECTIVES, Phase, Recipe, loss_weights, scheduled_together, unused_losses
from pretraining.run_lock import run_lock
from pretraining.run_record import RunRecord, check_same_data, data_facts
from pretraining.sharding import (
    ShardingAccelerator,
    all_finite,
    check_launch,
    check_sharding,
    gradient_norm,
    local_parts,
)
from pretraining.start.initialization import build_config, build_model, load_tokenizer
from pretraining.start.meta_pretrained import carries_rows, match, report_match
from pretraining.step_log import StepLog
from pretraining.tracking import Events, ProgressLine, plot_curves
from pretraining.trainable import check_trainable, clear_gradients, is_trainable, make_optimizer
from zoo_core.processes import check_shared_folder, start_processes
from zoo_core.provenance import write_json

logger = logging.getLogger(__name__)

SCHEDULES = {"constant": "constant_with_warmup"}  # the others are called the same in transformers


def pretrain(recipe: Recipe, resume: bool = False, dry_run: bool = False, argv: list[str] | None = None) -> None:
    """Everything from a checked recipe to a finished run folder (or, with `dry_run`, to a printed plan).

    Raises `ValueError` for whatever the user has to mend; see `check_recipe`, `build_config`, `load_corpora` and
    `open_run_folder`.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("httpx", "httpx2", "datasets", "accelerate"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    writes = not dry_run and int(os.environ.get("RANK", 0)) == 0
    with run_lock(Path(recipe.output_dir)) if writes else nullcontext():
        _pretrain(recipe, resume, dry_run, argv or [])


def _pretrain(recipe: Recipe, resume: bool, dry_run: bool, argv: list[str]) -> None:
    if not dry_run:
        open_run_folder(recipe, resume)
    accelerator = make_accelerator(recipe)
    if not accelerator.is_main_process:
        logging.getLogger().setLevel(logging.WARNING)
    checkpoint = _checkpoint_to_resume(recipe, accelerator) if resume else None
    with accelerator.main_process_first():  # the others find tokenized text and remote code in the cache
        tokenizer = load_tokenizer(recipe)
        config = build_config(recipe, tokenizer, checkpoint)
        # what `truncation=True` cuts to, for those who use the folder
        tokenizer.model_max_length = min(tokenizer.model_max_length, config.longest_input)
        corpora = load_corpora(recipe, tokenizer, accelerator.num_processes)
        teachers = load_teachers(recipe, tokenizer)
    if dry_run:
        from pretraining.plan import print_plan

        if accelerator.is_main_process:
            print_plan(recipe, config, corpora, tokenizer, accelerator.num_processes, teachers)
        return
    if resume:
        check_same_data(recipe, data_facts(corpora, tokenizer, teachers))
    # what is resumed has the weights of its checkpoint
    matched = match(recipe, tokenizer) if recipe.model.meta_pretrained and not checkpoint else None
    model = build_model(recipe, config, matched)
    check_trainable(model, recipe.phases)
    if accelerator.is_main_process:
        start_run_folder(recipe)
        if matched and carries_rows(recipe.model.meta_pretrained):
            report_match(matched, tokenizer, corpora, Path(recipe.output_dir))
    check_shared_folder(Path(recipe.output_dir) / "recipe.yaml", "output_dir")
    Training(recipe, model, tokenizer, corpora, accelerator, argv, teachers).run(checkpoint)
    accelerator.end_training()


def _checkpoint_to_resume(recipe: Recipe, accelerator: Accelerator) -> Path | None:
    """Found by the main process, for all; where it finds none that can be used, all stop."""
    found: list = [None]
    if accelerator.is_main_process:
        try:
            found = [sound_checkpoint(Path(recipe.output_dir))]
        except ValueError as error:
            found = [error]
    (found,) = broadcast_object_list(found)
    if isinstance(found, ValueError):
        raise stop_all(found, accelerator.is_main_process)
    return found


def make_accelerator(recipe: Recipe) -> ShardingAccelerator:
    """The process group and precision of the run. Raises `ValueError` for those that cannot be, see sharding.py."""
    if recipe.precision == "fp16" and not torch.cuda.is_available():
        raise ValueError(
            "precision is fp16, but there is no GPU: half precision needs its loss scaling and kernels. Use bf16 or "
            "fp32 on a CPU."
        )
    check_launch()
    start_processes()
    accelerator = ShardingAccelerator(
        mixed_precision={"fp32": "no"}.get(recipe.precision, recipe.precision),
        # a batch may leave parameters without gradient: cross-attention under MLM, an objective without a query
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    check_sharding(accelerator, recipe.precision)
    return accelerator


class Training:
    """One run. `run` goes through the phases; each phase wraps the model anew, with its own trainable parameters."""

    def __init__(
        self,
        recipe: Recipe,
        model,
        tokenizer,
        corpora: list[Corpus],
        accelerator: ShardingAccelerator,
        argv,
        teachers: Sequence[TeacherModel] = (),
    ):
        """`teachers` are shown every batch before the model, and add to it what the model learns from them."""
        self.recipe, self.tokenizer, self.accelerator, self.argv = recipe, tokenizer, accelerator, argv
        self.model, self.corpora, self.teachers = model, corpora, teachers
        self.languages = Languages.of(model.config, corpora, recipe.alpha)
        self.folder = Path(recipe.output_dir)
        self.step = 0  # steps done in all phases
        self.optimizer = None
        self.trouble: Exception | None = None  # why this process has no batch
        self.total_steps = sum(phase.steps for phase in recipe.phases)

    def run(self, checkpoint: Path | None = None) -> None:
        """Train from the start or from `checkpoint` to the end, and leave the result in `<output_dir>/model`.

        Raises `Stopped` after a signal, and `ValueError` where a loss is not finite, the data cannot be read or the
        disk is full: what can be saved is saved before, and `resume` goes on from there.
        """
        recipe, main = self.recipe, self.accelerator.is_main_process
        hold_signals()
        register_model_folder(self.accelerator, self.tokenizer)
        progress = read_progress(checkpoint) if checkpoint else {"phase": 0, "update": 0, "step": 0}
        if main:
            with writing("events.jsonl or run.json", self.folder):
                self.events = Events(self.folder, progress["step"], progress.get("evaluation_due", False))
                parameters = sum(p.numel() for p in self.accelerator.unwrap_model(self.model).parameters())
                facts = data_facts(self.corpora, self.tokenizer, self.teachers)
                self.record = RunRecord(recipe, self.argv, checkpoint, parameters, facts)
        with ProgressLine(self.total_steps, progress["step"], main) as self.line:
            if checkpoint:
                self.line.say(f"resumed from {checkpoint}")
                before, now = progress["num_processes"], self.accelerator.num_processes
                if before != now:
                    self.line.say(
                        f"the run had {before} processes and has {now} now: data and masks go on exactly, the random "
                        "numbers of dropout do not"
                    )
            for index in range(progress["phase"], len(recipe.phases)):
                self._start_phase(index)
                start = 0
                if checkpoint and index == progress["phase"]:
                    load_checkpoint(self.accelerator, checkpoint)
                    self.scheduler.load_state_dict(progress["scheduler"])
                    start, self.step = progress["update"], progress["step"]
                    if progress.get("evaluation_due"):
                        self._evaluate(index, start)
                self._run_phase(index, start)
        if main:
            with writing("run.json or curves.png", self.folder):
                plot_curves(self.folder)
                self.record.finish(self.step)
            publish_model(self.folder, self.folder / "checkpoints" / f"step-{self.step}")
            self.line.say(f"model: {self.folder / 'model'}\ncurves: {self.folder / 'curves.png'}")
        self.accelerator.wait_for_everyone()

    def _start_phase(self, index: int) -> None:
        """Freeze and free parameters, make optimizer and schedule, wrap. Gradients of parameters that are freed after
        wrapping would stay unsynchronized without a word, hence anew for each phase."""
        recipe, phase = self.recipe, self.recipe.phases[index]
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        before = self.optimizer.optimizer if self.optimizer else None
        self.accelerator.free_memory()
        model.zero_grad()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_trainable(name, phase))
        model = self.accelerator.shard(model)
        together = scheduled_together(recipe.phases, index)
        first, steps = together[0], sum(phase.steps for phase in together)
        optimizer = make_optimizer(model, first, recipe)
        scheduler = get_scheduler(SCHEDULES.get(first.schedule, first.schedule), optimizer, first.warmup_steps, steps)
        if phase.optimizer == "carried" and before:  # a run that is resumed here has both from its checkpoint
            scheduler.last_epoch = self.scheduler.last_epoch
            for group in optimizer.param_groups:
                group["lr"] = before.param_groups[0]["lr"]
                optimizer.state.update({p: before.state[p] for p in group["params"] if p in before.state})
        self.scheduler = scheduler
        set_seed(recipe.seed + index, device_specific=True)  # dropout; data and masks have their own keyed numbers
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        clear_gradients(self.model, self.optimizer)
        self.model.train()

    def _run_phase(self, index: int, start: int) -> None:
        recipe, phase, accelerator = self.recipe, self.recipe.phases[index], self.accelerator
        corpora = phase_corpora(self.corpora, phase)
        weights = loss_weights(phase) | unused_losses(phase, accelerator.unwrap_model(self.model).objectives)
        log, trace = StepLog(phase, corpora, accelerator, start), LossTrace()
        share = (accelerator.num_processes, accelerator.process_index)
        loader = training_batches(corpora, phase, recipe, index, self.tokenizer, start, *share, self.languages)
        batches = iter(loader if start < phase.steps else ())
        upcoming = self._fetch(batches)
        self._agree_to_go_on(accelerator.reduce(self._reasons_to_stop()), index, start)
        for update in range(start + 1, phase.steps + 1):
            self.random_state = random_state(accelerator.device)
            totals = torch.zeros(2, dtype=torch.float64, device=accelerator.device)  # predictions, loss
            for micro, batch in enumerate(upcoming):
                batch = send_to_device(batch, accelerator.device)
                with accelerator.autocast():
                    for teach in self.teachers:
                        teach(batch, weights)
                last = micro == recipe.gradient_accumulation_steps - 1
                # Gradients travel between processes once a step. Sharded ones with each micro-batch: kept whole
                # until the last, they would take the memory that sharding is to spare.
                with nullcontext() if last or accelerator.is_fsdp2 else accelerator.no_sync(self.model):
                    with accelerator.autocast():  # of a sharded model accelerate leaves it to us
                        output = self.model(**batch, objective_weights=weights)
                    if not output.loss.requires_grad:
                        raise ValueError(
                            f"phase {phase.name!r} trains {', '.join(phase.trainable)}, and its losses "
                            f"({', '.join(output.token_losses)}) pass through none of these parameters: nothing would "
                            "be learned. Widen its `trainable`, or give it an objective that uses them."
                        )
                    accelerator.backward(output.loss)
                log.add(batch, output)
                trace.add(batch, output)
                totals[0] += sum(len(losses) for losses in output.token_losses.values())
                totals[1] += output.loss.detach()
            # The next step's, while the device is at work. A process that has none says so to all before they step.
            upcoming = self._fetch(batches)
            totals = accelerator.reduce(torch.cat([totals, self._reasons_to_stop()]), reduction="sum")
            predictions, loss_sum = totals[:2].tolist()
            try:
                if not math.isfinite(loss_sum):
                    raise FloatingPointError(f"the loss is {loss_sum}")
                grad_norm = self._update(predictions, update, phase)
            except FloatingPointError as error:
                self._diverged(str(error), trace, index, update)
            trace.clear()
            self.step += 1
            self.line.step(self.step, phase.name)

            due = self.step % recipe.log_every_steps == 0 or update == phase.steps
            if due:
                self._log(log.line(update, predictions, grad_norm), phase)
            if not self.optimizer.step_was_skipped:  # by fp16's loss scaling
                self.scheduler.step()
            every, save = recipe.evaluation.every_steps, recipe.save_every_steps
            to_evaluate = update == phase.steps or (every and self.step % every == 0)
            self._agree_to_go_on(totals[2:], index, update, to_evaluate)
            if to_evaluate:
                self._evaluate(index, update)
            if update == phase.steps or (save and self.step % save == 0):
                self._save(index, update)
            if due:
                log.restart(update)

    def _fetch(self, batches: Iterator[dict]) -> list[dict]:
        """The micro-batches of the next step. None where the phase ends, a signal came (see `received`) or reading
        failed (`self.trouble`): the process is in the middle of a step, and others wait for it."""
        try:
            with nullcontext() if self.recipe.num_workers else at_once():  # loading.py looks while it waits for workers
                return list(islice(batches, self.recipe.gradient_accumulation_steps))
        except Stopped:
            pass
        except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: a data-loading worker was killed
            self.trouble = error
        return []

    def _reasons_to_stop(self) -> torch.Tensor:
        """(3,) SIGTERM, SIGINT, trouble with the data: 1 where this process has it, to be summed over all."""
        reasons = [received() == signal.SIGTERM, received() == signal.SIGINT, self.trouble is not None]
        return torch.tensor(reasons, dtype=torch.float64, device=self.accelerator.device)

    def _agree_to_go_on(self, reasons: torch.Tensor, index: int, update: int, evaluation_due: bool = False) -> None:
        """Saves and stops where any process has a reason to."""
        terminated, interrupted, troubled = reasons.bool().tolist()
        if troubled:
            self._stop_for_trouble(index, update, evaluation_due)
        if terminated or interrupted:
            self._stop_by(signal.SIGTERM if terminated else signal.SIGINT, index, update, evaluation_due)

    def _stop_by(self, number: signal.Signals, index: int, update: int, evaluation_due: bool) -> NoReturn:
        kept = self._save_once(index, update, evaluation_due)
        if self.accelerator.is_main_process:
            with writing("run.json", self.folder):
                self.record.finish(self.step, number.name)
        nothing = "" if kept else ", with nothing to save"
        self.line.say(f"stopped by {number.name} at step {self.step}{nothing}: continue with --resume")
        self.accelerator.wait_for_everyone()
        raise Stopped(number, is_said=True)

    def _stop_for_trouble(self, index: int, update: int, evaluation_due: bool) -> NoReturn:
        errors = gather_object([self.trouble and (str(self.trouble) or repr(self.trouble))])
        number, error = next((number, error) for number, error in enumerate(errors) if error)
        process = f"process {number}: " if len(errors) > 1 else ""
        error = ValueError(
            f"{process}{error} Training has stopped at step {self.step}, for want of data. "
            f"{self._keep(index, update, evaluation_due)} Continue with --resume when the data is back."
        )
        error.__cause__ = self.trouble
        raise stop_all(error, self.accelerator.is_main_process)

    def _keep(self, index: int, update: int, evaluation_due: bool = False) -> str:
        """Saves the present state for a run that fails; a sentence that says where the last good state is."""
        try:
            kept = self._save_once(index, update, evaluation_due)
        except ValueError as error:
            return f"This state could not be saved: {error}"
        return f"The last good state is {kept}." if kept else "There was no step before it to keep."

    def _update(self, predictions: float, update: int, phase: Phase) -> float:
        """Scale the summed gradients, clip, step; returns the gradient norm before clipping."""
        accelerator = self.accelerator
        if not predictions:
            learned = [name for name, objective in phase.objectives.items() if objective.weight]
            asked = ", or the teacher could be asked about none" if all(OBJECTIVES[n].taught for n in learned) else ""
            raise ValueError(
                f"update {update} of phase {phase.name!r} predicts nothing: no token of its global batch was masked"
                f"{asked}, so there is no loss to follow. Raise batch_size or mask_probability, or leave out "
                "texts of a word or two."
            )
        accelerator.unscale_gradients(self.optimizer)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        # DDP and FSDP2 have averaged over processes what the rule sums
        scale = accelerator.num_processes / predictions
        norm = gradient_norm(gradients) * scale
        if not torch.isfinite(norm) and accelerator.scaler is None:  # fp16's loss scaling skips such a step
            raise FloatingPointError(f"the norm of the gradient is {norm.item()}")
        limit = self.recipe.optimizer.max_grad_norm
        if limit:
            scale = scale * (limit / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(local_parts(gradients), scale)
        self.optimizer.step()
        clear_gradients(self.model, self.optimizer)
        return norm.item()

    def _diverged(self, what: str, trace: LossTrace, index: int, update: int) -> NoReturn:
        """Names the examples, keeps the state before them: the optimizer has not been told yet."""
        reports, phase, step = gather_object([trace.report()]), self.recipe.phases[index], self.step + 1
        set_random_state(self.random_state, self.accelerator.device)
        kept = self._keep(index, update - 1)
        if self.accelerator.is_main_process:
            with writing(REPORT, self.folder):
                content = {"step": step, "phase": phase.name, "what": what, "processes": reports}
                write_json(self.folder / REPORT, content)
        newest = newest_checkpoint(self.folder)
        start = f"model.start_from={newest / 'model'}" if newest else "the same start"
        raise stop_all(
            ValueError(
                f"{what} at step {step} (phase {phase.name!r}); {describe_first(reports)}. Training has diverged, and "
                f"the step would have spread it to every weight. {kept} Resumed, the run would come to the same "
                f"batch: start a new one (another output_dir) from {start} with a lower learning_rate, a longer "
                "warm-up or a lower optimizer.max_grad_norm, and look at these examples."
            ),
            self.accelerator.is_main_process,
        )

    def _log(self, figures: dict, phase: Phase) -> None:
        if self.accelerator.is_main_process:
            rate = {"learning_rate": self.optimizer.param_groups[0]["lr"]}
            with writing("events.jsonl", self.folder):
                self.events.write(step=self.step, phase=phase.name, **figures, **rate)
            self.line.log(self.step, phase.name, figures["loss"], figures["tokens_per_second"])

    def _evaluate(self, index: int, update: int) -> None:
        phase, corpora = self.recipe.phases[index], phase_corpora(self.corpora, self.recipe.phases[index])
        if not any(corpus.held_out for corpus in corpora):
            return
        model = self.accelerator.whole_model(self.model)
        common = (self.tokenizer, self.accelerator, self.languages, self.teachers)
        is_alone = self.accelerator.num_processes == 1  # several meet in an evaluation: none may leave it
        try:
            with at_once() if is_alone else nullcontext():
                figures = evaluate(model, corpora, phase, self.recipe, *common)
        except Stopped as stop:
            self._stop_by(stop.signal, index, update, evaluation_due=True)
        except (ValueError, OSError) as error:
            if not is_alone:
                raise
            self.trouble = error
            self._stop_for_trouble(index, update, evaluation_due=True)
        if self.accelerator.is_main_process and figures:
            with writing("events.jsonl", self.folder):
                self.events.write(step=self.step, phase=phase.name, **figures)
            wanted = (
                "held_out",
                "retrieval/",
                "alignment_joint/",
                "alignment_separate/",
                "alignment_cross/",
                "self_labels/",
                "back_translation/",
            )
            shown = [f"{key} {value:.3f}" for key, value in figures.items() if key.startswith(wanted)]
            self.line.say(f"step {self.step}  " + "  ".join(shown))

    def _save(self, index: int, update: int, evaluation_due: bool = False) -> None:
        """A checkpoint; `evaluation_due` where the run stops before the evaluation that this step has."""
        if not all_finite(self.model, self.accelerator):
            newest = newest_checkpoint(self.folder)
            start = f"model.start_from={newest / 'model'}" if newest else "the same start"
            error = ValueError(
                f"weights are not finite at step {self.step}: training has diverged, and nothing can be learned from "
                f"here. Start a new run (another output_dir) from {start} with a lower learning_rate, a longer "
                "warm-up or a lower optimizer.max_grad_norm."
            )
            raise stop_all(error, self.accelerator.is_main_process)
        processes = self.accelerator.num_processes
        progress = {"phase": index, "update": update, "step": self.step, "num_processes": processes}
        progress["evaluation_due"] = evaluation_due
        progress["scheduler"] = {
            key: value for key, value in self.scheduler.state_dict().items() if key != "lr_lambdas"
        } | {"lr_lambdas": [None]}
        save_checkpoint(self.accelerator, self.folder, progress, self.recipe.keep_checkpoints)
        if self.accelerator.is_main_process:
            with writing("curves.png", self.folder):
                plot_curves(self.folder)

    def _save_once(self, index: int, update: int, evaluation_due: bool = False) -> Path | None:
        """Saves where this step has no checkpoint yet and there has been a step; the newest checkpoint."""
        newest = newest_checkpoint(self.folder)
        if self.step and (newest is None or newest.name != f"step-{self.step}"):
            self._save(index, update, evaluation_due)
        return newest_checkpoint(self.folder)
