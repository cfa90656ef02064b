"""Which characters of a text a token has."""

import contextlib
from collections.abc import Generator
from typing import Any

from tokenizers import processors

PROBE = "Jan ging (met 12 katten)."


@contextlib.contextmanager
def untrimmed_offsets(tokenizer: Any) -> Generator[None]:
    """Calls of a fast tokenizer inside this context give offsets that may begin with the white space before a word.

    `trim_offsets` of byte-level tokenizers removes that space from the offsets. Where the tokenizer has split the text
    at white space before (as RobBERT's), there is none, and the first letter is removed in its place.
    """
    trimming = [processor for processor in _post_processors(tokenizer) if getattr(processor, "trim_offsets", False)]
    for processor in trimming:
        processor.trim_offsets = False
    try:
        yield
    finally:
        for processor in trimming:
            processor.trim_offsets = True


def _post_processors(tokenizer: Any) -> list[Any]:
    """The post-processors of a tokenizer, those of a sequence one by one."""
    backend = getattr(tokenizer, "backend_tokenizer", None)  # a tokenizer with its own code may have none
    processor: Any = getattr(backend, "post_processor", None)
    if isinstance(processor, processors.Sequence):
        return list(processor)  # pyrefly: ignore[bad-argument-type]  # its types lack what iterates over it
    return [] if processor is None else [processor]


def check_offsets(tokenizer: Any) -> None:
    """Raises ValueError for a tokenizer that is not fast, and for one that leaves out a part of a word in its offsets,
    also where they are not trimmed."""
    name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise ValueError(
            f"The tokenizer {name} does not say which characters a token has. Name a fast one, with a "
            "tokenizer.json, as `tokenizer`."
        )
    with untrimmed_offsets(tokenizer):
        offsets = tokenizer(PROBE, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    covered = {character for begin, end in offsets for character in range(begin, end)}
    position = 0
    for word in PROBE.split(" "):
        missing = set(range(position, position + len(word))) - covered
        if missing and len(missing) < len(word):  # a tokenizer may know none of the characters
            tokens = [PROBE[begin:end] for begin, end in offsets]
            raise ValueError(
                f"The tokenizer {name} does not say which characters a token has: of "
                f"{PROBE!r}, its tokens have {tokens}. Name another one as `tokenizer`."
            )
        position += len(word) + 1
