"""Tasks that train nothing: they evaluate the vectors of an unchanged model, by layer."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from accelerate import PartialState
from transformers import AutoModel

from crosslingual_zoo.finetuning.data.task_tables import Missing, PairData, missing_lines, noted_if_missing
from crosslingual_zoo.finetuning.tasks.base import Facts, Scored, Task
from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder
from crosslingual_zoo.finetuning.tasks.vectors.recipe import SentenceRecipe, VectorRecipe, expanded
from crosslingual_zoo.modeling.checkpoints import load_whole
from crosslingual_zoo.modeling.layer_states import default_layer
from crosslingual_zoo.zoo_core.processes import from_all, main_first
from crosslingual_zoo.zoo_core.tables import MissingTable

# scores of a pair of languages (method, layer, metric, value), counts, and the rows of its predictions
Found = tuple[list[Facts], Facts, list[Facts] | None]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class ReadPair(NamedTuple):
    """What was read of a pair of languages."""

    content: Any  # for the evaluation
    entry: Facts  # the tables, for results.json
    warnings: list[str]


R = TypeVar("R", bound=VectorRecipe)
S = TypeVar("S", bound=SentenceRecipe)


class VectorTask(Task[R]):
    """Scores of every layer, of every pair of languages by itself."""

    metric: tuple[str, str]  # name and version of what computes the scores
    divides_pairs: ClassVar[bool] = True  # among the processes; else they evaluate each pair of languages together

    def read(self) -> PairData:
        pairs = {}
        entries = []
        warnings = []
        missing: Missing = {}
        for pair in expanded(self.recipe.pairs):
            with noted_if_missing(self.recipe, "pairs", pair.name, missing):
                read = self.read_pair(pair)
                pairs[pair.name] = read.content
                entries.append(read.entry)
                warnings += read.warnings
                if pair.note:
                    warnings.append(pair.note)
        if not pairs:
            raise MissingTable("; ".join(missing_lines(missing)))
        facts = {"training_data": [], "training_rows": 0, "evaluation_data": entries, **self.facts(pairs)}
        return PairData(facts, list(dict.fromkeys([*missing_lines(missing), *warnings])), pairs)

    @abstractmethod
    def read_pair(self, pair: Any) -> ReadPair:
        """Reads and checks the tables of a pair of languages."""

    @abstractmethod
    def facts(self, pairs: dict[str, Any]) -> Facts:
        """Returns `evaluated_rows` and `chance` by pair of languages, and further facts of what was read."""

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

    def build(self, seed: int, data: PairData) -> torch.nn.Module:
        trusts = self.recipe.trust_remote_code
        dtype = DTYPES[self.recipe.precision]
        with main_first():
            model = load_whole(AutoModel, self.start.path, self.start.identity["folder"], trusts, dtype=dtype)
        return model.to(PartialState().device)

    @abstractmethod
    def reader(self, encoder: torch.nn.Module, tokenizer: Any) -> Any:
        """Returns the object that computes vectors or links with an encoder."""

    @abstractmethod
    def evaluate(self, name: str, pair: Any, reader: Any, facts: Facts) -> Found:
        """Scores a pair of languages."""

    def score(self, model: torch.nn.Module, data: PairData) -> Scored:
        """Evaluates the pairs of languages in all processes; all get all results."""
        state = PartialState()
        reader = self.reader(model, self.start.tokenizer)
        module, version = self.metric  # here all processes meet: they wait for each other when loading a metric

        def evaluate_share() -> dict[str, Found]:
            results = {}
            names = list(data.pairs)
            if self.divides_pairs:
                names = names[state.process_index :: state.num_processes]
            for name in names:
                print(f"{name}: layers {', '.join(map(str, data.protocol['layers']))}")
                results[name] = self.evaluate(name, data.pairs[name], reader, data.protocol)
            return results

        results_by_pair: dict[str, Found] = {}
        for results_of_process in from_all(evaluate_share):
            results_by_pair |= results_of_process
        scores = []
        counts = {}
        predictions = {}
        for name in data.pairs:
            scores_of_pair, counts[name], rows = results_by_pair[name]
            scores += [{"language": name, **score} for score in scores_of_pair]
            if rows is not None:
                predictions[name] = rows
        return Scored(scores, predictions, {"module": module, "version": version}, self.facts_of_counts(counts))

    def facts_of_counts(self, counts: dict[str, Facts]) -> Facts:
        """What was counted in the evaluation, by pair of languages."""
        return {"counts": counts}


class SentenceTask(VectorTask[S]):
    """Sentences, compared by their vectors."""

    divides_pairs = False  # but texts and searches

    def method(self) -> Facts:
        pooling = self.recipe.pooling
        return {"method": pooling, "methods": {pooling: {}}, "pooling": pooling, "similarity": "cosine"}

    def reader(self, encoder: torch.nn.Module, tokenizer: Any) -> SentenceEncoder:
        recipe = self.recipe
        return SentenceEncoder(encoder, tokenizer, recipe.batch_size, recipe.max_length, recipe.pooling)

    def facts_of_counts(self, counts: dict[str, Facts]) -> Facts:
        """Adds the length at which texts are cut, and how many are."""
        first = next(iter(counts.values()))
        cut_texts = {pair: count["cut"] for pair, count in counts.items()}
        return {"counts": counts, "max_length": first["max_length"], "cut_texts": cut_texts}


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
