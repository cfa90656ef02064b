"""A model of one language as the start of a cross-lingual one (MetaXLM; Chi et al. 2021, sections 3.1, 3.2, 5.4, 5.5).

The body (the Transformer layers) does not depend on the vocabulary and is copied unchanged. `vocabulary_matching` maps
the rows of the embeddings and the bias of the head.

Legend: `V` tokens of the old vocabulary, `W` of the new one, `P` positions, `H` hidden size.
"""

import re
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from crosslingual_zoo.modeling.backbone import ARCHITECTURES, BERT_NAMES, renamed
from crosslingual_zoo.modeling.configuration_encoder import LOADABLE, first_position, longest_input
from crosslingual_zoo.pretraining.recipe import MetaPretrained
from crosslingual_zoo.pretraining.start.pretrained import Pretrained
from crosslingual_zoo.pretraining.start.vocabulary_matching import Matching, match_vocabularies
from crosslingual_zoo.zoo_core.provenance import model_fingerprint

# fields of a configuration that define the body's computation, and those that every part depends on
OF_BODY = ("num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act")
OF_ALL = ("hidden_size", "layer_norm_eps")
FURTHER = ("hidden_dropout_prob", "attention_probs_dropout_prob")
GELUS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python")  # activations that our head can replace

# of a tokenizer, and of a configuration
SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id")

BODY, EMBEDDINGS = "roberta.encoder.", "roberta.embeddings."
BACKBONE = "roberta.backbone."  # of another architecture; its embeddings are `embeddings` or `embed_tokens`
POSITIONS = f"{EMBEDDINGS}position_embeddings.weight"
TOKEN_TYPES = f"{EMBEDDINGS}token_type_embeddings.weight"
HEAD = ("lm_head.dense.weight", "lm_head.dense.bias", "lm_head.layer_norm.weight", "lm_head.layer_norm.bias")


