"""Masking under the name that the objectives know it by; `finetuning` masks sources with the same functions."""

from common.masking import IGNORED, MASK_SHARE, RANDOM_SHARE, keyed_rng, keyed_seed, mask_pieces

__all__ = ["IGNORED", "MASK_SHARE", "RANDOM_SHARE", "keyed_rng", "keyed_seed", "mask_pieces"]
