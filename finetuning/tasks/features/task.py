"""Tasks that train nothing: they evaluate the vectors of unchanged models, one per seed, by layer."""

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from accelerate import PartialState
from transformers import AutoModel

from finetuning.checkpoints import describe_start
from finetuning.data.task_tables import PairData
from finetuning.models import Start, load_pretrained
from finetuning.results import Protocol
from finetuning.run_folder import RunFolder
from finetuning.seeds import Predictions, finish_seed, load_metric, metric_facts
from finetuning.tasks.base import Line, Record, Task
from finetuning.tasks.features.recipe import SEED, FeatureRecipe
from modeling.layer_states import default_layer
from zoo_core.processes import from_all, main_first


def share(sizes: dict[str, int], processes: int) -> list[list[str]]:
    """The names that each process takes, so that the sums of their sizes are about equal: the largest first."""
    shares: list[list[str]] = [[] for _ in range(processes)]
    for name in sorted(sizes, key=sizes.get, reverse=True):
        min(shares, key=lambda names: sum(sizes[one] for one in names)).append(name)
    return shares


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

R = TypeVar("R", bound=FeatureRecipe)


class FeatureTask(Task[R]):
    """Scores of every layer, of every pair of languages by itself."""

    is_higher_better: ClassVar[bool] = True
    metric: str  # the `evaluate` module of finetuning/metrics, whose version the results carry
    models: dict[int, Start]  # by seed: one for all, or the one whose name has the seed

    def open(self) -> Start:
        recipe = self.recipe
        self.models = {
            seed: describe_start(replace(recipe, model=recipe.model.replace(SEED, str(seed))), recipe.max_length)
            for seed in recipe.seeds
        }
        depths = {seed: model.config.num_hidden_layers for seed, model in self.models.items()}
        first = self.models[recipe.seeds[0]]
        depth = first.config.num_hidden_layers
        if len(set(depths.values())) > 1:
            raise ValueError(
                f"The models of seeds {list(depths)} have {list(depths.values())} layers. Evaluate models with "
                "the same number of layers in one output_dir, and combine the results with finetuning.compare."
            )
        named = {"layer": [recipe.layer] if isinstance(recipe.layer, int) else [], "layers": recipe.layers}
        for field, layers in named.items():
            if beyond := [layer for layer in layers if not 0 <= layer <= depth]:
                raise ValueError(
                    f"{field} has {beyond[0]}, and {recipe.model} has {depth} layers. Give 0 (the embeddings) to "
                    f"{depth}."
                )
        # with one model per seed, each seed's record has the fingerprint
        of_seeds = {"folder": recipe.model, "fingerprint": None} if SEED in recipe.model else {}
        self.start = first._replace(identity=first.identity | of_seeds)
        return self.start

    @abstractmethod
    def read(self) -> PairData:
        """Reads and checks the evaluated data of every pair of languages."""

    def encode(self, data: PairData) -> PairData:
        """Adds to the protocol how scores are computed from a model's layers."""
        recipe, protocol = self.recipe, data.protocol
        depth = self.start.config.num_hidden_layers
        self.describe_method(protocol)
        layer, layers, rule = reported_layer(recipe.layer, recipe.layers, depth)
        protocol.layer, protocol.layers, protocol.depth = layer, layers, depth
        protocol.selection = Protocol(rule=rule, data=None)  # the scores never select a layer
        return data

    @abstractmethod
    def describe_method(self, protocol: Protocol) -> None:
        """Sets `method`, `methods` and further facts about how scores are computed from vectors."""

    def check_run(self, data: PairData, folder: RunFolder | None = None) -> None:
        """Raises ValueError where a finished seed was scored with other weights than its model has now."""
        # seeds may be scored weeks after each other, and a model may have been trained again since
        for seed, model in self.models.items() if folder else ():
            then = (folder.finished(seed) or {}).get("model", model.identity)["fingerprint"]
            now = model.identity["fingerprint"]
            if then != now:
                raise ValueError(
                    f"The weights of {model.identity['folder']} have changed since seed {seed} was scored in "
                    f"{folder.path}: {then[:15]} -> {now[:15]}. Restore the model, or name another folder."
                )

    def sizes(self, data: PairData) -> dict[str, int]:
        """Returns the amount of work of each pair of languages, in any unit, to divide them among processes."""
        return data.protocol.evaluated_rows

    def build(self, seed: int, data: PairData) -> Any:
        model = self.models[seed]
        with main_first():
            encoder = load_pretrained(
                AutoModel,
                model.path,
                model.identity["folder"],
                self.recipe.trust_remote_code,
                dtype=DTYPES[self.recipe.precision],
            )
        return self.reader(encoder.to(PartialState().device), model.tokenizer)

    @abstractmethod
    def reader(self, encoder: torch.nn.Module, tokenizer: Any) -> Any:
        """Returns the object that computes vectors or links with an encoder; its `states.model` is the encoder."""

    @abstractmethod
    def evaluate(self, seed: int, reader: Any, data: PairData) -> tuple[Record, Predictions]:
        """`scores` by pair, method, layer and metric, further facts of the record (dictionaries are by pair too), and
        predictions."""

    def run_seed(self, seed: int, model: Any, data: PairData, folder: Path, evaluate: bool = True) -> Record:
        """Each process evaluates its share of the pairs of languages; the main process writes all results."""
        state = PartialState()
        load_metric(self.metric)  # here all processes meet: they wait for each other when loading a metric
        own = share(self.sizes(data), state.num_processes)[state.process_index]
        pairs = {name: data.pairs[name] for name in own}

        def work() -> tuple[Record, Predictions]:
            found, predictions = self.evaluate(seed, model, replace(data, pairs=pairs)) if pairs else ({}, {})
            if state.num_processes > 1:  # the functions that make the rows cannot be sent
                predictions = {name: partial(iter, list(rows())) for name, rows in predictions.items()}
            return found, predictions

        all_found = from_all(work)
        record: Record = {
            "seed": seed,
            "model": self.models[seed].identity,
            "parameters": sum(parameter.numel() for parameter in model.states.model.parameters()),
            "metric": metric_facts(self.recipe.main_score, self.metric),
        }
        for field, value in all_found[0][0].items():  # the first process has a pair
            if isinstance(value, dict):
                of_pairs = {name: of for found, _ in all_found for name, of in found.get(field, {}).items()}
                value = {name: of_pairs[name] for name in data.pairs}
            record[field] = value
        if state.is_main_process:
            made = {name: rows for _, of_process in all_found for name, rows in of_process.items()}
            finish_seed(folder, record, {name: made[name] for name in data.pairs if name in made})
        state.wait_for_everyone()
        return record

    def facts(self, protocol: Protocol, records: list[Record]) -> dict[str, Any]:
        """Each seed may have a model of its own, whose fingerprints are joined by `+`."""
        recipe, better = self.recipe, self.is_higher_better
        protocol.metric = Protocol(**records[0]["metric"], unit="percent", greater_is_better=better)
        return {
            "setting": "feature",
            "model": {"fingerprint": "+".join(record["model"]["fingerprint"] for record in records)},
            "hyperparameters": {"batch_size": recipe.batch_size, "precision": recipe.precision},
            "warnings": self.warnings(protocol, records),
        }

    def layer_line(self, protocol: Protocol) -> str:
        """Which layer is reported, and how it was chosen."""
        return f"layer: {protocol.layer} of {protocol.depth} ({protocol.selection.rule}), not chosen on these data"

    @abstractmethod
    def warnings(self, protocol: Protocol, records: list[Record]) -> list[str]:
        """Returns caveats about the scores, such as seeds at chance."""

    def data_lines(self, read: PairData, encoded: PairData) -> list[Line]:
        rows = encoded.protocol.evaluated_rows.items()
        return [{"part": "evaluation", "language": name, "rows": count} for name, count in rows]


def reported_layer(layer: int | str | None, layers: list[int], depth: int) -> tuple[int, list[int], str]:
    """Of a model of `depth` layers: the reported one, all that are scored, and the rule that chose it.

    `layer` and `layers` are those of a recipe. Raises ValueError where the reported one is not scored.
    """
    relative = {
        None: (default_layer(depth), "three fifths of the layers"),
        "middle": (depth // 2, "the middle layer"),
        "two_thirds": (round(2 * depth / 3), "two thirds of the layers"),  # XLM-Align, Table 2: 8 of 12
    }
    chosen, rule = relative.get(layer, (layer, "named in the recipe"))
    scored = sorted(set(layers)) or list(range(depth + 1))
    if chosen not in scored:
        raise ValueError(
            f"layers is {layers}, and the layer that is reported is {chosen} of {depth} ({rule}). Add it, or name "
            "another one with `layer`."
        )
    return chosen, scored, rule


def span(layers: list[int]) -> str:
    """Returns `0 to 12`, or `0, 8` if layers between them are missing."""
    return f"{layers[0]} to {layers[-1]}" if layers == list(range(layers[0], layers[-1] + 1)) else str(layers)[1:-1]
