"""Word alignment: sentences with links made by hand, checked; and the scores of a model's vectors against them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetuning.align.gold import Gold, describe_left_out, describe_order, fit_gold, read_gold
from finetuning.align.pairs import PairReader
from finetuning.seeds import Predictions, metric_facts
from finetuning.tasks.features.models import SeedModel, layer_protocol, load_encoder, record_seed, span
from finetuning.tasks.word_alignment.layers import position_links, score, sweep
from finetuning.tasks.word_alignment.recipe import AlignedPairs, WordAlignmentRecipe
from modeling.optimal_transport import METHOD_OPTIONS
from modeling.word_alignment import WordAligner
from zoo_core.tables import Table, resolve_hub_path, table_fingerprint


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


def read(recipe: WordAlignmentRecipe) -> AlignmentData:
    """Reads and checks sentences and gold links of every pair, before a model is loaded.

    Gold links past the words of their sentence are left out, counted and listed; sentences that the gold file does not
    name are not scored.
    """
    pairs, entries, warnings = {}, [], []
    for pair in recipe.pairs:
        *files, gold_file = _files(pair, recipe.hub_root)
        sentences = list(PairReader(files, split=False))
        links = read_gold(gold_file, pair.gold_format, pair.gold_base)
        gold, left_out = fit_gold(links, [(len(source), len(target)) for source, target in sentences], gold_file)
        name = Path(gold_file).name
        said = [describe_order(links, gold, name), describe_left_out(left_out, name)]
        warnings += [f"{pair.name}: {one}" for one in said if one]
        if missing := len(sentences) - len(gold):
            warnings.append(f"{pair.name}: {missing} of {len(sentences)} sentences have no gold and were not scored")
        half = "" if pair.sentences == "all" else f", {pair.sentences} sentences"
        if half:
            gold = {number: links for number, links in gold.items() if number % 2 == (pair.sentences == "odd")}
        if not any(of_sentence.possible for of_sentence in gold.values()):
            raise ValueError(
                f"{gold_file} has no link for the sentences of {pair.name}. Check that it is the file of links."
            )
        if pair.note:
            warnings.append(pair.note)
        pairs[pair.name] = AnnotatedPairs(sentences, gold)
        entries.append(
            {
                "path": pair.path or str(Path(pair.gold).parent),
                "config": pair.gold if pair.path else Path(pair.gold).name,
                "split": f"test{half}",
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


def _files(pair: AlignedPairs, hub_root: str | None) -> list[str]:
    """Source, target (if it has a file) and gold. Raises ValueError for a folder that is not there."""
    if pair.path is not None and not Path(resolve_hub_path(pair.path, hub_root)).is_dir():
        root = f"hub_root is {hub_root}" if hub_root else "hub_root is not set"
        raise ValueError(
            f"{pair.name}: {pair.path} is no folder, relative to {Path.cwd()} or as <owner>/<name> under hub_root "
            f"({root}). Correct path, or set hub_root."
        )
    return [str(file) for file in pair.files(hub_root)]


def _fingerprint(file: str) -> str:
    return table_fingerprint(Table(file, format="text"), None, None)


def complete_protocol(data: AlignmentData, recipe: WordAlignmentRecipe, depth: int) -> None:
    """Adds to the protocol how links are read from a model of `depth` layers, and which layer is reported."""
    data.protocol |= {
        "method": recipe.methods[0],
        "options": METHOD_OPTIONS[recipe.methods[0]] | recipe.options.get(recipe.methods[0], {}),
        "methods": {name: METHOD_OPTIONS[name] | recipe.options.get(name, {}) for name in recipe.methods},
        "encoding": recipe.encoding,
        **layer_protocol(recipe, depth),
    }


def load(recipe: WordAlignmentRecipe, model: SeedModel) -> WordAligner:
    """The aligner of one seed's model. Raises ValueError for weights that cannot be read and options of no method."""
    method = recipe.methods[0]
    return WordAligner(
        load_encoder(recipe, model),
        model.tokenizer,
        method=method,
        encoding=recipe.encoding,
        batch_size=recipe.batch_size,
        **recipe.options.get(method, {}),
    )


def run_seed(seed: int, data: AlignmentData, aligner: WordAligner, model: SeedModel, folder: Path) -> dict[str, Any]:
    """Scores every pair, layer and method by one forward pass a pair; leaves scores.json in the folder of the seed."""
    protocol = data.protocol

    def evaluate() -> tuple[dict[str, Any], Predictions]:
        scores = {}
        for name, pair in data.pairs.items():
            print(f"Seed {seed}: {name}, {len(pair.gold)} sentences, layers {span(protocol['layers'])}")
            found = sweep(aligner, pair.sentences, pair.gold, protocol["layers"], protocol["methods"])
            scores[name] = {
                method: {str(layer): of_layer for layer, of_layer in by_layer.items()}  # as JSON has them
                for method, by_layer in found.items()
            }
        return {"metric": metric_facts("aer", "aer"), "scores": scores}, {}

    return record_seed(seed, model, aligner.states.model, folder, "aer", evaluate)
