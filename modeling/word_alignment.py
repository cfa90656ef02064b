# SPDX-License-Identifier: Apache-2.0
"""Which word of a sentence is which of its translation: any encoder of XLM-R's or BERT's kind as a word aligner.

`pair_aligner.py` aligns, and travels with XLM-Align's folders, whose pipeline it is. This module loads encoders.
"""

import json
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import AutoModel, PreTrainedModel

from .checkpoints import download_pinned, load_config, load_tokenizer, load_whole, readable, split_revision
from .configuration_encoder import LOADABLE
from .layer_states import default_layer
from .pair_aligner import PairAligner, WordAlignment, check_method
from .word_tokens import Words

DEFAULT_MODEL = "intfloat/multilingual-e5-small"
DEFAULT_ADAPTER = Path(__file__).with_name("e5_small_aligner")  # of DEFAULT_MODEL; has a license of its own
ADAPTER_SETTINGS = "word_alignment.json"  # in an adapter's folder, what config.json says of a model's alignment


def find_adapter(adapter: str | None, model: str) -> Path | None:
    """Returns the folder of an adapter; one of the Hub is downloaded.

    adapter: "auto", this zoo's adapter for the encoder that it was trained for, and none for other encoders; "default",
    the same for a copy of that encoder; "none" or None; or a folder or Hub id.

    Raises ValueError for a folder without an adapter, and for what cannot be downloaded.
    """
    if adapter == "auto":
        adapter = "default" if split_revision(model)[0] == DEFAULT_MODEL else "none"
    if adapter in (None, "none"):
        return None
    if adapter == "default":
        return DEFAULT_ADAPTER
    folder = Path(adapter)
    if not folder.is_dir():
        repository, revision = split_revision(adapter)
        try:
            folder = Path(snapshot_download(repository, revision=revision, allow_patterns=["*.json", "*.safetensors"]))
        except Exception as error:  # of the Hub, of its address, of the network
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"The adapter {adapter} is no folder, and cannot be downloaded: {reason}") from error
    if not (folder / "adapter_config.json").is_file():
        raise ValueError(f"{adapter} has no adapter_config.json: name the folder of an adapter.")
    return folder


