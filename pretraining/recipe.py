"""The pre-training recipe: every field that `pretraining/run.py` reads, with its type, default and meaning.

A recipe is a YAML file of these fields; `key=value` on the command line overrides one of them
(`phases.0.steps=10`). `zoo_core.recipes` reads and prints it; `recipe_checks.py` checks it across fields.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Literal

from omegaconf import MISSING

from pretraining.objectives import ExampleObjective, Objectives
from zoo_core.recipes import (
    LARGEST_BATCH,
    LARGEST_SIZE,
    MOST_WORKERS,
    PUSH_TO_HUB,
    SEEDS,
    TRACKER,
    TRUST_REMOTE_CODE,
    option,
)
from zoo_core.table_files import SUFFIXES
from zoo_core.tables import Table


@dataclass
class Monolingual(Table):
    """Text of one language."""

    kind: ClassVar[str] = "monolingual"

    language: str = option(
        MISSING,
        "language code of the text, as the logs and the curves will show it; `{language}`: of each of `languages`",
    )
    languages: list[str] = option(
        [], "a corpus for each of these languages, whose code replaces `{language}`; default: those of `sizes`"
    )
    sizes: dict[str, int] = option({}, "`size` by language, of several languages")
    language_names: dict[str, str] = option({}, "what replaces `{language}` in path and config, where it is no code")
    name: str | None = option(
        None,
        "what follows the language in the corpus' name (`en/news`); default: nothing, or, where others are of the same "
        "language, the file or dataset that its text is read from",
    )
    text_column: str = option("text", "column that holds the text; a dotted path reaches into a struct")
    document_column: str | None = option(
        None, "column that names the document of a row, so that adjacent rows can be told from neighbors by chance"
    )
    document_pattern: str | None = option(
        None,
        "regular expression: what it matches in `document_column` names the document; `^\\d{5}` makes chapters of "
        "verses with ids such as 01049027",
    )
    size: int | None = option(
        None,
        "the corpus' part of N_i where it cannot be counted (streaming), in any unit the others share",
        low=1,
        high=LARGEST_SIZE,
    )
    size_source: str | None = option(None, "where `size` was taken from (paper, table)")


@dataclass
class Bitext:
    """Translation pairs: one `table` with two columns, or one with both sides in a column; or two tables joined on an
    id or line by line."""

    kind: ClassVar[str] = "bitext"

    source_language: str = option(MISSING, "language code of the first side; `{source}`: of each of `pairs`")
    target_language: str = option(MISSING, "language code of the second side; `{target}`: of each of `pairs`")
    pairs: list[str] = option(
        [],
        "a corpus for each of these pairs, such as de-en, whose codes replace `{source}` and `{target}`, in "
        "alphabetical order `{pair}`; default: those of `sizes`",
    )
    sizes: dict[str, int] = option({}, "`size` by pair, of several pairs")
    name: str | None = option(
        None,
        "what follows the pair in the corpus' name (`en-de/news`); default: nothing, or, where others are of the same "
        "pair, in either direction, the file or dataset that its text is read from",
    )
    table: Table | None = option(None, "one table that holds both sides")
    separator: str | None = option(
        None,
        "what stands between the sides where one column of `table` holds both (`source_column`, default `text`), such "
        "as '|||' in the files of word aligners",
    )
    source_column: str | None = option(None, "column of the first side; default: its language code, or `text`")
    target_column: str | None = option(None, "column of the second side; default: its language code, or `text`")
    source: Table | None = option(None, "table of the first side, where the sides are apart")
    target: Table | None = option(None, "table of the second side")
    join_on: str | None = option(
        None, "column on which `source` and `target` are joined; without it they are aligned line by line"
    )
    size: int | None = option(
        None,
        "its part of N_i where it cannot be counted (streaming), in the unit the others share",
        low=1,
        high=LARGEST_SIZE,
    )
    size_source: str | None = option(None, "where `size` was taken from (paper, table)")


@dataclass
class LinkedPairs(Table):
    """Translation pairs whose words are linked: a table with a column for each side and one for links made by hand."""

    kind: ClassVar[str] = "linked"

    source_language: str = option(MISSING, "language code of the first side")
    target_language: str = option(MISSING, "language code of the second side")
    name: str | None = option(None, "what follows the pair in the corpus' name; default: as of `bitext`")
    source_column: str = option("source", "column of the first side: words apart by spaces or tabs")
    target_column: str = option("target", "column of the second side")
    links_column: str | None = option(
        "links",
        "column of the links, `0-0 1-2 2p1`: word 0 of the source with word 0 of the target, and so on, from 0; `p` "
        "marks a possible link, from which nothing is learned. null: there is none, and the model labels the pairs "
        "itself, as it does rows without links",
    )
    size: int | None = option(None, "its part of N_i; default: its pairs", low=1, high=LARGEST_SIZE)
    size_source: str | None = option(None, "where `size` was taken from (paper, table)")


@dataclass
class Dictionary:
    """A bilingual dictionary in MUSE's format: a word and a translation a line, a line for each translation.

    Example:
        >>> dictionary = Dictionary("de", "sample_corpus/dictionaries/en-de.txt")
        >>> matching = match_vocabularies(old_tokenizer, new_tokenizer, dictionaries=[dictionary])

    Raises ValueError, where it is read, for a file that is missing or cannot be read.

    Source: MUSE (Conneau et al., 2018).
    """

    language: str = option(
        MISSING, "language code of the words that are looked up: the one that is not the checkpoint's"
    )
    path: str = option(MISSING, "text file, a pair a line, apart by a tab or a space; under hub_root if it is there")
    first: Literal["word", "translation"] | None = option(
        None,
        "which side stands first in a line: the word of `language`, or its translation into the checkpoint's language; "
        "default: what the file's name says, `de-en.txt` the word of de, `en-de.txt` its translation",
    )
    limit: int | None = option(
        None, "lines to read; MUSE's files begin with the most frequent words; default: all", low=1
    )


@dataclass
class MetaPretrained:
    """A meta-pretrained model, of one language: MetaXLM starts from it, its rows matched to a new vocabulary (3.2)."""

    path: str = option(
        MISSING, "checkpoint of one language: a folder or a Hub id, BERT- or RoBERTa-shaped, or of this zoo"
    )
    tokenizer: str | None = option(None, "its tokenizer, a folder or a Hub id; default: the checkpoint's own")
    initialize: Literal["both", "body", "embeddings", "none"] = option(
        "both",
        "what is carried over (Table 5): the Transformer layers, the embeddings, or both, and then the dense layer of "
        "the head as well; none: random weights in the checkpoint's shape, the single-phase baseline XLM",
    )
    rows: Literal["matched", "matched_or_subwords", "subwords", "random"] = option(
        "matched",
        "rows of the new vocabulary. matched: by dictionary and by equal tokens, the rest random (the paper); "
        "subwords: the mean of the rows of the tokens that the checkpoint's tokenizer cuts a token into; "
        "matched_or_subwords: the first where there is one, else the second; random: none is carried over",
    )
    dictionaries: list[Dictionary] = option([], "bilingual dictionaries, in the order in which they are asked")
    dictionary: Literal["first", "fallback"] = option(
        "first",
        "whether a word is looked up in the dictionaries before equal tokens are looked for (the paper, 3.2) or after",
    )
    translations: Literal["first", "average"] = option(
        "first", "of several translations that the checkpoint's vocabulary has: the first row, or the mean of all"
    )


@dataclass
class Teacher:
    """A model of one language that the student learns from, by an objective with a teacher."""

    path: str = option(
        MISSING,
        "masked language model: a folder or a Hub id, BERT- or RoBERTa-shaped, or of this zoo; it is not trained",
    )
    tokenizer: str | None = option(None, "its tokenizer, a folder or a Hub id; default: the teacher's own")
    language: str = option(MISSING, "language code of the texts it is asked about: those of the monolingual corpus")
    temperature: float = option(
        1.0, "logits of both are divided by it: above 1, unlikely tokens count for more (Hinton et al. 2015)", above=0
    )


@dataclass
class ModelStart:
    """Which model, and what it starts from."""

    type: Literal["veco", "ernie_m", "xlm_align", "metaxlm"] = option(MISSING, "architecture of the zoo")
    start_from: str | None = option(
        None, "checkpoint to start from: a folder or a Hub id (of this zoo, or XLM-R's); empty: random weights"
    )
    meta_pretrained: MetaPretrained | None = option(
        None, "instead of start_from: a checkpoint of one language with a vocabulary of its own (MetaXLM)"
    )
    config: dict[str, Any] = option(
        {}, "configuration fields to set, such as hidden_size or num_hidden_layers; the rest keep their defaults"
    )
    attention: Literal["sdpa", "eager", "flex_attention", "flash_attention_2"] = option(
        "sdpa", "attention implementation"
    )
    skip_padding: bool = option(
        True, "compute nothing at padding: the same numbers sooner; false pads all examples to their longest"
    )
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, ~30% slower")
    predict_among: Literal["vocabulary", "text"] = option(
        "vocabulary",
        "which tokens a prediction is made among: all, or those that the corpora hold, which a multilingual vocabulary "
        "has many times more of than a few languages use; losses are then of that smaller choice, and each step of a "
        "small model takes half the time. Streams have to be `prepared` first",
    )


@dataclass
class Phase:
    """A stage of training with its own objectives, parameters, schedule and optimizer."""

    name: str = option(MISSING, "name in the logs")
    steps: int = option(MISSING, "number of steps", low=1)
    objectives: Objectives = option(
        {},
        "objectives by name, each with options of its own. Those that read text of one kind with the same batch_size "
        "and max_length see the same text, each with masks of its own",
    )
    trainable: list[str] = option(
        ["*"], "glob patterns over parameter names; what matches none of them is frozen in this phase"
    )
    freeze_body: bool = option(
        False, "freeze the Transformer layers: embeddings and head alone are trained (MetaXLM, section 5.4)"
    )
    corpora: list[str] = option(
        ["*"],
        "which text this phase reads: glob patterns over languages and pairs (`en`, `en-*`), with all their corpora; "
        "those with a slash over the names of corpora (`en-de/ntrex`, `*/ntrex`)",
    )
    learning_rate: float | None = option(None, "peak learning rate; required where `optimizer` is fresh", above=0)
    warmup_steps: int = option(0, "updates of linear warm-up")
    schedule: Literal["linear", "constant", "cosine", "inverse_sqrt"] = option("linear", "after the warm-up")
    optimizer: Literal["fresh", "carried"] = option(
        "fresh",
        "fresh: Adam's moments and the schedule begin anew; carried: both go on from the phase before, with one "
        "warm-up and one decay over the steps of all phases so joined; learning_rate, warmup_steps and schedule are "
        "those of the first",
    )

    @property
    def with_examples(self) -> dict[str, ExampleObjective]:
        """The objectives that have examples, and sub-batches, of their own."""
        return {name: found for name, found in self.objectives.items() if isinstance(found, ExampleObjective)}

    @property
    def losses(self) -> list[str]:
        """`mlm`, `ca_mlm_pairs.inner`, ...: how logs and the model call the losses of its objectives."""
        return [loss for objective in self.objectives.values() for loss in objective.losses()]

    def loss_weights(self, model: Any) -> dict[str, float]:
        """The weight of each loss, for a model's forward; 0 for one that is not learned, which is not computed."""
        weights = [objective.loss_weights() for objective in self.objectives.values()]
        return dict(item for found in weights for item in found.items()) | self.unused_losses(model)

    def unused_losses(self, model: Any) -> dict[str, float]:
        """0 for each loss of a model's own objectives that the phase does not have."""
        unused = [name for name in model.objectives if name not in self.objectives]
        return dict.fromkeys([loss for name in unused for loss in model.losses_of_objective(name)], 0.0)


