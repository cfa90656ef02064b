"""The Space: what its tabs answer for each kind of model, what it refuses and how, and what it draws."""

import dataclasses
import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    pipeline,
)

from finetuning.tasks.retrieval.sentence_vectors import SentenceEncoder
from modeling.optimal_transport import METHODS

MODEL_TYPES = ["veco", "ernie_m", "xlm_align", "metaxlm"]
BACKBONES = ["metaxlm on modernbert", "ernie_m on eurobert", "xlm_align on deberta-v2"]
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
PAIR = ("The children are reading.", "Die Kinder lesen ein Buch.")
HOSTILE = ["<script>alert(1)</script>", "</style>", '"onmouseover="x', "&amp;"]


@pytest.fixture(scope="module")
def load(space):
    """load(folder) -> its `Model`, loaded once."""
    loaded = {}

    def model_of(folder):
        if folder not in loaded:
            loaded[folder] = space.loading.load(str(folder))
        return loaded[folder]

    return model_of


@pytest.fixture(scope="module")
def model(load, zoo_model_dir):
    return load(zoo_model_dir("xlm_align"))


# ---- what is answered


@pytest.mark.parametrize("method, encoding", [("ot_words", "separate"), ("ot", "joint")])
def test_links_are_those_of_the_pipeline(space, model, method, encoding):
    assert list(space.answers.METHODS.values()) == list(METHODS)
    aligner = pipeline("word-alignment", model=model.name, trust_remote_code=True)
    expected = aligner(PAIR, method=method, encoding=encoding, layer=1, probabilities=True)
    found = space.answers.align_words(model, *PAIR, method, encoding)
    assert found.links == expected["links"] and (found.source, found.target) == (expected["source"], expected["target"])
    assert found.probabilities == expected["probabilities"]


def test_long_sentences_are_aligned_in_windows(space, model):
    found = space.answers.align_words(model, "the house " * 500, "das Haus " * 500)
    assert len(found.source) == len(found.target) == 1000 and "windows" in found.notes[0]


def test_vectors_are_those_of_the_retrieval_task(space, model):
    texts = ["The children are reading.", "今天", "Bonjour le monde", "the house " * 400, "a"]
    ours = SentenceEncoder(model.encoder, model.tokenizer, batch_size=2)
    subwords = ours.tokens(texts)
    expected = ours.vectors(subwords, range(model.layers + 1))
    for layer in range(model.layers + 1):
        found, cut = space.answers.sentence_vectors(model, texts, layer)
        torch.testing.assert_close(found, expected[layer], rtol=1e-4, atol=1e-5)
        assert cut == sum(map(ours.is_cut, subwords)) == 1


def test_sentences_are_ranked_by_cosine(space, model):
    lines = ["Die Kinder lesen.", "The house is small.", "  ", "Die Kinder lesen."]
    found = space.answers.rank_sentences(model, "The house is small.", "\n".join(lines))
    assert [text for text, _ in found.sentences] == ["The house is small.", "Die Kinder lesen."]
    assert found.sentences[0][1] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("spelling", ["<mask>", "[MASK]"])
def test_masks_are_filled_by_the_models_own_head(space, model, spelling):
    text = f"The {spelling} is small and {spelling}."
    found = space.answers.fill_masks(model, text, top=3)
    whole = AutoModelForMaskedLM.from_pretrained(model.name, trust_remote_code=True)
    inputs = model.tokenizer(text.replace(spelling, "<mask>"), return_tensors="pt")
    with torch.inference_mode():
        probabilities = whole(**inputs).logits.softmax(-1)[0][inputs["input_ids"][0] == model.tokenizer.mask_token_id]
    best = probabilities.topk(3)
    for candidates, values, subwords in zip(found.masks, best.values.tolist(), best.indices.tolist(), strict=True):
        assert [subword for _, subword, _ in candidates] == model.tokenizer.convert_ids_to_tokens(subwords)
        assert [probability for *_, probability in candidates] == pytest.approx(values, rel=1e-4)
    assert "<mask>" not in found.text


@pytest.mark.parametrize("model_type", [*MODEL_TYPES, *BACKBONES])
def test_every_model_of_the_zoo_serves_every_tab(space, load, zoo_model_dir, model_type):
    found = load(zoo_model_dir(model_type))
    assert not found.lacking and found.layers == 2 and found.positions == 512
    assert space.answers.align_words(found, *PAIR).source == [*PAIR[0][:-1].split(), "."]
    assert len(space.answers.fill_masks(found, "The <mask> is small.").masks[0]) == 5
    assert len(space.answers.rank_sentences(found, "a", "b\nc").sentences) == 2


