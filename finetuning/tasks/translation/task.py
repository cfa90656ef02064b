"""Translation: reads, checks and encodes tables of pairs, builds the model, and computes sacreBLEU by language pair.

Layout of a pair of the zoo: the encoder reads `<s> x </s>`, the decoder reads `</s> y_1 .. y_n` and predicts
`y_1 .. y_n </s>`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, concatenate_datasets

from finetuning.checkpoints import describe_start, fine_tuned_on
from finetuning.data.pair_tables import SIDES, open_pairs, pair_identity, tables_of, with_both_sides
from finetuning.data.rows import Rows, split_name
from finetuning.data.table_checks import overlap
from finetuning.data.task_tables import TaskData, repeated_texts, sample
from finetuning.models import Start, names_as_text
from finetuning.page import table_names
from finetuning.results import Protocol, Results
from finetuning.run_folder import RunFolder
from finetuning.seeds import SeedProgress, check_weights, finish, finite, load_metric, train_or_resume
from finetuning.tasks.base import Line, Record, Task, add_outcomes
from finetuning.tasks.translation.batches import Examples, Masking, layout_of
from finetuning.tasks.translation.model import average_weights, build_model, check_architecture
from finetuning.tasks.translation.recipe import TrainingPairs, TranslationRecipe
from finetuning.tasks.translation.trainer import (
    TranslationTrainer,
    column,
    make_plan,
    selected_steps,
    translation_arguments,
)
from zoo_core.processes import main_first
from zoo_core.tables import describe

RATIO_OF_ALARM = 0.5  # ratio of the translations' length to the references'; below it, or above its inverse, warn


class TranslationTask(Task[TranslationRecipe]):
    """An encoder-decoder that is trained on pairs of sentences; every pair of languages is evaluated by itself.

    Data are pairs of `source` and `target` text; after `encode` ids and lengths, the training pairs without their
    texts. `table` of a training pair is the position of its table in the recipe, which says how its source is masked.
    `row` of an evaluated pair is its number in its table.
    """

    metrics = ("sacrebleu", "bleu", "chrf")

    def open(self) -> Start:
        check_architecture(self.recipe)
        start = describe_start(self.recipe, self.recipe.max_length)
        return start._replace(tokenizer=names_as_text(start.tokenizer))

    def read(self) -> TaskData:
        """Training and development pairs with an empty side are left out and counted."""
        recipe = self.recipe
        check_tables(recipe)
        loaded: dict[tuple, tuple[Dataset, str]] = {}
        empty: dict[str, dict[str, int]] = {"train": {}, "dev": {}}

        def open_tables(part: str) -> list[Rows]:
            opened = []
            for position, table in enumerate(getattr(recipe, part)):
                pair = "-".join(recipe.languages_of(table))
                rows = open_pairs(table, f"{part}.{position}", pair, recipe.hub_root, loaded)
                kept = with_both_sides(rows, f"{part}.{position}", is_evaluated=part == "test")
                if part in empty:
                    before = empty[part].get(rows.language, 0)
                    empty[part][rows.language] = before + len(rows.dataset) - len(kept.dataset)
                opened.append(kept)
            return opened

        train, dev, test = (open_tables(part) for part in ("train", "dev", "test"))
        for rows in test:
            if sum(other.language == rows.language for other in test) > 1:
                raise ValueError(
                    f"The pair {rows.language} is evaluated twice. Remove a table, or name its languages by "
                    "source_language and target_language."
                )
        parts = [
            rows.dataset.add_column("table", np.full(len(rows.dataset), position, dtype=np.int16))
            for position, rows in enumerate(train)
        ]
        training = sample(concatenate_datasets(parts), recipe.max_train_examples)
        dev_pairs: dict[str, list[Dataset]] = {}
        for rows in dev:
            dev_pairs.setdefault(rows.language, []).append(sample(rows.dataset, recipe.max_dev_examples))
        evaluated = {
            rows.language: sample(rows.dataset.add_column("row", rows.numbers), recipe.max_test_examples)
            for rows in test
        }
        protocol = Protocol(
            training_data=[pair_identity(rows) for rows in train],
            training_rows=len(training),
            evaluation_data=[pair_identity(rows) for rows in test],
            evaluated_split=", ".join(dict.fromkeys(split_name(rows.table) for rows in test)),
            evaluated_rows={pair: len(rows) for pair, rows in evaluated.items()},
            empty_pairs_left_out=empty,
            selection=Protocol(
                rule=recipe.selection,
                data=[pair_identity(rows) for rows in dev] or None,
                rows={pair: sum(map(len, parts)) for pair, parts in dev_pairs.items()},
            ),
        )
        joined = {pair: concatenate_datasets(parts) for pair, parts in dev_pairs.items()}
        parts = {"training": {"": training}, "development": joined, "evaluated": evaluated}
        return TaskData(protocol, repeated_texts(parts, list(SIDES), None), training, joined, evaluated)

    def encode(self, data: TaskData) -> TaskData:
        """Texts to `source_ids`, `target_ids` (without the start symbol), `source_length` and `target_length`.

        Training pairs that are too long are dropped or cut, evaluated ones cut; the protocol counts them.
        """
        recipe, tokenizer = self.recipe, self.start.tokenizer
        if tokenizer.mask_token_id is None and any(table.source_mask_probability for table in recipe.train):
            raise ValueError(
                f"source_mask_probability is set, and the tokenizer of {recipe.tokenizer or recipe.model} has no mask "
                "token. Use a model with a masked-LM tokenizer, or leave it out."
            )
        limits = {"source": recipe.max_source_length, "target": recipe.max_target_length}

        def encode_rows(rows: Dataset, name: str, remove: list[str] | None = None) -> Dataset:
            with main_first():  # the other processes find the cached copy
                return rows.map(
                    _encode_batch,
                    batched=True,
                    remove_columns=remove,
                    fn_kwargs={"tokenizer": tokenizer, "limits": limits},
                    num_proc=recipe.num_workers or None,
                    desc=f"Encoding {name}",
                )

        def cut(rows: Dataset, side: str) -> int:
            return int(np.sum(column(rows, f"{side}_is_long")))

        train = encode_rows(data.train, "train", remove=list(SIDES))
        long = np.logical_or(*(column(train, f"{side}_is_long") for side in SIDES))
        if recipe.too_long == "drop" and long.any():
            train = train.select(np.flatnonzero(~long))
        if not len(train):
            raise ValueError(
                f"All {len(long)} training pairs are longer than max_source_length {recipe.max_source_length} or "
                f"max_target_length {recipe.max_target_length}. Raise them, or set too_long to cut."
            )
        dev = {pair: encode_rows(rows, f"dev {pair}") for pair, rows in data.dev.items()}
        evaluation = {pair: encode_rows(rows, f"test {pair}") for pair, rows in data.evaluation.items()}
        protocol = data.protocol
        protocol.training_rows = len(train)
        protocol.max_source_length, protocol.max_target_length = recipe.max_source_length, recipe.max_target_length
        protocol.max_length = recipe.max_length
        protocol.too_long = {
            "rule": recipe.too_long,
            "train": int(long.sum()),
            "dev": {pair: sum(cut(rows, side) for side in SIDES) for pair, rows in dev.items()},
            # references are scored as text, whole
            "test_sources": {pair: cut(rows, "source") for pair, rows in evaluation.items()},
        }
        return replace(data, train=train, dev=dev, evaluation=evaluation)

    def check_run(self, data: TaskData, folder: RunFolder | None = None) -> None:
        recipe = self.recipe
        seed = recipe.seeds[0]
        translation_arguments(recipe, seed, Path(recipe.output_dir), make_plan(recipe, data.train, seed))
        # some of sacreBLEU's tokenizers need another library: report a missing one before the training
        for language in set(recipe.targets.values()):
            options = {"tokenize": recipe.bleu_tokenizer, "language": language}
            load_metric("bleu").compute(predictions=["a"], references=["a"], **options)

    def build(self, seed: int, data: TaskData) -> torch.nn.Module:
        config = self.start.config
        model = build_model(self.recipe, self.start.path, config, seed)
        model.config.fine_tuned_on = [*fine_tuned_on(config), f"{self.recipe.task} (translation)"]
        return model

    def run_seed(
        self, seed: int, model: torch.nn.Module, data: TaskData, folder: Path, evaluate: bool = True
    ) -> Record:
        """Trains from the last complete checkpoint, if there is one; the selected weights translate every test."""
        recipe = self.recipe
        checkpoints = folder / "checkpoints"
        plan = make_plan(recipe, data.train, seed)
        layout = layout_of(self.start.tokenizer, model.generation_config.decoder_start_token_id)
        maskings = [Masking(table.source_mask_probability, table.predict == "masked") for table in recipe.train]
        trainer = TranslationTrainer(
            model=model,
            args=translation_arguments(recipe, seed, checkpoints, plan),
            train_dataset=Examples(data.train, layout, seed, maskings),
            eval_dataset=data.dev or None,
            processing_class=self.start.tokenizer,
            recipe=recipe,
            plan=plan,
            layout=layout,
        )
        # in addition to the best one on dev, the last is kept to resume from
        keep = {"last": 1, "average": recipe.average_checkpoints}.get(recipe.selection, 2)
        with SeedProgress(seed, recipe.push_to_hub) as progress:
            train_or_resume(trainer, recipe, progress, f"{len(data.train)} pairs, {len(plan)} steps an epoch", keep)
            PartialState().wait_for_everyone()  # the main process may still write the last checkpoint
            steps = selected_steps(recipe, plan, trainer.state, seed)
            average_weights(model, [checkpoints / f"checkpoint-{step}" for step in steps])
            check_weights(model, seed)
            hypotheses = {
                pair: trainer.translate(rows, recipe.generation.beams) for pair, rows in data.evaluation.items()
            }
            results = {
                pair: trainer.score(pair, hypotheses[pair], rows["target"][:]) for pair, rows in data.evaluation.items()
            }
            predictions = {
                pair: functools.partial(_records, rows, hypotheses[pair]) for pair, rows in data.evaluation.items()
            }
            config = model.config
            outcome = {
                "metric": {"name": "sacrebleu", "version": load_metric("bleu").version},
                "scores": {pair: scores["sacrebleu"] for pair, scores in results.items()},
                "all_scores": results,
                "selected_step": steps if len(steps) > 1 else steps[0],
                "decoder": {
                    name: getattr(config, name) for name in ("decoder_layers", "decoder_layer_indices", "tie_decoder")
                },
                "curve": [
                    {"step": entry["step"], "loss": entry["eval_loss"], "bleu": entry.get("eval_bleu")}
                    for entry in finite(trainer.state.log_history)
                    if "eval_loss" in entry
                ],
            }
            return finish(trainer, progress, outcome, predictions, folder, recipe.save_models)

    def facts(self, protocol: Protocol, records: list[Record]) -> dict[str, Any]:
        recipe = self.recipe
        signatures = {pair: of["signatures"] for pair, of in records[0]["all_scores"].items()}
        add_outcomes(protocol, records, signatures=signatures)
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
            "warnings": [*_protocol_warnings(recipe), *_length_warnings(records)],
        }

    def lines(self, results: Results) -> list[str]:
        protocol, settings = results.protocol, results["hyperparameters"]
        rule = {
            "last": "the last step",
            "dev_loss": "best loss on dev",
            "dev_bleu": "best BLEU on dev",
            "average": "mean of the last checkpoints",
        }[protocol.selection.rule]
        steps = "; ".join(str(step).strip("[]") for step in protocol.selection.selected_steps)
        long, empty = protocol.too_long, sum(protocol.empty_pairs_left_out["train"].values())
        beams, penalty = settings["generation"]["beams"], settings["generation"]["length_penalty"]
        lines = [
            f"training data: {table_names(protocol.training_data)} ({protocol.training_rows:,} pairs; left out: "
            f"{empty} with an empty side" + (f", {long['train']} too long)" if long["rule"] == "drop" else ")"),
            f"evaluated: {table_names(protocol.evaluation_data)} "
            f"({sum(protocol.evaluated_rows.values()):,} pairs; {sum(long['test_sources'].values())} sources cut at "
            f"{protocol.max_source_length} tokens)",
            f"updates: {', '.join(map(str, settings['updates']))}, of {settings['max_tokens']:,} tokens each",
            f"selection: {rule} (step {steps})",
            f"generation: {beams} beams, length penalty {penalty}",
        ]
        for pair, of_pair in protocol.metric.signatures.items():
            lines += [f"{name} {pair}: {signature}" for name, signature in of_pair.items()]
        return [
            *lines,
            "bleu: corresponds to multi-bleu.perl -lc on Moses tokens, without its decimals, because the tokens are "
            "sacreBLEU's. Compare sacrebleu if both are published",
            f"weights at the start: {settings['initialize']}",
        ]

    def data_lines(self, read: TaskData, encoded: TaskData) -> list[Line]:
        empty, too_long = encoded.protocol.empty_pairs_left_out, encoded.protocol.too_long
        long = {"train": {"all": too_long["train"]}, "dev": too_long["dev"], "test": too_long["test_sources"]}
        parts = {"train": {"all": encoded.train}, "dev": encoded.dev, "test": encoded.evaluation}
        lines = []
        for part, by_pair in parts.items():
            for pair, rows in by_pair.items():
                left_out = sum(empty[part].values()) if pair == "all" else empty.get(part, {}).get(pair, 0)
                own = {"part": part, "language": pair, "rows": len(rows)}
                lengths = {f"longest {side}": int(np.max(rows[f"{side}_length"][:])) for side in SIDES}
                lines.append({**own, **lengths, "too long": long[part][pair], "empty, left out": left_out})
        return lines


def check_tables(recipe: TranslationRecipe) -> None:
    """Raises ValueError for faults of the tables that can be found before they are read."""
    for part in ("train", "test"):
        if not getattr(recipe, part):
            raise ValueError(f"The recipe has no {part} table. Add one under `{part}:`.")
    for position, table in enumerate(recipe.train):
        _check_masking(table, f"train.{position}")
    for part, later in (("train", "dev"), ("train", "test"), ("dev", "test")):
        for position, table in enumerate(getattr(recipe, part)):
            for number, other in enumerate(getattr(recipe, later)):
                for one, another in itertools.product(tables_of(table), tables_of(other)):
                    if overlap(one, another, recipe.hub_root):
                        raise ValueError(
                            f"{part}.{position} and {later}.{number} both read {describe(one)}. Name different splits "
                            "or files."
                        )


def _check_masking(table: TrainingPairs, name: str) -> None:
    same = table.source_column == table.target_column and table.target is None
    if not 0 <= table.source_mask_probability < 1:
        raise ValueError(
            f"{name}.source_mask_probability is {table.source_mask_probability}. Give a number from 0 to below 1."
        )
    if same and not table.source_mask_probability:
        raise ValueError(
            f"{name} has {table.source_column} for source_column and target_column. Name the column of the other "
            "language, or set source_mask_probability to learn to restore masked text."
        )
    if table.predict == "masked" and not same:
        raise ValueError(
            f"{name} has predict: masked, and the columns {table.source_column} and {table.target_column}. Name one "
            "column twice, or use predict: all."
        )


def _encode_batch(batch: dict[str, list], tokenizer: Any, limits: dict[str, int]) -> dict[str, list]:
    """Sources with the tokenizer's special tokens, targets with the closing one only."""
    tokenizer = names_as_text(tokenizer)
    source = tokenizer(batch["source"]).input_ids
    plain = tokenizer(batch["target"], add_special_tokens=False).input_ids
    target = [[*ids, tokenizer.eos_token_id] for ids in plain]
    encoded: dict[str, list] = {}
    for side, rows in (("source", source), ("target", target)):
        limit = limits[side]
        # a cut text keeps its closing token
        cut = [[*ids[: limit - 1], ids[-1]] if len(ids) > limit else ids for ids in rows]
        encoded[f"{side}_is_long"] = [len(ids) > limit for ids in rows]
        encoded[f"{side}_ids"], encoded[f"{side}_length"] = cut, [len(ids) for ids in cut]
    return encoded


