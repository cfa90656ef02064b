"""The models that the page tries: found, checked, loaded once, and what each of them can do."""

import json
import os
import re
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import ModelCard
from transformers import MODEL_FOR_MASKED_LM_MAPPING, pipeline

from modeling.checkpoints import download_pinned, load_auto_model, load_config, load_tokenizer, split_revision
from modeling.fresh_weights import POOLER, fresh_weights
from modeling.layer_states import check_finite, default_layer
from modeling.pipeline_word_alignment import WordAlignmentPipeline

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
HEADS = {  # by the end of the class that was saved: what such a model was fine-tuned for
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
}
PAIR_TASKS = ("xnli", "pawsx", "sick", "mnli", "snli")  # by the beginning of a task's name
TOY_PARAMETERS = 10_000_000  # below: the vocabulary of a real encoder of many languages alone has more
KEPT = 3  # models in memory; the least recently used one goes
TOKENIZER_FILES = ("tokenizer.json", "sentencepiece.bpe.model", "spiece.model", "vocab.txt", "vocab.json")


@dataclass
class Model:
    """A loaded model.

    encoder: its encoder, whose states are compared. masked_lm: the whole with a masked-LM head, or None. fine_tuned:
    the whole with a head for a task, or None; head: that task, a value of HEADS, or empty. aligner: a word-alignment
    pipeline, or None. lacking: why a tab cannot be served, by `align`, `fill`, `nearest`. positions: longest input in
    tokens, special ones included. languages: codes of those that it is recorded to know; none where nothing is.
    vectors: sentence vectors found before.
    """

    name: str
    tokenizer: Any
    encoder: Any
    masked_lm: Any
    fine_tuned: Any
    head: str
    aligner: Any
    lacking: dict[str, str]
    layers: int
    positions: int
    languages: list[str]
    facts: dict[str, Any]
    vectors: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)

    @property
    def default_layer(self) -> int:
        """The aligner's."""
        return default_layer(self.layers)

    @property
    def is_toy(self) -> bool:
        """Whether it is too small to be of use, as the models of the recipes that ship for the sample corpus are."""
        return self.facts["parameters"] < TOY_PARAMETERS

    @property
    def reads_pairs(self) -> bool:
        """Whether it was fine-tuned to classify pairs of texts."""
        return self.facts["tuned_on"].startswith(PAIR_TASKS) or "entailment" in self.facts["labels"]


class Models:
    """Models by name, loaded when first asked for.

    Args:
        listed: names that are offered: folders or Hub ids.
        only_listed: whether others are refused.
        trust_remote_code: whether code runs that listed models bring; that of others never does.
    """

    def __init__(self, listed: list[str], only_listed: bool, trust_remote_code: bool = False):
        self.names = list(dict.fromkeys(listed))
        self.only_listed = only_listed
        self.trusted = frozenset(listed if trust_remote_code else ())
        self.loaded: dict[str, Model] = {}
        self.lock = threading.Lock()

    def get(self, name: str | None) -> Model:
        """The model of that name.

        Raises ValueError for a name that is not offered, is no model, or cannot be loaded; what is loaded stays.
        """
        name = (name or "").strip()
        if not name:
            raise ValueError("No model is named: choose one, or type a folder or the id of one on the Hub.")
        if self.only_listed and name not in self.names:
            raise ValueError(f"“{name[:80]}” is not in the list, and only listed models are loaded here.")
        with self.lock:  # two visitors who ask for one model wait for one load
            self.loaded[name] = self.loaded.pop(name, None) or load(name, name in self.trusted)
            if len(self.loaded) > KEPT:
                del self.loaded[next(iter(self.loaded))]
            if name not in self.names:
                self.names.append(name)
            return self.loaded[name]


def load(name: str, trust_remote_code: bool = False) -> Model:
    """Loads a folder or Hub id. Raises ValueError for what is no text encoder, cannot be read, or needs its code."""
    source = download_pinned(find(name))
    try:
        config = load_config(source, trust_remote_code)
        if os.path.isdir(source) and not any((Path(source) / file).is_file() for file in TOKENIZER_FILES):
            raise ValueError(f"it holds no tokenizer (none of {', '.join(TOKENIZER_FILES)})")
        tokenizer = load_tokenizer(source, trust_remote_code)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # decoders have none
        encoder, whole, head, no_masks = load_weights(source, config, trust_remote_code)
        rows = encoder.get_input_embeddings().num_embeddings
        if len(tokenizer) > rows:
            raise ValueError(f"the tokenizer knows {len(tokenizer):,} tokens, and the model has vectors of {rows:,}")
    except Exception as error:  # files of strangers, and perhaps their code: they may fail in any way
        raise ValueError(f"{name} cannot be loaded: {first_sentence(error)}") from error
    aligner, no_aligner = load_aligner(encoder, tokenizer)
    if not no_masks and tokenizer.mask_token_id is None:
        no_masks = f"{type(tokenizer).__name__} has no mask token: the model cannot be asked for a word."
    lacking = {"align": no_aligner, "fill": no_masks}
    return Model(
        name=name,
        tokenizer=tokenizer,
        encoder=encoder,
        masked_lm=None if head else whole,
        fine_tuned=whole if head else None,
        head=head,
        aligner=aligner,
        lacking={tab: reason for tab, reason in lacking.items() if reason},
        layers=encoder.config.num_hidden_layers,
        positions=longest_input(encoder, tokenizer),
        languages=recorded_languages(source, config),
        facts={
            "type": config.model_type,
            "parameters": sum(parameter.numel() for parameter in (whole or encoder).parameters()),
            "on_hub": not os.path.isdir(source),
            "tuned_on": (getattr(config, "fine_tuned_on", None) or [""])[-1],
            "labels": list((config.id2label or {}).values()),
        },
    )


