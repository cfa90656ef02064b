"""The examples of a card: which ones a folder has, and that the code of each runs unchanged in a new process."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import yaml

from crosslingual_zoo.finetuning.results import Results
from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder
from crosslingual_zoo.hub_cards.examples import TEMPLATES, uses
from crosslingual_zoo.hub_cards.record import Record
from crosslingual_zoo.hub_cards.sentence_transformer import write_modules
from crosslingual_zoo.modeling.modeling_xlm_align import XlmAlignModel

NOTHING = Record({}, 0, "a")
RUN = {"corpora": [{"name": "ru", "languages": ["ru"]}, {"name": "en-ar", "languages": ["en", "ar", "fake"]}]}
PRE_TRAINED = ["Masked words", "Features", "Nearest sentence across languages"]
DECODER = {"decoder_layers": 2, "decoder_layer_indices": [0, 1], "cross_attention": False}
SENTENCES = yaml.safe_load((TEMPLATES / "sentences.yaml").read_text(encoding="utf-8"))
# Runs the code of every use in names of its own; where it defines vectors, says what they are of its own sentences.
PROGRAM = """
import json, sys
for name, title, code in json.load(sys.stdin):
    print("==", name, title, sep="|")
    names = {}
    exec(code, names)
    if "queries" in names:
        print(json.dumps(names["vectors"](names["sentences"]).tolist()))
"""


def record_of(*results, **facts) -> Record:
    """What is known of a model: the results as they come, and the facts of its run."""
    return replace(NOTHING, results=list(map(Results, results)), **facts)


RETRIEVAL = {
    "task": "tatoeba",
    "kind": "retrieval",
    "seeds": [1],
    "scores": [{"language": "sw-en", "seed": 1, "metric": "accuracy", "value": 50.0}],
    "protocol": {"pooling": "mean", "layer": 2},
}
PRE_TRAINED_RECORD = record_of(RETRIEVAL, run=RUN)
HEADS = {  # the head, fields of its configuration, and what it was fine-tuned on
    "classifier": ("ForSequenceClassification", {}, ["topics (zero_shot)"]),
    "tagger": ("ForTokenClassification", {}, ["udpos (zero_shot)"]),
    "answers": ("ForQuestionAnswering", {}, ["xquad (zero_shot)"]),
    "plug-in classifier": ("ForSequenceClassification", {"plug_in": True}, ["topics (translate_train_all)"]),
    "plug-in of pairs": ("ForSequenceClassification", {"plug_in": True}, ["pawsx (translate_train_all)"]),
    "plug-in tagger": ("ForTokenClassification", {"plug_in": True}, ["udpos (translate_train_all)"]),
    "plug-in answers": ("ForQuestionAnswering", {"plug_in": True}, ["xquad (translate_train_all)"]),
    "translator": ("ForConditionalGeneration", DECODER, []),
}


def uses_of(folder, record=NOTHING) -> dict[str, str]:
    """Title -> code."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    listed = uses(folder, replace(record, config=config), str(folder))
    return {use["title"]: use["code"] for use in listed}


def change_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def printed(folders: dict, cwd, record=NOTHING) -> dict[str, dict[str, str]]:
    """What the code of each use prints, by folder and title; all of it in one fresh process."""
    programs = []
    for name, folder in folders.items():
        programs += [(name, title, code) for title, code in uses_of(folder, record).items()]
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    options = dict(capture_output=True, text=True, timeout=300, cwd=cwd)
    ran = subprocess.run(command, input=json.dumps(programs), **options)
    assert ran.returncode == 0, ran.stderr
    outputs = {name: {} for name in folders}
    for block in ran.stdout.split("==|")[1:]:
        heading, _, text = block.partition("\n")
        name, _, title = heading.partition("|")
        outputs[name][title] = text.strip()
    return outputs


def assert_masked_words(text):
    english, russian, last = text.splitlines()
    assert english.startswith("The train to the <mask> leaves at seven. ['")
    assert russian.startswith("Поезд в <mask>")
    assert "<mask>" in last


def assert_nearest_sentences(text):
    """Of two English sentences, each with a Russian one; and the line of vectors."""
    first, second, _ = text.splitlines()
    for line, sentence in zip((first, second), SENTENCES["en"]["sentences"], strict=False):
        query, _, nearest = line.partition(" -> ")
        assert query == sentence
        assert nearest in SENTENCES["ru"]["sentences"]


