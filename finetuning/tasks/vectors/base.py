"""Tasks that train nothing: they evaluate the vectors of an unchanged model, by layer."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from accelerate import PartialState
from transformers import AutoModel

from crosslingual_zoo.finetuning.data.task_tables import PairData
from crosslingual_zoo.finetuning.run_folder import finish_seed
from crosslingual_zoo.finetuning.tasks.base import Facts, Record, Task
from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder
from crosslingual_zoo.finetuning.tasks.vectors.recipe import SentenceRecipe, VectorRecipe
from crosslingual_zoo.modeling.checkpoints import load_whole
from crosslingual_zoo.modeling.layer_states import default_layer
from crosslingual_zoo.zoo_core.processes import from_all, main_first

# scores of a pair of languages (method, layer, metric, value), counts, and the rows of its predictions
Found = tuple[list[Facts], Facts, list[Facts] | None]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

R = TypeVar("R", bound=VectorRecipe)
S = TypeVar("S", bound=SentenceRecipe)


class VectorTask(Task[R]):
    """Scores of every layer, of every pair of languages by itself."""

    metric: tuple[str, str]  # name and version of what computes the scores
    divides_pairs: ClassVar[bool] = True  # among the processes; else they evaluate each pair of languages together

    def encode(self, data: PairData) -> PairData:
        """Adds to the facts how scores are computed from a model's layers; the scores never select a layer."""
        depth = self.start.config.num_hidden_layers
        layer, layers, rule = reported_layer(self.recipe.layer, self.recipe.layers, depth)
        selection = {"rule": rule, "data": None}
        data.protocol.update(self.method(), layer=layer, layers=layers, depth=depth, selection=selection)
        return data

    @abstractmethod
    def method(self) -> Facts:
        """Returns `method`, `methods` (options by name) and further facts about how vectors are compared."""

    def build(self, seed: int, data: PairData) -> Any:
        path, _, tokenizer, identity = self.start
        trusts, dtype = self.recipe.trust_remote_code, DTYPES[self.recipe.precision]
        with main_first():
            model = load_whole(AutoModel, path, identity["folder"], trusts, dtype=dtype)
        return self.reader(model.to(PartialState().device), tokenizer)

    @abstractmethod
    def reader(self, encoder: torch.nn.Module, tokenizer: Any) -> Any:
        """Returns the object that computes vectors or links with an encoder; its `states.model` is the encoder."""

    @abstractmethod
    def evaluate(self, name: str, pair: Any, reader: Any, facts: Facts) -> Found:
        """Scores a pair of languages."""

    def run_seed(self, seed: int, model: Any, data: PairData, folder: Path, evaluate: bool = True) -> Record:
        """Evaluates the pairs of languages in all processes; the main process writes all results."""
        state, facts = PartialState(), data.protocol
        module, version = self.metric  # here all processes meet: they wait for each other when loading a metric

        def work() -> dict[str, Found]:
            found = {}
            names = list(data.pairs)
            if self.divides_pairs:
                names = names[state.process_index :: state.num_processes]
            for name in names:
                print(f"{name}: layers {', '.join(map(str, facts['layers']))}")
                scores, counts, rows = self.evaluate(name, data.pairs[name], model, facts)
                found[name] = [{"language": name, **score} for score in scores], counts, rows
            return found

        by_pair = {name: found for of_process in from_all(work) for name, found in of_process.items()}
        found = {name: by_pair[name] for name in data.pairs}
        record: Record = {
            "seed": seed,
            "parameters": sum(parameter.numel() for parameter in model.states.model.parameters()),
            "metric": {"name": self.recipe.main_score, "module": module, "version": version},
            "scores": [score for scores, _, _ in found.values() for score in scores],
            "counts": {name: counts for name, (_, counts, _) in found.items()},
        }
        if state.is_main_process:
            finish_seed(folder, record, {name: rows for name, (_, _, rows) in found.items() if rows is not None})
        state.wait_for_everyone()
        return record

    def fields(self, facts: Facts, records: list[Record]) -> dict[str, Any]:
        facts["counts"] = records[0]["counts"]
        return {
            "setting": "feature",
            "hyperparameters": {"batch_size": self.recipe.batch_size, "precision": self.recipe.precision},
        }


def facts_of(entries: list[Facts], rows: dict[str, int], chance: Facts, **own: Any) -> Facts:
    """The facts of evaluated tables, whose gold pairs are counted by pair of languages, and those of the kind."""
    evaluated = {"evaluation_data": entries, "evaluated_rows": rows, "chance": chance}
    return {"training_data": [], "training_rows": 0, **evaluated, **own}


class SentenceTask(VectorTask[S]):
    """Sentences, compared by their vectors."""

    divides_pairs = False  # but texts and searches

    def method(self) -> Facts:
        pooling = self.recipe.pooling
        return {"method": pooling, "methods": {pooling: {}}, "pooling": pooling, "similarity": "cosine"}

    def reader(self, encoder: torch.nn.Module, tokenizer: Any) -> SentenceEncoder:
        recipe = self.recipe
        return SentenceEncoder(encoder, tokenizer, recipe.batch_size, recipe.max_length, recipe.pooling)

    def fields(self, facts: Facts, records: list[Record]) -> dict[str, Any]:
        counts = records[0]["counts"]
        facts["max_length"] = next(iter(counts.values()))["max_length"]
        facts["cut_texts"] = {pair: of["cut"] for pair, of in counts.items()}
        return super().fields(facts, records)


def reported_layer(layer: int | str | None, layers: list[int], depth: int) -> tuple[int, list[int], str]:
    """Of a model of `depth` layers: the reported one, all that are scored, and the rule that chose it.

    `layer` and `layers` are those of a recipe. Raises ValueError for layers that the model does not have, and where the
    reported one is not scored.
    """
    relative = {
        None: (default_layer(depth), "three fifths of the layers"),
        "middle": (depth // 2, "the middle layer"),
        "two_thirds": (round(2 * depth / 3), "two thirds of the layers"),  # XLM-Align, Table 2: 8 of 12
    }
    chosen, rule = relative.get(layer, (layer, "named in the recipe"))
    scored = sorted(set(layers)) or list(range(depth + 1))
    if chosen not in scored or not 0 <= min(scored) <= max(scored) <= depth:
        raise ValueError(
            f"layers is {layers}, and the layer that is reported is {chosen} ({rule}). Give layers from 0 (the "
            f"embeddings) to {depth}, among them the reported one, or name another one with `layer`."
        )
    return chosen, scored, rule
