"""The corpora of a recipe, from its tables to token ids.

`load_corpora` makes a `Corpus` of each entry. sources.py opens the tables, tokenized.py tokenizes them once,
sampling.py chooses the rows, and batches.py makes batches of them.
"""

import logging

import numpy as np
from transformers import PreTrainedTokenizerBase

from pretraining.data.examples import Example
from pretraining.data.sampling import corpus_probabilities
from pretraining.data.sources import match_corpora, open_sources
from pretraining.data.stored import Corpus
from pretraining.data.tokenized import tokenized_column, tokenizer_fingerprint
from pretraining.recipe import Phase, Recipe
from pretraining.recipe_corpora import Bitext, Corpora, Monolingual, languages_of

logger = logging.getLogger(__name__)


def load_corpora(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, num_processes: int = 1) -> list[Corpus]:
    """Loads every corpus of the recipe, monolingual ones first. Text is tokenized once and kept on disk.

    Texts are cut into windows, and pairs are cut, to the largest max_length of the objectives that read them. The
    numbers of dropped, windowed, cut, unmatched and held-out rows are logged once for each corpus.

    Raises ValueError as `open_sources`, for a corpus without text, a pattern of a phase that matches no corpus, an
    objective without text in its phase or without text for its teacher, and a batch_size below processes x
    accumulation.
    """
    corpora = recipe.named_corpora()
    for index, phase in enumerate(recipe.phases):
        _check_phase(recipe, corpora, phase, f"phases.{index}", num_processes * recipe.gradient_accumulation_steps)
    fingerprint, found = tokenizer_fingerprint(tokenizer), []
    held_out = (recipe.evaluation.held_out_fraction, recipe.evaluation.max_examples)
    for source in open_sources(corpora, recipe.hub_root):
        columns = [tokenized_column(side, tokenizer, fingerprint, source.name) for side in source.sides]
        found.append(Corpus(source, columns, *_longest_form(recipe, source.corpus.kind), *held_out))
    _report(found, recipe.alpha)
    return found


def tokens_of_text(corpora: list[Corpus]) -> np.ndarray:
    """Returns (C,): the sorted ids of the tokens that occur in the corpora."""
    chunks = [chunk for corpus in corpora for column in corpus.columns[:2] for chunk in column.chunks]
    return np.unique(np.concatenate([np.unique(chunk) for chunk in chunks]))


def unigram_entropy(examples: list[Example]) -> float:
    """Returns the entropy of the tokens in `examples`, in nats: the loss of a model that knows only frequencies."""
    counts = np.unique(np.concatenate([side for example in examples for side in example.sides]), return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _check_phase(recipe: Recipe, corpora: Corpora, phase: Phase, where: str, shares: int) -> None:
    """Raises ValueError if an objective, or the teacher, has no text, or none in a language that it can use, or fewer
    examples than `shares`: processes x accumulation."""
    names = match_corpora(phase.corpora, list(corpora), where)
    kinds = [corpora[name].kind for name in names]
    read = [corpora[name].language for name in names if isinstance(corpora[name], Monolingual)]
    pairs = [languages_of(corpus) for corpus in corpora.values() if isinstance(corpus, Bitext)]
    language = recipe.teacher and recipe.teacher.language
    for name, objective in phase.objectives.items():
        if objective.text not in kinds:
            raise ValueError(f"{where} has no {objective.text} corpus for {name}. Correct {where}.corpora.")
        objective.check_text(f"{where}.objectives.{name}", list(dict.fromkeys(read)), pairs)
        if objective.has_teacher and language not in read:
            raise ValueError(f"{where} has no text of teacher.language {language!r} for {name}.")
        if name in phase.with_examples and objective.batch_size < shares:
            place = f"{where}.objectives.{name}.batch_size"
            raise ValueError(f"{place} must be at least {shares}: processes x accumulation.")


def _longest_form(recipe: Recipe, kind: str) -> tuple[int, bool]:
    """Returns (max_length, apart) of the objective with the longest texts of a kind, or of all if none reads it."""
    objectives = [objective for phase in recipe.phases for objective in phase.with_examples.values()]
    reading = [objective for objective in objectives if objective.text == kind]
    longest = max(reading or objectives, key=lambda objective: objective.text_length)
    return longest.text_length, longest.apart and bool(reading)


def _report(corpora: list[Corpus], alpha: float) -> None:
    """Logs once for each corpus how often it is drawn, and how much text was dropped or cut."""
    for kind in dict.fromkeys(corpus.kind for corpus in corpora):
        group = [corpus for corpus in corpora if corpus.kind == kind]
        if 0 < len(declared := [corpus.name for corpus in group if corpus.source.corpus.size]) < len(group):
            logger.info("%s: sizes of %s are declared, those of the others counted", kind, ", ".join(declared))
        for corpus, share in zip(group, corpus_probabilities(group, alpha), strict=True):
            counts = ", ".join(f"{name} {count:,}" for name, count in corpus.counts.items() if count)
            logger.info("%s: drawn %.1f%%; %s", corpus.name, 100 * share, counts)
