"""The models that the page tries: found, checked, loaded once, and what each of them can do."""

import os
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    pipeline,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
ALIGNER = "word-alignment"
KEPT = 3  # models in memory; the least recently used one goes
REASON_LENGTH = 300  # characters that are shown of what a library says

TOKENIZER_FILES = ("tokenizer.json", "sentencepiece.bpe.model", "spiece.model", "vocab.txt", "vocab.json")

Report = Callable[[float, str], None]


class NotUsableError(ValueError):
    """A model that was found and is of no use here; its words are for the user."""


@dataclass
class Model:
    """A loaded model.

    encoder: its encoder, whose states are compared. masked_lm: the whole with a head, or None. aligner: the
    word-alignment pipeline that it brings, or None. lacking: why a tab cannot be served, by `align`, `fill`, `nearest`.
    positions: longest input in pieces, special tokens included. vectors: sentence vectors found before.
    """

    name: str
    tokenizer: Any
    encoder: Any
    masked_lm: Any
    aligner: Any
    lacking: dict[str, str]
    layers: int
    positions: int
    facts: dict[str, Any]
    vectors: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)

    @property
    def default_layer(self) -> int:
        """Two thirds of the way up, where the retrieval task and the aligner read states."""
        return round(self.layers * 2 / 3)


class Models:
    """Models by name, loaded when first asked for.

    Args:
        listed: names that are offered: folders or Hub ids.
        only_listed: whether others are refused. A model brings code, which is run here.
    """

    def __init__(self, listed: list[str], only_listed: bool):
        self.names = list(dict.fromkeys(listed))
        self.only_listed = only_listed
        self.loaded: OrderedDict[str, tuple[float, Model]] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, name: str | None, report: Report = lambda share, text: None) -> Model:
        """The model of that name. A folder that has changed since is read again.

        `report(share, text)` hears how far loading is. Raises ValueError, in words for the page, for a name that is not
        offered, is no model, or cannot be loaded; what is loaded stays.
        """
        name = (name or "").strip()
        if not name and self.only_listed:
            raise ValueError("No model is chosen. Nothing can be tried without one. Choose one from the list.")
        if not name:
            raise ValueError(
                "No model is named. Nothing can be tried without one. Type a folder that holds a model, or the id of "
                "one on the Hub, such as FacebookAI/xlm-roberta-base."
            )
        if self.only_listed and name not in self.names:
            raise ValueError(
                f"“{shortened(name, 80)}” is not in the list. A model brings code, which would run on this machine, so "
                "only the models that its owner listed are loaded here. Choose one of them, or run this page yourself."
            )
        with self.lock:  # two visitors who ask for one model wait for one load
            changed = last_change(name)
            known = self.loaded.get(name)
            if known is None or known[0] != changed:
                known = changed, load(name, report)
                self.loaded[name] = known
            self.loaded.move_to_end(name)
            while len(self.loaded) > KEPT:
                self.loaded.popitem(last=False)
            if name not in self.names:
                self.names.append(name)
        return known[1]


def last_change(name: str) -> float:
    """When a file of a folder was last written; 0 for what is no folder."""
    folder = os.path.expanduser(name)  # of os.path: what cannot be a path is no folder, and no error
    if not os.path.isdir(folder):
        return 0.0
    return max((path.stat().st_mtime for path in Path(folder).iterdir() if path.is_file()), default=0.0)


