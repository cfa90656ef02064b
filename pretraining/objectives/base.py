"""What all objectives share: the options and the checks of an objective, and the collator that masks its text.

Each objective has a file in this folder. It has a class of options, for a recipe's `objectives.<name>`, and a collator,
which alone chooses the tokens to predict and makes the attention mask. An objective that learns from the rows of
another one has no collator. `--help` reads these files, so they import torch and transformers in the functions that
need them.

In pre-training, random numbers depend on (seed, phase, objective, corpus, epoch, example), so that an example gets the
same masks in every batching. In the pictures a row attends to the columns marked `x`; `m` is a masked token, `a` and
`b` are tokens of the two sides, and special tokens belong to their side.

Legend: `B` rows of a micro-batch, `T` positions of its longest row, `S` sides of an example (1 or 2).
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt
from omegaconf import MISSING

from pretraining.data.examples import SPECIALS_OF_TEXT, Texts, cut_sides, encode_texts, random_window
from pretraining.data.languages import Languages
from pretraining.rows import Rows, as_tensors, lay_out, side_lengths
from zoo_core.keyed_random import bits_of, key_stream, row_keys, short_seed, uniform_of
from zoo_core.masking import IGNORED, mask_rows
from zoo_core.recipes import LARGEST, BatchSize, nearest, option

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from pretraining.held_out import Evaluator

# streams of a row's random numbers: which side comes first, the language of its pseudo tokens, DWA's draws, the masks
# of the two sides if they are masked separately, whether <mask> carries its language
ORDER, TARGET, DRAW, X_MASKS, Y_MASKS, LANGUAGE = range(1, 7)

UNDETERMINED = "und"  # ISO 639-2: the language of an example without one
SHORTEST = 8  # lowest `max_length`


@dataclass
class Sides:
    """The examples of a micro-batch, arranged for its rows."""

    tokens: list[list[np.ndarray]]  # of each side, those of B examples
    lengths_SB: np.ndarray
    codes: list[tuple[str, ...]]  # the language of each side of each example; empty if <mask> carries none


class Collator:
    """A data collator: makes a batch for `<Model>ForPreTraining.forward` from examples.

    It lays out rows, masks them 80/10/10 (BERT section 3.1) and pads them, for all objectives.

        collate = CamlmCollator(tokenizer)
        loader = DataLoader(dataset, batch_size=8, collate_fn=collate)

    An example is a dict with the keys of `keys`. Its values are texts, or token ids without special tokens; other keys
    are ignored. A longer text is cut to a window of `max_length` positions at a random offset. Of a longer pair, the
    longer side is cut first. Every call draws new masks from torch's generator; `torch.manual_seed` repeats them.
    Processes with the same seed draw different masks.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ("text",)
    apart: ClassVar[bool] = False
    """Whether the two sides of an example are separate inputs."""
    language_share: ClassVar[float] = 0.0
    """Share of the training rows in which <mask> carries its language; 1: also in the held-out rows."""

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
            max_length: positions of a row, with special tokens. A longer text is cut to a window at a random offset;
                of a longer pair, the longer side is cut first.
            languages: `model.config.languages` of a model whose <mask> carries a language. Examples then have the keys
                `language_keys`. Default, or empty: <mask> carries none.
            draws: rows also have a random number at each position, `draws`. XLM-Align needs it if
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
                f"a {type(tokenizer).__name__} has no mask token. Use the tokenizer of a masked language model."
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
        """Returns the keys of an example that name its languages."""
        return ("language",) if len(self.keys) == 1 else tuple(f"{key}_language" for key in self.keys)

    @property
    def _reads_languages(self) -> bool:
        return bool(self.languages and self.language_share)

    @property
    def text_length(self) -> int:
        """Positions of an example's text, with special tokens: below `max_length` if the model generates a side."""
        return self.max_length

    @cached_property
    def vocabulary(self) -> np.ndarray:
        """(K,) ids of ordinary tokens, for random replacements of masked tokens."""
        return np.setdiff1d(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids).astype(np.int32)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, dict]:
        """Returns the batch of some examples, `{name: sub-batch}`, for `model(**batch)` of `<Model>ForPreTraining`.

        A sub-batch has `input_ids`, `labels` (-100 where nothing is predicted), `segment_ids` and `special_tokens_mask`
        (B, T); `attention_mask` (B, T), or boolean (B, T, T), True where the row may attend to the column. If the two
        sides are separate inputs, each has these fields.

        Every call draws new masks from torch's generator; `torch.manual_seed` repeats them.

        Raises ValueError for an example without its keys, of another type, without a token, or with ids that are
        special or unknown to the tokenizer.

        Example:
            >>> batch = collate(examples)
            >>> loss = model(**batch).loss  # nats a predicted token
        """
        import torch

        # from the CPU's generator, with any default device: a worker must not initialize a GPU
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
        """Returns {input_ids, labels, attention_mask, segment_ids, special_tokens_mask, languages, examples}.

        Random numbers depend on `key`, such as (seed, phase). `codes` are the languages of each example's sides, by
        default those of its corpus. The texts must already fit into a row.

        Tensors are (B, T) int64, except `examples` (B,), the examples' ids, and block masks, (B, T, T) boolean.
        `languages` is a list of B corpus names. Rows are not packed, and the model counts the positions of padded rows
        itself. A row without predictions is valid. The unknown token is never predicted, as it has no meaning.
        """
        import torch

        # different masks for examples with the same number in two corpora, and for two objectives with the same example
        seeds = {corpus: short_seed(*key, self.name, corpus) for corpus in set(texts.names)}
        seeds_B = np.fromiter(map(seeds.__getitem__, texts.names), np.uint64, len(texts.names))
        keys_B = row_keys(seeds_B, texts.epochs, texts.ids)
        # evaluation is like use, where <mask> of a text or pair carries no language
        if self._reads_languages and (training or self.language_share == 1):
            codes = [self.languages.of_corpus[name] for name in texts.names] if codes is None else codes
        else:
            codes = []
        sides, facts = self.arrange(Sides(texts.sides, side_lengths(texts.sides), codes), keys_B, training)
        rows = self.rows(sides, keys_B, self._language_rows(sides, keys_B))
        return rows | {"languages": texts.names, "examples": torch.from_numpy(texts.ids)} | facts

    def arrange(self, sides: Sides, keys_B: np.ndarray, training: bool) -> tuple[Sides, dict]:
        """Returns the content of the rows, in order, and other fields of the sub-batch."""
        return sides, {}

    def rows(self, sides: Sides, keys_B: np.ndarray, language_rows_SB: np.ndarray) -> dict:
        """Returns the (B, T) fields: laid out, masked and padded."""
        rows = lay_out(sides.tokens, sides.lengths_SB, self.tokenizer)
        of_rows, is_padding = {"labels": self.mask(rows, keys_B)}, rows.segment_ids < 0
        if len(language_rows_SB):
            first_B1, last_B1 = language_rows_SB[0, :, None], language_rows_SB[-1, :, None]
            language_ids = np.where(rows.segment_ids == 1, last_B1, first_B1)
            of_rows["language_ids"] = np.where(is_padding, 0, language_ids)  # any value: padding is not <mask>
        if self.draws:
            from modeling.denoising_word_alignment import DRAWS

            bits_BT = bits_of(key_stream(keys_B, DRAW), is_padding.shape[1])
            of_rows["draws"] = np.where(is_padding, 0, bits_BT % DRAWS)
        return rows.fields() | as_tensors(**of_rows)

    def mask(self, rows: Rows, keys_B: np.ndarray) -> np.ndarray:
        """Returns (B, T) labels of rows, and replaces the predicted tokens in their `input_ids`."""
        return self.masked(rows, rows.tokens, keys_B)

    def masked(self, rows: Rows, candidates_BT: np.ndarray, keys_B: np.ndarray) -> np.ndarray:
        """Returns (B, T) labels: some of the candidates are predicted, 80/10/10."""
        labels, probability = np.full_like(rows.input_ids, IGNORED), self.mask_probability
        # predicting the unknown token would teach which words the tokenizer lacks
        known = candidates_BT & (rows.input_ids != self.tokenizer.unk_token_id)
        mask_rows(rows.input_ids, labels, known, probability, keys_B, self.tokenizer.mask_token_id, self.vocabulary)
        return labels

    def _language_rows(self, sides: Sides, keys_B: np.ndarray) -> np.ndarray:
        """Returns (S, B) rows of the language embedding, -1 if <mask> carries none; empty if all rows carry none."""
        rows_SB = np.array([[self.languages.rows[code] for code in codes] for codes in sides.codes]).T
        # rows without a language train the <mask> of later use, which carries none
        if len(rows_SB) and self.language_share < 1:
            rows_SB = np.where(uniform_of(key_stream(keys_B, LANGUAGE)) < self.language_share, rows_SB, -1)
        return rows_SB

    def _read(self, examples: Sequence[Mapping[str, Any]], seed: int) -> tuple[Texts, list[tuple[str, ...]]]:
        """Returns the texts of examples, cut to a row's length, and the languages of each."""
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
        """Raises ValueError for a value that is not a list of examples, and for an example as `_check_keys`."""
        if not isinstance(examples, Sequence) or isinstance(examples, str) or not examples:
            what = type(examples).__name__ if not isinstance(examples, list) else "list without any"
            raise ValueError(
                f"{type(self).__name__} takes a list of examples, got a {what}. Pass the collator to a DataLoader or a "
                "Trainer, which collect the rows of a dataset into lists."
            )
        for number, example in enumerate(examples):
            self._check_keys(example, number)

    def _check_keys(self, example: Any, number: int) -> None:
        """Raises ValueError for an example that is not a dict, lacks a key, or has a language unknown to the model."""
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
        """Returns texts and lists of ids as arrays (T,) int32."""
        kind, texts = type(self).__name__, {n: value for n, value in enumerate(values) if isinstance(value, str)}
        found = dict(zip(texts, encode_texts(list(texts.values()), self.tokenizer) if texts else [], strict=True))
        # a text may have the unknown token
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
        # at random, so that all parts of a long text are used over time
        return [random_window(sides[0], self.text_length - SPECIALS_OF_TEXT, seed, "window", number)]


