"""The four example cards: each is what today's code makes of the recipe, the run and the results next to it.

If the code of the cards has changed, write them again:
ZOO_WRITE_EXAMPLES=1 python -m pytest tests/hub_cards/test_example_cards.py
"""

import json
import os
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from crosslingual_zoo.hub_cards import record
from crosslingual_zoo.hub_cards.card import as_written, write_card

EXAMPLES = Path(__file__).parents[2] / "hub_cards" / "examples"
OF_E5 = {"license": "mit", "base_model": "intfloat/multilingual-e5-small", "base_note": "weights rounded to 4 bits"}
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MODELS = {
    "ernie_m": {"name": "e5_small-ernie_m", **OF_E5},
    "metaxlm": {"name": "metaxlm-minilm_captions", "license": "apache-2.0", "base_model": MINILM},
    "veco": {"name": "e5_small-veco", **OF_E5},
    "xlm_align": {"name": "e5_small-xlm_align", **OF_E5},
}
TASKS = ("udpos", "tatoeba", "ntrex_retrieval", "word_alignment")  # in the order of the cards


@pytest.mark.parametrize("model", MODELS)
def test_example_cards_are_what_the_code_makes_of_their_runs(zoo_model_dir, monkeypatch, model, tmp_path):
    """A tiny model's weights are in place of its own, which are not published."""
    example = EXAMPLES / model
    folder = tmp_path / "model"
    shutil.copytree(zoo_model_dir(model), folder)
    shutil.copy(example / "config.json", folder)
    for name in ("recipe.yaml", "run.json"):
        shutil.copy(example / name, tmp_path)
    run = json.loads((example / "run.json").read_text(encoding="utf-8"))
    files = [example / "results" / f"{task}.json" for task in TASKS]
    files = [file for file in files if file.is_file()]
    measured = json.loads(files[0].read_text(encoding="utf-8"))["model"]["fingerprint"]
    assert run["model_type"] == model
    assert run["parameters"] > 18_000_000
    monkeypatch.setattr(record, "folder_fingerprint", lambda _: measured)
    monkeypatch.setattr(record, "count_parameters", lambda _: run["parameters"])
    text = write_card(folder, files, **MODELS[model]).read_text(encoding="utf-8")
    if os.environ.get("ZOO_WRITE_EXAMPLES") == "1":
        (example / "README.md").write_text(text, encoding="utf-8")
    assert text == (example / "README.md").read_text(encoding="utf-8"), "set ZOO_WRITE_EXAMPLES=1 to write it again"
    assert as_written(text)
    assert ModelCard(text).data.eval_results
