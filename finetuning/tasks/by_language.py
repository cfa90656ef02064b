"""Tasks that are fine-tuned on labeled texts and evaluated in each language separately."""

import dataclasses
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from sklearn.metrics import precision_recall_fscore_support
from transformers import TrainingArguments, set_seed

from finetuning.checkpoints import describe_start, fine_tuned_on
from finetuning.data.task_tables import TaskData, each_part
from finetuning.models import Start, names_as_text, readable_errors
from finetuning.page import table_names
from finetuning.recipe import Recipe
from finetuning.results import LABEL_SCORES, LabelScores, Protocol, Results
from finetuning.run_folder import RunFolder
from finetuning.seeds import SeedProgress, check_weights, finish, metric_facts, train_or_resume, training_arguments
from finetuning.tasks.base import Line, Record, Task, add_outcomes
from finetuning.trainer import FineTuningTrainer, Outcome, TwoSidedCollator
from modeling.checkpoints import load_auto_model, load_config, without_load_report, without_padding
from modeling.fresh_weights import fresh_weights
from zoo_core.masking import IGNORED
from zoo_core.processes import main_first

R = TypeVar("R", bound=Recipe)


class LanguageTask(Task[R]):
    """Fine-tuning of a model with a head, for each seed, and a score of each language.

    A kind defines how rows are read and encoded, its Auto class, head, loss and scores. Encoded rows have the fields of
    `label_fields`, also in `dev` and `evaluation`, and `length`, which puts rows of similar length into a batch. They
    may have columns that the model does not use.
    """

    auto_class: ClassVar[type]
    collator: ClassVar[Callable[[Any], Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]]]  # of the tokenizer
    metric: str  # the `evaluate` module of finetuning/metrics, whose version the results carry
    label_fields: ClassVar[tuple[str, ...]] = ("labels",)  # fields of a batch that are labels, not inputs
    counts: ClassVar[dict[str, str]] = {  # of the protocol, as --check_data calls them
        "cut_texts": "cut",
        "split_texts": "split",
        "cut_translations": "translations cut",
    }

    @abstractmethod
    def head(self, data: TaskData) -> dict[str, Any]:
        """Fields of the configuration that the head needs, such as the number of labels."""

    @abstractmethod
    def score(self, data: TaskData, part: str, language: str, predictions: Any) -> Outcome:
        """The outcome of a language of `dev` or `evaluation`; the predictions are in the order of its encoded rows."""

    # Loss of (outputs, labels, items of the whole step and, plug-in, the share of its translated labels): a sum over
    # labels other than -100, divided by the items.
    loss: ClassVar[Callable[..., torch.Tensor]]
    loss_reads_padding: ClassVar[bool] = False  # then the loss depends on the width of a micro-batch
    # Returns what is kept of (logits, labels) of an evaluated batch. None: keep the logits.
    kept: ClassVar[Callable[[Any, Any], Any] | None] = None

    def check(self) -> None:
        super().check()
        self.micro_batch_size()

    def micro_batch_size(self) -> int:
        """Examples in a forward pass of one process. Raises ValueError where batch_size cannot be split evenly."""
        training, processes = self.recipe.training, PartialState().num_processes
        steps = training.gradient_accumulation_steps
        if training.batch_size % (processes * steps):
            raise ValueError(
                f"training.batch_size is {training.batch_size}, for {processes} processes with {steps} accumulated "
                f"micro-batches each. It must be a multiple of {processes * steps}. Change one of them."
            )
        return training.batch_size // (processes * steps)

    def open(self) -> Start:
        start = describe_start(self.recipe, self.recipe.max_length)
        self.check_start(start)
        tokenizer = names_as_text(start.tokenizer)
        # right padding: heads read <s> at the first position, and labels and windows count from the left
        tokenizer.padding_side = tokenizer.truncation_side = "right"
        # BERT's tokenizer gives the second text of a pair another type; a model with one type has no row for it
        if getattr(start.config, "type_vocab_size", 2) < 2:
            names = tokenizer.model_input_names
            tokenizer.model_input_names = [name for name in names if name != "token_type_ids"]
        return start._replace(tokenizer=tokenizer)

    def check_start(self, start: Start) -> None:
        """Raises ValueError for a model or tokenizer that does not fit the recipe."""
        if self.recipe.plug_in and not (hasattr(start.config, "plug_in") and start.config.cross_attention):
            raise ValueError(
                f"plug_in is true, and {self.recipe.model} ({start.config.model_type}) does not support it: it has no "
                "cross-attention, or its code is older than plug-in. Name the folder of a VECO encoder that this "
                "version wrote, or set plug_in=false."
            )

    def check_run(self, data: TaskData, folder: RunFolder | None = None) -> None:
        # the Trainer reports its errors here, before the run
        self.arguments(self.recipe.seeds[0], Path(self.recipe.output_dir))

    def build(self, seed: int, data: TaskData) -> torch.nn.Module:
        setting = self.recipe.setting + (", plug-in" if self.recipe.plug_in else "")
        model = self.load_model(self.start.path, seed, data)
        # results of a task that starts from this model name the tasks that it was fine-tuned on
        model.config.fine_tuned_on = [*fine_tuned_on(self.start.config), f"{self.recipe.task} ({setting})"]
        return model

    def load_model(self, path: str, seed: int, data: TaskData) -> torch.nn.Module:
        """Loads the encoder of a folder, with a head that is initialized from the seed.

        If the folder has a head of the same kind and size, it is kept. `fresh_parameters` of the model describes what
        is not read from the folder: `count` numbers, and the `names` of their parameters. The config of a plug-in model
        says that it is one, so that nobody uses it without translations by accident.
        """
        recipe = self.recipe
        set_seed(seed)
        with main_first(), readable_errors(path), without_load_report():
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
        sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
        model.fresh_parameters = {"count": sum(sizes.get(name, 0) for name in fresh), "names": fresh}
        return without_padding(model)

    def arguments(self, seed: int, folder: Path) -> TrainingArguments:
        """The recipe in the Trainer's terms."""
        recipe = self.recipe
        strategy = "steps" if recipe.evaluate_every_steps else "epoch"
        is_last = recipe.selection == "last"
        return training_arguments(
            TrainingArguments,
            recipe,
            seed,
            folder,
            per_device_train_batch_size=self.micro_batch_size(),
            per_device_eval_batch_size=recipe.evaluation_batch_size,
            num_train_epochs=recipe.training.epochs,
            max_steps=recipe.training.max_steps or -1,
            eval_strategy="no" if is_last else strategy,
            save_strategy=strategy,
            eval_steps=recipe.evaluate_every_steps or None,
            save_steps=recipe.evaluate_every_steps or 500,
            load_best_model_at_end=not is_last,
            metric_for_best_model=None if is_last else "eval_selection",
            greater_is_better=None if is_last else True,
            label_names=list(self.label_fields),  # evaluated rows have no labels of a translation
            eval_do_concat_batches=False,  # `join` does it at the end
            remove_unused_columns=not recipe.plug_in,  # the Trainer does not know the columns of y
        )

    def trainer(self, model: torch.nn.Module, data: TaskData, arguments: TrainingArguments) -> FineTuningTrainer:
        """The Trainer of a model on encoded data."""
        recipe, tokenizer = self.recipe, self.start.tokenizer
        collator = self.collator(tokenizer)
        if recipe.plug_in:
            fields = [*inspect.signature(model.forward).parameters, *self.label_fields]
            collator = TwoSidedCollator(collator, fields)
        return FineTuningTrainer(
            model=model,
            args=arguments,
            data_collator=collator,
            processing_class=tokenizer,
            preprocess_logits_for_metrics=self.kept,
            data=data,
            training=recipe.training,
            score=lambda part, language, predictions: self.score(data, part, language, predictions),
            main_score=recipe.main_score,
            loss=self.loss,
            loss_reads_padding=self.loss_reads_padding,
            plug_in=recipe.plug_in,
        )

    def run_seed(
        self, seed: int, model: torch.nn.Module, data: TaskData, folder: Path, evaluate: bool = True
    ) -> Record:
        """Trains from the last complete checkpoint, if there is one, and evaluates every language.

        The selected checkpoint predicts the evaluated rows, once. Without `evaluate` they are not predicted, and there
        are no scores by language.
        """
        recipe = self.recipe
        trainer = self.trainer(model, data, self.arguments(seed, folder / "checkpoints"))
        size = f"{data.protocol.training_rows} training rows, {len(data.train)} inputs"
        with SeedProgress(seed, recipe.push_to_hub) as progress:
            train_or_resume(trainer, recipe, progress, size)
            check_weights(model, seed)
            outcomes = trainer.outcomes() if evaluate else {}
            record = {
                "metric": metric_facts(recipe.main_score, self.metric),
                "scores": {language: found.scores[recipe.main_score] for language, found in outcomes.items()},
                "all_scores": {language: found.scores for language, found in outcomes.items()},
                "label_scores": {language: found.label_scores() for language, found in outcomes.items()},
                "selected_step": trainer.state.best_global_step or trainer.state.global_step,
                "fresh_parameters": model.fresh_parameters,
            }
            predictions = {language: found.records for language, found in outcomes.items()}
            return finish(trainer, progress, record, predictions, folder, recipe.save_models)

    def facts(self, protocol: Protocol, records: list[Record]) -> dict[str, Any]:
        recipe, languages = self.recipe, list(records[0]["scores"])
        if fresh := records[0].get("fresh_parameters"):
            protocol.fresh_parameters = {**fresh, "seeds": [record["seed"] for record in records]}
        add_outcomes(protocol, records)
        at_chance = _chance_warnings(records, protocol) if protocol.majority_share else _zero_warnings(records)
        return {
            "setting": recipe.setting,
            "source_language": recipe.source_language,
            "hyperparameters": {
                **dataclasses.asdict(recipe.training),
                "updates": [record["steps"] for record in records],
            },
            "warnings": [*at_chance, *_protocol_warnings(recipe, languages)],
        }

    def lines(self, results: Results) -> list[str]:
        recipe, protocol = self.recipe, results.protocol
        selection, metric = protocol.selection, protocol.metric
        trained_on = dict.fromkeys(name for table in protocol.training_data for name in table["languages"])
        rule = {
            "last": "the last checkpoint",
            "source_dev": f"the best on development rows of {recipe.source_language}",
            "mean_dev": "the best mean over the development rows of all languages",
        }[selection.rule]
        source = selection.data if isinstance(selection.data, str) else table_names(selection.data or [])
        cut, split = (
            sum(sum(of.values()) for of in (counts or {}).values())
            for counts in (protocol.cut_texts, protocol.split_texts)
        )
        name = metric.name + (f" of {metric.module}" if metric.module != metric.name else "")
        lines = [f"setting: {recipe.setting}, trained on {', '.join(trained_on)}"]
        if recipe.plug_in:
            lines.append("plug-in: the head reads a text and its translation, and learns from both")
        if protocol.translations:
            lines.append(f"translations: {protocol.translations}")
        lines += [
            f"training data: {table_names(protocol.training_data)} ({protocol.training_rows:,} rows)",
            f"evaluated: {table_names(protocol.evaluation_data)}",
            f"selection: {rule}" + (f" ({source})" if source else ""),
        ]
        if sweep := selection.sweep:
            tried = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in sweep["fields"].items())
            lines.append(f"tuned on the same rows: best of {sweep['points']} points ({sweep['score']:.2f}); {tried}")
        if fresh := protocol.fresh_parameters:
            named = f"{fresh['count']:,}, initialized with each seed ({', '.join(fresh['names'])})"
            lines.append(f"new parameters: {named if fresh['names'] else 'none, the checkpoint has the head'}")
        lengths = f"{cut} texts cut" + (f", {split} split" if protocol.split_texts else "")
        lines += [
            f"max length: {protocol.max_length} tokens ({lengths})",
            f"metric: {name} {metric.version}, in percent",
        ]
        if protocol.differs:
            lines.append(f"differs from published scores: {', '.join(protocol.differs)}")
        return [*lines, *(protocol.facts or [])]

    def data_lines(self, read: TaskData, encoded: TaskData) -> list[Line]:
        rows: dict[tuple[str, str], int] = {}
        each_part(read, lambda found, part, language: rows.setdefault((part, language), len(found)) and found)
        protocol, lines = encoded.protocol, []

        def line(found: Dataset, part: str, language: str) -> Dataset:
            name = language or "all"
            lengths = np.asarray(found["length"][:])
            counts = {
                shown: (protocol.get(field) or {}).get(part, {}).get(name, 0) for field, shown in self.counts.items()
            }
            left_out = sum((protocol.left_out_rows or {}).values()) if part == "train" else 0
            own = {"part": part, "language": name, "rows": rows[part, language], "left out": left_out}
            tokens = {"inputs": len(found), "median tokens": int(np.median(lengths)), "longest": int(lengths.max())}
            lines.append(own | tokens | counts)
            return found

        each_part(encoded, line)
        return lines


