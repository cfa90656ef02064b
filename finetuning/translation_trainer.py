"""One seed of a translation run: the model, training by token count, selection of the weights, translations, scores."""

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object, release_memory
from datasets import Dataset
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    TrainerState,
    set_seed,
)

from common.masking import IGNORED
from common.provenance import forget_machine, write_json
from common.tables import resolve_hub_path
from finetuning.task_tables import sample
from finetuning.tasks.translation import TranslationData, column
from finetuning.trainer import last_complete_checkpoint, load_metric, readable_errors
from finetuning.translation_batches import (
    Examples,
    Layout,
    Masking,
    MicroBatches,
    UpdatePlan,
    collate,
    evaluation_batches,
    layout_of,
)
from finetuning.translation_recipe import TranslationRecipe
from modeling.encoder_decoder import selected_layers
from modeling.modeling_veco import VecoForConditionalGeneration


class TranslationTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer whose updates are those of an `UpdatePlan` and whose loss is the mean over an update's pieces."""

    def __init__(self, *args: Any, recipe: TranslationRecipe, plan: UpdatePlan, layout: Layout, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # Makes the Trainer count the pieces of the whole update and leave the scaling of the loss to `compute_loss`.
        self.model_accepts_loss_kwargs = True
        self.recipe, self.layout = recipe, layout
        self.batches = MicroBatches(
            plan, self.args.gradient_accumulation_steps, self.accelerator.num_processes, self.accelerator.process_index
        )
        self.add_callback(_EpochOfUpdates(self.batches))

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        """Micro-batches of this process; `accelerate` has nothing left to divide."""
        return self._loader(self.train_dataset, self.batches)

    def _loader(self, rows: Any, batches: Any) -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(
            rows,
            batch_sampler=batches,
            collate_fn=functools.partial(collate, layout=self.layout),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """This micro-batch's part of the mean cross-entropy over all target pieces of the update.

        `num_items_in_batch` counts those of all accumulated micro-batches and processes; DDP averages gradients, hence
        the factor. A micro-batch that fills a gap (no label at all) runs like any other and contributes zero.
        """
        count = inputs["labels"].ne(IGNORED).sum()
        loss, outputs = self.mean_loss(model, inputs, self.recipe.training.label_smoothing)
        share = count / (count if num_items_in_batch is None else num_items_in_batch)
        loss = loss * share.nan_to_num() * (1 if num_items_in_batch is None else self.accelerator.num_processes)
        return (loss, outputs) if return_outputs else loss

    def mean_loss(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], smoothing: float) -> tuple:
        """Mean cross-entropy of a batch's labels, from the model's fused loss, and the outputs."""
        if not inputs["labels"].ne(IGNORED).any():
            inputs = {**inputs, "labels": inputs["decoder_input_ids"]}  # any: the caller weighs this batch with zero
        outputs = model(**inputs, label_smoothing=smoothing)
        return outputs.loss, outputs

    def evaluate(
        self,
        eval_dataset: dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Loss per target piece on all development pairs and, if asked for, BLEU of a sample of the first pair's."""
        pairs = self.eval_dataset if eval_dataset is None else eval_dataset
        sums = torch.zeros(2, device=self.args.device, dtype=torch.float64)
        with torch.no_grad(), self.accelerator.autocast():
            for rows in pairs.values():
                sizes = np.maximum(column(rows, "source_length"), column(rows, "target_length"))
                for _, batch in self._evaluated(rows, sizes):
                    loss, _ = self.mean_loss(self.model, batch, smoothing=0.0)
                    count = batch["labels"].ne(IGNORED).sum()
                    sums += torch.stack([loss.double() * count, count.double()])
        total, count = self.accelerator.gather(sums).view(-1, 2).sum(0).tolist()
        scores = {f"{metric_key_prefix}_loss": total / count}
        if self.recipe.dev_bleu_examples:
            chosen = sample(next(iter(pairs.values())), self.recipe.dev_bleu_examples)
            scored = self.score(self.translate(chosen, self.recipe.dev_beams), chosen["target"][:])
            scores[f"{metric_key_prefix}_bleu"] = scored["sacrebleu"]
        self.log(scores)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores

    def translate(self, rows: Dataset, beams: int) -> list[str]:
        """Translations of the rows' sources, in their order, on every process; the model bounds their length."""
        penalty = {"length_penalty": self.recipe.generation.length_penalty} if beams > 1 else {}
        mine: list[tuple[int, str]] = []
        with torch.no_grad(), self.accelerator.autocast():
            for numbers, batch in self._evaluated(rows, column(rows, "source_length")):
                source = {name: batch[name] for name in ("input_ids", "attention_mask")}
                ids = self.model.generate(**source, num_beams=beams, **penalty)
                texts = self.processing_class.batch_decode(ids, skip_special_tokens=True)
                mine.extend(zip(numbers, (text.strip() for text in texts), strict=True))
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, {})
        return [text for _, text in sorted(gather_object(mine))]

    def score(self, hypotheses: list[str], references: list[str]) -> dict[str, Any]:
        """The metrics of finetuning/metrics/bleu."""
        tokenize = self.recipe.bleu_tokenizer
        return load_metric("bleu").compute(predictions=hypotheses, references=references, tokenize=tokenize)

    def _evaluated(self, rows: Dataset, sizes: np.ndarray) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
        """This process' batches of `rows` with their row numbers, on its device."""
        maximum, accelerator = self.recipe.generation.max_tokens, self.accelerator
        groups = evaluation_batches(sizes, maximum, accelerator.num_processes, accelerator.process_index)
        loader = self._loader(Examples(rows, self.layout), [[(row, 0, True) for row in group] for group in groups])
        self.callback_handler.eval_dataloader = loader  # the progress bar asks for its length
        self.model.eval()
        for group, batch in zip(groups, loader, strict=True):
            yield group, self._prepare_inputs(batch)
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)


