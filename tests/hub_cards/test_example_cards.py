"""The four example cards: each is what today's code makes of its provenance/, and nothing in them is invented.

If the code of the cards has changed, write them again:
ZOO_WRITE_EXAMPLES=1 python -m pytest tests/hub_cards/test_example_cards.py
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from hub_cards import card
from hub_cards.metadata import eval_files
from hub_cards.record import read_record

EXAMPLES = Path(__file__).parents[2] / "hub_cards" / "examples"
MODELS = ["ernie_m", "metaxlm", "veco", "xlm_align"]


@pytest.fixture
def example(zoo_model_dir, monkeypatch):
    """`example("veco")`: the folder that a card was written for, with a tiny model's weights in place of its own."""

    def copy(model):
        folder = zoo_model_dir(model, copy=True)
        shutil.copytree(EXAMPLES / model, folder, dirs_exist_ok=True)
        index = json.loads((folder / "provenance" / "record.json").read_text(encoding="utf-8"))
        monkeypatch.setattr("hub_cards.record.folder_fingerprint", lambda _: index["weights"])
        return folder, read_record(folder)

    return copy


@pytest.mark.parametrize("model", MODELS)
def test_an_example_is_what_the_code_makes_of_its_record(model, example):
    folder, record = example(model)
    text = (folder / "README.md").read_text(encoding="utf-8")
    parameters = int(re.search(r"with ([\d,]+) parameters", text)[1].replace(",", ""))
    rendered = card.render(folder, record, parameters)
    if os.environ.get("ZOO_WRITE_EXAMPLES") == "1":
        for path, content in {"README.md": rendered.encode(), **eval_files(record)}.items():
            (folder / path).write_bytes(content)
            (EXAMPLES / model / path).write_bytes(content)
        text = rendered
    assert rendered == text, f"{model}: the code of the cards has changed. Set ZOO_WRITE_EXAMPLES=1 to write it again"
    assert card.as_written(text) and ModelCard.load(folder / "README.md").data.eval_results
    for path, content in eval_files(record).items():
        assert (folder / path).read_bytes() == content


@pytest.mark.parametrize("model", MODELS)
def test_an_example_tells_of_a_real_run(model, example):
    _, record = example(model)
    assert record.recipe["model"]["type"] == model and record.run["parameters"] > 18_000_000
    assert {"udpos", "tatoeba", "word_alignment"} <= {result.content["task"] for result in record.results}
    for result in record.results:
        assert record.weights in result.content["model"]["fingerprint"]
