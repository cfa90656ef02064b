"""Prints which tokens of a batch attend to which, as in the collators' docstrings."""

from collections.abc import Mapping
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
            x, y = (_panel(fields[side], row, letter) for side, letter in zip(SIDES, "ab", strict=True))
            _print(f"{name}, x", x, y)
            _print(f"{name}, y", y, x)
        elif "generation_mask" in fields:
            _print(f"{name}, first step", _panel(fields, row, "ap", "generation_mask"))
            _print(f"{name}, second step", _panel(fields, row))
        else:
            _print(name, _panel(fields, row))


def _panel(fields: Mapping[str, Any], row: int, letters: str = "ab", mask: str = "attention_mask") -> tuple[list, Any]:
    """A sign for each token of a row, and its mask (T,) or (T, T); padding, at the end, has no sign."""
    signs = []
    for segment, label in zip(fields["segment_ids"][row].tolist(), fields["labels"][row].tolist(), strict=True):
        if segment >= 0:
            letter = letters[segment]
            signs.append({"a": "m", "b": "m'"}.get(letter, letter) if label != IGNORED and letters != "ap" else letter)
    return signs, fields[mask][row]


def _print(title: str, *panels: tuple[list, Any]) -> None:
    lines = panels[0][0]
    header, marks = [], [[] for _ in lines]
    for columns, mask in panels:
        between = ["|"] * bool(header)
        header += [*between, *columns]
        mask = mask.expand(len(lines), -1) if mask.dim() == 1 else mask
        for of_line, allowed in zip(marks, mask.tolist(), strict=False):  # padding is at the end
            of_line += [*between, *("x" if one else "." for one in allowed[: len(columns)])]
    print(title)
    for sign, of_line in [("", header), *zip(lines, marks, strict=True)]:
        print(f"{sign:3} " + " ".join(f"{mark:2}" for mark in of_line).rstrip())
