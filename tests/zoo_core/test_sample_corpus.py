"""The sample corpus that ships: complete, aligned, labeled, and free of repeats."""

import unicodedata
from collections import Counter

import datasets
import pytest

LANGUAGES = ["en", "de", "fr", "es", "zh"]
TOPICS = ["food", "travel", "weather", "sport", "technology"]
PER_TOPIC = {"train": 48, "test": 12}


@pytest.fixture(scope="module")
def corpus(sample_corpus_dir) -> dict[str, datasets.DatasetDict]:
    """Every configuration, loaded as by a user."""
    return {language: datasets.load_dataset(str(sample_corpus_dir), language) for language in LANGUAGES}


def test_the_card_declares_exactly_the_five_languages(sample_corpus_dir):
    assert datasets.get_dataset_config_names(str(sample_corpus_dir)) == LANGUAGES


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_has_its_rows_in_order_and_clean(corpus, language):
    assert set(corpus[language]) == set(PER_TOPIC)
    texts = Counter(text.casefold() for split in PER_TOPIC for text in corpus[language][split]["text"])
    assert [text for text, times in texts.items() if times > 1] == []
    for split, count in PER_TOPIC.items():
        table, english = corpus[language][split], corpus["en"][split]
        assert table.features == datasets.Features({name: datasets.Value("string") for name in ("id", "text", "topic")})
        assert Counter(table["topic"]) == dict.fromkeys(TOPICS, count)
        assert table["topic"][: len(TOPICS)] == TOPICS  # the topics alternate: a short prefix holds them all
        assert table["id"][:] == english["id"][:] and table["topic"][:] == english["topic"][:]
        assert language == "en" or not set(table["text"]) & set(english["text"]), "a sentence was left untranslated"
        assert all(text == unicodedata.normalize("NFC", " ".join(text.split())) for text in table["text"])


def test_ids_occur_once(corpus):
    ids = {row["id"] for split in PER_TOPIC for row in corpus["en"][split]}
    assert ids == {f"{topic}-{number:03d}" for topic in TOPICS for number in range(1, 61)}
