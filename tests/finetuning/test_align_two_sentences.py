"""`word-align "..." "..."`: two sentences, the default model, the terminal, and the browser."""

import re
import sys

import pytest

from finetuning.align.command import main
from finetuning.align.links import read_options
from finetuning.align.options import DEFAULT_MODEL
from finetuning.align.page import MARKER
from finetuning.align.terminal import draw
from modeling.word_alignment import WordAlignment

SENTENCES = ("zwei Hunde spielen", "two dogs play in the snow")


@pytest.fixture
def run(tiny_model, capsys):
    """run(*arguments) -> (stdout, stderr) of the command with two sentences and the tiny model."""

    def with_sentences(*arguments):
        main([*SENTENCES, "--model", str(tiny_model), *map(str, arguments)])
        return capsys.readouterr()

    return with_sentences


@pytest.fixture
def terminal(monkeypatch):
    """terminal(width): stdout is one."""

    def of_width(width):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")

    return of_width


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code == 2
    return capsys.readouterr().err


# ---- two sentences


def test_two_sentences_have_the_links_of_a_file_and_nothing_else_is_said(run, tiny_model, tmp_path, capsys):
    (tmp_path / "pairs.txt").write_text(" ||| ".join(SENTENCES) + "\n")
    out, err = run()
    main([str(tmp_path / "pairs.txt"), "--model", str(tiny_model)])
    assert out == capsys.readouterr().out and out.strip()
    assert err == ""
    assert '"links"' in run("--output-format", "json").out


@pytest.mark.parametrize("names", [("corpus.de", "corpus.en"), ("a b.txt", "here.txt")])
def test_files_that_are_missing_are_no_sentences(names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").write_text("a\n")
    assert f"Input file not found: {names[0]}" in refused(capsys, *names)


def test_sentences_are_no_jsonl(capsys):
    assert "--format" in refused(capsys, *SENTENCES, "--format", "jsonl")
    assert "--columns" in refused(capsys, *SENTENCES, "--columns", "a", "b")
    assert "UTF-8" in refused(capsys, "das \udcff Haus", SENTENCES[1])
    assert "UTF-8" in refused(capsys, SENTENCES[0], "\udce4")


# ---- the terminal


def test_a_terminal_lists_words_unless_a_format_is_asked_for(run, terminal):
    plain = run("--probabilities").out.split()
    terminal(20)
    listed = [row.split() for row in re.sub("\x1b\\[[0-9;]*m", "", run().out).splitlines()]
    linked = [row for row in listed if "–" not in row]
    assert len(linked) == len(plain)
    assert all(float(link.partition(":")[2]) == pytest.approx(float(row[2]), abs=6e-3)
               for link, row in zip(plain, linked, strict=True))  # fmt: skip
    assert run("--output-format", "pharaoh", "--probabilities").out.split() == plain


def test_links_and_words_without_one_are_listed():
    pair = WordAlignment(["house", "is"], ["房子", "很小", "[b]"], [(0, 0), (1, 1)], [0.95, 0.6])  # "[b]" is no markup
    assert draw(pair, is_calibrated=True).split() == ["house", "房子", "0.95", "is", "很小", "0.60", "–", "[b]"]
    assert "0." not in draw(pair, is_calibrated=False)
    assert draw(WordAlignment([], ["a"], [], []), is_calibrated=True).split() == ["–", "a"]


# ---- the browser


@pytest.mark.parametrize("has_browser", [True, False])
def test_open_writes_the_page_and_says_where(run, has_browser, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or has_browser)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for arguments in ((), ("--html", tmp_path / "page.html")):
        out, err = run("--open", *arguments)
        path = err.removeprefix("page: ").split()[0]
        assert opened.pop() == f"file://{path}"
        assert ("browser" in err) == has_browser
        assert MARKER in (tmp_path / path).read_text(encoding="utf-8")
        assert out == run().out


# ---- the default model


@pytest.mark.parametrize(
    ("arguments", "method", "layer"),
    [
        ([], "ot_words", None),
        (["--layer", "0"], "ot_words", 0),
        (["--model", "microsoft/xlm-align-base"], "ot", 8),
        (["--model", "microsoft/xlm-align-base@main", "--method", "mutual"], "mutual", 8),
        (["--model", "microsoft/xlm-align-base", "--layer", "auto"], "ot", None),
    ],
)
def test_a_published_aligner_has_its_published_rule(arguments, method, layer):
    rule = read_options(arguments).rule()
    assert (rule["method"], rule["layer"]) == (method, layer)


def test_the_default_model_out_of_reach(capsys):
    err = refused(capsys, *SENTENCES)
    assert DEFAULT_MODEL == "intfloat/multilingual-e5-small"
    assert DEFAULT_MODEL in err and "--model FOLDER|ID" in err and "HF_HUB_OFFLINE" in err


def test_a_hub_out_of_reach(monkeypatch, capsys):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    err = refused(capsys, *SENTENCES)
    assert "cannot be reached" in err and "--model FOLDER|ID" in err
