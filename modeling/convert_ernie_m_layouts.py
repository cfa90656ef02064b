"""The layouts of ERNIE-M's checkpoints: names of the parameters, and which head a checkpoint has.

Known from public code:
- transformers 4: `encoder.layers.0.self_attn.self_attn.q_proj.weight`, behind `ernie_m.` where there is a head;
- PaddleNLP: the same without the doubled `self_attn`, weights (in, out), and all heads above a pooler;
- static graph: the variables of the original training program, `encoder_layer_0_multi_head_att_query_fc.w_0`, weights
  (in, out); a masked-LM head where the checkpoint kept ERNIE's (`mask_lm_trans_fc.w_0`, ...).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .convert_paddle import transposed
from .convert_weights import State
from .modeling_ernie_m import (
    ErnieMForMaskedLM,
    ErnieMForPreTraining,
    ErnieMForQuestionAnswering,
    ErnieMForSequenceClassification,
    ErnieMForTokenClassification,
    ErnieMModel,
)

HEADS = {
    "base": ErnieMModel,
    "sequence": ErnieMForSequenceClassification,
    "token": ErnieMForTokenClassification,
    "question_answering": ErnieMForQuestionAnswering,
    "masked_lm": ErnieMForMaskedLM,
}
CLASSES = (*HEADS.values(), ErnieMForPreTraining)
# information extraction, as PaddleNLP and transformers 4 call it
SPAN_CLASSES = ("UIEM", "ErnieMForInformationExtraction")
# classes of transformers 4 and PaddleNLP -> the head here that computes the same logits
HEADS_OF_CLASSES = {
    **{cls.__name__: head for head, cls in HEADS.items() if head != "masked_lm"},
    **dict.fromkeys(SPAN_CLASSES, "question_answering"),
    "ErnieMForMultipleChoice": "sequence",
}
OUR_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)")

# ours -> transformers 4's
TRANSFORMERS4_BODY = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.LayerNorm": "embeddings.layer_norm",
    "pooler.dense": "pooler.dense",
}
TRANSFORMERS4_LAYER = {
    "attention.self.query": "self_attn.self_attn.q_proj",
    "attention.self.key": "self_attn.self_attn.k_proj",
    "attention.self.value": "self_attn.self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "norm1",
    "intermediate.dense": "linear1",
    "output.dense": "linear2",
    "output.LayerNorm": "norm2",
}
# ours -> (the variable of the weight, of the bias); {} is the layer
STATIC_BODY = {
    "embeddings.word_embeddings": ("word_embedding", None),
    "embeddings.position_embeddings": ("pos_embedding", None),
    "embeddings.LayerNorm": ("pre_encoder_layer_norm_scale", "pre_encoder_layer_norm_bias"),
    "pooler.dense": ("pooled_fc.w_0", "pooled_fc.b_0"),
}
STATIC_LAYER = {
    "attention.self.query": "multi_head_att_query_fc",
    "attention.self.key": "multi_head_att_key_fc",
    "attention.self.value": "multi_head_att_value_fc",
    "attention.output.dense": "multi_head_att_output_fc",
    "attention.output.LayerNorm": "post_att_layer_norm",
    "intermediate.dense": "ffn_fc_0",
    "output.dense": "ffn_fc_1",
    "output.LayerNorm": "post_ffn_layer_norm",
}
STATIC_HEADS = {"sequence": "cls_out", "token": "cls_seq_label_out", "question_answering": "cls_mrc_out"}
STATIC_LM_HEAD = {
    "lm_head.dense.weight": "mask_lm_trans_fc.w_0",
    "lm_head.dense.bias": "mask_lm_trans_fc.b_0",
    "lm_head.layer_norm.weight": "mask_lm_trans_layer_norm_scale",
    "lm_head.layer_norm.bias": "mask_lm_trans_layer_norm_bias",
    "lm_head.bias": "mask_lm_out_fc.b_0",
    "lm_head.decoder.bias": "mask_lm_out_fc.b_0",
    "lm_head.decoder.weight": "word_embedding",
}
# of the optimizer and the training program, beside the parameters
STATIC_BOOKKEEPING = re.compile(
    r".*_moment[12]_0|.*_beta[12]_pow_acc_0|(scheduled_)?learning_rate.*|@.*@|.*\.master|.*loss_scaling.*|num_(good|bad).*"
)


def transformers4_names(key: str, prefix: str, head: str) -> list[str]:
    """Names that a parameter of ours has in transformers 4's layout; none for what it does not have.

    Args:
        prefix: what stands before the names of the base model, `ernie_m.` or nothing.
    """
    module, _, kind = key.removeprefix("roberta.").rpartition(".")
    if module in TRANSFORMERS4_BODY:
        return [f"{prefix}{TRANSFORMERS4_BODY[module]}.{kind}"]
    if match := OUR_LAYER.fullmatch(f"{module}.{kind}"):
        return [f"{prefix}encoder.layers.{match[1]}.{TRANSFORMERS4_LAYER[match[2]]}.{match[3]}"]
    return [key] if module in ("classifier", "qa_outputs") else []


def paddle_names(key: str, prefix: str, head: str) -> list[str]:
    """As `transformers4_names`, in PaddleNLP's layout; its QA head is called as its classifiers are."""
    names = [name.replace(".self_attn.self_attn.", ".self_attn.") for name in transformers4_names(key, prefix, head)]
    if key.startswith("qa_outputs."):
        # made of linear_start and linear_end under our name, see `in_our_form`
        names.insert(0, key.replace("qa_outputs", "classifier"))
    return names