def merge_adapter(encoder: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Adds a LoRA adapter to the weights of an encoder, in place, and returns the encoder.

    Of an adapter for more layers than the encoder has, the lower layers are used. The file `ADAPTER_SETTINGS`, if there
    is one, replaces the encoder's own layer and calibration for alignment.

    Raises ValueError for an adapter of another kind or for an encoder of another shape.
    """
    from peft import PeftModel

    with readable(str(folder)):
        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    if settings.get("peft_type") != "LORA":
        raise ValueError(f"{folder} is a {settings.get('peft_type')} adapter; only LoRA can be merged.")
    with readable(str(folder)), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PEFT, which calls what transformers has renamed
        warnings.filterwarnings("error", "Found missing adapter keys")  # else it would change nothing
        try:
            adapted = PeftModel.from_pretrained(encoder, str(folder))
        except (RuntimeError, UserWarning) as error:
            base = settings.get("base_model_name_or_path")
            reason = "its matrices have other names or shapes"
            raise ValueError(f"{folder} is an adapter for {base}, and does not fit this encoder: {reason}.") from error
        merged = adapted.merge_and_unload()
    for name, value in read_adapter_settings(folder).items():
        setattr(merged.config, name, value)
    return merged


def read_adapter_settings(folder: Path | None) -> dict[str, Any]:
    """Returns `word_alignment_layer` and `word_alignment_calibration` of an adapter's folder; empty if unknown."""
    file = folder and folder / ADAPTER_SETTINGS
    if not file or not file.is_file():
        return {}
    settings = json.loads(file.read_text(encoding="utf-8"))
    return {name: settings[name] for name in ("word_alignment_layer", "word_alignment_calibration")}


class WordAligner(PairAligner):
    """Aligns the words of sentence pairs, each sentence in an input of its own, as SimAlign reads them.

    Args:
        model: a model of this zoo, base or with a head, or any encoder of the library. It is not changed.
        tokenizer: its tokenizer, of `tokenizers`.
        method: of `optimal_transport.METHODS`; default: `ot_words`, all links that are more likely right than wrong.
            `ot` is XLM-Align's published aligner, `ot_itermax` the rule with which it labels its own training text.
        layer: whose states to compare, from 0, the embeddings, to `num_layers`; default: the model's own
            `config.word_alignment_layer`, or `default_layer`.
        batch_size: inputs to a forward pass.
        matching: options of the method, see `optimal_transport.METHOD_OPTIONS`. Slope and offset of `ot_words` are by
            default the model's own `config.word_alignment_calibration`, fitted to gold links.

    Attribute `adapter`: the folder of the adapter that `from_pretrained` merged, or None.

    Raises `ValueError` for an unknown method, option or layer, a slow tokenizer, and a batch size below 1.

    Example:
        >>> aligner = WordAligner.from_pretrained("intfloat/multilingual-e5-small")
        >>> next(aligner.align([("the house", "das Haus")])).links
        [(0, 0), (1, 1)]

    Source: XLM-Align (Chi et al., ACL 2021, section 3.1) of `ot` and `ot_itermax`; SimAlign (Jalili Sabet et al., 2020)
    of separate inputs; `ot_words` is a rule of this zoo (finetuning/align_words.md).
    """

    adapter: Path | None = None

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        tokenizer: str | None = None,
        layer: int | None = None,
        all_layers: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        trust_remote_code: bool = False,
        adapter: str | None = "auto",
        **options: Any,
    ) -> "WordAligner":
        """Loads an encoder and its tokenizer, from a folder or the Hub.

        Args:
            model, tokenizer: folder or id of the Hub, also `owner/name@revision`; default tokenizer: the model's.
            layer: see the class. Layers above it are not read, where the encoder is of a type that can do without.
            all_layers: read them all the same, for `align_layers`.
            device: default: a GPU if there is one.
            dtype: of the weights; bfloat16 is faster on a GPU.
            trust_remote_code: run the code that the checkpoint brings. Without it none runs.
            adapter: LoRA adapter in PEFT's format that is merged into the encoder, a folder or a Hub id. "auto": this
                zoo's own with the encoder that it was trained for, `intfloat/multilingual-e5-small`. "default": this
                zoo's own, with a copy of that encoder. "none" or None: no adapter.
            options: the other arguments of the class.

        Raises `ValueError` as the class, where code of the checkpoint would be needed, and for a checkpoint that is
        damaged or lacks weights of the encoder; `OSError` for one that cannot be found.
        """
        path = download_pinned(model)
        config = load_config(path, trust_remote_code)
        depth = getattr(config, "num_hidden_layers", None) or 0
        adapter_folder = find_adapter(adapter, model)
        if layer is None:
            layer = read_adapter_settings(adapter_folder).get("word_alignment_layer")
        if layer is None:
            layer = getattr(config, "word_alignment_layer", None)
        if layer is None:
            layer = default_layer(depth)
        can_be_short = config.model_type in LOADABLE and getattr(config, "backbone_config", None) is None
        lower = {}
        if can_be_short and not all_layers and type(layer) is int and layer in range(depth):
            lower = {"num_hidden_layers": max(layer, 1)}
        encoder = load_whole(AutoModel, path, model, trust_remote_code, reads_vocabulary=False, dtype=dtype, **lower)
        if adapter_folder:
            encoder = merge_adapter(encoder, adapter_folder)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        loaded = load_tokenizer(download_pinned(tokenizer or model), trust_remote_code)
        aligner = cls(encoder.to(device), loaded, layer=layer, **options)
        aligner.depth = depth
        aligner.adapter = adapter_folder
        return aligner

    def align_layers(
        self, pairs: Iterable[tuple[Words, Words]], layers: Iterable[int], methods: dict[str, dict[str, Any]]
    ) -> Iterator[dict[int, dict[str, WordAlignment]]]:
        """The links of each pair by each of several layers and methods, {layer: {method: WordAlignment}}, from one
        forward pass. `methods` are the options of each by its name.

        Raises `ValueError` as `align`, and for layers and methods that there are not.
        """
        layers = list(layers)
        for layer in layers:
            self.check_layer(layer)
        for method, options in methods.items():
            check_method(method, options)
        return self.chunks(pairs, layers, methods)
