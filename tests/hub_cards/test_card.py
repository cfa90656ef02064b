"""The card of a model folder: what it is made of, its numbers and metadata, what it says first, what is refused."""

import json
import re
import shutil
from itertools import pairwise

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
    return write_card(folder, *arguments, **options).read_text(encoding="utf-8")


def edit(file, **values):
    """Changes fields of a JSON or YAML file."""
    if file.suffix == ".json":
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    else:
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))


def test_metadata_is_what_the_hub_reads(made_up_run):
    folder, files = made_up_run("xlm_align", "classification", "word_alignment")
    (folder / "modules.json").write_text("[]")
    card = write_card(folder, files, repo="me/model", license="apache-2.0")
    loaded = metadata_load(card)
    assert ModelCardData(**loaded).to_dict()["model-index"] == loaded["model-index"]
    data = ModelCard.load(card).data
    assert data.language == ["en", "de"]  # learned from; Swahili was only evaluated
    assert "/home/" not in card.read_text(encoding="utf-8")
    assert data.base_model == "FacebookAI/xlm-roberta-base"
    assert data.datasets == ["owner/text", "owner/bitext"]  # neither what was evaluated nor what is not on the Hub
    assert (data.pipeline_tag, data.library_name) == ("feature-extraction", "transformers")  # no losses are known
    assert data.license == "apache-2.0"
    assert data.tags == ["xlm_align", "cross-lingual", "word-alignment", "sentence-transformers"]
    assert data.metrics == ["accuracy", "aer"] and data.model_name == "me/model"
    found = {entry.metric_name: entry for entry in data.eval_results}
    names = [f"accuracy, {name}, zero-shot, 2 seeds" for name in ("en", "de", "sw", "average")]
    assert list(found) == [*names, "aer, de-en, ot at layer 1, 1 seed"]
    german = found["accuracy, de, zero-shot, 2 seeds"]
    assert (german.metric_value, german.metric_type, german.task_type) == (72.25, "accuracy", "text-classification")
    assert (german.dataset_type, german.dataset_config, german.dataset_split) == ("google/xtreme", "XNLI", "test")
    assert found["aer, de-en, ot at layer 1, 1 seed"].dataset_type == "word-alignment"  # without the mirror's local/


def scored(file, tables, **protocol):
    """Gives results of classification these tables, as {language: (configuration, split)}; scores are 80.125."""
    content = json.loads(file.read_text())
    data = [
        {"path": "google/xtreme", "config": config, "split": split, "languages": [language]}
        for language, (config, split) in tables.items()
    ]
    score = {"seed": 1, "split": "test", "metric": "accuracy", "value": 80.125}
    facts = {"evaluation_data": data, "evaluated_rows": dict.fromkeys(tables, 5010), **protocol}
    edit(
        file,
        seeds=[1],
        scores=[{"language": language, **score} for language in tables],
        protocol=content["protocol"] | facts,
    )


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
    entries = {entry.metric_name: entry for entry in ModelCard(card_of(folder, [file])).data.eval_results}
    for language, (config, split) in tables.items():
        entry = entries.pop(f"accuracy, {language}, zero-shot, plug-in (fewer rows), 1 seed")
        assert (entry.dataset_config, entry.dataset_split, entry.metric_value) == (config, split, 80.12)
        assert (entry.dataset_name, entry.task_type) == ("xnli", "text-classification")
    if len(tables) > 1:
        average = entries.pop("accuracy, average, zero-shot, plug-in (fewer rows), 1 seed")
        assert average.dataset_config == config_of_average
    assert not entries


def test_metadata_names_each_metric_once_and_kinds_of_task(made_up_run):
    folder, (first, alignment) = made_up_run("xlm_align", "classification", "word_alignment")
    second = shutil.copytree(first.parent, folder.parent / "again") / "results.json"
    scored(second, {"en": ("PAWS-X.en", "test")})
    edit(second, task="pawsx", published=[])
    data = ModelCard(card_of(folder, [first, second, alignment])).data
    assert data.metrics == ["accuracy", "aer"]
    assert {(entry.dataset_name, entry.task_type, entry.metric_type) for entry in data.eval_results} == {
        ("xnli", "text-classification", "accuracy"),
        ("pawsx", "text-classification", "accuracy"),
        ("word_alignment", "word-alignment", "aer"),
    }


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
    assert set(ModelCard(card_of(folder)).data.language) == {*codes, "en"}


