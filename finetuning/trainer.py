"""The Trainer of one seed, its model, selection of a checkpoint, scores by language; for every kind but translation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoConfig, EvalPrediction, Trainer, TrainingArguments, set_seed

from finetuning.checkpoints import last_complete_checkpoint, readable_errors
from finetuning.kind import Kind
from finetuning.layerwise_decay import LayerwiseDecay
from finetuning.recipe import Recipe, check_values
from finetuning.seeds import check_weights, finish, recompute_activations, training_arguments
from finetuning.task_tables import TRANSLATION, TaskData, each_part


class FineTuningTrainer(LayerwiseDecay, Trainer):
    """Trainer that scores each language by itself, with the mean of the development scores, `eval_selection`."""

    def __init__(self, *args: Any, kind: Kind, recipe: Recipe, data: TaskData, **kwargs: Any):
        super().__init__(
            *args,
            train_dataset=data.train,
            eval_dataset=data.dev or None,
            compute_loss_func=kind.loss,
            compute_metrics=self._compute,
            preprocess_logits_for_metrics=kind.predictions,
            **kwargs,
        )
        self.kind, self.recipe, self.data = kind, recipe, data
        self.layerwise_decay = recipe.training.layerwise_decay
        self.scored = ("", "")  # part and language of the rows that are predicted
        self.scores: dict[str, float] = {}  # theirs

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler:
        """The rows in their order, which is by length already: the Trainer's own would draw an order by length."""
        return SequentialSampler(eval_dataset)

    def evaluate(
        self,
        eval_dataset: Dataset | str | dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Scores of every language's development rows, and `eval_selection`, the mean of those that are selected by."""
        if isinstance(eval_dataset, str):  # of one language: the Trainer comes back for each
            self.scored = ("dev", eval_dataset)
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        scores = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        name = self.kind.score_name
        selection = float(np.mean([scores[f"{metric_key_prefix}_{language}_{name}"] for language in self.data.dev]))
        return {**scores, f"{metric_key_prefix}_selection": selection}

    def score(self, language: str) -> dict[str, float]:
        """Scores of one language's evaluated rows."""
        self.scored = ("evaluation", language)
        self.predict(self.data.evaluation[language], metric_key_prefix="test")
        return self.scores

    def _compute(self, prediction: EvalPrediction) -> dict[str, float]:
        """What the Trainer calls `compute_metrics`; it does not say of which rows."""
        self.scores = self.kind.score(self.recipe, self.data, *self.scored, prediction.predictions)
        return dict(self.scores)  # it renames the keys in place


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


def check_setting(recipe: Recipe, kind: Kind) -> None:
    """Raises ValueError for values that cannot be run, and for a setting that contradicts other fields."""
    check_values(
        recipe,
        ("training.batch_size", recipe.training.batch_size, recipe.training.batch_size > 0),
        ("evaluation_batch_size", recipe.evaluation_batch_size, recipe.evaluation_batch_size > 0),
        ("max_length", recipe.max_length, recipe.max_length >= 8),
    )
    micro_batch_size(recipe)
    kind.check(recipe)
    is_translated = recipe.setting == "translate_train_all"
    if recipe.plug_in and not kind.has_plug_in:
        raise ValueError(
            f"plug_in is true, and kind is {recipe.kind}. Here plug-in reads a text and its translation to classify "
            "them, and rows of this kind have no translations with labels. Use plug_in=false."
        )
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


def longest_first(data: TaskData) -> TaskData:
    """The data with evaluated rows by length: little padding, and what does not fit into memory comes first."""

    def ordered(rows: Dataset, part: str, language: str) -> Dataset:
        # a stable order, the same in every process and every run
        return rows if part == "train" else rows.select(np.argsort(-np.asarray(rows["length"][:]), kind="stable"))

    return each_part(data, ordered)


def load_model(
    kind: Kind, data: TaskData, path: str, seed: int, trained_on: list[str], plug_in: bool = False
) -> torch.nn.Module:
    """The model of one seed: the encoder of the folder below a head that is drawn from the seed.

    A plug-in model says so in its config, so that it is not used without translations by accident.

    Raises ValueError where the encoder's own weights are not in the checkpoint.
    """
    set_seed(seed)
    with PartialState().main_process_first(), readable_errors(path):
        config = AutoConfig.from_pretrained(path, trust_remote_code=True)
        # said either way: the checkpoint may have been fine-tuned the other one
        options = {"plug_in": plug_in} if hasattr(config, "plug_in") else {}
        model, info = kind.auto_class.from_pretrained(
            path,
            trust_remote_code=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the head of an earlier task may have another number of labels
            **kind.head(data),
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


def task_arguments(recipe: Recipe, kind: Kind, seed: int, folder: Path) -> TrainingArguments:
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
        label_names=list(kind.label_fields),  # of evaluated rows: a translation has none
        remove_unused_columns=not recipe.plug_in,  # the Trainer does not know y's
    )


def run_seed(
    recipe: Recipe, kind: Kind, seed: int, data: TaskData, model: torch.nn.Module, tokenizer: Any, folder: Path
) -> dict[str, Any]:
    """Trains one seed in `folder`, from its last complete checkpoint if there is one, and evaluates every language.

    Leaves scores.json and, with `save_models`, model/; returns the scores: by language in percent, the selected step
    and the development scores. The evaluated rows are read once, by the selected checkpoint.
    """
    checkpoints = folder / "checkpoints"
    collator = kind.collator(tokenizer)
    trainer = FineTuningTrainer(
        model=model,
        args=task_arguments(recipe, kind, seed, checkpoints),
        data_collator=TwoSidedCollator(collator) if recipe.plug_in else collator,
        processing_class=tokenizer,
        kind=kind,
        recipe=recipe,
        data=data,
    )
    if recipe.training.gradient_checkpointing:
        recompute_activations(model)
    resumed = last_complete_checkpoint(checkpoints)
    if PartialState().is_main_process:
        print(f"Seed {seed}: {len(data.train)} training rows" + (f", resumed from {resumed}" if resumed else ""))
    trainer.train(resume_from_checkpoint=resumed)
    check_weights(model, seed)
    scores = {language: trainer.score(language) for language in data.evaluation}
    metric = kind.metric(recipe)
    outcome = {
        "metric": {"name": kind.score_name, "module": metric.name, "version": metric.version},
        "scores": {language: found[kind.score_name] for language, found in scores.items()},
        "all_scores": scores,
        "selected_step": trainer.state.best_global_step or trainer.state.global_step,
    }
    return finish(trainer, outcome, folder, recipe.save_models)