def _records(rows: Dataset, hypotheses: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a pair's predictions file."""
    pairs = rows.select_columns(["row", "source", "target"]).to_list()
    for pair, hypothesis in zip(pairs, hypotheses, strict=True):
        yield {"row": pair["row"], "source": pair["source"], "reference": pair["target"], "hypothesis": hypothesis}


def _protocol_warnings(recipe: TranslationRecipe) -> list[str]:
    warnings = []
    for table in recipe.test:
        if table.note:
            warnings.append(table.note)
        if not Path(table.path).is_file() and table.split != "test":
            warnings.append(f"evaluated on {table.path}, split {table.split}: not comparable with figures on test")
    if recipe.max_test_examples:
        warnings.append(f"at most {recipe.max_test_examples} pairs of each test were evaluated, sampled at random")
    if recipe.max_train_examples:
        warnings.append(f"at most {recipe.max_train_examples} training pairs were used, sampled at random")
    return warnings


def _length_warnings(records: list[Record]) -> list[str]:
    """Warns of translations of half or twice the references' length: the model stops too early, or never."""
    return [
        f"seed {record['seed']}: translations of {pair} have {scores['length_ratio']:.2f} times the references' length"
        for record in records
        for pair, scores in record["all_scores"].items()
        if not RATIO_OF_ALARM <= scores["length_ratio"] <= 1 / RATIO_OF_ALARM
    ]
