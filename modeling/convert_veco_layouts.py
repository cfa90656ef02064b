"""The two layouts of VECO's original checkpoints: names of the parameters, sizes, and what fits them.

Known from public code and from VECO's authors, who published the map between the two (AliceMind, issue 14):
- native: BERT's names behind an optional prefix, `cross_attention` in each layer, LayerNorm `gamma` and `beta`;
- fairseq's translation models: an encoder, and a decoder whose `encoder_attn` is VECO's cross-attention. The released
  one has a decoder layer for each encoder layer; all but the cross-attention is meant to be the encoder's.

Names are made whole for each layer and looked up, never edited: VECO's fairseq code renumbers layers by replacing
digits anywhere in a key, which also turns `fc1` of layer 1 into `fc0`.
"""

import math
import re
from collections import Counter

import torch

from .convert_weights import State

WORDS, POSITIONS = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
TOKEN_TYPES = "embeddings.token_type_embeddings.weight"

# Ours to fairseq's. An embedding has one name a side; the first is always there.
FAIRSEQ_EMBEDDINGS = {
    "embeddings.word_embeddings": ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection"),
    "embeddings.position_embeddings": ("encoder.embed_positions", "decoder.embed_positions"),
    "embeddings.LayerNorm": ("encoder.layernorm_embedding", "decoder.layernorm_embedding"),
}
FAIRSEQ_SHARED = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
FAIRSEQ_CROSS = {
    "crossattention.self.query": "encoder_attn.q_proj",
    "crossattention.self.key": "encoder_attn.k_proj",
    "crossattention.self.value": "encoder_attn.v_proj",
    "crossattention.output.dense": "encoder_attn.out_proj",
    "crossattention.output.LayerNorm": "encoder_attn_layer_norm",
}
OUR_LAYER = re.compile(r"(encoder|decoder)\.layer\.(\d+)\.(.+)\.(weight|bias)")


def native_names(key: str, prefix: str, has_head: bool) -> list[str]:
    """Names that a parameter of ours may have in the native layout, the original's first; none where it has none.

    Args:
        has_head: XLM-R's LM head is there, under XLM-R's names; the original checkpoints have none.
    """
    if key == "lm_head.decoder.weight":
        return [prefix + WORDS, key]
    if key.startswith("lm_head."):
        names = ["lm_head.bias", key] if key == "lm_head.decoder.bias" else [key]
        return names if has_head else []
    key = key.removeprefix("roberta.")
    match = OUR_LAYER.fullmatch(key)
    if match and match[3].startswith("crossattention."):
        key = f"encoder.layer.{match[2]}.cross_attention.{match[3].removeprefix('crossattention.')}.{match[4]}"
    module, _, kind = key.rpartition(".")
    if module.endswith(".LayerNorm"):
        return [f"{prefix}{module}.{'gamma' if kind == 'weight' else 'beta'}", prefix + key]
    return [prefix + key]


def fairseq_names(key: str, decoder_is_encoder: bool) -> list[str]:
    """Names that a parameter of ours has in fairseq's layout; none for what fairseq does not have.

    Args:
        decoder_is_encoder: all encoder layers are decoder layers too, and bring the decoder's cross-attention along.
    """
    key = "embeddings.word_embeddings.weight" if key == "lm_head.decoder.weight" else key.removeprefix("roberta.")
    module, _, kind = key.rpartition(".")
    if module in FAIRSEQ_EMBEDDINGS:
        return [f"{name}.{kind}" for name in FAIRSEQ_EMBEDDINGS[module]]
    match = OUR_LAYER.fullmatch(key)
    if not match:
        return []
    side, layer, module, kind = match.groups()
    if module in FAIRSEQ_CROSS:
        return [f"decoder.layers.{layer}.{FAIRSEQ_CROSS[module]}.{kind}"]
    sides = ["encoder", "decoder"] if decoder_is_encoder else [side]
    return [f"{side}.layers.{layer}.{FAIRSEQ_SHARED[module]}.{kind}" for side in sides]


def is_of_encoder(key: str) -> bool:
    """Whether a key of ours is a parameter of the embeddings or the layers of the encoder."""
    return key.removeprefix("roberta.").startswith(("embeddings.", "encoder.layer."))


def native_prefix(state: State, checkpoint: str) -> str:
    """What stands before `encoder.layer` in the names: `bert.`, `roberta.`, nothing, ..."""
    anchors = (re.fullmatch(r"((?:\w+\.)*?)encoder\.layer\.\d+\..+", key) for key in state)
    prefixes = Counter(match[1] for match in anchors if match)
    if not prefixes:
        raise not_this_layout(state, checkpoint, "the native one, encoder.layer.0.attention.self.query.weight, ...")
    return prefixes.most_common(1)[0][0]


def not_this_layout(state: State, checkpoint: str, layout: str) -> ValueError:
    """The error for a checkpoint of something else."""
    return ValueError(
        f"{checkpoint} has no layer of this layout ({layout}); its keys are {', '.join(list(state)[:3])}, ... Without "
        "layers there is nothing to convert. Use from-native for BERT's names, from-fairseq for fairseq's."
    )


def decoder_origin(state: State, depth: int, decoder_depth: int) -> tuple[list[int], bool]:
    """The encoder layer that each decoder layer is nearest to, and whether all are equal to theirs.

    Compared is what the two share, by squared distance; of equal ones the last n are preferred, as VECO's decoders
    are made.
    """
    shared = [f"{module}.{kind}" for module in FAIRSEQ_SHARED.values() for kind in ("weight", "bias")]

    def distance(layer: int, decoder_layer: int) -> float:
        total = 0.0
        for name in shared:
            one = state.get(f"encoder.layers.{layer}.{name}")
            other = state.get(f"decoder.layers.{decoder_layer}.{name}")
            if one is None or other is None or one.shape != other.shape:
                continue  # reported with all other keys that do not fit
            if not torch.equal(one, other):
                total += (one.float() - other.float()).square().sum().item()
        return total

    indices, is_tied = [], True
    for index in range(decoder_depth):
        usual = depth - decoder_depth + index
        nearest, least = 0, math.inf
        for layer in sorted(range(depth), key=lambda layer: abs(layer - usual)):
            if (found := distance(layer, index)) < least:
                nearest, least = layer, found
            if least == 0:
                break
        indices.append(nearest)
        is_tied = is_tied and least == 0
    return indices, is_tied