class _EpochOfUpdates(TrainerCallback):
    """Tells the sampler which epoch begins, also where a run is resumed in the middle of one."""

    def __init__(self, batches: MicroBatches):
        self.batches = batches

    def on_epoch_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.batches.set_epoch(state.global_step // len(self.batches.plan))


def check_architecture(recipe: TranslationRecipe) -> None:
    """Raises ValueError for a model that this kind of task cannot start from, or not with the recipe's fields."""
    try:
        config, _ = PreTrainedConfig.get_config_dict(resolve_hub_path(recipe.model, recipe.hub_root))
    except OSError:
        return  # `describe_model` says what is wrong with it
    kind = config.get("model_type")
    if config.get("is_encoder_decoder") and kind != "veco":
        raise ValueError(
            f"{recipe.model} is an encoder-decoder of type {kind}. Its layout of targets and its length limits are its "
            "own; here translation models are VECO's, built from encoders of XLM-R's shape. Name such an encoder, or a "
            "translation model that was made here."
        )
    if not config.get("is_encoder_decoder"):
        selected_layers(config["num_hidden_layers"], recipe.decoder_layers, recipe.decoder_layer_selection)
        return
    default = TranslationRecipe.__dataclass_fields__
    for name in ("decoder_layers", "decoder_layer_selection", "tie_decoder"):
        if (value := getattr(recipe, name)) not in (default[name].default, config.get(name)):
            raise ValueError(
                f"{name} is {value}, and {recipe.model} is a translation model already, with a decoder of "
                f"{config['decoder_layers']} layers. What a decoder is made of is settled when it is made. Leave "
                f"{name} out, or name the encoder."
            )


def build_model(recipe: TranslationRecipe, path: str, config: Any, seed: int) -> torch.nn.Module:
    """The translation model of one seed: built from an encoder, or a translation model that is trained further.

    Raises ValueError for a checkpoint that lacks weights of the encoder.
    """
    set_seed(seed)
    dropout = {
        "hidden_dropout_prob": recipe.training.dropout,
        "attention_probs_dropout_prob": recipe.training.attention_dropout,
    }
    settings = {name: value for name, value in dropout.items() if value is not None} | {"dtype": torch.float32}
    is_random = recipe.initialize == "random"
    with PartialState().main_process_first(), readable_errors(path):
        if not config.is_encoder_decoder:
            return VecoForConditionalGeneration.from_encoder(
                path,
                decoder_layers=recipe.decoder_layers,
                decoder_layer_selection=recipe.decoder_layer_selection,
                tie_decoder=recipe.tie_decoder,
                random=is_random,
                **settings,
            )
        if not is_random:
            return AutoModelForSeq2SeqLM.from_pretrained(path, trust_remote_code=True, **settings)
        config = AutoConfig.from_pretrained(path, trust_remote_code=True, **settings)
        return AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=True)


