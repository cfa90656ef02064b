"""The sample corpus that ships: complete, aligned, labeled, and free of repeats."""

import unicodedata
from collections import Counter

import datasets
import pytest

LANGUAGES = ["en", "de", "fr", "es", "zh"]
TOPICS = ["food", "travel", "weather", "sport", "technology"]
PER_TOPIC = {"train": 48, "test": 12}


@pytest.mark.parametrize("language", LANGUAGES)
def test_sample_corpus_has_its_rows_in_order_and_clean(sample_corpus_dir, language):
    assert datasets.get_dataset_config_names(str(sample_corpus_dir)) == LANGUAGES
    corpus, english = (datasets.load_dataset(str(sample_corpus_dir), name) for name in (language, "en"))
    texts = Counter(text.casefold() for split in PER_TOPIC for text in corpus[split]["text"])
    assert set(corpus) == set(PER_TOPIC) and max(texts.values()) == 1
    ids = [name for split in PER_TOPIC for name in english[split]["id"]]
    assert sorted(ids) == sorted(f"{topic}-{number:03d}" for topic in TOPICS for number in range(1, 61))
    for split, count in PER_TOPIC.items():
        table, others = corpus[split], english[split]
        assert table.features == datasets.Features({name: datasets.Value("string") for name in ("id", "text", "topic")})
        assert Counter(table["topic"]) == dict.fromkeys(TOPICS, count)
        assert table["topic"][: len(TOPICS)] == TOPICS  # the topics alternate: a short prefix holds them all
        assert table["id"][:] == others["id"][:] and table["topic"][:] == others["topic"][:]
        assert language == "en" or not set(table["text"]) & set(others["text"]), "a sentence was left untranslated"
        assert all(text == unicodedata.normalize("NFC", " ".join(text.split())) for text in table["text"])
