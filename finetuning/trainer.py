"""The Trainer of one seed, its model, selection of a checkpoint, scores by language; for every kind but translation."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets
from torch.utils.data import SequentialSampler
from transformers import EvalPrediction, Trainer, TrainingArguments, set_seed

from finetuning.checkpoints import (
    describe_start,
    readable_errors,
    without_padding,
)
from finetuning.data.task_tables import TRANSLATION, TaskData
from finetuning.layerwise_decay import LayerwiseDecay
from finetuning.recipe import Recipe, check_values
from finetuning.seeds import SeedProgress, check_weights, finish, metric_facts, train_or_resume, training_arguments
from finetuning.tasks.kind import Kind, Outcome
from finetuning.tasks.registry import task_module
from finetuning.used_rows import TrainsUsedRows
from modeling.checkpoints import load_auto_model, load_config
from modeling.fresh_weights import fresh_weights
from zoo_core.console import without_load_report
from zoo_core.masking import IGNORED


class FineTuningTrainer(TrainsUsedRows, LayerwiseDecay, Trainer):
    """Trainer that predicts the rows of all languages in one pass and scores each language by itself.

    `eval_<language>_<score>` are the development scores, `eval_selection` the mean of those that are selected by.
    """

    def __init__(self, *args: Any, kind: Kind, recipe: Recipe, data: TaskData, **kwargs: Any):
        self.dev, self.evaluation = MergedLanguages(data.dev), MergedLanguages(data.evaluation)
        super().__init__(
            *args,
            train_dataset=data.train,
            eval_dataset=self.dev.rows,
            compute_loss_func=self._loss_of_sides if recipe.plug_in else kind.loss,
            compute_metrics=self._selection,
            preprocess_logits_for_metrics=kind.predictions,
            **kwargs,
        )
        self.kind, self.recipe, self.data = kind, recipe, data
        self.translation_items: Any = None  # labels of the translations in the step, of all processes
        self.translation_share: Any = None  # those of the micro-batch over these
        self.layerwise_decay = recipe.training.layerwise_decay
        self.used_rows_only = recipe.training.used_rows_only

    def _get_eval_sampler(self, eval_dataset: Dataset) -> SequentialSampler:
        """The rows in their order, which is by length already: the Trainer's own would draw an order by length."""
        return SequentialSampler(eval_dataset)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """The Trainer's, which counts the labels of a step; those of the translations are counted as well."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        sides = [{"labels": labels} for batch in batches if (labels := translated_labels(batch)) is not None]
        self.translation_items = self._get_num_items_in_batch(sides, device)
        return batches, items

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's, with what `_loss_of_sides` has to know of the inputs."""
        labels = translated_labels(inputs)
        if labels is not None and self.translation_items is not None:
            self.translation_share = labels.ne(IGNORED).sum() / self.translation_items.clamp(min=1)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _loss_of_sides(self, outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """The kind's loss, told which share of the step's translated labels are in this micro-batch."""
        return self.kind.loss(outputs, labels, num_items_in_batch, self.translation_share)

    def outcomes(self) -> dict[str, Outcome]:
        """Scores and predictions of the evaluated rows, by language."""
        metrics, self.compute_metrics = self.compute_metrics, None  # the scores of these rows select nothing
        try:
            predictions = self.predict(self.evaluation.rows, metric_key_prefix="test").predictions
        finally:
            self.compute_metrics = metrics
        return self._outcomes("evaluation", predictions)

    def _selection(self, prediction: EvalPrediction) -> dict[str, float]:
        """What the Trainer calls `compute_metrics`: scores of the development rows."""
        scores = {name: found.scores for name, found in self._outcomes("dev", prediction.predictions).items()}
        named = {f"{language}_{name}": score for language, own in scores.items() for name, score in own.items()}
        return {**named, "selection": float(np.mean([own[self.kind.score_name] for own in scores.values()]))}

    def _outcomes(self, part: str, batches: list[Any]) -> dict[str, Outcome]:
        merged: MergedLanguages = getattr(self, part)
        return {
            language: self.kind.score(self.recipe, self.data, part, language, predictions)
            for language, predictions in merged.split(batches)
        }


class MergedLanguages:
    """Rows of all languages as one data set, the longest first.

    So there is little padding, the last batch of a language is not a small one, and what does not fit into memory
    comes at once. The order is stable: the same in every process and every run.
    """

    def __init__(self, by_language: dict[str, Dataset]):
        self.languages = list(by_language)
        self.rows: Dataset | None = None  # without rows
        if not by_language:
            return
        whole = concatenate_datasets(list(by_language.values()))
        self.order = np.argsort(-np.asarray(whole["length"][:]), kind="stable")
        self.rows = whole.select(self.order)
        self.ends = np.cumsum([len(rows) for rows in by_language.values()])

    def split(self, batches: list[Any]) -> Iterator[tuple[str, Any]]:
        """The languages with their predictions, in the order of their rows.

        `batches` are predictions (B, ...) of `rows`, or tuples of several, in their order and padded each by itself.
        """
        in_data = join(batches, self.order)
        for language, begin, end in zip(self.languages, [0, *self.ends[:-1]], self.ends, strict=True):
            own = slice(begin, end)
            yield language, tuple(part[own] for part in in_data) if isinstance(in_data, tuple) else in_data[own]


def join(batches: list[Any], order: np.ndarray) -> Any:
    """Batches (B, ...) as one array (N, ...) whose row `order[i]` is the i-th of the batches; tuples part by part.

    What is shorter than the longest is padded with -100, as the Trainer does, which copies all earlier batches for
    each one: minutes for the languages of a benchmark.
    """
    if isinstance(batches[0], (tuple, list)):
        return tuple(join(list(part), order) for part in zip(*batches, strict=True))
    longest = np.max([batch.shape[1:] for batch in batches], axis=0).astype(int)
    joined = np.full((len(order), *longest), IGNORED, dtype=batches[0].dtype)
    begin = 0
    for batch in batches:
        rows = order[begin : begin + len(batch)]
        joined[(rows, *(slice(size) for size in batch.shape[1:]))] = batch
        begin += len(batch)
    return joined


def translated_labels(batch: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Labels of a batch's translations, -100 where one has none; of answers, where they begin. None if none has any."""
    starts = batch.get(TRANSLATION + "start_positions")
    if starts is None:
        return batch.get(TRANSLATION + "labels")
    # models ignore positions behind the input
    return starts.masked_fill(starts >= batch[TRANSLATION + "input_ids"].shape[1], IGNORED)


class TwoSidedCollator:
    """Batches of a text and its translation: each padded by itself, fields of the latter under `translation_...`.

    `one_side` makes a batch of rows of one side, whose fields have their usual names. Fields of a row other than
    `fields` are for the sampler or the scores, not for the model.
    """

    def __init__(self, one_side: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]], fields: Iterable[str]):
        self.one_side, self.fields = one_side, set(fields)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        def side(is_translation: bool) -> list[dict[str, Any]]:
            return [
                {
                    name.removeprefix(TRANSLATION): value
                    for name, value in row.items()
                    if name.startswith(TRANSLATION) == is_translation and name.removeprefix(TRANSLATION) in self.fields
                }
                for row in rows
            ]

        translations = self.one_side(side(True))
        return {**self.one_side(side(False)), **{TRANSLATION + name: value for name, value in translations.items()}}


