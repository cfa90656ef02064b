# SPDX-License-Identifier: Apache-2.0
"""Which word of a sentence is which of its translation: any encoder of XLM-R's or BERT's kind as a word aligner.

`pair_aligner.py` aligns, and travels with XLM-Align's folders, whose pipeline it is. This module loads encoders.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from transformers import AutoModel

from .checkpoints import download_pinned, load_config, load_tokenizer, load_whole
from .configuration_encoder import LOADABLE
from .layer_states import default_layer
from .pair_aligner import PairAligner, WordAlignment, check_method
from .word_tokens import Words


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

    Raises `ValueError` for an unknown method, option or layer, a slow tokenizer, and a batch size below 1.

    Example:
        >>> aligner = WordAligner.from_pretrained("intfloat/multilingual-e5-small")
        >>> next(aligner.align([("the house", "das Haus")])).links
        [(0, 0), (1, 1)]

    Source: XLM-Align (Chi et al., ACL 2021, section 3.1) of `ot` and `ot_itermax`; SimAlign (Jalili Sabet et al., 2020)
    of separate inputs; `ot_words` is a rule of this zoo (finetuning/align_words.md).
    """

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
        **options,
    ) -> "WordAligner":
        """Loads an encoder and its tokenizer, from a folder or the Hub.

        Args:
            model, tokenizer: folder or id of the Hub, also `owner/name@revision`; default tokenizer: the model's.
            layer: see the class. Layers above it are not read, where the encoder is of a type that can do without.
            all_layers: read them all the same, for `align_layers`.
            device: default: a GPU if there is one.
            dtype: of the weights; bfloat16 is faster on a GPU.
            trust_remote_code: run the code that the checkpoint brings. Without it none runs.
            options: the other arguments of the class.

        Raises `ValueError` as the class, where code of the checkpoint would be needed, and for a checkpoint that is
        damaged or lacks weights of the encoder; `OSError` for one that cannot be found.
        """
        path = download_pinned(model)
        config = load_config(path, trust_remote_code)
        depth = getattr(config, "num_hidden_layers", None) or 0
        wanted = layer, getattr(config, "word_alignment_layer", None), default_layer(depth)
        layer = next(one for one in wanted if one is not None)
        can_be_short = config.model_type in LOADABLE and getattr(config, "backbone_config", None) is None
        lower = {}
        if can_be_short and not all_layers and type(layer) is int and layer in range(depth):
            lower = {"num_hidden_layers": max(layer, 1)}
        encoder = load_whole(AutoModel, path, model, trust_remote_code, dtype=dtype, **lower)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        loaded = load_tokenizer(download_pinned(tokenizer or model), trust_remote_code)
        aligner = cls(encoder.to(device), loaded, layer=layer, **options)
        aligner.depth = depth
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
