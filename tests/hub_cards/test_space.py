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
from crosslingual_zoo.modeling import MODEL_TYPES

pytest.importorskip("gradio")

SPACE = Path(__file__).parents[2] / "hub_cards" / "space"
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
    """A pre-trained model, as the Space loads it."""
    return app.load(str(zoo_model_dir("xlm_align")))


def own_model(auto_class, model):
    """The model of the folder that the Space loaded, by itself."""
    return auto_class.from_pretrained(model.tokenizer.name_or_path, trust_remote_code=True)


def text_of(side):
    return "".join(word for word, _ in side)


def test_align_words_has_the_links_of_the_pipeline(app, model):
    aligner = pipeline("word-alignment", model=model.tokenizer.name_or_path, trust_remote_code=True)
    expected = aligner(PAIR, probabilities=True, layer=1)
    source, target, links = app.align_words(model, *PAIR)
    assert text_of(source) == "".join(f"{word} " for word in expected["source"])
    assert text_of(target) == "".join(f"{word} " for word in expected["target"])
    assert [probability for *_, probability in links] == [round(value, 3) for value in expected["probabilities"]]
    source_groups = [group for _, group in source]
    target_groups = [group for _, group in target]
    for i, j in expected["links"]:
        assert source_groups[i] == target_groups[j] is not None
    linked = {i for i, _ in expected["links"]}
    assert {i for i, group in enumerate(source_groups) if group} == linked


def test_sentence_vectors_are_those_of_the_retrieval_task(app, model):
    texts = ["The children are reading.", "今天", "Bonjour le monde", "the house " * 400, "a"]
    encoder = SentenceEncoder(model.states.model, model.tokenizer, batch_size=2)
    expected = encoder.vectors(encoder.tokens(texts), [1])[1]
    torch.testing.assert_close(app.sentence_vectors(model, texts), expected, rtol=1e-4, atol=1e-5)


def test_rank_sentences_begins_with_the_sentence_itself(app, model):
    lines = "Die Kinder lesen.\nThe house is small.\n  \nDie Kinder lesen."
    [(cosine, first), (_, second)] = app.rank_sentences(model, "The house is small.", lines)
    assert first == "The house is small."
    assert cosine == pytest.approx(1.0, abs=1e-3)
    assert second == "Die Kinder lesen."


@pytest.mark.parametrize("spelling", ["<mask>", "[MASK]"])
def test_fill_masks_by_the_models_own_head(app, model, spelling):
    text = f"The {spelling} is small and {spelling}."
    filled, rows = app.fill_masks(model, text, top=3)
    inputs = model.tokenizer(text.replace(spelling, "<mask>"), return_tensors="pt")
    with torch.inference_mode():
        logits_TV = own_model(AutoModelForMaskedLM, model)(**inputs).logits[0]
    is_mask = inputs["input_ids"][0] == model.tokenizer.mask_token_id
    expected = logits_TV[is_mask].softmax(-1).topk(3).values.flatten().tolist()
    assert [probability for _, _, probability in rows] == pytest.approx(expected, abs=1e-4)
    assert [mask for mask, _, _ in rows] == [1, 1, 1, 2, 2, 2]
    assert "<mask>" not in filled


@pytest.mark.parametrize("model_type", [*MODEL_TYPES, *BACKBONES])
def test_space_serves_every_tab_of_every_model(app, zoo_model_dir, model_type):
    model = app.load(str(zoo_model_dir(model_type)))
    assert model.layer == 1
    assert model.positions == 512
    assert "toy" in model.facts
    source, _, _ = app.align_words(model, *PAIR)
    assert len(source) == 5
    _, rows = app.fill_masks(model, "The <mask> is small.")
    assert len(rows) == 5
    assert len(app.rank_sentences(model, "a", "b\nc")) == 2


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
    folder = zoo_model_dir("xlm_align", copy=True)
    marker = tmp_path / "ran"
    for file in folder.glob("*.py"):
        file.write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n" + file.read_text())
    assert app.load(str(folder)).aligner
    assert not marker.exists()
    assert app.load(str(folder), True).aligner
    assert marker.exists()