def test_models_of_the_library_serve_what_they_can(space, load, sample_tokenizer, tmp_path):
    def saved(cls, config, **tokens):
        folder = tmp_path / f"{cls.__name__}-{len(tokens)}"
        cls(config).save_pretrained(folder)
        options = {"unk_token": "<unk>", "pad_token": "<pad>", **tokens}
        backend = sample_tokenizer.backend_tokenizer
        PreTrainedTokenizerFast(tokenizer_object=backend, **options).save_pretrained(folder)
        return load(folder)

    config = BertConfig(vocab_size=len(sample_tokenizer), max_position_embeddings=40, **SMALL)
    bert = saved(BertForMaskedLM, config, mask_token="<mask>")
    assert not bert.lacking and bert.positions == 40
    assert space.answers.align_words(bert, *PAIR).source and space.answers.fill_masks(bert, "The [MASK] is small.")
    assert "40 tokens" in space.answers.rank_sentences(bert, "a " * 100, "b\nc").notes[0]
    shape = dict(n_embd=32, n_layer=2, n_head=2, n_positions=30, bos_token_id=0, eos_token_id=2)
    gpt = saved(GPT2LMHeadModel, GPT2Config(vocab_size=len(sample_tokenizer), **shape), mask_token="<mask>")
    assert len(space.answers.rank_sentences(gpt, "a house", "b\nc").sentences) == 2
    for lacking, said in ((saved(BertForMaskedLM, config), "no mask token"), (gpt, "no masked-LM head")):
        with pytest.raises(ValueError, match=said):
            space.answers.fill_masks(lacking, "The <mask> is small.")


# ---- what is refused


@pytest.mark.parametrize(
    "tab, values, said",
    [
        ("align_words", ("", "a"), "first sentence"),
        ("align_words", ("a", " \n "), "second sentence"),
        ("align_words", ("word " * 1001, "a"), "1,001 words"),
        ("align_words", ("a", "字" * 1001), "1,001 words"),
        ("align_words", ("a" * 10_001, "a"), "10,000 characters"),
        ("align_words", ("a", "b", "magic"), "magic"),
        ("fill_masks", (None,), "sentence is empty"),
        ("fill_masks", ("the house",), "no <mask>"),
        ("fill_masks", ("<mask>" * 21,), "21 masks"),
        ("fill_masks", ("house <mask> " * 300 + "<mask>",), "reads 512"),
        ("rank_sentences", ("a", " \n\n "), "no sentences"),
        ("rank_sentences", ("a", "\n".join(map(str, range(201)))), "201 sentences"),
        ("rank_sentences", ("a", "b\n" + "word " * 1001), "Sentence 2"),
        ("run_head", ("a",), "no head"),
    ],
)
def test_texts_that_cannot_be_answered(space, model, tab, values, said):
    with pytest.raises(ValueError, match=said):
        getattr(space.answers, tab)(model, *values)


def half_the_weights(folder, other_half=None):
    tensors = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if "layer.1." not in name}
    others = {name: tensors[name] * other_half for name in tensors.keys() - kept if other_half}
    save_file(kept | others, folder / "model.safetensors", metadata={"format": "pt"})


def another_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["entirely", "new"])
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "config.json").rename(folder / "model" / "config.json"), "name .*/model"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "no tokenizer"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (half_the_weights, r"\S*layer.1."),
        (lambda folder: half_the_weights(folder, torch.inf), "not finite .*layer.1."),
        (another_tokenizer, "the tokenizer knows"),
    ],
)
def test_folders_that_hold_no_model(space, zoo_model_dir, spoil, said):
    models, folder = space.loading.Models([], only_listed=False), zoo_model_dir("veco", copy=True)
    (folder / "model").mkdir()
    spoil(folder)
    with pytest.raises(ValueError, match=said) as refused:
        models.get(str(folder))
    assert len(str(refused.value)) < 500 and not models.loaded and not models.names


@pytest.mark.parametrize("name", [None, "./nowhere", "a/b/c", "x" * 300, "nobody/nothing"])
def test_names_of_no_model(space, name):
    with pytest.raises(ValueError, match=(name or "No model")[:80]):
        space.loading.Models([], only_listed=False).get(name)


def test_only_listed_models_are_loaded(space, zoo_model_dir):
    listed, other = str(zoo_model_dir("xlm_align")), str(zoo_model_dir("veco"))
    models = space.loading.Models([listed], only_listed=True)
    for name in (other, "owner/name", "../" + listed):
        with pytest.raises(ValueError, match="not in the list"):
            models.get(name)
    assert models.get(listed).name == listed and models.names == [listed]


