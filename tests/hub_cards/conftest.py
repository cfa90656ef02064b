"""What the tests of hub_cards share: folders with their cards, and the Space."""

import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from zoo_core.provenance import folder_fingerprint


@pytest.fixture(scope="session")
def ready_folder(zoo_model_dir, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`ready_folder(model_type="xlm_align", repo="owner/model")`: a model folder of one's own, with its card."""
    made: dict[tuple[str, str], Path] = {}

    def folder_of(model_type: str = "xlm_align", repo: str = "owner/model") -> Path:
        from hub_cards.card import write_card

        if (model_type, repo) not in made:
            made[model_type, repo] = zoo_model_dir(model_type, copy=True)
            write_card(made[model_type, repo], repo=repo, license="apache-2.0")
        return Path(shutil.copytree(made[model_type, repo], tmp_path_factory.mktemp("ready") / "model"))

    return folder_of


@pytest.fixture
def small_model() -> Callable[..., Path]:
    """`small_model(folder, model_class=XLMRobertaForMaskedLM, **config)`: a model of a type that the zoo has not."""
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    def write(folder: Path, model_class=XLMRobertaForMaskedLM, **config) -> Path:
        torch.manual_seed(0)
        sizes = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
        model_class(XLMRobertaConfig(max_position_embeddings=20, **sizes, **config)).save_pretrained(folder)
        return folder

    return write


@pytest.fixture
def made_up_run(zoo_model_dir, tmp_path: Path) -> Callable[..., tuple[Path, list[Path]]]:
    """`made_up_run(model_type, *kinds, head="ForPreTraining")`: a pre-training run's model folder, and its results.

    Recipe, run facts and results are those of made_up_run.yaml; of each kind of task there is a run folder with plots.
    """

    def written(model_type: str, *kinds: str, head: str = "ForPreTraining") -> tuple[Path, list[Path]]:
        content = yaml.safe_load(Path(__file__).with_name("made_up_run.yaml").read_text(encoding="utf-8"))
        run = tmp_path / f"{model_type}-made-up"
        shutil.copytree(zoo_model_dir(model_type, head), run / "model")
        content["recipe"]["model"]["type"] = model_type
        (run / "recipe.yaml").write_text(yaml.safe_dump(content["recipe"]))
        (run / "run.json").write_text(json.dumps(content["run"]))
        (run / "curves.png").write_bytes(b"\x89PNG curves")
        files = []
        for kind in kinds:
            record = content["results"][kind]
            for table in record["protocol"]["training_data"] + record["protocol"]["evaluation_data"]:
                table["fingerprint"] = f"sha256:of {table['path']}"
            model = {"folder": f"runs/{model_type}-made-up/model", "fingerprint": folder_fingerprint(run / "model")}
            record = {"model": model, **record}
            files.append(run / record["task"] / "results.json")
            files[-1].parent.mkdir()
            files[-1].write_text(json.dumps(record))
            (files[-1].parent / "run.json").write_text(json.dumps(content["run"]))
            (files[-1].parent / "scores.png").write_bytes(f"\x89PNG plot of {kind}".encode("latin-1"))
        return run / "model", files

    return written


@pytest.fixture(scope="session")
def space() -> SimpleNamespace:
    """The modules of the Space that need no gradio, by name; they import one another as they do there."""
    folder = str(Path(__file__).parents[2] / "hub_cards" / "space")
    sys.path.insert(0, folder)
    try:
        names = ("loading", "answers", "samples", "drawing", "app")
        return SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(folder)


@pytest.fixture(scope="session")
def space_server(zoo_model_dir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Path]]]:
    """The Space, as it runs from a folder of its own: its address, and the models that it was given.

    They are an XLM-Align model, and a MetaXLM that was fine-tuned to classify, in folders of one name.
    """
    here = tmp_path_factory.mktemp("space")
    shutil.copytree(Path(__file__).parents[2] / "hub_cards" / "space", here / "space")
    models = [here / "first" / "model", here / "second" / "model"]
    for path, found in zip(
        models,
        (zoo_model_dir("xlm_align"), zoo_model_dir("metaxlm", "ForSequenceClassification", num_hidden_layers=3)),
        strict=True,
    ):
        shutil.copytree(found, path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "space/app.py", "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GRADIO_", "ZOO_"))}
    running = subprocess.Popen(
        [*command, *(part for path in models for part in ("--model", str(path)))],
        cwd=here,
        env=environment | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with running:
        try:
            said = []
            for line in running.stdout:
                said.append(line)
                if "Running on" in line:
                    break
            else:
                pytest.fail("the Space did not start: " + "".join(said[-20:]))
            yield f"http://127.0.0.1:{port}", models
        finally:
            running.terminate()
