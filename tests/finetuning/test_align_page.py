"""The page of word links: its content, that words cannot become markup, and what it does in a browser."""

import json
import re
from pathlib import Path

import pytest

from crosslingual_zoo.finetuning.align.links import STATE_ENDING
from crosslingual_zoo.finetuning.align.page import MARKER, write_page
from crosslingual_zoo.modeling.word_alignment import WordAlignment
from crosslingual_zoo.zoo_core.provenance import read_json

HOSTILE = ["<script>alert(1)</script>", "</script>", "<!--", "&amp;", '"', "'", "\u2028", "{{ style }}", "المكتبة"]
HOUSE = WordAlignment(["the", "house"], ["das", "Haus"], [(0, 0), (1, 1), (1, 0)], [0.95, 0.6, 0.2])


@pytest.fixture
def write(tmp_path):
    """write(alignments, *settings) -> the text of their page."""

    def page_of(alignments, facts="a & b, <b>layer", *settings):
        write_page(tmp_path / "page.html", alignments, facts, *settings)
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    return page_of


def data_of(text):
    """The data of the page's script."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_write_page_holds_pairs_and_links(write):
    alignment = WordAlignment(["a", "b"], ["x"], [(1, 0)], [0.9876549])
    pair = {"source": ["a", "b"], "target": ["x"], "links": [[1, 0, 0.987654]]}
    assert data_of(write([alignment])) == {"pairs": [pair], "threshold": None, "linkAll": False}


def test_write_page_makes_no_markup_of_words_and_loads_nothing(write):
    alignment = WordAlignment(HOSTILE, HOSTILE[::-1], [], [])
    text = write([alignment])
    assert data_of(text)["pairs"][0]["source"] == HOSTILE
    assert text.count("<script") == text.count("</script>") == 2  # data and program, nothing of the words
    assert "a &amp; b, &lt;b&gt;layer" in text
    assert "<b>" not in text
    script = text.rpartition("<script>")[2]
    assert not re.search("innerHTML|outerHTML|insertAdjacentHTML", script)
    assert not re.search(r"""(src|href)\s*=|url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)""", text)
    assert "default-src 'none'" in text
    assert MARKER in text


@pytest.mark.parametrize("options", [(), ("--link-all",)])
def test_links_html_has_the_first_pairs_and_the_links_of_the_output(word_align, tmp_path, monkeypatch, options):
    monkeypatch.setattr("crosslingual_zoo.finetuning.align.links.LINES_ON_PAGE", 3)
    pairs = tmp_path / "pairs.txt"
    page = tmp_path / "page.html"
    pairs.write_text("ein Mann ||| a man\n\nzwei Hunde ||| two dogs\nSchnee ||| snow\n", encoding="utf-8")
    lines = word_align(pairs, "--html", page, *options).out.splitlines()
    data = data_of(page.read_text(encoding="utf-8"))
    assert len(lines) == 4
    assert [pair["source"] for pair in data["pairs"]] == [["ein", "Mann"], [], ["zwei", "Hunde"]]
    assert data["linkAll"] == bool(options)
    assert lines[0]
    for pair, line in zip(data["pairs"], lines, strict=False):
        likeliest = {}  # of each source word
        for source, _, probability in pair["links"]:
            likeliest[source] = max(probability, likeliest.get(source, 0))
        links_on_page = []
        for source, target, probability in pair["links"]:
            is_always_linked = data["linkAll"] and probability == likeliest[source]
            if is_always_linked or probability >= data["threshold"]:
                links_on_page.append(f"{source}-{target}")
        assert links_on_page == line.split()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_write_page_in_a_browser(write, tmp_path, width):
    from tests.browser import open_browser

    with open_browser() as browser:
        page = browser.new_page(viewport={"width": width, "height": 844})

        def show(*alignments, settings=(0.5,)):
            write(alignments, "", *settings)
            page.goto((tmp_path / "page.html").as_uri())

        def count(selector):
            return page.locator(selector).count()

        show(HOUSE, HOUSE)
        assert count("path") == count("td.link") == 2
        assert count("path[stroke-dasharray]") == 0
        page.locator("input").fill("0.1")
        assert count("path") == 3
        assert count("path[stroke-dasharray]") == 1
        page.locator("input").fill("0.9")
        assert page.locator(".word.alone").all_inner_texts() == ["house", "Haus"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("#next").click()
        assert count("path") == 1  # the slider stays
        assert page.locator("#next").is_disabled()
        page.locator(".word").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.locator(".word:focus").inner_text() == "house"
        show(WordAlignment(["word"] * 40, ["Wort", "Wort"], [(0, 0), (39, 1)], [0.9, 0.9]))  # word under word
        first, second = page.eval_on_selector_all(
            ".side", "sides => sides.map(s => s.firstChild.getBoundingClientRect().top)"
        )
        assert count(".tall") == 1
        assert first == second
        show(HOUSE, settings=(0.97, True))  # the likeliest link of each source word is always shown
        assert count("path") == 2
        assert count(".word.alone") == 0
        page.locator("td").nth(3).hover()
        assert "is linked with" in page.locator(".note").inner_text()
        show(HOUSE, settings=(None,))  # no probabilities, and so no slider
        assert count("path") == 3
        assert count("input") == 0
        page.locator(".word").first.click()
        assert "score" in page.locator(".note").inner_text()


def test_links_html_of_a_resumed_run_has_the_first_pairs(word_align, tmp_path, monkeypatch):
    monkeypatch.setattr("crosslingual_zoo.finetuning.align.links.LINES_ON_PAGE", 3)
    pairs = tmp_path / "pairs.txt"
    page = tmp_path / "page.html"
    links = tmp_path / "links"
    pairs.write_text("ein Mann ||| a man\n" * 4)
    word_align(pairs, "--output", links)
    state = Path(f"{links}{STATE_ENDING}")  # as if stopped behind the first pair
    first = len(links.read_bytes().splitlines(keepends=True)[0])
    state.write_text(json.dumps(read_json(state) | {"pairs": 1, "bytes": first}))
    word_align(pairs, "--html", page, "--output", links, "--resume")
    text = page.read_text(encoding="utf-8")
    assert len(data_of(text)["pairs"]) == 3
    assert "first 3 of 4 pairs" in text
