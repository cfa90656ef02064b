"""Word alignment: reads and checks sentences with gold links, and scores a model's links."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from finetuning.align.gold import Gold, describe_fit, fit_gold, read_gold
from finetuning.align.pairs import PairReader
from finetuning.data.task_tables import PairData
from finetuning.page import table_names
from finetuning.results import Protocol, Results
from finetuning.seeds import Predictions
from finetuning.tasks.base import Record
from finetuning.tasks.features.task import FeatureTask, span
from finetuning.tasks.word_alignment.layers import BY_POSITION, METRICS, position_links, score, sweep
from finetuning.tasks.word_alignment.recipe import AlignedPairs, WordAlignmentRecipe
from modeling.optimal_transport import METHOD_OPTIONS
from modeling.word_alignment import WordAligner
from zoo_core.tables import Table, resolve_hub_path, table_fingerprint

METHOD_NAMES = {
    "ot_words": "the default, likely pairs of words by optimal transport",
    "ot": "XLM-Align's aligner, mutually nearest tokens after optimal transport",
    "ot_itermax": "XLM-Align's labels for training, the same repeated",
    "itermax": "SimAlign's, mutually nearest tokens by cosine, repeated",
    "mutual": "SimAlign's, mutually nearest tokens by cosine",
    "softmax": "awesome-align's, tokens above a threshold after softmax in both directions",
}
ENCODED = {"separate": "separate, one sentence per input", "joint": "joint, both sentences in one input"}


@dataclass
class AnnotatedPairs:
    """Sentences of a pair of languages, as lists of words, and the gold links of those that have any."""

    sentences: list[tuple[list[str], list[str]]]
    gold: dict[int, Gold]


class WordAlignmentTask(FeatureTask[WordAlignmentRecipe]):
    """Links words with the vectors of a model, and compares the links with gold links."""

    is_higher_better, metrics = False, tuple(METRICS)
    metric = "aer"

    def read(self) -> PairData[AnnotatedPairs]:
        """Gold links past the words of their sentence are left out, counted and listed.

        Sentences that the gold file does not name are not scored.
        """
        pairs, entries, warnings = {}, [], []
        for pair in self.recipe.pairs:
            *files, gold_file = _files(pair, self.recipe.hub_root)
            sentences = list(PairReader(files, split=False))
            links = read_gold(gold_file, pair.gold_format, pair.gold_base)
            gold, left_out = fit_gold(links, [(len(source), len(target)) for source, target in sentences], gold_file)
            warnings += [f"{pair.name}: {one}" for one in describe_fit(links, gold, left_out, Path(gold_file).name)]
            if missing := len(sentences) - len(gold):
                warnings.append(
                    f"{pair.name}: {missing} of {len(sentences)} sentences have no gold and were not scored"
                )
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
        protocol = Protocol(
            training_data=[],
            training_rows=0,
            evaluation_data=entries,
            evaluated_split="test",
            evaluated_rows={name: len(pair.gold) for name, pair in pairs.items()},
            by_position={name: _chance_level(pair) for name, pair in pairs.items()},
        )
        return PairData(protocol, warnings, pairs)

    def describe_method(self, protocol: Protocol) -> None:
        methods = self.recipe.methods
        protocol.method, protocol.options = methods[0], METHOD_OPTIONS[methods[0]]
        protocol.methods = {name: METHOD_OPTIONS[name] for name in methods}
        protocol.encoding = self.recipe.encoding

    def reader(self, encoder: torch.nn.Module, tokenizer: Any) -> WordAligner:
        recipe = self.recipe
        options = dict(encoding=recipe.encoding, batch_size=recipe.batch_size)
        return WordAligner(encoder, tokenizer, method=recipe.methods[0], **options)

    def evaluate(self, seed: int, aligner: WordAligner, data: PairData[AnnotatedPairs]) -> tuple[Record, Predictions]:
        """Every layer and method of a pair come from one forward pass."""
        protocol, scores = data.protocol, {}
        for name, pair in data.pairs.items():
            print(f"Seed {seed}: {name}, {len(pair.gold)} sentences, layers {span(protocol.layers)}")
            found = sweep(aligner, pair.sentences, pair.gold, protocol.layers, protocol.methods)
            scores[name] = {
                method: {str(layer): of_layer for layer, of_layer in by_layer.items()}  # strings, as in JSON
                for method, by_layer in found.items()
            }
        return {"scores": scores}, {}

    def lines(self, results: Results) -> list[str]:
        protocol, metric = results.protocol, results.protocol.metric
        gold = [entry["gold"] for entry in protocol.evaluation_data]
        links = sum(entry["possible_links"] for entry in gold)
        sure, without = (sum(entry[name] for entry in gold) for name in ("sure_links", "sentences_without_gold"))
        past = sum(len(entry["left_out"]) for entry in gold)
        lines = [
            "setting: feature (no training); words are linked by their vectors at one layer",
            f"evaluated: {table_names(protocol.evaluation_data)} ({sum(protocol.evaluated_rows.values()):,} pairs with "
            f"{links:,} links by people, {sure:,} of them sure; links past the end of a sentence, not scored: {past}; "
            f"pairs without links, not scored: {without})",
            self.layer_line(protocol),
        ]
        for method, options in protocol.methods.items():
            shown = ", ".join(f"{name} {value}" for name, value in options.items())
            lines.append(f"{method}: {METHOD_NAMES[method]}" + (f" ({shown})" if shown else ""))
        return [
            *lines,
            f"encoding: {ENCODED[protocol.encoding]}; words are linked if any of their tokens are"
            + (" (not by ot_words)" if "ot_words" in protocol.methods else ""),
            f"guessing: links by {BY_POSITION}, each source word with the word at the same share of the target",
            "metric: AER, the alignment error rate: the share of wrong and missing links "
            f"({metric.name} {metric.version}), in percent; lower is better",
        ]

    def warnings(self, protocol: Protocol, records: list[Record]) -> list[str]:
        """Warns of seeds whose links are no better than links by position, by pair."""
        method, layer = protocol.method, str(protocol.layer)
        warnings = []
        for record in records:
            chance = {pair: scores["aer"] for pair, scores in protocol.by_position.items()}
            found = {pair: by_method[method][layer]["aer"] for pair, by_method in record["scores"].items()}
            if worse := [
                f"{pair} {aer:.1f} ({chance[pair]:.1f})" for pair, aer in found.items() if aer >= chance[pair]
            ]:
                warnings.append(
                    f"seed {record['seed']}: AER of {method} is no lower than that of links by position (in brackets): "
                    f"{', '.join(worse)}"
                )
        return warnings


def _chance_level(pair: AnnotatedPairs) -> dict[str, float]:
    """Returns the scores of links along the diagonal."""
    return score({n: position_links(*map(len, pair.sentences[n])) for n in pair.gold}, pair.gold)


def _files(pair: AlignedPairs, hub_root: str | None) -> list[str]:
    """Returns the files of source, target (if it has one) and gold. Raises ValueError for a missing folder."""
    if pair.path is not None and not Path(resolve_hub_path(pair.path, hub_root)).is_dir():
        root = f"hub_root is {hub_root}" if hub_root else "hub_root is not set"
        raise ValueError(
            f"{pair.name}: {pair.path} is no folder, relative to {Path.cwd()} or as <owner>/<name> under hub_root "
            f"({root}). Correct path, or set hub_root."
        )
    return [str(file) for file in pair.files(hub_root)]


def _fingerprint(file: str) -> str:
    return table_fingerprint(Table(file, format="text"), None, None)
