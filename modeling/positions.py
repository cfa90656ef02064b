# SPDX-License-Identifier: Apache-2.0
"""Where an encoder's positions begin, and how many there are: of this zoo's models and of others'."""

from transformers import PreTrainedConfig

# Types whose weights have our encoder's layout; only what a paper adds is fresh. BERT's have other names.
LOADABLE = ("xlm-roberta", "roberta", "camembert", "xlm_align", "ernie_m", "metaxlm", "veco", "bert")
# Types that count positions from behind the padding's row, as RoBERTa does; others count from 0.
FROM_PADDING = (*LOADABLE[:-1], "data2vec-text", "ibert", "longformer", "luke", "mpnet", "roberta-prelayernorm")
FROM_PADDING += ("xlm-roberta-xl", "xmod")


def first_position(config: PreTrainedConfig) -> int:
    """The position of an input's first token in a model of this configuration, of this zoo or another."""
    is_from_zero = getattr(config, "positions_from_zero", False) or getattr(config, "backbone_config", None) is not None
    return 0 if is_from_zero or config.model_type not in FROM_PADDING else config.pad_token_id + 1


def longest_input(config: PreTrainedConfig) -> int | None:
    """Longest input in tokens, special tokens included; None where the model sets no limit."""
    longest = getattr(config, "max_position_embeddings", None)
    return longest and longest - first_position(config)
