"""What all objectives share: the options and the checks of an objective, and the collator that masks its text.

Each objective has a file in this folder, with a class of options, which reads a recipe's `objectives.<name>`, and a
collator, which chooses the tokens that are predicted and makes the mask of who sees whom. Nothing downstream decides
either. An objective that learns from the rows of another one has no collator. `--help` reads these files, so they
import torch and transformers in the functions that need them.

In pre-training, random numbers are keyed by (seed, phase, objective, corpus, epoch, example), so that the same examples
get the same masks however they are batched. In the pictures a row attends to the columns marked `x`; `m` is a masked
token, `a`, `b` the tokens of the two sides, and special tokens belong to their side.

Legend: `B` rows of a micro-batch, `T` positions of its longest row, `S` sides of an example (1 or 2).
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from omegaconf import MISSING

from pretraining.data.examples import SPECIALS_OF_TEXT, Texts, cut_sides, encode_texts, random_window
from pretraining.data.languages import Languages
from pretraining.rows import Rows, as_tensors, lay_out, side_lengths
from zoo_core.masking import IGNORED, bits_of, key_stream, mask_rows, row_keys, short_seed, uniform_of
from zoo_core.recipe_files import nearest
from zoo_core.recipes import LARGEST_BATCH, option

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from pretraining.held_out import Evaluator

# streams of a row's random numbers: which side comes first, the language of its pseudo tokens, what DWA draws; the
# masks of the two sides that are masked one by one; whether <mask> says its language
ORDER, TARGET, DRAW, X_MASKS, Y_MASKS, LANGUAGE = range(1, 7)

UNDETERMINED = "und"  # ISO 639-2: the language of an example that names none
SHORTEST = 8  # positions of a row that `max_length` may ask for


@dataclass
class Sides:
    """The examples of a micro-batch, as the rows are going to hold them."""

    tokens: list[list[np.ndarray]]  # of each side, those of B examples
    lengths_SB: np.ndarray
    codes: list[tuple[str, ...]]  # the language of each side of each example; empty where <mask> says none


class Collator:
    """A data collator: examples in, a batch for `<Model>ForPreTraining.forward` out.

    What all objectives share: rows are laid out, masked 80/10/10 (BERT section 3.1) and padded.

        collate = CamlmCollator(tokenizer)
        loader = DataLoader(dataset, batch_size=8, collate_fn=collate)

    An example is a dict with the keys of `keys`, whose values are texts, or token ids without special tokens; other
    keys are ignored. Texts are cut to `max_length` positions, as those of a stream in pre-training: of a pair the
    longer side first, of a text a window at a random offset. Every call draws other masks, from torch's generator:
    `torch.manual_seed` repeats them. Processes with the same seed draw different masks.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ("text",)
    apart: ClassVar[bool] = False
    """Whether the two sides of an example are inputs of their own."""
    language_share: ClassVar[float] = 0.0
    """Share of the training rows in which <mask> says its language; 1: of the held-out rows too."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        mask_probability: float = 0.15,
        max_length: int = 256,
        languages: Languages | Sequence[str] | None = None,
        draws: bool = False,
    ):
        """
        Args:
            tokenizer: that of the model, with a mask token.
            mask_probability: share of the ordinary tokens that is predicted.
            max_length: positions of a row, special tokens included. Longer texts are cut: of a pair the longer side
                first, of a text a window at a random offset.
            languages: `model.config.languages` of a model whose <mask> carries a language, which is then read from the
                example's keys of `language_keys`; default, or empty: it carries none.
            draws: rows also have a random number at each position, `draws`, which XLM-Align needs where
                `config.query_positions` is unmasked or all_aligned.

        Raises:
            ValueError: options out of range, or a tokenizer without a mask token.
        """
        if not isinstance(mask_probability, int | float) or not 0 < mask_probability < 1:
            raise ValueError(f"mask_probability must be a number above 0 and below 1, got {mask_probability!r}.")
        if not isinstance(max_length, int) or max_length < SHORTEST:
            raise ValueError(f"max_length must be a whole number of at least {SHORTEST}, got {max_length!r}.")
        if getattr(tokenizer, "mask_token_id", None) is None:
            raise ValueError(
                f"a {type(tokenizer).__name__} has no mask token. Give the tokenizer of a masked language model."
            )
        if isinstance(languages, str):
            raise ValueError(f"languages must be a list of language codes, got {languages!r}.")
        self.tokenizer, self.mask_probability, self.max_length = tokenizer, mask_probability, max_length
        self.draws = draws
        self.languages = languages or None
        if self.languages and not isinstance(languages, Languages):
            self.languages = Languages.among(languages)

    @property
    def language_keys(self) -> tuple[str, ...]:
        """The keys of an example that name its languages."""
        return ("language",) if len(self.keys) == 1 else tuple(f"{key}_language" for key in self.keys)

    @property
    def _reads_languages(self) -> bool:
        return bool(self.languages and self.language_share)

    @property
    def text_length(self) -> int:
        """Positions of an example's text, special tokens included: fewer than `max_length` where a side is written."""
        return self.max_length

    @cached_property
    def vocabulary(self) -> np.ndarray:
        """(K,) ids of ordinary tokens: what may stand at random in a masked position's place."""
        return np.setdiff1d(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids).astype(np.int32)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, dict]:
        """Returns the batch of some examples, `{name: sub-batch}`, for `model(**batch)` of `<Model>ForPreTraining`.

        A sub-batch has `input_ids`, `labels` (-100 where nothing is predicted), `segment_ids` and `special_tokens_mask`
        (B, T); `attention_mask` (B, T), or boolean (B, T, T), True where the row may attend to the column. Of two sides
        that are inputs of their own, each has these fields.

        Every call draws other masks, from torch's generator: `torch.manual_seed` repeats them.

        Raises ValueError for an example without its keys, of another type, without a token, or with ids that are
        special or unknown to the tokenizer.

        Example:
            >>> batch = collate(examples)
            >>> loss = model(**batch).loss  # nats a predicted token
        """
        import torch

        # of the CPU's generator, whatever the default device: a worker must not wake up a GPU
        seed = int(torch.randint(2**62, (), device="cpu"))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            seed += torch.distributed.get_rank()  # the Trainer gives all processes one seed
        texts, codes = self._read(examples, seed)
        return {self.name: self.sub_batch(texts, (seed,), codes=codes)}

    def sub_batch(
        self,
        texts: Texts,
        key: tuple[int | str, ...],
        training: bool = True,
        codes: Sequence[tuple[str, ...]] | None = None,
    ) -> dict:
        """The sub-batch: {input_ids, labels, attention_mask, segment_ids, special_tokens_mask, languages, examples}.

        `key`, such as (seed, phase), is part of what random numbers are keyed by; `codes` are the languages of each
        example's sides, by default those of its corpus. Texts fit into a row already.

        Tensors are (B, T) int64, but `examples` (B,), the examples' ids, and block masks, (B, T, T) boolean;
        `languages` is a list of B corpus names. Rows are not packed, and the model counts the positions of padded rows
        itself. A row without predictions is valid. The unknown token is never predicted: it tells nothing.
        """
        import torch

        # corpora number their examples alike, and objectives that read the same examples mask them differently
        seeds = {corpus: short_seed(*key, self.name, corpus) for corpus in set(texts.names)}
        seeds_B = np.fromiter(map(seeds.__getitem__, texts.names), np.uint64, len(texts.names))
        keys_B = row_keys(seeds_B, texts.epochs, texts.ids)
        # evaluated as in use, where <mask> of a text or pair says no language
        if self._reads_languages and (training or self.language_share == 1):
            codes = [self.languages.of_corpus[name] for name in texts.names] if codes is None else codes
        else:
            codes = []
        sides, facts = self.arrange(Sides(texts.sides, side_lengths(texts.sides), codes), keys_B, training)
        rows = self.rows(sides, keys_B, self._language_rows(sides, keys_B))
        return rows | {"languages": texts.names, "examples": torch.from_numpy(texts.ids)} | facts

    def arrange(self, sides: Sides, keys_B: np.ndarray, training: bool) -> tuple[Sides, dict]:
        """What stands in the rows, in its order; and what else the sub-batch says."""
        return sides, {}

    def rows(self, sides: Sides, keys_B: np.ndarray, language_rows_SB: np.ndarray) -> dict:
        """The (B, T) fields: laid out, masked and padded."""
        rows = lay_out(sides.tokens, sides.lengths_SB, self.tokenizer)
        of_rows, is_padding = {"labels": self.mask(rows, keys_B)}, rows.segment_ids < 0
        if len(language_rows_SB):
            first_B1, last_B1 = language_rows_SB[0, :, None], language_rows_SB[-1, :, None]
            language_ids = np.where(rows.segment_ids == 1, last_B1, first_B1)
            of_rows["language_ids"] = np.where(is_padding, 0, language_ids)  # any: padding is no <mask>
        if self.draws:
            from modeling.denoising_word_alignment import DRAWS

            bits_BT = bits_of(key_stream(keys_B, DRAW), is_padding.shape[1])
            of_rows["draws"] = np.where(is_padding, 0, bits_BT % DRAWS)
        return rows.fields() | as_tensors(**of_rows)

    def mask(self, rows: Rows, keys_B: np.ndarray) -> np.ndarray:
        """(B, T) labels of rows, whose `input_ids` get what stands in the predicted places."""
        return self.masked(rows, rows.tokens, keys_B)

    def masked(self, rows: Rows, candidates_BT: np.ndarray, keys_B: np.ndarray) -> np.ndarray:
        """(B, T) labels where some of the candidates are predicted, 80/10/10."""
        labels, probability = np.full_like(rows.input_ids, IGNORED), self.mask_probability
        # to predict the unknown token is to learn which words the tokenizer lacks
        known = candidates_BT & (rows.input_ids != self.tokenizer.unk_token_id)
        mask_rows(rows.input_ids, labels, known, probability, keys_B, self.tokenizer.mask_token_id, self.vocabulary)
        return labels

    def _language_rows(self, sides: Sides, keys_B: np.ndarray) -> np.ndarray:
        """(S, B) rows of the language embedding, -1 where <mask> carries none; empty where no row's does."""
        rows_SB = np.array([[self.languages.rows[code] for code in codes] for codes in sides.codes]).T
        # rows without a language teach the <mask> of those who use the model, which names none
        if len(rows_SB) and self.language_share < 1:
            rows_SB = np.where(uniform_of(key_stream(keys_B, LANGUAGE)) < self.language_share, rows_SB, -1)
        return rows_SB

    def _read(self, examples: Sequence[Mapping[str, Any]], seed: int) -> tuple[Texts, list[tuple[str, ...]]]:
        """The texts of examples, cut to a row's length, and the languages that each of them names."""
        self._check(examples)
        sides = [self._tokens([example[key] for example in examples], key) for key in self.keys]
        rows = [self._cut(list(row), seed, number) for number, row in enumerate(zip(*sides, strict=True))]
        codes = [(UNDETERMINED,) * len(self.keys)] * len(examples)
        if self._reads_languages:
            codes = [tuple(example[key] for key in self.language_keys) for example in examples]
        ids = np.arange(len(examples), dtype=np.int64)
        cut = [list(side) for side in zip(*rows, strict=True)]
        return Texts(cut, ["-".join(names) for names in codes], ids, np.zeros_like(ids)), codes

    def _check(self, examples: Sequence[Mapping[str, Any]]) -> None:
        """Raises ValueError for what is no list of examples, and for an example as `_check_keys`."""
        if not isinstance(examples, Sequence) or isinstance(examples, str) or not examples:
            what = type(examples).__name__ if not isinstance(examples, list) else "list without any"
            raise ValueError(
                f"{type(self).__name__} takes a list of examples, got a {what}. Pass the collator to a DataLoader or a "
                "Trainer, which collect the rows of a dataset into lists."
            )
        for number, example in enumerate(examples):
            self._check_keys(example, number)

    def _check_keys(self, example: Any, number: int) -> None:
        """Raises ValueError for an example that is no dict, lacks a key, or is in a language that the model has not."""
        kind = type(self).__name__
        if not isinstance(example, Mapping):
            raise ValueError(
                f"{kind}: example {number} is a {type(example).__name__}. It must be a dict with the keys "
                f"{' and '.join(self.keys)}."
            )
        asked = self.keys + (self.language_keys if self._reads_languages else ())
        for key in asked:
            if key not in example:
                raise ValueError(
                    f"{kind}: example {number} has no {key!r}, but {', '.join(map(str, example)) or 'no keys'}. "
                    f"Examples need the keys {' and '.join(asked)}."
                )
        for key in asked[len(self.keys) :]:
            if not isinstance(example[key], str) or example[key] not in self.languages.rows:
                raise ValueError(
                    f"{kind}: {key} of example {number} is {example[key]!r}, which is not a language of the model. "
                    f"{nearest(str(example[key]), self.languages.rows)}"
                )

    def _tokens(self, values: list[Any], key: str) -> list[np.ndarray]:
        """Texts and lists of ids as arrays (T,) int32."""
        kind, texts = type(self).__name__, {n: value for n, value in enumerate(values) if isinstance(value, str)}
        found = dict(zip(texts, encode_texts(list(texts.values()), self.tokenizer) if texts else [], strict=True))
        # the unknown token is a token of a text like any other
        special = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        tokens = []
        for number, value in enumerate(values):
            try:
                ids = np.asarray(found.get(number, value))
            except ValueError:  # lists of unequal length
                ids = np.empty((0, 0))
            if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
                raise ValueError(
                    f"{kind}: {key!r} of example {number} is a {type(value).__name__}. It must be a text, or a list of "
                    "token ids."
                )
            if not len(ids):
                raise ValueError(f"{kind}: {key!r} of example {number} has no tokens. Leave such examples out.")
            if not 0 <= ids.min() <= ids.max() < len(self.tokenizer):
                raise ValueError(
                    f"{kind}: {key!r} of example {number} has ids from {ids.min()} to {ids.max()}, but the tokenizer "
                    f"has {len(self.tokenizer)} tokens. Tokenize the text with the collator's tokenizer."
                )
            if not special.isdisjoint(ids.tolist()):
                raise ValueError(
                    f"{kind}: {key!r} of example {number} has special tokens, which the collator adds itself. Tokenize "
                    "the text with add_special_tokens=False."
                )
            tokens.append(ids.astype(np.int32))
        return tokens

    def _cut(self, sides: list[np.ndarray], seed: int, number: int) -> list[np.ndarray]:
        if len(sides) == 2:
            return cut_sides(sides, self.text_length, self.apart)
        # at random, so that all parts of a long text are seen in the end
        return [random_window(sides[0], self.text_length - SPECIALS_OF_TEXT, seed, "window", number)]


