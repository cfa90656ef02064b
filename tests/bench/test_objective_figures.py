"""The figures: there is one for each objective, and they show the masks and matches of the code."""

import numpy as np
import pytest
from PIL import Image

from bench.objective_figures import FIGURES, camlm, draw, dwa, vocabulary_matching
from pretraining.objectives import OBJECTIVES, Collator


def test_every_objective_with_a_collator_has_a_figure():
    with_collator = {name for name, objective in OBJECTIVES.items() if issubclass(objective, Collator)}
    assert {name for name in with_collator if not name.startswith(tuple(FIGURES))} == set()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn(name, tmp_path):
    draw(name, tmp_path)
    with Image.open(tmp_path / f"objective_{name}.png") as image:
        assert image.width == 1400 and len(image.getcolors()) > 8


def test_camlm_shows_who_sees_whom():
    (panel,) = camlm()
    shown = ["".join(".x"[seen] for seen in row) for row in panel.grid.astype(int)]
    assert [word.text for word in panel.words] == ["The", "mask", "is", "small.", "Das", "Haus", "ist", "mask"]
    of_text, of_translation = ["x.xx....", ".x..xxx.", *["x.xx...."] * 2], [*["....xxx."] * 3, "x.xx...x"]
    assert shown == of_text + of_translation


def test_dwa_points_at_the_partner_that_is_labeled():
    labels, prediction = dwa()
    assert labels.links == [(0, 4), (1, 5), (2, 6), (3, 7)] and prediction.pointer == (1, 5)


def test_vocabulary_matching_shows_each_route():
    _, panel, _ = vocabulary_matching()
    assert [route for _, route in panel.new] == ["normalized", "dictionary", "exact", "dictionary", "random"]
    assert np.array_equal(panel.grid, np.eye(5, 4, dtype=bool))
