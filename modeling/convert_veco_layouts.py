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
from collections.abc import Callable, Sequence

import torch

from .configuration_veco import VecoConfig

State = dict[str, torch.Tensor]
Names = Callable[[str], list[str]]

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

# Kept by the libraries for themselves: versions, the device of sinusoids, 0 to 513 as a buffer of BERT's.
BOOKKEEPING = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)|(.+\.)?embeddings\.position_ids")


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


def leave_out(state: State, ignore_keys: Sequence[str], notes: list[str]) -> State:
    """The state without bookkeeping, and without the keys that one of the patterns matches as a whole."""
    state = {key: tensor for key, tensor in state.items() if not BOOKKEEPING.fullmatch(key)}
    for pattern in ignore_keys:
        try:
            matched = [key for key in state if re.fullmatch(pattern, key)]
        except re.error as error:
            raise ValueError(
                f"--ignore_keys {pattern!r} is no regular expression: {error}. Write for example 'pooler\\..*'."
            ) from error
        if not matched:
            raise ValueError(
                f"--ignore_keys {pattern!r} matches no key of the checkpoint: a pattern has to match a key from its "
                "first to its last character. Leave it out or correct it."
            )
        state = {key: tensor for key, tensor in state.items() if key not in matched}
        notes.append(f"ignored: {', '.join(matched)}")
    return state


def layer_count(state: State, pattern: str) -> int:
    """One more than the highest layer of the keys that match; gaps show up as missing keys."""
    matches = (re.fullmatch(pattern, key) for key in state)
    return max((int(match[1]) + 1 for match in matches if match), default=0)


def rows_of(state: State, key: str, default: int) -> int:
    """Rows of an embedding; the default where it is missing, which is reported with everything else."""
    return len(state[key]) if key in state and state[key].dim() else default


def widths(state: State, feed_forward: str) -> dict[str, int]:
    """Hidden and intermediate size, as most layers have them, so that a single wrong shape is named as such."""
    norms = [len(t) for key, t in state.items() if t.dim() == 1 and re.search(r"(LayerNorm|layer_norm)\.\w+$", key)]
    inner = [len(t) for key, t in state.items() if t.dim() == 2 and re.fullmatch(feed_forward, key)]
    sizes = {"hidden_size": norms, "intermediate_size": inner}
    return {name: Counter(found).most_common(1)[0][0] for name, found in sizes.items() if found}


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


def fit(state: State, cls, config: VecoConfig, names: Names, what: str) -> State:
    """The weights of `cls` under our names, zeros where the layout has none (token types, the LM head's bias).

    Raises ValueError that lists every key that is missing, left over, of another shape, or another name of a parameter
    that differs from the first.
    """
    with torch.device("meta"):
        shapes = {key: tuple(tensor.shape) for key, tensor in cls(config).state_dict().items()}
    dtype = next(iter(state.values())).dtype
    weights, used = {}, set()
    missing, wrong, different = {}, {}, {}
    for key, shape in shapes.items():
        candidates = names(key)
        found = [name for name in candidates if name in state]
        used.update(found)
        if not found:
            weights[key] = torch.zeros(shape, dtype=dtype)
            if candidates:
                missing[f"{candidates[0]} {shape}"] = None
            continue
        weights[key] = state[found[0]]
        for name in found:
            if tuple(state[name].shape) != shape:
                wrong[f"{name} {tuple(state[name].shape)}, not {shape}"] = None
            elif tuple(weights[key].shape) == shape and not torch.equal(state[name], weights[key]):
                different[f"{name} is not {found[0]}"] = None
    kinds = {
        "missing": missing,
        "left over": [key for key in state if key not in used],
        "of another shape": wrong,
        "different": different,
    }
    if any(kinds.values()):
        lines = [f"  {kind}: {line}" for kind, found in kinds.items() for line in found]
        advice = "Check that the file is complete; --ignore_keys leaves out what is left over."
        if any(line.startswith("decoder.") for line in different):
            advice += " Encoder and decoder share their embeddings here: --model encoder converts the encoder alone."
        raise ValueError(
            f"{what} do not fit, in {len(lines)} keys:\n" + "\n".join(lines) + "\nA model made of the rest would be "
            f"random in places, or lack what was trained. {advice}"
        )
    return weights