class Collators:
    """Several collators as one: each makes its sub-batch of the examples that have its keys.

    The names are those of the sub-batches, `mlm` and `tlm` here. One example may be read by several. A name of whose
    keys no example has all is left out of the batch.

    Raises ValueError without a collator, and for an example that none reads.

    Example:
        >>> collate = Collators(mlm=MlmCollator(tokenizer), tlm=TlmCollator(tokenizer))
        >>> batch = collate([{"text": "Ein Haus."}, {"source": "A house.", "target": "Ein Haus."}])
        >>> loss = model(**batch).loss

    Source: XLM (Conneau and Lample, 2019) trains its objectives in turns; here a step holds all of them.
    """

    def __init__(self, **collators: Collator):
        if not collators:
            raise ValueError("Collators needs at least a collator, as in Collators(mlm=MlmCollator(tokenizer)).")
        self.collators = collators

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, dict]:
        """The batch of some examples, {name: sub-batch}; see `Collator.sub_batch`."""
        batch, unread = {}, set(range(len(examples)))
        for name, collator in self.collators.items():
            own = [number for number, example in enumerate(examples) if set(collator.keys) <= set(example)]
            unread.difference_update(own)
            if own:
                batch[name] = collator([examples[number] for number in own])[collator.name]
        if unread:
            number = min(unread)
            asked = "; ".join(f"{name}: {' and '.join(of.keys)}" for name, of in self.collators.items())
            raise ValueError(
                f"example {number} has {', '.join(map(str, examples[number]))}, which no collator reads. They read: "
                f"{asked}."
            )
        return batch


