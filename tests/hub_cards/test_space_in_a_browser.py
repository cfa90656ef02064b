"""The Space in a real browser: sizes, keys, text from the right, nothing, 1,000 words, a model that is not there."""

import io
import re

import pytest
from PIL import Image

from tests.browser import lowest_contrast, open_browser

pytestmark = pytest.mark.slow

SIZES = {"desktop": (1200, 900), "phone": (390, 844)}
ENGLISH = "My brother bought fresh bread at the market."
GERMAN = "Mein Bruder hat auf dem Markt frisches Brot gekauft."
ARABIC = "اشترى أخي خبزًا طازجًا من السوق."
WAIT = 60_000  # milliseconds, on a busy machine


@pytest.fixture(scope="module")
def browser():
    """The Chromium of this machine."""
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(request, browser, space_server):
    """The page, just opened at the size of a desktop, or that a test names; with "dark" in that theme.

    Fails where it asked another machine for anything, or the console has errors or warnings.
    """
    size, _, theme = getattr(request, "param", "desktop").partition(" ")
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height})
    opened = context.new_page()
    opened.set_default_timeout(WAIT)
    complaints, hosts = [], set()
    opened.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda asked: hosts.add(re.match(r"\w+:(//[^/:]+)?", asked.url)[0]))
    opened.goto(f"{space_server[0]}/?__theme={theme or 'light'}")
    opened.wait_for_selector("#align-button")
    yield opened
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
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


def words(page, line):
    """The words of one of the two sentences of the answer."""
    return page.locator("#align-answer .zoo-side").nth(line).locator(".zoo-word").all_inner_texts()


@pytest.mark.parametrize("page", SIZES, indirect=True)
def test_it_opens_with_an_answer_whose_links_can_be_pointed_at(page):
    page.locator("#align-answer path").first.wait_for(state="attached")
    assert page.input_value("#source textarea").replace(" ", "") == "".join(words(page, 0))
    links = [link.split("-") for link in page.locator(".zoo-text p").first.text_content().split()]
    source, target = map(int, links[0])
    assert page.locator("#align-answer path").count() == len(links)
    pointed, second = (
        page.locator("#align-answer .zoo-side").nth(side).locator(".zoo-word").nth(word)
        for side, word in enumerate((source, target))
    )
    pointed.hover()
    page.locator(".zoo-word.on").wait_for()
    partners = [int(second) for first, second in links if int(first) == source]
    assert page.locator(".zoo-word.partner").count() == page.locator("path.on").count() == len(partners)
    assert words(page, 1)[target] in page.inner_text(".zoo-partners")
    # a line ends where the words do, one above the other or side by side
    line = page.locator("#align-answer path").first.bounding_box()
    first, second = pointed.bounding_box(), second.bounding_box()
    along, size = ("x", "width") if page.locator("#align-answer .tall").count() else ("y", "height")
    assert abs(line[along] - first[along] - first[size]) < 8
    assert abs(line[along] + line[size] - second[along]) < 8


@pytest.mark.parametrize("page", SIZES, indirect=True)
def test_arabic_is_read_from_the_right(page):
    align(page, ENGLISH, ARABIC)
    page.locator("#align-answer table.zoo-heat thead", has_text=ARABIC.split()[0]).wait_for()
    assert words(page, 1) == [*ARABIC[:-1].split(), "."]
    for line, direction in ((0, "ltr"), (1, "rtl")):
        side = page.locator("#align-answer .zoo-side").nth(line)
        assert side.evaluate("line => getComputedStyle(line).direction") == direction
    starts = left_of(page, "#align-answer .zoo-side:nth-of-type(2) .zoo-word")
    is_tall = page.locator("#align-answer .tall").count()  # words below one another, on a phone
    assert len(starts) > 2 and (starts[0] == starts[-1] if is_tall else starts == sorted(starts, reverse=True))
    columns = left_of(page, "#align-answer thead th")
    assert columns == sorted(columns, reverse=True)
    # in the box, too, whose direction gradio sets to the other one
    assert page.locator("#target textarea").evaluate("box => getComputedStyle(box).unicodeBidi") == "plaintext"
    align(page, ARABIC, ENGLISH)
    page.locator("#align-answer table.zoo-heat thead", has_text="brother").wait_for()
    columns = left_of(page, "#align-answer thead th")
    assert columns == sorted(columns)


def test_masks_are_filled_and_sentences_ranked_with_their_languages(page):
    page.get_by_role("tab", name="Masks").click()
    page.fill("#masked-text textarea", "Die Kinder lesen <mask>")
    page.click("#fill-button")
    page.locator("#fill-answer .zoo-best", has_text="Die Kinder lesen").wait_for()
    shares = [float(share.rstrip("%")) for share in page.locator("#fill-answer .zoo-value").all_inner_texts()]
    assert len(shares) == 5 and shares == sorted(shares, reverse=True)
    page.get_by_role("tab", name="Sentences").click()
    page.fill("#query textarea", GERMAN)
    page.click("#nearest-button")
    first = page.locator("#nearest-answer li").first
    first.filter(has_text=GERMAN).wait_for()
    assert "German" in first.inner_text() and "1.000" in first.inner_text()
    assert page.locator("#nearest-answer li").count() == 40
    assert not page.get_by_role("tab", name="Own head").count()


def test_empty_boxes_and_a_thousand_words(page):
    align(page, "", "")
    page.get_by_role("alert").filter(has_text="first sentence").wait_for()
    align(page, "word " * 1000, "Wort " * 1000)
    page.get_by_text("The similarity matrix is shown up to 40 words a sentence.").wait_for()
    assert len(words(page, 0)) == len(words(page, 1)) == 1000
    assert not page.locator("#align-answer table").count()


