"""Word alignment: sentences with links made by hand, checked; and the scores of a model's vectors against them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import AutoModel

from common.provenance import write_json
from common.tables import Table, resolve_hub_path, table_fingerprint
from finetuning.alignment_files import Gold, describe_left_out, fit_gold, read_gold
from finetuning.alignment_pairs import PairReader
from finetuning.alignment_sweep import position_links, score, sweep
from finetuning.checkpoints import describe_model, load_pretrained
from finetuning.run_folder import RunFolder
from finetuning.seeds import load_metric
from finetuning.word_alignment_recipe import SEED, AlignedPairs, WordAlignmentRecipe
from modeling.optimal_transport import METHOD_OPTIONS
from modeling.word_alignment import WordAligner

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class AnnotatedPairs:
    """Sentences of a pair of languages, as lists of words, and the gold links of those that have any."""

    sentences: list[tuple[list[str], list[str]]]
    gold: dict[int, Gold]


@dataclass
class AlignmentData:
    """What is evaluated, by pair of languages; how it was read, for results.json; and what a reader must be told."""

    pairs: dict[str, AnnotatedPairs]
    protocol: dict[str, Any]
    warnings: list[str]


@dataclass
class SeedModel:
    """A model to read vectors from, before its weights are loaded."""

    path: str
    config: Any
    tokenizer: Any
    identity: dict[str, Any]


def read(recipe: WordAlignmentRecipe) -> AlignmentData:
    """Reads and checks sentences and gold links of every pair, before a model is loaded.

    Gold links past the words of their sentence are left out, counted and listed; sentences that the gold file does not
    name are not scored.

    Raises ValueError for files that are missing or cannot be read, sides of unequal length, gold in no known format, of
    an unknown base or for other sentences, and a pair without a gold link.
    """
    pairs, entries, warnings = {}, [], []
    for pair in recipe.pairs:
        files = [_file(pair, name, recipe.hub_root) for name in (pair.source, pair.target) if name is not None]
        gold_file = _file(pair, pair.gold, recipe.hub_root)
        sentences = [tuple(_words(side) for side in sides) for sides in PairReader(files)]
        links = read_gold(gold_file, pair.gold_format, pair.gold_base)
        gold, left_out = fit_gold(links, [(len(source), len(target)) for source, target in sentences], gold_file)
        if not any(of_sentence.possible for of_sentence in gold.values()):
            raise ValueError(
                f"{gold_file} has no link for the sentences of {pair.name}. Nothing can be scored. Check that it is "
                "the file of links."
            )
        pairs[pair.name] = AnnotatedPairs(sentences, gold)
        if left_out:
            warnings.append(f"{pair.name}: {describe_left_out(left_out, Path(gold_file).name)}")
        if missing := len(sentences) - len(gold):
            warnings.append(f"{pair.name}: {missing} of {len(sentences)} sentences have no gold and were not scored")
        if pair.note:
            warnings.append(pair.note)
        entries.append(
            {
                "path": pair.path or str(Path(pair.gold).parent),
                "config": pair.gold if pair.path else Path(pair.gold).name,
                "split": "test",
                "languages": [pair.name],
                "rows": len(gold),
                "fingerprint": "+".join(_fingerprint(file) for file in (*files, gold_file)),
                "gold": {
                    "format": pair.gold_format,
                    "base": pair.gold_base,
                    "fingerprint": _fingerprint(gold_file),
                    "sure_links": sum(len(of_sentence.sure) for of_sentence in gold.values()),
                    "possible_links": sum(len(of_sentence.possible) for of_sentence in gold.values()),
                    "left_out": left_out,
                    "sentences_without_gold": missing,
                },
            }
        )
    protocol = {
        "training_data": [],
        "training_rows": 0,
        "evaluation_data": entries,
        "evaluated_split": "test",
        "evaluated_rows": {name: len(pair.gold) for name, pair in pairs.items()},
        "by_position": {name: _chance_level(pair) for name, pair in pairs.items()},
    }
    return AlignmentData(pairs, protocol, warnings)


def _chance_level(pair: AnnotatedPairs) -> dict[str, float]:
    """Scores of links that are drawn along the diagonal."""
    return score({n: position_links(*map(len, pair.sentences[n])) for n in pair.gold}, pair.gold)


def _file(pair: AlignedPairs, name: str, hub_root: str | None) -> str:
    if pair.path is None:
        return name
    folder = Path(resolve_hub_path(pair.path, hub_root))
    if not folder.is_dir():
        root = f"hub_root is {hub_root}" if hub_root else "hub_root is not set"
        raise ValueError(
            f"{pair.name}: {pair.path} is no folder, relative to {Path.cwd()} or as <owner>/<name> under hub_root "
            f"({root}). The files of sentences and links lie in it. Correct path, or set hub_root."
        )
    return str(folder / name)


def _words(side: str | list[str]) -> list[str]:
    return side.split() if isinstance(side, str) else side


def _fingerprint(file: str) -> str:
    return table_fingerprint(Table(file, format="text"), None, None)


def describe_models(recipe: WordAlignmentRecipe) -> dict[int, SeedModel]:
    """The model of each seed: one for all, or that for which `{seed}` stands.

    Raises ValueError for a model that cannot be found or used, for a layer that is not there, and for models of
    different depth.
    """
    models = {}
    for seed in recipe.seeds:
        name = recipe.model.replace(SEED, str(seed))
        models[seed] = SeedModel(*describe_model(name, recipe.tokenizer, recipe.hub_root))
    depths = {seed: model.config.num_hidden_layers for seed, model in models.items()}
    first = depths[recipe.seeds[0]]
    if len(set(depths.values())) > 1:
        raise ValueError(
            f"The models of seeds {list(depths)} have {list(depths.values())} layers. A mean by layer is of models "
            "of one depth. Evaluate each kind in an output_dir of its own, and bring them together by compare_with."
        )
    for field, layers in (("layer", [recipe.layer] if recipe.layer is not None else []), ("layers", recipe.layers)):
        if beyond := [layer for layer in layers if not 0 <= layer <= first]:
            raise ValueError(
                f"{field} has {beyond[0]}, and {recipe.model} has {first} layers. There is no such state. Give 0 (the "
                f"embeddings) to {first}."
            )
    return models


def complete_protocol(data: AlignmentData, recipe: WordAlignmentRecipe, depth: int) -> None:
    """Adds to the protocol how links are read from a model of `depth` layers, and which layer is reported."""
    layer = round(2 * depth / 3) if recipe.layer is None else recipe.layer
    layers = sorted(set(recipe.layers)) or list(range(depth + 1))
    if layer not in layers:
        raise ValueError(
            f"layers is {recipe.layers}, and the layer that is reported is {layer} of {depth}, at two thirds. It has "
            "to be scored. Add it, or name another one by `layer`."
        )
    data.protocol |= {
        "method": recipe.methods[0],
        "options": METHOD_OPTIONS[recipe.methods[0]] | recipe.options.get(recipe.methods[0], {}),
        "methods": {name: METHOD_OPTIONS[name] | recipe.options.get(name, {}) for name in recipe.methods},
        "encoding": recipe.encoding,
        "layer": layer,
        "layers": layers,
        "depth": depth,
        "selection": {
            "rule": "two thirds of the layers" if recipe.layer is None else "named in the recipe",
            "data": None,  # no layer is ever chosen by the scores
        },
    }


def load_aligner(recipe: WordAlignmentRecipe, model: SeedModel) -> WordAligner:
    """The aligner of one seed's model. Raises ValueError for weights that cannot be read and options of no method."""
    with PartialState().main_process_first():
        encoder = load_pretrained(AutoModel, model.path, model.identity["folder"], dtype=DTYPES[recipe.precision])
    method = recipe.methods[0]
    aligner = WordAligner(
        encoder.to(PartialState().device),
        model.tokenizer,
        method=method,
        encoding=recipe.encoding,
        batch_size=recipe.batch_size,
        **recipe.options.get(method, {}),
    )
    return aligner


