"""Bilingual dictionaries: the format, the order of the sides, and skipped lines."""

from crosslingual_zoo.pretraining.recipe import Dictionary
from crosslingual_zoo.pretraining.start.vocabulary_matching import read_dictionary


def test_read_dictionary_skips_what_is_no_pair_of_words(files):
    lines = ["\ufeffhaus\thouse", "haus home", "Haus\tbuilding", "regen\t rain ", "", "  ", "\thouse", "haus\t", "haus"]
    lines += ["haus\thouse\tnoun", "haus house noun", "onkel\tpaternal uncle", "zum beispiel\texample", "haus house"]
    lines += ["sonne\tsun\t", "tal\t\tvalley"]
    read = read_dictionary(Dictionary("de", files.lines("de-en.txt", lines)))
    assert read.as_written == {"haus": ["house", "home"], "Haus": ["building"], "regen": ["rain"], "sonne": ["sun"]}
    assert read.lower_cased == {"haus": ["house", "home", "building"], "regen": ["rain"], "sonne": ["sun"]}
    assert read.pairs == 5
    assert read.skipped == 11


def test_look_up_goes_from_the_spelling_to_the_normalized_form(files):
    path = files.lines("fr-en.txt", ["thé\ttea", "été\tsummer", "Paris\tParis", "cafe\tcafe"])
    read = read_dictionary(Dictionary("fr", path))
    assert list(read.look_up("Été")) == ["summer"]
    assert list(read.look_up("café")) == ["cafe"]
    assert list(read.look_up("the")) == []  # the English word is not the French one without its accent


def test_read_dictionary_finds_the_order_of_the_sides(files, tmp_path):
    """By `first`, or by the name of the file, which may be below hub_root."""
    lines = ["house\thaus", "home\thaus"]
    by_name = {"en-de.txt": None, "en-de.0-5000.txt": None, "en-DE.txt": None}
    by_first = {"words.txt": "translation", "de-en.txt": "translation"}
    for name, first in (by_name | by_first).items():
        files.lines(name, lines)
        read = read_dictionary(Dictionary("de", name, first), str(tmp_path))
        assert read.as_written == {"haus": ["house", "home"]}
