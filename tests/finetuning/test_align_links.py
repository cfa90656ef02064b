"""`word-align`: input, output, resuming after a stop, and errors."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from finetuning.align import links as command
from finetuning.align.command import main
from finetuning.align.links import FORMATS, read_options
from modeling.word_alignment import WordAlignment
from tests.finetuning.conftest import PAIRS

SENTENCES = ("zwei Hunde spielen", "two dogs play in the snow")


@pytest.fixture
def pairs(tmp_path):
    """File of five pairs, two of them without words on a side."""
    path = tmp_path / "pairs.txt"
    path.write_text("\n".join(PAIRS) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def many(tmp_path):
    """File of 200 pairs of different lengths."""
    path = tmp_path / "many.txt"
    words = " ".join(PAIRS).replace("|||", "").split()
    lines = [f"{' '.join(words[n % 11 : n % 11 + 1 + n % 5])} ||| {' '.join(words[-1 - n % 7 :])}" for n in range(200)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def run(tiny_model, capsys):
    """run(*arguments) -> (stdout, stderr) of the command with the tiny model."""

    def with_model(*arguments, model=tiny_model):
        main(["--model", str(model), *map(str, arguments)])
        return capsys.readouterr()

    return with_model


@pytest.fixture
def refused(tiny_model, capsys):
    """refused(*arguments) -> the line with which the command refuses them."""

    def message(*arguments, model=tiny_model):
        with pytest.raises(SystemExit) as stopped:
            main(["--model", str(model), *map(str, arguments)])
        assert stopped.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    return message


@pytest.fixture
def stop_after(run, monkeypatch):
    """stop_after(line, *arguments): a run gets Ctrl-C in the block with this line."""

    def stopped(line, *arguments):
        align_block = command.align_block

        def interrupted(aligner, reader, rows, first, *others):
            if line in range(first, first + len(rows)):
                os.kill(os.getpid(), signal.SIGINT)
            return align_block(aligner, reader, rows, first, *others)

        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(command, "align_block", interrupted)
            run(*arguments)
        assert ended.value.code == 130

    return stopped


# ---- input and output


def test_links_are_those_of_the_aligner_in_any_format(run, tiny_model, pairs, tmp_path, monkeypatch):
    from transformers import AutoModel, AutoTokenizer

    from modeling.word_alignment import WordAligner

    model, tokenizer = AutoModel.from_pretrained(tiny_model).eval(), AutoTokenizer.from_pretrained(tiny_model)
    sides = [line.split("|||") if line else ("", "") for line in PAIRS]
    found = list(WordAligner(model, tokenizer).align(sides))
    expected = "".join(" ".join(f"{i}-{j}" for i, j in pair.links) + "\n" for pair in found)
    assert expected.count("\n") == 5 and expected.splitlines()[2:4] == ["", ""] and expected[0] != "\n"
    out, err = run(pairs)
    assert out == expected and "5 pairs" in err and re.search(r"\b2 .* without words", err)

    for name, side in (("x.de", 0), ("x.en", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side].strip()}\n" for pair in sides), encoding="utf-8")
    (tmp_path / "x.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in sides), encoding="utf-8")
    rows = [{"de": source.split(), "en": target} for source, target in sides]  # its text has no punctuation to split
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pd.DataFrame(sides, columns=["de", "en"]).to_csv(tmp_path / "x.csv", index=False)
    for given in (("x.de", "x.en"), ("x.tsv",), ("x.jsonl", "--columns=de en"), ("x.csv", "--columns=de en")):
        files = [tmp_path / name for name in given if not name.startswith("--")]
        columns = ["--columns", "de", "en"] if len(given) > len(files) else []
        assert run(*files, *columns).out == expected, given

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(pairs.read_bytes()))))
    assert run("--quiet") == (expected, "")


def test_probabilities_are_alike_in_pharaoh_and_json(run, pairs):
    written = [line.split() for line in run(pairs, "--probabilities").out.splitlines()]
    rows = [json.loads(line) for line in run(pairs, "--output-format", "json", "--probabilities").out.splitlines()]
    assert rows[1]["source"] == ["zwei", "Hunde", "spielen"] and rows[3]["target"] == []
    for row, links in zip(rows, written, strict=True):
        assert [f"{i}-{j}" for i, j in row["links"]] == [link.partition(":")[0] for link in links]
        # JSON has six digits, and rounding twice may give another fourth one
        assert row["probabilities"] == pytest.approx([float(link.partition(":")[2]) for link in links], abs=1e-4)


SPLIT = list("我们不相信。"), ["we", "don't", "believe", "it", "."]
AS_IT_IS = ["我们不相信。"], ["we", "don't", "believe", "it."]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("x.txt", (), AS_IT_IS),
        ("x.txt", ("--pre-split",), AS_IT_IS),
        ("x.txt", ("--split",), SPLIT),
        ("x.tsv", (), AS_IT_IS),
        ("x.csv", (), AS_IT_IS),
        ("x.jsonl", (), SPLIT),
        ("x.jsonl", ("--pre-split",), AS_IT_IS),
        (None, (), SPLIT),
        (None, ("--pre-split",), AS_IT_IS),
    ],
)
def test_words_of_lines_and_of_other_text(run, tmp_path, name, options, words):
    texts = "我们不相信。", "we don't believe it."
    line = {"x.txt": " ||| ".join(texts), "x.tsv": "\t".join(texts), "x.csv": f"source,target\n{','.join(texts)}"}
    path = tmp_path / (name or "none")
    path.write_text(line.get(name, json.dumps(dict(zip(("source", "target"), texts, strict=True)))) + "\n")
    out, err = run(*((path,) if name else texts), *options, "--output-format", "json")
    row = json.loads(out)
    assert (row["source"], row["target"]) == words
    offsets = row.get("target_offsets", [])
    assert [texts[1][begin:end] for begin, end in offsets] == (words[1] if words is SPLIT else [])
    assert ("--split splits" in err) == (words is AS_IT_IS and not options)


@pytest.mark.parametrize("name", FORMATS)
def test_record_keeps_words(name):
    words = ["10\u00a0000", "\u00a0", "a\u3000b", "New  York", '"', "&", "🏠"]
    form = FORMATS[name]
    found = WordAlignment(words, ["x"], [(i, 0) for i in range(7)], [0.9] * 7)
    text = form(0, found, True)
    if name == "pharaoh":
        assert text == " ".join(f"{i}-0:0.9000" for i in range(7)) + "\n"
    elif name == "json":
        assert json.loads(text)["source"] == words
    else:
        table = pd.read_csv(io.StringIO(text), sep="\t", keep_default_na=False)
        assert list(table["source_word"]) == words and set(table["sentence"]) == {0}
        assert list(csv.reader(io.StringIO(text), "excel-tab"))[1] == ["0", "0", "0", words[0], "x", "0.9000"]
        broken = form(3, WordAlignment(["a\tb\r\nc"], ["x"], [(0, 0)], [0.9]), True)
        assert broken.startswith("3\t0\t0\t") and broken.count("\n") == 1 and broken.count("\t") == 5


def test_long_pairs_are_split_and_counted(run, tmp_path):
    path = tmp_path / "long.txt"
    path.write_text(" ".join(["Mann Hund"] * 60) + " ||| " + " ".join(["man dog"] * 60) + "\nHund ||| dog\n")
    out, err = run(path)
    linked = {int(link.partition("-")[0]) for link in out.splitlines()[0].split()}
    assert max(linked) > 100  # the end of the sentence is not left out
    assert re.search(r"\b1 .* 64 positions", err)


def test_settings_reach_the_aligner(run, pairs):
    def links(*arguments):
        return run(pairs, "--probabilities", *arguments).out

    assert len(links("--method", "softmax", "--threshold", "0.9")) < len(links("--method", "softmax"))
    for arguments in (("--layer", "0"), ("--threshold", "0.3"), ("--link-all",)):
        assert links(*arguments) != links(), arguments
    out, err = run(pairs, "--batch-size", "1", "--precision", "bf16")
    assert out.count("\n") == 5 and "precision bf16" in err and "layer 1 of 2" in err


def test_links_do_not_depend_on_the_other_pairs(run, many, tmp_path):
    together = run(many, "--layer", "2").out.splitlines()
    for number, line in list(enumerate(many.read_text().splitlines()))[::40]:
        (tmp_path / "one.txt").write_text(f"{line}\n")
        assert run(tmp_path / "one.txt", "--layer", "2").out.splitlines() == [together[number]]


# ---- two sentences


def test_two_sentences_have_the_links_of_a_file_and_a_terminal_lists_words(run, tmp_path, monkeypatch):
    (tmp_path / "pairs.txt").write_text(" ||| ".join(SENTENCES) + "\n")
    assert run(*SENTENCES) == (run(tmp_path / "pairs.txt").out, "")
    plain = run(*SENTENCES, "--probabilities").out.split()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    listed = [row.split() for row in re.sub("\x1b\\[[0-9;]*m", "", run(*SENTENCES).out).splitlines()]
    assert [row[2] for row in listed if "–" not in row] == [f"{float(link.split(':')[1]):.2f}" for link in plain]
    assert run(*SENTENCES, "--output-format", "pharaoh", "--probabilities").out.split() == plain


@pytest.mark.parametrize(
    ("arguments", "method", "layer"),
    [
        ([], "ot_words", None),
        (["--layer", "0"], "ot_words", 0),
        (["--model", "microsoft/xlm-align-base"], "ot", 8),
        (["--model", "microsoft/xlm-align-base@main", "--method", "mutual"], "mutual", 8),
    ],
)
def test_rule_of_a_published_aligner(arguments, method, layer):
    rule = command.rule_of(read_options(arguments))
    assert (rule["method"], rule["layer"]) == (method, layer)


# ---- an output file, and resuming it


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("line", [70, 150])
def test_resume_after_a_stop_gives_the_same_file(run, stop_after, many, tmp_path, line, form):
    links, given = tmp_path / "links.txt", (many, "--batch-size", "1", "--output-format", form, "--probabilities")
    expected = run(*given).out
    stop_after(line, *given, "--output", links)
    assert expected.startswith(links.read_text()) and 0 < len(links.read_text()) < len(expected)
    with links.open("a") as file:
        file.write("64")  # a line that was not written to its end
    assert " of earlier runs" in run(*given, "--output", links, "--resume").err
    assert links.read_text() == expected
    run(*given, "--output", links, "--resume")
    assert links.read_text() == expected


def test_resume_without_a_file_starts_and_a_longer_input_is_finished(run, many, tmp_path):
    links, part = tmp_path / "links.txt", tmp_path / "many.txt"
    whole = many.read_text()
    part.write_text("".join(whole.splitlines(keepends=True)[:70]))
    resumed = (part, "--batch-size", "1", "--output", links, "--resume")
    run(*resumed)
    part.write_text(whole)
    assert "after 64 of" in run(*resumed).err
    assert links.read_text() == run(many, "--batch-size", "1").out


def test_resume_refuses_other_settings_model_and_input(run, refused, many, tmp_path, tiny_veco):
    links, other = tmp_path / "links.txt", tmp_path / "other.txt"
    run(many, "--output", links, "--batch-size", "1")
    before = links.read_bytes()
    other.write_text("a ||| b\n")
    assert "exists" in refused(many, "--output", links)
    resumed = ("--output", links, "--resume", "--batch-size", "1")
    assert "method: ot_words -> mutual" in refused(many, *resumed, "--method", "mutual")
    assert "link_all" in refused(many, *resumed, "--link-all")
    assert "model: sha256:" in refused(many, *resumed, model=tiny_veco)
    assert "input: " in refused(other, *resumed)
    links.write_bytes(before[:99])
    assert "bytes" in refused(many, *resumed)
    links.write_bytes(before)
    many.write_text("a ||| b\n")
    assert "only 1" in refused(many, *resumed)
    (tmp_path / "links.txt.word-align.json").unlink()
    assert "links.txt.word-align.json" in refused(many, *resumed)
    assert links.read_bytes() == before


def test_bad_lines_of_standard_input_leave_a_file_to_resume(run, refused, many, tmp_path, monkeypatch):
    links, lines = tmp_path / "links.txt", many.read_bytes().splitlines(keepends=True)

    def stdin(lines):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"".join(lines)))))

    given = ("--output", links, "--batch-size", "1")
    stdin([*lines[:180], b"no mark\n", *lines[181:]])
    assert "line 181" in refused(*given)
    assert links.read_text().count("\n") == 160  # five blocks of 32
    stdin(lines)
    run(*given, "--resume")
    assert links.read_text() == run(many).out


@pytest.mark.slow
def test_a_closed_pipe_ends_it_quietly(many, tiny_model):
    many.write_text(many.read_text() * 2)  # some 200 kB of JSON, more than a pipe holds
    arguments = ["--batch-size", "4", "--output-format", "json", "--probabilities", "--quiet"]
    start = [sys.executable, "-m", "finetuning.align", "--model", tiny_model, many, *arguments]
    with subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert b"links" in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


# ---- errors


def test_weights_that_are_not_finite_are_refused(zoo_model_dir, refused, pairs):
    folder = zoo_model_dir("xlm_align", copy=True)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "layer.1." in name)
    weights[name].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    for given in ([pairs], ["a b", "c d"]):  # over few tokens, attention with NaN may give finite states
        assert name.partition("encoder.")[2] in refused("--layer", "2", *given, model=folder)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("pairs.txt --resume", "--resume .* --output"),
        ("pairs.txt --split --pre-split", "--pre-split: .* --split"),
        ("pairs.txt --batch-size 0", "--batch-size: '0'"),
        ("pairs.txt --threshold 0.3 --method ot", "threshold.* 'ot'"),
        ("pairs.txt --layer 9", "9"),
        ("pairs.txt --device cuda:77", "--device cuda:77 "),
        ("pairs.txt --output none/x", "none"),
        ("pairs.txt --output pairs.txt", "--output"),
        ("pairs.txt --output x --html x.word-align.json", "--html"),
        ("bad.txt --output x", "bad.txt, line 2"),
        ("pairs.txt --html bad.txt", "bad.txt"),
        (["a b", "c d", "--format", "jsonl"], "--format"),
        (["das \udcff Haus", "c d"], "UTF-8"),
    ],
)
def test_refusals(refused, pairs, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_text("a ||| b\nno mark\n")
    assert re.search(f"error: .*{named}", refused(*(arguments.split() if isinstance(arguments, str) else arguments)))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["bad.txt", "pairs.txt"]
