"""The metadata of a card and .eval_results, read by huggingface_hub's own classes."""

import json

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData, parse_eval_result_entries
from huggingface_hub.repocard import metadata_load

from hub_cards.card import write_card
from hub_cards.metadata import plain_name
from hub_cards.record import read_record


def test_the_hub_reads_the_metadata(made_up_run):
    folder, files = made_up_run("xlm_align", "classification", "word_alignment")
    (folder / "modules.json").write_text("[]")
    card = write_card(folder, files, repo="me/model", license="apache-2.0")
    loaded = metadata_load(card)
    assert ModelCardData(**loaded).to_dict()["model-index"] == loaded["model-index"]
    data = ModelCard.load(card).data
    assert data.language == ["en", "de"]  # learned from; Swahili was only evaluated
    assert data.base_model == "FacebookAI/xlm-roberta-base"
    assert data.datasets == ["owner/text", "owner/bitext"]  # neither what was evaluated nor what is not on the Hub
    assert (data.pipeline_tag, data.library_name, data.license) == ("fill-mask", "transformers", "apache-2.0")
    assert data.tags == ["xlm_align", "cross-lingual", "word-alignment", "sentence-transformers"]
    assert data.metrics == ["accuracy", "aer"] and data.model_name == "me/model"
    found = {entry.metric_name: entry for entry in data.eval_results}
    names = [f"accuracy, {name}, zero-shot, 2 seeds" for name in ("en", "de", "sw", "average")]
    assert list(found) == [*names, "aer, de-en, ot at layer 1, 1 seed"]
    german = found["accuracy, de, zero-shot, 2 seeds"]
    assert (german.metric_value, german.metric_type, german.task_type) == (72.25, "accuracy", "text-classification")
    assert (german.dataset_type, german.dataset_config, german.dataset_split) == ("google/xtreme", "XNLI", "test")
    assert found["aer, de-en, ot at layer 1, 1 seed"].dataset_type == "word-alignment"  # without the mirror's local/


def test_the_main_alignment_score_is_that_of_the_pipelines_default_rule(made_up_run):
    folder, [file] = made_up_run("xlm_align", "word_alignment")
    content = json.loads(file.read_text())
    content["protocol"]["methods"]["ot_words"] = {"threshold": 0.5}
    content["scores"] += [{**row, "method": "ot_words", "value": row["value"] - 10} for row in content["scores"]]
    file.write_text(json.dumps(content))
    card = write_card(folder, [file])
    [entry] = ModelCard.load(card).data.eval_results
    assert (entry.metric_name, entry.metric_value) == ("aer, de-en, ot_words at layer 1, 1 seed", 21.4)
    text = card.read_text(encoding="utf-8")
    assert (
        "| aer 21.4 | lower |" in text
        and "layer=1)" in text
        and "`word_alignment` (links by `ot_words`): layer 1" in text
    )
    assert "aer 21.4 (lower is better)</summary>" in text and read_record(folder).results[0].content == content


def test_unknown_values_are_left_out(made_up_run, tmp_path):
    folder, _ = made_up_run("veco")
    alone = folder.rename(tmp_path / "alone")
    data = ModelCard.load(write_card(alone)).data
    for name in ("language", "license", "base_model", "datasets", "metrics", "eval_results"):
        assert getattr(data, name) is None
    assert not (alone / ".eval_results").exists()


def test_results_of_data_sets_of_the_hub_are_files_of_their_own(made_up_run):
    folder, files = made_up_run("veco", "classification", "tagging", "retrieval")

    def entries(task):
        content = yaml.safe_load((folder / ".eval_results" / f"{task}.yaml").read_text())
        return parse_eval_result_entries(content)

    write_card(folder, files)
    assert sorted(file.name for file in (folder / ".eval_results").iterdir()) == ["udpos.yaml", "xnli.yaml"]
    assert all(entry.source_url is None and entry.source_name is None for entry in entries("xnli"))  # without an id
    write_card(folder, repo="me/model")
    # one configuration with several languages: their average, then each
    assert [(entry.task_id, entry.value) for entry in entries("xnli")] == [
        ("XNLI", 62.2), ("XNLI.en", 81.06), ("XNLI.de", 72.25), ("XNLI.sw", 33.3)
    ]  # fmt: skip
    first = entries("xnli")[0]
    assert first.dataset_id == "google/xtreme" and first.dataset_revision is None and first.date == "2026-11-20"
    assert first.notes == "accuracy, en de sw, zero-shot, 2 seeds, 15030 rows"
    assert first.source_url == "https://huggingface.co/me/model/blob/main/provenance/results/xnli.json"
    english, german = entries("udpos")  # a configuration a language: no average
    assert (english.task_id, english.value, english.dataset_revision) == ("udpos.English", 95.51, None)
    assert german.dataset_revision == "5503434ddd753f426f4b38109466949a1217c2bb"


@pytest.mark.parametrize(
    ("one", "pair", "codes"),
    [
        ('["de_captions"]', '["fake", "zh-TW"]', ["en", "de", "zh"]),
        ('["pt-br"]', '["zh_Hant", "en"]', ["en", "pt", "zh"]),
    ],
)
def test_languages_are_codes_of_the_hub(made_up_run, one, pair, codes):
    folder, _ = made_up_run("xlm_align")
    run = folder.parent / "run.json"
    run.write_text(run.read_text().replace('["de"]', one).replace('["en", "de"]', pair))
    assert ModelCard.load(write_card(folder)).data.language == codes


def test_plain_names():
    paths = ("./runs/minilm", ".../x/model", "local/bible", "google/xtreme")
    assert [plain_name(path) for path in paths] == ["runs/minilm", "x", "bible", "google/xtreme"]
