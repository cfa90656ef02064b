"""The page of word links: its content, that it loads no other files, and that words cannot become markup."""

import json
import re

import pytest

from finetuning.align.command import main
from finetuning.align.page import MARKER, MATRIX_WORDS, Page
from modeling.word_alignment import WordAlignment

HOSTILE = ["<script>alert(1)</script>", "</script>", "<!--", "&amp;", '"', "'", "\u2028", "{{ 1 }}", "المكتبة"]


@pytest.fixture
def write(tmp_path):
    """write(alignments, title, total) -> the text of their page."""

    def page_of(alignments, title="pairs.txt", total=None):
        page = Page(tmp_path / "page.html")
        for alignment in alignments:
            page.add(alignment)
        page.write(title, {"model": "a & b", "layer": "8 of 12"}, len(page.pairs) if total is None else total)
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    return page_of


def data_of(text):
    """The data of the page's script."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_holds_pairs_links_and_similarity(write):
    alignment = WordAlignment(["a", "b"], ["x"], [(1, 0)], [0.9876549], [[-0.126], [0.5]], 2)
    assert data_of(write([alignment], total=7)) == {
        "pairs": [
            {
                "source": ["a", "b"],
                "target": ["x"],
                "links": [[1, 0, 0.987654]],
                "similarity": [[-13], [50]],
                "windows": 2,
            }
        ],
        "total": 7,
        "threshold": None,
        "link_all": False,
    }


def test_no_matrix_of_sentences_too_long_for_one(write):
    def pair(words):
        return WordAlignment(["a"] * words, ["x"], [(0, 0)], [1.0], [[0.5]] * words)

    pairs = data_of(write([pair(MATRIX_WORDS), pair(MATRIX_WORDS + 1)]))["pairs"]
    assert len(pairs[0]["similarity"]) == MATRIX_WORDS and pairs[1]["similarity"] is None


def test_words_and_names_cannot_become_markup(write):
    alignment = WordAlignment(HOSTILE, HOSTILE[::-1], [], [], [[0.0] * len(HOSTILE)] * len(HOSTILE))
    text = write([alignment], title="<b>&.txt")
    assert data_of(text)["pairs"][0]["source"] == HOSTILE
    assert text.count("<script") == text.count("</script>") == 2  # data and program, nothing of the words
    assert "&lt;b&gt;&amp;.txt" in text and "a &amp; b" in text and "<b>&" not in text
    script = text.rpartition("<script>")[2]
    assert "innerHTML" not in script and "outerHTML" not in script and "insertAdjacentHTML" not in script


def test_the_page_needs_nothing_else(write):
    text = write([])
    assert not re.search(r"""(src|href)\s*=|url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)""", text)
    assert "default-src 'none'" in text and MARKER in text


def test_only_such_a_page_is_written_over(write, tmp_path):
    write([])
    write([])
    own = tmp_path / "thesis.html"
    own.write_text("<h1>years of work</h1>")
    with pytest.raises(ValueError, match="thesis.html exists and is no page of word links"):
        Page(own)
    with pytest.raises(ValueError, match="is not a folder"):
        Page(tmp_path / "none" / "page.html")


@pytest.mark.parametrize("options", [(), ("--link-all",)])
def test_the_command_writes_the_first_pairs(tiny_model, tmp_path, capsys, monkeypatch, options):
    monkeypatch.setattr("finetuning.align.links.LINES_ON_PAGE", 3)
    pairs, page = tmp_path / "pairs.txt", tmp_path / "page.html"
    pairs.write_text("ein Mann ||| a man\n\nzwei Hunde ||| two dogs\nSchnee ||| snow\n", encoding="utf-8")
    main(["--model", str(tiny_model), str(pairs), "--html", str(page), *options])
    out, err = capsys.readouterr()
    assert out.count("\n") == 4 and f"page: {page}" in err
    data = data_of(page.read_text(encoding="utf-8"))
    assert data["total"] == 4 and [pair["source"] for pair in data["pairs"]] == [["ein", "Mann"], [], ["zwei", "Hunde"]]
    assert data["link_all"] == bool(options)
    shown = []
    for links in (pair["links"] for pair in data["pairs"]):
        likeliest = [max((link for link in links if link[0] == i), key=lambda link: link[2]) for i, _, _ in links]
        always = likeliest if data["link_all"] else []
        shown.append(" ".join(f"{i}-{j}" for i, j, p in links if p >= data["threshold"] or [i, j, p] in always))
    assert shown == out.splitlines()[:3] and shown[0]
    assert [len(row) for row in data["pairs"][0]["similarity"]] == [2, 2]
