"""hub_cards.sentence_transformer: our folders as sentence-transformers loads them, and the vectors of our own task."""

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from finetuning.run import main as run_task
from finetuning.tasks.retrieval.sentence_vectors import SentenceEncoder
from hub_cards.sentence_transformer import main, write_modules
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
    found[name]["query"] = model.encode_query(texts, convert_to_tensor=True)
    found[name]["document"] = model.encode_document(texts, convert_to_tensor=True)
    found[name]["similarity"] = model.similarity(found[name]["batches"][:1], found[name]["batches"])
    model.save_pretrained(f"{folder}_saved", create_model_card=False)
    found[name]["saved"] = SentenceTransformer(f"{folder}_saved", trust_remote_code=True).encode(
        texts, convert_to_tensor=True
    )
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


def our_vectors(folder, layer, pooling="mean", texts=TEXTS):
    """As the retrieval task has them."""
    model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    encoder = SentenceEncoder(model, tokenizer, batch_size=4, pooling=pooling)
    return encoder.vectors(encoder.tokens(texts), [layer])[layer]


@pytest.mark.slow
def test_every_model_gives_the_vectors_of_the_retrieval_task_in_a_fresh_process(zoo_model_dir, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    folders, fingerprints = {}, {}
    for name in (*MODEL_TYPES, *BACKBONES):
        # two layers, and a layer that a config cut to one would not have
        config = {"alignment_layer": 2} if name.startswith("xlm_align") else {}
        folders[name] = zoo_model_dir(name, copy=True, **SHORT, **config)
        fingerprints[name] = folder_fingerprint(folders[name])
        assert write_modules(folders[name]).layer == 1
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
    environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    arguments = [json.dumps({name: str(folder) for name, folder in folders.items()}), json.dumps(TEXTS)]
    done = subprocess.run(
        [sys.executable, "-c", FRESH, *arguments, str(tmp_path / "found.pt")],
        cwd=home, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(tmp_path / "found.pt")
    for name, folder in folders.items():
        expected = our_vectors(folder, layer=1)
        assert expected[3].eq(0).all()  # a text without tokens
        for kind in ("batches", "query", "document", "saved", "left", "short"):
            is_rotated = name == "ernie_m on eurobert" and kind in ("left", "short")  # by positions after padding
            torch.testing.assert_close(
                found[name][kind], expected, atol=1e-4 if is_rotated else 1e-5, rtol=0, msg=f"{name} {kind}"
            )
        cosines = torch.nn.functional.cosine_similarity(expected[:1], expected)
        torch.testing.assert_close(found[name]["similarity"][0], cosines, atol=1e-5, rtol=0)
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
def test_layer_and_pooling_are_those_that_were_asked_for(zoo_model_dir, options, layer, pooling):
    from sentence_transformers import SentenceTransformer

    folder = zoo_model_dir("metaxlm", copy=True)
    vectors = write_modules(folder, **options)
    assert (vectors.layer, vectors.pooling) == (layer, pooling)
    found = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu").encode(TEXTS, convert_to_tensor=True)
    expected = our_vectors(folder, layer, pooling)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def scored(zoo_model_dir, sample_corpus_dir, tmp_path_factory):
    """A model, and the results of retrieval on it: of layer 2, special tokens and 24 positions."""
    folder, out = zoo_model_dir("veco", copy=True), tmp_path_factory.mktemp("retrieval") / "out"
    side = {"path": str(sample_corpus_dir)}
    pairs = [
        {
            **side, "config": "de", "source_column": "text", "source_language": "de", "split": "test[:8]",
            "target": {**side, "config": "en"}, "target_column": "text", "target_language": "en", "join_on": "id",
        }
    ]  # fmt: skip
    pooled = "pooling=mean_with_special_tokens"
    overrides = ["layer=2", "layers=[2]", pooled, "max_length=24", f"pairs={json.dumps(pairs)}"]
    run_task(["kind=retrieval", "task=sample", f"model={folder}", f"output_dir={out}", *overrides])
    return folder, out / "results.json"


def test_results_say_how_sentences_become_vectors(scored, capsys):
    from sentence_transformers import SentenceTransformer

    folder, results = scored
    main(["--model", str(folder), "--results", str(results)])
    said = capsys.readouterr().out
    assert "layer 2 (as in results.json of sample: named in the recipe)" in said
    assert "counting those of special tokens" in said
    model = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert model.max_seq_length == 24
    expected = our_vectors(folder, 2, "mean_with_special_tokens", texts=TEXTS[:3])
    torch.testing.assert_close(model.encode(TEXTS[:3], convert_to_tensor=True), expected, atol=1e-5, rtol=0)


def test_the_record_of_a_folder_is_asked_before_the_default(scored, zoo_model_dir):
    folder, results = scored[0], json.loads(scored[1].read_text())
    record = folder / "provenance" / "results"
    record.mkdir(parents=True)
    (record / "udpos.json").write_text(json.dumps({"kind": "tagging"}))
    (record / "bucc.json").write_text(json.dumps({**results, "kind": "mining", "protocol": {"pooling": "cls"}}))
    (record / "sample.json").write_text(json.dumps(results))
    vectors = write_modules(folder, overwrite=True)
    assert (vectors.layer, vectors.pooling, vectors.max_length) == (2, "mean_with_special_tokens", 24)
    assert write_modules(folder, layer=1, overwrite=True).max_length is None  # asked for, not the record's
    results["protocol"]["layer"] = 1
    (record / "sample-2.json").write_text(json.dumps(results))
    with pytest.raises(ValueError, match="sample-2.json"):
        write_modules(folder, overwrite=True)


def test_a_fine_tuned_model_is_that_of_its_own_results(scored, zoo_model_dir, tmp_path):
    """Results of a run with init_from name the model that it started from, and read the one that became of it."""
    results = json.loads(scored[1].read_text())
    tuned = zoo_model_dir("metaxlm", copy=True)
    path = tmp_path / "results.json"
    results["model"]["init_from"] = {"fingerprint": folder_fingerprint(tuned)}
    path.write_text(json.dumps(results))
    assert write_modules(tuned, results_file=path).layer == 2
    with pytest.raises(ValueError, match="weights"):
        write_modules(scored[0], results_file=path)


def test_what_is_there_is_never_lost_without_a_word(zoo_model_dir, capsys):
    folder = zoo_model_dir("metaxlm", copy=True)
    write_modules(folder)
    files = {path: path.read_bytes() for path in folder.rglob("*.json")}
    write_modules(folder)  # the same again changes nothing
    foreign = '[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]'
    (folder / "modules.json").write_text(foreign)
    with pytest.raises(SystemExit) as stopped:
        main(["--model", str(folder)])
    assert stopped.value.code == 2 and "modules.json" in capsys.readouterr().err
    assert (folder / "modules.json").read_text() == foreign
    main(["--model", str(folder), "--overwrite"])
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == files


CHANGES = {  # of results, or arguments: what the message names
    "kind tagging": lambda results: results.update(kind="tagging"),
    "pooling 'max'": lambda results: results["protocol"].update(pooling="max"),
    "weights": lambda results: results["model"].update(fingerprint="sha256:0"),
    "max_length": lambda results: results["protocol"].update(max_length=9999),
    "missing.json": dict(results_file="missing.json"),
    "layer is 3": dict(layer=3),
    "pooling is 'max'": dict(pooling="max"),
    "--results": dict(layer=1, results_file="results.json"),
}


@pytest.mark.parametrize("named", CHANGES)
def test_what_cannot_be_is_refused_before_anything_is_written(scored, tmp_path, named):
    folder, options = scored[0], CHANGES[named]
    if callable(options):
        results = json.loads(scored[1].read_text())
        options(results)
        options = {"results_file": tmp_path / "results.json"}
        options["results_file"].write_text(json.dumps(results))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=named):
        write_modules(folder, **options)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
