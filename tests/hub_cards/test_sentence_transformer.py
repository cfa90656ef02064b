"""hub_cards.sentence_transformer: our folders as sentence-transformers loads them, and the vectors of our own task."""

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder
from crosslingual_zoo.hub_cards.sentence_transformer import write_modules
from crosslingual_zoo.modeling import MODEL_TYPES
from crosslingual_zoo.zoo_core.provenance import folder_fingerprint

library = pytest.importorskip("sentence_transformers", minversion="6.0", reason="pip install -e '.[dev]' has it")

LENGTHS = dict.fromkeys(MODEL_TYPES, 32)  # of the longest text
LENGTHS |= {"metaxlm on modernbert": 8192, "ernie_m on eurobert": 8192, "xlm_align on deberta-v2": 512}
TEXTS = [
    "The house is small, and the garden is large.",
    "Das Haus",
    "我喜欢在花园里喝茶",
    "",
    "a rather long text that has to be cut at the end of the positions " * 4,
    "ω unknown ↯ tokens",
]


@pytest.fixture
def folder(zoo_model_dir, name):
    """Of a model of two layers and 32 positions."""
    # a layer that a configuration cut to one would not have
    config = {"alignment_layer": 2} if name.startswith("xlm_align") else {}
    return zoo_model_dir(name, copy=True, max_position_embeddings=34, **config)


def our_vectors(folder, layer, pooling="mean"):
    """As the retrieval task has them."""
    model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    encoder = SentenceEncoder(model, tokenizer, batch_size=4, pooling=pooling)
    return encoder.vectors(encoder.tokens(TEXTS), [layer])[layer]


def load(folder):
    return library.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")


@pytest.mark.parametrize("name", LENGTHS)
def test_sentence_transformer_gives_the_vectors_of_the_retrieval_task(folder, tmp_path, name):
    fingerprint = folder_fingerprint(folder)
    expected = our_vectors(folder, layer=1)
    assert expected[3].eq(0).all()  # a text without tokens
    assert write_modules(folder) == (1, "mean")
    assert folder_fingerprint(folder) == fingerprint
    model = load(folder)
    assert model.max_seq_length == LENGTHS[name]
    assert model.get_embedding_dimension() == 32
    vectors = model.encode(TEXTS, batch_size=2, convert_to_tensor=True)
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)
    model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    saved = load(tmp_path / "saved")
    torch.testing.assert_close(saved.encode(TEXTS, convert_to_tensor=True), expected, atol=1e-5, rtol=0)
    if name in MODEL_TYPES:  # nothing above the layer is read
        vectors = model.encode(TEXTS, convert_to_tensor=True)
        encoder = model[0].auto_model.encoder
        encoder.layer = encoder.layer[:1]
        torch.testing.assert_close(model.encode(TEXTS, convert_to_tensor=True), vectors, atol=0, rtol=0)
    saved.tokenizer.padding_side = "left"
    is_rotated = name == "ernie_m on eurobert"  # by positions after padding
    vectors = saved.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(vectors, expected, atol=1e-4 if is_rotated else 1e-5, rtol=0)


ALL = "mean_with_special_tokens"


@pytest.mark.parametrize(
    ("arguments", "used"), [((0, None), (0, "mean")), ((2, "cls"), (2, "cls")), ((None, ALL), (1, ALL))]
)
def test_sentence_transformer_layer_and_pooling(zoo_model_dir, arguments, used):
    folder = zoo_model_dir("metaxlm", copy=True)
    assert write_modules(folder, *arguments) == used
    vectors = load(folder).encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(vectors, our_vectors(folder, *used), atol=1e-5, rtol=0)