def _chance_warnings(records: list[Record], protocol: Protocol) -> list[str]:
    """Warns of accuracy less than two standard errors above guessing, by seed: a mean would hide collapsed seeds.

    Guessing is the better of two strategies: a label at random, or always the commonest label.
    """
    warnings = []
    for record in records:
        at_chance = []
        for language, score in record["scores"].items():
            guess = max(protocol.majority_share[language], 1 / len(protocol.labels))
            error = math.sqrt(guess * (1 - guess) / protocol.evaluated_rows[language])
            if score / 100 <= guess + 2 * error:
                at_chance.append(f"{language} {score:.1f} (guessing: {100 * guess:.1f})")
        if at_chance:
            warnings.append(f"seed {record['seed']}: accuracy is at chance in {', '.join(at_chance)}")
    return warnings


def _zero_warnings(records: list[Record]) -> list[str]:
    """Warns of scores of 0, by seed, for kinds of task in which guessing scores nothing."""
    return [
        f"seed {record['seed']}: {record['metric']['name']} is 0 in {', '.join(zero)}"
        for record in records
        if (zero := [language for language, score in record["scores"].items() if score == 0])
    ]


def _protocol_warnings(recipe: Recipe, languages: list[str]) -> list[str]:
    warnings = []
    for table in recipe.evaluation:
        if table.note:
            warnings.append(table.note)
        if table.split != "test":
            warnings.append(
                f"evaluated on {table.path}, split {table.split}: comparable with scores on that split only"
            )
    if recipe.max_evaluation_examples:
        warnings.append(f"at most {recipe.max_evaluation_examples} rows per language were evaluated, sampled at random")
    if recipe.max_train_examples:
        warnings.append(f"at most {recipe.max_train_examples} training rows were used, sampled at random")
    if recipe.setting == "zero_shot" and languages == [recipe.source_language]:
        warnings.append(
            f"evaluated in {recipe.source_language} only, the language of training: nothing is transferred, as in "
            "setting=supervised"
        )
    if recipe.source_language not in languages:
        warnings.append(f"the source language {recipe.source_language} was not evaluated: there is no transfer gap")
    return warnings


