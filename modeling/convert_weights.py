"""Weights of foreign checkpoints under the names of this zoo: nothing missing, nothing left over, no wrong shape.

A layout is a function that gives, for a parameter of ours, the names that it may have there.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN

State = dict[str, torch.Tensor]
Names = Callable[[str], list[str]]

# Kept by the libraries for themselves: versions, the device of sinusoids, 0 to 513 as a buffer of BERT's.
BOOKKEEPING = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)|(.+\.)?embeddings\.position_ids")


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
    norm = re.compile(r".*(LayerNorm|layer_norm|norm[12])[._]\w+")
    norms = [len(t) for key, t in state.items() if t.dim() == 1 and norm.fullmatch(key)]
    inner = [len(t) for key, t in state.items() if t.dim() == 2 and re.fullmatch(feed_forward, key)]
    sizes = {"hidden_size": norms, "intermediate_size": inner}
    return {name: Counter(found).most_common(1)[0][0] for name, found in sizes.items() if found}


def attention_heads(hidden_size: int, stated: int | None) -> int:
    """Shapes do not tell the heads: as many as are stated, or one for 64 dimensions, as in XLM-R.

    Raises ValueError where these do not divide the hidden size.
    """
    if stated is None and hidden_size % 64:
        raise ValueError(
            f"the checkpoint has hidden size {hidden_size} and does not say how many attention heads: XLM-R's one for "
            "64 dimensions does not fit, and the weights do not tell. Give --num_attention_heads."
        )
    heads = hidden_size // 64 if stated is None else stated
    if heads < 1 or hidden_size % heads:
        raise ValueError(
            f"the checkpoint has hidden size {hidden_size}, which {heads} attention heads do not divide: every head "
            "needs the same whole number of dimensions. Give --num_attention_heads; the weights do not tell."
        )
    return heads


def known_activation(name: str) -> str:
    """The name again. Raises ValueError for an activation that transformers does not have."""
    if name not in ACT2FN:
        raise ValueError(
            f"the checkpoint was trained with the activation {name!r}: the models of this zoo do not know it, and "
            "another one computes something else. Such a checkpoint cannot be converted."
        )
    return name


def of_one_type(state: State, notes: list[str]) -> State:
    """Floating-point weights of several types, or of float64, as float32, which is said; others as they are."""
    types = sorted({str(tensor.dtype) for tensor in state.values() if tensor.is_floating_point()})
    if len(types) < 2 and "torch.float64" not in types:
        return state
    notes.append(f"types: {', '.join(types)}; all weights were made float32")
    return {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in state.items()}


def fit(state: State, cls, config: PreTrainedConfig, names: Names, what: str, notes: list[str]) -> State:
    """The weights of `cls` under our names, zeros where the layout has none (token types, the LM head's bias).

    Raises ValueError that lists every key that is missing, left over, of another shape, not floating point, not finite,
    or another name of a parameter that differs from the first.
    """
    state = of_one_type(state, notes)
    with torch.device("meta"):
        shapes = {key: tuple(tensor.shape) for key, tensor in cls(config).state_dict().items()}
    dtype = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), torch.float32)
    weights, used = {}, set()
    missing, wrong, integers, infinite, different = {}, {}, {}, {}, {}
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
        first = weights[key]
        for name in found:
            tensor = state[name]
            if tuple(tensor.shape) != shape:
                wrong[f"{name} {tuple(tensor.shape)}, not {shape}"] = None
            elif not tensor.is_floating_point():
                integers[f"{name} {tensor.dtype}"] = None
            elif not torch.isfinite(tensor).all():
                infinite[name] = None
            elif name != found[0] and (first.shape, first.dtype) == (tensor.shape, tensor.dtype):
                if not torch.equal(tensor, first):
                    different[f"{name} is not {found[0]}"] = None
    kinds = {
        "missing": missing,
        "left over": [key for key in state if key not in used],
        "of another shape": wrong,
        "not floating point": integers,
        "not finite": infinite,
        "different": different,
    }
    if any(kinds.values()):
        lines = [f"  {kind}: {line}" for kind, found in kinds.items() for line in found]
        advice = "Check that the file is complete; --ignore_keys leaves out what is left over."
        if any(line.startswith("decoder.") for line in different):
            advice += " Encoder and decoder share their embeddings here: --model encoder converts the encoder alone."
        if integers:
            advice += " Integers are quantized weights, or none: give those that they were made of."
        if infinite:
            advice += " NaN and infinity spoil every output: give a checkpoint of before the training broke down."
        raise ValueError(
            f"{what} do not fit, in {len(lines)} keys:\n" + "\n".join(lines) + "\nA model made of the rest would be "
            f"random in places, or lack what was trained. {advice}"
        )
    return weights


def assemble(cls: type[PreTrainedModel], config: PreTrainedConfig, weights: State) -> PreTrainedModel:
    """The model of these weights, all of them, in their own type."""
    with torch.device("meta"):
        model = cls(config)
    memory = set()
    for key, tensor in weights.items():
        # a file may keep one copy of equal tensors; those of the model share memory where it ties them, and only there
        weights[key] = tensor.clone() if tensor.data_ptr() in memory else tensor
        memory.add(tensor.data_ptr())
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    return model
