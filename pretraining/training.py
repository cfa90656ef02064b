"""The training loop: phases, accumulation, clipping, schedule, checkpoints, resume. It knows no model and no objective.

The one rule of the loss (DESIGN.md, "Loss"): gradient = sum over objectives of weight x (sum of cross-entropies) /
(number of predictions in the global batch, over objectives, processes and micro-batches). The number is known only
after the forward passes, so sums are back-propagated and the gradients are scaled once, before clipping.
"""

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, send_to_device, set_seed
from torch import nn
from transformers import get_scheduler
from transformers.utils import logging as transformers_logging

from common.processes import start_processes
from common.provenance import run_facts, write_json
from common.recipes import nearest
from pretraining.checkpoints import (
    load_checkpoint,
    newest_checkpoint,
    open_run_folder,
    publish_model,
    read_progress,
    register_model_folder,
    save_checkpoint,
    start_run_folder,
)
from pretraining.collators import inputs_of
from pretraining.corpora import Corpus, load_corpora, phase_corpora, training_batches
from pretraining.distillation import TeacherModel, load_teachers
from pretraining.evaluation import evaluate
from pretraining.initialization import build_config, build_model, load_tokenizer
from pretraining.meta_pretrained import carries_rows, match, of_body, report_match, start_facts
from pretraining.recipe import OBJECTIVES, Phase, Recipe, loss_names, loss_weights, unused_losses
from pretraining.sampling import Languages
from pretraining.tokenised import tokenizer_fingerprint
from pretraining.tracking import Events, LossMeter, ProgressLine, plot_curves

logger = logging.getLogger(__name__)

SCHEDULES = {"constant": "constant_with_warmup"}  # the others are called the same in transformers


