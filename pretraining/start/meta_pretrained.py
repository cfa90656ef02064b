"""A model of one language as the start of a cross-lingual one (MetaXLM; Chi et al. 2021, sections 3.1, 3.2, 5.4, 5.5).

The body, which knows no vocabulary, is copied as it is; the rows of the embeddings and the bias of the head follow
`vocabulary_matching`.

Legend: `V` tokens of the old vocabulary, `W` of the new one, `P` positions, `H` hidden size.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from modeling.backbone import ARCHITECTURES, BERT_NAMES, renamed
from pretraining.recipe import MetaPretrained, Recipe
from pretraining.start.matching_report import recipe_token_counts, report, write_report
from pretraining.start.pretrained import check_own_tokenizer, existing_path, read_config, read_masked_lm, read_tokenizer
from pretraining.start.vocabulary_matching import Matching, match_vocabularies
from zoo_core.provenance import folder_fingerprint
from zoo_core.vocabularies import check_vocabulary

logger = logging.getLogger(__name__)

OF_ROBERTA = ("roberta", "xlm-roberta", "camembert", "veco", "ernie_m", "xlm_align", "metaxlm")  # its names, and ours
OF_BERT = ("bert",)
# fields of a configuration that say what the body computes, and those that every part depends on
OF_BODY = ("num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act")
OF_ALL = ("hidden_size", "layer_norm_eps")
FURTHER = ("hidden_dropout_prob", "attention_probs_dropout_prob")
GELUS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python")  # what a head of ours stands for

# of a tokenizer, and of a configuration
SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "mask_token_id")

FIELD = "model.meta_pretrained.path"
BODY = "roberta.encoder."
BACKBONE = "roberta.backbone."  # of another architecture
EMBEDDINGS = "roberta.embeddings."
WORDS, POSITIONS = f"{EMBEDDINGS}word_embeddings.weight", f"{EMBEDDINGS}position_embeddings.weight"
TOKEN_TYPES = f"{EMBEDDINGS}token_type_embeddings.weight"
BIAS = "lm_head.bias"
HEAD = ("lm_head.dense.weight", "lm_head.dense.bias", "lm_head.layer_norm.weight", "lm_head.layer_norm.bias")


@dataclass(frozen=True)
class Source:
    """A meta-pretrained checkpoint: its weights by this zoo's names, its configuration and its tokenizer."""

    name: str
    weights: dict[str, torch.Tensor]
    config: PreTrainedConfig
    tokenizer: Any


def of_body(name: str) -> bool:
    """Whether a parameter is of the Transformer layers, less an added cross-attention (VECO): no model of one language
    has that."""
    of_other = name.startswith(BACKBONE) and not name.startswith(f"{BACKBONE}embed")  # ..embeddings, ..embed_tokens
    return of_other or (name.startswith(BODY) and ".crossattention." not in name)


def carries_rows(start: MetaPretrained) -> bool:
    """Whether rows of the old vocabulary are carried over at all."""
    return start.initialize in ("both", "embeddings")


def first_position(config: PreTrainedConfig) -> int:
    """The row of the first token's position: RoBERTa's tables count from behind the padding id, BERT's from 0."""
    return config.pad_token_id + 1 if config.model_type in OF_ROBERTA else 0


