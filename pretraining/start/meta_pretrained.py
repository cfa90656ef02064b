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
WORDS, POSITIONS = f"{EMBEDDINGS}word_embeddings.weight", f"{EMBEDDINGS}position_embeddings.weight"
TOKEN_TYPES = f"{EMBEDDINGS}token_type_embeddings.weight"
HEAD = ("lm_head.dense.weight", "lm_head.dense.bias", "lm_head.layer_norm.weight", "lm_head.layer_norm.bias")


class MetaCheckpoint:
    """A meta-pretrained checkpoint. Configuration, tokenizer and weights are read at their first use."""

    def __init__(self, settings: MetaPretrained, hub_root: str | None = None, trust_remote_code: bool = False):
        self.settings, self.name = settings, settings.path
        self.checkpoint = Pretrained(settings.path, "model.meta_pretrained.path", hub_root, trust_remote_code)
        self.carries_rows = settings.initialize in ("both", "embeddings")

    @cached_property
    def config(self) -> PreTrainedConfig:
        """Raises ValueError for a checkpoint that does not exist or has an unknown architecture."""
        config, known = self.checkpoint.config(), LOADABLE
        is_decoder = getattr(config, "is_decoder", False) or getattr(config, "decoder_layers", None) is not None
        has_positions = getattr(config, "position_embedding_type", None) in (None, "absolute")
        if config.model_type in ARCHITECTURES or (config.model_type in known and has_positions and not is_decoder):
            return config
        raise ValueError(
            f"{self.checkpoint} is a {config.model_type!r} whose body cannot be copied. Use an encoder, no decoder, "
            f"with absolute positions, of {', '.join(known)}; or {', '.join(ARCHITECTURES)}."
        )

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """In float32, by this zoo's names, without a head that fits no model of ours: one with another activation, or
        trained with another matrix than the embeddings. Raises ValueError for damaged weights and missing layers."""
        config, (model, absent) = self.config, self.checkpoint.masked_lm(self.config)
        found = {key: value for key, value in model.state_dict().items() if key not in absent}
        if config.model_type in ARCHITECTURES:
            return {renamed(model, key): value for key, value in found.items()}
        for theirs, ours in BERT_NAMES.items() if config.model_type == "bert" else ():
            found = {re.sub(theirs, ours, key): value for key, value in found.items()}
        unfit = HEAD if config.hidden_act not in GELUS else ()
        unfit = unfit if config.tie_word_embeddings else ("lm_head.",)
        return {name: value for name, value in found.items() if not name.startswith(unfit)}

    def config_fields(self, given: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Returns the checkpoint's values for fields of the new configuration that `model.config` (`given`) lacks.

        Raises ValueError for a field of `given` with which the copied weights would compute something else.
        """
        config = self.config
        if config.model_type in ARCHITECTURES:
            ids = {name: getattr(tokenizer, name) for name in SPECIAL_IDS if hasattr(config, name)}
            return {"backbone_config": config.to_dict() | ids | {"vocab_size": len(tokenizer)}}
        fields = {name: getattr(config, name) for name in (*OF_ALL, *OF_BODY, *FURTHER)}
        fields["max_position_embeddings"] = longest_input(config) + tokenizer.pad_token_id + 1
        for name in {"embeddings": OF_ALL, "none": ()}.get(self.settings.initialize, (*OF_ALL, *OF_BODY)):
            if name in given and given[name] != fields[name]:
                theirs = f"the checkpoint {self.name!r}, whose weights are copied, has {fields[name]}"
                raise ValueError(f"model.config.{name} is {given[name]}, but {theirs}. Leave it out of model.config.")
        return fields

    def match(self, tokenizer: PreTrainedTokenizerBase) -> Matching:
        """Matches the checkpoint's vocabulary to that of `tokenizer`. Raises ValueError if the checkpoint has no
        tokenizer, or another model's."""
        own, settings = self.checkpoint.tokenizer(self.config), self.settings
        return match_vocabularies(own, tokenizer, settings.dictionaries, self.checkpoint.hub_root)

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
    wanted = {"none": (), "both": ("body", "embeddings", "head")}
    wanted = wanted.get(source.settings.initialize, (source.settings.initialize,))
    mine, theirs = model.state_dict(keep_vars=True), source.weights if wanted else {}
    rows, left = token_rows(model), []
    for name, new in mine.items():
        part = "body" if name.startswith((BODY, BACKBONE)) else "head" if name.startswith("lm_head.") else ""
        if name in rows or name.startswith((EMBEDDINGS, f"{BACKBONE}embed")):
            part = "embeddings"
        if name not in theirs or part not in wanted:
            left.append(name)
        elif name in rows:
            matching.copy_rows(new, theirs[name])
        elif name not in (POSITIONS, TOKEN_TYPES):
            new.copy_(theirs[name])
    if "embeddings" in wanted and POSITIONS in mine:
        left += _copy_positions(mine, source, model.config.pad_token_id + 1)
    return left


def _copy_positions(mine: dict, source: MetaCheckpoint, first: int) -> list[str]:
    """Returns which positions stay random."""
    old_PH, new_PH, types = source.weights[POSITIONS], mine[POSITIONS], source.weights[TOKEN_TYPES]
    offset = first_position(source.config)
    if offset == first:
        offset = first = 0  # the rows before the first token's, too, so that a copy of the model is exact
    count = min(len(old_PH) - offset, len(new_PH) - first)
    rows = slice(first, first + count)
    new_PH[rows] = old_PH[offset : offset + count]
    if source.config.model_type == "bert":
        new_PH[rows] += types[0]
        mine[TOKEN_TYPES].zero_()
    else:
        kept = min(len(types), len(mine[TOKEN_TYPES]))
        mine[TOKEN_TYPES][:kept] = types[:kept]
    return [f"{POSITIONS} from {first + count} on"] if first + count < len(new_PH) else []
