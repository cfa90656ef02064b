# SPDX-License-Identifier: Apache-2.0
"""`pipeline("word-alignment", model=..., trust_remote_code=True)`: the word aligner as a pipeline of the library.

A folder of XLM-Align brings this file along, and its configuration names it. For any other encoder, name the class:

    >>> pipeline("word-alignment", model="FacebookAI/xlm-roberta-base", pipeline_class=WordAlignmentPipeline)

Its `save_pretrained(folder)` then writes a folder that loads as XLM-Align's.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, cast

from transformers import AutoModel, Pipeline, PreTrainedTokenizerBase
from transformers.pipelines import PIPELINE_REGISTRY

from .layer_states import check_finite
from .optimal_transport import METHOD_OPTIONS
from .pair_aligner import PairAligner

TASK = "word-alignment"
# what `WordAligner` gets; batch_size belongs to every pipeline
OPTIONS = ("method", "layer", *dict.fromkeys(chain.from_iterable(METHOD_OPTIONS.values())))


class WordAlignmentPipeline(Pipeline):
    """Links the words of sentence pairs.

    Parameters, given when the pipeline is made or in a call: `batch_size` (default 64), `method`, `layer` and the
    options of the method, see `WordAligner`; `probabilities`, see `WordAlignment`.

    A call takes a pair, (source, target) or {"source": ..., "target": ...}, each side a text or a list of words, and
    returns a dict: `source` and `target`, the words; `links`, pairs of their numbers from 0; `windows`; where a text
    was given, `source_offsets` and `target_offsets` of its words; and, if requested, `probabilities`. It takes a list
    of pairs and returns a list; or anything else that gives one pair after the other, and returns an iterator, which
    reads `BATCHES_PER_CHUNK` batches at a time.

    Raises `ValueError` for unknown parameters, weights that are not finite, what is no pair, and as `WordAligner`.

    Example:
        >>> aligner = pipeline("word-alignment", model=folder, trust_remote_code=True)
        >>> aligner(("the house", "das Haus"))
        {'source': ['the', 'house'], 'target': ['das', 'Haus'], 'links': [(0, 0), (1, 1)], 'windows': 1,
         'source_offsets': [(0, 3), (4, 9)], 'target_offsets': [(0, 3), (4, 8)]}
    """

    _load_tokenizer = True
    _load_processor: bool | None = False
    _load_image_processor: bool | None = False
    _load_feature_extractor: bool | None = False
    _load_video_processor: bool | None = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        check_finite(self.model, self.model.name_or_path or "the model", reads_vocabulary=False)
        self.aligner = self.make_aligner({})  # options are checked now, not at the first call

    def make_aligner(self, options: dict[str, Any]) -> PairAligner:
        """An aligner by the pipeline's parameters, and by `options` in their place."""
        defaults = {"batch_size": self._batch_size or 64}
        tokenizer = cast(PreTrainedTokenizerBase, self.tokenizer)  # by `_load_tokenizer`, there is one
        return PairAligner(self.model, tokenizer, **defaults | self._forward_params | options)

    def _sanitize_parameters(
        self, probabilities: bool | None = None, **parameters: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Those of `preprocess`, of the aligner, and of a call of `align`."""
        unknown = sorted(parameters.keys() - {*OPTIONS})
        if unknown:
            raise ValueError(f"no parameter {unknown[0]}: give probabilities, or some of {', '.join(OPTIONS)}.")
        requested = {} if probabilities is None else {"probabilities": probabilities}
        return {}, parameters, requested

    def __call__(self, inputs: Any, *, batch_size: int | None = None, **parameters: Any) -> Any:
        """Dict for a pair, list of dicts for a list, iterator for anything else; see the class.

        The aligner makes the batches, since it sorts pairs by length; the library's loader is not used.
        """
        _, options, requested = self._sanitize_parameters(**parameters)
        if batch_size is not None:
            options["batch_size"] = batch_size
        aligner = self.make_aligner(options) if options else self.aligner
        outputs = self._postprocess_params | requested

        def align(pairs: Iterable[Any]) -> Iterator[dict[str, Any]]:
            return map(self.postprocess, self._forward(map(self.preprocess, pairs), aligner, **outputs))

        if isinstance(inputs, tuple | dict | str):
            return next(align([inputs]))
        if isinstance(inputs, list):
            return list(align(inputs))
        return align(inputs)

    def preprocess(self, input_: Any, **preprocess_parameters: Any) -> Any:
        """(source, target) of a dict; anything else unchanged, for the aligner to check."""
        if not isinstance(input_, dict):
            return input_
        if not {"source", "target"} <= input_.keys():
            raise ValueError(f"an input has the keys source and target, got {', '.join(map(repr, input_)) or 'none'}.")
        return input_["source"], input_["target"]

    def _forward(self, input_tensors: Any, aligner: PairAligner | None = None, **forward_parameters: Any) -> Any:
        """The links of an iterable of pairs, in place of a batch of tensors."""
        return (aligner or self.aligner).align(input_tensors, **forward_parameters)

    def postprocess(self, model_outputs: Any, **postprocess_parameters: Any) -> dict[str, Any]:
        """The fields as a dict, without those that were not requested."""
        return {name: value for name, value in vars(model_outputs).items() if value is not None}


# `pipeline` takes no task that it does not know, pipeline_class or not. Only the newest import is kept, without the
# library's warning: a folder's copy of this file comes in as a module of its own.
PIPELINE_REGISTRY.supported_tasks.pop(TASK, None)
PIPELINE_REGISTRY.register_pipeline(TASK, WordAlignmentPipeline, pt_model=AutoModel, type="text")
