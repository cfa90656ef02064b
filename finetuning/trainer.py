"""The Trainer of tasks that are evaluated by language: one pass over all languages, and texts with translations."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch.utils.data import DataLoader
from transformers import EvalPrediction, Trainer, TrainingArguments

from crosslingual_zoo.finetuning.data.task_tables import TRANSLATION, TaskData
from crosslingual_zoo.finetuning.layerwise_decay import LayerwiseDecay
from crosslingual_zoo.finetuning.steps import Key, LengthGroups, TrainsByPlan
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.processes import leave_signals_to_main


@dataclass(frozen=True)
class Outcome:
    """The scores and the predictions of the rows of one language."""

    scores: dict[str, float]
    """In percent, by name."""

    records: Iterable[dict[str, Any]]
    """The rows of `predictions/<language>.jsonl`, from `TaskData.as_read`: `row`, the number of the row in its table;
    gold; prediction. A generator: only the main process reads it, and of evaluated rows alone."""


class FineTuningTrainer(TrainsByPlan, LayerwiseDecay, Trainer):
    """Trainer that predicts the rows of all languages in one pass and scores each language by itself.

    `eval_<language>_<score>` are the development scores, `eval_selection` is the mean of the scores that select.
    """

    def __init__(self, task: Any, model: torch.nn.Module, data: TaskData, arguments: TrainingArguments):
        """`task` is a `LanguageTask`, `data` what it has encoded."""
        recipe = task.recipe
        tokenizer = task.start.tokenizer
        self.task = task
        self.data = data
        self.dev = MergedLanguages(data.dev)
        self.evaluation = MergedLanguages(data.evaluation)
        fields = [*inspect.signature(model.forward).parameters, "labels"]
        super().__init__(
            model=model,
            args=arguments,
            data_collator=TwoSidedCollator(task.collator(tokenizer), fields),
            processing_class=tokenizer,
            train_dataset=data.train,
            eval_dataset=self.dev.rows,
            compute_metrics=self._selection,
            preprocess_logits_for_metrics=task.preprocess_logits,
        )
        self.model_accepts_loss_kwargs = True  # makes the Trainer count the labels of a step
        self.translation_items: Any = None  # labels of the translations in the step, of all processes
        self.layerwise_decay = recipe.training.layerwise_decay
        plan = LengthGroups(data.train["length"][:], recipe.training.batch_size, self.args.seed)
        self.train_by(plan, CountedRows(data.train), self.data_collator)

    def get_eval_dataloader(self, eval_dataset: Dataset | None = None) -> DataLoader:
        """The rows in their order, which is by length already: the Trainer's own loader would change it."""
        rows = self.dev.rows if eval_dataset is None else eval_dataset
        loader = DataLoader(
            rows,
            batch_size=self.args.eval_batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            worker_init_fn=leave_signals_to_main,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """As `get_eval_dataloader`."""
        return self.get_eval_dataloader(test_dataset)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """As the Trainer's method, which counts the labels of a step. Labels of the translations are counted, too, and
        micro-batches are padded alike where the loss needs it."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.task.loss_reads_padding:
            for side in ("", TRANSLATION):
                self._pad_alike([batch for batch in batches if f"{side}input_ids" in batch], side)
        if self.task.recipe.plug_in:
            counts = [batch[TRANSLATION + "labels"].ne(IGNORED).sum() for batch in batches]
            self.translation_items = self.accelerator.reduce(sum(counts).to(device))
        return batches, items

    def _pad_alike(self, batches: list[dict[str, torch.Tensor]], side: str) -> None:
        """Pads the micro-batches of a step, those of all processes, to the width of the widest one."""
        if not batches:
            return
        widths = [batch[f"{side}input_ids"].shape[1] for batch in batches]
        widest = int(self.accelerator.gather(torch.tensor(widths, device=self.accelerator.device)).max())
        tokenizer = self.processing_class
        filling = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        for batch, width in zip(batches, widths, strict=True):
            for name in tokenizer.model_input_names:
                if (field := side + name) in batch:
                    padding = (0, widest - width)
                    batch[field] = torch.nn.functional.pad(batch[field], padding, value=filling.get(name, 0))

    def compute_loss(
        self, model: torch.nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """This micro-batch's part of the kind's loss over the step, whose labels `num_items_in_batch` counts.

        With plug-in, that loss is the mean of x's and y's. The model gets y's labels alone, and returns their mean loss
        over the micro-batch. DDP averages gradients over the processes: their number is a factor of the loss.
        """
        labels = inputs.pop("labels")
        translated = inputs.pop(TRANSLATION + "labels", None)
        if translated is not None:
            for name, values in self.task.label_fields(translated).items():
                inputs[TRANSLATION + name] = values
        outputs = model(**inputs)
        loss = self.task.loss(outputs, labels, num_items_in_batch)
        if translated is not None:
            count = translated.ne(IGNORED).sum()
            share = count / self.translation_items.clamp(min=1)
            loss = (loss + outputs["loss"].masked_fill(count == 0, 0.0) * share) / 2  # the mean over no labels is NaN
        loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def outcomes(self) -> dict[str, Outcome]:
        """Scores and predictions of the evaluated rows, by language."""
        selection = self.compute_metrics
        self.compute_metrics = None  # the scores of these rows select nothing
        predictions = self.predict(self.evaluation.rows, metric_key_prefix="test").predictions
        self.compute_metrics = selection
        return self._outcomes("evaluation", predictions)

    def _selection(self, prediction: EvalPrediction) -> dict[str, float]:
        """The Trainer's `compute_metrics`: scores of the development rows."""
        scores: dict[str, float] = {}
        main_scores = []
        for language, outcome in self._outcomes("dev", prediction.predictions).items():
            main_scores.append(outcome.scores[self.task.recipe.main_score])
            for name, score in outcome.scores.items():
                scores[f"{language}_{name}"] = score
        return {**scores, "selection": float(np.mean(main_scores))}

    def _outcomes(self, part: str, batches: list[Any]) -> dict[str, Outcome]:
        merged = {"dev": self.dev, "evaluation": self.evaluation}[part]
        outcomes = {}
        for language, predictions in merged.split(batches):
            outcomes[language] = self.task.outcome(self.data, part, language, predictions)
        return outcomes


class CountedRows(torch.utils.data.Dataset):
    """Rows by `Key`; of one that does not count, all labels are -100."""

    labels = ("labels", TRANSLATION + "labels")

    def __init__(self, rows: Dataset):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, keys: list[Key]) -> list[dict[str, Any]]:
        """Returns the rows of a micro-batch; torch's loader calls this method."""
        rows = self.rows.__getitems__([number for number, _, _ in keys])
        for row, (_, _, counts) in zip(rows, keys, strict=True):
            if counts:
                continue
            for name in self.labels:
                if name in row:
                    row[name] = np.full_like(row[name], IGNORED).tolist()
        return rows