def static_names(key: str, prefix: str, head: str) -> list[str]:
    """As `transformers4_names`, as the variables of the static graph; `prefix` is always nothing."""
    if key in STATIC_LM_HEAD:
        return [STATIC_LM_HEAD[key]]
    module, _, kind = key.removeprefix("roberta.").rpartition(".")
    column = 0 if kind == "weight" else 1
    if module in STATIC_BODY:
        return [STATIC_BODY[module][column]]
    if match := OUR_LAYER.fullmatch(f"{module}.{kind}"):
        ends = ("_scale", "_bias") if match[2].endswith("LayerNorm") else (".w_0", ".b_0")
        return [f"encoder_layer_{match[1]}_{STATIC_LAYER[match[2]]}{ends[column]}"]
    return [f"{STATIC_HEADS[head]}_{'wb'[column]}"] if module in ("classifier", "qa_outputs") else []


@dataclass(frozen=True)
class Layout:
    """A layout: how it is called, its names, and where in them the layer, the inner width and the sizes are found."""

    name: str
    names: Callable[[str, str, str], list[str]]
    layer: str
    inner: str
    is_paddle: bool


LAYOUTS = (
    Layout(
        "transformers 4's layout",
        transformers4_names,
        r"(?:ernie_m\.)?encoder\.layers\.(\d+)\.self_attn\.self_attn\..+",
        r".+\.linear1\.weight",
        False,
    ),
    Layout(
        "PaddleNLP's layout",
        paddle_names,
        r"(?:ernie_m\.)?encoder\.layers\.(\d+)\.self_attn\.(?!self_attn\.).+_proj\..+",
        r".+\.linear1\.weight",
        True,
    ),
    Layout(
        "the static graph's variables",
        static_names,
        r"encoder_layer_(\d+)_multi_head_att_.+",
        r"encoder_layer_\d+_ffn_fc_0\.w_0",
        True,
    ),
)


def detect_layout(state: State, checkpoint: str) -> Layout:
    """The layout that the names are of, by the attention of the layers (the output projection is named alike in two).

    Raises ValueError for a checkpoint of something else.
    """
    for layout in LAYOUTS:
        matches = [key for key in state if re.fullmatch(layout.layer, key) and ".out_proj." not in key]
        if matches:
            return layout
    if any(key.startswith(("roberta.encoder.layer.", "encoder.layer.")) for key in state):
        raise ValueError(
            f"{checkpoint} has the names of XLM-R and of this zoo ({next(iter(state))}, ...): it needs no conversion. "
            "Load it as it is; --to transformers4 writes it in transformers 4's layout."
        )
    raise ValueError(
        f"{checkpoint} has no layer of ERNIE-M's layouts; its keys are {', '.join(list(state)[:3])}, ... Without "
        "layers there is nothing to convert. Give a checkpoint of transformers 4's ErnieM, of PaddleNLP, or the static "
        "graph's variables (word_embedding, encoder_layer_0_multi_head_att_query_fc.w_0, ...)."
    )


