"""The notebooks run from the first cell to the last, offline, with a small model in place of the Hub's.

Each runs in a kernel of its own, in an empty folder. The tests check values of its variables and files that it wrote.
"""

import json
import os
import re
import sysconfig
from pathlib import Path

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from transformers import XLMRobertaConfig, XLMRobertaModel

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def encoder(sample_tokenizer, tmp_path_factory) -> str:
    """An encoder of XLM-R's shape without a head, as multilingual-e5-small is."""
    folder = tmp_path_factory.mktemp("encoder")
    shape = dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, type_vocab_size=1)
    torch.manual_seed(0)
    config = XLMRobertaConfig(vocab_size=len(sample_tokenizer), max_position_embeddings=130, **shape)
    XLMRobertaModel(config, add_pooling_layer=False).save_pretrained(folder)
    sample_tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def run(encoder, tmp_path, tmp_path_factory, monkeypatch):
    """`run(name, *expressions)` -> the values of Python expressions behind the last cell of a notebook."""
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):  # not the user's
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp("jupyter")))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("MPLBACKEND")  # the kernel's own shows plots in the notebook
    monkeypatch.chdir(tmp_path)

    def execute(name: str, *expressions: str) -> list:
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        [parameters] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
        parameters.source = f"model = {encoder!r}"
        values = nbformat.v4.new_code_cell(f"import json\nprint(json.dumps([{', '.join(expressions)}]))")
        notebook.cells.append(values)
        resources = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=600, startup_timeout=300, resources=resources).execute()
        return json.loads(values.outputs[0].text)

    return execute


@pytest.mark.slow
def test_notebook_align(run):
    links, projected, lost = run("align", "[pair.links for pair in found]", "projected", "len(lost)")
    assert len(links) == 3
    assert all(links)
    assert len(projected) == 8
    assert lost < 3
    counts = [len(line.split()) for line in Path("links.txt").read_text().splitlines()]
    assert counts == list(map(len, links))


@pytest.mark.slow
def test_notebook_pretrain(run):
    differ = "bool((scores['aer before'] != scores['aer after']).any())"
    columns, layers, differs = run("pretrain", "list(scores.columns)", "list(scores.index)", differ)
    assert columns == ["aer before", "accuracy before", "aer after", "accuracy after"]
    assert layers == [0, 1, 2, 3]
    assert differs
    assert Path("runs/continued/model/model.safetensors").is_file()


@pytest.mark.slow
def test_notebook_finetune(run):
    languages, answers = run("finetune", "sorted(results.languages)", "classify('Anna bakes bread.')")
    assert languages == ["de", "en", "es", "zh"]
    assert answers[0]["label"] in ("food", "sport", "technology", "travel", "weather")
    assert "license: mit" in Path("runs/topics/seed-1/model/README.md").read_text()


@pytest.mark.slow
def test_notebook_objective(run):
    by_hand, model, change = run("objective", "mean", "loss.item()", "{side: change(side) for side in 'xy'}")
    assert by_hand == pytest.approx(model, rel=1e-4)
    assert change["x"] == pytest.approx(0, abs=1e-5)
    assert change["y"] > 1e-3


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_as_committed(name):
    """Outputs of a run from top to bottom, without errors or paths of a machine."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) <= 12
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert cells[0].source.startswith('model = "intfloat/multilingual-e5-small"')
    for cell in cells:
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr"
            assert not re.search(r"(?<![\w.])/(home|root|tmp|Users|mnt|work)/", json.dumps(output))
