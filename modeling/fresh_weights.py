# SPDX-License-Identifier: Apache-2.0
"""Which weights of a loaded model are random, because its checkpoint lacks them; an encoder's must not be."""

import logging
import re

logger = logging.getLogger(__name__)

LAYER = re.compile(r"(^|\.)layers?\.\d+\.")
POOLER = re.compile(r"(^|\.)pooler\.")
# what training may add to an encoder: also VECO's cross-attention and ERNIE-M's language embeddings
ADDED = re.compile(r"(^|\.)(pooler|crossattention|language_embeddings)\.")
CROSS_ATTENTION = re.compile(r"\.crossattention\.")
# what DDP, torch.compile, FSDP and activation checkpointing put into names; a prefix may be any
WRAPPERS = re.compile(r"(?<=\.)(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def fresh_weights(model, report: dict, name: str, is_whole: bool = False) -> list[str]:
    """The names of the weights that a checkpoint lacks, or has in another shape: they start at random.

    Args:
        model: what `from_pretrained` returned.
        report: what it returned in addition, with `output_loading_info=True` and `ignore_mismatched_sizes=True`.
        name: the checkpoint, as the user knows it.
        is_whole: whether the model is used as it is, so that only a pooler may be fresh. Else it is trained next: heads
            may be fresh, and `ADDED`.

    Weights of more layers than the configuration counts are named in a line of the log.

    Raises ValueError for any other weight, for one that the checkpoint has under a wrapper's name, and for a
    cross-attention that the checkpoint has in part.
    """
    reshaped, encoder = {key[0] for key in report["mismatched_keys"]}, f"{model.base_model_prefix}."
    fresh = sorted({*report["missing_keys"], *reshaped})
    if is_whole:
        lacking = [key for key in fresh if not POOLER.search(key)]
    else:
        lacking = [key for key in fresh if key.startswith(encoder) and not ADDED.search(key)]
    unwrapped = {WRAPPERS.sub("", f".{key}"): key for key in sorted(report["unexpected_keys"])}
    # of the parts that may be fresh, those that the checkpoint has are not, under a wrapper's name or in part
    lacking = lacking or [key for key in fresh if f".{key}" in unwrapped]
    if not lacking and any(map(CROSS_ATTENTION.search, model.state_dict().keys() - set(fresh))):
        lacking = list(filter(CROSS_ATTENTION.search, fresh))
    if not lacking:
        beyond = [key for key in filter(LAYER.search, unwrapped.values()) if not key.startswith("decoder.")]
        if beyond:
            what = "weights of layers that config.json does not count, which are not used"
            logger.warning("%s has %d %s: %s, ...", name, len(beyond), what, beyond[0])
        return fresh
    count = f"{len(lacking)} weight{'s' if len(lacking) > 1 else ''}"
    shape = ", or has them in another shape" if reshaped.intersection(lacking) else ""
    found = f"{name} lacks {count} of {type(model).__name__} ({lacking[0]}, ...){shape}"
    advice = "Name a checkpoint that has all of them, or correct its config.json."
    wanted = tuple("." + key.removeprefix(encoder).removeprefix("backbone.") for key in lacking)
    if key := next((key for bare, key in unwrapped.items() if bare.endswith(wanted)), None):
        advice = f"It has {key}, with a wrapper's prefix: rename its weights, or save the model inside the wrapper."
    raise ValueError(f"{found}: random numbers would replace them. {advice}")
