"""Lines of plots: each language has its color, and no two lines look the same."""

from zoo_core.plots import LANGUAGES, line_styles


def colors(*names):
    return {name: style["color"] for name, style in line_styles(names).items()}


def test_a_language_has_one_color_in_all_plots():
    alone = colors("sw")["sw"]
    for pair in ("sw-en", "en-sw", "en->sw", "en-sw/news", "sw/bible"):
        assert colors("de", pair, "XLM-R")[pair] == alone
    assert len(set(colors(*LANGUAGES[:10]).values())) == 10, "the common ones"


def test_no_two_lines_look_alike():
    names = [*LANGUAGES, *(f"en-{code}" for code in LANGUAGES), "XLM", "VECO", "seed 1"]
    styles = line_styles(names)
    assert list(styles) == names
    assert len({tuple(style.values()) for style in styles.values()}) == len(names)
