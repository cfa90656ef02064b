# SPDX-License-Identifier: Apache-2.0
"""`pipeline("word-alignment", model=..., trust_remote_code=True)`: the word aligner as a pipeline of the library.

A folder of XLM-Align brings this file along, and its configuration names it. For any other encoder, name the class:

    >>> pipeline("word-alignment", model="FacebookAI/xlm-roberta-base", pipeline_class=WordAlignmentPipeline)

Its `save_pretrained(folder)` then writes a folder that loads as XLM-Align's.
"""

from collections.abc import Iterable, Iterator

from transformers import AutoModel, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from .layer_states import check_finite
from .optimal_transport import METHOD_OPTIONS
from .pair_aligner import PairAligner, WordAlignment

TASK = "word-alignment"
# what `WordAligner` gets; batch_size belongs to every pipeline
OPTIONS = ("method", "layer", *dict.fromkeys(name for options in METHOD_OPTIONS.values() for name in options))


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
    _load_processor = _load_image_processor = _load_feature_extractor = _load_video_processor = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        check_finite(self.model, self.model.name_or_path or "the model")
        self.aligner = self.make_aligner()  # options are checked now, not at the first call

    def make_aligner(self, **options) -> PairAligner:
        """An aligner by the pipeline's parameters, and by `options` in their place."""
        options = {"batch_size": self._batch_size or 64, **self._forward_params, **options}
        return PairAligner(self.model, self.tokenizer, **options)

    def _sanitize_parameters(self, probabilities: bool | None = None, **parameters) -> tuple[dict, dict, dict]:
        if unknown := sorted(parameters.keys() - {*OPTIONS}):
            raise ValueError(f"no parameter {unknown[0]}: give probabilities, or some of {', '.join(OPTIONS)}.")
        return {}, parameters, {} if probabilities is None else {"probabilities": probabilities}

    def __call__(self, inputs, *, batch_size: int | None = None, **parameters):
        """Dict for a pair, list of dicts for a list, iterator for anything else; see the class."""
        _, options, outputs = self._sanitize_parameters(**parameters)
        if batch_size is not None:
            options["batch_size"] = batch_size
        aligner = self.make_aligner(**options) if options else self.aligner
        is_one = isinstance(inputs, tuple | dict | str)
        pairs = map(self.preprocess, [inputs] if is_one else inputs)
        # the aligner makes the batches: it sorts pairs by length
        found = map(self.postprocess, self._forward(pairs, aligner, **self._postprocess_params | outputs))
        if is_one:
            return next(found)
        return list(found) if isinstance(inputs, list) else found

    def preprocess(self, pair):
        """(source, target) of a dict; anything else unchanged, for the aligner to check."""
        if not isinstance(pair, dict):
            return pair
        if not {"source", "target"} <= pair.keys():
            raise ValueError(f"an input has the keys source and target, got {', '.join(map(repr, pair)) or 'none'}.")
        return pair["source"], pair["target"]

    def _forward(self, pairs: Iterable, aligner: PairAligner, **outputs) -> Iterator[WordAlignment]:
        return aligner.align(pairs, **outputs)

    def postprocess(self, found: WordAlignment) -> dict:
        """The fields as a dict, without those that were not requested."""
        return {name: value for name, value in vars(found).items() if value is not None}


# `pipeline` takes no task that it does not know, pipeline_class or not. Only the newest import is kept, without the
# library's warning: a folder's copy of this file comes in as a module of its own.
PIPELINE_REGISTRY.supported_tasks.pop(TASK, None)
PIPELINE_REGISTRY.register_pipeline(TASK, WordAlignmentPipeline, pt_model=AutoModel, type="text")
