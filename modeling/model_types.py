# SPDX-License-Identifier: Apache-2.0
"""The model types of the zoo and those that it starts from, and how they count positions."""

# our types -> how their classes are called; the installed classes load them, and no code of a checkpoint
MODEL_TYPES = {"xlm_align": "XlmAlign", "ernie_m": "ErnieM", "metaxlm": "MetaXlm", "veco": "Veco"}
OF_ROBERTA = ("xlm-roberta", "roberta", "camembert", *MODEL_TYPES)
# Types whose weights have our encoder's layout; only what a paper adds is fresh. BERT's have other names.
LOADABLE = (*OF_ROBERTA, "bert")
# Types of transformers that count positions from behind the padding's row, as RoBERTa does; others count from 0.
FROM_PADDING = (*OF_ROBERTA, "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta-prelayernorm")
FROM_PADDING += ("xlm-roberta-xl", "xmod")


def first_position(config) -> int:
    """The position of an input's first token in a model of this configuration, ours or another."""
    from_zero = getattr(config, "positions_from_zero", False) or getattr(config, "backbone_config", None) is not None
    return config.pad_token_id + 1 if getattr(config, "model_type", None) in FROM_PADDING and not from_zero else 0


def longest_input(config) -> int | None:
    """Longest input in tokens, special tokens included; None where the model sets no limit."""
    longest = getattr(config, "max_position_embeddings", None)
    return longest and longest - first_position(config)