def load(name: str, report: Report) -> Model:
    """Loads a folder or Hub id. Raises ValueError for what is no text encoder, or cannot be read."""
    report(0.0, f"Looking for {name}")
    source = find(name)
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=True)
        report(0.2, "Reading the tokenizer")
        tokenizer = load_tokenizer(source)
        report(0.4, "Reading the weights")
        encoder, masked_lm, no_head = load_weights(source, config)
        report(0.9, "Looking for a word aligner")
        aligner, no_aligner = load_aligner(source, config, encoder, tokenizer)
    except NotUsableError as error:
        raise ValueError(f"{name} cannot be loaded: {error}") from error
    except Exception as error:  # code of the model's own was run: it may fail in any way
        raise explained(error, name) from error
    layers = getattr(encoder.config, "num_hidden_layers", None)
    rows = encoder.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise ValueError(
            f"{name}: the tokenizer knows {len(tokenizer):,} tokens, and the model has vectors of {rows:,}. They do "
            "not belong together. Save the tokenizer that the model was trained with into its folder."
        )
    lacking = {"align": no_aligner, "fill": no_head}
    if masked_lm is not None and tokenizer.mask_token_id is None:
        lacking["fill"] = (
            f"{type(tokenizer).__name__} has no mask token: the model cannot be asked for a word. Save the tokenizer "
            "that the model was pre-trained with."
        )
    return Model(
        name=name,
        tokenizer=tokenizer,
        encoder=encoder,
        masked_lm=masked_lm,
        aligner=aligner,
        lacking={tab: reason for tab, reason in lacking.items() if reason},
        layers=layers,
        positions=longest_input(encoder, tokenizer),
        facts={
            "type": config.model_type,
            "parameters": sum(parameter.numel() for parameter in (masked_lm or encoder).parameters()),
            "on_hub": not os.path.isdir(source),
        },
    )


def find(name: str) -> str:
    """The folder or Hub id that a user means. Raises ValueError for a folder without a model, and for neither."""
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):
        if not (folder / "config.json").is_file():
            inside = folder / "model"
            remedy = f"Name {inside}." if (inside / "config.json").is_file() else "Name the folder of a saved model."
            raise ValueError(f"{name} has no config.json. It is not the folder of a model. {remedy}")
        if not any(path for pattern in WEIGHTS for path in folder.glob(pattern)):
            raise ValueError(
                f"{name} has a config.json and no weights. There is nothing to load. Copy model.safetensors into it, "
                "or name another folder."
            )
        return str(folder)
    if os.path.isfile(folder):
        raise ValueError(f"{name} is a file. A model is a folder. Name {folder.parent}.")
    if name[0] in "./~\\" or not HUB_ID.fullmatch(name) or len(name) > 96:
        raise ValueError(
            f"There is no folder “{shortened(name, 80)}” on this machine, and it is no id of the Hub, which looks like "
            "owner/name. Nothing was loaded. Check the spelling."
        )
    return name


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a model. Raises NotUsableError for a folder without."""
    if os.path.isdir(source) and not any((Path(source) / name).is_file() for name in TOKENIZER_FILES):
        raise NotUsableError(
            f"it holds no tokenizer (none of {', '.join(TOKENIZER_FILES)}). Text cannot be cut into pieces without. "
            "Save the model's tokenizer into the folder."
        )
    return AutoTokenizer.from_pretrained(source, trust_remote_code=True)


def load_weights(source: str, config: Any) -> tuple[Any, Any, str]:
    """(encoder, the whole with its masked-LM head or None, why there is none).

    Raises NotUsableError for weights without the encoder's.
    """
    auto_map = getattr(config, "auto_map", None) or {}
    knows_head = "AutoModelForMaskedLM" in auto_map or type(config) in MODEL_FOR_MASKED_LM_MAPPING
    kind = AutoModelForMaskedLM if knows_head else AutoModel
    if kind.__name__ in auto_map:
        # Auto classes give a folder the code of another one that they met before, if both are called `model`
        kind = get_class_from_dynamic_module(auto_map[kind.__name__], source)
    model, found = kind.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    model.eval()
    base = model.base_model
    own = {name for name, _ in base.named_parameters() if "pooler" not in name}
    prefix = f"{model.base_model_prefix}." if base is not model else ""
    missing = sorted(found["missing_keys"])
    if lost := [key for key in missing if key.removeprefix(prefix) in own]:
        raise NotUsableError(
            f"{len(lost)} tensors of the encoder are not in the weights, {lost[0]} for one. They would be random. Name "
            "a folder that holds all of them."
        )
    encoder = encoder_of(base)
    if base is model:
        return encoder, None, f"A {config.model_type} model has no masked-LM head: it was not made to fill in words."
    if [key for key in missing if "pooler" not in key]:
        no_head = (
            "These weights hold no masked-LM head, as those of a model that was fine-tuned for something else: what it "
            "filled in would be random. Try the pre-trained model that it started from."
        )
        return encoder, None, no_head
    return encoder, model, ""


def encoder_of(model: Any) -> Any:
    """The text encoder of a model. Raises NotUsableError for one that has none."""
    if getattr(model.config, "is_encoder_decoder", False):
        model = model.get_encoder()
    layers = getattr(model.config, "num_hidden_layers", None)
    if not isinstance(layers, int) or not hasattr(model.get_input_embeddings(), "num_embeddings"):
        raise NotUsableError(
            f"{type(model).__name__} is no text encoder: it has no layers of states of words to compare. Name a model "
            "such as XLM-R, or one of this zoo."
        )
    return model


def load_aligner(source: str, config: Any, encoder: Any, tokenizer: Any) -> tuple[Any, str]:
    """(the word-alignment pipeline that the model brings, over the weights already loaded, or None; why not)."""
    described = (getattr(config, "custom_pipelines", None) or {}).get(ALIGNER)
    if described is None:
        return None, (
            f"This model brings no word aligner: its config.json names no “{ALIGNER}” under custom_pipelines. Folders "
            "that the zoo saves today do. For an older one, or another encoder, pipeline(..., "
            "pipeline_class=WordAlignmentPipeline).save_pretrained(folder) of the zoo writes one that does."
        )
    try:
        made_by = get_class_from_dynamic_module(described["impl"], source)
        aligner = pipeline(ALIGNER, model=encoder, tokenizer=tokenizer, pipeline_class=made_by, device="cpu")
    except Exception as error:  # as above; the other tabs do without
        return None, f"The word aligner of this model cannot be used: {first_line(error)}"
    return aligner, ""


def longest_input(encoder: Any, tokenizer: Any) -> int:
    """Positions of the longest input. XLM-R's kind counts them from behind the padding's row, BERT's from 0."""
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    if isinstance(table, torch.nn.Embedding):
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    # a tokenizer without a limit of its own says 1e30
    return min(getattr(encoder.config, "max_position_embeddings", None) or sys.maxsize, tokenizer.model_max_length)