@pytest.mark.parametrize(
    ("head", "tag"),
    [
        ("ForSequenceClassification", "text-classification"),
        ("ForTokenClassification", "token-classification"),
        ("ForQuestionAnswering", "question-answering"),
        ("ForConditionalGeneration", "translation"),
        ("Model", "feature-extraction"),
    ],
)
def test_metadata_of_a_head(made_up_run, head, tag):
    folder, _ = made_up_run("xlm_align")
    edit(folder / "config.json", architectures=[f"XlmAlign{head}"])
    data = ModelCard(card_of(folder)).data
    is_tuned = head != "Model"
    assert (data.pipeline_tag, data.get("base_model_relation")) == (tag, "finetune" if is_tuned else None)
    assert ("word-alignment" in data.tags) != is_tuned and data.base_model == "FacebookAI/xlm-roberta-base"


@pytest.mark.parametrize(("initialize", "base"), [("both", "owner/start"), ("none", None)])
def test_metadata_names_no_base_model_that_gave_no_weights(made_up_run, initialize, base):
    folder, _ = made_up_run("metaxlm")
    start = {"initialize": initialize, "path": "owner/start", "dictionaries": []}
    edit(folder.parent / "recipe.yaml", model={"type": "metaxlm", "start_from": None, "meta_pretrained": start})
    assert ModelCard(card_of(folder)).data.base_model == base


@pytest.mark.parametrize(
    "text", ["<i>x</i>", r"\<b>y</b>", "a|b", r"a\|b", "*z* and _w_", "`code`", r"C:\data", "[a](b)"]
)
def test_card_shows_licenses_as_they_are_written(made_up_run, text):
    folder, files = made_up_run("xlm_align", "classification")
    edit(folder.parent / "recipe.yaml", licenses={"owner/text": text, "owner/bitext": "MIT"})
    page = MarkdownIt("commonmark").enable("table").parse(card_of(folder, files))
    contents = [token for token in page if token.type == "inline"]
    [license] = [after for before, after in pairwise(contents) if text_of(before) == "training"][:1]
    assert text_of(license) == text and {child.type for child in license.children} <= {"text", "text_special"}


def text_of(token):
    return "".join(child.content for child in token.children)


def test_metadata_alignment_score_is_that_of_the_pipeline_s_default_rule(made_up_run):
    folder, [file] = made_up_run("xlm_align", "word_alignment")
    content = json.loads(file.read_text())
    content["protocol"]["methods"]["ot_words"] = {"threshold": 0.5}
    content["scores"] += [{**row, "method": "ot_words", "value": row["value"] - 10} for row in content["scores"]]
    file.write_text(json.dumps(content))
    [entry] = ModelCard(card_of(folder, [file])).data.eval_results
    assert (entry.metric_name, entry.metric_value) == ("aer, de-en, ot_words at layer 1, 1 seed", 21.4)


def test_card_says_first_what_is_learned_poorly(made_up_run):
    folder, files = made_up_run("veco", "classification")
    names = {"held_out/mlm/en": 5.5, "unigram_entropy/mlm/en": 4.7, "held_out/dwa/en-de": 9}
    names |= {"held_out/ca_mlm_segments.inner/de": 4.95, "unigram_entropy/ca_mlm_segments.inner/de": 4.9}
    events = folder.parent / "events.jsonl"
    lines = ['{"loss": 1.0}', json.dumps(names | {"held_out/mlm/en": 9.9}), json.dumps({"step": 9, **names})]
    events.write_text("\n".join([*lines, '{"held_out/mlm']))
    text = card_of(folder, files)
    head, _, rest = text.partition("\n## Scores")
    assert ModelCard(text).data.pipeline_tag == "feature-extraction"
    assert "en 5.50 (4.70), de 4.95 (4.90)" in head and "xnli" in head and "Masked words" not in rest
    events.write_text(json.dumps(names | {"held_out/mlm/en": 4.6}))
    text = card_of(folder, files)  # learned in one of two languages, and so on average
    assert "Masked words" in text and ModelCard(text).data.pipeline_tag == "fill-mask"
    edit(folder / "config.json", architectures=["VecoModel"])
    assert ModelCard(card_of(folder)).data.pipeline_tag == "feature-extraction"  # a model without a head