def open_run(recipe: Recipe) -> tuple[Kind, str, Any, Any, dict[str, Any]]:
    """Kind of task, path of the model to start from, its configuration, tokenizer and identity, all of them checked."""
    kind = task_module(recipe.kind).KIND
    check_setting(recipe, kind)
    path, config, tokenizer, identity = describe_start(recipe, recipe.max_length)
    check_plug_in(recipe, config)
    kind.check_tokenizer(recipe, tokenizer)
    # heads read <s> at the first position, labels are counted from the left, and windows are cut from there
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    # BERT's tokenizer names the second text of a pair by a type, which a model of one type has no row for
    if getattr(config, "type_vocab_size", 2) < 2:
        names = tokenizer.model_input_names
        tokenizer.model_input_names = [name for name in names if name != "token_type_ids"]
    return kind, path, config, tokenizer, identity


def check_setting(recipe: Recipe, kind: Kind) -> None:
    """Raises ValueError for values that cannot be run, and for a setting that contradicts other fields."""
    check_values(recipe)
    micro_batch_size(recipe)
    kind.check(recipe)
    is_translated = recipe.setting == "translate_train_all"
    if recipe.plug_in and not is_translated:
        raise ValueError(
            f"plug_in is true, and setting is {recipe.setting}. Use setting=translate_train_all with translations in "
            "every table, or plug_in=false."
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
    kind: Kind,
    data: TaskData,
    path: str,
    seed: int,
    trained_on: list[str],
    plug_in: bool = False,
    trust_remote_code: bool = False,
) -> torch.nn.Module:
    """The model of one seed: the encoder of the folder below a head that is drawn from the seed.

    A head of the same kind and size that the folder has is kept. `fresh_parameters` of the model says what is not read
    from the folder: `count` numbers, and the `names` of their parameters. A plug-in model says so in
    its config, so that it is not used without translations by accident.
    """
    set_seed(seed)
    with PartialState().main_process_first(), readable_errors(path), without_load_report():
        config = load_config(path, trust_remote_code)
        # said either way: the checkpoint may have been fine-tuned the other one
        options = {"plug_in": plug_in} if hasattr(config, "plug_in") else {}
        model, info = load_auto_model(
            kind.auto_class,
            path,
            trust_remote_code,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the head of an earlier task may have another number of labels
            **kind.head(data),
            **options,
        )
    fresh = fresh_weights(model, info, path)
    model.config.fine_tuned_on = trained_on
    if "label_subword" in data.protocol:  # whoever reads the labels has to know where they are
        model.config.label_subword = data.protocol["label_subword"]
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    model.fresh_parameters = {"count": sum(sizes.get(name, 0) for name in fresh), "names": fresh}
    return without_padding(model)


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
        load_best_model_at_end=not is_last,
        metric_for_best_model=None if is_last else "eval_selection",
        greater_is_better=None if is_last else True,
        label_names=list(kind.label_fields),  # of evaluated rows: a translation has none
        eval_do_concat_batches=False,  # `join` does it at the end
        remove_unused_columns=not recipe.plug_in,  # the Trainer does not know y's
    )


