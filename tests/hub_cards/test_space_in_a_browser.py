"""The Space in a real browser: three languages, text from the right, nothing, 1,000 words, a model that is not there.

ZOO_SCREENSHOTS names a folder for the pictures; without, they go where pytest keeps temporary files.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# playwright's own would have to be downloaded
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
if BROWSER is None:  # asked here: a fixture would be asked after the Space was started
    pytest.skip(f"no browser here: none of {', '.join(BROWSERS)}", allow_module_level=True)
SIZES = {"desktop": (1200, 900), "phone": (390, 844)}
ENGLISH = "My brother bought fresh bread at the market."
GERMAN = "Mein Bruder hat auf dem Markt frisches Brot gekauft."
ARABIC = "اشترى أخي خبزًا طازجًا من السوق."
CHINESE = "我哥哥在市场买了新鲜的面包。"
WAIT = 60_000  # milliseconds, on a busy machine


@pytest.fixture(scope="module")
def browser():
    """The Chromium of this machine."""
    # a container may have no sandbox; what Chromium looks up by itself in the background is nothing of the page's
    flags = ["--no-sandbox", "--disable-background-networking"]
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=BROWSER, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def page(request, browser, space_server, tmp_path):
    """The page, just opened at the size of a desktop, or that a test names; `page.shoot(name)` takes its picture.

    Fails where it asked another machine for anything, or the console has errors or warnings.
    """
    size = getattr(request, "param", "desktop")
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height})
    opened = context.new_page()
    opened.set_default_timeout(WAIT)
    complaints, hosts = [], set()
    opened.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda asked: hosts.add(re.match(r"\w+:(//[^/:]+)?", asked.url)[0]))
    folder = Path(os.environ.get("ZOO_SCREENSHOTS") or tmp_path)

    def shoot(name):
        folder.mkdir(parents=True, exist_ok=True)
        opened.screenshot(path=folder / f"{size}-{name}.png", full_page=True)

    opened.shoot = shoot
    opened.goto(space_server[0])
    opened.wait_for_selector("#align-button")
    yield opened
    assert opened.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out
    context.close()
    assert not complaints
    assert hosts <= {"http://127.0.0.1", "data:", "blob:"}


def align(page, source, target):
    """Types a pair and presses the button; the answer is there when it shows what is typed."""
    page.fill("#source textarea", source)
    page.fill("#target textarea", target)
    page.click("#align-button")


def left_of(page, selector):
    """Where the left edges of some parts of the page are, in pixels."""
    return page.eval_on_selector_all(selector, "parts => parts.map(part => part.getBoundingClientRect().left)")


def split(text):
    """The words of a sentence whose only punctuation is its end."""
    return [*text[:-1].split(), text[-1]]


def words(page, line):
    """The words of one of the two sentences of the answer."""
    return page.locator("#align-answer .zoo-side").nth(line).locator(".zoo-word").all_inner_texts()


@pytest.mark.parametrize("page", SIZES, indirect=True)
def test_it_opens_with_an_answer_whose_links_can_be_pointed_at(page):
    page.locator("#align-answer path").first.wait_for(state="attached")
    page.shoot("opening")
    assert page.input_value("#source textarea").replace(" ", "") == "".join(words(page, 0))
    links = [link.split("-") for link in page.locator(".zoo-text p").first.text_content().split()]
    source, target = map(int, links[0])
    assert page.locator("#align-answer path").count() == len(links)
    sides = page.locator("#align-answer .zoo-side")
    pointed = sides.nth(0).locator(".zoo-word").nth(source)
    pointed.hover()
    page.locator(".zoo-word.on").wait_for()
    partners = sorted(int(second) for first, second in links if int(first) == source)
    marked = (
        sides.nth(1)
        .locator(".zoo-word")
        .evaluate_all("words => words.flatMap((word, i) => word.matches('.partner') ? [i] : [])")
    )
    assert marked == partners and page.locator("path.on").count() == len(partners)
    assert words(page, 1)[target] in page.inner_text(".zoo-partners")
    # a line ends where the words do, one above the other or side by side
    line = page.locator("#align-answer path").first
    box, first, second = line.bounding_box(), pointed.bounding_box(), sides.nth(1).locator(".zoo-word").nth(target)
    second = second.bounding_box()
    along, size = ("x", "width") if page.locator("#align-answer .tall").count() else ("y", "height")
    assert abs(box[along] - first[along] - first[size]) < 8
    assert abs(box[along] + box[size] - second[along]) < 8
    for tab, found in (("Masks", "#fill-answer li"), ("Sentences", "#nearest-answer li")):
        page.get_by_role("tab", name=tab).click()
        page.locator(found).first.wait_for()
    assert not page.get_by_role("tab", name="Own head").count()


def test_words_are_linked_and_compared(page):
    align(page, ENGLISH, CHINESE)
    page.locator("#align-answer table.zoo-heat thead", has_text=CHINESE[0]).wait_for()
    page.shoot("chinese")
    assert (words(page, 0), words(page, 1)) == (split(ENGLISH), list(CHINESE))
    assert page.locator("#align-answer tbody th").all_inner_texts() == split(ENGLISH)
    assert page.locator("#align-answer thead th").all_inner_texts() == list(CHINESE)
    linked = page.locator("#align-answer td.zoo-link").count()
    assert f"{linked} links:" in page.inner_text("#align-answer") and linked > 0
    page.click("#align-answer summary")
    shown = page.inner_text("#align-answer .zoo-text p >> nth=0").split()
    assert len(shown) == linked and all(re.fullmatch(r"\d+-\d+", link) for link in shown)
    starts = left_of(page, "#align-answer thead th")
    assert starts == sorted(starts)


@pytest.mark.parametrize("page", SIZES, indirect=True)
def test_arabic_is_read_from_the_right(page):
    align(page, ENGLISH, ARABIC)
    page.locator("#align-answer table.zoo-heat[dir=rtl]").wait_for()
    page.shoot("arabic")
    assert words(page, 1) == split(ARABIC)
    lines = page.locator("#align-answer .zoo-side")
    for line, direction in ((0, "ltr"), (1, "rtl")):
        assert lines.nth(line).evaluate("line => getComputedStyle(line).direction") == direction
    starts = left_of(page, "#align-answer .zoo-side:nth-of-type(2) .zoo-word")
    is_tall = page.locator("#align-answer .tall").count()  # words below one another, on a phone
    assert len(starts) > 2 and (starts[0] == starts[-1] if is_tall else starts == sorted(starts, reverse=True))
    columns = left_of(page, "#align-answer thead th")
    assert columns == sorted(columns, reverse=True)
    # in the box, too, whose direction gradio sets to the other one
    assert page.locator("#target textarea").evaluate("box => getComputedStyle(box).unicodeBidi") == "plaintext"
    assert "are unknown" in page.inner_text("#align-answer")


def test_masks_are_put_in_and_filled(page):
    page.get_by_role("tab", name="Masks").click()
    page.fill("#masked-text textarea", "Die Kinder lesen")
    page.get_by_role("button", name="Insert <mask>").click()
    page.wait_for_function("document.querySelector('#masked-text textarea').value === 'Die Kinder lesen <mask>'")
    page.click("#fill-button")
    page.locator("#fill-answer .zoo-best", has_text="Die Kinder lesen").wait_for()
    page.shoot("masks")
    shares = [float(share.rstrip("%")) for share in page.locator("#fill-answer .zoo-value").all_inner_texts()]
    assert len(shares) == 5 and shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("page", SIZES, indirect=True)
def test_sentences_are_ranked_with_their_languages(page):
    page.get_by_role("tab", name="Sentences").click()
    page.fill("#query textarea", GERMAN)
    page.click("#nearest-button")
    page.locator("#nearest-answer li").first.filter(has_text=GERMAN).wait_for()
    page.shoot("sentences")
    assert page.locator("#nearest-answer li").count() == 40
    first = page.inner_text("#nearest-answer li >> nth=0")
    assert GERMAN in first and "German" in first and "1.000" in first
    arabic = page.locator("#nearest-answer li .zoo-label", has_text=ARABIC)
    assert arabic.evaluate("label => getComputedStyle(label).direction") == "rtl"


def test_empty_boxes_and_a_thousand_words(page):
    align(page, "", "")
    page.get_by_role("alert").filter(has_text="first sentence").wait_for()
    page.shoot("empty")
    align(page, "word " * 1000, "Wort " * 1000)
    page.get_by_text("The similarity matrix is shown up to 40 words a sentence.").wait_for()
    page.shoot("thousand-words")
    assert len(words(page, 0)) == len(words(page, 1)) == 1000
    assert not page.locator("#align-answer table").count()
    assert "windows" in page.inner_text("#align-answer")


def test_a_wrong_model_name_leaves_the_old_one(page, space_server):
    first, second = map(str, space_server[1])
    page.click("#another button")
    assert "it will run on the machine that serves this page" in page.inner_text("#trust")
    page.fill("#named textarea, #named input", "nobody/nothing")
    page.get_by_role("button", name="Load").click()
    alert = page.get_by_role("alert").filter(has_text="nobody/nothing")
    alert.wait_for()
    assert f"{first} stays in use." in alert.inner_text() and "Traceback" not in page.inner_text("body")
    page.shoot("wrong-name")
    assert page.input_value("#model input") == f"…{first[-31:]}"  # the end of a long path
    align(page, ENGLISH, GERMAN)
    page.locator("#align-answer table.zoo-heat").wait_for()
    # a right one, which cannot do everything
    page.fill("#named textarea, #named input", second)
    page.get_by_role("button", name="Load").click()
    page.locator("#facts", has_text="no masks").wait_for()
    assert page.input_value("#model input") == f"…{second[-31:]}" and not page.get_by_role("alert").count()
    page.get_by_role("tab", name="Masks").click()
    page.get_by_role("alert").filter(has_text="no masked-LM head").wait_for()
    page.get_by_role("tab", name="Own head").click()
    page.fill("#head-text-1 textarea", GERMAN)
    page.click("#head-button")
    page.locator("#head-answer li").first.wait_for()
    page.shoot("classifier")
    page.get_by_role("tab", name="Word links").click()
    page.click("#align-tab .label-wrap")  # its settings
    page.wait_for_selector("#align-layer input[type=range]")
    assert page.get_attribute("#align-layer input[type=range]", "max") == "3"
