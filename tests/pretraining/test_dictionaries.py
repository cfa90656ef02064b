"""Bilingual dictionaries: the format, which side is which, and what is skipped."""

import pytest

from pretraining.recipe import Dictionary
from pretraining.start.dictionaries import read_dictionary


def test_lines_are_read_in_their_order(files):
    path = files.lines("de-en.txt", ["\ufeffhaus\thouse", "haus home", "Haus\tbuilding", "regen\t rain "])
    read = read_dictionary(Dictionary("de", path))
    assert read.as_written == {"haus": ["house", "home"], "Haus": ["building"], "regen": ["rain"]}
    assert read.lower_cased == {"haus": ["house", "home", "building"], "regen": ["rain"]}
    assert (read.language, read.path, read.lines, read.pairs, dict(read.skipped)) == ("de", path, 4, 4, {})


def test_what_is_no_pair_of_words_is_skipped_and_counted(files):
    lines = [
        "haus\thouse",
        "",
        "  ",
        "\thouse",
        "haus\t",
        "haus",
        "haus\thouse\tnoun",
        "haus house noun",
        "onkel\tpaternal uncle",
        "zum beispiel\texample",
        "haus house",
    ]
    read = read_dictionary(Dictionary("de", files.lines("de-en.txt", lines)))
    assert read.as_written == {"haus": ["house"]} and (read.lines, read.pairs) == (11, 1)
    assert read.skipped == {
        "blank line": 2,
        "empty side": 2,
        "one word alone": 1,
        "more than two columns": 2,
        "several words on a side": 2,
        "repeated pair": 1,
    }


def test_empty_columns_at_the_end_are_none(files):
    lines = ["sonne\tsun\t", "mond\tmoon\t \t", "haus\t\t", "\thouse\t", "tal\t\tvalley"]
    read = read_dictionary(Dictionary("de", files.lines("de-en.txt", lines)))
    assert read.as_written == {"sonne": ["sun"], "mond": ["moon"]}
    assert read.skipped == {"empty side": 2, "more than two columns": 1}


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("en-de.txt", None),
        ("en-de.0-5000.txt", None),
        ("en-DE.txt", None),
        ("words.txt", "translation"),
        ("de-en.txt", "translation"),
    ],
)
def test_the_translation_may_stand_first(files, name, first):
    path = files.lines(name, ["house\thaus", "home\thaus"])
    assert read_dictionary(Dictionary("de", path, first)).as_written == {"haus": ["house", "home"]}


@pytest.mark.parametrize("name", ["words.txt", "en-fr.txt", "de-de.txt", "de.txt", "en-nde.txt"])
def test_a_name_that_does_not_say_the_side_is_an_error(files, name):
    path = files.lines(name, ["house\thaus"])
    with pytest.raises(ValueError, match="Set `first`"):
        read_dictionary(Dictionary("de", path))


def test_look_up_goes_from_the_spelling_to_the_normalized_form(files):
    path = files.lines("fr-en.txt", ["thé\ttea", "été\tsummer", "Paris\tParis", "cafe\tcafe", "oeuf\tegg"])
    read = read_dictionary(Dictionary("fr", path))
    assert list(read.look_up("Été")) == [["summer"]]
    assert list(read.look_up("PARIS")) == [["Paris"]] * 2  # lower-cased and normalized
    assert list(read.look_up("café")) == [["cafe"]]
    assert list(read.look_up("the")) == []  # the English word is not the French one without its accent


def test_limit_and_hub_root(files, tmp_path):
    (tmp_path / "words").mkdir()
    files.lines("words/de-en.txt", ["haus\thouse", "", "regen\train"])
    read = read_dictionary(Dictionary("de", "words/de-en.txt", limit=2), str(tmp_path))
    assert (read.lines, read.pairs, dict(read.skipped)) == (2, 1, {"blank line": 1})


def test_errors(files, tmp_path):
    path = files.lines("de-en.txt", ["haus", "a b c"])
    for dictionary, named in (
        (Dictionary("de", "nowhere/de-en.txt"), "nowhere/de-en.txt is no file"),
        (Dictionary("de", path), "1 one word alone, 1 more than two columns"),
        (Dictionary("de", files.lines("empty-de.txt", [])), "it is empty"),
        (Dictionary("de", path, limit=0), "limit is 0"),
    ):
        with pytest.raises(ValueError, match=named):
            read_dictionary(dictionary, str(tmp_path))
    (tmp_path / "de-en.txt").write_bytes(b"haus\thouse\nt\xfcr\tdoor\n")
    with pytest.raises(ValueError, match="line 2: byte 0xfc"):
        read_dictionary(Dictionary("de", path))


@pytest.mark.parametrize("language", ["de", "fr", "es", "zh"])
def test_the_sample_dictionaries_are_clean_and_of_the_sample_corpus(sample_corpus_dir, language):
    import datasets

    read = read_dictionary(Dictionary(language, str(sample_corpus_dir / "dictionaries" / f"en-{language}.txt")))
    assert not read.skipped and read.pairs > 200
    splits = datasets.load_dataset(str(sample_corpus_dir), language)
    text = " ".join(sentence.lower() for split in splits.values() for sentence in split["text"])
    known = sum(word in text for word in read.as_written)
    assert known > 0.8 * len(read.as_written)
