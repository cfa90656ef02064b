"""Translation: reads, checks and encodes tables of pairs, builds the model, and computes sacreBLEU by language pair.

Layout of a pair of the zoo: the encoder reads `<s> x </s>`, the decoder reads `</s> y_1 .. y_n` and predicts
`y_1 .. y_n </s>`.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets

from crosslingual_zoo.finetuning.data.pair_tables import SIDES, open_pairs, pair_identity
from crosslingual_zoo.finetuning.data.task_tables import TaskData, each_part, repeated_texts, sample, table_warnings
from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.finetuning.models import Start, fine_tuned_on
from crosslingual_zoo.finetuning.progress import say, say_evaluation
from crosslingual_zoo.finetuning.selection import kept_checkpoint
from crosslingual_zoo.finetuning.tasks.base import Facts, Record, Task, scores_of
from crosslingual_zoo.finetuning.tasks.translation.batches import Examples
from crosslingual_zoo.finetuning.tasks.translation.model import average_weights, build_model, check_architecture
from crosslingual_zoo.finetuning.tasks.translation.recipe import TranslationRecipe
from crosslingual_zoo.finetuning.tasks.translation.trainer import (
    TranslationTrainer,
    column,
    make_plan,
    saved_steps,
    translation_arguments,
)
from crosslingual_zoo.finetuning.training import finish_training, finite, train_seed
from crosslingual_zoo.zoo_core.processes import main_first


class TranslationTask(Task[TranslationRecipe]):
    """An encoder-decoder that is trained on pairs of sentences; every pair of languages is evaluated by itself.

    Data are pairs of `source` and `target` text; after `encode` ids and lengths, the training pairs without their
    texts. `table` of a training pair is the position of its table in the recipe, which says how its source is masked.
    `row` of an evaluated pair is its number in its table.
    """

    metrics = ("sacrebleu", "bleu", "chrf")
    notes = ("bleu: near multi-bleu.perl -lc on Moses tokens. Compare sacrebleu if both are published",)

    def open(self) -> Start:
        start = super().open()
        check_architecture(self.recipe, start.config)
        return start

    def read(self) -> TaskData:
        """Training and development pairs with an empty side are left out and counted."""
        recipe, root = self.recipe, self.recipe.hub_root
        train, dev, test = (
            [
                open_pairs(table, f"{part}.{position}", "-".join(recipe.languages_of(table)), root, part != "test")
                for position, table in enumerate(getattr(recipe, part))
            ]
            for part in ("train", "dev", "test")
        )
        pairs = [rows.language for rows in test]
        if len(set(pairs)) < len(pairs):
            raise ValueError(f"The tables of test are of the pairs {pairs}. Evaluate each only once.")
        numbered = [
            rows.dataset.add_column("table", np.full(len(rows.dataset), number, "int16"))
            for number, rows in enumerate(train)
        ]
        training = sample(concatenate_datasets(numbered), recipe.max_train_examples)
        empty = {"train": Counter(all=sum(rows.left_out["empty"] for rows in train)), "dev": Counter()}
        by_pair: dict[str, list[Dataset]] = {}
        for rows in dev:
            by_pair.setdefault(rows.language, []).append(sample(rows.dataset, recipe.max_dev_examples))
            empty["dev"][rows.language] += rows.left_out["empty"]
        development = {pair: concatenate_datasets(parts) for pair, parts in by_pair.items()}
        evaluated = {
            rows.language: sample(rows.dataset.add_column("row", rows.numbers), recipe.max_test_examples)
            for rows in test
        }
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
        warnings = table_warnings(recipe, recipe.test, "max_test_examples", "max_train_examples")
        warnings += repeated_texts(parts, list(SIDES))
        return TaskData(facts, warnings, training, development, evaluated)

    def encode(self, data: TaskData) -> TaskData:
        """Texts to `source_ids`, `target_ids` (without the start symbol), `source_length` and `target_length`.

        Training pairs that are too long are dropped or cut, evaluated ones cut; the facts count them.
        """
        recipe, tokenizer = self.recipe, self.start.tokenizer
        if tokenizer.mask_token_id is None and any(table.source_mask_probability for table in recipe.train):
            raise ValueError("source_mask_probability is set, and the tokenizer has no mask token. Leave it out.")
        limits = {"source": recipe.max_source_length, "target": recipe.max_target_length}
        long: dict[str, dict[str, int]] = {"train": {}, "dev": {}, "evaluation": {}}

        def encode_rows(rows: Dataset, part: str, pair: str) -> Dataset:
            with main_first():  # the other processes find the cached copy
                rows = rows.map(
                    _encode_batch,
                    batched=True,
                    remove_columns=None if pair else list(SIDES),
                    fn_kwargs={"tokenizer": tokenizer, "limits": limits},
                    num_proc=recipe.num_workers or None,
                    desc=f"Encoding {part} {pair}",
                )
            # references are scored as text, whole
            sides = SIDES if part != "evaluation" else SIDES[:1]
            is_long = np.logical_or.reduce([column(rows, f"{side}_is_long") for side in sides])
            long[part][pair or "all"] = int(is_long.sum())
            if part == "train" and recipe.too_long == "drop" and is_long.any():
                rows = rows.select(np.flatnonzero(~is_long))
            return rows

        encoded = each_part(data, encode_rows)
        if not len(encoded.train):
            raise ValueError(f"All training pairs are longer than {limits}. Raise max_..._length, or set too_long=cut.")
        settings = ("max_source_length", "max_target_length", "max_length", "too_long")
        encoded.protocol.update({name: getattr(recipe, name) for name in settings}, long_pairs=long)
        encoded.protocol["training_rows"] = len(encoded.train)
        return encoded

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

    def run_seed(
        self, seed: int, model: torch.nn.Module, data: TaskData, folder: Path, evaluate: bool = True
    ) -> Record:
        """The selected weights translate every test."""
        recipe, checkpoints = self.recipe, folder / "checkpoints"
        plan = make_plan(recipe, data.train, seed)
        trainer = TranslationTrainer(
            model=model,
            args=translation_arguments(recipe, seed, checkpoints, plan),
            train_dataset=Examples(data.train, self.start.tokenizer, seed, recipe.train),
            eval_dataset=data.dev or None,
            processing_class=self.start.tokenizer,
            recipe=recipe,
            plan=plan,
        )
        train_seed(trainer, recipe, f"{len(data.train)} pairs, {len(plan)} steps an epoch")
        PartialState().wait_for_everyone()  # the main process may still write the last checkpoint
        state, steps = trainer.state, saved_steps(recipe, plan)[-recipe.average_checkpoints :]
        if recipe.selection != "average":
            steps = [state.global_step]
        average_weights(model, [checkpoints / f"checkpoint-{step}" for step in steps])
        selected_step = steps if len(steps) > 1 else steps[0]
        say(f"seed {seed}: {kept_checkpoint(state, selected_step, recipe.main_score)}")
        say_evaluation(seed, data.protocol["evaluated_rows"])
        hypotheses, scores = {}, {}
        for pair, rows in data.evaluation.items():
            hypotheses[pair] = trainer.translate(rows, recipe.generation.beams)
            scores[pair] = trainer.score(pair, hypotheses[pair], rows["target"][:])
        decoder = ("decoder_layers", "decoder_layer_indices", "tie_decoder")
        record = {
            "metric": {"name": "sacrebleu", "module": "bleu", "version": load_metric("bleu").version},
            "signatures": {pair: of.pop("signatures") for pair, of in scores.items()},
            "scores": scores_of(scores),
            "selected_step": selected_step,
            "decoder": {name: getattr(model.config, name) for name in decoder},
            "curve": [
                {"step": entry["step"], "loss": entry["eval_loss"], "bleu": entry.get("eval_bleu")}
                for entry in finite(state.log_history)
                if "eval_loss" in entry
            ],
        }
        predictions = {pair: _rows(data.evaluation[pair], own) for pair, own in hypotheses.items()}
        return finish_training(trainer, recipe, folder, record, predictions)

    def fields(self, facts: Facts, records: list[Record]) -> dict[str, Any]:
        recipe = self.recipe
        facts["metric"]["signatures"] = records[0]["signatures"]
        return {
            "setting": "supervised",
            "source_language": recipe.source_language,
            "target_language": recipe.target_language,
            "hyperparameters": {
                **dataclasses.asdict(recipe.training),
                "initialize": recipe.initialize,
                **records[0]["decoder"],  # from the model: if it already has a decoder, the recipe does not describe it
                "generation": dataclasses.asdict(recipe.generation),
                "updates": [record["steps"] for record in records],
            },
            "curve": {str(record["seed"]): record["curve"] for record in records},
        }


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
        encoded[f"{side}_ids"], encoded[f"{side}_length"] = cut, [len(ids) for ids in cut]
    return encoded


def _rows(rows: Dataset, hypotheses: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a pair's predictions file."""
    for pair, hypothesis in zip(rows.select_columns(["row", *SIDES]).to_list(), hypotheses, strict=True):
        yield {"row": pair["row"], "source": pair["source"], "reference": pair["target"], "hypothesis": hypothesis}
