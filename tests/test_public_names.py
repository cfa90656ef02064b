"""`crosslingual_zoo`: its names, and folders of a user's own that hide what it needs."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import crosslingual_zoo
from modeling.optimal_transport import METHODS


@pytest.mark.parametrize("name", crosslingual_zoo.__all__)
def test_every_name_is_there_and_documented(name):
    value = getattr(crosslingual_zoo, name)
    assert value.__name__ == name and inspect.getdoc(value)
    assert name in dir(crosslingual_zoo)


def test_other_names_are_none():
    with pytest.raises(AttributeError, match="nothing"):
        crosslingual_zoo.nothing  # noqa: B018
    with pytest.raises(ImportError):
        from crosslingual_zoo import Nothing  # noqa: F401


@pytest.mark.slow
@pytest.mark.parametrize("hidden", ["modeling/notes.py", "modeling/__init__.py", "modeling.py"])
def test_a_folder_or_file_of_the_name_of_a_package(tmp_path, hidden):
    """A folder without `__init__.py` hides nothing; what hides a package of ours is named."""
    (tmp_path / hidden).parent.mkdir(exist_ok=True)
    (tmp_path / hidden).write_text("")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    program = "from crosslingual_zoo import VecoConfig; print(VecoConfig.model_type)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    if hidden == "modeling/notes.py":
        assert done.stdout == "veco\n", done.stderr
    else:
        assert "ImportError" in done.stderr and str(tmp_path / hidden) in done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_links_of_vectors(method):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 32, generator=generator)
    order = [2, 0, 1, 5, 4, 3]
    expected = sorted((source, target) for target, source in enumerate(order))
    assert crosslingual_zoo.links_of(x, x[order], method) == expected
    assert crosslingual_zoo.links_of(x.numpy().astype(np.float64), x[order].double().numpy(), method) == expected
    assert crosslingual_zoo.links_of(x, x[:0], method) == []
    with pytest.raises(ValueError, match="shapes"):
        crosslingual_zoo.links_of(x, x[0], method)
