"""Checks that a tokenizer and a model belong together."""

from typing import Any

# vocabularies are padded to a multiple of at most this many rows, for speed
LARGEST_VOCABULARY_PADDING = 128


def check_vocabulary(tokenizer: Any, config: Any, tokenizer_name: str, model_name: str, remedy: str) -> None:
    """Raises ValueError if a model has fewer rows than the tokenizer has tokens, far more, or another padding id.

    `remedy` ends the message: a sentence that tells the user what to do.
    """
    tokens, rows = len(tokenizer), config.vocab_size
    if not tokens <= rows < tokens + LARGEST_VOCABULARY_PADDING:
        raise ValueError(
            f"The tokenizer of {tokenizer_name} has {tokens} tokens, and the model of {model_name} has {rows} "
            f"embeddings. {remedy}"
        )
    if None not in (config.pad_token_id, tokenizer.pad_token_id) and config.pad_token_id != tokenizer.pad_token_id:
        raise ValueError(
            f"The padding id is {tokenizer.pad_token_id} in the tokenizer of {tokenizer_name}, but "
            f"{config.pad_token_id} in the model of {model_name}. {remedy}"
        )
