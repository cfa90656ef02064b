"""The Space: what it answers for each kind of model, what it refuses, whose code runs, and the running page."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, pipeline

from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder

pytest.importorskip("gradio")

SPACE = Path(__file__).parents[2] / "hub_cards" / "space"
MODEL_TYPES = ["veco", "ernie_m", "xlm_align", "metaxlm"]
BACKBONES = ["metaxlm on modernbert", "ernie_m on eurobert", "xlm_align on deberta-v2"]
PAIR = ("The children are reading.", "Die Kinder lesen ein Buch.")


@pytest.fixture(scope="module")
def app():
    """The Space's module, which is in no package."""
    spec = importlib.util.spec_from_file_location("space_app", SPACE / "app.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["space_app"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(app, zoo_model_dir):
    return app.load(str(zoo_model_dir("xlm_align")))


def test_align_words_has_the_links_of_the_pipeline(app, model):
    expected = pipeline("word-alignment", model=model.tokenizer.name_or_path, trust_remote_code=True)(
        PAIR, probabilities=True, layer=1
    )
    first, second, links = app.align_words(model, *PAIR)
    assert ["".join(word for word, _ in side) for side in (first, second)] == [
        "".join(f"{word} " for word in expected[name]) for name in ("source", "target")
    ]
    assert [share for *_, share in links] == [round(share, 3) for share in expected["probabilities"]]
    for i, j in expected["links"]:
        assert first[i][1] == second[j][1] is not None
    linked = {i for i, _ in expected["links"]}
    assert {place for place, (_, group) in enumerate(first) if group} == linked


def test_sentence_vectors_are_those_of_the_retrieval_task(app, model):
    texts = ["The children are reading.", "今天", "Bonjour le monde", "the house " * 400, "a"]
    ours = SentenceEncoder(model.states.model, model.tokenizer, batch_size=2)
    expected = ours.vectors(ours.tokens(texts), [1])[1]
    torch.testing.assert_close(app.sentence_vectors(model, texts), expected, rtol=1e-4, atol=1e-5)
    lines = "Die Kinder lesen.\nThe house is small.\n  \nDie Kinder lesen."
    (cosine, text), second = app.rank_sentences(model, "The house is small.", lines)
    assert text == "The house is small." and cosine == pytest.approx(1.0, abs=1e-3) and second[1] == "Die Kinder lesen."


@pytest.mark.parametrize("spelling", ["<mask>", "[MASK]"])
def test_fill_masks_by_the_models_own_head(app, model, spelling):
    text = f"The {spelling} is small and {spelling}."
    filled, rows = app.fill_masks(model, text, top=3)
    whole = AutoModelForMaskedLM.from_pretrained(model.tokenizer.name_or_path, trust_remote_code=True)
    inputs = model.tokenizer(text.replace(spelling, "<mask>"), return_tensors="pt")
    with torch.inference_mode():
        probabilities = whole(**inputs).logits.softmax(-1)[0][inputs["input_ids"][0] == model.tokenizer.mask_token_id]
    expected = probabilities.topk(3).values.flatten().tolist()
    assert [row[2] for row in rows] == pytest.approx(expected, abs=1e-4)
    assert [row[0] for row in rows] == [1, 1, 1, 2, 2, 2]
    assert "<mask>" not in filled


@pytest.mark.parametrize("model_type", [*MODEL_TYPES, *BACKBONES])
def test_space_serves_every_tab_of_every_model(app, zoo_model_dir, model_type):
    found = app.load(str(zoo_model_dir(model_type)))
    assert found.layer == 1 and found.positions == 512 and "toy" in found.facts
    assert len(app.align_words(found, *PAIR)[0]) == 5
    assert len(app.fill_masks(found, "The <mask> is small.")[1]) == 5
    assert len(app.rank_sentences(found, "a", "b\nc")) == 2


@pytest.mark.parametrize(
    "name, texts",
    [
        ("align_words", ("a" * 4001, "a")),
        ("fill_masks", ("the house",)),
        ("fill_masks", ("<mask>" * 21,)),
        ("fill_masks", ("house <mask> " * 300,)),
        ("fill_masks", ("<mask>", None)),
        ("rank_sentences", ("a", ["b"])),
        ("rank_sentences", ("a", "\n".join(map(str, range(201))))),
        ("run_head", ("a",)),
    ],
)
def test_space_refuses_texts(app, model, name, texts):
    with pytest.raises(ValueError):
        getattr(app, name)(model, *texts)


def test_space_runs_code_of_a_model_only_where_that_was_asked_for(app, zoo_model_dir, tmp_path):
    folder, marker = zoo_model_dir("xlm_align", copy=True), tmp_path / "ran"
    for file in folder.glob("*.py"):
        file.write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n" + file.read_text())
    assert app.load(str(folder)).aligner and not marker.exists()
    assert app.load(str(folder), True).aligner and marker.exists()


def test_run_head_gives_a_classifiers_probabilities(app, zoo_model_dir):
    labels = {0: "food", 1: "sport", 2: "travel"}
    found = app.load(str(zoo_model_dir("xlm_align", "ForSequenceClassification", id2label=labels)))
    whole = AutoModelForSequenceClassification.from_pretrained(found.tokenizer.name_or_path, trust_remote_code=True)
    for texts in (("The house is small.",), ("The house is small.", "Das Haus ist klein.")):
        with torch.inference_mode():
            logits = whole(**found.tokenizer(*texts, return_tensors="pt")).logits[0]
        expected = dict(zip(labels.values(), logits.softmax(-1).tolist(), strict=True))
        assert app.run_head(found, *texts) == (pytest.approx(expected, rel=1e-4), None)
        if len(texts) == 1:
            assert app.run_head(found, *texts, None) == app.run_head(found, *texts)
    assert "text classification" in found.facts
    # a plug-in head reads a translation too, which the page does not ask for
    assert not app.load(str(zoo_model_dir("veco", "ForSequenceClassification", plug_in=True))).task


def test_run_head_marks_parts_of_the_text(app, zoo_model_dir):
    tagger = app.load(str(zoo_model_dir("xlm_align", "ForTokenClassification", id2label={0: "B-PER", 1: "I-PER"})))
    for text in ("Maria lives in Paris.", "玛丽亚在巴黎。"):
        labels, parts = app.run_head(tagger, text)
        assert labels is None and parts["text"] == text
        assert {entity["entity_group"] for entity in parts["entities"]} == {"PER"}


@pytest.fixture(scope="module")
def address(zoo_model_dir, tmp_path_factory):
    """The running page, started from a copy of its folder with modeling/ in it, with the models m and c."""
    here = tmp_path_factory.mktemp("space")
    shutil.copytree(SPACE, here, dirs_exist_ok=True)
    shutil.copytree(SPACE.parents[1] / "modeling", here / "crosslingual_zoo" / "modeling")
    shutil.copytree(zoo_model_dir("xlm_align"), here / "m")
    shutil.copytree(zoo_model_dir("metaxlm", "ForSequenceClassification"), here / "c")
    environment = {name: of for name, of in os.environ.items() if not name.startswith(("GRADIO_", "ZOO_", "PYTHON"))}
    environment |= {"PYTHONUNBUFFERED": "1", "ZOO_MODELS": "m, c"}
    options = dict(cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with subprocess.Popen([sys.executable, "app.py"], **options) as running:
        try:
            said = next((line for line in running.stdout if "Running on" in line), None)
            assert said, "the Space did not start"
            yield said.partition("//")[2].strip()
        finally:
            running.terminate()


@pytest.mark.slow
def test_space_every_tab_answers(address):
    from gradio_client import Client
    from gradio_client.exceptions import AppError

    client = Client(f"http://{address}", verbose=False, analytics_enabled=False)
    assert client.config["analytics_enabled"] is False
    assert len(client.predict("m", *PAIR, api_name="/align")) == 3
    assert len(client.predict("m", "The <mask> is small.", 3, api_name="/fill")[1]["data"]) == 3
    assert len(client.predict("m", "a house", "b\nc", api_name="/nearest")["data"]) == 2
    for no_text in ("", None):
        assert len(client.predict("c", "a house", no_text, api_name="/head")[0]["confidences"]) == 2
    for values in (("c", "<mask>", 3), ("m", "<mask>", 10**9), ("m", "<mask>", "five"), ("other", "<mask>", 3)):
        with pytest.raises(AppError, match="head|number|listed"):
            client.predict(*values, api_name="/fill")


QUESTION = {"json": {"data": ["m", "a house", "b"]}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "path, host, content, status",
    [
        ("call/nearest", "127.0.0.1", QUESTION, 200),
        # a page of another site can have its name resolved to this machine; the browser still sends that name
        ("call/nearest", "a.site", QUESTION, 400),
        ("upload", "127.0.0.1", {"files": {"files": b"a"}}, 413),
        ("upload", "127.0.0.1", {"files": {"files": b""}}, 413),
    ],
)
def test_space_refuses_requests_for_another_host_and_files(address, path, host, content, status):
    asked = httpx.post(f"http://{address}/gradio_api/{path}", headers={"Host": host}, timeout=60, **content)
    assert asked.status_code == status