def test_parts_fit_a_desktop_and_a_phone(page):
    answer = page.locator("#align-answer")
    first, second = (answer.locator("section").nth(half).bounding_box() for half in (0, 1))
    assert first["y"] == second["y"] and first["width"] == pytest.approx(second["width"], abs=1)
    assert first["width"] > 0.45 * answer.bounding_box()["width"]
    table = answer.locator("table.zoo-heat").bounding_box()
    assert table["width"] == pytest.approx(second["width"], abs=1)
    button = page.locator("#align-button").bounding_box()
    long = "A sentence that is far longer than the box that it is written into on a phone is. " * 3
    page.fill("#source textarea", long)
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("document.querySelector('#align-answer section').getBoundingClientRect().width < 390")
    first, second = (answer.locator("section").nth(half).bounding_box() for half in (0, 1))
    assert first["x"] == second["x"] and first["y"] + first["height"] <= second["y"]
    narrow = page.locator("#align-button").bounding_box()
    assert (narrow["width"], narrow["height"]) == (button["width"], button["height"])
    assert page.locator("#source textarea").evaluate(
        "box => [box.clientHeight > 60, box.scrollHeight > box.clientHeight]"
    ) == [True, False]
    samples = page.locator("#align-samples .gallery-item")
    assert samples.count() > 3
    for sample in samples.all():
        box = sample.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390


@pytest.mark.parametrize("page", SIZES, indirect=True)
def test_arrow_keys_step_through_the_words(page):
    align(page, ENGLISH, ARABIC)
    page.locator("#align-answer table.zoo-heat thead", has_text=ARABIC.split()[0]).wait_for()
    is_tall = page.locator("#align-answer .tall").count()
    sides = page.locator("#align-answer .zoo-side")
    focused = page.locator("#align-answer .zoo-word:focus")
    for side, forward, back in ((0, "ArrowRight", "ArrowLeft"), (1, "ArrowLeft", "ArrowRight")):
        if is_tall:
            forward, back = "ArrowDown", "ArrowUp"
        all_words = words(page, side)
        if side:
            page.keyboard.press("Tab")  # one stop a sentence
        else:
            sides.first.locator(".zoo-word").first.focus()
        assert focused.inner_text() == all_words[0]
        page.keyboard.press(forward)
        assert focused.inner_text() == all_words[1] and "on" in focused.get_attribute("class").split()
        page.keyboard.press("End")
        page.keyboard.press(forward)  # there is nothing behind the last word
        assert focused.inner_text() == all_words[-1]
        page.keyboard.press(back)
        assert focused.inner_text() == all_words[-2]
        page.keyboard.press("Home")
        assert focused.inner_text() == all_words[0]
        page.keyboard.press(forward)
        assert sides.nth(side).locator("[tabindex='0']").all_inner_texts() == [all_words[1]]
    page.keyboard.press("ArrowRight" if is_tall else "ArrowUp")
    assert focused.inner_text() in words(page, 0)


@pytest.mark.parametrize("page", ["desktop", "desktop dark"], indirect=True)
def test_text_can_be_read_in_both_themes(page):
    cells = page.locator("#align-answer .zoo-heat td.zoo-link")
    cells.first.evaluate("cell => cell.style.setProperty('--heat', '100%')")
    for part in (cells, page.locator("#align-button"), page.locator(".zoo-toy"), page.locator(".zoo-hint:visible")):
        assert lowest_contrast(part) >= 4.5


@pytest.mark.parametrize("page", ["phone", "phone dark"], indirect=True)
def test_a_long_drawing_shows_that_it_scrolls(page):
    align(page, "word " * 200, "Wort " * 200)
    page.locator("#align-answer .zoo-word").nth(399).wait_for(state="attached")
    drawing = page.locator(".zoo-pair")

    def shaded():
        """Whether the top and the bottom edge differ from the ground."""
        shot = Image.open(io.BytesIO(drawing.screenshot())).convert("RGB")
        ground = shot.getpixel((1, shot.height // 2))
        return [shot.getpixel((1, y)) != ground for y in (2, shot.height - 3)]

    assert shaded() == [False, True]
    drawing.evaluate("part => part.scrollTo(0, 100)")
    assert shaded() == [True, True]
    drawing.evaluate("part => part.scrollTo(0, part.scrollHeight)")
    assert shaded() == [True, False]


def test_a_wrong_model_name_leaves_the_old_one(page, space_server):
    first, second = map(str, space_server[1])
    page.click("#another button")
    page.fill("#named textarea, #named input", "nobody/nothing")
    page.get_by_role("button", name="Load").click()
    page.get_by_text(f"{first} stays in use.").wait_for()
    assert "Traceback" not in page.inner_text("body") and page.input_value("#model input") == first
    align(page, ENGLISH, GERMAN)
    page.locator("#align-answer table.zoo-heat").wait_for()
    # a right one, which cannot do everything
    page.fill("#named textarea, #named input", second)
    page.get_by_role("button", name="Load").click()
    page.locator("#facts", has_text="no masks").wait_for()
    assert page.input_value("#model input") == second
    page.get_by_role("tab", name="Masks").click()
    page.get_by_role("alert").filter(has_text="no masked-LM head").wait_for()
    page.get_by_role("tab", name="Own head").click()
    page.fill("#head-text-1 textarea", GERMAN)
    page.click("#head-button")
    page.locator("#head-answer li").first.wait_for()
