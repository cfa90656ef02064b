"""`WordAligner.from_pretrained`: reads what it needs, and aligns as the whole model does."""

import pytest
import torch
from transformers import AutoModel

from crosslingual_zoo.modeling import MODEL_TYPES
from crosslingual_zoo.modeling.checkpoints import load_whole
from crosslingual_zoo.modeling.configuration_encoder import LOADABLE
from crosslingual_zoo.modeling.layer_states import default_layer
from crosslingual_zoo.modeling.word_alignment import WordAligner

PAIRS = [("the house is small", "das Haus ist klein"), (["a", "garden"], ["ein", "Garten"]), ("", "nichts")]


@pytest.fixture
def encoder_dir(zoo_model_dir, library_model_dir):
    """encoder_dir(type): folder of a tiny encoder of three layers with the sample tokenizer."""

    def folder_of(model_type):
        if model_type in MODEL_TYPES:
            return zoo_model_dir(model_type, num_hidden_layers=3)
        if " on " in model_type:
            return zoo_model_dir(model_type, backbone={"num_hidden_layers": 3})
        return library_model_dir(model_type, AutoModel, num_hidden_layers=3)

    return folder_of


@pytest.mark.parametrize("layer", [0, 3, None])
@pytest.mark.parametrize("model_type", [*LOADABLE, "xlm_align on modernbert", "distilbert"])
def test_from_pretrained_reads_no_layers_above_and_links_as_the_whole_model(encoder_dir, model_type, layer):
    folder = str(encoder_dir(model_type))
    aligner = WordAligner.from_pretrained(folder, layer=layer)
    used = 2 if layer is None else layer  # three fifths of three
    whole = WordAligner(load_whole(AutoModel, folder, "model"), aligner.tokenizer, layer=used)
    assert aligner.layer == used
    assert whole.num_layers == 3
    assert aligner.num_layers == (max(used, 1) if model_type in LOADABLE else 3)
    expected = list(whole.align(PAIRS, probabilities=True))
    assert list(aligner.align(PAIRS, probabilities=True)) == expected
    assert any(alignment.links for alignment in expected)


def test_from_pretrained_refuses_layers_that_it_did_not_read(encoder_dir):
    folder = str(encoder_dir("xlm-roberta"))
    aligner = WordAligner.from_pretrained(folder, all_layers=True, method="mutual", batch_size=2)
    assert aligner.layer == 2
    assert len(list(aligner.align_layers(PAIRS, range(4), {"mutual": {}}))) == len(PAIRS)
    short = WordAligner.from_pretrained(folder, layer=1)
    assert short.depth == 3
    with pytest.raises(ValueError, match="all_layers"):
        short.align_layers(PAIRS, [3], {"mutual": {}})
    with pytest.raises(ValueError, match="layer is 4"):
        WordAligner.from_pretrained(folder, layer=4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("model_type", [*LOADABLE, "xlm_align on modernbert", "distilbert"])
def test_a_damaged_embedding_is_refused_where_it_is_used(encoder_dir, tmp_path, model_type, value):
    folder = str(encoder_dir(model_type))
    sound = WordAligner.from_pretrained(folder, layer=1)
    whole = load_whole(AutoModel, folder, "model")
    embeddings_VH = whole.get_input_embeddings().weight.data
    used, unused = sound.tokenizer(["house", "dog"], add_special_tokens=False)["input_ids"]
    damaged = str(tmp_path / "damaged")
    embeddings_VH[unused[-1], 0] = value
    sound.tokenizer.save_pretrained(damaged)
    whole.save_pretrained(damaged)
    assert list(WordAligner.from_pretrained(damaged, layer=1).align(PAIRS)) == list(sound.align(PAIRS))
    embeddings_VH[used[-1], 0] = value
    whole.save_pretrained(damaged)
    for layer in (0, 1, 3):
        with pytest.raises(ValueError, match="not finite"):
            list(WordAligner.from_pretrained(damaged, layer=layer).align(PAIRS))


@pytest.mark.parametrize(("num_layers", "layer"), [(12, 7), (24, 14)])
def test_default_layer(num_layers, layer):
    assert default_layer(num_layers) == layer
