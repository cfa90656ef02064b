"""What the objectives share: the options of a recipe's `objectives.<name>`, and the collator that masks text.

An objective is one dataclass, a file of this folder. Its fields are its options. With a tokenizer it is a data
collator, which alone chooses the tokens to predict and makes the attention mask. `--help` reads these files, so they
import torch and transformers in the functions that need them.

In the pictures a row attends to the columns marked `x`; `m` is a masked token, `a` and `b` are tokens of the two sides,
and special tokens belong to their side.

Legend: `B` rows of a micro-batch, `T` positions of its longest row, `S` sides of an example (1 or 2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt
from omegaconf import MISSING

from crosslingual_zoo.pretraining.data.examples import SPECIALS_OF_TEXT, Texts, cut_sides, encode_texts, random_window
from crosslingual_zoo.pretraining.data.languages import Languages
from crosslingual_zoo.pretraining.rows import Rows, as_tensors, inputs_of, lay_out
from crosslingual_zoo.zoo_core.keyed_random import bits_of, key_stream, row_keys, short_seed, uniform_of
from crosslingual_zoo.zoo_core.masking import IGNORED, mask_rows
from crosslingual_zoo.zoo_core.recipes import LARGEST, BatchSize, nearest, option

# streams of a row's random numbers: which side comes first, the language of its pseudo tokens, DWA's draws, the masks
# of the two sides if they are masked separately, whether <mask> carries its language
ORDER, TARGET, DRAW, X_MASKS, Y_MASKS, LANGUAGE = range(1, 7)

UNDETERMINED = "und"  # ISO 639-2: the language of an example without one
SHORTEST = 8  # lowest `max_length`


@dataclass(kw_only=True)
class Objective:
    """One objective of a phase, by its options in a recipe. The model class names its losses."""

    weight: Annotated[float, Ge(0)] = option(
        1.0, "weight of this objective in the loss; 0: the model does not learn it"
    )

    name: ClassVar[str]
    text: ClassVar[Literal["monolingual", "bitext", "linked"]]  # the corpora that it reads
    reads: ClassVar[str] = ""  # the objective whose rows it learns from; empty: its own
    reads_draws: ClassVar[bool] = False  # whether it needs a random number at each position of these rows
    has_teacher: ClassVar[bool] = False  # whether the recipe's `teacher` adds its predictions to these rows
    own_mask: ClassVar[bool] = False  # whether its rows have (B, T, T) masks, which flash attention does not support
    is_masked_lm: ClassVar[bool] = False  # whether its loss is masked language modeling, which every model has
    terms: ClassVar[Sequence[str]] = ()

    def check(self, path: str, phases: Sequence, corpora: Mapping, config: Any, learned: Mapping[str, Any]) -> None:
        """Raises ValueError if the last of the `phases` has no text for it among the recipe's `corpora`, or if the
        model cannot learn it; warns if it would learn noise. `path` is its place in the recipe, for messages;
        `learned` is the configuration of the checkpoint from which the run starts, empty for random weights.
        """


@dataclass(kw_only=True)
class Collator(Objective):
    """A data collator: makes a batch for `<Model>ForPreTraining.forward` from examples.

        collate = CamlmCollator(tokenizer)
        loader = DataLoader(dataset, batch_size=8, collate_fn=collate)

    An example is a dict with the keys of `keys`. Its values are texts, or token ids without special tokens; other keys
    are ignored. A longer text is cut to a window of `max_length` positions at a random offset. Of a longer pair, the
    longer side is cut first. Tokens are masked 80/10/10 (BERT section 3.1). Every call draws new masks from torch's
    generator, in each process others; `torch.manual_seed` repeats them.

    Args:
        tokenizer: that of the model, with a mask token.
        mask_probability: share of the ordinary tokens that is predicted.
        max_length: positions of a row, with special tokens.
        languages: `model.config.languages` of a model whose <mask> carries a language. Examples then name their
            languages: `language`, or `source_language` and `target_language`. Default, or empty: <mask> carries none.
        draws: rows also have a random number at each position, `draws`. XLM-Align needs it if `config.query_positions`
            is unmasked or all_aligned.
        batch_size, weight: options of a recipe.

    Raises ValueError for options out of range, and for a tokenizer without a mask token.
    """

    if TYPE_CHECKING:  # these arguments, which are no options of a recipe, become attributes
        tokenizer: Any = field(default=None, kw_only=False)
        languages: Any = None  # the attribute: a `Languages`, or None
        draws: bool = False
    else:
        tokenizer: InitVar[Any] = field(default=None, kw_only=False)
        languages: InitVar[Any] = None
        draws: InitVar[bool] = False
    batch_size: BatchSize = option(MISSING, "examples per step, of all processes and micro-batches; a pair is one")
    max_length: Annotated[int, Ge(SHORTEST), LARGEST] = option(
        256,
        "tokens of the longest example, or of its longest side if the sides are separate inputs, with special tokens",
    )
    mask_probability: Annotated[float, Gt(0), Lt(1)] = option(0.15, "share of ordinary tokens that the model predicts")

    is_masked_lm = True
    keys: ClassVar[tuple[str, ...]] = ("text",)
    apart: ClassVar[bool] = False  # whether the two sides (of monolingual text, adjacent segments) are separate inputs
    # share of training rows in which <mask> carries a language; 1: of held-out rows too
    language_share: ClassVar[float] = 0.0

    # pyrefly: ignore[bad-function-definition]  # InitVar passes them, see above
    def __post_init__(self, tokenizer: Any, languages: Any, draws: bool) -> None:
        self.tokenizer = tokenizer
        self.languages = languages or None
        self.draws = draws
        if not 0 <= self.mask_probability < 1:
            raise ValueError(f"mask_probability must be from 0 to below 1, got {self.mask_probability!r}.")
        if not isinstance(self.max_length, int) or self.max_length < SHORTEST:
            raise ValueError(f"max_length must be a whole number of at least {SHORTEST}, got {self.max_length!r}.")
        is_collator = tokenizer is not None or languages or draws
        if is_collator and getattr(tokenizer, "mask_token_id", None) is None:
            raise ValueError(f"the tokenizer, {str(tokenizer)[:50]}, has no mask token. Use that of a masked LM.")
        if self.languages and not isinstance(languages, Languages):
            if isinstance(languages, str):
                raise ValueError(f"languages must be a list of language codes, got {languages!r}.")
            self.languages = Languages.among(languages)

    @property
    def text_length(self) -> int:
        """Positions of an example's text, with special tokens: below `max_length` if the model generates a side."""
        return self.max_length

    @cached_property
    def vocabulary(self) -> np.ndarray:
        """(K,) ids of ordinary tokens, for random replacements of masked tokens."""
        ids = np.arange(len(self.tokenizer))
        return np.setdiff1d(ids, self.tokenizer.all_special_ids).astype(np.int32)

    @cached_property
    def is_text_token(self) -> np.ndarray:
        """(V,) whether a text may hold this id: of an ordinary token, or of the unknown one."""
        is_text_token = np.zeros(len(self.tokenizer), dtype=bool)
        is_text_token[self.vocabulary] = True
        if self.tokenizer.unk_token_id is not None:
            is_text_token[self.tokenizer.unk_token_id] = True
        return is_text_token

    def reads_corpus(self, corpus: Any) -> bool:
        """Returns whether it learns from a corpus: text of its kind."""
        return corpus.kind == self.text

    def predictions(self, sub_batch: dict[str, Any]) -> int:
        """Returns the number of predictions of a term of its loss."""
        return sum(len(inputs["prediction_positions"]) for inputs in inputs_of(sub_batch))

    def measure(self, model: Any, accelerator: Any, corpus: Any, batch_size: int) -> dict[str, float]:
        """Returns figures of a corpus' held-out examples in addition to losses."""
        return {}

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, dict]:
        """Returns the batch of some examples, `{name: sub-batch}`, for `model(**batch)` of `<Model>ForPreTraining`.

        A sub-batch has `input_ids`, `labels` (-100 where nothing is predicted), `segment_ids` and `special_tokens_mask`
        (B, T); `attention_mask` (B, T), or boolean (B, T, T), True where the row may attend to the column. It also has
        what the model would otherwise wait for a GPU to tell: `text_lengths`, a list of B numbers of tokens, and
        `prediction_positions` (N,), where the labels are in the flattened (B * T) rows. Numbers of Python stay on the
        CPU, where sizes are needed; tensors go to the device. If the two sides are separate inputs, each has these
        fields.

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
        codes = self._codes(examples)
        names = ["-".join(codes_of_sides) for codes_of_sides in codes]
        ids = np.arange(len(examples), dtype=np.int64)
        texts = Texts(self._read(examples, seed), names, ids, np.zeros_like(ids))
        return {self.name: self.sub_batch(texts, (seed,), codes=codes)}

    def _codes(self, examples: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
        """Returns the languages of each example's sides, if <mask> may carry them; else unknown ones."""
        if not self.languages or not self.language_share:
            return [(UNDETERMINED,) * len(self.keys[:2])] * len(examples)
        keys = ["language"]
        if len(self.keys) > 1:
            keys = [f"{key}_language" for key in self.keys]
        columns = [self._values(examples, key) for key in keys]
        for code in chain.from_iterable(columns):
            if code not in self.languages.rows:
                raise ValueError(f"{code!r} is not a language of the model. {nearest(code, self.languages.rows)}")
        return list(zip(*columns, strict=True))

    def sub_batch(
        self,
        texts: Texts,
        key: tuple[int | str, ...],
        training: bool = True,
        codes: Sequence[tuple[str, ...]] | None = None,
    ) -> dict:
        """Returns a sub-batch as `__call__` does, with `corpus_names`, a list of B names, and `examples` (B,), ids.

        Random numbers depend on `key`, such as (seed, phase), objective, corpus, epoch and example, so that an example
        gets the same masks in every batching. `codes` are the languages of each example's sides, by default those of
        its corpus. The texts must already fit into a row. A row without predictions is valid.
        """
        import torch

        seeds = {corpus: short_seed(*key, self.name, corpus) for corpus in set(texts.names)}
        seeds_B = np.array([seeds[corpus] for corpus in texts.names], dtype=np.uint64)
        keys_B = row_keys(seeds_B, texts.epochs, texts.ids)
        # evaluation is like use, where <mask> of a text or pair carries no language
        carries_languages = self.language_share == 1 or (self.language_share > 0 and training)
        if not self.languages or not carries_languages:
            codes = []
        elif codes is None:
            codes = [self.languages.of_corpus[name] for name in texts.names]
        sides, codes = self.arrange(texts.sides, codes, keys_B)
        rows_SB = self._language_rows(codes, keys_B)
        fields = self.rows(sides, keys_B, rows_SB)
        for inputs in inputs_of(fields):
            hand_over_sizes(inputs)
        return fields | {"corpus_names": texts.names, "examples": torch.from_numpy(texts.ids)}

    def _language_rows(self, codes: Sequence[tuple[str, ...]], keys_B: np.ndarray) -> np.ndarray:
        """Returns (S, B) rows of the language embedding, see `rows`."""
        if not codes:
            return np.empty((0, len(keys_B)), dtype=np.int64)
        sides = []
        for codes_of_side in zip(*codes, strict=True):
            sides.append([self.languages.rows[code] for code in codes_of_side])
        rows_SB = np.array(sides)
        if self.language_share < 1:  # other rows train the <mask> of later use, which carries none
            is_carried_B = uniform_of(key_stream(keys_B, LANGUAGE)) < self.language_share
            rows_SB = np.where(is_carried_B, rows_SB, -1)
        return rows_SB

    def arrange(
        self, sides: list[list[np.ndarray]], codes: Sequence[tuple[str, ...]], keys_B: np.ndarray
    ) -> tuple[list[list[np.ndarray]], Sequence[tuple[str, ...]]]:
        """Returns the tokens of each side of B rows, in order, and the language of each side (empty if <mask> carries
        none)."""
        return sides, codes

    def rows(self, sides: list[list[np.ndarray]], keys_B: np.ndarray, language_rows_SB: np.ndarray) -> dict:
        """Returns the (B, T) fields: laid out, masked and padded. `language_rows_SB` are rows of the language
        embedding, -1 if <mask> carries none; empty if none does."""
        rows = lay_out(sides, self.tokenizer)
        labels_BT = self.mask(rows, keys_B)
        is_padding_BT = rows.segment_ids < 0
        arrays = {"labels": labels_BT}
        if len(language_rows_SB):
            first_B1 = language_rows_SB[0, :, None]
            last_B1 = language_rows_SB[-1, :, None]
            language_ids = np.where(rows.segment_ids == 1, last_B1, first_B1)
            arrays["language_ids"] = np.where(is_padding_BT, 0, language_ids)  # any value: padding is not <mask>
        if self.draws:
            from crosslingual_zoo.modeling.denoising_word_alignment import DRAWS

            bits_BT = bits_of(key_stream(keys_B, DRAW), is_padding_BT.shape[1])
            arrays["draws"] = np.where(is_padding_BT, 0, bits_BT % DRAWS)
        return rows.fields() | as_tensors(**arrays)

    def mask(self, rows: Rows, keys_B: np.ndarray, candidates_BT: np.ndarray | None = None) -> np.ndarray:
        """Returns (B, T) labels of rows, and replaces the predicted tokens in their `input_ids`, 80/10/10.

        `candidates_BT`: tokens that may be predicted, by default all ordinary ones.
        """
        labels_BT = np.full_like(rows.input_ids, IGNORED)
        if candidates_BT is None:
            candidates_BT = rows.tokens
        # predicting the unknown token would teach which words the tokenizer lacks
        is_known_BT = candidates_BT & (rows.input_ids != self.tokenizer.unk_token_id)
        mask_rows(
            rows.input_ids,
            labels_BT,
            is_known_BT,
            self.mask_probability,
            keys_B,
            self.tokenizer.mask_token_id,
            self.vocabulary,
        )
        return labels_BT

    def _read(self, examples: Sequence[Mapping[str, Any]], seed: int) -> list[list[np.ndarray]]:
        """Returns the tokens of each side of the examples, cut to a row's length."""
        sides = [self._tokens(self._values(examples, key), key) for key in self.keys]
        if len(sides) == 2:
            return cut_sides(sides, self.text_length, self.apart)
        # at random, so that all parts of a long text are used over time
        room = self.text_length - SPECIALS_OF_TEXT
        windows = [random_window(ids, room, seed, "window", number) for number, ids in enumerate(sides[0])]
        return [windows]

    def _values(self, examples: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
        """Returns the values of a key. Raises ValueError for an example without it."""
        if not all(isinstance(example, Mapping) and key in example for example in examples):
            raise ValueError(f"{type(self).__name__} takes a list of dicts, each with the key {key!r}.")
        return [example[key] for example in examples]

    def _tokens(self, values: list[Any], key: str) -> list[np.ndarray]:
        """Returns texts and lists of ids as arrays (T,) int32."""
        texts: list[str | None] = [value for value in values if isinstance(value, str)]
        encoded = iter(encode_texts(texts, self.tokenizer) if texts else [])
        arrays = []
        for value in values:
            ids = next(encoded) if isinstance(value, str) else value
            arrays.append(np.asarray(ids))
        if not self._are_texts(arrays):
            are_texts = [self._are_texts([ids]) for ids in arrays]
            number = are_texts.index(False)
            raise ValueError(
                f"{type(self).__name__}: {key!r} of example {number} is {str(values[number])[:80]!r}. It must be a "
                "text, or a list of the tokenizer's ids, with at least one token and without special tokens."
            )
        return [ids.astype(np.int32) for ids in arrays]

    def _are_texts(self, arrays: list[np.ndarray]) -> bool:
        """Returns whether each array holds the ids of a text, without special tokens; in a few calls for all arrays."""
        are_lists_of_ids = [ids.ndim == 1 and len(ids) > 0 and ids.dtype.kind in "iu" for ids in arrays]
        if not all(are_lists_of_ids):
            return False
        ids_F = np.concatenate(arrays, dtype=np.int64, casting="unsafe")
        if ids_F.min() < 0 or ids_F.max() >= len(self.is_text_token):
            return False
        return bool(self.is_text_token[ids_F].all())


def hand_over_sizes(inputs: dict[str, Any]) -> None:
    """Adds to a set of inputs what the model would otherwise wait for a GPU to tell: `text_lengths`, a list, and the
    `prediction_positions`, a tensor. Whoever changes padding or labels later removes them."""
    inputs["text_lengths"] = inputs["segment_ids"].ge(0).sum(1).tolist()
    if "labels" in inputs:
        inputs["prediction_positions"] = inputs["labels"].flatten().ne(IGNORED).nonzero().squeeze(1)