def test_card_of_a_fine_tuned_model(small_model, made_up_run, tmp_path, monkeypatch):
    base, (file,) = made_up_run("xlm_align", "classification")
    run = shutil.copytree(file.parent, tmp_path / "tuned")
    content = json.loads((run / "results.json").read_text())
    edit(run / "results.json", model=content["model"] | {"folder": "elsewhere/model"})
    labels = dict(id2label={0: "no", 1: "yes"}, fine_tuned_on=["xnli (zero_shot)"])
    folder = small_model(run / "seed-1" / "model", XLMRobertaForSequenceClassification, **labels)
    text = card_of(folder)  # the results of its own run are found
    assert card_of(folder, [run]) == text
    data = ModelCard(text).data
    assert data.pipeline_tag == "text-classification" and data.model_name == "tuned" and data.base_model is None
    assert data.datasets == ["nyu-mll/multi_nli"] and data.language == ["en", "de", "sw"]  # trained and scored in
    assert all(fact in text for fact in ("xnli (zero-shot)", "no, yes", "392,702", "62.2 ± 1.5", "2e-05"))

    # where the base is in its place, seen from here, what is known of it is on the card too
    monkeypatch.chdir(tmp_path)
    edit(run / "results.json", model=content["model"] | {"folder": "xlm_align-made-up/model"})
    text = card_of(folder, base_model="me/base", base_note="a copy")
    data = ModelCard(text).data
    assert (data.base_model, data.base_model_relation) == ("me/base", "finetune")
    assert data.datasets == ["owner/text", "owner/bitext", "nyu-mll/multi_nli"]
    assert all(fact in text.partition("## The base model")[2] for fact in ("FacebookAI/xlm-roberta-base", "1,500"))


@pytest.fixture
def tuned_folder(small_model, made_up_run, tmp_path):
    """`tuned_folder(rows, seeds, languages, **changes)`: the model of a fine-tuning run, and its predictions.

    `rows` are counts by language, `languages` those of the training rows.
    """

    def write(rows=MANY_ROWS, seeds=(1,), languages=("en",), **changes):
        _, (file,) = made_up_run("xlm_align", "classification")
        run = shutil.copytree(file.parent, tmp_path / "tuned")
        content = json.loads((run / "results.json").read_text())
        content["scores"] = [row for row in content["scores"] if row["language"] in rows and row["seed"] in seeds]
        protocol = content["protocol"] | {"evaluated_rows": rows, "texts": 1}
        protocol["training_data"][0]["languages"] = list(languages)
        edit(run / "results.json", **(content | {"seeds": list(seeds), "protocol": protocol} | changes))
        labels = dict(id2label={0: "no", 1: "yes"}, fine_tuned_on=["xnli (zero_shot)"])
        folder = small_model(run / "seed-1" / "model", XLMRobertaForSequenceClassification, **labels)
        (run / "seed-1" / "predictions").mkdir()
        for language in rows:
            texts = {"en": ["It rains.", "see /home/somebody/notes"], "de": ["Es regnet.", "Ja\n```\n# nein"]}[language]
            answer = {"language": language, "gold": "no", "prediction": "yes", "probability": 0.8125}
            lines = [json.dumps({"row": row, "text": text, **answer}) for row, text in enumerate(texts)]
            (run / "seed-1" / "predictions" / f"{language}.jsonl").write_text("\n".join(lines) + "\n")
        return folder

    return write


def test_examples_of_a_fine_tuned_model_are_rows_of_its_data(tuned_folder, capsys):
    folder = tuned_folder()
    text = card_of(folder)
    [code] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert '"It rains."' in code and '"Es regnet."' in code and "# yes 0.81\n" in code
    assert "somebody" not in text and "predictions" in capsys.readouterr().err
    assert "trust_remote_code" not in text  # the folder has no code
    compile(code, "example", "exec")
    shutil.rmtree(folder.parent / "predictions")
    assert "It rains." not in card_of(folder, overwrite=True) and "predictions" not in capsys.readouterr().err