@dataclass(frozen=True)
class Setting:
    """Where in a run an objective is learned, and what the model is: what `Objective.check_model` looks at."""

    place: str  # `phases.0.objectives.dwa`
    phase: str  # name of the phase
    beside: "Sequence[Objective]"  # all objectives of the phase
    before: "Sequence[Objective]"  # those of the phases before
    config: "PreTrainedConfig"
    source: str  # what errors call the configuration
    learned: Mapping[str, Any] | None
    """The configuration of the checkpoint that the run starts from, or goes on from; none: random weights."""


@dataclass
class Objective:
    """One objective of a phase: its options, as a recipe gives them, and what it is."""

    weight: float = option(1.0, "weight of this objective in the loss; 0: the model does not learn it", low=0)

    name: ClassVar[str]
    text: ClassVar[Literal["monolingual", "bitext", "linked"]]
    """The corpora that it reads."""
    loss_terms: ClassVar[tuple[str, ...]] = ()
    """The parts of its loss, each with a curve `<name>.<term>`; none: it is one loss."""
    reads: "ClassVar[type[MaskedObjective] | None]" = None
    """The objective whose rows it learns from; none: it has a collator of its own."""
    draws: ClassVar[bool] = False
    """Whether it needs a random number at each position of the rows that it reads."""
    own_mask: ClassVar[bool] = False
    """Whether its collator makes (B, T, T) masks, which flash attention does not take."""
    is_masked_lm: ClassVar[bool] = False
    """Whether its loss is that of masked language modeling, which every model has."""
    has_teacher: ClassVar[bool] = False
    """Whether it learns from the recipe's `teacher`, whose answers are added to the rows that it reads."""
    panels: ClassVar[dict[str, str]] = {}
    """Panels of curves.png for what `measure` returns: the beginning of its figures, and a title."""

    @property
    def learned_terms(self) -> tuple[str, ...]:
        """Those of `loss_terms` that the phase learns."""
        return self.loss_terms

    @classmethod
    def losses(cls) -> list[str]:
        """`[<name>]`, or `[<name>.<term>, ...]`: what logs and the model call its losses."""
        return [f"{cls.name}.{term}" for term in cls.loss_terms] or [cls.name]

    @classmethod
    def sub_batch(cls) -> str:
        """The name of the sub-batch that it learns from."""
        return cls.reads.name if cls.reads else cls.name

    def loss_weights(self) -> dict[str, float]:
        """The weight of each loss; 0 for a term that is not learned, which the model then leaves out."""
        if not self.loss_terms:
            return {self.name: self.weight}
        return {f"{self.name}.{term}": self.weight * (term in self.learned_terms) for term in self.loss_terms}

    @property
    def needs_languages(self) -> bool:
        """Whether the model's <mask> has to say its language, where the model has an embedding of languages."""
        return False

    def check_model(self, setting: Setting) -> None:
        """Raises ValueError where the model cannot learn it; warns where it would learn noise."""

    def check_text(self, place: str, languages: Sequence[str], pairs: Sequence[tuple[str, str]]) -> None:
        """Raises ValueError for text that it cannot learn from: `languages` are those of the phase's monolingual text,
        `pairs` those of the recipe's translations."""

    @staticmethod
    def measure(evaluator: "Evaluator", corpus: Any) -> dict[str, float | list[float]]:
        """Figures of a corpus of held-out pairs, beside its losses; `evaluator.objectives` are those of the phase. It
        is called without gradients."""
        return {}


