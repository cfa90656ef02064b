"""The card of a model folder: what it is made of, its numbers and metadata, what it says first, what is refused."""

import json
import re
import shutil

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard import metadata_load
from markdown_it import MarkdownIt
from safetensors.torch import load_file, save_file
from transformers import XLMRobertaForSequenceClassification

from crosslingual_zoo.hub_cards.card import main, weights_of, write_card
from crosslingual_zoo.hub_cards.record import forget_paths
from crosslingual_zoo.zoo_core.provenance import folder_fingerprint

MANY_ROWS = {"en": 5010, "de": 5010}


def card_of(folder, *arguments, **options):
    """The text of the folder's new card."""
    return write_card(folder, *arguments, **options).read_text(encoding="utf-8")


def data_of(folder, *arguments, **options):
    """The metadata of the folder's new card."""
    return ModelCard(card_of(folder, *arguments, **options)).data


def edit(file, **values):
    """Changes fields of a JSON or YAML file."""
    text = file.read_text()
    if file.suffix == ".json":
        file.write_text(json.dumps(json.loads(text) | values))
    else:
        file.write_text(yaml.safe_dump(yaml.safe_load(text) | values))


def test_metadata_is_what_the_hub_reads(made_up_run):
    folder, files = made_up_run("xlm_align", "classification", "word_alignment")
    (folder / "modules.json").write_text("[]")
    card = write_card(folder, files, repo="me/model", license="apache-2.0")
    fields = metadata_load(card)
    assert ModelCardData(**fields).to_dict()["model-index"] == fields["model-index"]
    data = ModelCard.load(card).data
    assert data.model_name == "me/model"
    assert data.base_model == "FacebookAI/xlm-roberta-base"
    assert data.language == ["en", "de"]  # learned from; Swahili was only evaluated
    assert data.datasets == ["owner/text", "owner/bitext"]  # neither what was evaluated nor what is not on the Hub
    assert data.pipeline_tag == "feature-extraction"  # no losses are known
    assert data.library_name == "transformers"
    assert data.license == "apache-2.0"
    assert data.tags == ["xlm_align", "cross-lingual", "word-alignment", "sentence-transformers"]
    assert data.metrics == ["accuracy", "aer"]
    assert "/home/" not in card.read_text(encoding="utf-8")


def test_metadata_of_scores(made_up_run):
    folder, files = made_up_run("xlm_align", "classification", "word_alignment")
    entries = {entry.metric_name: entry for entry in data_of(folder, files).eval_results}
    names = [f"accuracy, {name}, zero-shot, 2 seeds" for name in ("en", "de", "sw", "average")]
    assert list(entries) == [*names, "aer, de-en, ot at layer 1, 1 seed"]
    german = entries["accuracy, de, zero-shot, 2 seeds"]
    assert (german.metric_value, german.metric_type, german.task_type) == (72.25, "accuracy", "text-classification")
    assert (german.dataset_type, german.dataset_config, german.dataset_split) == ("google/xtreme", "XNLI", "test")
    assert entries["aer, de-en, ot at layer 1, 1 seed"].dataset_type == "word-alignment"  # without the mirror's local/


def scored(file, tables, **protocol):
    """Gives results of classification these tables, as {language: (configuration, split)}; scores are 80.125."""
    content = json.loads(file.read_text())
    scores = []
    evaluation_data = []
    for language, (config, split) in tables.items():
        table = {"path": "google/xtreme", "config": config, "split": split, "languages": [language]}
        evaluation_data.append(table)
        scores.append({"language": language, "seed": 1, "split": "test", "metric": "accuracy", "value": 80.125})
    protocol |= {"evaluation_data": evaluation_data, "evaluated_rows": dict.fromkeys(tables, 5010)}
    edit(file, seeds=[1], scores=scores, protocol=content["protocol"] | protocol)


