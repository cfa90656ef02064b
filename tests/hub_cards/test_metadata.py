"""The metadata of a card and .eval_results, read by huggingface_hub's own classes."""

import yaml
from huggingface_hub import ModelCard, ModelCardData, metadata_eval_result, parse_eval_result_entries
from huggingface_hub.repocard import metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from hub_cards.card import write_card
from hub_cards.metadata import OF_PAIRS, plain_name
from pretraining.recipe import OBJECTIVES


def test_the_hub_reads_the_metadata(made_up_run):
    folder, files = made_up_run("xlm_align", "classification", "word_alignment")
    data = ModelCard.load(write_card(folder, files, repo="me/model", license="apache-2.0")).data
    assert data.language == ["en", "de"]  # learned from; Swahili was only evaluated
    assert data.base_model == "FacebookAI/xlm-roberta-base"
    assert data.datasets == ["owner/text", "owner/bitext"]  # neither what was evaluated nor what is not on the Hub
    assert (data.pipeline_tag, data.library_name, data.license) == ("fill-mask", "transformers", "apache-2.0")
    assert data.tags == ["xlm_align", "cross-lingual", "word-alignment"] and data.metrics == ["accuracy", "aer"]
    assert data.model_name == "me/model"
    found = {entry.metric_name: entry for entry in data.eval_results}
    names = [f"accuracy, {name}, zero_shot, 2 seeds" for name in ("en", "de", "sw", "average")]
    assert list(found) == [*names, "aer, de-en, feature, 1 seed"]
    german = found["accuracy, de, zero_shot, 2 seeds"]
    assert (german.metric_value, german.metric_type, german.task_type) == (72.25, "accuracy", "text-classification")
    assert (german.dataset_type, german.dataset_config, german.dataset_split) == ("google/xtreme", "XNLI", "test")
    assert found["aer, de-en, feature, 1 seed"].dataset_type == "word-alignment"  # without the mirror's local/


def test_the_model_index_is_as_the_hub_writes_it(made_up_run):
    folder, files = made_up_run("veco", "translation")
    loaded = metadata_load(write_card(folder, files, repo="me/model"))
    assert ModelCardData(**loaded).to_dict()["model-index"] == loaded["model-index"]
    ours = loaded["model-index"][0]["results"][0]
    theirs = metadata_eval_result(
        model_pretty_name="me/model",
        task_pretty_name="translation",
        task_id="translation",
        metrics_pretty_name="sacrebleu, en-de, supervised, 1 seed",
        metrics_id="sacrebleu",
        metrics_value=15.93,
        dataset_pretty_name="multi30k",
        dataset_id="multi30k",
        dataset_split="test",
    )
    (entry,) = model_index_to_eval_results(theirs["model-index"])[1]
    assert ours["metrics"][0].items() <= theirs["model-index"][0]["results"][0]["metrics"][0].items()
    (found,) = model_index_to_eval_results(loaded["model-index"])[1]
    assert found.unique_identifier == entry.unique_identifier and found.metric_name == entry.metric_name


def test_what_is_not_known_is_not_there(made_up_run, tmp_path):
    folder, _ = made_up_run("veco")
    alone = tmp_path / "alone"
    folder.rename(alone)
    data = ModelCard.load(write_card(alone)).data
    for name in ("language", "license", "base_model", "datasets", "metrics", "eval_results"):
        assert getattr(data, name) is None
    assert not (alone / ".eval_results").exists()


def test_results_of_data_sets_of_the_hub_are_files_of_their_own(made_up_run):
    folder, files = made_up_run("veco", "classification", "tagging", "retrieval")
    write_card(folder, files, repo="me/model")
    assert sorted(file.name for file in (folder / ".eval_results").iterdir()) == ["udpos.yaml", "xnli.yaml"]
    content = yaml.safe_load((folder / ".eval_results" / "xnli.yaml").read_text())
    entries = parse_eval_result_entries(content)
    # one configuration with several languages: their average, then each
    assert [(entry.task_id, entry.value) for entry in entries] == [
        ("XNLI", 62.2), ("XNLI.en", 81.06), ("XNLI.de", 72.25), ("XNLI.sw", 33.3)
    ]  # fmt: skip
    first = entries[0]
    assert first.dataset_id == "google/xtreme" and first.dataset_revision is None and first.date == "2026-11-20"
    assert first.notes == "accuracy, en de sw, zero_shot, 2 seeds, 15030 rows"
    assert first.source_url == "https://huggingface.co/me/model/blob/main/provenance/results/xnli.json"
    content = yaml.safe_load((folder / ".eval_results" / "udpos.yaml").read_text())
    english, german = parse_eval_result_entries(content)  # a configuration a language: no average
    assert (english.task_id, english.value, english.dataset_revision) == ("udpos.English", 95.51, None)
    assert german.dataset_revision == "5503434ddd753f426f4b38109466949a1217c2bb"
    write_card(folder)
    assert parse_eval_result_entries(content) == [english, german]


def test_without_an_id_there_is_no_source(made_up_run):
    folder, files = made_up_run("veco", "classification")
    write_card(folder, files)
    content = yaml.safe_load((folder / ".eval_results" / "xnli.yaml").read_text())
    assert all(entry.source_url is None and entry.source_name is None for entry in parse_eval_result_entries(content))


def test_languages_are_codes_of_the_hub(made_up_run):
    folder, _ = made_up_run("veco")
    run = folder.parent / "run.json"
    run.write_text(run.read_text().replace('["de"]', '["de_captions"]').replace('["en", "de"]', '["fake", "zh-TW"]'))
    assert ModelCard.load(write_card(folder)).data.language == ["en", "de", "zh"]


def test_folders_of_sentence_transformers_say_so(made_up_run):
    folder, _ = made_up_run("veco")
    (folder / "modules.json").write_text("[]")
    assert "sentence-transformers" in ModelCard.load(write_card(folder)).data.tags


def test_the_objectives_of_pairs():
    assert {name for name, kind in OBJECTIVES.items() if kind.text == "bitext"} == set(OF_PAIRS)


def test_plain_names():
    names = {
        "./runs/minilm": "runs/minilm",
        ".../x/model": "x",
        "local/bible": "bible",
        "google/xtreme": "google/xtreme",
    }
    assert {path: plain_name(path) for path in names} == names


def test_a_region_is_no_language(made_up_run):
    folder, _ = made_up_run("xlm_align")
    run = folder.parent / "run.json"
    run.write_text(run.read_text().replace('["de"]', '["pt-br"]').replace('["en", "de"]', '["zh_Hant", "en"]'))
    assert ModelCard.load(write_card(folder)).data.language == ["en", "pt", "zh"]
