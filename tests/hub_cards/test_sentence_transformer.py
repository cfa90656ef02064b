"""hub_cards.sentence_transformer: our folders as sentence-transformers loads them, and the vectors of our own task."""

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder
from crosslingual_zoo.hub_cards.sentence_transformer import write_modules
from crosslingual_zoo.zoo_core.provenance import folder_fingerprint

library = pytest.importorskip("sentence_transformers", minversion="6.0", reason="pip install -e '.[dev]' has it")

MODELS = ("veco", "ernie_m", "xlm_align", "metaxlm", "metaxlm on modernbert", "ernie_m on eurobert")
SHORT = dict(max_position_embeddings=34)  # 32 positions
TEXTS = [
    "The house is small, and the garden is large.",
    "Das Haus",
    "我喜欢在花园里喝茶",
    "",
    "a rather long text that has to be cut at the end of the positions " * 4,
    "ω unknown ↯ tokens",
]


def our_vectors(folder, layer, pooling="mean"):
    """As the retrieval task has them."""
    model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    encoder = SentenceEncoder(model, tokenizer, batch_size=4, pooling=pooling)
    return encoder.vectors(encoder.tokens(TEXTS), [layer])[layer]


def load(folder):
    return library.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")


@pytest.mark.parametrize("name", [*MODELS, "xlm_align on deberta-v2"])
def test_sentence_transformer_gives_the_vectors_of_the_retrieval_task(zoo_model_dir, tmp_path, name):
    # two layers, and a layer that a config cut to one would not have
    config = {"alignment_layer": 2} if name.startswith("xlm_align") else {}
    folder = zoo_model_dir(name, copy=True, **SHORT, **config)
    before, expected = folder_fingerprint(folder), our_vectors(folder, layer=1)
    assert expected[3].eq(0).all()  # a text without tokens
    assert write_modules(folder) == (1, "mean")
    model = load(folder)
    found = {"batches": model.encode(TEXTS, batch_size=2, convert_to_tensor=True)}
    model.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    found["saved"] = load(tmp_path / "saved").encode(TEXTS, convert_to_tensor=True)
    length = {"deberta-v2": 512}.get(name.split(" on ")[1], 8192) if " on " in name else 32
    assert (model.max_seq_length, model.get_embedding_dimension()) == (length, 32)
    model.tokenizer.padding_side = "left"
    if " on " not in name:  # nothing above the layer is read
        model[0].auto_model.encoder.layer = model[0].auto_model.encoder.layer[:1]
    found["padded left"] = model.encode(TEXTS, convert_to_tensor=True)
    for kind, vectors in found.items():
        is_rotated = name == "ernie_m on eurobert" and kind == "padded left"  # by positions after padding
        torch.testing.assert_close(vectors, expected, atol=1e-4 if is_rotated else 1e-5, rtol=0, msg=kind)
    assert folder_fingerprint(folder) == before


ALL = "mean_with_special_tokens"


@pytest.mark.parametrize("given, used", [((0, None), (0, "mean")), ((2, "cls"), (2, "cls")), ((None, ALL), (1, ALL))])
def test_sentence_transformer_layer_and_pooling(zoo_model_dir, given, used):
    folder = zoo_model_dir("metaxlm", copy=True)
    assert write_modules(folder, *given) == used
    found = load(folder).encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(found, our_vectors(folder, *used), atol=1e-5, rtol=0)