@pytest.mark.parametrize(
    ("tables", "config_of_average"),
    [
        ({"en": ("XNLI.en", "test"), "de": ("XNLI.de", "validation")}, None),
        ({"en": ("XNLI", "test"), "de": ("XNLI", "test")}, "XNLI"),
        ({"de": ("XNLI.de", "test")}, "no average of one language"),
    ],
)
def test_metadata_of_scores_names_the_table_of_each_language(made_up_run, tables, config_of_average):
    folder, (file,) = made_up_run("veco", "classification")
    scored(file, tables, differs=["fewer rows"], plug_in=True)
    entries = {entry.metric_name: entry for entry in data_of(folder, [file]).eval_results}
    for language, (config, split) in tables.items():
        entry = entries.pop(f"accuracy, {language}, zero-shot, plug-in (fewer rows), 1 seed")
        assert (entry.dataset_config, entry.dataset_split, entry.metric_value) == (config, split, 80.12)
        assert (entry.dataset_name, entry.task_type) == ("xnli", "text-classification")
    if len(tables) > 1:
        average = entries.pop("accuracy, average, zero-shot, plug-in (fewer rows), 1 seed")
        assert average.dataset_config == config_of_average
    assert not entries


@pytest.fixture
def tuned_run(made_up_run, tmp_path):
    """The folder of a fine-tuning run, without its model, beside that of its pre-training run."""
    _, [file] = made_up_run("xlm_align", "classification")
    return shutil.copytree(file.parent, tmp_path / "tuned")


@pytest.fixture
def write_tuned_model(small_model):
    """`write_tuned_model(run)`: the model of a fine-tuning run's first seed, as its folder."""
    labels = dict(id2label={0: "no", 1: "yes"}, fine_tuned_on=["xnli (zero_shot)"])
    return lambda run: small_model(run / "seed-1" / "model", XLMRobertaForSequenceClassification, **labels)


TEXTS = {"en": ["It rains.", "see /home/somebody/notes"], "de": ["Es regnet.", "Ja\n```\n# nein"]}


@pytest.fixture
def tuned_folder(tuned_run, write_tuned_model):
    """`tuned_folder(rows, seeds, languages, **changes)`: the model of a fine-tuning run, and its predictions.

    `rows` are counts by language, `languages` those of the training rows.
    """

    def write(rows=MANY_ROWS, seeds=(1,), languages=("en",), **changes):
        content = json.loads((tuned_run / "results.json").read_text())
        content["scores"] = [row for row in content["scores"] if row["language"] in rows and row["seed"] in seeds]
        content["seeds"] = list(seeds)
        content["protocol"] |= {"evaluated_rows": rows, "texts": 1}
        content["protocol"]["training_data"][0]["languages"] = list(languages)
        edit(tuned_run / "results.json", **content | changes)
        predictions = tuned_run / "seed-1" / "predictions"
        predictions.mkdir(parents=True)
        for language in rows:
            answer = {"language": language, "gold": "no", "prediction": "yes", "probability": 0.8125}
            lines = [json.dumps({"row": row, "text": text, **answer}) for row, text in enumerate(TEXTS[language])]
            (predictions / f"{language}.jsonl").write_text("\n".join(lines) + "\n")
        return write_tuned_model(tuned_run)

    return write


@pytest.mark.parametrize(
    ("languages", "codes"),
    [
        (["pt-BR", "zh_Hant", "pt"], ["pt", "zh"]),  # without region and script
        (["de-es", "fr-es"], ["de", "es", "fr"]),
        (["en", "english", "x-klingon", "qaa"], ["en", "qaa"]),
    ],
)
def test_metadata_has_the_codes_of_languages(tuned_folder, languages, codes):
    folder = tuned_folder({"en": 5010}, languages=languages)
    assert set(data_of(folder).language) == {*codes, "en"}


HEAD_TAGS = {
    "Model": "feature-extraction",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForConditionalGeneration": "translation",
}


