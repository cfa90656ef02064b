"""A model of one language as the start of a cross-lingual one (MetaXLM; Chi et al. 2021, sections 3.1, 3.2, 5.4, 5.5).

The body (the Transformer layers) does not depend on the vocabulary and is copied unchanged. `vocabulary_matching` maps
the rows of the embeddings and the bias of the head.

Legend: `V` tokens of the old vocabulary, `W` of the new one, `P` positions, `H` hidden size.
"""

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from modeling.backbone import ARCHITECTURES, BERT_NAMES, renamed
from modeling.model_types import LOADABLE, first_position, longest_input
from pretraining.recipe import MetaPretrained
from pretraining.start.pretrained import Pretrained
from pretraining.start.vocabulary_matching import Matching, match_vocabularies, mean_rows
from zoo_core.provenance import folder_fingerprint
from zoo_core.vocabularies import check_vocabulary

# fields of a configuration that define the body's computation, and those that every part depends on
OF_BODY = ("num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act")
OF_ALL = ("hidden_size", "layer_norm_eps")
FURTHER = ("hidden_dropout_prob", "attention_probs_dropout_prob")
GELUS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python")  # activations that our head can replace

# of a tokenizer, and of a configuration
SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id")

BODY = "roberta.encoder."
BACKBONE = "roberta.backbone."  # of another architecture
EMBEDDINGS = "roberta.embeddings."
WORDS, POSITIONS = f"{EMBEDDINGS}word_embeddings.weight", f"{EMBEDDINGS}position_embeddings.weight"
TOKEN_TYPES = f"{EMBEDDINGS}token_type_embeddings.weight"
BIAS = "lm_head.bias"
HEAD = ("lm_head.dense.weight", "lm_head.dense.bias", "lm_head.layer_norm.weight", "lm_head.layer_norm.bias")


def of_body(name: str) -> bool:
    """Returns whether a parameter belongs to the Transformer layers. An added cross-attention (VECO) does not count: no
    model of one language has it."""
    of_other = name.startswith(BACKBONE) and not name.startswith(f"{BACKBONE}embed")  # ..embeddings, ..embed_tokens
    return of_other or (name.startswith(BODY) and ".crossattention." not in name)


class Source:
    """A meta-pretrained checkpoint. Configuration, tokenizer and weights are read at their first use."""

    def __init__(self, settings: MetaPretrained, hub_root: str | None = None, trust_remote_code: bool = False):
        self.settings = settings
        self.checkpoint = Pretrained(settings.path, "model.meta_pretrained.path", hub_root, trust_remote_code)
        self.name, self.carries_rows = settings.path, settings.initialize in ("both", "embeddings")

    @cached_property
    def config(self) -> PreTrainedConfig:
        """Raises ValueError for a checkpoint that does not exist or has an unknown architecture."""
        config = self.checkpoint.config()
        if config.model_type in ARCHITECTURES:
            return config
        reason = None
        if config.model_type not in LOADABLE:
            reason = f"is a checkpoint of {config.model_type!r}"
        elif getattr(config, "position_embedding_type", None) not in (None, "absolute"):
            reason = f"has {config.position_embedding_type} positions"
        elif getattr(config, "is_decoder", False) or getattr(config, "decoder_layers", None) is not None:
            reason = "is a decoder, or a translation model"
        if reason:
            known = ", ".join((*LOADABLE, *ARCHITECTURES))
            raise ValueError(f"{self.checkpoint} {reason}: its body cannot be copied. Use an encoder of {known}.")
        return config

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Raises ValueError for a tokenizer that does not exist or does not belong to the checkpoint."""
        config, field = self.config, "model.meta_pretrained.tokenizer"
        given = self.checkpoint.with_tokenizer(self.settings.tokenizer, field)
        tokenizer = given.tokenizer()
        check_vocabulary(tokenizer, config, given.name, self.name, f"Set {field} to the checkpoint's own tokenizer.")
        self.checkpoint.check_tokenizer(tokenizer, given)
        return tokenizer

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """In float32, by this zoo's names. Raises ValueError for damaged weights and missing layers or embeddings."""
        model, absent = self.checkpoint.masked_lm(self.config)
        return {our_name(key, model): value for key, value in model.state_dict().items() if key not in absent}

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
        bound = {"embeddings": OF_ALL, "none": ()}.get(self.settings.initialize, (*OF_ALL, *OF_BODY))
        for name in bound:
            if name in given and given[name] != fields[name]:
                theirs = f"the checkpoint {self.name!r}, whose weights are copied, has {fields[name]}"
                raise ValueError(f"model.config.{name} is {given[name]}, but {theirs}. Leave it out of model.config.")
        return fields

    def match(self, tokenizer: PreTrainedTokenizerBase, as_if_carried: bool = False) -> Matching:
        """Matches the checkpoint's vocabulary to that of `tokenizer`.

        If the recipe carries no rows over, all rows are random, unless `as_if_carried`.
        """
        settings = self.settings
        if not (self.carries_rows or as_if_carried):
            return match_vocabularies(self.tokenizer, tokenizer, rows="random")
        return match_vocabularies(
            self.tokenizer,
            tokenizer,
            settings.rows,
            settings.dictionaries,
            settings.dictionary,
            self.checkpoint.hub_root,
        )

    def facts(self) -> dict[str, str | None]:
        """Returns path and fingerprint, for run.json."""
        folder = Path(self.checkpoint.path)
        return {"path": self.name, "fingerprint": folder_fingerprint(folder) if folder.is_dir() else None}


