"""Word alignment: links words with the vectors of a model, by layer and method, and compares them with gold links."""

from pathlib import Path
from typing import Any

import torch

from crosslingual_zoo.finetuning.align.gold import Gold, describe_fit, fit_gold, read_gold
from crosslingual_zoo.finetuning.align.pairs import PairReader, Side
from crosslingual_zoo.finetuning.align.score import score, sweep
from crosslingual_zoo.finetuning.data.task_tables import PairData
from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.finetuning.tasks.base import Facts
from crosslingual_zoo.finetuning.tasks.vectors.base import Found, VectorTask, facts_of
from crosslingual_zoo.finetuning.tasks.vectors.recipe import WordAlignmentRecipe, expanded
from crosslingual_zoo.modeling.optimal_transport import METHOD_OPTIONS
from crosslingual_zoo.modeling.word_alignment import WordAligner
from crosslingual_zoo.zoo_core.tables import Table, table_fingerprint

# sentences of a language pair as lists of words, and the gold links by sentence number
AnnotatedPairs = tuple[list[tuple[Side, Side]], dict[int, Gold]]


class WordAlignmentTask(VectorTask[WordAlignmentRecipe]):
    """Links words with the vectors of a model, and compares the links with gold links."""

    @property
    def metric(self) -> tuple[str, str]:
        return "aer", load_metric("aer").version

    def read(self) -> PairData[AnnotatedPairs]:
        """Leaves out gold links past the words of their sentence; sentences without gold are not scored."""
        pairs, entries, warnings = {}, [], []
        for pair in expanded(self.recipe.pairs):
            *files, gold_file = map(str, pair.files(self.recipe.hub_root))
            sentences = list(PairReader(files, split=False))
            links = read_gold(gold_file, pair.gold_format, pair.gold_base)
            gold, left_out = fit_gold(links, [(len(source), len(target)) for source, target in sentences], gold_file)
            said, missing = describe_fit(links, gold, left_out, Path(gold_file).name), len(sentences) - len(gold)
            said += [f"{missing} of {len(sentences)} sentences have no gold and were not scored"] if missing else []
            warnings += [f"{pair.name}: {one}" for one in said]
            warnings += [pair.note] if pair.note else []
            if pair.sentences != "all":
                gold = {number: links for number, links in gold.items() if number % 2 == (pair.sentences == "odd")}
            if not any(of_sentence.possible for of_sentence in gold.values()):
                raise ValueError(f"{gold_file} has no link for the sentences of {pair.name}. Is it the file of links?")
            pairs[pair.name] = sentences, gold
            entries.append(
                {
                    "path": pair.path or str(Path(pair.gold).parent),
                    "config": pair.gold if pair.path else Path(gold_file).name,
                    "split": "test" if pair.sentences == "all" else f"test, {pair.sentences} sentences",
                    "languages": [pair.name],
                    "rows": len(gold),
                    "fingerprint": "+".join(
                        table_fingerprint(Table(file, format="text"), None, None) for file in (*files, gold_file)
                    ),
                    "sure_links": sum(len(of_sentence.sure) for of_sentence in gold.values()),
                    "possible_links": sum(len(of_sentence.possible) for of_sentence in gold.values()),
                    "left_out": left_out,
                }
            )
        rows = {name: len(gold) for name, (_, gold) in pairs.items()}
        facts = facts_of(entries, rows, {name: chance_level(*pair) for name, pair in pairs.items()})
        return PairData(facts, warnings, pairs)

    def method(self) -> Facts:
        methods, first = {name: METHOD_OPTIONS[name] for name in self.recipe.methods}, self.recipe.methods[0]
        return {"method": first, "options": methods[first], "methods": methods}

    def reader(self, encoder: torch.nn.Module, tokenizer: Any) -> WordAligner:
        return WordAligner(encoder, tokenizer, method=self.recipe.methods[0], batch_size=self.recipe.batch_size)

    def evaluate(self, name: str, pair: AnnotatedPairs, aligner: WordAligner, facts: Facts) -> Found:
        """Every layer and method of a pair come from one forward pass."""
        found = sweep(aligner, *pair, facts["layers"], facts["methods"])
        scores = [
            {"method": method, "layer": layer, "metric": metric, "value": value}
            for method, by_layer in found.items()
            for layer, scores in by_layer.items()
            for metric, value in scores.items()
        ]
        return scores, {}, None


def chance_level(sentences: list[tuple[Side, Side]], gold: dict[int, Gold]) -> dict[str, float]:
    """Returns the scores of links along the diagonal."""
    return score({number: position_links(*map(len, sentences[number])) for number in gold}, gold)


def position_links(source: int, target: int) -> list[tuple[int, int]]:
    """Links of each of `source` words to the word at the same share of a target of that many words: chance level."""
    if not target:
        return []
    return [(i, round(i * (target - 1) / max(source - 1, 1))) for i in range(source)]