@pytest.mark.parametrize("head", HEAD_TAGS)
def test_metadata_of_a_head(made_up_run, head):
    folder, _ = made_up_run("xlm_align")
    edit(folder / "config.json", architectures=[f"XlmAlign{head}"])
    data = data_of(folder)
    is_fine_tuned = head != "Model"
    assert data.pipeline_tag == HEAD_TAGS[head]
    assert data.base_model == "FacebookAI/xlm-roberta-base"
    assert data.get("base_model_relation") == ("finetune" if is_fine_tuned else None)
    assert ("word-alignment" in data.tags) != is_fine_tuned


@pytest.mark.parametrize(("initialize", "base"), [("both", "owner/start"), ("none", None), (None, None)])
def test_metadata_names_no_base_model_that_gave_no_weights(made_up_run, capsys, initialize, base):
    """Where there is none, none is asked for."""
    folder, _ = made_up_run("metaxlm")
    model = {"type": "metaxlm"}
    if initialize:
        model["meta_pretrained"] = {"initialize": initialize, "path": "owner/start", "dictionaries": []}
    edit(folder.parent / "recipe.yaml", model=model)
    assert data_of(folder).base_model == base
    assert "--base-model" not in capsys.readouterr().err


def text_of(token):
    return "".join(child.content for child in token.children)


@pytest.mark.parametrize(
    "text", ["<i>x</i>", r"\<b>y</b>", "a|b", r"a\|b", "*z* and _w_", "`code`", r"C:\data", "[a](b)"]
)
def test_card_shows_licenses_as_they_are_written(made_up_run, text):
    folder, files = made_up_run("xlm_align", "classification")
    edit(folder.parent / "recipe.yaml", licenses={"owner/text": text, "owner/bitext": "MIT"})
    page = MarkdownIt("commonmark").enable("table").parse(card_of(folder, files))
    cells = [token for token in page if token.type == "inline"]
    training = next(number for number, cell in enumerate(cells) if text_of(cell) == "training")
    license_cell = cells[training + 1]
    assert text_of(license_cell) == text
    assert {child.type for child in license_cell.children} <= {"text", "text_special"}


def test_metadata_alignment_score_is_that_of_the_pipeline_s_default_rule(made_up_run):
    folder, [file] = made_up_run("xlm_align", "word_alignment")
    content = json.loads(file.read_text())
    content["protocol"]["methods"]["ot_words"] = {"threshold": 0.5}
    for row in list(content["scores"]):
        content["scores"].append(row | {"method": "ot_words", "value": row["value"] - 10})
    file.write_text(json.dumps(content))
    [entry] = data_of(folder, [file]).eval_results
    assert entry.metric_name == "aer, de-en, ot_words at layer 1, 1 seed"
    assert entry.metric_value == 21.4


LOSSES = {
    "held_out/mlm/en": 5.5,
    "unigram_entropy/mlm/en": 4.7,
    "held_out/dwa/en-de": 9,
    "held_out/ca_mlm_segments.inner/de": 4.95,
    "unigram_entropy/ca_mlm_segments.inner/de": 4.9,
}


def test_card_says_first_what_is_learned_poorly(made_up_run):
    folder, files = made_up_run("veco", "classification")
    early = LOSSES | {"held_out/mlm/en": 9.9}
    lines = ['{"loss": 1.0}', json.dumps(early), json.dumps({"step": 9, **LOSSES}), '{"held_out/mlm']
    (folder.parent / "events.jsonl").write_text("\n".join(lines))
    text = card_of(folder, files)
    assert ModelCard(text).data.pipeline_tag == "feature-extraction"
    head, _, rest = text.partition("\n## Scores")
    assert "en 5.50 (4.70), de 4.95 (4.90)" in head
    assert "xnli" in head
    assert "Masked words" not in rest


def test_card_of_a_model_that_learned_one_of_two_languages(made_up_run):
    """And so all of them on average."""
    folder, files = made_up_run("veco", "classification")
    (folder.parent / "events.jsonl").write_text(json.dumps(LOSSES | {"held_out/mlm/en": 4.6}))
    text = card_of(folder, files)
    assert "Masked words" in text
    assert ModelCard(text).data.pipeline_tag == "fill-mask"
    edit(folder / "config.json", architectures=["VecoModel"])  # without a head
    assert data_of(folder).pipeline_tag == "feature-extraction"