def in_our_form(state: State, layout: Layout, notes: list[str]) -> State:
    """Weights (out, in), without the optimizer's variables, and with a span head in the form of ours.

    Information extraction scores starts and ends with two linear maps: stacked, they are the question-answering head.
    """
    if layout.is_paddle:
        kept = {key: tensor for key, tensor in state.items() if not STATIC_BOOKKEEPING.fullmatch(key)}
        if len(kept) < len(state):
            notes.append(f"left out: {len(state) - len(kept)} variables of the optimizer")
        state = transposed(kept)
    span = [f"linear_{end}.{kind}" for end in ("start", "end") for kind in ("weight", "bias")]
    if all(key in state for key in span):
        state = dict(state)
        for kind in ("weight", "bias"):
            state[f"qa_outputs.{kind}"] = torch.cat([state.pop(f"linear_{end}.{kind}") for end in ("start", "end")])
    return state


def detect_head(state: State, layout: Layout, cls: str | None, asked: str | None, notes: list[str]) -> str:
    """The head of a checkpoint, a key of `HEADS`: as asked for, as the configuration names its class, or by the keys.

    Raises ValueError for an unknown class, and where the keys may be of two heads.
    """
    keys = set(state)
    if asked:
        head, why = asked, "as asked for"
    elif cls:
        if cls not in HEADS_OF_CLASSES:
            raise ValueError(
                f"the configuration names the class {cls!r}: it is none of ERNIE-M's ({', '.join(HEADS_OF_CLASSES)}), "
                "and it is not known what its head computes. Say --head base to convert the encoder, and leave the "
                "head's keys out with --ignore_keys."
            )
        head, why = HEADS_OF_CLASSES[cls], f"the configuration names {cls}"
    elif layout.names is static_names:
        found = [head for head, name in STATIC_HEADS.items() if f"{name}_w" in keys] or ["base"]
        head, why = found[0], "by its variables"
    elif "qa_outputs.weight" in keys:
        head, why = "question_answering", "by its keys"
    elif "classifier.weight" not in keys:
        head, why = "base", "by its keys"
    elif not any(key.endswith("pooler.dense.weight") for key in keys):
        head, why = "token", "a classifier and no pooler"
    elif layout.is_paddle:
        raise ValueError(
            "the checkpoint has a classifier and a pooler, and no configuration that names its class: in PaddleNLP a "
            "classifier of texts, of tokens and of answer spans look alike. Say --head sequence, token or "
            "question_answering."
        )
    else:
        head, why = "sequence", "a classifier and a pooler"
    notes.append(f"head: {HEADS[head].__name__}, {why}")
    if head == "question_answering" and cls in SPAN_CLASSES:
        notes.append(
            f"{cls}: start_logits and end_logits are its own; read each through a sigmoid, since spans are independent "
            "of one another. Fine-tuned here, they learn a softmax over positions"
        )
    if head == "sequence" and cls == "ErnieMForMultipleChoice":
        notes.append(
            f"{cls}: its score of a choice is the one logit of a text here; give (texts * choices) rows, and take the "
            "softmax over logits.view(texts, choices)"
        )
    return head


def without_unread(state: State, head: str, notes: list[str]) -> State:
    """The state without parts that checkpoints hold and their head does not read: said, and no error.

    PaddleNLP keeps the pooler below every head, and transformers 4 below that of information extraction. ERNIE's
    masked-LM head stands beside a pooler, which our masked-LM model has not.
    """
    unread = {}
    if head in ("token", "question_answering", "masked_lm"):
        unread["pooler"] = [key for key in state if key.startswith("pooled_fc.") or "pooler.dense." in key]
    if head != "masked_lm":
        unread["masked-LM head (--head masked_lm keeps it)"] = [key for key in state if key.startswith("mask_lm_")]
    for part, keys in unread.items():
        if keys:
            notes.append(f"left out, since a {HEADS[head].__name__} does not read it: {part}")
            state = {key: tensor for key, tensor in state.items() if key not in keys}
    return state