def training_arguments(recipe: TranslationRecipe, seed: int, folder: Path, plan: UpdatePlan) -> Any:
    """The recipe in the Trainer's terms; epochs as numbers of updates, so that every event is at a known one."""
    training = recipe.training
    evaluate_every = recipe.evaluate_every_steps or len(plan)
    return Seq2SeqTrainingArguments(
        output_dir=str(folder),
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        learning_rate=training.learning_rate,
        max_steps=total_updates(recipe, plan),
        warmup_steps=training.warmup_steps,
        lr_scheduler_type=training.schedule,
        weight_decay=training.weight_decay,
        adam_beta1=training.betas[0],
        adam_beta2=training.betas[1],
        adam_epsilon=training.epsilon,
        max_grad_norm=training.max_grad_norm,
        use_cpu=PartialState().device.type == "cpu",  # else bf16 is taken for a GPU's
        bf16=training.precision == "bf16",
        fp16=training.precision == "fp16",
        remove_unused_columns=False,
        dataloader_num_workers=recipe.num_workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        eval_strategy="steps" if recipe.dev else "no",
        save_strategy="steps",
        eval_steps=evaluate_every,
        save_steps=recipe.save_every_steps or evaluate_every,
        save_total_limit={"last": 1, "average": recipe.average_checkpoints}.get(recipe.selection, 2),
        metric_for_best_model={"dev_loss": "eval_loss", "dev_bleu": "eval_bleu"}.get(recipe.selection),
        greater_is_better=recipe.selection == "dev_bleu",
        logging_steps=50,
        seed=seed,
        data_seed=seed,
        report_to=[],
    )


def total_updates(recipe: TranslationRecipe, plan: UpdatePlan) -> int:
    """Updates of a seed."""
    return recipe.training.max_steps or int(np.ceil(recipe.training.epochs * len(plan)))


def saved_steps(recipe: TranslationRecipe, plan: UpdatePlan) -> list[int]:
    """The updates after which a checkpoint is saved; the last one always."""
    every, total = recipe.save_every_steps or recipe.evaluate_every_steps or len(plan), total_updates(recipe, plan)
    return [*range(every, total, every), total]


def average_weights(model: torch.nn.Module, folders: list[Path]) -> None:
    """Sets the weights of `model` to the mean of those in the folders; what is tied stays one tensor.

    Raises ValueError for a folder that is not there, and where folders hold other names than the model has.
    """
    if absent := [folder.name for folder in folders if not folder.is_dir()]:
        raise ValueError(
            f"{', '.join(absent)} of {folders[0].parent} are gone. The weights that the selection names cannot be "
            "read. Remove the seed's folder and run it again."
        )
    mean: dict[str, torch.Tensor] = {}
    for folder in folders:
        for file in sorted(folder.glob("*.safetensors")):
            for name, tensor in load_file(file).items():
                # sums in double precision: the mean of n equal checkpoints is that checkpoint, bit by bit
                mean[name] = mean.get(name, 0) + tensor.double() / len(folders)
    own = model.state_dict()
    stored = {own[name].data_ptr() for name in mean if name in own}
    lacking = [name for name, tensor in own.items() if name not in mean and tensor.data_ptr() not in stored]
    if unknown := lacking + [name for name in mean if name not in own]:
        raise ValueError(
            f"The checkpoints {', '.join(folder.name for folder in folders)} are not of this model: {unknown[0]} is in "
            "one of them only. Their mean has no meaning. Remove the seed's folder and run it again."
        )
    with torch.no_grad():
        for name, tensor in mean.items():
            own[name].copy_(tensor)