class Collators:
    """Several collators in one: each makes a sub-batch of the examples that have its keys.

    The names are those of the sub-batches, here `mlm` and `tlm`. Several collators may read the same example. If no
    example has all keys of a collator, its name is left out of the batch.

    Raises ValueError without a collator, and for an example that no collator reads.

    Example:
        >>> collate = Collators(mlm=MlmCollator(tokenizer), tlm=TlmCollator(tokenizer))
        >>> batch = collate([{"text": "Ein Haus."}, {"source": "A house.", "target": "Ein Haus."}])
        >>> loss = model(**batch).loss

    Source: XLM (Conneau and Lample, 2019) trains its objectives in turns; here a step has all of them.
    """

    def __init__(self, **collators: Collator):
        if not collators:
            raise ValueError("Collators needs at least one collator, as in Collators(mlm=MlmCollator(tokenizer)).")
        self.collators = collators

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, dict]:
        """Returns the batch of some examples, {name: sub-batch}; see `Collator.sub_batch`."""
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
    """The phase and the model of an objective, for `Objective.check_model`."""

    place: str  # `phases.0.objectives.dwa`
    phase: str  # name of the phase
    together: "Sequence[Objective]"  # all objectives of the phase
    before: "Sequence[Objective]"  # those of the phases before
    config: "PreTrainedConfig"
    source: str  # the name of the configuration in errors
    learned: Mapping[str, Any] | None
    """The configuration of the checkpoint from which the run starts or is resumed; none: random weights."""


