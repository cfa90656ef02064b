"""Checks of JSON before pyarrow reads it: nesting and sizes, also of gzip files and across chunks."""

import gzip

import pytest

from zoo_core import json_files
from zoo_core.input_lines import open_input
from zoo_core.json_files import DEEPEST, check_json, is_array
from zoo_core.tables import Table, load_table


def nested(levels: int, form: str = "list") -> str:
    begin, end = ("[", "]") if form == "list" else ('{"a":', "}")
    return begin * levels + "1" + end * levels


@pytest.fixture
def written(tmp_path):
    """`written(name, text)`: a file, compressed if its name ends in .gz."""

    def write(name: str, text: str):
        packed = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
        (tmp_path / name).write_bytes(packed)
        return tmp_path / name

    return write


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json"])
@pytest.mark.parametrize("form", ["list", "object"])
def test_deep_nesting_is_refused_with_its_place(written, name, form):
    good, bad = (f'{{"text": "x", "y": {nested(levels, form)}}}' for levels in (DEEPEST - 2, 100_000))
    for rows, place in (([good, good], None), ([good, bad], 2)):
        text = f"[{f',{chr(10)}'.join(rows)}]" if name == "a.json" else "\n".join(rows) + "\n"
        file = written(name, text)
        if place is None:
            check_json(file)
        else:
            with pytest.raises(ValueError, match=f"{name}, line {place}: "):
                check_json(file)
            with pytest.raises(ValueError, match=f"{name}, line {place}: "):
                load_table(Table(str(file), format="json"))


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 1000])
def test_brackets_in_strings_do_not_nest_however_the_file_is_cut(written, monkeypatch, chunk):
    text = '[{"smile": "' + ":-[ {" * 50 + '", "quote": "\\\\\\" [[[" , "path": "C:\\\\"}, {"é": [[]]}]'
    monkeypatch.setattr(json_files, "LONGEST_LINE", chunk)
    check_json(written("a.json", text))
    with pytest.raises(ValueError, match="nested"):
        check_json(written("b.json", text[:-1] + f", {nested(DEEPEST)}]"))


def test_lines_that_nest_only_together_are_refused(written):
    """pyarrow reads values across lines."""
    with pytest.raises(ValueError, match=f"line {DEEPEST + 1}: "):
        check_json(written("a.jsonl", '{"b":\n' * 3000 + "1" + "\n}" * 3000))


@pytest.mark.parametrize(
    "line", ['{"s": "}", "b":\n', '{"s": "}", "b": {"c": 1}\n, "d":\n', '{"x": {"y": 1}\n, "z":\n{}, "w":\n']
)
def test_brackets_in_strings_hide_no_nesting_across_lines(written, line):
    with pytest.raises(ValueError, match="nested"):
        check_json(written("a.jsonl", line * 3000))


@pytest.mark.parametrize(
    ("start", "expected"), [("[1]", True), ('{"a": [1]}', False), ("", False), ("\ufeff \n[{}]", True), (" {}", False)]
)
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_an_array_is_told_by_its_beginning(written, name, start, expected):
    with open_input(written(name, start)) as stream:
        assert is_array(stream) == expected and stream.read() == start.encode()


def test_lines_and_arrays_have_bounds(written, monkeypatch):
    bomb = written("a.jsonl.gz", '{"text": "' + "x" * 2**25 + '"}\n')
    with pytest.raises(ValueError, match="a.jsonl.gz, line 1: "):
        check_json(bomb)
    monkeypatch.setattr(json_files, "LARGEST_ARRAY", 1000)
    with pytest.raises(ValueError, match="a.json is an array"):
        check_json(written("a.json", "[" + '{"a": 1},' * 200 + "{}]"))


def test_of_a_stream_the_beginning_is_checked(written, monkeypatch):
    monkeypatch.setattr(json_files, "LONGEST_LINE", 100)
    file = written("a.jsonl", '{"a": 1}\n' * 20 + nested(99) + "\n")
    check_json(file, is_streamed=True)
    with pytest.raises(ValueError, match="line 21"):
        check_json(file)
