"""`word-align`: input, output, resumed after a stop, in several processes as in one, and errors."""

import io
import json
import re
import shutil
import signal
import sys
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from crosslingual_zoo.finetuning.align import links as command
from crosslingual_zoo.finetuning.align.links import read_options
from tests.finetuning.conftest import PAIRS
from tests.finetuning.tasks import run_in


@pytest.fixture
def pairs(tmp_path):
    """File of five pairs, two of them without words on a side."""
    path = tmp_path / "pairs.txt"
    path.write_text("\n".join(PAIRS) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def many(tmp_path):
    """File of 200 pairs of different lengths."""
    words = " ".join(PAIRS).replace("|||", "").split()
    lines = []
    for number in range(200):
        begin = number % 11
        lines.append([*words[begin : begin + 1 + number % 5], "|||", *words[-1 - number % 7 :]])
    path = tmp_path / "many.txt"
    path.write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
    return path


SIDES = [tuple(line.split(" ||| ")) if line else ("", "") for line in PAIRS]


@pytest.fixture
def expected(aligner):
    """The links of PAIRS in Pharaoh's format, a line a pair."""
    lines = []
    for alignment in aligner().align(SIDES):
        lines.append(" ".join(f"{i}-{j}" for i, j in alignment.links) + "\n")
    assert lines[0] != "\n"
    assert lines[2:4] == ["\n", "\n"]
    return "".join(lines)


def test_links_are_those_of_the_aligner(word_align, expected, pairs):
    out, err = word_align(pairs)
    assert out == expected
    assert "5 pairs" in err
    assert re.search(r"\b2 .* without words", err)


def test_links_of_any_format(word_align, expected, pairs, tmp_path, monkeypatch):
    frame = pd.DataFrame(SIDES, columns=["de", "en"])
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_csv(tmp_path / "x.tsv", index=False, header=False, sep="\t")
    for name in frame:
        (tmp_path / f"x.{name}").write_text("\n".join(frame[name]) + "\n", encoding="utf-8")
    frame["de"] = frame["de"].str.split()
    frame.to_json(tmp_path / "x.jsonl", orient="records", lines=True)  # its text has no punctuation to split
    monkeypatch.chdir(tmp_path)
    for arguments in ("x.de x.en", "x.tsv", "x.jsonl --columns de en", "x.csv --columns de en"):
        assert word_align(*arguments.split()).out == expected, arguments

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(pairs.read_bytes()))))
    assert word_align("-", "--quiet") == (expected, "")


@pytest.mark.parametrize(
    ("arguments", "method", "layer"),
    [
        ("", "ot_words", None),
        ("--layer 0", "ot_words", 0),
        ("--model microsoft/xlm-align-base", "ot", 8),
        ("--model microsoft/xlm-align-base@main --method mutual", "mutual", 8),
    ],
)
def test_rule_of_a_published_aligner(arguments, method, layer):
    rule = command.rule_of(read_options(arguments.split())[0])
    assert (rule["method"], rule["layer"]) == (method, layer)


def test_links_refuses_weights_that_are_not_finite(zoo_model_dir, align_refused, pairs):
    folder = zoo_model_dir("xlm_align", copy=True)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "layer.1." in name)
    weights[name].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for arguments in ([pairs], ["a b", "c d"]):  # over few tokens, attention with NaN may give finite states
        assert name.partition("encoder.")[2] in align_refused("--layer", "2", *arguments, model=folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ("my data/a.de", "my data/a.en"),
        ("my news.de.gz", "my news.en.gz"),
        ("my data/train de.txt", "my data/train en.txt"),
        ("my pairs.txt", "other.tsv"),
        ("../my data/de", "../my data/en"),
        ("de data/news.de", "en data/news.en"),
        ("my data/a.zh-CN", "a.pt_BR"),
    ],
)
def test_as_sentences_takes_no_paths_that_do_not_exist(arguments):
    assert command.as_sentences(list(arguments)) is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("Tea and/or coffee", "Tee und/oder Kaffee"),
        ("and/or", "und / oder"),
        ("a half: 1/2", "ein halb: 1/2"),
        ("at 100 km/h", "at 100 km/h"),
        ("Visit www.example.com", "Besuche www.example.com"),
        ("See http://a.b/c.txt", "Siehe http://a.b/c.txt"),
        ("We met on 12/31/2024", "Wir trafen uns am 31.12.2024"),
        ("apples etc.", "Äpfel usw."),
        ("I like Node.js", "Ich mag Node.js"),
        ("Version 3.5", "Version 3.6"),
        ("Read /etc/hosts", "Lies die Datei /etc/hosts"),
        ("use TCP/IP", "nutze TCP/IP"),
        ("Hello", "Guten Tag"),
    ],
)
def test_as_sentences_with_dots_and_slashes(arguments):
    assert command.as_sentences(list(arguments)) == arguments


