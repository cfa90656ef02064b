"""hub_cards.sentence_transformer: our folders as sentence-transformers loads them, and the vectors of our own task."""

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from finetuning.tasks.vectors.encoder import SentenceEncoder
from hub_cards.sentence_transformer import write_modules
from zoo_core.provenance import folder_fingerprint

pytest.importorskip("sentence_transformers", minversion="6.0", reason="it is not installed: pip install -e '.[dev]'")

MODEL_TYPES = ("veco", "ernie_m", "xlm_align", "metaxlm")
BACKBONES = ("metaxlm on modernbert", "ernie_m on eurobert", "xlm_align on deberta-v2")
SHORT = dict(max_position_embeddings=34)  # 32 positions
TEXTS = [
    "The house is small, and the garden is large.",
    "Das Haus",
    "我喜欢在花园里喝茶",
    "",
    "a rather long text that has to be cut at the end of the positions " * 4,
    "ω unknown ↯ tokens",
]
# Loads each folder with sentence-transformers, saves it, loads that, and looks whether the rest still loads.
FRESH = """
import json, sys, warnings
warnings.simplefilter("error")
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, pipeline
folders, texts, out = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
found = {}
for name, folder in folders.items():
    model = SentenceTransformer(folder, trust_remote_code=True)
    found[name] = {"batches": model.encode(texts, batch_size=2, convert_to_tensor=True)}
    model.save_pretrained(f"{folder}_saved", create_model_card=False)
    saved = SentenceTransformer(f"{folder}_saved", trust_remote_code=True)
    found[name]["saved"] = saved.encode(texts, convert_to_tensor=True)
    found[name]["length"] = model.max_seq_length
    found[name]["dimension"] = model.get_embedding_dimension()
    model.tokenizer.padding_side = "left"
    found[name]["left"] = model.encode(texts, convert_to_tensor=True)
    if " on " not in name:  # nothing above the layer is read
        model[0].auto_model.encoder.layer = model[0].auto_model.encoder.layer[:1]
    found[name]["short"] = model.encode(texts, convert_to_tensor=True)
    found[name]["layers"] = AutoModel.from_pretrained(folder, trust_remote_code=True).config.num_hidden_layers
    found[name]["tokens"] = len(pipeline("fill-mask", model=folder, trust_remote_code=True)("a <mask> b", top_k=3))
torch.save(found, out)
"""


def our_vectors(folder, layer, pooling="mean"):
    """As the retrieval task has them."""
    model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    encoder = SentenceEncoder(model, tokenizer, batch_size=4, pooling=pooling)
    return encoder.vectors(encoder.tokens(TEXTS), [layer])[layer]


@pytest.mark.slow
def test_sentence_transformer_gives_the_vectors_of_the_retrieval_task(zoo_model_dir, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    folders, fingerprints = {}, {}
    for name in (*MODEL_TYPES, *BACKBONES):
        # two layers, and a layer that a config cut to one would not have
        config = {"alignment_layer": 2} if name.startswith("xlm_align") else {}
        folders[name] = zoo_model_dir(name, copy=True, **SHORT, **config)
        fingerprints[name] = folder_fingerprint(folders[name])
        assert write_modules(folders[name]) == (1, "mean")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
    environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    arguments = [json.dumps({name: str(folder) for name, folder in folders.items()}), json.dumps(TEXTS)]
    command = [sys.executable, "-c", FRESH, *arguments, str(tmp_path / "found.pt")]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(tmp_path / "found.pt")
    for name, folder in folders.items():
        expected = our_vectors(folder, layer=1)
        assert expected[3].eq(0).all()  # a text without tokens
        for kind in ("batches", "saved", "left", "short"):
            is_rotated = name == "ernie_m on eurobert" and kind in ("left", "short")  # by positions after padding
            tolerance = 1e-4 if is_rotated else 1e-5
            torch.testing.assert_close(found[name][kind], expected, atol=tolerance, rtol=0, msg=f"{name} {kind}")
        length = {"deberta-v2": 512}.get(name.split(" on ")[1], 8192) if " on " in name else 32
        assert [found[name][key] for key in ("length", "dimension", "layers", "tokens")] == [length, 32, 2, 3]
        assert folder_fingerprint(folder) == fingerprints[name]


@pytest.mark.parametrize(
    ("options", "layer", "pooling"),
    [
        (dict(layer=0), 0, "mean"),
        (dict(layer=2, pooling="cls"), 2, "cls"),
        (dict(pooling="mean_with_special_tokens"), 1, "mean_with_special_tokens"),
    ],
)
def test_sentence_transformer_layer_and_pooling(zoo_model_dir, options, layer, pooling):
    from sentence_transformers import SentenceTransformer

    folder = zoo_model_dir("metaxlm", copy=True)
    assert write_modules(folder, **options) == (layer, pooling)
    found = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu").encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(found, our_vectors(folder, layer, pooling), atol=1e-5, rtol=0)


def test_write_modules_keeps_modules_that_exist(zoo_model_dir):
    folder = zoo_model_dir("metaxlm", copy=True)
    write_modules(folder)
    files = {path: path.read_bytes() for path in folder.rglob("*.json")}
    (folder / "modules.json").write_text("[]")
    with pytest.raises(ValueError, match="modules.json"):
        write_modules(folder)
    assert (folder / "modules.json").read_text() == "[]"
    write_modules(folder, overwrite=True)
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == files
