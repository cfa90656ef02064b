"""The figures: there is one for each objective, and they show the masks and matches of the code."""

import pytest
from PIL import Image

from bench.objective_figures import FIGURES, camlm, draw
from pretraining.objectives import OBJECTIVES, Collator


def test_objective_figures_of_every_objective_with_a_collator():
    with_collator = {name for name, objective in OBJECTIVES.items() if issubclass(objective, Collator)}
    assert {name for name in with_collator if not name.startswith(tuple(FIGURES))} == set()


@pytest.mark.parametrize("name", FIGURES)
def test_objective_figures_draw(name, tmp_path):
    draw(name, tmp_path)
    with Image.open(tmp_path / f"objective_{name}.png") as image:
        assert image.width == 510 * len(FIGURES[name]()) and len(image.getcolors(2**16)) > 8


def test_objective_figures_camlm_shows_who_sees_whom():
    (panel,) = camlm()
    shown = ["".join(".x"[seen] for seen in row) for row in panel.grid.astype(int)]
    assert [word.text for word in panel.columns] == ["The", "mask", "is", "small.", "Das", "Haus", "ist", "mask"]
    of_text, of_translation = ["x.xx....", ".x..xxx.", *["x.xx...."] * 2], [*["....xxx."] * 3, "x.xx...x"]
    assert shown == of_text + of_translation