def test_links_probabilities_are_alike_in_every_format(word_align, pairs):
    options = (pairs, "--probabilities", "--output-format")
    lines = word_align(*options, "pharaoh").out.splitlines()
    rows = list(map(json.loads, word_align(*options, "json").out.splitlines()))
    assert (rows[1]["source"], rows[3]["target"]) == (["zwei", "Hunde", "spielen"], [])
    for row, line in zip(rows, lines, strict=True):
        written = np.array(re.findall(r"(\d+)-(\d+):(\S+)", line), float).reshape(-1, 3)
        assert row["links"] == written[:, :2].tolist()
        # JSON has six digits, and rounding twice may give another fourth one
        assert row["probabilities"] == pytest.approx(written[:, 2], abs=1e-4)


CHINESE = "我们不相信。"
ENGLISH = "we don't believe it."
JSON_ROW = json.dumps({"source": CHINESE, "target": ENGLISH})


@pytest.mark.parametrize(
    ("name", "content", "options", "is_split"),
    [
        ("x.txt", f"{CHINESE} ||| {ENGLISH}\n", (), False),
        ("x.txt", f"{CHINESE} ||| {ENGLISH}\n", ("--split",), True),
        ("x.csv", f"source,target\n{CHINESE},{ENGLISH}\n", (), False),
        ("x.jsonl", JSON_ROW, (), True),
        ("x.jsonl", JSON_ROW, ("--pre-split",), False),
        (None, None, (CHINESE, ENGLISH), True),
    ],
)
def test_links_count_words_of_lines_and_of_other_text(word_align, tmp_path, name, content, options, is_split):
    arguments = [*options, "--output-format", "json"]
    if name:
        (tmp_path / name).write_text(content, encoding="utf-8")
        arguments.append(tmp_path / name)
    row = json.loads(word_align(*arguments).out)
    assert row["source"] == (list(CHINESE) if is_split else [CHINESE])
    assert ("target_offsets" in row) == is_split
    if is_split:
        assert row["target"] == ["we", "don't", "believe", "it", "."]
        assert [ENGLISH[begin:end] for begin, end in row["target_offsets"]] == row["target"]
    else:
        assert row["target"] == ENGLISH.split()


