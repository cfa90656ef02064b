"""Translation: reads, checks and encodes tables of pairs, builds the model, and computes sacreBLEU by language pair.

Layout of a pair of the zoo: the encoder reads `<s> x </s>`, the decoder reads `</s> y_1 .. y_n` and predicts
`y_1 .. y_n </s>`.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets

from crosslingual_zoo.finetuning.data.pair_tables import SIDES, open_pairs, pair_identity
from crosslingual_zoo.finetuning.data.rows import Rows
from crosslingual_zoo.finetuning.data.task_tables import (
    Missing,
    TaskData,
    missing_lines,
    noted_if_missing,
    repeated_texts,
    sample,
    table_warnings,
)
from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.finetuning.models import Start, fine_tuned_on
from crosslingual_zoo.finetuning.tasks.base import Scored, TrainedTask, scores_of
from crosslingual_zoo.finetuning.tasks.translation.batches import Examples
from crosslingual_zoo.finetuning.tasks.translation.model import average_weights, build_model, check_architecture
from crosslingual_zoo.finetuning.tasks.translation.recipe import PairTable, TranslationRecipe
from crosslingual_zoo.finetuning.tasks.translation.trainer import (
    TranslationTrainer,
    column,
    make_plan,
    saved_steps,
    translation_arguments,
)
from crosslingual_zoo.zoo_core.processes import main_first
from crosslingual_zoo.zoo_core.tables import MissingTable


class TranslationTask(TrainedTask[TranslationRecipe]):
    """An encoder-decoder that is trained on pairs of sentences; every pair of languages is evaluated by itself.

    Data are pairs of `source` and `target` text; after `encode` ids and lengths, the training pairs without their
    texts. `table` of a training pair is the position of its table in the recipe, which says how its source is masked.
    `row` of an evaluated pair is its number in its table.
    """

    def open(self) -> Start:
        start = super().open()
        check_architecture(self.recipe, start.config)
        return start

    def read(self) -> TaskData:
        """Training and development pairs with an empty side are left out and counted."""
        recipe = self.recipe
        missing: Missing = {}
        train = self._open("train", recipe.train, missing)
        dev = self._open("dev", recipe.dev, missing)
        test = self._open("test", recipe.test, missing, may_be_empty=False)
        if not train or not test:
            raise MissingTable("; ".join(missing_lines(missing)))
        tested = [rows.language for rows in test]
        if len(set(tested)) < len(tested):
            raise ValueError(f"The tables of test are of the pairs {tested}. Evaluate each only once.")

        numbered = []
        empty = {"train": Counter(), "dev": Counter()}
        for number, rows in enumerate(train):
            numbered.append(rows.dataset.add_column("table", np.full(len(rows.dataset), number, "int16")))
            empty["train"]["all"] += rows.left_out["empty"]
        training = sample(concatenate_datasets(numbered), recipe.max_train_examples)

        dev_tables: dict[str, list[Dataset]] = {}
        for rows in dev:
            dev_tables.setdefault(rows.language, []).append(sample(rows.dataset, recipe.max_dev_examples))
            empty["dev"][rows.language] += rows.left_out["empty"]
        development = {pair: concatenate_datasets(tables) for pair, tables in dev_tables.items()}

        evaluated = {}
        for rows in test:
            numbered_rows = rows.dataset.add_column("row", rows.numbers)
            evaluated[rows.language] = sample(numbered_rows, recipe.max_test_examples)

        facts = {
            "training_data": [pair_identity(rows) for rows in train],
            "training_rows": len(training),
            "evaluation_data": [pair_identity(rows) for rows in test],
            "evaluated_rows": {pair: len(rows) for pair, rows in evaluated.items()},
            "empty_pairs": empty,
            "selection": {
                "rule": recipe.selection,
                "data": [pair_identity(rows) for rows in dev] or None,
                "rows": {pair: len(rows) for pair, rows in development.items()},
            },
        }
        parts = {"training": {"": training}, "development": development, "evaluated": evaluated}
        warnings = missing_lines(missing)
        warnings += table_warnings(recipe, recipe.test, "max_test_examples", "max_train_examples")
        warnings += repeated_texts(parts, list(SIDES))
        return TaskData(facts, warnings, training, development, evaluated)

    def _open(self, part: str, tables: Sequence[PairTable], missing: Missing, may_be_empty: bool = True) -> list[Rows]:
        """The pairs of each table of a part of the recipe."""
        all_rows = []
        for number, table in enumerate(tables):
            pair = "-".join(self.recipe.languages_of(table))
            name = f"{part}.{number}"
            with noted_if_missing(self.recipe, part, f"{pair} ({name})", missing):
                all_rows.append(open_pairs(table, name, pair, self.recipe.hub_root, may_be_empty))
        return all_rows

    def encode(self, data: TaskData) -> TaskData:
        """Texts to `source_ids`, `target_ids` (without the start symbol), `source_length` and `target_length`.

        Training pairs that are too long are dropped or cut, evaluated ones cut; the facts count them.
        """
        recipe = self.recipe
        masks = any(table.source_mask_probability for table in recipe.train)
        if masks and self.start.tokenizer.mask_token_id is None:
            raise ValueError("source_mask_probability is set, and the tokenizer has no mask token. Leave it out.")
        long: dict[str, dict[str, int]] = {"train": {}, "dev": {}, "evaluation": {}}
        train = self._encode_rows(data.train, "train", "")
        is_long = _is_long(train, SIDES)
        long["train"]["all"] = int(is_long.sum())
        if recipe.too_long == "drop" and is_long.any():
            train = train.select(np.flatnonzero(~is_long))
        if not len(train):
            limits = {"source": recipe.max_source_length, "target": recipe.max_target_length}
            raise ValueError(f"All training pairs are longer than {limits}. Raise max_..._length, or set too_long=cut.")
        dev = {pair: self._encode_rows(rows, "dev", pair) for pair, rows in data.dev.items()}
        for pair, rows in dev.items():
            long["dev"][pair] = int(_is_long(rows, SIDES).sum())
        evaluation = {pair: self._encode_rows(rows, "evaluation", pair) for pair, rows in data.evaluation.items()}
        for pair, rows in evaluation.items():
            long["evaluation"][pair] = int(_is_long(rows, SIDES[:1]).sum())  # references are scored as text, whole
        data.protocol.update(
            max_source_length=recipe.max_source_length,
            max_target_length=recipe.max_target_length,
            max_length=recipe.longest_input,
            too_long=recipe.too_long,
            long_pairs=long,
            training_rows=len(train),
        )
        return dataclasses.replace(data, train=train, dev=dev, evaluation=evaluation)

    def _encode_rows(self, rows: Dataset, part: str, pair: str) -> Dataset:
        recipe = self.recipe
        limits = {"source": recipe.max_source_length, "target": recipe.max_target_length}
        with main_first():  # the other processes find the cached copy
            return rows.map(
                _encode_batch,
                batched=True,
                remove_columns=None if pair else list(SIDES),
                fn_kwargs={"tokenizer": self.start.tokenizer, "limits": limits},
                num_proc=recipe.num_workers or None,
                desc=f"Encoding {part} {pair}",
            )

    def check_run(self, data: TaskData) -> None:
        recipe = self.recipe
        seed = recipe.seeds[0]
        translation_arguments(recipe, seed, Path(recipe.output_dir), make_plan(recipe, data.train, seed))
        # some of sacreBLEU's tokenizers need another library: report a missing one before the training
        for language in set(recipe.targets.values()):
            load_metric("bleu").compute(predictions=["a"], references=["a"], language=language)

    def build(self, seed: int, data: TaskData) -> torch.nn.Module:
        config = self.start.config
        model = build_model(self.recipe, self.start.path, config, seed)
        model.config.fine_tuned_on = [*fine_tuned_on(config), f"{self.recipe.task} (translation)"]
        return model

    def trainer(self, seed: int, model: torch.nn.Module, data: TaskData, checkpoints: Path) -> TranslationTrainer:
        recipe = self.recipe
        plan = make_plan(recipe, data.train, seed)
        return TranslationTrainer(
            model=model,
            args=translation_arguments(recipe, seed, checkpoints, plan),
            train_dataset=Examples(data.train, self.start.tokenizer, seed, recipe.train),
            eval_dataset=data.dev or None,
            processing_class=self.start.tokenizer,
            recipe=recipe,
            plan=plan,
        )

    def describe(self, model: torch.nn.Module, data: TaskData) -> str:
        return f"{len(data.train):,} pairs"

    def select(self, trainer: TranslationTrainer, data: TaskData) -> int | list[int]:
        """The last weights, or the mean of the last checkpoints."""
        recipe = self.recipe
        PartialState().wait_for_everyone()  # the main process may still write the last checkpoint
        steps = [trainer.state.global_step]
        if recipe.selection == "average":
            steps = saved_steps(recipe, trainer.plan)[-recipe.average_checkpoints :]
        model = trainer.accelerator.unwrap_model(trainer.model)
        average_weights(model, [Path(trainer.args.output_dir) / f"checkpoint-{step}" for step in steps])
        return steps if len(steps) > 1 else steps[0]

    def score(self, trainer: TranslationTrainer, data: TaskData) -> Scored:
        """Translates every test."""
        scores = {}
        signatures = {}
        predictions = {}
        for pair, rows in data.evaluation.items():
            hypotheses = trainer.translate(rows, self.recipe.generation.beams)
            scores[pair] = trainer.score(pair, hypotheses, rows["target"][:])
            signatures[pair] = scores[pair].pop("signatures")
            predictions[pair] = _rows(rows, hypotheses)
        metric = {"module": "bleu", "version": load_metric("bleu").version, "signatures": signatures}
        config = trainer.accelerator.unwrap_model(trainer.model).config
        # from the model: if it already has a decoder, the recipe does not describe it
        decoder = {name: getattr(config, name) for name in ("decoder_layers", "decoder_layer_indices", "tie_decoder")}
        return Scored(scores_of(scores), predictions, metric, decoder)


def _is_long(rows: Dataset, sides: Sequence[str]) -> np.ndarray:
    """Whether one of the sides of a pair is longer than its limit."""
    return np.logical_or.reduce([column(rows, f"{side}_is_long") for side in sides])


def _encode_batch(batch: dict[str, list], tokenizer: Any, limits: dict[str, int]) -> dict[str, list]:
    """Sources with the tokenizer's special tokens, targets with the closing one only."""
    plain = tokenizer(batch["target"], add_special_tokens=False).input_ids
    sides = {
        "source": tokenizer(batch["source"]).input_ids,
        "target": [[*ids, tokenizer.eos_token_id] for ids in plain],
    }
    encoded: dict[str, list] = {}
    for side, rows in sides.items():
        limit = limits[side]
        # a cut text keeps its closing token
        cut = [[*ids[: limit - 1], ids[-1]] if len(ids) > limit else ids for ids in rows]
        encoded[f"{side}_is_long"] = [len(ids) > limit for ids in rows]
        encoded[f"{side}_ids"] = cut
        encoded[f"{side}_length"] = [len(ids) for ids in cut]
    return encoded


def _rows(rows: Dataset, hypotheses: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a pair's predictions file."""
    for pair, hypothesis in zip(rows.select_columns(["row", *SIDES]).to_list(), hypotheses, strict=True):
        yield {"row": pair["row"], "source": pair["source"], "reference": pair["target"], "hypothesis": hypothesis}