@dataclass
class Objective:
    """One objective of a phase: its options in a recipe, and its properties."""

    weight: Annotated[float, Ge(0)] = option(
        1.0, "weight of this objective in the loss; 0: the model does not learn it"
    )

    name: ClassVar[str]
    text: ClassVar[Literal["monolingual", "bitext", "linked"]]
    """The corpora that it reads."""
    loss_terms: ClassVar[tuple[str, ...]] = ()
    """The parts of its loss, each with a curve `<name>.<term>`; none: one loss."""
    reads: "ClassVar[type[MaskedObjective] | None]" = None
    """The objective whose rows it learns from; none: it has its own collator."""
    draws: ClassVar[bool] = False
    """Whether it needs a random number at each position of the rows that it reads."""
    own_mask: ClassVar[bool] = False
    """Whether its collator makes (B, T, T) masks, which flash attention does not support."""
    is_masked_lm: ClassVar[bool] = False
    """Whether its loss is that of masked language modeling, which every model has."""
    predicts_tokens: ClassVar[bool] = True
    """Whether it predicts tokens of the text. Their entropy is the loss of a model without context."""
    has_teacher: ClassVar[bool] = False
    """Whether it learns from the recipe's `teacher`, whose predictions are added to the rows that it reads."""
    panels: ClassVar[dict[str, str]] = {}
    """Panels of curves.png for the figures of `measure`: {beginning of their names: title}."""

    @property
    def learned_terms(self) -> tuple[str, ...]:
        """The terms of `loss_terms` that the phase learns."""
        return self.loss_terms

    @classmethod
    def losses(cls) -> list[str]:
        """Returns the names of its losses in logs and in the model: `[<name>]`, or `[<name>.<term>, ...]`."""
        return [f"{cls.name}.{term}" for term in cls.loss_terms] or [cls.name]

    @classmethod
    def sub_batch(cls) -> str:
        """Returns the name of the sub-batch that it learns from."""
        return cls.reads.name if cls.reads else cls.name

    def loss_weights(self) -> dict[str, float]:
        """Returns the weight of each loss; with weight 0, for a term that is not learned, the model leaves it out."""
        if not self.loss_terms:
            return {self.name: self.weight}
        return {f"{self.name}.{term}": self.weight * (term in self.learned_terms) for term in self.loss_terms}

    @property
    def needs_languages(self) -> bool:
        """Whether <mask> must carry its language, in a model with language embeddings."""
        return False

    def check_model(self, setting: Setting) -> None:
        """Raises ValueError if the model cannot learn it; warns if it would learn noise."""

    def check_text(self, place: str, languages: Sequence[str], pairs: Sequence[tuple[str, str]]) -> None:
        """Raises ValueError for text that it cannot learn from.

        `languages` are those of the phase's monolingual text, `pairs` those of the recipe's translations.
        """

    @staticmethod
    def measure(evaluator: "Evaluator", corpus: Any) -> dict[str, float | list[float]]:
        """Returns figures of a corpus of held-out pairs, in addition to its losses, without gradients."""
        return {}