@dataclass
class ExampleObjective(Objective):
    """An objective with examples, and a sub-batch, of its own."""

    batch_size: int = option(
        MISSING,
        "examples per step, summed over all processes and micro-batches; a pair is one example, and with packed a bin "
        "of texts is one",
        low=1,
        high=LARGEST_BATCH,
    )
    max_length: int = option(
        256,
        "longest example in tokens, special tokens included; where an objective reads the two sides as separate "
        "inputs, the longest side",
        low=SHORTEST,
    )

    packed: ClassVar[bool] = False
    predicts_tokens: ClassVar[bool] = True
    """Whether its predictions are tokens of the text, whose entropy is what a model without any context reaches."""
    collator_class: ClassVar[type[Collator]]

    @property
    def needs_languages(self) -> bool:
        return self.collator_class.language_share == 1

    @property
    def apart(self) -> bool:
        """Whether the two sides of an example are inputs of their own (of monolingual text, adjacent segments)."""
        return self.collator_class.apart

    @property
    def text_length(self) -> int:
        """See `Collator.text_length`."""
        return self.max_length

    def collator(
        self, tokenizer: "PreTrainedTokenizerBase", languages: Languages | None = None, draws: bool = False
    ) -> Collator:
        """Its collator, given those of these options that it takes; `draws`: an objective that reads its rows needs
        random numbers."""
        # by name, so that an option which a file adds cannot be forgotten here
        taken = inspect.signature(self.collator_class).parameters
        options = {item.name: getattr(self, item.name) for item in fields(self)} | {"languages": languages}
        options = {name: value for name, value in options.items() if name in taken}
        return self.collator_class(tokenizer, **options, **({"draws": True} if draws else {}))

    def predictions(self, fields: Mapping[str, Any]) -> int:
        """Returns the number of predictions in a set of inputs of its sub-batch."""
        return int(fields["labels"].ne(IGNORED).sum())

    def reads_corpus(self, corpus: Any, languages: Languages | None) -> bool:
        """Whether it learns from a corpus: text of its kind."""
        return corpus.kind == self.text


@dataclass
class MaskedObjective(ExampleObjective):
    """An objective that predicts masked tokens."""

    mask_probability: float = option(
        0.15, "share of tokens that the model predicts; special tokens do not count", above=0, below=1
    )

    is_masked_lm: ClassVar[bool] = True


@dataclass
class PackableObjective(MaskedObjective):
    """An objective whose examples may share rows."""

    packed: bool = option(
        False,
        "true: an example is a bin of short texts, at most max_length tokens in all, and batch_size counts bins. Each "
        "text stays a row that sees no other text. Steps are then similar in size, and with model.skip_padding short "
        "texts take no more time than long ones. Needs text that is not streamed",
    )