def our_name(key: str, model: PreTrainedModel) -> str:
    """Returns this zoo's name for a parameter of a masked LM of transformers; RoBERTa's names are the same."""
    if model.config.model_type in ARCHITECTURES:
        return renamed(model, key)
    for theirs, ours in BERT_NAMES.items() if model.config.model_type == "bert" else ():
        key = re.sub(theirs, ours, key)
    return key


@torch.no_grad()
def carry_over(model: PreTrainedModel, source: Source, matching: Matching) -> list[str]:
    """Copies a source's weights into a model with random ones; returns sentences about the weights that stay random.

    `initialize` of the recipe (Table 5):

    - `body` copies the Transformer layers;
    - `embeddings` copies words, positions, token types and their LayerNorm, and the bias of the head (one per token);
    - `both` copies these, and the dense layer and LayerNorm of the head, which map the states of the body into the
      space of the embeddings and need both;
    - `none` copies nothing.

    The first token's position is copied to the first token's position. BERT adds row 0 of its token types at every
    position of a text, so that row is added to the positions, and the new model's token types are zero.
    """
    initialize = source.settings.initialize
    if model.config.backbone_config is not None:
        return _carry_over_backbone(model, source, matching, initialize)
    mine, theirs, notes = model.state_dict(), source.weights, []
    is_tied = source.config.tie_word_embeddings  # a head that was trained with another matrix is of no use here
    untied = "" if is_tied else "its head has its own matrix"
    if initialize in ("body", "both"):
        body = [name for name in mine if name.startswith(BODY)]
        _copy(mine, theirs, [name for name in body if of_body(name) or name in theirs], source.name)
    if initialize in ("embeddings", "both"):
        _copy(mine, theirs, [name for name in mine if name.startswith(f"{EMBEDDINGS}LayerNorm.")], source.name)
        mean_rows(mine[WORDS], theirs[WORDS], matching.sources)
        if BIAS in theirs and is_tied:
            mean_rows(mine[BIAS][:, None], theirs[BIAS][:, None], matching.sources)
        else:
            notes.append(f"{untied or 'it has no masked-LM head'}: the bias of the head starts at zero")
        notes += _copy_positions(mine, source, model.config.pad_token_id + 1)
    if initialize == "both":
        if all(name in theirs for name in HEAD) and source.config.hidden_act in GELUS and is_tied:
            _copy(mine, theirs, [name for name in HEAD if name in mine], source.name)
        else:
            reason = untied or "it has no masked-LM head, or one with another activation"
            notes.append(f"{reason}: the dense layer of the head starts random")
    if others := [name for name in mine if name not in theirs and not name.startswith((EMBEDDINGS, "lm_head."))]:
        notes.append(f"it lacks {len(others)} weights, which start random ({others[0]}, ...)")
    return notes


def _carry_over_backbone(model: PreTrainedModel, source: Source, matching: Matching, initialize: str) -> list[str]:
    """`carry_over` for another architecture: rows of tokens follow the matching, all other weights are copied."""
    mine, theirs = model.state_dict(keep_vars=True), source.weights
    decoder = model.lm_head.decoder
    of_tokens = [
        weight for weight in (model.get_input_embeddings().weight, decoder.weight, decoder.bias) if weight is not None
    ]
    rows = [name for name, weight in mine.items() if any(weight is one for one in of_tokens) and name in theirs]
    parts = {"body": of_body, "both": lambda name: True, "none": lambda name: False}
    wanted = parts.get(initialize, lambda name: name.startswith(BACKBONE) and not of_body(name))
    if initialize in ("embeddings", "both"):
        for name in rows:
            new, old = mine[name], theirs[name]
            mean_rows(new.view(len(new), -1), old.view(len(old), -1), matching.sources)
    copied = [name for name in mine if name in theirs and name not in rows and wanted(name)]
    _copy(mine, theirs, copied, source.name)
    fresh = [name for name in mine if name not in theirs]
    return [f"it lacks {len(fresh)} weights, which start random ({fresh[0]}, ...)"] if fresh else []


def _copy(mine: dict, theirs: dict, names: Iterable[str], source: str) -> None:
    for name in names:
        if name not in theirs or theirs[name].shape != mine[name].shape:
            found = f"of shape {tuple(theirs[name].shape)}" if name in theirs else "missing"
            wanted = f"of shape {tuple(mine[name].shape)} in the new model"
            raise ValueError(f"{name} is {found} in the checkpoint {source!r}, and {wanted}.")
        mine[name].copy_(theirs[name])


def _copy_positions(mine: dict, source: Source, first: int) -> list[str]:
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
    longer = len(new_PH) - first - count
    return [f"{longer} positions beyond the {count} of the checkpoint start random"] if longer > 0 else []