def test_few_models_are_kept(space, zoo_model_dir):
    models = space.loading.Models([], only_listed=False)
    folders = [str(zoo_model_dir(model_type)) for model_type in MODEL_TYPES]
    first, second = models.get(folders[0]), models.get(folders[1])
    assert models.get(folders[0]) is first
    for folder in folders[2:]:
        models.get(folder)
    assert list(models.loaded) == [folders[0], *folders[2:]] and models.get(folders[1]) is not second
    assert models.names == folders  # still offered


# ---- whose code runs


def test_folders_of_one_name_keep_their_own_code(space, zoo_model_dir, tmp_path):
    """Auto classes hand the code of the first such folder to the second one, if their configuration is one."""
    folders = [tmp_path / str(number) / "model" for number in range(2)]
    for number, folder in enumerate(folders):
        shutil.copytree(zoo_model_dir("xlm_align"), folder)
        with open(folder / "modeling_xlm_align.py", "a") as code:
            code.write(f"\nXlmAlignForMaskedLM.number = {number}\n")
    models = space.loading.Models(list(map(str, folders)), only_listed=False, trust_remote_code=True)
    assert [models.get(str(folder)).masked_lm.number for folder in folders] == [0, 1]


def test_code_of_models_that_are_not_listed_never_runs(space, zoo_model_dir, tmp_path):
    folder, marker = zoo_model_dir("xlm_align", copy=True), tmp_path / "ran"
    for file in folder.glob("*.py"):
        file.write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n" + file.read_text())
    for models in (
        space.loading.Models([str(folder)], only_listed=False),
        space.loading.Models([], only_listed=False, trust_remote_code=True),
    ):
        assert models.get(str(folder)).aligner and not marker.exists()
    assert space.loading.Models([str(folder)], only_listed=True, trust_remote_code=True).get(str(folder)).aligner
    assert marker.exists()


# ---- heads of fine-tuned models


@pytest.mark.parametrize("second", ["", "Das Haus ist klein."])
def test_a_classifiers_labels_are_those_of_its_logits(space, load, zoo_model_dir, second):
    found = load(zoo_model_dir("xlm_align", "ForSequenceClassification", id2label={0: "food", 1: "sport", 2: "travel"}))
    answer = space.answers.run_head(found, "The house is small.", second)
    inputs = found.tokenizer(*["The house is small.", second][: 2 if second else 1], return_tensors="pt")
    whole = AutoModelForSequenceClassification.from_pretrained(found.name, trust_remote_code=True)
    with torch.inference_mode():
        expected = dict(zip(["food", "sport", "travel"], whole(**inputs).logits[0].softmax(-1).tolist(), strict=True))
    best_first = sorted(expected.items(), key=lambda item: -item[1])
    assert answer.labels == [(label, pytest.approx(share, rel=1e-4)) for label, share in best_first]
    assert "fine-tuned for text classification" in space.drawing.model_facts(found)
    with pytest.raises(ValueError, match="no masked-LM head"):
        space.answers.fill_masks(found, "The <mask> is small.")


def test_a_taggers_spans_are_whole_words_of_the_text(space, load, zoo_model_dir):
    text = "The children are reading a book."
    found = load(zoo_model_dir("metaxlm", "ForTokenClassification", id2label={0: "NOUN", 1: "VERB"}))
    answer = space.answers.run_head(found, text)
    assert {label for *_, label, _ in answer.parts} <= {"NOUN", "VERB"}
    covered = "".join(text[start:end] for start, end, *_ in answer.parts)
    assert covered.split() == text.split() or covered == text.replace(" ", "")
    page = space.drawing.marked(answer)
    assert re.sub("<small>.*?</small>|<.*?>", "", page) == text and page.count("<mark") == len(answer.parts)


def test_an_answer_is_the_likeliest_part_of_the_context(space, load, zoo_model_dir):
    context = "The house is small. The children are reading a book in the garden."
    found = load(zoo_model_dir("veco", "ForQuestionAnswering"))
    encoding = found.tokenizer("Who is reading?", context)
    places = [place for place, part in enumerate(encoding.sequence_ids(0)) if part == 1]
    first, last = places[3], places[6]

    class Certain(torch.nn.Module):
        def forward(self, input_ids, **_):
            def certain(*where):
                return torch.zeros(input_ids.shape).index_fill(1, torch.tensor(where), 30.0)

            # both also in the question, whose tokens are no answer
            return SimpleNamespace(start_logits=certain(1, first), end_logits=certain(2, last))

    answer = space.answers.run_head(dataclasses.replace(found, fine_tuned=Certain()), "Who is reading?", context)
    ((start, end, label, probability),) = answer.parts
    expected = context[encoding.token_to_chars(first).start : encoding.token_to_chars(last).end].strip()
    assert (context[start:end], label, probability) == (expected, "answer", pytest.approx(1.0))
    with pytest.raises(ValueError, match="is empty"):
        space.answers.run_head(found, "Who is reading?", " ")