@dataclass
class ExampleObjective(Objective):
    """An objective with its own examples and its own sub-batch."""

    batch_size: BatchSize = option(
        MISSING, "examples per step, summed over all processes and micro-batches; a pair is one example"
    )
    max_length: Annotated[int, Ge(SHORTEST), LARGEST] = option(
        256,
        "longest example in tokens, special tokens included; where an objective reads the two sides as separate "
        "inputs, the longest side",
    )

    collator_class: ClassVar[type[Collator]]

    @property
    def needs_languages(self) -> bool:
        return self.collator_class.language_share == 1

    @property
    def apart(self) -> bool:
        """Whether the two sides of an example are separate inputs (of monolingual text, adjacent segments)."""
        return self.collator_class.apart

    @property
    def text_length(self) -> int:
        """See `Collator.text_length`."""
        return self.max_length

    def collator(
        self, tokenizer: "PreTrainedTokenizerBase", languages: Languages | None = None, draws: bool = False
    ) -> Collator:
        """Returns its collator with its options; `draws`: an objective that reads its rows needs random numbers."""
        # by name, so that no new option can be forgotten here
        taken = inspect.signature(self.collator_class).parameters
        options = {item.name: getattr(self, item.name) for item in fields(self)} | {"languages": languages}
        options = {name: value for name, value in options.items() if name in taken}
        return self.collator_class(tokenizer, **options, **({"draws": True} if draws else {}))

    def predictions(self, fields: Mapping[str, Any]) -> int:
        """Returns the number of predictions in a set of inputs of its sub-batch."""
        return int(fields["labels"].ne(IGNORED).sum())

    def reads_corpus(self, corpus: Any, languages: Languages | None) -> bool:
        """Returns whether it learns from a corpus: text of its kind."""
        return corpus.kind == self.text


@dataclass
class MaskedObjective(ExampleObjective):
    """An objective that predicts masked tokens."""

    mask_probability: Annotated[float, Gt(0), Lt(1)] = option(
        0.15, "share of tokens that the model predicts; special tokens do not count"
    )

    is_masked_lm: ClassVar[bool] = True