def change_base(run, folder):
    content = json.loads((run / "results.json").read_text())
    edit(run / "results.json", model=content["model"] | {"folder": folder})


def test_card_of_an_adapted_aligner_has_its_run_and_no_masked_words(made_up_run):
    model, _ = made_up_run("xlm_align")
    adapted = model.parent.with_name("adapted")
    model.rename(adapted)
    run = adapted.with_name("adapted.training") / "run"
    run.parent.mkdir()
    model.parent.rename(run)
    assert "Masked words" in card_of(adapted)
    [phase, _] = yaml.safe_load((run / "recipe.yaml").read_text())["phases"]
    phase |= {"objectives": {"tlm": {"weight": 0.0}, "dwa": {}}}
    edit(run / "recipe.yaml", phases=[phase])
    assert data_of(adapted).base_model == "FacebookAI/xlm-roberta-base"
    assert "Masked words" not in card_of(adapted)


def test_card_of_a_fine_tuned_model(tuned_run, write_tuned_model):
    change_base(tuned_run, "elsewhere/model")
    folder = write_tuned_model(tuned_run)
    text = card_of(folder)  # the results of its own run are found
    assert card_of(folder, [tuned_run]) == text
    data = ModelCard(text).data
    assert data.pipeline_tag == "text-classification"
    assert data.model_name == "tuned"
    assert data.base_model is None
    assert data.datasets == ["nyu-mll/multi_nli"]
    assert data.language == ["en", "de", "sw"]  # trained and scored in
    for fact in ("xnli (zero-shot)", "no, yes", "392,702", "62.2 ± 1.5", "2e-05"):
        assert fact in text


