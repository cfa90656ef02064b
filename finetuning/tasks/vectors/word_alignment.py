"""Word alignment: links words with the vectors of a model, by layer and method, and compares them with gold links."""

from pathlib import Path
from typing import Any

import torch

from crosslingual_zoo.finetuning.align.gold import Gold, describe_fit, fit_gold, read_gold
from crosslingual_zoo.finetuning.align.pairs import PairReader, Side
from crosslingual_zoo.finetuning.align.score import score, sweep
from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.finetuning.tasks.base import Facts
from crosslingual_zoo.finetuning.tasks.vectors.base import Found, ReadPair, VectorTask
from crosslingual_zoo.finetuning.tasks.vectors.recipe import AlignedPairs, WordAlignmentRecipe
from crosslingual_zoo.modeling.optimal_transport import METHOD_OPTIONS
from crosslingual_zoo.modeling.word_alignment import WordAligner
from crosslingual_zoo.zoo_core.tables import MissingTable, Table, table_fingerprint

# sentences of a language pair as lists of words, and the gold links by sentence number
AnnotatedPairs = tuple[list[tuple[Side, Side]], dict[int, Gold]]


class WordAlignmentTask(VectorTask[WordAlignmentRecipe]):
    """Links words with the vectors of a model, and compares the links with gold links."""

    @property
    def metric(self) -> tuple[str, str]:
        return "aer", load_metric("aer").version

    def read_pair(self, pair: AlignedPairs) -> ReadPair:
        """Leaves out gold links past the words of their sentence; sentences without gold are not scored."""
        files = pair.files(self.recipe.hub_root)
        for file in files:
            if not file.is_file():
                raise MissingTable(f"File {file} of {pair.name} was not found. Check the recipe, and hub_root.")
        *texts, gold_file = map(str, files)
        sentences = list(PairReader(texts, split=False))
        links = read_gold(gold_file, pair.gold_format, pair.gold_base)
        lengths = [(len(source), len(target)) for source, target in sentences]
        gold, left_out = fit_gold(links, lengths, gold_file)
        lines = describe_fit(links, gold, left_out, Path(gold_file).name)
        without_gold = len(sentences) - len(gold)
        if without_gold:
            lines.append(f"{without_gold} of {len(sentences)} sentences have no gold and were not scored")
        gold = part_of(gold, pair.sentences)
        sure = sum(len(links_of_sentence.sure) for links_of_sentence in gold.values())
        possible = sum(len(links_of_sentence.possible) for links_of_sentence in gold.values())
        if not possible:
            raise ValueError(f"{gold_file} has no link for the sentences of {pair.name}. Is it the file of links?")
        entry = identity_of(pair, texts, gold_file)
        entry |= {"rows": len(gold), "sure_links": sure, "possible_links": possible, "left_out": left_out}
        return ReadPair((sentences, gold), entry, [f"{pair.name}: {line}" for line in lines])

    def facts(self, pairs: dict[str, AnnotatedPairs]) -> Facts:
        return {
            "evaluated_rows": {name: len(gold) for name, (_, gold) in pairs.items()},
            "chance": {name: chance_level(sentences, gold) for name, (sentences, gold) in pairs.items()},
        }

    def method(self) -> Facts:
        methods = {name: METHOD_OPTIONS[name] for name in self.recipe.methods}
        first = self.recipe.methods[0]
        return {"method": first, "options": methods[first], "methods": methods}

    def reader(self, encoder: torch.nn.Module, tokenizer: Any) -> WordAligner:
        return WordAligner(encoder, tokenizer, method=self.recipe.methods[0], batch_size=self.recipe.batch_size)

    def evaluate(self, name: str, pair: AnnotatedPairs, aligner: WordAligner, facts: Facts) -> Found:
        """Every layer and method of a pair come from one forward pass."""
        sentences, gold = pair
        rows = []
        for method, by_layer in sweep(aligner, sentences, gold, facts["layers"], facts["methods"]).items():
            for layer, scores in by_layer.items():
                for metric, value in scores.items():
                    rows.append({"method": method, "layer": layer, "metric": metric, "value": value})
        return rows, {}, None


def part_of(gold: dict[int, Gold], sentences: str) -> dict[int, Gold]:
    """The gold links of `all`, `even` or `odd` sentences, counted from 0."""
    if sentences == "all":
        return gold
    remainder = 1 if sentences == "odd" else 0
    return {number: links for number, links in gold.items() if number % 2 == remainder}


def identity_of(pair: AlignedPairs, files: list[str], gold_file: str) -> Facts:
    """What a pair of languages was read from."""
    split = "test"
    if pair.sentences != "all":
        split = f"test, {pair.sentences} sentences"
    tables = [Table(file, format="text") for file in (*files, gold_file)]
    return {
        "path": pair.path or str(Path(pair.gold).parent),
        "config": pair.gold if pair.path else Path(gold_file).name,
        "split": split,
        "languages": [pair.name],
        "fingerprint": "+".join(table_fingerprint(table, None, None) for table in tables),
    }


def chance_level(sentences: list[tuple[Side, Side]], gold: dict[int, Gold]) -> dict[str, float]:
    """Returns the scores of links along the diagonal."""
    links = {}
    for number in gold:
        source, target = sentences[number]
        links[number] = position_links(len(source), len(target))
    return score(links, gold)


def position_links(source: int, target: int) -> list[tuple[int, int]]:
    """Links of each of `source` words to the word at the same share of a target of that many words: chance level."""
    if not target:
        return []
    return [(i, round(i * (target - 1) / max(source - 1, 1))) for i in range(source)]
