"""Models of the zoo compute nothing at padding: links and vectors are those of the padded batch."""

from types import SimpleNamespace

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

from crosslingual_zoo.finetuning.recipe import Recipe
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.finetuning.tasks.translation import model as translation_model
from crosslingual_zoo.finetuning.tasks.translation.recipe import TranslationRecipe
from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder
from crosslingual_zoo.modeling.checkpoints import load_whole
from crosslingual_zoo.modeling.word_alignment import WordAligner
from crosslingual_zoo.zoo_core.recipes import load_recipe

TEXTS = ["A dog.", "The house on the hill is red, and the one next to it is white.", "I read.", "Two men ride to town."]


def test_load_model_skips_padding(captions, plug_in_veco):
    data = SimpleNamespace(label_names=["a", "b"])
    assert task_of(Recipe()).load_model(str(plug_in_veco), 1, data).skip_padding
    config = AutoConfig.from_pretrained(plug_in_veco, trust_remote_code=True)
    recipe = load_recipe(TranslationRecipe, None, captions)
    assert translation_model.build_model(recipe, str(plug_in_veco), config, 1).skip_padding


def test_set_skip_padding_keeps_links_and_vectors(plug_in_veco):
    model = load_whole(AutoModel, str(plug_in_veco), "model")
    tokenizer = AutoTokenizer.from_pretrained(plug_in_veco)
    assert model.skip_padding
    encoder = SentenceEncoder(model, tokenizer, batch_size=4)
    aligner = WordAligner(model, tokenizer, batch_size=4)
    results = []
    for skip in (True, False):
        model.set_skip_padding(skip)
        links = [pair.links for pair in aligner.align(list(zip(TEXTS, TEXTS[::-1], strict=True)))]
        results.append((encoder.vectors(encoder.tokens(TEXTS), range(3)), links))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-5)
    assert results[0][1] == results[1][1]
    assert all(results[0][1])