def test_card_of_a_fine_tuned_model_says_what_is_known_of_its_base(tuned_run, write_tuned_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change_base(tuned_run, "xlm_align-made-up/model")  # seen from here
    text = card_of(write_tuned_model(tuned_run), base_model="me/base", base_note="a copy")
    data = ModelCard(text).data
    assert data.base_model == "me/base"
    assert data.base_model_relation == "finetune"
    assert data.datasets == ["owner/text", "owner/bitext", "nyu-mll/multi_nli"]
    _, _, about_base = text.partition("## The base model")
    assert "FacebookAI/xlm-roberta-base" in about_base
    assert "1,500" in about_base


def test_examples_of_a_fine_tuned_model_are_rows_of_its_data(tuned_folder, capsys):
    folder = tuned_folder()
    text = card_of(folder)
    [code] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert '"It rains."' in code
    assert '"Es regnet."' in code
    assert "# yes 0.81\n" in code
    assert "somebody" not in text
    assert "trust_remote_code" not in text  # the folder has no code
    compile(code, "example", "exec")
    assert "predictions" in capsys.readouterr().err
    shutil.rmtree(folder.parent / "predictions")
    assert "It rains." not in card_of(folder, overwrite=True)
    assert "predictions" not in capsys.readouterr().err


def test_examples_trust_code_where_the_folder_has_some(made_up_run):
    folder, _ = made_up_run("xlm_align")
    assert "trust_remote_code=True" in card_of(folder)
    edit(folder / "config.json", auto_map={}, custom_pipelines={})
    assert "trust_remote_code=True)" not in card_of(folder)
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokenization_ernie_m.ErnieMTokenizer", None]})
    assert "trust_remote_code=True)" in card_of(folder)


@pytest.mark.parametrize(
    ("rows", "seeds", "facts"),
    [
        ({"en": 5010, "de": 5010}, [1], ["one seed"]),
        ({"en": 60, "de": 60}, [1], ["one seed", "60 rows"]),
        ({"en": 500, "de": 150}, [1, 2], ["150 to 500 rows"]),
        ({"en": 5010, "de": 5010}, [1, 2], []),
    ],
)
def test_card_says_first_that_scores_are_unsure(tuned_folder, rows, seeds, facts):
    head, _, _ = card_of(tuned_folder(rows, seeds)).partition("\n## Scores")
    for fact in facts:
        assert fact in head
    assert ("> Another seed" in head) == bool(facts)


@pytest.mark.parametrize("revision", ["", "@a1b2"])
def test_card_names_the_base_model(tuned_folder, capsys, revision):
    name = "intfloat/multilingual-e5-small"
    folder = tuned_folder(model={"folder": name + revision, "fingerprint": "a1b2"})
    data = data_of(folder)
    assert data.base_model == name
    assert data.base_model_relation == "finetune"
    assert data_of(folder, base_model=name).base_model == name
    assert "--base-model" not in capsys.readouterr().err


@pytest.mark.parametrize("start", ["/models/e5", "models/e5"])  # the second could be an id
def test_card_asks_for_a_base_model_that_is_a_folder(tuned_folder, capsys, start):
    folder = tuned_folder(model={"folder": start, "fingerprint": "sha256:0"})
    data = data_of(folder)
    assert data.base_model is None
    assert data.get("base_model_relation") is None
    assert "--base-model" in capsys.readouterr().err
    assert data_of(folder, base_model="me/e5").base_model == "me/e5"
    assert "--base-model" not in capsys.readouterr().err


def test_card_of_the_start_of_a_run(made_up_run):
    folder, _ = made_up_run("metaxlm")
    recipe = folder.parent / "recipe.yaml"
    local = str(folder.parent / "elsewhere" / "model")
    edit(recipe, model={"type": "metaxlm", "start_from": local})
    text = card_of(folder)
    assert ModelCard(text).data.base_model is None
    assert "`elsewhere`" in text
    assert str(folder.parent) not in text
    start = {"initialize": "both", "path": local, "dictionaries": [{"language": "sw"}]}
    edit(recipe, model={"type": "metaxlm", "start_from": None, "meta_pretrained": start})
    assert "embeddings, with dictionaries of sw" in card_of(folder)


def test_card_without_a_run_and_results(small_model, tmp_path):
    text = card_of(small_model(tmp_path / "alone"))
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert "{" not in prose
    assert "None" not in text


def test_metadata_without_a_run_and_results(zoo_model_dir):
    data = data_of(zoo_model_dir("veco", copy=True))
    for name in ("language", "license", "base_model", "datasets", "metrics", "eval_results"):
        assert getattr(data, name) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run.py --config /a/b.yaml hub_root=/mirror", "run.py --config .../b.yaml hub_root=.../mirror"),
        ("run.py --config '/a/paper.yaml#xnli'", "run.py --config '.../paper.yaml#xnli'"),
        ("file:///srv/texts/sw.txt", ".../sw.txt"),
        ("in '/srv/a' and (/srv/b)", "in '.../a' and (.../b)"),
        ("https://huggingface.co/me/model", "https://huggingface.co/me/model"),
        ("de -> en, 1/2, </s>, n/a, / and ../shared/hub", "de -> en, 1/2, </s>, n/a, / and ../shared/hub"),
    ],
)
def test_forget_paths(text, expected):
    assert forget_paths({text: [text, 1, None, 'a "b" \\ /c']}) == {expected: [expected, 1, None, 'a "b" \\ .../c']}


def test_card_command_keeps_an_edited_card(made_up_run):
    folder, _ = made_up_run("veco")
    arguments = ["--model", str(folder), "--license", "mit"]
    main(arguments)
    card = folder / "README.md"
    assert ModelCard.load(card).data.license == "mit"
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, folder / "model.safetensors")
    main(arguments)  # other weights: a new card
    assert weights_of(card.read_text()) == folder_fingerprint(folder)
    card.write_text(card.read_text().replace("## Limits", "Mine.\n\n## Limits"))
    main([*arguments, "--overwrite"])
    assert "Mine." not in card.read_text()