def run_seed(
    recipe: Recipe,
    kind: Kind,
    seed: int,
    data: TaskData,
    model: torch.nn.Module,
    tokenizer: Any,
    folder: Path,
    progress: SeedProgress,
    evaluate: bool = True,
) -> dict[str, Any]:
    """Trains one seed in `folder`, from its last complete checkpoint if there is one, and evaluates every language.

    Leaves scores.json, predictions/ and, with `save_models`, model/; returns the scores: by language in percent, the
    selected step and the development scores. The evaluated rows are read once, by the selected checkpoint; without
    `evaluate` they are not, and there are scores of no language.
    """
    checkpoints = folder / "checkpoints"
    collator = kind.collator(tokenizer)
    if recipe.plug_in:
        collator = TwoSidedCollator(collator, [*inspect.signature(model.forward).parameters, *kind.label_fields])
    trainer = FineTuningTrainer(
        model=model,
        args=task_arguments(recipe, kind, seed, checkpoints),
        data_collator=collator,
        processing_class=tokenizer,
        kind=kind,
        recipe=recipe,
        data=data,
    )
    size = f"{data.protocol['training_rows']} training rows, {len(data.train)} inputs"
    train_or_resume(trainer, recipe, progress, size)
    check_weights(model, seed)
    outcomes = trainer.outcomes() if evaluate else {}
    record = {
        "metric": metric_facts(kind.score_name, kind.metric(recipe)),
        "scores": {language: found.scores[kind.score_name] for language, found in outcomes.items()},
        "all_scores": {language: found.scores for language, found in outcomes.items()},
        "label_scores": {language: found.label_scores() for language, found in outcomes.items()},
        "selected_step": trainer.state.best_global_step or trainer.state.global_step,
        "fresh_parameters": model.fresh_parameters,
    }
    predictions = {language: found.records for language, found in outcomes.items()}
    return finish(trainer, progress, record, predictions, folder, recipe.save_models)