class MergedLanguages:
    """Rows of all languages as one data set, the longest first.

    So there is little padding, no small last batch per language, and a lack of memory shows at once. The order is
    stable: the same in every process and every run.
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
        begin = 0
        for language, end in zip(self.languages, self.ends, strict=True):
            if isinstance(in_data, tuple):
                yield language, tuple(part[begin:end] for part in in_data)
            else:
                yield language, in_data[begin:end]
            begin = end


def join(batches: list[Any], order: np.ndarray) -> Any:
    """Batches (B, ...) as one array (N, ...) whose row `order[i]` is the i-th of the batches; tuples part by part.

    Shorter batches are padded with -100, as in the Trainer, which copies all earlier batches for each batch: that takes
    minutes for the languages of a benchmark.
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


class TwoSidedCollator:
    """Batches of texts and, plug-in, of their translations: each padded by itself, the latter under `translation_...`.

    `one_side` makes a batch of rows of one side, whose fields have their usual names. Fields of a row other than
    `fields` are for the sampler or the scores, not for the model.
    """

    def __init__(self, one_side: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]], fields: Iterable[str]):
        self.one_side = one_side
        self.fields = [name for name in fields if not name.startswith(TRANSLATION)]

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = {}
        for prefix in ("", TRANSLATION):
            names = [name for name in self.fields if prefix + name in rows[0]]
            if names:
                rows_of_side = []
                for row in rows:
                    rows_of_side.append({name: row[prefix + name] for name in names})
                for name, values in self.one_side(rows_of_side).items():
                    batch[prefix + name] = values
        return batch