@dataclass
class Optimizer:
    """AdamW and gradient clipping."""

    betas: list[float] = option([0.9, 0.98], "Adam's beta1 and beta2", low=0, below=1)
    epsilon: float = option(1e-6, "Adam's epsilon", above=0)
    weight_decay: float = option(0.01, "decoupled weight decay; biases and LayerNorms have none", low=0)
    max_grad_norm: float = option(1.0, "gradients are clipped to this global norm; 0: no clipping", low=0)


@dataclass
class Evaluation:
    """Held-out text: masked like the training text, with masks that never change."""

    held_out_fraction: float = option(
        0.0,
        "share of rows kept out of training, chosen by their id or line number: a verse is held out in every language",
        low=0,
        below=1,
    )
    max_examples: int = option(300, "held-out examples used per corpus", low=1)
    every_steps: int = option(0, "updates between evaluations; 0: at the end of each phase only")
    batch_size: int = option(32, "held-out examples in a forward pass", low=1, high=LARGEST_BATCH)
    retrieval: bool = option(
        True, "also find each held-out sentence's translation by cosine of mean-pooled states, at every layer"
    )
    alignment: bool = option(
        False,
        "also find each token's translation within its held-out pair, by cosine at every layer, and by cross-attention "
        "where an objective trains it: for pairs whose tokens correspond one by one, such as the controlled pair; "
        "others are an error",
    )
    back_translation: float = option(
        0.0,
        "ERNIE-M with languages: pseudo tokens for each token of a held-out sentence, such as 0.2, and the share of "
        "them that its translation holds, less the share that another sentence's holds; 0: off",
        low=0,
        high=1,
    )


