"""Classification: the Trainer of one seed, its model, selection of a checkpoint, scores by language."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EvalPrediction,
    Trainer,
    TrainingArguments,
    set_seed,
)

from finetuning.checkpoints import last_complete_checkpoint, readable_errors
from finetuning.recipe import SUPPORTED_SETTINGS, Recipe, check_values
from finetuning.seeds import check_weights, finish, load_metric, recompute_activations, training_arguments
from finetuning.task_tables import TRANSLATION


class FineTuningTrainer(Trainer):
    """Trainer with layer-wise learning-rate decay and the mean of the development scores, `eval_selection`."""

    def __init__(self, *args: Any, layerwise_decay: float = 1.0, metric: str = "accuracy", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.layerwise_decay = layerwise_decay
        self.metric = metric

    def create_optimizer(self, model: torch.nn.Module | None = None) -> torch.optim.Optimizer:
        """Splits the Trainer's parameter groups by layer, each with its share of the learning rate."""
        model = self.model if model is None else model
        optimizer = super().create_optimizer(model)
        if self.layerwise_decay == 1.0:
            return optimizer
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        depth = self.model.config.num_hidden_layers
        groups: dict[tuple, dict[str, Any]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                scale = layer_scale(names[id(parameter)], depth, self.layerwise_decay)
                settings = {key: value for key, value in group.items() if key != "params"}
                split = groups.setdefault((scale, group["weight_decay"]), {**settings, "params": []})
                split["lr"] = group["lr"] * scale
                split["params"].append(parameter)
        optimizer.param_groups.clear()
        for group in groups.values():
            optimizer.add_param_group(group)
        return optimizer

    def evaluate(
        self,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """As the Trainer's; over several languages also `eval_selection`, the mean of their scores in percent."""
        scores = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        if isinstance(eval_dataset if eval_dataset is not None else self.eval_dataset, dict):
            by_language = [value for name, value in scores.items() if name.endswith(f"_{self.metric}")]
            scores[f"{metric_key_prefix}_selection"] = float(np.mean(by_language))
        return scores


class TwoSidedCollator:
    """Batches of a text and its translation: each padded by itself, fields of the latter under `translation_...`.

    `one_side` makes a batch of rows of one side, whose fields have their usual names.
    """

    def __init__(self, one_side: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]):
        self.one_side = one_side

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        def side(is_translation: bool) -> list[dict[str, Any]]:
            return [
                {
                    name.removeprefix(TRANSLATION): value
                    for name, value in row.items()
                    if name.startswith(TRANSLATION) == is_translation and name != "length"  # the sampler's
                }
                for row in rows
            ]

        translations = self.one_side(side(True))
        return {**self.one_side(side(False)), **{TRANSLATION + name: value for name, value in translations.items()}}


def layer_scale(name: str, depth: int, decay: float) -> float:
    """Share of the learning rate: decay^(n-i) in layer i of n (from 0), decay^(n+1) in the embeddings, else 1.

    ERNIE-M's fine-tuning (Ouyang et al. 2021, Tables 11 and 12). `name` is the parameter's.
    """
    if match := re.search(r"(?:^|\.)layers?\.(\d+)\.", name):
        return decay ** (depth - int(match[1]))
    return decay ** (depth + 1) if "embeddings." in name else 1.0


def check_setting(recipe: Recipe) -> None:
    """Raises ValueError for a setting that is not supported yet, and for values that cannot be run."""
    check_values(
        recipe,
        ("training.batch_size", recipe.training.batch_size, recipe.training.batch_size > 0),
        ("evaluation_batch_size", recipe.evaluation_batch_size, recipe.evaluation_batch_size > 0),
        ("max_length", recipe.max_length, recipe.max_length >= 8),
    )
    micro_batch_size(recipe)
    if recipe.setting not in SUPPORTED_SETTINGS:
        raise ValueError(
            f"setting is {recipe.setting!r}, which is not supported yet. It needs training rows in every language. "
            f"Use setting={' or '.join(SUPPORTED_SETTINGS)}."
        )
    is_translated = recipe.setting == "translate_train_all"
    if recipe.plug_in and not is_translated:
        raise ValueError(
            f"plug_in is true, and setting is {recipe.setting}. Plug-in reads a text with its translation, and there "
            "are none: it is not for zero-shot transfer (VECO, ACL 2021, footnote 4). Use "
            "setting=translate_train_all with translations in every table, or plug_in=false."
        )
    if is_translated != bool(recipe.translations_from):
        raise ValueError(
            f"setting is {recipe.setting}, and translations_from is {recipe.translations_from!r}. Scores depend on who "
            "translated, so a run on translations says it, and no other does. "
            + ("Set translations_from." if is_translated else "Leave translations_from out.")
        )


def micro_batch_size(recipe: Recipe) -> int:
    """Examples in a forward pass of one process. Raises ValueError where batch_size cannot be split evenly."""
    processes, steps = PartialState().num_processes, recipe.training.gradient_accumulation_steps
    if recipe.training.batch_size % (processes * steps):
        raise ValueError(
            f"training.batch_size is {recipe.training.batch_size}, for {processes} processes with {steps} accumulated "
            f"micro-batches each. It must be a multiple of {processes * steps}. Change one of them."
        )
    return recipe.training.batch_size // (processes * steps)


def check_plug_in(recipe: Recipe, config: Any) -> None:
    """Raises ValueError where a recipe wants to plug in cross-attention that the model does not have."""
    if recipe.plug_in and not (hasattr(config, "plug_in") and config.cross_attention):
        raise ValueError(
            f"plug_in is true, and {recipe.model} ({config.model_type}) cannot be plugged in: it has no "
            "cross-attention, or its code is older than plug-in. Name the folder of a VECO encoder that this version "
            "wrote, or set plug_in=false."
        )


def load_model(
    path: str, label_names: list[str], seed: int, trained_on: list[str], plug_in: bool = False
) -> torch.nn.Module:
    """The classifier of one seed: the encoder of the folder below a head that is drawn from the seed.

    A plug-in model says so in its config, so that it is not used without translations by accident.

    Raises ValueError where the encoder's own weights are not in the checkpoint.
    """
    set_seed(seed)
    with PartialState().main_process_first(), readable_errors(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=True)
        # said either way: the checkpoint may have been fine-tuned the other one
        options = {"plug_in": plug_in} if hasattr(config, "plug_in") else {}
        model, info = AutoModelForSequenceClassification.from_pretrained(
            path,
            trust_remote_code=True,
            dtype=torch.float32,
            num_labels=len(label_names),
            id2label=dict(enumerate(label_names)),
            label2id={name: number for number, name in enumerate(label_names)},
            problem_type="single_label_classification",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the head of an earlier task may have another number of labels
            **options,
        )
    prefix = f"{model.base_model_prefix}."
    unread = [*info["missing_keys"], *(item[0] for item in info["mismatched_keys"])]
    unread = sorted(name for name in unread if name.startswith(prefix) and ".pooler." not in name)
    if unread:
        raise ValueError(
            f"{path} lacks {len(unread)} weights of the encoder of {type(model).__name__}, such as {unread[0]}. They "
            "would be random. The checkpoint is of another architecture: check its config.json."
        )
    model.config.fine_tuned_on = trained_on
    return model


def classification_arguments(recipe: Recipe, seed: int, folder: Path) -> TrainingArguments:
    """The recipe in the Trainer's terms."""
    strategy = "steps" if recipe.evaluate_every_steps else "epoch"
    is_last = recipe.selection == "last"
    return training_arguments(
        TrainingArguments,
        recipe,
        seed,
        folder,
        per_device_train_batch_size=micro_batch_size(recipe),
        per_device_eval_batch_size=recipe.evaluation_batch_size,
        num_train_epochs=recipe.training.epochs,
        max_steps=recipe.training.max_steps or -1,
        train_sampling_strategy="group_by_length",
        eval_strategy="no" if is_last else strategy,
        save_strategy=strategy,
        eval_steps=recipe.evaluate_every_steps or None,
        save_steps=recipe.evaluate_every_steps or 500,
        save_total_limit=1,  # beside the best one
        load_best_model_at_end=not is_last,
        metric_for_best_model=None if is_last else "eval_selection",
        greater_is_better=None if is_last else True,
        label_names=["labels"],  # of evaluated rows: a translation has none
        remove_unused_columns=not recipe.plug_in,  # the Trainer does not know y's
    )


def mean_cross_entropy(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None):
    """Cross-entropy over the examples of the whole update: logits (B, L), labels (B,).

    Plug-in, the mean of x's and y's: `outputs` then hold a `loss`, the mean over the micro-batch's translations (the
    Trainer keeps `labels` to itself, and the model sees y's alone).

    `num_items_in_batch` counts the examples of all accumulated micro-batches and processes. The Trainer expects models
    whose forward takes **kwargs to divide by it; many, XLM-R among them, return their micro-batch's mean, and would get
    gradients that are too large by the number of processes times that of the micro-batches.
    """
    items = len(labels) if num_items_in_batch is None else num_items_in_batch
    loss = torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / items
    translation_loss = outputs.get("loss")
    return loss if translation_loss is None else (loss + translation_loss * len(labels) / items) / 2


def run_seed(
    recipe: Recipe, seed: int, data: Any, model: torch.nn.Module, tokenizer: Any, folder: Path
) -> dict[str, Any]:
    """Trains one seed in `folder`, from its last complete checkpoint if there is one, and evaluates every language.

    Leaves scores.json and, with `save_models`, model/; returns the scores: by language in percent, the selected step
    and the development scores. The evaluated rows are read once, by the selected checkpoint.
    """
    checkpoints = folder / "checkpoints"
    metric = load_metric("accuracy")

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        return metric.compute(predictions=prediction.predictions, references=prediction.label_ids)

    collator = DataCollatorWithPadding(tokenizer)
    trainer = FineTuningTrainer(
        model=model,
        args=classification_arguments(recipe, seed, checkpoints),
        train_dataset=data.train,
        eval_dataset=data.dev or None,
        data_collator=TwoSidedCollator(collator) if recipe.plug_in else collator,
        processing_class=tokenizer,
        compute_loss_func=mean_cross_entropy,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),  # ids, not logits, are gathered
        layerwise_decay=recipe.training.layerwise_decay,
    )
    if recipe.training.gradient_checkpointing:
        recompute_activations(model)
    resumed = last_complete_checkpoint(checkpoints)
    if PartialState().is_main_process:
        print(f"Seed {seed}: {len(data.train)} training rows" + (f", resumed from {resumed}" if resumed else ""))
    trainer.train(resume_from_checkpoint=resumed)
    check_weights(model, seed)
    scores = {
        language: trainer.predict(rows, metric_key_prefix="test").metrics["test_accuracy"]
        for language, rows in data.evaluation.items()
    }
    outcome = {
        "metric": {"name": "accuracy", "version": metric.version},
        "scores": scores,
        "selected_step": trainer.state.best_global_step or trainer.state.global_step,
    }
    return finish(trainer, outcome, folder, recipe.save_models)