def explained(error: Exception, name: str) -> ValueError:
    """What went wrong with a name, for the one who typed it."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__

    def is_any(*kinds: type) -> bool:
        return any(isinstance(each, kinds) for each in chain)

    if is_any(GatedRepoError):
        return ValueError(
            f"{name} is a gated model of the Hub. It is given to those who were granted access. Ask for it on its page "
            "of the Hub, and log in with `hf auth login`."
        )
    if is_any(OfflineModeIsEnabled, LocalEntryNotFoundError, ConnectionError):
        return ValueError(
            f"There is no folder {name} on this machine, and the Hub cannot be reached to look for a model of that "
            "name. Nothing was loaded. Check the spelling, or the connection."
        )
    if is_any(RepositoryNotFoundError):
        return ValueError(
            f"There is no folder {name} on this machine, and no model of that name on the Hub that you may see. "
            "Nothing was loaded. Check the spelling; for a private model, log in with `hf auth login`."
        )
    if is_any(EntryNotFoundError):
        return ValueError(
            f"{name} lacks a file that a model needs: {first_sentence(error)} It cannot be loaded. Name another model."
        )
    return ValueError(f"{name} cannot be loaded: {first_sentence(error)} Name another model, or save this one again.")


def first_line(error: BaseException) -> str:
    """What an error says, without the rest of its story."""
    lines = str(error).strip().splitlines()
    return shortened(lines[0] if lines else type(error).__name__, REASON_LENGTH)


def first_sentence(error: BaseException) -> str:
    """The first sentence of `first_line`, with its full stop."""
    return re.split(r"[.!?] ", first_line(error), maxsplit=1)[0].rstrip(".") + "."


def shortened(text: str, length: int) -> str:
    """The text, cut to `length` characters where it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