def run_seed(
    recipe: TranslationRecipe, seed: int, data: TranslationData, model: torch.nn.Module, tokenizer: Any, folder: Path
) -> dict[str, Any]:
    """Trains one seed in `folder`, from its last complete checkpoint if there is one, and translates every test.

    Leaves scores.json, test.<pair>.{source,reference,hypothesis}.txt and, with `save_models`, model/; returns the
    scores. The test is read once, by the selected weights.
    """
    state = PartialState()
    checkpoints = folder / "checkpoints"
    plan = make_plan(recipe, data, seed)
    layout = layout_of(tokenizer, model.generation_config.decoder_start_token_id)
    maskings = [Masking(table.source_mask_probability, table.predict == "masked") for table in recipe.train]
    trainer = TranslationTrainer(
        model=model,
        args=training_arguments(recipe, seed, checkpoints, plan),
        train_dataset=Examples(data.train, layout, seed, maskings),
        eval_dataset=data.dev or None,
        processing_class=tokenizer,
        recipe=recipe,
        plan=plan,
        layout=layout,
    )
    if recipe.training.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    total = total_updates(recipe, plan)
    resumed = last_complete_checkpoint(checkpoints)
    if state.is_main_process:
        print(
            f"Seed {seed}: {len(data.train)} pairs, {len(plan)} updates an epoch, {total} in all"
            + (f", resumed from {resumed}" if resumed else "")
        )
    if resumed and int(resumed.rpartition("-")[2]) >= total:  # it was stopped while it translated
        trainer.state = TrainerState.load_from_json(str(Path(resumed) / "trainer_state.json"))
    else:
        trainer.train(resume_from_checkpoint=resumed)
    state.wait_for_everyone()  # the main process may still write the last checkpoint
    steps = selected_steps(recipe, plan, trainer.state)
    average_weights(model, [checkpoints / f"checkpoint-{step}" for step in steps])
    if not all(torch.isfinite(parameter).all() for parameter in model.parameters()):
        raise ValueError(
            f"seed {seed}: the weights are not finite, training has diverged and its translations would mean nothing. "
            "Lower training.learning_rate or lengthen training.warmup_steps, in another output_dir."
        )
    results = {pair: _evaluate_pair(trainer, pair, rows, folder) for pair, rows in data.test.items()}
    history = trainer.state.log_history
    record = {
        "seed": seed,
        "metric": {"name": "sacrebleu", "version": load_metric("bleu").version},
        "scores": {pair: scores["sacrebleu"] for pair, scores in results.items()},
        "all_scores": results,
        "steps": trainer.state.global_step,
        "selected_step": steps if len(steps) > 1 else steps[0],
        "selection_score": trainer.state.best_metric,
        "parameters": model.num_parameters(),
        "curve": [
            {"step": entry["step"], "loss": entry["eval_loss"], "bleu": entry.get("eval_bleu")}
            for entry in history
            if "eval_loss" in entry
        ],
        "history": history,
    }
    if recipe.save_models:
        trainer.save_model(str(folder / "model"))
    state.wait_for_everyone()
    if state.is_main_process:
        if recipe.save_models:
            forget_machine(folder / "model")
        write_json(folder / "scores.json", record)  # from here on the seed counts as finished
        shutil.rmtree(checkpoints, ignore_errors=True)
    state.wait_for_everyone()
    release_memory(trainer)
    return record


def make_plan(recipe: TranslationRecipe, data: TranslationData, seed: int) -> UpdatePlan:
    """The updates of one seed.

    Raises ValueError where a pair does not fit into an update, and where the run is too short for the checkpoints that
    are to be averaged.
    """
    lengths = (column(data.train, f"{side}_length") for side in ("source", "target"))
    plan = UpdatePlan(*lengths, recipe.training.max_tokens, seed)
    saved = saved_steps(recipe, plan)
    if recipe.selection == "average" and len(saved) < recipe.average_checkpoints:
        raise ValueError(
            f"average_checkpoints is {recipe.average_checkpoints}, and a run of {saved[-1]} updates saves "
            f"{len(saved)}. The mean would be over fewer than the results say. Lower save_every_steps or "
            "average_checkpoints, or train longer."
        )
    return plan


def check_run(recipe: TranslationRecipe, data: TranslationData) -> None:
    """What can only be checked with the data, before anything is written. Raises ValueError as `make_plan`."""
    training_arguments(recipe, recipe.seeds[0], Path(recipe.output_dir), make_plan(recipe, data, recipe.seeds[0]))


def selected_steps(recipe: TranslationRecipe, plan: UpdatePlan, state: TrainerState) -> list[int]:
    """The updates whose checkpoints are averaged; one for a rule that chooses one."""
    if recipe.selection == "average":
        return saved_steps(recipe, plan)[-recipe.average_checkpoints :]
    return [state.best_global_step if recipe.selection != "last" else state.global_step]


def _evaluate_pair(trainer: TranslationTrainer, pair: str, rows: Dataset, folder: Path) -> dict[str, Any]:
    """Scores of one test; its sources, references and translations as files, one sentence a line."""
    recipe = trainer.recipe
    hypotheses = trainer.translate(rows, recipe.generation.beams)
    texts = {"source": rows["source"][:], "reference": rows["target"][:], "hypothesis": hypotheses}
    if PartialState().is_main_process:
        for name, lines in texts.items():
            content = "".join(line.replace("\r", " ").replace("\n", " ") + "\n" for line in lines)
            (folder / f"test.{pair}.{name}.txt").write_text(content, encoding="utf-8")
    return trainer.score(hypotheses, texts["reference"])
