"""The Trainer of a translation run: steps by token count, translations, scores; and which steps are saved."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object, send_to_device
from datasets import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from crosslingual_zoo.finetuning.data.task_tables import sample
from crosslingual_zoo.finetuning.layerwise_decay import LayerwiseDecay
from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.finetuning.seed import training_arguments
from crosslingual_zoo.finetuning.steps import TrainsByPlan
from crosslingual_zoo.finetuning.tasks.translation.batches import Examples, StepPlan, collate, evaluation_batches
from crosslingual_zoo.finetuning.tasks.translation.model import search_settings
from crosslingual_zoo.finetuning.tasks.translation.recipe import TranslationRecipe
from crosslingual_zoo.zoo_core.masking import IGNORED


class TranslationTrainer(TrainsByPlan, LayerwiseDecay, Seq2SeqTrainer):
    """Seq2SeqTrainer whose steps are those of an `StepPlan` and whose loss is the mean over a step's tokens."""

    def __init__(self, *args: Any, recipe: TranslationRecipe, plan: StepPlan, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # makes the Trainer count the tokens of the whole step, and not scale the loss of `compute_loss`
        self.model_accepts_loss_kwargs = True
        self.recipe = recipe
        self.plan = plan
        self.layerwise_decay = recipe.training.layerwise_decay
        padding = self.processing_class.pad_token_id
        start = self.model.generation_config.decoder_start_token_id
        self.train_by(plan, self.train_dataset, partial(collate, padding_id=padding, decoder_start_id=start))

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """This micro-batch's part of the mean cross-entropy over all target tokens of the step.

        `num_items_in_batch` counts those of all accumulated micro-batches and processes; DDP averages gradients, hence
        the factor. A micro-batch that fills a gap has no labels: it runs like any other and contributes zero.
        """
        count = inputs["labels"].ne(IGNORED).sum()
        outputs = model(**inputs, label_smoothing=self.recipe.training.label_smoothing, output_logits=False)
        loss = outputs.loss * (count / num_items_in_batch).nan_to_num() * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def evaluate(
        self,
        eval_dataset: dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """Loss per target token of all development pairs and, with `dev_bleu_examples`, BLEU of some of the first."""
        pairs = self.eval_dataset if eval_dataset is None else eval_dataset
        total = 0.0  # Python's numbers: double precision on every device
        tokens = 0
        with torch.no_grad(), self.accelerator.autocast():
            for rows in pairs.values():
                sizes = np.maximum(column(rows, "source_length"), column(rows, "target_length"))
                for _, batch in self._batches(rows, sizes):
                    loss = self.model(**batch, label_smoothing=0.0, output_logits=False).loss
                    count = int(batch["labels"].ne(IGNORED).sum())
                    total += loss.item() * count
                    tokens += count
        total = sum(gather_object([total]))
        tokens = sum(gather_object([tokens]))
        scores = {f"{metric_key_prefix}_loss": total / tokens}
        if self.recipe.dev_bleu_examples:
            pair = next(iter(pairs))
            rows = sample(pairs[pair], self.recipe.dev_bleu_examples)
            hypotheses = self.translate(rows, beams=1)
            bleu = self.score(pair, hypotheses, rows["target"][:])
            scores[f"{metric_key_prefix}_bleu"] = bleu["sacrebleu"]
        self.log(scores)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores

    def translate(self, rows: Dataset, beams: int) -> list[str]:
        """Translations of the rows' sources, in their order, on every process; the model bounds their length."""
        numbered: list[tuple[int, str]] = []
        with torch.no_grad(), self.accelerator.autocast():
            for numbers, batch in self._batches(rows, column(rows, "source_length")):
                source = {name: batch[name] for name in ("input_ids", "attention_mask")}
                ids = self.model.generate(**source, **search_settings(self.recipe, beams))
                texts = self.processing_class.batch_decode(ids, skip_special_tokens=True)
                numbered += zip(numbers, map(str.strip, texts), strict=True)
        return [text for _, text in sorted(gather_object(numbered))]

    def score(self, pair: str, hypotheses: list[str], references: list[str]) -> dict[str, Any]:
        """The metrics of finetuning/metrics/bleu in the pair's target language."""
        language = self.recipe.targets[pair]
        return load_metric("bleu").compute(predictions=hypotheses, references=references, language=language)

    def _batches(self, rows: Dataset, sizes: np.ndarray) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
        """This process' batches of `rows` with their row numbers, on its device."""
        accelerator = self.accelerator
        maximum = self.recipe.generation.max_tokens
        groups = evaluation_batches(sizes, maximum, accelerator.num_processes, accelerator.process_index)
        keys_by_batch = []
        for group in groups:
            keys_by_batch.append([(row, 0, True) for row in group])
        loader = self.loader(Examples(rows, self.processing_class), keys_by_batch)
        self.model.eval()
        for group, batch in zip(groups, loader, strict=True):
            yield group, send_to_device(batch, accelerator.device)


def translation_arguments(recipe: TranslationRecipe, seed: int, folder: Path, plan: StepPlan) -> Any:
    """Returns the recipe as the Trainer's arguments, with epochs as steps."""
    interval = recipe.evaluate_every_steps or len(plan)
    return training_arguments(
        Seq2SeqTrainingArguments,
        recipe,
        seed,
        folder,
        max_steps=saved_steps(recipe, plan)[-1],
        remove_unused_columns=False,
        eval_strategy="steps" if recipe.dev else "no",
        save_strategy="steps",
        eval_steps=interval,
        save_steps=interval,
        # the last one; or those of the mean and one that a signal saves between them
        save_total_limit=1 if recipe.selection == "last" else recipe.average_checkpoints + 1,
    )


def saved_steps(recipe: TranslationRecipe, plan: StepPlan) -> list[int]:
    """Returns the steps after which a checkpoint is saved; always including the last one."""
    interval = recipe.evaluate_every_steps or len(plan)
    total = recipe.training.max_steps or int(np.ceil(recipe.training.epochs * len(plan)))
    return [*range(interval, total, interval), total]


def make_plan(recipe: TranslationRecipe, train: Dataset, seed: int) -> StepPlan:
    """The steps of one seed on the encoded training pairs."""
    source_lengths = column(train, "source_length")
    target_lengths = column(train, "target_length")
    return StepPlan(source_lengths, target_lengths, recipe.training.max_tokens, seed)


def column(rows: Dataset, name: str) -> np.ndarray:
    """A column of numbers, without a Python object for each."""
    return rows.with_format("numpy", columns=[name])[name][:]
