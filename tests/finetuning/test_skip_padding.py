"""Models of the zoo compute nothing at padding, in training, alignment and retrieval: the same links and vectors."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

from finetuning.align import command as align
from finetuning.models import load_pretrained
from finetuning.recipe import Recipe
from finetuning.tasks import by_language
from finetuning.tasks.registry import task_of
from finetuning.tasks.translation import model as translation_model
from finetuning.tasks.translation.recipe import TranslationRecipe
from finetuning.tasks.vectors.encoder import SentenceEncoder
from modeling import checkpoints
from modeling.checkpoints import without_padding
from zoo_core.recipes import load_recipe

TEXTS = ["A dog.", "The house on the hill is red, and the one next to it is white.", "I read.", "Two men ride to town."]


@pytest.fixture
def padded(monkeypatch):
    """padded(): from now on models also compute at padding. Returns the models that would have skipped it."""

    def pad():
        passed = []
        for module in (checkpoints, by_language, translation_model):
            monkeypatch.setattr(module, "without_padding", lambda model: (passed.append(model), model)[1])
        return passed

    return pad


def test_load_model_skips_padding(captions, plug_in_veco):
    data = SimpleNamespace(label_names=["a", "b"])
    assert task_of(Recipe()).load_model(str(plug_in_veco), 1, data).skip_padding
    config = AutoConfig.from_pretrained(plug_in_veco, trust_remote_code=True)
    recipe = load_recipe(TranslationRecipe, None, captions)
    assert translation_model.build_model(recipe, str(plug_in_veco), config, 1).skip_padding


def test_skip_padding_gives_the_same_links(plug_in_veco, tmp_path, padded):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("".join(f"{text} ||| {other}\n" for text, other in zip(TEXTS, TEXTS[::-1], strict=True)))
    links = []
    for name in ("ours", "padded"):
        output = tmp_path / f"{name}.txt"
        align.main(["--model", str(plug_in_veco), str(pairs), "--output", str(output), "--batch-size", "4"])
        links.append(output.read_text())
        passed = padded()
    assert links[0] == links[1] and len(links[0].split()) > len(TEXTS) and not passed


def test_skip_padding_gives_the_same_vectors(plug_in_veco):
    model = load_pretrained(AutoModel, str(plug_in_veco), "model")
    assert model.skip_padding
    tokenizer = AutoTokenizer.from_pretrained(plug_in_veco)
    found = []
    for skip in (True, False):
        model.set_skip_padding(skip)
        encoder = SentenceEncoder(model, tokenizer, batch_size=4)
        found.append(encoder.vectors(encoder.tokens(TEXTS), range(3)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


def test_without_padding_of_other_models(tiny_model):
    model = AutoModel.from_pretrained(tiny_model)
    assert without_padding(model) is model and not hasattr(model, "skip_padding")
