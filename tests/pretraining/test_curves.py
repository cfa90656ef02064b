"""curves.png: what is drawn of a run's events."""

import json

import pytest
from matplotlib.figure import Figure

from pretraining.tracking import plot_curves


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """drawn(*events) -> the lines of each panel by its title; events are (step, figures)."""

    def draw(*events):
        lines = [json.dumps({"step": step, "phase": "a", **event}) + "\n" for step, event in events]
        (tmp_path / "events.jsonl").write_text("".join(lines) + '{"step": 9, "loss/m', encoding="utf-8")
        figures, save = [], Figure.savefig
        monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: figures.append(self) or save(self, *a, **k))
        plot_curves(tmp_path)
        assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
        (figure,) = figures
        drawn = [axes for axes in figure.axes if axes.get_visible()]
        return {axes.get_title(): [line for line in axes.lines if len(line.get_xdata())] for axes in drawn}

    return draw


def test_levels_are_drawn(drawn):
    evaluated = {"held_out/mlm/de": 5.0, "unigram_entropy/mlm/de": 6.0, "held_out/tlm/en-de": 4.0}
    evaluated |= {"retrieval/en-de": 0.5, "retrieval_chance/en-de": 0.1}
    trained = {"loss": 7.0, "loss/mlm/de": 7.0, "learning_rate": 1e-3}
    panels = drawn((1, trained), (2, evaluated), (3, trained), (4, evaluated))
    assert list(panels) == ["mlm loss (nats)", "tlm loss (nats)", "retrieval accuracy, best layer", "learning rate"]
    assert [list(line.get_ydata()) for line in panels["mlm loss (nats)"]] == [[7.0, 7.0], [5.0, 5.0], [6.0, 6.0]]
    assert [list(line.get_ydata()) for line in panels["retrieval accuracy, best layer"]] == [[0.5, 0.5], [0.1, 0.1]]
