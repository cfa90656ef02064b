"""Whether a tokenizer and a model were made for each other, and how long a text they take."""

from typing import Any

# vocabularies are padded to a multiple of at most this many rows, for the hardware's sake
LARGEST_VOCABULARY_PADDING = 128


def check_vocabulary(tokenizer: Any, config: Any, tokenizer_name: str, model_name: str, remedy: str) -> None:
    """Raises ValueError where a model has fewer rows than its tokenizer has tokens, far more, or another padding id.

    `remedy` is a sentence that says what to do.
    """
    tokens, rows = len(tokenizer), config.vocab_size
    if not tokens <= rows < tokens + LARGEST_VOCABULARY_PADDING:
        raise ValueError(
            f"The tokenizer of {tokenizer_name} has {tokens} tokens, and the model of {model_name} {rows} embeddings. "
            f"{remedy}"
        )
    if None not in (config.pad_token_id, tokenizer.pad_token_id) and config.pad_token_id != tokenizer.pad_token_id:
        raise ValueError(
            f"The padding id is {tokenizer.pad_token_id} in the tokenizer of {tokenizer_name} and "
            f"{config.pad_token_id} in the model of {model_name}. {remedy}"
        )


def longest_input(config: Any) -> int:
    """Positions of a model. RoBERTa's family numbers them from the padding id on: two of 514 are never used."""
    return getattr(config, "longest_input", None) or config.max_position_embeddings - (
        config.pad_token_id + 1 if config.pad_token_id else 0
    )