@pytest.fixture(scope="module")
def classifier(app, zoo_model_dir):
    """A model of topics, as the Space loads it."""
    labels = {0: "food", 1: "sport", 2: "travel"}
    return app.load(str(zoo_model_dir("xlm_align", "ForSequenceClassification", id2label=labels)))


@pytest.mark.parametrize(
    "texts", [("The house is small.",), ("The house is small.", None), ("The house is small.", "Das Haus ist klein.")]
)
def test_run_head_gives_a_classifiers_probabilities(app, classifier, texts):
    inputs = classifier.tokenizer(*texts, return_tensors="pt")
    with torch.inference_mode():
        logits = own_model(AutoModelForSequenceClassification, classifier)(**inputs).logits[0]
    expected = dict(zip(("food", "sport", "travel"), logits.softmax(-1).tolist(), strict=True))
    assert app.run_head(classifier, *texts) == (pytest.approx(expected, rel=1e-4), None)
    assert "text classification" in classifier.facts


def test_space_has_no_task_for_a_plug_in_head(app, zoo_model_dir):
    """It reads a translation too, which the page does not ask for."""
    assert not app.load(str(zoo_model_dir("veco", "ForSequenceClassification", plug_in=True))).task


@pytest.mark.parametrize("text", ["Maria lives in Paris.", "玛丽亚在巴黎。"])
def test_run_head_marks_parts_of_the_text(app, zoo_model_dir, text):
    tagger = app.load(str(zoo_model_dir("xlm_align", "ForTokenClassification", id2label={0: "B-PER", 1: "I-PER"})))
    labels, parts = app.run_head(tagger, text)
    assert labels is None
    assert parts["text"] == text
    assert {entity["entity_group"] for entity in parts["entities"]} == {"PER"}


@pytest.fixture(scope="module")
def address(zoo_model_dir, tmp_path_factory):
    """The running page, started from a copy of its folder with modeling/ in it, with the models m and c."""
    folder = tmp_path_factory.mktemp("space")
    shutil.copytree(SPACE, folder, dirs_exist_ok=True)
    shutil.copytree(SPACE.parents[1] / "modeling", folder / "crosslingual_zoo" / "modeling")
    shutil.copytree(zoo_model_dir("xlm_align"), folder / "m")
    shutil.copytree(zoo_model_dir("metaxlm", "ForSequenceClassification"), folder / "c")
    settings = ("GRADIO_", "ZOO_", "PYTHON")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    environment |= {"PYTHONUNBUFFERED": "1", "ZOO_MODELS": "m, c"}
    options = dict(cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with subprocess.Popen([sys.executable, "app.py"], **options) as running:
        try:
            started = next((line for line in running.stdout if "Running on" in line), None)
            assert started, "the Space did not start"
            yield started.partition("//")[2].strip()
        finally:
            running.terminate()


@pytest.fixture
def client(address):
    from gradio_client import Client

    return Client(f"http://{address}", verbose=False, analytics_enabled=False)


@pytest.mark.slow
def test_space_every_tab_answers(client):
    assert client.config["analytics_enabled"] is False
    assert len(client.predict("m", *PAIR, api_name="/align")) == 3
    _, table = client.predict("m", "The <mask> is small.", 3, api_name="/fill")
    assert len(table["data"]) == 3
    assert len(client.predict("m", "a house", "b\nc", api_name="/nearest")["data"]) == 2
    for no_text in ("", None):
        labels, _ = client.predict("c", "a house", no_text, api_name="/head")
        assert len(labels["confidences"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "values", [("c", "<mask>", 3), ("m", "<mask>", 10**9), ("m", "<mask>", "five"), ("other", "<mask>", 3)]
)
def test_space_answers_with_an_error(client, values):
    from gradio_client.exceptions import AppError

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
    response = httpx.post(f"http://{address}/gradio_api/{path}", headers={"Host": host}, timeout=60, **content)
    assert response.status_code == status
