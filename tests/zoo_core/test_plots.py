from zoo_core.plots import line_styles


def test_line_styles_are_all_different():
    names = [f"line {number}" for number in range(360)]
    styles = line_styles(names)
    assert list(styles) == names and styles["line 1"]["color"] == "C1"
    assert len({tuple(style.values()) for style in styles.values()}) == len(names)