@dataclass
class Recipe:
    """Pre-training of one model."""

    output_dir: str = option(
        MISSING, "run folder: model/, checkpoints/, events.jsonl, curves.png, run.json, recipe.yaml"
    )
    model: ModelStart = field(default_factory=ModelStart)
    tokenizer: str | None = option(None, "folder or Hub id of the tokenizer; default: that of model.start_from")
    hub_root: str | None = option(
        None, "folder that mirrors the Hub (<hub_root>/<owner>/<name>); ids found there are read from there"
    )
    trust_remote_code: bool = option(False, TRUST_REMOTE_CODE)
    monolingual: list[Monolingual] = option([], "monolingual corpora, any number of a language")
    bitext: list[Bitext] = option([], "translation pairs, any number of corpora of a pair of languages")
    linked: list[LinkedPairs] = option([], "translation pairs with links between their words, for `word_links`")
    prepared: str | None = option(
        None,
        "folder that `python -m pretraining.tools.prepare` wrote for these corpora; ids come from its shards, and no "
        "table is opened; default: tables are read and tokenized when a run starts",
    )
    teacher: Teacher | None = option(None, "model that an objective with a teacher learns from, beside the text")
    alpha: float = option(
        0.7,
        "exponent of language sampling: p_i = N_i^alpha / sum_j N_j^alpha, N_i the size of all corpora of language or "
        "pair i that a phase reads; among them, a corpus is drawn by its size",
        low=0,
        high=1,
    )
    shuffle_buffer: int = option(10_000, "rows held for shuffling a streamed corpus", low=1)
    phases: list[Phase] = option([], "stages of training, in order")
    optimizer: Optimizer = field(default_factory=Optimizer)
    evaluation: Evaluation = field(default_factory=Evaluation)
    precision: Literal["fp32", "bf16", "fp16"] = option("fp32", "arithmetic of forward and backward; weights stay fp32")
    gradient_accumulation_steps: int = option(
        1, "micro-batches per step and process: changes memory, not the step (beyond dropout's random numbers)", low=1
    )
    num_workers: int = option(0, "data-loading processes per training process", high=MOST_WORKERS)
    seed: int = option(1, "seed of weights, sampling, masks and dropout", below=SEEDS)
    log_every_steps: int = option(10, "updates between lines of events.jsonl", low=1)
    save_every_steps: int = option(0, "updates between checkpoints; 0: at the end of each phase only")
    keep_checkpoints: int = option(2, "newest checkpoints kept; 0: all")
    tracker: Literal["tensorboard", "wandb", "trackio"] | None = option(None, TRACKER)
    push_to_hub: str | None = option(None, PUSH_TO_HUB)

    def __post_init__(self) -> None:
        self.monolingual = [one for corpus in self.monolingual for one in _by_language(corpus)]
        self.bitext = [one for corpus in self.bitext for one in _by_pair(corpus)]

    @property
    def languages(self) -> list[str]:
        """Codes of all languages, in the order of the corpora."""
        return list(dict.fromkeys(code for corpus in self.corpora for code in languages_of(corpus)))

    @property
    def corpora(self) -> "list[Monolingual | Bitext | LinkedPairs]":
        """All corpora, monolingual ones first."""
        return self.monolingual + self.bitext + self.linked

    def named_corpora(self) -> "Corpora":
        """All corpora, monolingual ones first, by the names that patterns, logs and curves know them by.

        The name of a lone corpus is its language (`en`) or pair (`en-de`). Several of a language, or of a pair in
        either direction, are told apart by their `name` behind it, by default the last part of the path of the first
        table without a file's ending (`en-de/ntrex`). A lone corpus that has a `name` carries it too.

        Raises ValueError for two corpora of one name.
        """
        count = Counter(frozenset(languages_of(corpus)) for corpus in self.corpora)
        named: Corpora = {}
        for corpus in self.corpora:
            name = "-".join(languages_of(corpus))
            if corpus.name is not None or count[frozenset(languages_of(corpus))] > 1:
                name += f"/{corpus.name or _source_name(corpus)}"
            if name in named:
                raise ValueError(
                    f"Two corpora of `{corpus.kind}` are called {name!r}, and nothing could tell them apart: give one "
                    "of them a `name`."
                )
            named[name] = corpus
        return named


