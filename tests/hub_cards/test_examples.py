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


def record_of(*results, **known) -> Record:
    """What is known of a model: the results as they come, and the facts of its run."""
    return replace(NOTHING, results=list(map(Results, results)), **known)


def uses_of(folder, record=NOTHING) -> dict[str, str]:
    """Title -> code."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return {use["title"]: use["code"] for use in uses(folder, replace(record, config=config), str(folder))}


def change_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def printed(folders: dict, cwd, record=NOTHING) -> dict[str, dict[str, str]]:
    """What the code of each use prints, by folder and title; all of it in one fresh process."""
    given = [(name, *use) for name, folder in folders.items() for use in uses_of(folder, record).items()]
    command, options = [sys.executable, "-W", "error", "-c", PROGRAM], dict(capture_output=True, text=True, timeout=300)
    ran = subprocess.run(command, input=json.dumps(given), cwd=cwd, **options)
    assert ran.returncode == 0, ran.stderr
    shown = {name: {} for name in folders}
    for block in ran.stdout.split("==|")[1:]:
        place, _, text = block.partition("\n")
        name, _, title = place.partition("|")
        shown[name][title] = text.strip()
    return shown


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["veco", "ernie_m", "xlm_align", "metaxlm"])
def test_examples_of_a_pre_trained_model_run(zoo_model_dir, tmp_path, sample_tokenizer, model_type):
    folder = zoo_model_dir(model_type, copy=True)
    record = record_of(retrieval(), run=RUN)
    expected = [*PRE_TRAINED, "Classification, after fine-tuning"]
    if model_type == "veco":
        expected.append("Translation, after fine-tuning")
    if model_type == "xlm_align":
        write_modules(folder, layer=2)
        expected.insert(2, "Sentence vectors")
        expected.insert(4, "Word alignment")
    shown = printed({"model": folder}, tmp_path, record)["model"]
    assert list(shown) == expected
    masked = shown["Masked words"].splitlines()
    assert len(masked) == 3 and masked[0].startswith("The train to the <mask> leaves at seven. ['")
    assert masked[1].startswith("Поезд в <mask>") and "<mask>" in masked[2]
    assert shown["Features"].endswith(", 32])\n3")
    *nearest, vectors = shown["Nearest sentence across languages"].splitlines()
    assert [line.partition(" -> ")[0] for line in nearest] == SENTENCES["en"]["sentences"][:2]
    assert all(line.partition(" -> ")[2] in SENTENCES["ru"]["sentences"] for line in nearest)
    if model_type == "xlm_align":
        encoder = SentenceEncoder(XlmAlignModel.from_pretrained(folder), sample_tokenizer, batch_size=8)
        expected = encoder.vectors(encoder.tokens(SENTENCES["ru"]["sentences"]), [2])[2]
        torch.testing.assert_close(torch.tensor(json.loads(vectors)), torch.nn.functional.normalize(expected))
        assert shown["Sentence vectors"].startswith("(2, 32) tensor([[1.0000, ")
        assert shown["Word alignment"].startswith("[('") and shown["Word alignment"].endswith("')]")
    assert len(shown["Classification, after fine-tuning"].splitlines()) == 3
    if model_type == "veco":
        assert float(shown["Translation, after fine-tuning"]) > 0
        assert (tmp_path / "translation-model" / "config.json").is_file()


@pytest.mark.slow
def test_examples_of_a_fine_tuned_model_run(zoo_model_dir, tmp_path):
    labels = {"0": "B-so", "1": "I-so"}
    heads = {
        "classifier": ("ForSequenceClassification", {}, ["topics (zero_shot)"]),
        "tagger": ("ForTokenClassification", {}, ["udpos (zero_shot)"]),
        "answers": ("ForQuestionAnswering", {}, ["xquad (zero_shot)"]),
        "plug-in classifier": ("ForSequenceClassification", {"plug_in": True}, ["topics (translate_train_all)"]),
        "plug-in of pairs": ("ForSequenceClassification", {"plug_in": True}, ["pawsx (translate_train_all)"]),
        "plug-in tagger": ("ForTokenClassification", {"plug_in": True}, ["udpos (translate_train_all)"]),
        "plug-in answers": ("ForQuestionAnswering", {"plug_in": True}, ["xquad (translate_train_all)"]),
        "translator": ("ForConditionalGeneration", DECODER, []),
    }
    folders = {}
    for name, (head, fields, tuned) in heads.items():
        folders[name] = zoo_model_dir("veco", head, copy=True, **fields)
        change_config(folders[name], fine_tuned_on=tuned, **({"id2label": labels} if "answers" not in name else {}))
    shown = printed(folders, tmp_path)
    assert all(len(texts) == 1 for texts in shown.values())
    main = {name: next(iter(texts.values())) for name, texts in shown.items()}
    assert "-so', 'score'" in main["classifier"]
    assert main["plug-in classifier"].endswith("-so") and main["plug-in of pairs"].endswith("-so")
    assert "'entity_group': 'so'" in main["tagger"] and "-so')" in main["plug-in tagger"]
    question, context = SENTENCES["en"]["question"], SENTENCES["en"]["sentences"][0]
    for name in ("answers", "plug-in answers"):
        asked, _, answer = main[name].partition(" -> ")
        assert asked == question and answer and answer in context
    assert main["translator"].startswith("['") and len(json.loads(main["translator"].replace("'", '"'))) == 2


def retrieval():
    scores = [{"language": "sw-en", "seed": 1, "metric": "accuracy", "value": 50.0}]
    protocol = {"pooling": "mean", "layer": 2}
    return {"task": "tatoeba", "kind": "retrieval", "seeds": [1], "scores": scores, "protocol": protocol}


def test_examples_show_only_what_a_folder_supports(zoo_model_dir):
    folder = zoo_model_dir("xlm_align", copy=True)
    (folder / "pipeline_word_alignment.py").unlink()
    assert "Word alignment" not in uses_of(folder)
    change_config(folder, architectures=["XlmAlignModel"])
    assert "Masked words" not in uses_of(folder)
    change_config(folder, architectures=["XLMRobertaForMaskedLM"], model_type="xlm-roberta", auto_map={})
    assert list(uses_of(folder)) == [*PRE_TRAINED, "Classification, after fine-tuning"]
    assert list(uses_of(zoo_model_dir("metaxlm", "ForTokenClassification"), record_of(retrieval()))) == ["Tagging"]
