"""The corpora of a recipe, from its tables to the batches of a step.

`load_corpora` gives each `Monolingual` and `Bitext` a `Corpus` of token ids, `training_batches` the batches of a phase,
`held_out_batches` those of an evaluation. Where rows come from is in sources.py, which are drawn in sampling.py.
"""

import logging
import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from pretraining.data.examples import Example, Texts
from pretraining.data.languages import Languages
from pretraining.data.loading import CarefulLoader
from pretraining.data.prepared import prepared_corpora
from pretraining.data.sampling import Draw, ObjectivePlan, UpdateSampler, check_batch_sizes, corpus_probabilities
from pretraining.data.sources import Source, match_corpora, open_sources
from pretraining.data.stored import Corpus, PackedCorpus, stored_corpus
from pretraining.data.streams import StreamCursor, StreamedCorpus
from pretraining.data.tokenized import TokenColumn, tokenized_column, tokenizer_fingerprint
from pretraining.objectives import Collator, MaskedObjective
from pretraining.recipe import (
    Monolingual,
    Phase,
    Recipe,
    is_selected,
    languages_of,
    named_corpora,
)
from zoo_core.recipes import nearest

logger = logging.getLogger(__name__)

KINDS = {1: "monolingual", 2: "bitext"}  # by the number of languages
LOSSES = {
    "empty": "rows dropped, because they or one side are empty",
    "windowed": "texts longer than max_length, read in windows",
    "alone": "texts of one token without a neighbor in their document",
    "halved": "texts without a neighbor in their document, read as two halves",
    "cut": "pairs cut to max_length",
    "held_out": "rows held out",
}


def load_corpora(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, num_processes: int = 1) -> list[Corpus]:
    """Every corpus of the recipe, monolingual ones first, tokenized once and kept on disk; streams are opened. Where
    the recipe names prepared shards they are read, and nothing is tokenized or streamed.

    Texts are windowed or cut to the largest max_length of the objectives that read their kind. What was dropped,
    windowed, cut, unmatched or held out is logged once for each corpus.

    Raises ValueError for what `open_sources` or `prepared_corpora` list, a corpus without text, a pattern of a phase
    that matches no corpus, an objective for which its phase has no text, or none that its teacher reads, and a
    batch_size below processes x accumulation.
    """
    names = {name: KINDS[len(languages_of(corpus))] for name, corpus in named_corpora(recipe).items()}
    for index, phase in enumerate(recipe.phases):
        where = f"phases.{index}"
        _check_texts({name: names[name] for name in match_corpora(phase.corpora, list(names), where)}, phase, where)
        check_batch_sizes(phase, where, num_processes, recipe.gradient_accumulation_steps)
        _check_languages(recipe, phase, where)

    corpora = []
    for source, columns in _opened(recipe, tokenizer):
        form = _longest_form(recipe, KINDS[len(source.languages)])
        common = (*form, recipe.evaluation.held_out_fraction, recipe.evaluation.max_examples)
        if source.streaming:
            corpora.append(StreamedCorpus(source, tokenizer, *common, recipe.shuffle_buffer, recipe.seed))
        else:
            corpora.append(stored_corpus(source, columns, *common))
    _report(corpora, recipe)
    return corpora


def _opened(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[Source, Sequence[TokenColumn]]]:
    """The sources of the recipe with their columns of tokens, from prepared shards or from its tables; streams have
    none."""
    fingerprint = tokenizer_fingerprint(tokenizer)
    if recipe.prepared is not None:
        yield from prepared_corpora(recipe, fingerprint)
        return
    for source in open_sources(recipe):
        sides = [] if source.streaming else source.sides
        yield source, [tokenized_column(side, tokenizer, fingerprint, source.name) for side in sides]


def phase_corpora(corpora: list[Corpus], phase: Phase) -> list[Corpus]:
    """The corpora that a phase reads. Raises ValueError for a pattern that matches none of them."""
    names = match_corpora(phase.corpora, [corpus.name for corpus in corpora], f"phase {phase.name}")
    return [corpus for corpus in corpora if corpus.name in names]


def tokens_of_text(corpora: list[Corpus]) -> np.ndarray:
    """(C,) ids of the tokens that the corpora hold, in order. Raises ValueError for a stream."""
    if streamed := [corpus.name for corpus in corpora if corpus.streaming]:
        raise ValueError(
            f"model.predict_among is text, and {streamed[0]} is streamed: nobody knows its tokens yet. Prepare the "
            "corpora first (`python -m pretraining.tools.prepare`), or predict among the vocabulary."
        )
    chunks = [chunk for corpus in corpora for column in corpus.columns for chunk in column.chunks]
    return np.unique(np.concatenate([np.unique(chunk) for chunk in chunks]))