def test_examples_trust_code_where_the_folder_has_some(made_up_run):
    folder, _ = made_up_run("xlm_align")
    assert "trust_remote_code=True" in card_of(folder)
    without_code = {name: {} for name in ("auto_map", "custom_pipelines")}
    edit(folder / "config.json", **without_code)
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
    head = card_of(tuned_folder(rows, seeds)).partition("\n## Scores")[0]
    assert all(fact in head for fact in facts) and ("> Another seed" in head) == bool(facts)


@pytest.mark.parametrize(
    ("start", "named"),
    [
        ({"folder": "intfloat/multilingual-e5-small", "fingerprint": "a1b2"}, "intfloat/multilingual-e5-small"),
        ({"folder": "intfloat/multilingual-e5-small@a1b2", "fingerprint": "a1b2"}, "intfloat/multilingual-e5-small"),
        ({"folder": "/models/e5", "fingerprint": "sha256:0"}, None),
        ({"folder": "models/e5", "fingerprint": "sha256:0"}, None),  # a folder there, though it could be an id
    ],
)
def test_card_names_the_base_model_or_asks_for_it(tuned_folder, capsys, start, named):
    folder = tuned_folder(model=start)
    data = ModelCard(card_of(folder)).data
    assert (data.base_model, data.get("base_model_relation")) == (named, "finetune" if named else None)
    assert ("--base-model" in capsys.readouterr().err) == (named is None)
    assert ModelCard(card_of(folder, base_model=named or "me/e5")).data.base_model == (named or "me/e5")
    assert "--base-model" not in capsys.readouterr().err


def test_card_asks_for_no_base_model_of_random_weights(made_up_run, capsys):
    folder, _ = made_up_run("veco")
    edit(folder.parent / "recipe.yaml", model={"type": "veco"})
    assert ModelCard(card_of(folder)).data.base_model is None and "--base-model" not in capsys.readouterr().err


def test_card_of_the_start_of_a_run(made_up_run):
    folder, _ = made_up_run("metaxlm")
    recipe = folder.parent / "recipe.yaml"
    local = str(folder.parent / "elsewhere" / "model")
    edit(recipe, model={"type": "metaxlm", "start_from": local})
    text = card_of(folder)
    assert ModelCard(text).data.base_model is None and "`elsewhere`" in text and str(folder.parent) not in text
    start = {"initialize": "both", "path": local, "dictionaries": [{"language": "sw"}]}
    edit(recipe, model={"type": "metaxlm", "start_from": None, "meta_pretrained": start})
    assert "embeddings, with dictionaries of sw" in card_of(folder)


def test_card_without_a_run_and_results(small_model, made_up_run, tmp_path):
    folder = small_model(tmp_path / "alone")
    assert "{" not in re.sub(r"```.*?```", "", text := card_of(folder), flags=re.DOTALL) and "None" not in text
    alone = shutil.copytree(made_up_run("veco")[0], tmp_path / "copy")
    data = ModelCard(card_of(alone)).data
    for name in ("language", "license", "base_model", "datasets", "metrics", "eval_results"):
        assert getattr(data, name) is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("run.py --config /a/b.yaml hub_root=/mirror", "run.py --config .../b.yaml hub_root=.../mirror"),
        ("run.py --config '/a/paper.yaml#xnli'", "run.py --config '.../paper.yaml#xnli'"),
        ("file:///srv/texts/sw.txt", ".../sw.txt"),
        ("in '/srv/a' and (/srv/b)", "in '.../a' and (.../b)"),
        ("https://huggingface.co/me/model", "https://huggingface.co/me/model"),
        ("de -> en, 1/2, </s>, n/a, / and ../shared/hub", "de -> en, 1/2, </s>, n/a, / and ../shared/hub"),
    ],
)
def test_forget_paths(text, kept):
    assert forget_paths({text: [text, 1, None, 'a "b" \\ /c']}) == {kept: [kept, 1, None, 'a "b" \\ .../c']}


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