@pytest.mark.parametrize("command", ["raw.txt", "score raw.txt --gold gold.txt"], ids=["links", "score"])
def test_split_is_named_for_running_text(word_align, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw.txt").write_text("das Haus, hier. ||| the house here\na b ||| c d\n", encoding="utf-8")
    (tmp_path / "gold.txt").write_text("0-0\n0-0\n")
    assert "2 of 10 words" in word_align(*command.split()).err
    assert re.search("words of 1 pairs|1 of", word_align(*command.split(), "--split").err)
    (tmp_path / "raw.txt").write_text("das Haus , hier . ||| the house here\na b ||| c d\n", encoding="utf-8")
    assert "--split" not in word_align(*command.split()).err


def test_links_depend_on_every_setting(word_align, pairs):
    settings = ("", "--layer 0", "--threshold 0.9", "--threshold 0.9 --link-all", "--method softmax")
    assert len({word_align(pairs, "--probabilities", *options.split()).out for options in settings}) == len(settings)


def test_resume_twice_gives_the_links_of_one_run(word_align, many, tmp_path):
    lines = many.read_text().splitlines(True)
    for count in (70, 150, 200):
        many.write_text("".join(lines[:count]))
        word_align(many, "--output", tmp_path / "links.txt", "--batch-size", "1", "--resume")
    word_align(many, "--output", tmp_path / "whole.txt", "--batch-size", "1")
    assert (tmp_path / "links.txt").read_bytes() == (tmp_path / "whole.txt").read_bytes()


def test_resume_of_a_finished_run_loads_no_model(word_align, many, tmp_path, monkeypatch):
    links = tmp_path / "links.txt"
    resumed = (many, "--output", links, "--resume")
    word_align(many, "--output", links)
    whole = links.read_bytes()
    load = Mock(wraps=command.load_aligner)
    monkeypatch.setattr(command, "load_aligner", load)
    word_align(*resumed)
    assert load.call_count == 0
    assert links.read_bytes() == whole
    # not finished: a cut file, another rule, and more pairs
    links.write_bytes(whole[:-5])
    word_align(*resumed)
    assert load.call_count == 1
    assert links.read_bytes() == whole
    with pytest.raises(SystemExit):
        word_align(*resumed, "--threshold", "0.3")
    with many.open("a") as file:
        file.write("a ||| b\n")
    word_align(*resumed)
    assert load.call_count == 3
    assert links.read_bytes().startswith(whole)
    assert links.read_bytes().count(b"\n") == 201


def test_resume_compares_the_model_of_a_finished_run(
    word_align, align_refused, change_weights, tiny_model, many, tmp_path
):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    written = (many, "--output", tmp_path / "links.txt")
    word_align(*written, model=model)
    change_weights(model)
    assert "model: " in align_refused(*written, "--resume", model=model)


def test_resume_refuses_other_settings_model_and_input(word_align, align_refused, many, tmp_path, tiny_veco):
    links = tmp_path / "links.txt"
    resumed = ("--output", links, "--batch-size", "1", "--resume")
    word_align(many, *resumed[:-1])
    before = links.read_bytes()
    assert "exists" in align_refused(many, "--output", links)
    assert "method: ot_words -> mutual" in align_refused(many, *resumed, "--method", "mutual")
    assert "model: sha256:" in align_refused(many, *resumed, model=tiny_veco)
    redirected = tmp_path / "redirected.txt"
    redirected.write_text("0-0\n")
    assert "redirected.txt exists" in align_refused(many, "--output", redirected, "--resume")
    other = tmp_path / "other.txt"
    for path, named in ((other, "input: "), (many, "only 1")):
        path.write_text("a ||| b\n")
        assert named in align_refused(path, *resumed)
    assert links.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("no/where.de no/where.en --output x", "no/where.de"),
        ("pairs.txt --resume", "--output"),
        ("pairs.txt --threshold 0.3 --method ot", "threshold"),
        ("pairs.txt --layer 9", "9"),
        ("pairs.txt --output pairs.txt", "--output"),
        ("bad.txt --output x", "bad.txt, line 2"),
        ("pairs.txt --html bad.txt", "bad.txt"),
        ("pairs.txt --languages en de", "--languages"),
        ("score pairs.txt --gold bad.txt --sweep-layers --layer 1", "--layer"),
        ("score pairs.txt --gold bad.txt --links bad.txt", "--model"),
    ],
)
def test_links_refuses(align_refused, pairs, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_text("a ||| b\nno mark\n")
    assert named in align_refused(*arguments.split())
    assert sorted(item.name for item in tmp_path.iterdir()) == ["bad.txt", "pairs.txt"]


# argv: JSON of the arguments of one command after another, and of the row at which the process gets a signal, if any
PROGRAM = """
import json, os, signal, sys
from crosslingual_zoo.finetuning.align import links
from crosslingual_zoo.finetuning.align.command import main
align_block = links.align_block
def signalled(*given):
    rows, first = given[-2:]
    if row is not None and row in range(first, first + len(rows)):
        os.kill(os.getpid(), number)
    return align_block(*given)
links.align_block = signalled
for arguments, row, number in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        sys.stdout.flush()
        os.write(1, f"ended with {ended.code}\\n".encode())  # one write: lines of two processes do not mix
"""


@pytest.mark.slow
def test_links_in_processes_and_after_kills_are_those_of_one(many, tiny_model, tmp_path):
    def links(name, *more, at=None, number=0):
        form = ["--probabilities", "--batch-size", "1"]
        return [[str(many), "--model", str(tiny_model), "--output", str(tmp_path / name), *form, *more], at, number]

    def run(processes, *commands):
        codes, printed = run_in(processes, PROGRAM, commands, tmp_path)
        assert codes == [0] * processes, printed
        return printed

    run(1, links("one"))
    expected = (tmp_path / "one").read_bytes()
    assert expected.count(b"\n") == 200

    page = tmp_path / "page.html"
    printed = run(2, links("two", "--html", str(page)), links("stopped", at=70, number=signal.SIGINT))
    assert (tmp_path / "two").read_bytes() == expected
    assert page.exists()
    assert printed.count("ended with 130") == 2
    assert expected.startswith((tmp_path / "stopped").read_bytes())

    # both end: one is killed, and the other one waits for it
    codes, printed = run_in(2, PROGRAM, [links("killed", at=170, number=signal.SIGKILL)], tmp_path)
    assert -signal.SIGKILL in codes, printed
    assert (tmp_path / "killed").read_bytes().count(b"\n") == 128
    with (tmp_path / "killed").open("ab") as file:
        file.write(b"64")  # a line that was not written to its end
    for name in ("killed", "stopped"):
        for ending in ("", ".word-align.json"):
            shutil.copy(tmp_path / f"{name}{ending}", tmp_path / f"{name} 3{ending}")
    for processes, ending in ((1, ""), (3, " 3")):
        resumed = [links(f"{name}{ending}", "--resume") for name in ("killed", "stopped")]
        printed = run(processes, *resumed, links(f"new{ending}"))
        assert printed.count(" of earlier runs") == 2, printed
        for name in ("killed", "stopped", "new"):
            assert (tmp_path / f"{name}{ending}").read_bytes() == expected, (name, processes)