def test_a_plug_in_head_is_not_offered(load, zoo_model_dir):
    """It reads a translation too, which the page does not ask for."""
    assert not load(zoo_model_dir("veco", "ForSequenceClassification", plug_in=True)).head


# ---- samples in languages that the model knows


@pytest.mark.parametrize("recorded", ["config", "card", "pre-training", "fine-tuning"])
def test_samples_are_in_the_recorded_languages(space, zoo_model_dir, tmp_path, recorded):
    folder = tmp_path / "run" / "model"
    own = {"languages": ["fr", "de", "zh"], "mask_token_id": 4} if recorded == "config" else {}
    shutil.copytree(zoo_model_dir("ernie_m", **own), folder)
    if recorded == "card":
        (folder / "README.md").write_text("---\nlanguage:\n- zh\n- fr\n- de\n---\n")
    elif recorded == "pre-training":
        corpora = [{"languages": ["fr"]}, {"languages": ["de", "zh_Hant"]}]
        (tmp_path / "run" / "run.json").write_text(json.dumps({"corpora": corpora}))
    elif recorded == "fine-tuning":
        scores = [{"language": code} for code in ("de", "fr", "zh", "xx")]
        (tmp_path / "results.json").write_text(json.dumps({"scores": scores}))
    found = space.loading.load(str(folder))
    samples = space.samples.samples(found)
    assert list(samples["align"]) == ["German – Chinese", "German – French"]
    assert all(list(samples[tab]) == ["German", "Chinese", "French"] for tab in ("fill", "nearest", "head"))
    languages = {space.samples.LANGUAGE_OF[line] for line in space.samples.pool(found).splitlines()}
    assert languages == {"German", "French", "Chinese"}


@pytest.mark.parametrize("card", ["language: multilingual", "language: ["])
def test_samples_of_a_model_whose_languages_are_unknown_are_general(space, zoo_model_dir, card):
    folder = zoo_model_dir("xlm_align", copy=True)
    (folder / "README.md").write_text(f"---\n{card}\n---\n")
    assert space.samples.known_languages(space.loading.load(str(folder))) == [*space.samples.LANGUAGES]


@pytest.mark.parametrize(
    "head, options",
    [
        ("ForSequenceClassification", {}),
        ("ForSequenceClassification", {"fine_tuned_on": ["xnli (zero_shot)"]}),
        ("ForTokenClassification", {}),
        ("ForQuestionAnswering", {}),
    ],
)
def test_each_head_gets_samples_that_it_can_read(space, load, zoo_model_dir, head, options):
    found = load(zoo_model_dir("xlm_align", head, **options))
    for texts in space.samples.samples(found)["head"].values():
        answer = space.answers.run_head(found, *texts)
        assert answer.labels if head == "ForSequenceClassification" else answer.text in texts
        assert bool(texts[1]) == found.reads_pairs or head == "ForQuestionAnswering"


# ---- what is drawn


def test_a_toy_model_is_called_one(space, model):
    assert "zoo-toy" in space.drawing.model_facts(model)
    real = dataclasses.replace(
        model, facts=model.facts | {"parameters": 22_000_000}
    )  # as in a small encoder that is in use
    assert "zoo-toy" not in space.drawing.model_facts(real)


def test_links_reach_the_drawing(space):
    aligned = space.answers.Aligned(["a", "b", "c"], ["x", "y"], [(0, 1), (2, 1)], [0.5] * 2, [])
    page = space.drawing.alignment(aligned)
    assert "0-1 2-1" in page and json.loads(re.search('data-links="([^"]*)"', page)[1]) == [[0, 1, 0.5], [2, 1, 0.5]]


def test_words_cannot_become_markup(space):
    answers, drawing = space.answers, space.drawing
    drawn = [
        drawing.alignment(answers.Aligned(HOSTILE, HOSTILE, [(0, 0)], [0.1], HOSTILE)),
        drawing.filled(answers.Filled([[(word, word, 0.1) for word in HOSTILE]], HOSTILE[0], HOSTILE)),
        drawing.ranking(answers.Ranked([(word, 0.5) for word in HOSTILE], HOSTILE, 1, HOSTILE), {}),
        drawing.classified(answers.Classified([(word, 0.5) for word in HOSTILE], HOSTILE)),
        *(drawing.marked(answers.Marked(word, [(0, 3, word, 0.5)], HOSTILE)) for word in HOSTILE),
        *map(drawing.message, HOSTILE),
    ]
    for page in drawn:
        assert "<script" not in page and '"onmouseover' not in page
        assert page.count("<style>") == page.count("</style>")