def run_seed(seed: int, data: AlignmentData, aligner: WordAligner, model: SeedModel, folder: Path) -> dict[str, Any]:
    """Scores every pair, layer and method by one forward pass a pair; leaves scores.json in the folder of the seed.

    The main process does it; others wait.
    """
    state = PartialState()
    record: dict[str, Any] = {}
    if state.is_main_process:
        protocol = data.protocol
        scores = {}
        for name, pair in data.pairs.items():
            print(f"Seed {seed}: {name}, {len(pair.gold)} sentences, layers {_span(protocol['layers'])}")
            found = sweep(aligner, pair.sentences, pair.gold, protocol["layers"], protocol["methods"])
            scores[name] = {
                method: {str(layer): of_layer for layer, of_layer in by_layer.items()}  # as JSON has them
                for method, by_layer in found.items()
            }
        metric = load_metric("aer")
        record = {
            "seed": seed,
            "model": model.identity,
            "parameters": sum(parameter.numel() for parameter in aligner.states.model.parameters()),
            "metric": {"name": "aer", "module": metric.name, "version": metric.version},
            "scores": scores,
        }
        write_json(folder / "scores.json", record)  # from here on the seed counts as finished
    state.wait_for_everyone()
    return record


def identity_of(recipe: WordAlignmentRecipe, models: dict[int, SeedModel]) -> dict[str, Any]:
    """What run.json says of the model; of a model a seed, each seed's own record has the fingerprint."""
    identity = next(iter(models.values())).identity
    return {**identity, "folder": recipe.model, "fingerprint": None} if SEED in recipe.model else identity


def check_finished(folder: RunFolder, models: dict[int, SeedModel]) -> None:
    """Raises ValueError where a finished seed was scored with other weights than its model has now."""
    for seed, model in models.items():
        then, now = (
            (folder.finished(seed) or {}).get("model", model.identity)["fingerprint"],
            model.identity["fingerprint"],
        )
        if then != now:
            raise ValueError(
                f"The weights of {model.identity['folder']} have changed since seed {seed} was scored in "
                f"{folder.path}: {then[:15]} -> {now[:15]}. Its figures would be of two models. Restore "
                "the model, or name another folder."
            )


def _span(layers: list[int]) -> str:
    return f"{layers[0]} to {layers[-1]}" if layers == list(range(layers[0], layers[-1] + 1)) else str(layers)[1:-1]