def source_config(start: MetaPretrained, hub_root: str | None, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The configuration of a meta-pretrained checkpoint.

    Raises ValueError for one that is not there, or of an unknown architecture.
    """
    config = read_config(start.path, FIELD, hub_root, trust_remote_code)
    reason = None
    if config.model_type in ARCHITECTURES:
        return config
    if config.model_type not in (*OF_BERT, *OF_ROBERTA):
        reason = f"is a checkpoint of {config.model_type!r}"
    elif getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        reason = f"has {config.position_embedding_type} positions"
    elif getattr(config, "is_decoder", False) or getattr(config, "decoder_layers", None) is not None:
        reason = "is a decoder, or a translation model"
    if reason:
        known = ", ".join((*OF_BERT, *OF_ROBERTA, *ARCHITECTURES))
        raise ValueError(f"{FIELD} {start.path!r} {reason}: its body cannot be copied. Take an encoder of {known}.")
    return config


def start_settings(
    start: MetaPretrained,
    given: dict[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    hub_root: str | None,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Fields of the new model's configuration that the checkpoint settles where `model.config` (`given`) does not.

    Raises ValueError for a field of `given` under which what is carried over would compute something else, and what
    `source_config` raises.
    """
    config, padding_id = source_config(start, hub_root, trust_remote_code), tokenizer.pad_token_id
    if config.model_type in ARCHITECTURES:
        ids = {name: getattr(tokenizer, name) for name in SPECIAL_IDS if hasattr(config, name)}
        return {"backbone_config": config.to_dict() | ids | {"vocab_size": len(tokenizer)}}
    settings = {name: getattr(config, name) for name in (*OF_ALL, *OF_BODY, *FURTHER)}
    positions = config.max_position_embeddings - first_position(config)
    settings["max_position_embeddings"] = positions + padding_id + 1
    bound = {"embeddings": OF_ALL, "none": ()}.get(start.initialize, (*OF_ALL, *OF_BODY))
    for name in bound:
        if name in given and given[name] != settings[name]:
            theirs = f"the checkpoint {start.path!r}, which is carried over, has {settings[name]}"
            raise ValueError(f"model.config.{name} is {given[name]}, and {theirs}. Leave it out of model.config.")
    return settings


def source_vocabulary(
    start: MetaPretrained, hub_root: str | None, trust_remote_code: bool = False
) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Configuration and tokenizer of a meta-pretrained checkpoint.

    Raises ValueError for a tokenizer that is not there or does not belong to it, and what `source_config` raises.
    """
    config, field = source_config(start, hub_root, trust_remote_code), "model.meta_pretrained.tokenizer"
    name = start.tokenizer or start.path
    tokenizer = read_tokenizer(name, field if start.tokenizer else FIELD, hub_root, trust_remote_code)
    check_vocabulary(tokenizer, config, name, start.path, f"Name the checkpoint's own as {field}.")
    check_own_tokenizer(tokenizer, start.tokenizer, start.path, field, hub_root, trust_remote_code)
    return config, tokenizer


def load_source(start: MetaPretrained, hub_root: str | None, trust_remote_code: bool = False) -> Source:
    """A meta-pretrained checkpoint with weights in float32.

    Raises ValueError for damaged weights, for a checkpoint without embeddings or layers, and what `source_vocabulary`
    raises.
    """
    config, tokenizer = source_vocabulary(start, hub_root, trust_remote_code)
    model, absent = read_masked_lm(start.path, FIELD, hub_root, config, trust_remote_code)
    weights = {our_name(key, model): value for key, value in model.state_dict().items() if key not in absent}
    return Source(start.path, weights, config, tokenizer)


def our_name(key: str, model: PreTrainedModel) -> str:
    """This zoo's name of a parameter of a library's masked LM; those of RoBERTa's have it already."""
    if model.config.model_type in ARCHITECTURES:
        return renamed(model, key)
    for theirs, ours in BERT_NAMES.items() if model.config.model_type in OF_BERT else ():
        key = re.sub(theirs, ours, key)
    return key


def match(recipe: Recipe, tokenizer: Any) -> tuple[Source, Matching]:
    """The checkpoint that a recipe starts from, and its vocabulary matched to `tokenizer`'s: without a match where it
    carries no rows over."""
    start = recipe.model.meta_pretrained
    if not carries_rows(start):
        start = replace(start, rows="random", dictionaries=[])
    source = load_source(start, recipe.hub_root, recipe.trust_remote_code)
    return source, match_vocabularies(source.tokenizer, tokenizer, start, recipe.hub_root)


@torch.no_grad()
def carry_over(model: PreTrainedModel, source: Source, matching: Matching, initialize: str) -> list[str]:
    """Copies a source's weights into a model with random ones; returns sentences on what stays random.

    initialize (Table 5): `body` copies the Transformer layers; `embeddings` words, positions, token types and their
    LayerNorm, with the bias of the head, which has a number a token; `both` also the dense layer and LayerNorm of the
    head, which map the states of the one into the space of the other, and mean nothing with one of them alone; `none`
    nothing.

    Positions: the first token's row goes to the first token's row. BERT adds row 0 of its token types at every
    position of a text, so it is added to the positions, and the new model's are zero.
    """
    if model.config.backbone_config is not None:
        return _carry_over_backbone(model, source, matching, initialize)
    mine, theirs, notes = model.state_dict(), source.weights, []
    is_tied = source.config.tie_word_embeddings  # a head that was trained for another matrix says nothing here
    untied = "" if is_tied else "its head has a matrix of its own"
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
        notes.append(f"{len(others)} weights that it does not have start random ({others[0]}, ...)")
    return notes


def _carry_over_backbone(model: PreTrainedModel, source: Source, matching: Matching, initialize: str) -> list[str]:
    """`carry_over` in another architecture: what has a row a token follows the matching, all else is copied."""
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
    return [f"{len(fresh)} weights that it does not have start random ({fresh[0]}, ...)"] if fresh else []


def _copy(mine: dict, theirs: dict, names: Iterable[str], source: str) -> None:
    for name in names:
        if name not in theirs or theirs[name].shape != mine[name].shape:
            found = tuple(theirs[name].shape) if name in theirs else "not there"
            wanted = f"{tuple(mine[name].shape)} in the new model"
            raise ValueError(f"{name} is {found} in the checkpoint {source!r} and {wanted}.")
        mine[name].copy_(theirs[name])


def mean_rows(new_WH: torch.Tensor, old_VH: torch.Tensor, sources: list[tuple[int, ...]]) -> None:
    """Sets each row of `new_WH` that has sources to the mean of these rows of `old_VH`; the others stay."""
    by_count: dict[int, list[int]] = {}
    for row, found in enumerate(sources):
        by_count.setdefault(len(found), []).append(row)
    for count, rows in by_count.items():
        if count:  # a copy, bit by bit, where there is one
            indices = torch.tensor([sources[row] for row in rows])
            new_WH[rows] = old_VH[indices].mean(1) if count > 1 else old_VH[indices[:, 0]]


def _copy_positions(mine: dict, source: Source, first: int) -> list[str]:
    old_PH, new_PH, types = source.weights[POSITIONS], mine[POSITIONS], source.weights[TOKEN_TYPES]
    offset = first_position(source.config)
    if offset == first:
        offset = first = 0  # the rows before the first token's as well: the same model stays the same
    count = min(len(old_PH) - offset, len(new_PH) - first)
    rows = slice(first, first + count)
    new_PH[rows] = old_PH[offset : offset + count]
    if source.config.model_type in OF_BERT:
        new_PH[rows] += types[0]
        mine[TOKEN_TYPES].zero_()
    else:
        kept = min(len(types), len(mine[TOKEN_TYPES]))
        mine[TOKEN_TYPES][:kept] = types[:kept]
    longer = len(new_PH) - first - count
    return [f"{longer} positions beyond the {count} of the checkpoint start random"] if longer > 0 else []


def report_match(matched: tuple[Source, Matching], tokenizer: Any, recipe: Recipe) -> None:
    """Writes vocabulary_matching.json and .txt into the run folder."""
    source, matching = matched
    filled, rows = sum(map(bool, matching.sources)), len(matching.sources)
    logger.info(f"start: {filled:,} of {rows:,} rows of the vocabulary are those of {source.name}")
    counts = recipe_token_counts(recipe, tokenizer)
    write_report(report(matching, source.tokenizer, tokenizer, counts), Path(recipe.output_dir))


def start_facts(recipe: Recipe) -> dict[str, str | None] | None:
    """Path and fingerprint of the meta-pretrained checkpoint, for run.json; None without one."""
    start = recipe.model.meta_pretrained
    if start is None:
        return None
    folder = Path(existing_path(start.path, FIELD, recipe.hub_root))
    return {"path": start.path, "fingerprint": folder_fingerprint(folder) if folder.is_dir() else None}
