"""Prints which tokens of a batch attend to which, as in the collators' docstrings."""

from collections.abc import Mapping, Sequence
from typing import Any

from pretraining.rows import SIDES
from zoo_core.masking import IGNORED


def picture(batch: Mapping[str, Mapping[str, Any]], row: int = 0) -> None:
    """Prints which tokens attend to which in one row of each sub-batch of a collator's batch.

    The token of a line attends to the columns marked `x`. `a` and `b` are tokens of the two sides, special tokens
    included. `m` and `m'` are the predicted tokens of the two sides, and `p` the positions that BTMLM's first step
    fills. Where the two sides are separate inputs, a side attends to itself in both streams. In the stream `cross` it
    also attends to the other side, shown after `|`.

    Args:
        batch: `{name: sub-batch}` of (B, T) fields, as a collator returns it.
        row: number of the row, from 0.

    Raises IndexError for a row number that the batch does not have.

    Example:
        >>> picture(CamlmCollator(tokenizer)([{"source": "The house.", "target": "Das Haus."}]))

    Source: the masks of the papers: ERNIE-M, Figures 2 and 4; VECO, Figure 2.
    """
    for name, fields in batch.items():
        if SIDES[0] in fields:
            for own, other in (SIDES, SIDES[::-1]):
                print(f"{name}, {own}")
                signs = {side: _signs(fields[side], row, letters="ab"[SIDES.index(side)]) for side in SIDES}
                lines, others = signs[own], signs[other]
                masks = [
                    _allowed(fields[side]["attention_mask"][row], len(lines), len(signs[side])) for side in (own, other)
                ]
                _print(lines, [*lines, "|", *others], [[*a, None, *b] for a, b in zip(*masks, strict=True)])
            continue
        if "generation_mask" in fields:
            signs = _signs(fields, row, letters="ap", labels=False)
            print(f"{name}, first step")
            _print(signs, signs, _allowed(fields["generation_mask"][row], len(signs), len(signs)))
        signs = _signs(fields, row)
        print(f"{name}, second step" if "generation_mask" in fields else name)
        _print(signs, signs, _allowed(fields["attention_mask"][row], len(signs), len(signs)))


def _signs(fields: Mapping[str, Any], row: int, letters: str = "ab", labels: bool = True) -> list[str]:
    """A sign for each token of a row; padding has none."""
    signs = []
    of_row = zip(fields["segment_ids"][row].tolist(), fields["labels"][row].tolist(), strict=True)
    for segment, label in of_row:
        if segment >= 0:
            letter = letters[segment]
            signs.append({"a": "m", "b": "m'"}[letter] if labels and label != IGNORED else letter)
    return signs


def _allowed(mask: Any, lines: int, columns: int) -> list[list[bool]]:
    """Of a row's mask (T,) or (T, T), which of the first `columns` positions the first `lines` may attend to."""
    if mask.dim() == 1:
        mask = mask.expand(lines, -1)
    return mask[:lines, :columns].bool().tolist()


def _print(lines: Sequence[str], columns: Sequence[str], allowed: Sequence[Sequence[bool | None]]) -> None:
    print("    " + " ".join(f"{sign:2}" for sign in columns).rstrip())
    for sign, marks in zip(lines, allowed, strict=True):
        shown = ["|" if mark is None else "x" if mark else "." for mark in marks]
        print(f"{sign:3} " + " ".join(f"{mark:2}" for mark in shown).rstrip())
