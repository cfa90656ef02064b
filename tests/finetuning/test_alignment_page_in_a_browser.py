"""The page of word links in a real browser: what its slider shows and hides, its keys, its sizes and colors."""

import pytest

from finetuning.align.page import Page
from modeling.word_alignment import WordAlignment
from tests.browser import open_browser

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def opened():
    """A page of the browser, on a phone's screen."""
    with open_browser() as browser:
        yield browser.new_page(viewport={"width": 390, "height": 844})


@pytest.fixture
def show(opened, tmp_path):
    """show(threshold, link_all) -> the page of one pair with three links, in the browser."""

    def of_threshold(threshold, link_all=False):
        page = Page(tmp_path / f"{threshold}.html")
        links, probabilities = [(0, 0), (1, 1), (1, 0)], [0.95, 0.6, 0.2]
        page.add(WordAlignment(["the", "house"], ["das", "Haus"], links, probabilities, [[0.9, 0.1], [0.2, 0.8]]))
        page.write("pairs.txt", {}, 1, threshold, link_all)
        opened.goto(page.path.as_uri())
        return opened

    return of_threshold


def test_the_slider_chooses_the_links(show):
    page = show(0.5)

    def strokes():
        return page.eval_on_selector_all("path", "all => all.map(one => one.getAttribute('stroke-dasharray'))")

    assert strokes() == [None, None] and page.locator("td.link").count() == 2
    faint, strong = sorted(page.eval_on_selector_all("path", "all => all.map(one => Number(one.style.opacity))"))
    assert faint < strong
    page.locator("#least").fill("0.1")
    assert [stroke is not None for stroke in strokes()] == [False, False, True]
    assert "3 links" in page.locator("#chosen").inner_text()
    page.locator("#least").fill("0.9")
    assert strokes() == [None] and page.locator(".word.alone").all_inner_texts() == ["house", "Haus"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_likeliest_link_of_each_source_word_is_shown_where_all_are_linked(show):
    page = show(0.97, link_all=True)
    assert page.locator("path").count() == 2 and page.locator(".word.alone").count() == 0
    page.locator("td").nth(3).click()
    assert "is linked with" in page.locator("#note").inner_text()
    page.locator("#least").fill("0.1")
    assert page.locator("path").count() == 3
    assert page.locator("path[stroke-dasharray]").count() == 1  # only the least likely one is not in the output


def test_numbers_that_are_no_probabilities_have_no_slider(show):
    page = show(None)
    assert page.locator("path").count() == 3 and not page.locator("#least").is_visible()
    page.locator(".word").first.click()
    assert "score" in page.locator("#note").inner_text()
