"""ERNIE-M's back-translation masked LM (Ouyang et al., EMNLP 2021, section 3.1, Figures 3 and 4)."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from crosslingual_zoo.pretraining.data.examples import SPECIALS_OF_PAIR, SPECIALS_OF_TEXT
from crosslingual_zoo.pretraining.data.languages import target_languages
from crosslingual_zoo.pretraining.objectives.base import SHORTEST, TARGET, Collator
from crosslingual_zoo.pretraining.objectives.camlm import CamlmCollator
from crosslingual_zoo.pretraining.rows import Rows
from crosslingual_zoo.zoo_core.keyed_random import key_stream, uniform_of
from crosslingual_zoo.zoo_core.recipes import LARGEST, option

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class BtmlmCollator(Collator):
    """ERNIE-M's back-translation masked LM of monolingual text: a text is predicted with pseudo tokens behind it.

    Equation: L = -sum_{i in M} log p(x_i | x_{\\M}, p), with p the tokens that the model has generated.

        first step, `generation_mask`      second step, `attention_mask`
              a a p p                            a m b b
          a   x x . .                        a   x x x x
          a   x x . .                        m   x x x x
          p   x x x .                        b   x x x x
          p   x x . x                        b   x x x x

    A text of n tokens is followed by k = max(1, round(`pseudo_share` n)) pseudo positions p: <mask> in a target
    language, which is drawn at random. The first step fills them without gradient; each sees the unmasked text and
    itself. The second step predicts masked tokens of the text.

    Examples: `{"text": "The house is small.", "language": "en"}`.

    Args:
        languages: `model.config.languages`, two or more.
        pseudo_share: pseudo positions per token of the text.
        target_languages: languages of the pseudo tokens: those `paired` with the text's language, or `all` others.
        tokenizer, mask_probability, max_length: see `Collator`.

    Raises:
        ValueError: options out of range, or fewer than two languages.

    Source: ERNIE-M (Ouyang et al., EMNLP 2021), section 3.1.
    """

    max_length: Annotated[int, Ge(SHORTEST), LARGEST] = option(
        256, "longest text in tokens, with its pseudo tokens and special tokens"
    )
    pseudo_share: Annotated[float, Gt(0), Le(1)] = option(
        0.2, "pseudo tokens per token of a text; each text gets at least one (ERNIE-M, Figure 5: 0.05, 0.1, 0.15, 0.2)"
    )
    target_languages: Literal["paired", "all"] = option(
        "paired",
        "languages of the pseudo tokens, sampled by the size of their pairs to the power alpha: those that `bitext` "
        "pairs with the text's language (a text without is left out), or all others of `bitext`",
    )

    name, text = "btmlm", "monolingual"
    language_share = 1.0
    own_mask = True
    is_masked_lm = False

    # pyrefly: ignore[bad-function-definition]  # InitVar passes them, see `Collator`
    def __post_init__(self, tokenizer: Any, languages: Any, draws: bool) -> None:
        super().__post_init__(tokenizer, languages, draws)
        if tokenizer is not None and (self.languages is None or len(self.languages.rows) < 2):
            raise ValueError("BTMLM needs two languages or more. Pass languages=model.config.languages.")
        if self.target_languages not in ("paired", "all") or not 0 < self.pseudo_share <= 1:
            raise ValueError(
                "target_languages must be paired or all, and pseudo_share above 0 and at most 1, "
                f"got {self.target_languages!r} and {self.pseudo_share}."
            )

    @property
    def text_length(self) -> int:
        """Positions of a text, which leave room for its pseudo tokens."""
        return length_of_text(self.max_length, self.pseudo_share)

    def reads_corpus(self, corpus: Any) -> bool:
        """Returns whether a corpus is text in a language that can be translated into another."""
        if not super().reads_corpus(corpus):
            return False
        targets, _ = self.languages.targets(corpus.languages[0], self.target_languages)
        return len(targets) > 0

    def arrange(
        self, sides: list[list[np.ndarray]], codes: Sequence[tuple[str, ...]], keys_B: np.ndarray
    ) -> tuple[list[list[np.ndarray]], Sequence[tuple[str, ...]]]:
        """Returns the texts and their pseudo positions, as <mask>, with a target language drawn for each."""
        length_B = np.array([len(tokens) for tokens in sides[0]])
        room_B = (self.max_length - SPECIALS_OF_PAIR - length_B).clip(min=0)
        count_B = np.minimum(pseudo_count(length_B, self.pseudo_share), room_B)
        # pseudo positions are all equal, so they are views of one array
        slots = np.full(count_B.max(), self.tokenizer.mask_token_id, dtype=np.int32)
        pseudo = [slots[:count] for count in count_B]
        return [*sides, pseudo], self._with_targets(codes, keys_B)

    def rows(self, sides: list[list[np.ndarray]], keys_B: np.ndarray, language_rows_SB: np.ndarray) -> dict:
        """Returns the fields, with the mask of the first step and the positions that it fills."""
        from crosslingual_zoo.modeling.attention_masks import (
            btmlm_generation_mask,  # with transformers, which takes seconds to import
        )

        fields = super().rows(sides, keys_B, language_rows_SB)
        is_pseudo_BT = (fields["segment_ids"] == 1) & fields["input_ids"].eq(self.tokenizer.mask_token_id)
        fields["generation_mask"] = btmlm_generation_mask(fields["attention_mask"], fields["segment_ids"])
        fields["pseudo_positions"] = is_pseudo_BT.flatten().nonzero().squeeze(1)
        return fields

    def mask(self, rows: Rows, keys_B: np.ndarray, candidates_BT: np.ndarray | None = None) -> np.ndarray:
        """Returns labels of the text alone: its pseudo tokens are not predicted."""
        return super().mask(rows, keys_B, rows.of_side[0])

    def check(self, path: str, phases: Sequence, corpora: Mapping, config: Any, learned: Mapping[str, Any]) -> None:
        """Raises ValueError without pairs of the languages, or without language embeddings; warns if the model cannot
        translate."""
        pairs = [corpus.codes for corpus in corpora.values() if corpus.kind == "bitext"]
        texts = [corpus for corpus in phases[-1].read(corpora).values() if corpus.kind == self.text]
        if not any(target_languages(corpus.codes[0], pairs, self.target_languages) for corpus in texts):
            raise ValueError(f"{path} generates pseudo tokens, but no pair of `bitext` has its languages. Add pairs.")
        if not getattr(config, "languages", None):
            raise ValueError(f"{path} needs language embeddings. Set model.config.languages.")
        learns = any(CamlmCollator.name in phase.objectives for phase in phases)
        if not learns and not learned.get("languages"):
            logger.warning(
                f"{path} generates pseudo tokens, but the model has not learned to translate: they will be noise. Add "
                f"{CamlmCollator.name} to this phase or an earlier one, or start from a checkpoint with it."
            )

    def _with_targets(self, codes_B1: Sequence[tuple[str, ...]], keys_B: np.ndarray) -> list[tuple[str, str]]:
        """Returns the language of each text, and the one into which it is back-translated."""
        codes = [code for code, *_ in codes_B1]
        targets = {code: self.languages.targets(code, self.target_languages) for code in set(codes)}
        numbers = uniform_of(key_stream(keys_B, TARGET)).tolist()
        pairs = []
        for code, number in zip(codes, numbers, strict=False):
            names, shares = targets[code]  # a sample of them, by inversion
            sampled = int(np.searchsorted(shares.cumsum()[:-1], number, side="right"))
            pairs.append((code, names[sampled]))
        return pairs


def pseudo_count(tokens: int | np.ndarray, share: float) -> int | np.ndarray:
    """Returns the number of pseudo tokens of a text with this many tokens (ERNIE-M, section 4.3)."""
    return np.maximum(1, np.rint(share * tokens)).astype(np.int64)


def length_of_text(max_length: int, share: float) -> int:
    """Returns the most positions of a text, with special tokens, that fit into `max_length` with the pseudo tokens.

    A text of n tokens gets round(share x n) pseudo tokens, at least one, and two more special tokens.
    """
    return int((max_length - SPECIALS_OF_PAIR) / (1 + share)) + SPECIALS_OF_TEXT