def find(name: str) -> str:
    """The folder or Hub id that a user means. Raises ValueError for a folder without a model, and for neither."""
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):  # of os.path: what cannot be a path is no folder, and no error
        if not (folder / "config.json").is_file():
            inside = folder / "model"
            remedy = f"name {inside}" if (inside / "config.json").is_file() else "name the folder of a saved model"
            raise ValueError(f"{name} has no config.json: {remedy}.")
        return str(folder)
    if name[0] in "./~\\" or not HUB_ID.fullmatch(split_revision(name)[0]) or len(name) > 96:
        raise ValueError(
            f"“{name[:80]}” is no folder on this machine, and no id of the Hub (owner/name, owner/name@revision)."
        )
    return name


def load_weights(source: str, config: Any, trust_remote_code: bool) -> tuple[Any, Any, str, str]:
    """(encoder, the whole with its head or None, the task of that head or empty, why it fills no masks).

    Raises ValueError for no text encoder, and for weights without the encoder's, or that are not finite.
    """
    auto_map = getattr(config, "auto_map", None) or {}
    suffix = next((end for end in HEADS if (config.architectures or [""])[0].endswith(end)), "")
    if getattr(config, "plug_in", False):  # it reads translations too, which the page does not ask for
        suffix = ""
    fills_masks = "AutoModelForMaskedLM" in auto_map or type(config) in MODEL_FOR_MASKED_LM_MAPPING
    kind = getattr(transformers, f"AutoModel{suffix or ('ForMaskedLM' if fills_masks else '')}")
    report = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    model, found = load_auto_model(kind, source, trust_remote_code, dtype=torch.float32, **report)
    base = model.eval().base_model
    fresh = fresh_weights(model, found, "the checkpoint", is_whole=base is model)
    check_finite(model, "the checkpoint")
    missing = [key for key in fresh if not POOLER.search(key)]
    encoder = base.get_encoder() if getattr(base.config, "is_encoder_decoder", False) else base
    is_encoder = isinstance(getattr(encoder.config, "num_hidden_layers", None), int)
    if not is_encoder or not hasattr(encoder.get_input_embeddings(), "num_embeddings"):
        raise ValueError(f"{type(encoder).__name__} is no text encoder")
    if not fills_masks:
        reason = f"A {config.model_type} model has no masked-LM head: it was not made to fill in words."
    elif suffix or missing:
        reason = "These weights hold no masked-LM head: try the pre-trained model that they started from."
    else:
        reason = ""
    has_head = base is not model and not missing
    return encoder, model if has_head else None, HEADS[suffix] if suffix and has_head else "", reason


def recorded_languages(source: str, config: Any) -> list[str]:
    """Codes of the languages that the configuration, the card, or the run that made the folder names, in this order;
    none where nothing is recorded."""
    folder = Path(source).resolve()

    def of_card() -> list[str] | str | None:
        return ModelCard.load(str(folder / "README.md") if folder.is_dir() else source).data.language

    def of_pretraining() -> list[str]:
        corpora = json.loads((folder.parent / "run.json").read_text(encoding="utf-8"))["corpora"]
        return [code for corpus in corpora for code in corpus["languages"]]

    def of_fine_tuning() -> list[str]:  # of all seeds
        scores = json.loads((folder.parents[1] / "results.json").read_text(encoding="utf-8"))["scores"]
        return [score["language"] for score in scores]

    for read in (lambda: config.languages, of_card, of_pretraining, of_fine_tuning):
        try:
            names = read() or []
        except Exception:  # it may be absent, out of reach, or what somebody else wrote
            continue
        if names:
            names = [names] if isinstance(names, str) else names
            return list(dict.fromkeys(code for name in names for code in re.split("[-_]", str(name))))  # de-en, pt_br
    return []


def load_aligner(encoder: Any, tokenizer: Any) -> tuple[Any, str]:
    """(the zoo's word-alignment pipeline over the weights already loaded, or None; why not)."""
    made_by = {"pipeline_class": WordAlignmentPipeline, "device": "cpu"}
    try:
        return pipeline("word-alignment", model=encoder, tokenizer=tokenizer, **made_by), ""
    except Exception as error:  # as above; the other tabs do without
        return None, f"The word aligner of this model cannot be used: {first_sentence(error)}"


def longest_input(encoder: Any, tokenizer: Any) -> int:
    """Positions of the longest input. XLM-R's kind counts them from behind the padding's row, BERT's from 0."""
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    if isinstance(table, torch.nn.Embedding):
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    # a tokenizer without a limit of its own says 1e30
    return min(getattr(encoder.config, "max_position_embeddings", None) or sys.maxsize, tokenizer.model_max_length)


def first_sentence(error: BaseException) -> str:
    """What an error says, without the rest of its story."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    return re.split(r"[.!?] ", line, maxsplit=1)[0].rstrip(".") + "."