@pytest.mark.slow
def test_examples_of_pre_trained_models_run(zoo_model_dir, tmp_path):
    folders = {model_type: zoo_model_dir(model_type) for model_type in ("ernie_m", "metaxlm", "veco")}
    outputs = printed(folders, tmp_path, PRE_TRAINED_RECORD)
    translation = outputs["veco"].pop("Translation, after fine-tuning")
    assert float(translation) > 0
    assert (tmp_path / "translation-model" / "config.json").is_file()
    for by_title in outputs.values():
        assert list(by_title) == [*PRE_TRAINED, "Classification, after fine-tuning"]
        assert_masked_words(by_title["Masked words"])
        assert by_title["Features"].endswith(", 32])\n3")
        assert_nearest_sentences(by_title["Nearest sentence across languages"])
        assert len(by_title["Classification, after fine-tuning"].splitlines()) == 3


@pytest.mark.slow
def test_examples_of_an_aligner_with_sentence_vectors_run(zoo_model_dir, tmp_path, sample_tokenizer):
    folder = zoo_model_dir("xlm_align", copy=True)
    write_modules(folder, layer=2)
    outputs = printed({"model": folder}, tmp_path, PRE_TRAINED_RECORD)["model"]
    assert list(outputs) == [
        "Masked words",
        "Features",
        "Sentence vectors",
        "Nearest sentence across languages",
        "Word alignment",
        "Classification, after fine-tuning",
    ]
    assert_masked_words(outputs["Masked words"])
    assert outputs["Sentence vectors"].startswith("(2, 32) tensor([[1.0000, ")
    assert outputs["Word alignment"].startswith("[('")
    assert outputs["Word alignment"].endswith("')]")
    vectors = json.loads(outputs["Nearest sentence across languages"].splitlines()[-1])
    encoder = SentenceEncoder(XlmAlignModel.from_pretrained(folder), sample_tokenizer, batch_size=8)
    expected = encoder.vectors(encoder.tokens(SENTENCES["ru"]["sentences"]), [2])[2]
    torch.testing.assert_close(torch.tensor(vectors), torch.nn.functional.normalize(expected))


@pytest.mark.slow
def test_examples_of_a_fine_tuned_model_run(zoo_model_dir, tmp_path):
    folders = {}
    for name, (head, fields, tasks) in HEADS.items():
        folders[name] = zoo_model_dir("veco", head, copy=True, **fields)
        change_config(folders[name], fine_tuned_on=tasks)
        if "answers" not in name:
            change_config(folders[name], id2label={"0": "B-so", "1": "I-so"})
    outputs = {}
    for name, by_title in printed(folders, tmp_path).items():
        [outputs[name]] = by_title.values()
    assert "-so', 'score'" in outputs["classifier"]
    assert outputs["plug-in classifier"].endswith("-so")
    assert outputs["plug-in of pairs"].endswith("-so")
    assert "'entity_group': 'so'" in outputs["tagger"]
    assert "-so')" in outputs["plug-in tagger"]
    for name in ("answers", "plug-in answers"):
        question, _, answer = outputs[name].partition(" -> ")
        assert question == SENTENCES["en"]["question"]
        assert answer
        assert answer in SENTENCES["en"]["sentences"][0]
    translations = json.loads(outputs["translator"].replace("'", '"'))
    assert len(translations) == 2


def test_examples_show_only_what_a_folder_supports(zoo_model_dir):
    folder = zoo_model_dir("xlm_align", copy=True)
    (folder / "pipeline_word_alignment.py").unlink()
    assert "Word alignment" not in uses_of(folder)
    change_config(folder, architectures=["XlmAlignModel"])
    assert "Masked words" not in uses_of(folder)
    change_config(folder, architectures=["XLMRobertaForMaskedLM"], model_type="xlm-roberta", auto_map={})
    assert list(uses_of(folder)) == [*PRE_TRAINED, "Classification, after fine-tuning"]
    tagger = zoo_model_dir("metaxlm", "ForTokenClassification")
    assert list(uses_of(tagger, record_of(RETRIEVAL))) == ["Tagging"]
