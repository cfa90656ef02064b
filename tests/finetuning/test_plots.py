"""What the plots of results show: titles, error bars of several seeds only, and no single number."""

import pandas
import pytest

from crosslingual_zoo.finetuning.page import write_results
from crosslingual_zoo.finetuning.plots import plot_bars, plot_heat_map, plot_lines
from crosslingual_zoo.finetuning.results import summary
from tests.finetuning.test_compare import made_up

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


@pytest.mark.parametrize(
    ("groups", "errors", "ends"),
    [
        ({"e5": {"en": ONE, "de": ONE}}, 0, [80, 80]),
        ({"e5": {"en": TWO, "de": TWO}}, 2, [85 + 50**0.5] * 2),
        ({"a": {"en": TWO}, "b": {"en": ONE}}, 1, [85 + 50**0.5, 80]),
        ({"a": {"en": ONE}, "b": {"en": ONE}}, 0, [80, 80]),
    ],
)
def test_bars_have_error_bars_of_several_seeds_only(tmp_path, figure, groups, errors, ends):
    plot_bars(groups, tmp_path / "bars.png", "A title", "accuracy (%)")
    [axes] = figure().axes
    bars = [container for container in axes.containers if hasattr(container, "patches")]
    assert sum(len(bar.patches) for bar in bars) == 2
    assert len(axes.containers) - len(bars) == errors
    assert figure().get_suptitle() == "A title"
    assert [text.xy[0] for text in axes.texts] == pytest.approx(ends)  # numbers are beside the error bar


@pytest.mark.parametrize(("entry", "has_note"), [(ONE, False), (TWO, True)])
def test_lines_explain_a_band_of_several_seeds_only(tmp_path, figure, entry, has_note):
    plot_lines({"en": {"a": {0: entry, 1: entry}}}, tmp_path / "lines.png", "", "layer", "accuracy (%)")
    notes = [legend.get_title().get_text() for legend in figure().legends]
    assert any("band" in note for note in notes) == has_note


PLOTS_OF_ONE_NUMBER = [
    lambda path: plot_bars({"a": {"en": TWO}}, path, "", ""),
    lambda path: plot_lines({"en": {"a": {0: ONE}}, "de": {"a": {0: ONE}}}, path, "", "", ""),
    lambda path: plot_heat_map(pandas.DataFrame({"en": {"a": 80.0}}), path, "", "", ""),
]


@pytest.mark.parametrize("plot", PLOTS_OF_ONE_NUMBER)
def test_a_single_number_is_not_drawn(plot, tmp_path):
    path = tmp_path / "plot.png"
    path.write_bytes(b"of an earlier run")
    assert plot(path) is None
    assert not path.exists()


def test_results_of_one_language_have_no_picture(tmp_path):
    write_results(made_up("xnli", {"accuracy": {"en": [80.0, 81.0]}}), tmp_path)
    assert not (tmp_path / "scores.png").exists()
    assert "scores.png" not in (tmp_path / "results.md").read_text()
