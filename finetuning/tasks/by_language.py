"""Tasks that are fine-tuned on labeled texts and evaluated in each language separately."""

import dataclasses
import itertools
import json
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from torch.nn.functional import cross_entropy
from transformers import TrainingArguments, set_seed

from crosslingual_zoo.finetuning.data.rows import Rows
from crosslingual_zoo.finetuning.data.task_tables import TRANSLATION, TaskData, translation_of
from crosslingual_zoo.finetuning.heads import fit_head, label_names
from crosslingual_zoo.finetuning.models import Start, fine_tuned_on
from crosslingual_zoo.finetuning.progress import shown_progress
from crosslingual_zoo.finetuning.recipe import Recipe
from crosslingual_zoo.finetuning.run_folder import lasting_fields
from crosslingual_zoo.finetuning.seed import training_arguments
from crosslingual_zoo.finetuning.tasks.base import Scored, TrainedTask, scores_of
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer, Outcome
from crosslingual_zoo.modeling.checkpoints import fresh_weights, load_auto_model, load_config, without_padding
from crosslingual_zoo.modeling.layer_states import check_finite
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.processes import main_first
from crosslingual_zoo.zoo_core.provenance import tokenizer_fingerprint

# Tasks that encode rows, by a key that has all that decides the result: for each table, `datasets` hashes the arguments
# of the function that it calls, which takes 1 to 2 s for a tokenizer
TASKS: dict[str, "LanguageTask"] = {}

R = TypeVar("R", bound=Recipe)
Windows = list[list[dict[str, Any]]]
COUNTED = {"cut": "cut_texts", "split": "split_texts", "translation_cut": "cut_translations"}  # fields of windows


