"""What README.md shows has to be there and to be read: its commands, recipes and code. (The demo's test runs them.)"""

import ast
import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import yaml

from common.recipes import load_recipe
from finetuning.run import KINDS
from pretraining.recipe import Recipe as PreTraining

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    """The fenced blocks of a language, '' for commands."""
    parts = re.split(r"^```(.*)\n", README, flags=re.MULTILINE)  # text, fence, block, fence, text, ...
    return [block for fence, block in zip(parts[1::4], parts[2::4], strict=True) if fence == language]


COMMANDS = [
    line for block in blocks("") for line in block.splitlines() if line.startswith(("python -m", "accelerate launch"))
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_name_what_exists(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)
    if words[0] == "python":
        assert importlib.util.find_spec(words[2])
    else:
        assert Path(words[2]).is_file()
    config = words[words.index("--config") + 1] if "--config" in words else ""
    if config.endswith(".yaml"):
        module, name, _ = KINDS[yaml.safe_load(Path(config).read_text(encoding="utf-8")).get("kind", "classification")]
        fine_tuning = getattr(importlib.import_module(module), name)
        recipe_class = fine_tuning if config.startswith("finetuning") else PreTraining
        overrides = [word for word in words if "=" in word and not word.startswith("-")]
        assert load_recipe(recipe_class, config, overrides).output_dir


def test_there_are_commands():
    assert len(COMMANDS) >= 8 and len(set(COMMANDS)) == len(COMMANDS)


def test_python_and_yaml_examples_are_well_formed(tmp_path):
    for block in blocks("python"):
        ast.parse(block)
    loaded = []
    for number, block in enumerate(blocks("yaml")):
        path = tmp_path / f"{number}.yaml"
        recipe = {"output_dir": "x", "model": {"type": "veco"}, **yaml.safe_load(block)}
        path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        loaded.append(load_recipe(PreTraining, str(path), []))
    start, corpora = sorted(loaded, key=lambda recipe: len(recipe.bitext))
    assert start.model.meta_pretrained.dictionaries[0].language == "sw" and start.tokenizer
    assert len(corpora.monolingual) == 2 and len(corpora.bitext) == 3