def by_label(gold: Sequence[int], found: Sequence[int], names: list[str]) -> LabelScores:
    """The scores of each label, given the ids of the right one and of the predicted one of every row or word."""
    labels = range(len(names))  # ids: scikit-learn takes 15 times as long for names
    scores = precision_recall_fscore_support(gold, found, labels=labels, average=None, zero_division=0)
    return named_scores(names, scores)


def named_scores(names: list[str], scores: Iterable[Any]) -> LabelScores:
    """The arrays of scikit-learn and seqeval (shares and counts, a number a label) by label, in percent."""
    return {
        name: {**{key: 100 * float(share) for key, share in zip(LABEL_SCORES, shares, strict=True)}, "support": int(n)}
        for name, *shares, n in zip(names, *scores, strict=True)
    }


def label_options(data: TaskData) -> dict[str, Any]:
    """Number and names of the labels, as a configuration has them."""
    return {
        "num_labels": len(data.label_names),
        "id2label": dict(enumerate(data.label_names)),
        "label2id": {name: number for number, name in enumerate(data.label_names)},
    }


def likeliest(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Ids (...) of the highest logits (..., L): ids, not logits, are gathered."""
    return logits.argmax(-1)


def mean_cross_entropy(
    outputs: Any,
    labels: torch.Tensor,
    num_items_in_batch: torch.Tensor | int | None = None,
    translation_share: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """Cross-entropy over the labels of the whole step: logits (..., L), labels (...), -100 where none is wanted.

    Plug-in, `mean_of_sides`.

    `num_items_in_batch` counts the labels of all accumulated micro-batches and processes. The Trainer expects that
    models whose forward takes **kwargs divide by it. Many, such as XLM-R, return the mean of their micro-batch, so that
    gradients would be too large by the number of processes times the number of micro-batches.
    """
    items = labels.ne(IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    logits = outputs["logits"].flatten(0, -2)
    loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum", ignore_index=IGNORED) / items
    share = labels.ne(IGNORED).sum() / items if translation_share is None else translation_share
    return mean_of_sides(loss, outputs, share)


def mean_of_sides(loss: torch.Tensor, outputs: Any, translation_share: torch.Tensor | float) -> torch.Tensor:
    """Plug-in, the mean of x's loss and y's; otherwise x's.

    `outputs` then have a `loss`, the mean over the labels of the micro-batch's translations (the Trainer keeps those of
    x, so that the model only sees y's); `translation_share` is their share of the step's translated labels.
    """
    translation_loss = outputs.get("loss")
    if translation_loss is None:
        return loss
    # the mean over no labels is NaN
    has_none = torch.as_tensor(translation_share == 0, device=loss.device)
    return (loss + translation_loss.masked_fill(has_none, 0.0) * translation_share) / 2
