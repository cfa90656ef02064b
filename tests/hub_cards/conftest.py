"""What the tests of hub_cards share: folders with their cards."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from crosslingual_zoo.zoo_core.provenance import folder_fingerprint


@pytest.fixture(scope="session")
def ready_folder(zoo_model_dir, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`ready_folder(model_type="xlm_align", repo="owner/model")`: a model folder of one's own, with its card."""
    made: dict[tuple[str, str], Path] = {}

    def folder_of(model_type: str = "xlm_align", repo: str = "owner/model") -> Path:
        from crosslingual_zoo.hub_cards.card import write_card

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
    """`made_up_run(model_type, *kinds)`: a pre-training run's model folder, and its results: all as made_up_run.yaml
    has them."""

    def written(model_type: str, *kinds: str) -> tuple[Path, list[Path]]:
        content = yaml.safe_load(Path(__file__).with_name("made_up_run.yaml").read_text(encoding="utf-8"))
        run = tmp_path / f"{model_type}-made-up"
        shutil.copytree(zoo_model_dir(model_type, "ForPreTraining"), run / "model")
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
            record |= {"model": model}
            files.append(run / record["task"] / "results.json")
            files[-1].parent.mkdir()
            files[-1].write_text(json.dumps(record))
        return run / "model", files

    return written