def unigram_entropy(examples: list[Example]) -> float:
    """Entropy of the distribution of tokens in `examples`, in nats: the loss of a model that knows frequencies only."""
    counts = np.unique(np.concatenate([side for example in examples for side in example.sides]), return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


class MaskedExamples(Dataset):
    """Draws -> micro-batch: what a `DataLoader` reads, in whichever process."""

    def __init__(
        self,
        corpora: dict[tuple[str, int], Corpus | PackedCorpus | StreamedCorpus],
        phase: Phase,
        seed: int,
        index: int,
        collators: dict[str, Collator],
    ):
        """`corpora` by (objective, index among the corpora of the phase): objectives cut texts to their own lengths."""
        self.corpora, self.phase, self.seed, self.phase_index, self.collators = corpora, phase, seed, index, collators
        self.cursors: dict[tuple[str, int], StreamCursor] = {}

    def __getitems__(self, draws: list[Draw]) -> dict[str, dict]:
        """The sub-batches of a micro-batch by objective, all their rows masked at once."""
        own: dict[str, list[Draw]] = {}
        for draw in draws:
            own.setdefault(draw.objective, []).append(draw)
        return {
            name: self.collators[name].sub_batch(self._texts(name, some), (self.seed, self.phase_index))
            for name, some in own.items()
        }

    def _texts(self, objective: str, draws: list[Draw]) -> Texts:
        """The texts of some draws in their order; those of bins by length, so that rows alike are together."""
        places: dict[int, list[int]] = {}
        for place, draw in enumerate(draws):
            places.setdefault(draw.corpus, []).append(place)
        parts = [self._read(objective, index, [draws[place] for place in own]) for index, own in places.items()]
        if self.phase.objectives[objective].packed:
            lengths = [sum(map(len, sides)) for part in parts for sides in zip(*part.sides, strict=True)]
            order = np.argsort(lengths, kind="stable")
        else:
            order = np.argsort(np.concatenate(list(places.values())))
        return Texts.joined(parts, order)

    def _read(self, objective: str, index: int, draws: list[Draw]) -> Texts:
        """What some draws of one corpus stand for."""
        place = (objective, index)
        corpus = self.corpora[place]
        if not corpus.streaming:
            return corpus.read(np.array([draw.epoch for draw in draws]), np.array([draw.row for draw in draws]))
        if place not in self.cursors:
            # by the kind of text, as the draws: TLM and CA-MLM take the same pairs (VECO, section 4)
            self.cursors[place] = corpus.cursor(self.phase_index, self.phase.objectives[objective].text)
        return Texts.of([self.cursors[place].fetch(draw.position) for draw in draws])


def training_batches(
    corpora: list[Corpus],
    phase: Phase,
    recipe: Recipe,
    phase_index: int,
    tokenizer: PreTrainedTokenizerBase,
    start_update: int = 0,
    num_processes: int = 1,
    process_index: int = 0,
    languages: Languages | None = None,
) -> CarefulLoader:
    """The batches of one process in one phase: `gradient_accumulation_steps` consecutive ones make an update.

    `corpora` are those of the phase (`phase_corpora`); `start_update` is the number of updates already done in it. A
    batch is a dict by objective of what its collator returns, on the CPU. The loader shares the text out itself: it
    must not be passed to `Accelerator.prepare`. It takes no number from torch's global generator, so that dropout is
    the same however a run was resumed. `languages` are those of a model whose <mask> carries one.
    """
    views = {
        name: {
            index: _training_form(corpus, objective, recipe.seed)
            for index, corpus in enumerate(corpora)
            if objective.reads_corpus(corpus, languages)
        }
        for name, objective in phase.with_examples.items()
    }
    plans = [
        ObjectivePlan(recipe.seed, phase_index, objective, views[name], recipe.alpha)
        for name, objective in phase.with_examples.items()
    ]
    accumulation = recipe.gradient_accumulation_steps
    sampler = UpdateSampler(plans, phase, start_update, num_processes, process_index, accumulation)
    examples = MaskedExamples(
        {(name, index): corpus for name, group in views.items() for index, corpus in group.items()},
        phase,
        recipe.seed,
        phase_index,
        {name: make_collator(found, phase, tokenizer, languages) for name, found in phase.with_examples.items()},
    )
    if recipe.num_workers:
        # tokenizers' threads do not survive the fork of a worker; its own way out is a warning in each of them
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return CarefulLoader(
        examples,
        batch_sampler=sampler,
        num_workers=recipe.num_workers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),
    )


def held_out_batches(
    corpora: list[Corpus],
    objective: MaskedObjective,
    phase: Phase,
    batch_size: int,
    tokenizer: PreTrainedTokenizerBase,
    languages: Languages | None = None,
) -> Iterator[dict[str, dict]]:
    """Batches of the held-out text that an objective of a phase reads, corpus by corpus, by length.

    The masks depend on the example and mask_probability alone: the same at every call, in every phase and run.
    """
    collator = make_collator(objective, phase, tokenizer, languages)
    for corpus in corpora:
        examples = held_out_examples(corpus, objective, languages)
        examples = sorted(examples, key=lambda example: sum(map(len, example.sides)))
        for start in range(0, len(examples), batch_size):
            chunk = Texts.of(examples[start : start + batch_size])
            yield {objective.name: collator.sub_batch(chunk, ("held out",), training=False)}