Corpora = dict[str, Monolingual | Bitext | LinkedPairs]  # the corpora of a recipe, by name


def _by_language(corpus: Monolingual) -> list[Monolingual]:
    """The corpora that one entry stands for: itself, or one for each of its languages."""
    codes = _names(corpus, "languages", corpus.languages, "language")
    if unknown := [code for code in corpus.language_names if code not in codes]:
        raise ValueError(
            f"monolingual: language_names has {unknown[0]}, and languages are {', '.join(codes) or 'none'}."
        )
    own = replace(corpus, languages=[], sizes={}, language_names={})
    return [
        replace(
            _filled(own, {"{language}": corpus.language_names.get(code, code)}),
            language=code,
            size=corpus.sizes.get(code, own.size),
        )
        for code in codes
    ] or [corpus]


def _by_pair(corpus: Bitext) -> list[Bitext]:
    """The corpora that one entry stands for: itself, or one for each of its pairs. Raises ValueError for no pair."""
    own, found = replace(corpus, pairs=[], sizes={}), []
    for pair in _names(corpus, "pairs", corpus.pairs, "source", "target", "pair"):
        source, dash, target = pair.partition("-")
        if not (source and dash and target):
            raise ValueError(f"bitext: pairs has {pair!r}. Name two languages, as in de-en.")
        words = {"{source}": source, "{target}": target, "{pair}": "-".join(sorted((source, target)))}
        found.append(replace(_filled(own, words), size=corpus.sizes.get(pair, own.size)))
    return found or [corpus]


