"""There is a figure for each objective, and it can be drawn."""

import pytest
from PIL import Image

from bench.objective_figures import FIGURES, draw
from pretraining.objectives import OBJECTIVES, Collator


def test_objective_figures_of_every_objective_with_a_collator():
    with_collator = {name for name, objective in OBJECTIVES.items() if issubclass(objective, Collator)}
    assert {name for name in with_collator if not name.startswith(tuple(FIGURES))} == set()


@pytest.mark.parametrize("name", FIGURES)
def test_objective_figures_draw(name, tmp_path):
    draw(name, tmp_path)
    with Image.open(tmp_path / f"objective_{name}.png") as image:
        assert image.width == 510 * len(FIGURES[name]()) and len(image.getcolors(2**16)) > 8
