"""What the plots of results show: titles, error bars of several seeds only, and no single number."""

import pandas
import pytest

from crosslingual_zoo.finetuning.page import draw, write_results
from crosslingual_zoo.finetuning.plots import plot_bars, plot_heat_map, plot_lines
from crosslingual_zoo.finetuning.results import summary
from tests.finetuning.test_results import made_up

ONE = summary([80.0])
TWO = summary([80.0, 90.0])


@pytest.fixture
def figure(monkeypatch):
    """`figure()`: the last figure that was saved."""
    saved = []

    def keep(self, path, **options):
        path.write_bytes(b"PNG")
        saved.append(self)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
    return lambda: saved[-1]


def text_of(figure):
    """The title, and all of the legend."""
    legends = [text.get_text() for legend in figure.legends for text in (*legend.get_texts(), legend.get_title())]
    return figure.get_suptitle(), legends


@pytest.mark.parametrize(
    ("groups", "errors", "legend"),
    [
        ({"e5": {"en": ONE, "de": ONE}}, 0, []),
        ({"e5": {"en": TWO, "de": TWO}}, 2, []),
        ({"a": {"en": TWO}, "b": {"en": ONE}}, 1, ["a", "b"]),
        ({"a": {"en": ONE}, "b": {"en": ONE}}, 0, ["a", "b"]),
    ],
)
def test_bars_have_error_bars_of_several_seeds_only(tmp_path, figure, groups, errors, legend):
    assert plot_bars(groups, tmp_path / "bars.png", "A title", "accuracy (%)") == tmp_path / "bars.png"
    [axes] = figure().axes
    bars = [container for container in axes.containers if hasattr(container, "patches")]
    assert sum(len(bar.patches) for bar in bars) == 2
    assert len(axes.containers) - len(bars) == errors
    title, legends = text_of(figure())
    assert title == "A title"
    assert any("error bar" in text for text in legends) == (errors > 0)
    assert [name for name in ("a", "b") if name in legends] == [name for name in legend if len(name) == 1]
    numbers = [(text.xy[0], text.get_text()) for text in axes.texts]
    ends = [
        max([*entry["scores"], entry["mean"] + (entry["sd"] or 0)])
        for entries in groups.values()
        for entry in entries.values()
    ]
    assert [height for height, _ in numbers] == pytest.approx(ends)  # beside the error bar


def test_a_single_number_is_not_drawn(tmp_path):
    path = tmp_path / "plot.png"
    plots = [
        lambda: plot_bars({"a": {"en": TWO}}, path, "", ""),
        lambda: plot_lines({"en": {"a": {0: ONE}}, "de": {"a": {0: ONE}}}, path, "", "", ""),
        lambda: plot_heat_map(pandas.DataFrame({"en": {"a": 80.0}}), path, "", "", ""),
    ]
    for plot in plots:
        path.write_bytes(b"of an earlier run")
        assert plot() is None
        assert not path.exists()


@pytest.mark.parametrize(("seeds", "has_note"), [([80.0], False), ([80.0, 90.0], True)])
def test_lines_explain_a_band_of_several_seeds_only(tmp_path, figure, seeds, has_note):
    points = {0: summary(seeds), 1: summary(seeds)}
    assert plot_lines({"en": {"a": points}}, tmp_path / "lines.png", "", "layer", "accuracy (%)")
    assert any("band" in text for text in text_of(figure())[1]) == has_note


def test_the_title_of_a_run_s_plot_names_model_data_and_score(tmp_path, figure):
    results = made_up("xnli", {"accuracy": {"en": [80.0, 81.0], "de": [70.0, 71.0]}})
    draw({"e5": results}, tmp_path / "scores.png")
    title, legends = text_of(figure())
    assert all(word in title for word in ("e5", "xnli", "test", "accuracy"))
    assert "e5" not in legends
    draw({"e5": results, "XLM-R": results}, tmp_path / "scores.png")
    title, legends = text_of(figure())
    assert "e5" not in title
    assert {"e5", "XLM-R"} <= {*legends}


def test_results_of_one_language_have_no_picture(tmp_path, capsys):
    write_results(made_up("xnli", {"accuracy": {"en": [80.0, 81.0]}}), tmp_path)
    assert not (tmp_path / "scores.png").exists()
    assert "scores.png" not in (tmp_path / "results.md").read_text()
    assert "scores.png" not in capsys.readouterr().out