class LanguageTask(TrainedTask[R]):
    """Fine-tuning of a model with a head, for each seed, and a score of each language.

    Encoded rows have `labels`, also in `dev` and `evaluation`, and `length`, which puts rows of similar length into a
    batch. They may have columns that the model does not use.

    Plug-in (VECO, ACL 2021, section 3.1), columns of a row's translation have `translation_` before their names. The
    paper does not describe windows. Our decisions: the first window of a text is read with the first one of its
    translation, and so on, and further ones with the translation's last one. Labels of each window of the translation
    are learned once.
    """

    auto_class: ClassVar[type]
    collator: ClassVar[Callable[[Any], Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]]]  # of the tokenizer
    metric: tuple[str, str]  # name and version of what computes the scores
    settings: ClassVar[tuple[str, ...]] = ("max_length",)  # fields of the recipe that are facts
    loss_reads_padding: ClassVar[bool] = False  # then the loss depends on the width of a micro-batch
    # Returns what the Trainer gathers of (logits, labels) of an evaluated batch. None: the logits.
    preprocess_logits: ClassVar[Callable[[Any, Any], Any] | None] = None

    def open(self) -> Start:
        start = super().open()
        config = start.config
        if self.recipe.plug_in and not (hasattr(config, "plug_in") and config.cross_attention):
            raise ValueError(
                f"plug_in is true, and {self.recipe.model} ({config.model_type}) does not support it: it has no "
                "cross-attention, or its code is older than plug-in. Name a VECO encoder, or set plug_in=false."
            )
        tokenizer = start.tokenizer
        # right padding: heads read <s> at the first position, and labels and windows count from the left
        tokenizer.padding_side = tokenizer.truncation_side = "right"
        if getattr(config, "type_vocab_size", 2) < 2:  # a model with one type has no row for a pair's second text
            names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
            tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names  # the latter is saved
        return start

    def encode(self, data: TaskData) -> TaskData:
        """Rows to windows; the evaluated rows themselves stay, in `as_read`."""
        tokenizer = self.start.tokenizer
        reading = [type(self).__qualname__, tokenizer.model_input_names, lasting_fields(self.recipe)]
        key = f"{tokenizer_fingerprint(tokenizer)} {json.dumps(reading, sort_keys=True, default=str)}"
        TASKS[key] = self
        counts: dict[str, dict[str, dict[str, int]]] = {}  # by fact and part

        def encoded(rows: Dataset, part: str, language: str) -> Dataset:
            windows = rows.map(
                _encode_batch,
                batched=True,
                with_indices=True,
                remove_columns=rows.column_names,
                fn_kwargs={"key": key, "is_train": part == "train"},
                desc=f"Encoding {part} {language}".strip(),
            )
            for name, fact in COUNTED.items():
                if name in windows.column_names:
                    count = int(np.sum(windows[name][:]))
                    counts.setdefault(fact, {}).setdefault(part, {})[language or "all"] = count
                    windows = windows.remove_columns(name)
            return windows

        try:
            train = encoded(data.train, "train", "")
            dev = {language: encoded(rows, "dev", language) for language, rows in data.dev.items()}
            evaluation = {language: encoded(rows, "evaluation", language) for language, rows in data.evaluation.items()}
        finally:
            del TASKS[key]  # a suite would hold the tokenizers of all its tasks
        data.protocol.update(counts)
        for name in self.settings:
            data.protocol[name] = getattr(self.recipe, name)
        return dataclasses.replace(data, train=train, dev=dev, evaluation=evaluation, as_read=data.evaluation)

    def encode_batch(self, batch: dict[str, list], numbers: list[int], is_train: bool) -> dict[str, list]:
        """Columns of the windows of rows, with those of their translations."""
        windows_by_row = self.windows_of(batch, numbers, is_train, False)
        translation = {}
        for name, values in batch.items():
            if name.startswith(TRANSLATION):
                translation[name.removeprefix(TRANSLATION)] = values
        if translation:
            translated = self.windows_of(batch | translation, numbers, is_train, True)
            for windows, translated_windows in zip(windows_by_row, translated, strict=True):
                self._add_translation(windows, translated_windows, is_train)
        windows = list(itertools.chain.from_iterable(windows_by_row))
        columns = {}
        for name in windows[0]:
            columns[name] = [window[name] for window in windows]
        return columns

    @abstractmethod
    def windows_of(self, batch: dict[str, list], numbers: list[int], is_train: bool, is_translation: bool) -> Windows:
        """The windows of each row of a batch, of texts or of their translations: inputs, `labels` and `length`.

        Of `cut` and `split` in them, the facts have the sums. `numbers` are those of the rows.
        """

    def _add_translation(
        self, windows: list[dict[str, Any]], translated: list[dict[str, Any]], has_labels: bool
    ) -> None:
        """Adds to each window of a text that of its translation with the same number, or its last one.

        The inputs are added and, in training, the labels; of a window that is read again, they are -100.
        """
        for number, window in enumerate(windows):
            is_new = number < len(translated)
            other = translated[number] if is_new else translated[-1]
            for name in self.start.tokenizer.model_input_names:
                if name in other:
                    window[TRANSLATION + name] = other[name]
            window["length"] += other["length"]
            is_cut = number == 0 and (len(translated) > len(windows) or other["cut"] > 0)
            window["translation_cut"] = int(is_cut)
            if has_labels:
                window[TRANSLATION + "labels"] = other["labels"] if is_new else [IGNORED] * len(other["labels"])

    def check_run(self, data: TaskData) -> None:
        # values that the Trainer refuses are errors here, before the run
        self.arguments(self.recipe.seeds[0], Path(self.recipe.output_dir))

    def arguments(self, seed: int, folder: Path) -> TrainingArguments:
        """The recipe in the Trainer's terms. Raises ValueError where batch_size cannot be split evenly."""
        recipe = self.recipe
        training = recipe.training
        parts = training.gradient_accumulation_steps * PartialState().num_processes
        if training.batch_size % parts:
            raise ValueError(
                f"training.batch_size is {training.batch_size}. It must be a multiple of {parts}, the number of "
                "processes times gradient_accumulation_steps."
            )
        strategy = "steps" if recipe.evaluate_every_steps else "epoch"
        selects = recipe.selection != "last"
        return training_arguments(
            TrainingArguments,
            recipe,
            seed,
            folder,
            per_device_train_batch_size=training.batch_size // parts,
            per_device_eval_batch_size=recipe.evaluation_batch_size,
            num_train_epochs=training.epochs,
            max_steps=training.max_steps or -1,
            eval_strategy=strategy if selects else "no",
            save_strategy=strategy,
            eval_steps=recipe.evaluate_every_steps or None,
            save_steps=recipe.evaluate_every_steps or 500,
            save_total_limit=2 if selects else 1,  # the best one and the last one, to resume from
            load_best_model_at_end=selects,
            metric_for_best_model="eval_selection" if selects else None,
            greater_is_better=True if selects else None,
            label_names=["labels"],  # evaluated rows have no labels of a translation
            eval_do_concat_batches=False,  # `join` does it at the end
            remove_unused_columns=False,  # the collator does it: the Trainer does not know the columns of y
        )

    def build(self, seed: int, data: TaskData) -> torch.nn.Module:
        setting = self.recipe.setting + (", plug-in" if self.recipe.plug_in else "")
        model = self.load_model(self.start.path, seed, data)
        # results of a task that starts from this model name the tasks that it was fine-tuned on
        model.config.fine_tuned_on = [*fine_tuned_on(self.start.config), f"{self.recipe.task} ({setting})"]
        return model

    def load_model(self, path: str, seed: int, data: TaskData) -> torch.nn.Module:
        """Loads the encoder of a folder, with a head that is initialized from the seed.

        A head of the same kind and labels is kept (`fit_head`). `fresh_parameters` of the model describes what is not
        read from the folder: `count` numbers, the `names` of their parameters, and what was done to a head that is in
        the folder (`head`). Raises ValueError for weights of the folder that are not finite.
        """
        recipe = self.recipe
        set_seed(seed)
        with main_first():
            config = load_config(path, recipe.trust_remote_code)
            # always set: the checkpoint may have been fine-tuned in the other way
            options = {"plug_in": recipe.plug_in} if hasattr(config, "plug_in") else {}
            model, info = load_auto_model(
                self.auto_class,
                path,
                recipe.trust_remote_code,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # a head of an earlier task may have another number of labels
                **self.head(data),
                **options,
            )
        fresh = fresh_weights(model, info, path)
        check_finite(model, path)
        head = fit_head(model, info, label_names(config), data.label_names, seed)
        names = sorted({*fresh, *head.drawn})
        sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
        count = sum(sizes.get(name, 0) for name in names)
        model.fresh_parameters = {"count": count, "names": names, "head": head.note}
        return without_padding(model)

    def head(self, data: TaskData) -> dict[str, Any]:
        """Fields of the configuration that the head needs: by default, number and names of the labels."""
        names = dict(enumerate(data.label_names))
        return {"num_labels": len(names), "id2label": names, "label2id": {name: id for id, name in names.items()}}

    def trainer(self, seed: int, model: torch.nn.Module, data: TaskData, checkpoints: Path) -> FineTuningTrainer:
        return FineTuningTrainer(self, model, data, self.arguments(seed, checkpoints))

    @staticmethod
    def label_fields(labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The labels as the model takes them."""
        return {"labels": labels}

    @staticmethod
    def loss(outputs: Any, labels: torch.Tensor, items: torch.Tensor | int) -> torch.Tensor:
        """Sum of the cross-entropies over the step's `items`: logits (..., L), labels (...), -100 for none."""
        logits = outputs["logits"].flatten(0, -2)
        return cross_entropy(logits, labels.flatten(), reduction="sum", ignore_index=IGNORED) / items

    def describe(self, model: torch.nn.Module, data: TaskData) -> str:
        parts = [f"{data.protocol['training_rows']:,} training rows"]
        if data.dev:
            parts.append(f"{sum(data.protocol['selection']['rows'].values()):,} held-out rows")
        parts.append(f"{model.fresh_parameters['count']:,} new parameters")
        if model.fresh_parameters["head"]:
            parts.append(f"head: {model.fresh_parameters['head']}")
        return ", ".join(parts)

    def select(self, trainer: FineTuningTrainer, data: TaskData) -> int:
        """The Trainer has loaded the best weights, if the recipe selects any."""
        return trainer.state.best_global_step or trainer.state.global_step

    def score(self, trainer: FineTuningTrainer, data: TaskData) -> Scored:
        with shown_progress(trainer, self.recipe.main_score):
            outcomes = trainer.outcomes()
        scores = {language: outcome.scores for language, outcome in outcomes.items()}
        predictions = {language: outcome.records for language, outcome in outcomes.items()}
        module, version = self.metric
        facts = {"fresh_parameters": trainer.accelerator.unwrap_model(trainer.model).fresh_parameters}
        return Scored(scores_of(scores), predictions, {"module": module, "version": version}, facts)

    @abstractmethod
    def outcome(self, data: TaskData, part: str, language: str, predictions: Any) -> Outcome:
        """The outcome of a language of `dev` or `evaluation`; the predictions are in the order of its encoded rows."""


def _encode_batch(batch: dict[str, list], numbers: list[int], key: str, is_train: bool) -> dict[str, list]:
    return TASKS[key].encode_batch(batch, numbers, is_train)


def both_sides(rows: Rows, columns_of: Callable[[Rows], dict[str, list]]) -> dict[str, list]:
    """The columns of the texts and, plug-in, of their translations."""
    columns = columns_of(rows)
    if translation := translation_of(rows):
        columns |= {TRANSLATION + name: values for name, values in columns_of(translation).items()}
    return columns
