"""Bilingual dictionaries: the format, the order of the sides, and skipped lines."""

import pytest

from pretraining.recipe import Dictionary
from pretraining.start.dictionaries import read_dictionary


def test_lines_are_read_in_their_order(files):
    path = files.lines("de-en.txt", ["\ufeffhaus\thouse", "haus home", "Haus\tbuilding", "regen\t rain "])
    read = read_dictionary(Dictionary("de", path))
    assert read.as_written == {"haus": ["house", "home"], "Haus": ["building"], "regen": ["rain"]}
    assert read.lower_cased == {"haus": ["house", "home", "building"], "regen": ["rain"]}
    assert (read.language, read.path, read.lines, read.pairs, dict(read.skipped)) == ("de", path, 4, 4, {})


def test_look_up_goes_from_the_spelling_to_the_normalized_form(files):
    path = files.lines("fr-en.txt", ["thé\ttea", "été\tsummer", "Paris\tParis", "cafe\tcafe", "oeuf\tegg"])
    read = read_dictionary(Dictionary("fr", path))
    assert list(read.look_up("Été")) == [["summer"]]
    assert list(read.look_up("PARIS")) == [["Paris"]] * 2  # lower-cased and normalized
    assert list(read.look_up("café")) == [["cafe"]]
    assert list(read.look_up("the")) == []  # the English word is not the French one without its accent


def test_what_is_no_pair_of_words_is_skipped_and_counted(files):
    lines = ["haus\thouse", "", "  ", "\thouse", "haus\t", "haus", "haus\thouse\tnoun", "haus house noun"]
    lines += ["onkel\tpaternal uncle", "zum beispiel\texample", "haus house", "sonne\tsun\t", "tal\t\tvalley"]
    read = read_dictionary(Dictionary("de", files.lines("de-en.txt", lines)))
    assert read.as_written == {"haus": ["house"], "sonne": ["sun"]} and (read.lines, read.pairs) == (13, 2)
    counts = {"blank line": 2, "empty side": 2, "one word alone": 1, "more than two columns": 3}
    assert read.skipped == counts | {"several words on a side": 2, "repeated pair": 1}


def test_which_side_is_first(files):
    """By `first`, or by the name of the file."""
    lines = ["house\thaus", "home\thaus"]
    sides = {"en-de.txt": None, "en-de.0-5000.txt": None, "en-DE.txt": None}
    for name, first in (sides | {"words.txt": "translation", "de-en.txt": "translation"}).items():
        read = read_dictionary(Dictionary("de", files.lines(name, lines), first))
        assert read.as_written == {"haus": ["house", "home"]}
    for name in ("words.txt", "en-fr.txt", "de-de.txt", "de.txt", "en-nde.txt"):
        with pytest.raises(ValueError, match="`first`"):
            read_dictionary(Dictionary("de", files.lines(name, lines)))


def test_a_dictionary_below_hub_root_and_errors(files, tmp_path):
    files.lines("de-en.txt", ["haus\thouse", "", "regen\train"])
    read = read_dictionary(Dictionary("de", "de-en.txt"), str(tmp_path))
    assert (read.lines, read.pairs, dict(read.skipped)) == (3, 2, {"blank line": 1})
    bad, empty = files.lines("de-en.bad.txt", ["haus", "a b c"]), files.lines("de-en.empty.txt", [])
    (tmp_path / "de-en.bytes.txt").write_bytes(b"haus\thouse\nt\xfcr\tdoor\n")
    for dictionary, named in (
        (Dictionary("de", "nowhere/de-en.txt"), "nowhere/de-en.txt"),
        (Dictionary("de", bad), bad),
        (Dictionary("de", empty), empty),
        (Dictionary("de", str(tmp_path / "de-en.bytes.txt")), "line 2"),
    ):
        with pytest.raises(ValueError, match=named):
            read_dictionary(dictionary, str(tmp_path))
