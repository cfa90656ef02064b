"""What models and functions refuse, with the field that the message names."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from crosslingual_zoo.modeling.attention_masks import prepare_attention_mask
from crosslingual_zoo.modeling.configuration_veco import VecoConfig
from crosslingual_zoo.modeling.configuration_xlm_align import XlmAlignConfig
from crosslingual_zoo.modeling.optimal_transport import align, itermax_links, sinkhorn
from tests.modeling.tiny import MASK, SIZES, batch_of, made, pair_row, sources, targets, whole


def block_mask(attention, mask):
    config = VecoConfig(**SIZES)
    config._attn_implementation = attention
    return prepare_attention_mask(config, torch.zeros(2, 5, 32), mask)


MATRIX = (torch.rand(2, 3, 4), *whole(2, 3, 4))
VECTORS = (torch.rand(2, 3, 5), torch.rand(2, 4, 5), *whole(2, 3, 4))


def texts(lengths):
    return batch_of([pair_row(0, (length - 2,), (1,)) for length in lengths], "padded right")


def ca_mlm(y_lengths=(4, 9, 6), weights=None, objective="ca_mlm_pairs", **config):
    batch = {"x": texts((7, 5, 6)), "y": texts(y_lengths)}
    return made("veco", **config)(**{objective: batch}, objective_weights=weights)


def plug_in(has_translation=True, **config):
    ids = torch.randint(4, MASK, (3, 9))
    fields = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if has_translation:
        fields |= {f"translation_{name}": value for name, value in fields.items()}
    return made("veco", "ForSequenceClassification", **{"plug_in": True} | config)(**fields)


def translate(layers=(1, 2), **fields):
    input_ids, attention_mask = sources()
    model = made("veco", "ForConditionalGeneration", decoder_layers=2, decoder_layer_indices=list(layers))
    return model(**{"input_ids": input_ids, "attention_mask": attention_mask, **fields})


PAIRS = batch_of([pair_row(1, (6, 5), (2, 9), (0, 1)), pair_row(2, (4, 7), (1, 8), (2, 0))], "padded right")


def ernie(batches, **config):
    return made("ernie_m", **dict(mask_token_id=MASK, languages=["en", "de", "zh"]) | config)(**batches)


NOTHING = {"ca_mlm_pairs.inner": 0.0, "ca_mlm_pairs.cross": 0.0}
REFUSED = [
    ("flash_attention_2", lambda: block_mask("flash_attention_2", torch.ones(2, 5, 5).bool())),
    ("attention_mask", lambda: block_mask("sdpa", torch.ones(2, 5, 5))),
    # optimal transport
    ("'hungarian'", lambda: align(*VECTORS, method="hungarian")),
    ("threshold=1", lambda: align(*VECTORS, method="ot_words", threshold=1)),
    ("epsilon=nan", lambda: sinkhorn(*MATRIX, epsilon=float("nan"))),
    ("discount=0.4", lambda: itermax_links(*MATRIX, discount=0.4)),
    # VECO
    ("3 rows of x and 2 of y", lambda: ca_mlm(y_lengths=(4, 9))),
    ("cross-attention", lambda: ca_mlm(cross_attention=False, objective="ca_mlm_segments")),
    ("weight 0", lambda: ca_mlm(weights=NOTHING)),
    ("'ca_mlm_pairs'", lambda: ca_mlm(weights={"ca_mlm_pairs": 0.0})),
    ("cross-attention", lambda: plug_in(cross_attention=False)),
    ("translation_input_ids", lambda: plug_in(has_translation=False)),
    ("translation_input_ids.*plug_in", lambda: plug_in(plug_in=False)),
    ("decoder_input_ids", translate),
    ("input_ids", lambda: translate(labels=targets(), input_ids=None, attention_mask=None)),
    ("58 positions", lambda: translate(labels=torch.full((4, 59), 7))),
    # ERNIE-M
    ("attention_mask", lambda: ernie({"camlm": PAIRS})),
    ("language_ids", lambda: ernie({"mlm": PAIRS}, languages=None)),
    ("mask_token_id", lambda: ernie({}, mask_token_id=None)),
    # XLM-Align
    ("alignment_layer", lambda: XlmAlignConfig(**SIZES, alignment_layer=4)),
    ("query_positions", lambda: XlmAlignConfig(**SIZES, query_positions="some")),
]


@pytest.mark.parametrize(("named", "call"), REFUSED)
def test_refused(named, call):
    with pytest.raises((ValueError, StrictDataclassError), match=named):
        call()