class MetaCheckpoint:
    """A meta-pretrained checkpoint. Configuration, tokenizer and weights are read at their first use."""

    def __init__(self, settings: MetaPretrained, hub_root: str | None = None, trust_remote_code: bool = False):
        self.settings = settings
        self.name = settings.path
        self.checkpoint = Pretrained(settings.path, "model.meta_pretrained.path", hub_root, trust_remote_code)
        self.carries_rows = settings.initialize in ("both", "embeddings")

    @cached_property
    def config(self) -> PreTrainedConfig:
        """Raises ValueError for a checkpoint that does not exist or has an unknown architecture."""
        config = self.checkpoint.config()
        is_decoder = getattr(config, "is_decoder", False) or getattr(config, "decoder_layers", None) is not None
        has_positions = getattr(config, "position_embedding_type", None) in (None, "absolute")
        has_our_layers = config.model_type in LOADABLE and has_positions and not is_decoder
        if config.model_type in ARCHITECTURES or has_our_layers:
            return config
        raise ValueError(
            f"{self.checkpoint} is a {config.model_type!r} whose body cannot be copied. Use an encoder, no decoder, "
            f"with absolute positions, of {', '.join(LOADABLE)}; or {', '.join(ARCHITECTURES)}."
        )

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """In float32, by this zoo's names, without a head that fits no model of ours: one with another activation, or
        trained with another matrix than the embeddings. Raises ValueError for damaged weights and missing layers."""
        config = self.config
        model, absent = self.checkpoint.masked_lm(config)
        weights = {name: value for name, value in model.state_dict().items() if name not in absent}
        if config.model_type in ARCHITECTURES:
            return {renamed(model, name): value for name, value in weights.items()}
        if config.model_type == "bert":
            for theirs, ours in BERT_NAMES.items():
                weights = {re.sub(theirs, ours, name): value for name, value in weights.items()}
        unfit: tuple[str, ...] = ()
        if not config.tie_word_embeddings:
            unfit = ("lm_head.",)
        elif config.hidden_act not in GELUS:
            unfit = HEAD
        return {name: value for name, value in weights.items() if not name.startswith(unfit)}

    def config_fields(self, settings: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Returns the checkpoint's values for fields of the new configuration. `settings`: those of `model.config`.

        Raises ValueError for a setting with which the copied weights would compute something else.
        """
        config = self.config
        if config.model_type in ARCHITECTURES:
            ids = {name: getattr(tokenizer, name) for name in SPECIAL_IDS if hasattr(config, name)}
            return {"backbone_config": config.to_dict() | ids | {"vocab_size": len(tokenizer)}}
        fields = {name: getattr(config, name) for name in (*OF_ALL, *OF_BODY, *FURTHER)}
        fields["max_position_embeddings"] = longest_input(config) + tokenizer.pad_token_id + 1
        fixed = {"embeddings": OF_ALL, "none": ()}.get(self.settings.initialize, (*OF_ALL, *OF_BODY))
        for name in fixed:
            if name in settings and settings[name] != fields[name]:
                theirs = f"the checkpoint {self.name!r}, whose weights are copied, has {fields[name]}"
                raise ValueError(
                    f"model.config.{name} is {settings[name]}, but {theirs}. Leave it out of model.config."
                )
        return fields

    def match(self, tokenizer: PreTrainedTokenizerBase) -> Matching:
        """Matches the checkpoint's vocabulary to that of `tokenizer`. Raises ValueError if the checkpoint has no
        tokenizer, or another model's."""
        old_tokenizer = self.checkpoint.tokenizer(self.config)
        return match_vocabularies(old_tokenizer, tokenizer, self.settings.dictionaries, self.checkpoint.hub_root)

    def facts(self) -> dict[str, str]:
        """Returns path and fingerprint, for run.json."""
        return {"path": self.name, "fingerprint": model_fingerprint(self.checkpoint.path)}


def token_rows(model: PreTrainedModel) -> set[str]:
    """Returns the names of the parameters that have a row for each token: of the embeddings and of the head."""
    decoder = model.lm_head.decoder
    ids = {id(weight) for weight in (model.get_input_embeddings().weight, decoder.weight, decoder.bias)}
    return {name for name, weight in model.state_dict(keep_vars=True).items() if id(weight) in ids}


@torch.no_grad()
def carry_over(model: PreTrainedModel, source: MetaCheckpoint, matching: Matching | None = None) -> list[str]:
    """Copies a source's weights into a new model; returns the names of those that stay random or zero.

    `initialize` of the recipe (Table 5):

    - `body` copies the Transformer layers;
    - `embeddings` copies words (by `matching`), positions, token types, their LayerNorm, and the bias of the head;
    - `both` copies these, and the rest of the head, which maps the states of the body into the space of the embeddings
      and needs both;
    - `none` copies nothing.

    The first token's position is copied to the first token's position. BERT adds row 0 of its token types at every
    position of a text, so that row is added to the positions, and the new model's token types are zero.
    """
    parts = {"none": (), "both": ("body", "embeddings", "head")}
    copied_parts = parts.get(source.settings.initialize, (source.settings.initialize,))
    old_weights = source.weights if copied_parts else {}
    new_weights = model.state_dict(keep_vars=True)
    names_of_rows = token_rows(model)
    fresh = []
    for name, new in new_weights.items():
        part = "embeddings" if name in names_of_rows else part_of(name)
        if name not in old_weights or part not in copied_parts:
            fresh.append(name)
        elif name in names_of_rows:
            assert matching, "rows are copied by their matching"
            matching.copy_rows(new, old_weights[name])
        elif name not in (POSITIONS, TOKEN_TYPES):
            new.copy_(old_weights[name])
    if "embeddings" in copied_parts and POSITIONS in new_weights:
        fresh += _copy_positions(new_weights, source, model.config.pad_token_id + 1)
    return fresh


def part_of(name: str) -> str | None:
    """Returns the part of the model that a weight belongs to: body, embeddings or head; None for other weights."""
    if name.startswith((EMBEDDINGS, f"{BACKBONE}embed")):
        return "embeddings"
    if name.startswith((BODY, BACKBONE)):
        return "body"
    return "head" if name.startswith("lm_head.") else None


def _copy_positions(new_weights: dict[str, torch.Tensor], source: MetaCheckpoint, first: int) -> list[str]:
    """Returns which positions stay random. `first`: the new model's row of the first token's position."""
    old_PH = source.weights[POSITIONS]
    new_PH = new_weights[POSITIONS]
    old_types = source.weights[TOKEN_TYPES]
    new_types = new_weights[TOKEN_TYPES]
    offset = first_position(source.config)
    if offset == first:
        offset = first = 0  # the rows before the first token's, too, so that a copy of the model is exact
    count = min(len(old_PH) - offset, len(new_PH) - first)
    rows = slice(first, first + count)
    new_PH[rows] = old_PH[offset : offset + count]
    if source.config.model_type == "bert":
        new_PH[rows] += old_types[0]
        new_types.zero_()
    else:
        num_types = min(len(old_types), len(new_types))
        new_types[:num_types] = old_types[:num_types]
    return [f"{POSITIONS} from {first + count} on"] if first + count < len(new_PH) else []