def _names(corpus: Monolingual | Bitext, field: str, names: list[str], *words: str) -> list[str]:
    """The languages or pairs that an entry stands for; none for an ordinary one.

    Raises ValueError where the entry has a word such as `{language}` and no names, or names and no word for its code.
    """
    sizes, codes = corpus.sizes, languages_of(corpus)
    if names and sizes and set(names) != set(sizes):
        raise ValueError(f"{field} are {', '.join(names)}, and sizes are those of {', '.join(sizes)}. Make them equal.")
    names = names or list(sizes)
    expected = tuple(f"{{{word}}}" for word in words[: len(codes)])
    if names and codes != expected:
        raise ValueError(f"A corpus of {'-'.join(codes)} has {field}, for which it must be of {'-'.join(expected)}.")
    if word := next((word for word in words if not names and f"{{{word}}}" in str(corpus)), None):
        raise ValueError(f"A corpus of {'-'.join(codes)} has {{{word}}}, and no {field}. Name them.")
    return names


def _filled(item: Any, words: dict[str, str]) -> Any:
    """A copy of a corpus or table with the values of `words` in place of the words, in all its texts."""
    if isinstance(item, str):
        for word, value in words.items():
            item = item.replace(word, value)
    elif is_dataclass(item):
        return replace(item, **{name: _filled(value, words) for name, value in vars(item).items()})
    return item


def languages_of(corpus: Monolingual | Bitext | LinkedPairs) -> tuple[str, ...]:
    """The language of a monolingual corpus, the two of pairs in their order."""
    if isinstance(corpus, Monolingual):
        return (corpus.language,)
    return (corpus.source_language, corpus.target_language)


def _source_name(corpus: Monolingual | Bitext | LinkedPairs) -> str:
    """`ntrex` of the dataset local/ntrex, `news` of the file data/news.tsv."""
    table = corpus.table or corpus.source if isinstance(corpus, Bitext) else corpus
    path = Path(table.path if table else "")
    is_file = path.suffix in SUFFIXES or table is not None and table.format not in ("auto", "hub")
    return path.stem if is_file else path.name


def is_selected(name: str, patterns: Iterable[str]) -> bool:
    """Whether any glob pattern selects a corpus: by its language or pair, or by its whole name where there is a slash.

    `en-de` and `en-*` select all corpora of en-de, `en-de/ntrex` one of them; `*-*` selects no monolingual corpus,
    whatever its source is called.
    """
    code = name.partition("/")[0]
    return any(fnmatchcase(name if "/" in pattern else code, pattern) for pattern in patterns)


def scheduled_together(phases: Sequence[Phase], index: int) -> list[Phase]:
    """The phases that one learning-rate schedule spans, of which phase `index` is one: the first says what it is, the
    others carry it on."""
    first = max(number for number, phase in enumerate(phases[: index + 1]) if phase.optimizer == "fresh")
    return [phases[first], *takewhile(lambda phase: phase.optimizer == "carried", phases[first + 1 :])]