def pretrain(recipe: Recipe, resume: bool = False, dry_run: bool = False, argv: list[str] | None = None) -> None:
    """Everything from a checked recipe to a finished run folder (or, with `dry_run`, to a printed plan).

    Raises `ValueError` for whatever the user has to mend; see `check_recipe`, `build_config`, `load_corpora` and
    `open_run_folder`.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("httpx", "datasets", "accelerate"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    checkpoint = None if dry_run else open_run_folder(recipe, resume)
    accelerator = make_accelerator(recipe)
    if not accelerator.is_main_process:
        logging.getLogger().setLevel(logging.WARNING)
    with accelerator.main_process_first():  # the others find tokenised text and remote code in the cache
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
    accelerator.wait_for_everyone()
    Training(recipe, model, tokenizer, corpora, accelerator, argv or [], teachers).run(checkpoint)
    accelerator.end_training()


def make_accelerator(recipe: Recipe) -> Accelerator:
    """The process group and precision of the run."""
    if recipe.precision == "fp16" and not torch.cuda.is_available():
        raise ValueError(
            "precision is fp16, but there is no GPU: half precision needs its loss scaling and kernels. Use bf16 or "
            "fp32 on a CPU."
        )
    start_processes()
    return Accelerator(
        mixed_precision={"fp32": "no"}.get(recipe.precision, recipe.precision),
        # a batch may leave parameters without gradient: cross-attention under MLM, an objective without a query
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )


class Training:
    """One run. `run` goes through the phases; each phase wraps the model anew, with its own trainable parameters."""

    def __init__(
        self,
        recipe: Recipe,
        model,
        tokenizer,
        corpora: list[Corpus],
        accelerator: Accelerator,
        argv,
        teachers: Sequence[TeacherModel] = (),
    ):
        """`teachers` are shown every batch before the model, and add to it what the model learns from them."""
        self.recipe, self.tokenizer, self.accelerator, self.argv = recipe, tokenizer, accelerator, argv
        self.model, self.corpora, self.teachers = model, corpora, teachers
        self.languages = Languages.of(model.config, corpora, recipe.alpha)
        self.folder = Path(recipe.output_dir)
        self.step = 0  # updates done in all phases
        self.optimizer = None
        self.total_steps = sum(phase.steps for phase in recipe.phases)

    def run(self, checkpoint: Path | None = None) -> None:
        """Train from the start or from `checkpoint` to the end, and leave the result in `<output_dir>/model`."""
        recipe, main = self.recipe, self.accelerator.is_main_process
        register_model_folder(self.accelerator, self.tokenizer)
        progress = read_progress(checkpoint) if checkpoint else {"phase": 0, "update": 0, "step": 0}
        if main:
            self.events = Events(self.folder, keep_until=progress["step"])
            self._write_run_json(checkpoint)
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
                self._run_phase(index, start)
        if main:
            last = self.folder / "checkpoints" / f"step-{self.step}"
            self._finish_run_json()
            publish_model(self.folder, last)
            self.line.say(f"model: {self.folder / 'model'}\ncurves: {self.folder / 'curves.png'}")
        self.accelerator.wait_for_everyone()

    def _start_phase(self, index: int) -> None:
        """Freeze and free parameters, make optimiser and schedule, wrap. Gradients of parameters that are freed after
        wrapping would stay unsynchronised without a word, hence anew for each phase."""
        recipe, phase = self.recipe, self.recipe.phases[index]
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        before = self.optimizer.optimizer.state if self.optimizer else {}
        self.accelerator.free_memory()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_trainable(name, phase))
        optimizer = make_optimizer(model, phase, recipe)
        if phase.optimizer == "carried":
            for group in optimizer.param_groups:
                optimizer.state.update({p: before[p] for p in group["params"] if p in before})
        self.scheduler = get_scheduler(
            SCHEDULES.get(phase.schedule, phase.schedule), optimizer, phase.warmup_steps, phase.steps
        )
        set_seed(recipe.seed + index, device_specific=True)  # dropout; data and masks have their own keyed numbers
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.model.train()

    def _run_phase(self, index: int, start: int) -> None:
        recipe, phase, accelerator = self.recipe, self.recipe.phases[index], self.accelerator
        corpora = phase_corpora(self.corpora, phase)
        weights = loss_weights(phase) | unused_losses(phase, accelerator.unwrap_model(self.model).objectives)
        meter = LossMeter(loss_names(phase.objectives), [corpus.name for corpus in corpora], accelerator.device)
        batches = iter(
            training_batches(
                corpora,
                phase,
                recipe,
                index,
                self.tokenizer,
                start,
                accelerator.num_processes,
                accelerator.process_index,
                self.languages,
            )
        )
        tokens, shortened, seconds, since = 0, Counter(), time.perf_counter(), start
        for update in range(start + 1, phase.steps + 1):
            totals = torch.zeros(2, dtype=torch.float64, device=accelerator.device)  # predictions, loss
            for micro in range(recipe.gradient_accumulation_steps):
                batch = send_to_device(next(batches), accelerator.device)
                with accelerator.autocast():
                    for teach in self.teachers:
                        teach(batch, weights)
                last = micro == recipe.gradient_accumulation_steps - 1
                # gradients travel between processes once an update
                with nullcontext() if last else accelerator.no_sync(self.model):
                    output = self.model(**batch, objective_weights=weights)
                    if not output.loss.requires_grad:
                        raise ValueError(
                            f"phase {phase.name!r} trains {', '.join(phase.trainable)}, and its losses "
                            f"({', '.join(output.token_losses)}) pass through none of these parameters: nothing would "
                            "be learnt. Widen its `trainable`, or give it an objective that uses them."
                        )
                    accelerator.backward(output.loss)
                meter.add(batch, output)
                totals[0] += sum(len(losses) for losses in output.token_losses.values())
                totals[1] += output.loss.detach()
                inputs = [fields for sub_batch in batch.values() for fields in inputs_of(sub_batch)]
                tokens += sum(int(fields["attention_mask"].sum()) for fields in inputs)
                shortened.update({name: sub_batch.get("shortened", 0) for name, sub_batch in batch.items()})
            predictions, loss_sum = accelerator.reduce(totals, reduction="sum").tolist()
            if not math.isfinite(loss_sum):
                raise self._diverged(f"the loss is {loss_sum}", phase)
            grad_norm = self._update(predictions, update, phase)
            self.step += 1
            self.line.step(self.step, phase.name)

            due = self.step % recipe.log_every_steps == 0 or update == phase.steps
            if due:
                counts = accelerator.reduce(
                    torch.tensor(list(shortened.values()), dtype=torch.float64, device=accelerator.device)
                )
                means, loss = meter.means(accelerator)
                tokens_all = accelerator.reduce(torch.tensor(float(tokens), device=accelerator.device)).item()
                rate = tokens_all / (time.perf_counter() - seconds)
                if accelerator.is_main_process:
                    self.events.write(
                        step=self.step,
                        phase=phase.name,
                        loss=loss,
                        **{f"loss/{key}": value for key, value in means.items()},
                        learning_rate=self.scheduler.get_last_lr()[0],
                        grad_norm=grad_norm if math.isfinite(grad_norm) else None,  # fp16 skips such a step
                        predictions=int(predictions),
                        tokens_per_second=rate,
                        steps_per_second=(update - since) / (time.perf_counter() - seconds),
                        memory_gib=memory_gib(accelerator.device),
                        **{
                            f"shortened/{name}": int(count)
                            for name, count in zip(shortened, counts.tolist(), strict=True)
                            if count
                        },
                    )
                    self.line.log(self.step, phase.name, loss, rate)
            if not self.optimizer.step_was_skipped:  # by fp16's loss scaling
                self.scheduler.step()
            every = recipe.evaluation.every_steps
            if update == phase.steps or (every and self.step % every == 0):
                self._evaluate(corpora, phase)
            save = recipe.save_every_steps
            if update == phase.steps or (save and self.step % save == 0):
                self._save(index, update)
            if due:
                tokens, shortened, seconds, since = 0, Counter(), time.perf_counter(), update

    def _update(self, predictions: float, update: int, phase: Phase) -> float:
        """Scale the summed gradients, clip, step; returns the gradient norm before clipping."""
        accelerator = self.accelerator
        if not predictions:
            learnt = [name for name, objective in phase.objectives.items() if objective.weight]
            asked = ", or the teacher could be asked about none" if all(OBJECTIVES[n].taught for n in learnt) else ""
            raise ValueError(
                f"update {update} of phase {phase.name!r} predicts nothing: no piece of its global batch was masked"
                f"{asked}, so there is no loss to follow. Raise batch_size or mask_probability, or leave out "
                "texts of a word or two."
            )
        accelerator.unscale_gradients(self.optimizer)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        # DDP has averaged over processes what the rule sums
        scale = accelerator.num_processes / predictions
        norm = nn.utils.get_total_norm(gradients) * scale
        limit = self.recipe.optimizer.max_grad_norm
        if limit:
            scale = scale * (limit / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, scale)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm.item()

    def _diverged(self, what: str, phase: Phase) -> ValueError:
        newest = newest_checkpoint(self.folder)
        start = f"model.start_from={newest / 'model'}" if newest else "the same start"
        return ValueError(
            f"{what} at step {self.step + 1} (phase {phase.name!r}): training has diverged, and further steps would "
            f"only spread it. Start a new run (another output_dir) from {start} with a lower learning_rate, a longer "
            "warm-up or a lower optimizer.max_grad_norm."
        )

    def _evaluate(self, corpora: list[Corpus], phase: Phase) -> None:
        if not any(corpus.held_out for corpus in corpora):
            return
        model = self.accelerator.unwrap_model(self.model)
        common = (self.tokenizer, self.accelerator, self.languages, self.teachers)
        figures = evaluate(model, corpora, phase, self.recipe, *common)
        if self.accelerator.is_main_process and figures:
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

    def _save(self, index: int, update: int) -> None:
        if not all(torch.isfinite(parameter).all() for parameter in self.model.parameters()):
            raise self._diverged("weights are not finite", self.recipe.phases[index])
        processes = self.accelerator.num_processes
        progress = {"phase": index, "update": update, "step": self.step, "num_processes": processes}
        progress["scheduler"] = {
            key: value for key, value in self.scheduler.state_dict().items() if key != "lr_lambdas"
        } | {"lr_lambdas": [None]}
        save_checkpoint(self.accelerator, self.folder, progress, self.recipe.keep_checkpoints)
        if self.accelerator.is_main_process:
            plot_curves(self.folder)

    def _write_run_json(self, checkpoint: Path | None) -> None:
        """run.json: one entry a session of the run, what it read, and the size of the model."""
        path = self.folder / "run.json"
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        earlier = before.get("sessions", [])
        session = run_facts(self.argv) | {"resumed_from": checkpoint.name if checkpoint else None}
        model = self.accelerator.unwrap_model(self.model)
        self.run_json = {
            "sessions": [*earlier, session],
            "model_type": self.recipe.model.type,
            "start_from": self.recipe.model.start_from,
            # what is resumed has read it when it was started
            "meta_pretrained": before.get("meta_pretrained") if checkpoint else start_facts(self.recipe),
            "parameters": sum(p.numel() for p in model.parameters()),
            **data_facts(self.corpora, self.tokenizer, self.teachers),
        }
        self.session_started = time.time()
        write_json(path, self.run_json)

    def _finish_run_json(self) -> None:
        plot_curves(self.folder)
        self.run_json["sessions"][-1]["seconds"] = round(time.time() - self.session_started, 1)
        self.run_json["steps"] = self.step
        write_json(self.folder / "run.json", self.run_json)


def data_facts(corpora: list[Corpus], tokenizer, teachers: Sequence[TeacherModel] = ()) -> dict:
    """What a run reads and learns from, with fingerprints, as run.json keeps it."""
    return {
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer),
        "corpora": [corpus.facts() for corpus in corpora],
        "teachers": [teacher.facts() for teacher in teachers],
    }


def check_same_data(recipe: Recipe, now: dict) -> None:
    """Raises `ValueError` where a resumed run would read other text, or other pieces, than it was started with, or
    learn from another teacher."""
    path = Path(recipe.output_dir) / "run.json"
    if not path.exists():
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = [] if before["tokenizer_fingerprint"] == now["tokenizer_fingerprint"] else ["the tokenizer"]
    fingerprints = {
        corpus["name"]: [table["fingerprint"] for table in corpus["tables"]] for corpus in before["corpora"]
    }
    for corpus in now["corpora"]:
        if fingerprints[corpus["name"]] != [table["fingerprint"] for table in corpus["tables"]]:
            changed.append(f"corpus {corpus['name']}")
    for teacher, was in zip(now["teachers"], before.get("teachers", []), strict=True):
        changed += [
            f"{what} {teacher['path']}"
            for what, key in (("the teacher", "fingerprint"), ("the tokenizer of the teacher", "tokenizer_fingerprint"))
            if teacher[key] != was[key]
        ]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} changed since the run in {recipe.output_dir!r} was started: what it has learnt and "
            "what it would learn now belong to different data. Restore it, or start a new run in another output_dir "
            "with model.start_from=<this run>/checkpoints/step-N/model."
        )


def check_trainable(model: nn.Module, phases: list[Phase]) -> None:
    """Raises `ValueError` for a pattern of `trainable` that matches no parameter, and for a phase that trains none."""
    names = [name for name, _ in model.named_parameters()]
    for phase in phases:
        for pattern in phase.trainable:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"phase {phase.name!r}: trainable pattern {pattern!r} matches no parameter, so it would train "
                    f"nothing. {nearest(pattern, names)}"
                )
        if not any(is_trainable(name, phase) for name in names):
            frozen = ", and freeze_body is true" if phase.freeze_body else ""
            raise ValueError(
                f"phase {phase.name!r} trains nothing: trainable is {', '.join(phase.trainable) or 'empty'}{frozen}. "
                "No weight would change. Widen its `trainable`, or take freeze_body out."
            )


def is_trainable(name: str, phase: Phase) -> bool:
    """Whether a parameter trains in a phase; the others are frozen."""
    if phase.freeze_body and of_body(name):
        return False
    return any(fnmatchcase(name, pattern) for pattern in phase.trainable)


def make_optimizer(model: nn.Module, phase: Phase, recipe: Recipe) -> torch.optim.AdamW:
    """Fused AdamW over the trainable parameters; biases and LayerNorms without weight decay."""
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for _, p in trainable if p.dim() > 1], "weight_decay": recipe.optimizer.weight_decay},
        {"params": [p for _, p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=phase.learning_rate,
        betas=tuple(recipe.optimizer.betas),
        eps=recipe.optimizer.epsilon,
        fused=True,
    )


def memory_gib(device: torch.device) -> float:
    """Peak memory so far: of the GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux
