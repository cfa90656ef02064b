"""The Space: what its tabs answer by which models, what it refuses and how it says so, and what is drawn."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
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
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    pipeline,
)

from finetuning.tasks.retrieval.sentence_vectors import SentenceEncoder
from modeling.optimal_transport import METHODS
from modeling.pipeline_word_alignment import WordAlignmentPipeline

SPACE = Path(__file__).parents[2] / "hub_cards" / "space"
MODEL_TYPES = ["veco", "ernie_m", "xlm_align", "metaxlm"]
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


@pytest.fixture(scope="module")
def foreign(sample_tokenizer, tmp_path_factory):
    """foreign(cls, config, **tokens of the tokenizer) -> folder of a tiny model of the library with a tokenizer."""

    def saved(cls, config, **tokens):
        folder = tmp_path_factory.mktemp("foreign")
        cls(config).save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=sample_tokenizer.backend_tokenizer, unk_token="<unk>", pad_token="<pad>", **tokens
        ).save_pretrained(folder)
        return folder

    return saved


# ---- what is answered


def test_the_methods_are_the_aligners(space):
    assert list(space.answers.METHODS.values()) == list(METHODS)


@pytest.mark.parametrize("method, encoding", [*[(name, "separate") for name in METHODS], ("ot", "joint")])
def test_links_are_those_of_the_pipeline(space, model, method, encoding):
    aligner = pipeline("word-alignment", model=model.name, trust_remote_code=True)
    options = dict(method=method, encoding=encoding, layer=1, probabilities=True, similarity=True)
    expected = aligner(PAIR, **options)
    found = space.answers.align_words(model, *PAIR, method, 1, encoding)
    assert found.links == expected["links"] and (found.source, found.target) == (expected["source"], expected["target"])
    assert found.similarity == expected["similarity"] and found.probabilities == expected["probabilities"]


def test_vectors_are_those_of_the_retrieval_task(space, model):
    texts = ["The children are reading.", "今天", "Bonjour le monde", "the house " * 400, "a"]
    ours = SentenceEncoder(model.encoder, model.tokenizer, batch_size=2)
    subwords = ours.tokens(texts)
    expected = ours.vectors(subwords, range(model.layers + 1))
    for layer in range(model.layers + 1):
        found, cut = space.answers.sentence_vectors(model, texts, layer)
        torch.testing.assert_close(found, expected[layer], rtol=1e-4, atol=1e-5)
        assert cut == sum(map(ours.is_cut, subwords)) == 1


def test_sentences_are_ranked_by_cosine_and_kept(space, model):
    lines = ["Die Kinder lesen.", "The house is small.", "  ", "Die Kinder lesen."]
    found = space.answers.rank_sentences(model, "The house is small.", "\n".join(lines), 2)
    assert [text for text, _ in found.sentences] == ["The house is small.", "Die Kinder lesen."]
    assert found.sentences[0][1] == pytest.approx(1.0, abs=1e-5)
    assert (2, "Die Kinder lesen.") in model.vectors


@pytest.mark.parametrize("spelling", ["<mask>", "[MASK]"])
def test_masks_are_filled_by_the_models_own_head(space, model, spelling):
    text = f"The {spelling} is small and {spelling}."
    found = space.answers.fill_masks(model, text, top=3)
    whole = AutoModelForMaskedLM.from_pretrained(model.name, trust_remote_code=True)
    inputs = model.tokenizer(text.replace(spelling, "<mask>"), return_tensors="pt")
    with torch.inference_mode():
        probabilities = whole(**inputs).logits.softmax(-1)[0][inputs["input_ids"][0] == model.tokenizer.mask_token_id]
    best = probabilities.topk(3)
    shown = space.answers.shown_subword
    assert shown(model.tokenizer, model.tokenizer.convert_tokens_to_ids("s")) == "…s"
    assert shown(model.tokenizer, model.tokenizer.convert_tokens_to_ids("▁the")) == "the"
    for candidates, values, subwords in zip(found.masks, best.values.tolist(), best.indices.tolist(), strict=True):
        assert [subword for _, subword, _ in candidates] == model.tokenizer.convert_ids_to_tokens(subwords)
        assert [probability for *_, probability in candidates] == pytest.approx(values, rel=1e-4)
    assert "by itself" in " ".join(found.notes) and "<mask>" not in found.text


def test_long_sentences_are_aligned_in_windows(space, model):
    found = space.answers.align_words(model, "the house " * 500, "das Haus " * 500)
    assert len(found.source) == len(found.target) == 1000 and found.similarity is None
    assert "windows" in found.notes[0] and "40 words" in found.notes[1]


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
        ("align_words", ("a", "b", "ot", 3), "Layer 3"),
        ("align_words", ("a", "b", "ot", -1), "Layer -1"),
        ("fill_masks", (None,), "sentence is empty"),
        ("fill_masks", ("the house",), "no <mask>"),
        ("fill_masks", ("<mask>" * 21,), "21 masks"),
        ("fill_masks", ("house <mask> " * 300 + "<mask>",), "reads 512"),
        ("rank_sentences", ("a", " \n\n "), "no sentences"),
        ("rank_sentences", ("a", "\n".join(map(str, range(201)))), "201 sentences"),
        ("rank_sentences", ("a", "b\n" + "word " * 1001), "Sentence 2"),
    ],
)
def test_texts_that_cannot_be_answered(space, model, tab, values, said):
    with pytest.raises(ValueError, match=said):
        getattr(space.answers, tab)(model, *values)


def half_the_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in tensors.items() if "layer.1." not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def another_tokenizer(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["entirely", "new"])
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "no tokenizer"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (half_the_weights, r"\S*layer.1."),
        (another_tokenizer, "the tokenizer knows"),
    ],
)
def test_folders_that_hold_no_model(space, zoo_model_dir, spoil, said):
    models, folder = space.loading.Models([], only_listed=False), zoo_model_dir("veco", copy=True)
    spoil(folder)
    with pytest.raises(ValueError, match=said) as refused:
        models.get(str(folder))
    assert len(str(refused.value)) < 500 and not models.loaded and not models.names


@pytest.mark.parametrize("name", [None, "./nowhere", "a/b/c", "x" * 300, "nobody/nothing"])
def test_names_of_no_model(space, name):
    with pytest.raises(ValueError, match=(name or "No model")[:80]):
        space.loading.Models([], only_listed=False).get(name)


def test_the_folder_of_a_run_names_its_model(space, zoo_model_dir, tmp_path):
    shutil.copytree(zoo_model_dir("veco"), tmp_path / "model")
    with pytest.raises(ValueError, match=f"name {tmp_path / 'model'}"):
        space.loading.find(str(tmp_path))


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
        expected = whole(**inputs).logits[0].softmax(-1).tolist()
    assert {label: pytest.approx(p, rel=1e-4) for label, p in answer.labels} == dict(
        zip(["food", "sport", "travel"], expected, strict=True)
    )
    shares = [p for _, p in answer.labels]
    assert shares == sorted(shares, reverse=True)
    assert "fine-tuned for text classification" in space.drawing.model_facts(found)


def test_a_taggers_spans_are_whole_words_of_the_text(space, load, zoo_model_dir):
    text = "The children are reading a book."
    found = load(zoo_model_dir("metaxlm", "ForTokenClassification", id2label={0: "NOUN", 1: "VERB"}))
    answer = space.answers.run_head(found, text)
    assert {label for *_, label, _ in answer.parts} <= {"NOUN", "VERB"}
    covered = "".join(text[start:end] for start, end, *_ in answer.parts)
    assert covered.split() == text.split() or covered == text.replace(" ", "")
    assert answer.parts[0][:1] == (0,) and answer.parts[-1][1] == len(text)
    page = space.drawing.marked(answer)
    assert re.sub("<small>.*?</small>|<.*?>", "", page) == text
    assert page.count("<mark") == len(answer.parts)


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


def test_a_pretrained_model_has_no_head_of_its_own(space, model, load, zoo_model_dir):
    assert not model.head and "fine-tuned" not in space.drawing.model_facts(model)
    with pytest.raises(ValueError, match="no head"):
        space.answers.run_head(model, "a")
    plug_in = load(zoo_model_dir("veco", "ForSequenceClassification", plug_in=True))
    assert not plug_in.head  # it reads a translation too


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


@pytest.mark.parametrize("card", [None, "---\nlanguage: multilingual\n---\n", "---\nlanguage: [\n---\n"])
def test_samples_of_a_model_whose_languages_are_unknown_are_general(space, zoo_model_dir, card):
    folder = zoo_model_dir("xlm_align", copy=True)
    if card:
        (folder / "README.md").write_text(card)
    found = space.loading.load(str(folder))
    assert space.samples.known_languages(found) == space.samples.known_languages(None) == [*space.samples.LANGUAGES]


def test_each_head_gets_samples_that_it_can_read(space, load, zoo_model_dir):
    for head, options in (
        ("ForSequenceClassification", {}),
        ("ForSequenceClassification", {"fine_tuned_on": ["xnli (zero_shot)"]}),
        ("ForTokenClassification", {}),
        ("ForQuestionAnswering", {}),
    ):
        found = load(zoo_model_dir("xlm_align", head, **options))
        for texts in space.samples.samples(found)["head"].values():
            answer = space.answers.run_head(found, *texts)
            assert answer.labels if head == "ForSequenceClassification" else answer.text in texts
            assert bool(texts[1]) == found.reads_pairs or head == "ForQuestionAnswering"


# ---- other models


@pytest.mark.parametrize(
    "model_type", [*MODEL_TYPES, "metaxlm on modernbert", "ernie_m on eurobert", "xlm_align on deberta-v2"]
)
def test_every_model_of_the_zoo_serves_every_tab(space, load, zoo_model_dir, model_type):
    found = load(zoo_model_dir(model_type))
    assert not found.lacking and found.layers == 2 and found.positions == 512
    assert space.answers.align_words(found, *PAIR).source == [*PAIR[0][:-1].split(), "."]
    assert len(space.answers.fill_masks(found, "The <mask> is small.").masks[0]) == 5
    assert len(space.answers.rank_sentences(found, "a", "b\nc").sentences) == 2


def test_a_fine_tuned_model_fills_no_masks(space, load, zoo_model_dir):
    found = load(zoo_model_dir("veco", "ForSequenceClassification"))
    assert list(found.lacking) == ["fill"]
    with pytest.raises(ValueError, match="no masked-LM head"):
        space.answers.fill_masks(found, "The <mask> is small.")
    assert space.answers.align_words(found, *PAIR).source == [*PAIR[0][:-1].split(), "."]
    assert "no masks" in space.drawing.model_facts(found)


def test_a_bert_has_the_zoos_aligner_and_one_without_mask_fills_none(space, load, foreign, sample_tokenizer):
    config = BertConfig(vocab_size=len(sample_tokenizer), max_position_embeddings=40, **SMALL)
    folder = foreign(BertForMaskedLM, config, mask_token="<mask>")
    found = load(folder)
    assert not found.lacking and found.positions == 40
    ours = pipeline("word-alignment", model=str(folder), pipeline_class=WordAlignmentPipeline)
    assert space.answers.align_words(found, *PAIR).links == ours(PAIR)["links"]
    assert space.answers.fill_masks(found, "The [MASK] is small.", 2).masks
    assert "40 tokens" in space.answers.rank_sentences(found, "a " * 100, "b\nc").notes[0]
    bare = load(foreign(BertForMaskedLM, config))
    with pytest.raises(ValueError, match="has no mask token"):
        space.answers.fill_masks(bare, "The <mask> is small.")
    assert "fill" in load(foreign(BertModel, config, mask_token="<mask>")).lacking


def test_a_decoder_has_no_masks(space, load, foreign, sample_tokenizer):
    config = GPT2Config(
        vocab_size=len(sample_tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=30, bos_token_id=0, eos_token_id=2
    )
    found = load(foreign(GPT2LMHeadModel, config, mask_token="<mask>"))
    with pytest.raises(ValueError, match="A gpt2 model has no masked-LM head"):
        space.answers.fill_masks(found, "The <mask> is small.")
    assert len(space.answers.rank_sentences(found, "a house", "b\nc").sentences) == 2


# ---- what is drawn


def test_links_reach_the_drawing_and_the_table(space):
    matrix = [[0, 1], [0, 0], [1, 1]]
    aligned = space.answers.Aligned(["a", "b", "c"], ["x", "y"], [(0, 1), (2, 1)], [0.5] * 2, matrix, [])
    page = space.drawing.alignment(aligned)
    assert "0-1 2-1" in page and "2 links: 2 of 3 words with 1 of 2" in page
    assert json.loads(re.search('data-links="([^"]*)"', page)[1]) == [[0, 1, 0.5], [2, 1, 0.5]]
    assert re.findall('class="zoo-word">(.)<', page) == ["a", "b", "c", "x", "y"]
    assert re.findall(r'title="([^"]*)"', page)[:2] == ["a – x: 0.00", "a – y: 1.00"]
    assert page.count("class=zoo-link") == 2
    assert "No words were linked" in space.drawing.alignment(space.answers.Aligned(["a"], ["b"], [], [], None, []))


def test_right_to_left_sentences_and_their_table_run_so(space):
    arabic = ["كتاب", "هنا."]
    aligned = space.answers.Aligned(["a", "b"], arabic, [(0, 1)], [0.5], [[0.0, 1.0], [0.2, 0.3]], [])
    page = space.drawing.alignment(aligned)
    assert re.findall('class="zoo-side [^"]*" dir="(...)"', page) == ["ltr", "rtl"]
    assert '<table class="zoo-heat" dir="rtl">' in page
    assert space.drawing.direction(["(1)", "שלום"]) == "rtl" and space.drawing.direction(["123"]) == "ltr"


def test_words_cannot_become_markup(space):
    matrix = [[0.0] * len(HOSTILE)] * len(HOSTILE)
    drawn = [
        space.drawing.alignment(space.answers.Aligned(HOSTILE, HOSTILE, [(0, 0)], [0.1], matrix, HOSTILE)),
        space.drawing.filled(space.answers.Filled([[(word, word, 0.1) for word in HOSTILE]], HOSTILE[0], HOSTILE)),
        space.drawing.ranking(space.answers.Ranked([(word, 0.5) for word in HOSTILE], HOSTILE, 1, HOSTILE), {}),
        space.drawing.classified(space.answers.Classified([(word, 0.5) for word in HOSTILE], HOSTILE)),
        *(space.drawing.marked(space.answers.Marked(word, [(0, 3, word, 0.5)], HOSTILE)) for word in HOSTILE),
        *map(space.drawing.message, HOSTILE),
    ]
    for page in drawn:
        assert "<script" not in page and '"onmouseover' not in page
        assert page.count("<style>") == page.count("</style>")