def make_collator(
    objective: MaskedObjective, phase: Phase, tokenizer: PreTrainedTokenizerBase, languages: Languages | None = None
) -> Collator:
    """The collator of an objective, with what the others of its phase read of its rows."""
    readers = [other for other in phase.objectives.values() if other.sub_batch() == objective.name]
    return objective.collator(tokenizer, languages, draws=any(other.draws for other in readers))


def packings(corpora: list[Corpus], phase: Phase, seed: int) -> Iterator[tuple[str, PackedCorpus]]:
    """(objective, packed corpus) of each corpus of a phase that an objective reads packed."""
    for name, objective in phase.with_examples.items():
        for corpus in corpora:
            if objective.packed and objective.reads_corpus(corpus, None):
                yield name, _training_form(corpus, objective, seed)


def _training_form(
    corpus: Corpus | StreamedCorpus, objective: MaskedObjective, seed: int
) -> Corpus | PackedCorpus | StreamedCorpus:
    """A corpus as an objective reads it in training."""
    form = corpus.with_form(objective.text_length, objective.apart)
    return form.packed(seed) if objective.packed else form


def held_out_examples(corpus: Corpus, objective: MaskedObjective, languages: Languages | None = None) -> list[Example]:
    """The held-out text of a corpus as an objective reads it; none where it does not."""
    if not objective.reads_corpus(corpus, languages):
        return []
    return corpus.with_form(objective.text_length, objective.apart).held_out


def _longest_form(recipe: Recipe, kind: str) -> tuple[int, bool]:
    """(max_length, apart) of the objective that reads most of a kind of text, or of all where none reads it."""
    objectives = [objective for phase in recipe.phases for objective in phase.with_examples.values()]
    reading = [objective for objective in objectives if objective.text == kind]
    longest = max(reading or objectives, key=lambda objective: objective.text_length)
    return longest.text_length, longest.apart and bool(reading)


def _check_texts(kinds: dict[str, str], phase: Phase, where: str) -> None:
    """Raises ValueError where an objective finds no corpus of its kind among `kinds` (corpus name -> kind)."""
    for name, objective in phase.objectives.items():
        if objective.text not in kinds.values():
            raise ValueError(
                f"{where} ({phase.name}) has the objective {name}, which reads {objective.text} text, and its "
                f"corpora are {', '.join(kinds) or 'none'}: widen the patterns of {where}.corpora, or take {name} out."
            )


def _check_languages(recipe: Recipe, phase: Phase, where: str) -> None:
    """Raises ValueError where an objective, or the recipe's teacher, finds no text in a language that it can use."""
    read = _languages_read(recipe, phase)
    pairs = [languages_of(corpus) for corpus in recipe.bitext]
    for name, objective in phase.objectives.items():
        objective.check_text(f"{where}.objectives.{name}", read, pairs)
        if objective.has_teacher and recipe.teacher.language not in read:
            raise ValueError(
                f"teacher.language is {recipe.teacher.language!r}, and the monolingual corpora of {where} "
                f"({phase.name}), which learns {name}, are {', '.join(read)}. {nearest(recipe.teacher.language, read)}"
            )


def _languages_read(recipe: Recipe, phase: Phase) -> list[str]:
    """The languages of the monolingual corpora that a phase reads."""
    read = [corpus for name, corpus in named_corpora(recipe).items() if is_selected(name, phase.corpora)]
    return list(dict.fromkeys(corpus.language for corpus in read if isinstance(corpus, Monolingual)))


def _report(corpora: list[Corpus], recipe: Recipe) -> None:
    """Says once what each corpus holds, how often it is drawn, and what it lost."""
    for count, kind in KINDS.items():
        group = [corpus for corpus in corpora if len(corpus.languages) == count]
        if not group:
            continue
        declared = [corpus.name for corpus in group if corpus.source.declared_size]
        if 0 < len(declared) < len(group):
            logger.info("%s: sizes are declared for %s and counted for the others", kind, ", ".join(declared))
        shares = corpus_probabilities(group, recipe.alpha)
        for corpus, share in zip(group, shares, strict=True):
            lost = [f"{number:,} {text}" for name, text in LOSSES.items() if (number := corpus.counts.get(name, 0))]
            lost += [
                f"{number:,} rows of {name.removeprefix('unmatched_')} without a partner"
                for name, number in corpus.counts.items()
                if name.startswith("unmatched_") and number
            ]
            size = f"{corpus.counts['examples']:,} examples" if not corpus.streaming else f"streamed, N {corpus.size:,}"
            logger.info("%s: %s, drawn %.1f%%%s", corpus.name, size, 100 * share, "".join(f"; {item}" for item in lost))
    for phase in recipe.phases:
        for name, packed in packings(phase_corpora(corpora, phase), phase, recipe.seed):
            logger.info("%s: packed for %s (phase %s): %s", packed.name, name, phase.name, packed)
