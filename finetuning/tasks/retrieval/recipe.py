"""The retrieval recipe: every field that `finetuning/run.py` reads where `kind` is retrieval.

Retrieval finds the translation of each sentence in another set of sentences, with the vectors of an unchanged model.
Nothing is trained.
"""

from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal

from omegaconf import MISSING

from finetuning.recipe import Published
from finetuning.tasks.features.recipe import FeatureRecipe, NamedPair
from finetuning.tasks.translation.recipe import EvaluationPairs
from zoo_core.recipes import Positive, option

PLACE = "{language}"
POOLINGS = {
    "mean": "mean of its states, without those of special tokens",
    "mean_with_special_tokens": "mean of its states, counting those of special tokens",
    "cls": "state of its first token, <s>",
}
Pooling = Literal["mean", "mean_with_special_tokens", "cls"]


@dataclass
class RetrievalPairs(EvaluationPairs, NamedPair):
    """Sentences and their translations; `{language}` in any text field is replaced by each of `languages`."""

    source_language: str = option(MISSING, "language of the source column, such as de or '{language}'")
    target_language: str = option(MISSING, "language of the target column")
    languages: list[str] = option(
        [], "values of `{language}` in the text fields, also of `target`; each makes one pair of languages"
    )
    language_names: dict[str, str] = option(
        {},
        "value of `{language}` if it is not the language code, as in {sw: swh}; source_language and "
        "target_language always have the code",
    )


@dataclass
class SentenceRecipe(FeatureRecipe):
    """Evaluation of sentence vectors, layer by layer, on pairs of languages."""

    task_type = "sentence-similarity"
    max_length: Positive | None = option(
        None,
        "tokens of a sentence with special tokens; longer ones are cut, and the results count them; default: the "
        "model's maximum",
    )
    pooling: Pooling = option(
        "mean",
        "vector of a sentence: the mean of its states, without or with those of special tokens, or cls: the state of "
        "its first token, <s>",
    )

    @property
    def pair_names(self) -> list[str]:
        return [pairs.name for pairs in expanded(self.pairs)]


@dataclass
class RetrievalRecipe(SentenceRecipe):
    """Retrieval of translations with a model's vectors, layer by layer, in both directions."""

    main_score = "accuracy"
    measures = "finding the translation of a sentence among many"
    kind: Literal["retrieval"] = option("retrieval", "kind of task")
    pairs: list[RetrievalPairs] = option([], "pairs of languages to evaluate, each separately")
    published: list[Published] = option([], "published scores to print next to ours")

    def check(self) -> None:
        super().check()
        for position, table in enumerate(self.pairs):
            name = f"pairs.{position}"
            if table.target is None and table.source_column == table.target_column:
                raise ValueError(
                    f"{name} has {table.source_column} for source_column and target_column of one table. Name "
                    "the column of the other language, or the table of the translations as `target`."
                )
            if table.target is None and table.join_on is not None:
                raise ValueError(
                    f"{name}.join_on is {table.join_on}, and {name} has one table, whose columns need no join. Leave "
                    "join_on out, or name the table of the translations as `target`."
                )


def expanded(tables: list[Any]) -> list[Any]:
    """Returns a table for each pair of languages, with the language in place of `{language}`."""
    found = []
    for position, table in enumerate(tables):
        is_open = _filled(table, "") != table
        if is_open != bool(table.languages):
            had, lacks = ("a place for the language", "no languages") if is_open else ("languages", "no place for them")
            raise ValueError(
                f"pairs.{position} has {had} and {lacks}. Write {PLACE} in path, config or a column, and list its "
                f"values, as in pairs.{position}.languages=[de, fr]."
            )
        found += [_of_language(table, language) for language in table.languages] if is_open else [table]
    return found


def _of_language(table: Any, language: str) -> Any:
    """Returns the table of one language: its code in language fields, and elsewhere its entry in `language_names`."""
    named = _filled(table, getattr(table, "language_names", {}).get(language, language))
    languages = {name: getattr(table, name).replace(PLACE, language) for name in ("source_language", "target_language")}
    return replace(named, **languages)


def _filled(table: Any, language: str) -> Any:
    """Returns the table, with its inner tables, with the language in place of `{language}`."""
    texts = {name: value for name, value in vars(table).items() if isinstance(value, str)}
    changes: dict[str, Any] = {name: text.replace(PLACE, language) for name, text in texts.items() if PLACE in text}
    within = {name: value for name, value in vars(table).items() if is_dataclass(value)}
    return replace(table, **changes, **{name: _filled(value, language) for name, value in within.items()})
