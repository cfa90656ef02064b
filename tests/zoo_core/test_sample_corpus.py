"""The sample corpus that ships: complete, aligned, labeled, and free of repeats."""

import re
import unicodedata
from collections import Counter

import datasets
import pytest

LANGUAGES = ["en", "de", "fr", "es", "zh"]
TOPICS = ["food", "travel", "weather", "sport", "technology"]
PER_TOPIC = {"train": 48, "test": 12}


@pytest.fixture(scope="module")
def corpus(sample_corpus_dir) -> dict[str, datasets.DatasetDict]:
    """Every configuration, loaded as a user would load it."""
    return {language: datasets.load_dataset(str(sample_corpus_dir), language) for language in LANGUAGES}


def test_the_card_declares_exactly_the_five_languages(sample_corpus_dir):
    assert datasets.get_dataset_config_names(str(sample_corpus_dir)) == LANGUAGES


@pytest.mark.parametrize("split", PER_TOPIC)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_split_has_its_rows_columns_and_topics(corpus, language, split):
    assert set(corpus[language]) == set(PER_TOPIC)
    table = corpus[language][split]
    assert table.features == datasets.Features({name: datasets.Value("string") for name in ("id", "text", "topic")})
    assert Counter(table["topic"]) == dict.fromkeys(TOPICS, PER_TOPIC[split])
    assert table["topic"][: len(TOPICS)] == TOPICS  # the topics alternate: a short prefix holds them all


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_ids_and_topics_are_those_of_english_in_the_same_order(corpus, language):
    for split in PER_TOPIC:
        english, other = corpus["en"][split], corpus[language][split]
        assert other["id"][:] == english["id"][:]
        assert other["topic"][:] == english["topic"][:]
        assert not set(other["text"]) & set(english["text"]), "a sentence was left untranslated"


def test_an_id_names_its_topic_and_occurs_once(corpus):
    rows = [row for split in PER_TOPIC for row in corpus["en"][split]]
    assert {row["id"] for row in rows} == {f"{topic}-{number:03d}" for topic in TOPICS for number in range(1, 61)}
    assert all(row["id"].split("-")[0] == row["topic"] for row in rows)


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_sentence_occurs_twice_in_train_and_test_together(corpus, language):
    texts = Counter(text.casefold() for split in PER_TOPIC for text in corpus[language][split]["text"])
    assert [text for text, times in texts.items() if times > 1] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_text_is_clean_and_in_the_script_of_its_language(corpus, language):
    for text in (text for split in PER_TOPIC for text in corpus[language][split]["text"]):
        assert text == unicodedata.normalize("NFC", " ".join(text.split()))
        assert text.endswith(("。", "？") if language == "zh" else (".", "?"))
        if language == "zh":
            assert not re.search(r"[A-Za-z\s]", text)
        else:
            assert not re.search(r"[\u2e80-\uffff]", text)
        if language == "en":
            assert 6 <= len(text.split()) <= 16


def test_the_files_hold_letters_and_not_escapes(sample_corpus_dir):
    files = sorted(sample_corpus_dir.glob("*/*.jsonl"))
    assert len(files) == len(LANGUAGES) * len(PER_TOPIC)
    assert not [file for file in files if "\\u" in file.read_text(encoding="utf-8")]
