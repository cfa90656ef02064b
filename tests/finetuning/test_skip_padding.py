"""Models of the zoo compute nothing at padding, in training, evaluation, alignment, retrieval and translation: the same
scores, links, vectors and weights as with padding."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from finetuning import checkpoints, trainer
from finetuning.align import command as align
from finetuning.checkpoints import load_pretrained, without_padding
from finetuning.results.table import read_results
from finetuning.run import main
from finetuning.tasks.retrieval.sentence_vectors import SentenceEncoder
from finetuning.tasks.translation import model as translation_model

TEXTS = ["A dog.", "The house on the hill is red, and the one beside it is white.", "I read.", "Two men ride to town."]


@pytest.fixture
def padded(monkeypatch):
    """padded(): from now on models compute at padding too. Returns the models that would have been told not to."""

    def pad():
        passed = []
        for module in (checkpoints, trainer, translation_model):
            monkeypatch.setattr(module, "without_padding", lambda model: (passed.append(model), model)[1])
        return passed

    return pad


def results_of(folder, seed=1):
    results = read_results(folder)
    weights = load_file(folder / f"seed-{seed}" / "model" / "model.safetensors")
    # softmax does not see a key's bias: its gradient is rounding error, which AdamW makes large
    return results, {name: weight for name, weight in weights.items() if not name.endswith("key.bias")}


@pytest.mark.slow
def test_scores_and_weights_of_a_run_are_the_same(topics, plug_in_veco, tmp_path, padded):
    settings = [f"model={plug_in_veco}", "seeds=[1]", "training.learning_rate=1e-3"]
    main([*topics, *settings, f"output_dir={tmp_path / 'ours'}"])
    passed = padded()
    main([*topics, *settings, f"output_dir={tmp_path / 'padded'}"])
    assert [model.skip_padding for model in passed] == [False]
    (ours, weights), (other, padded_weights) = (results_of(tmp_path / name) for name in ("ours", "padded"))
    assert ours.languages == other.languages
    torch.testing.assert_close(weights, padded_weights, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_translations_and_weights_are_the_same(captions, plug_in_veco, tmp_path, padded):
    settings = [f"model={plug_in_veco}", "training.learning_rate=1e-3"]
    main([*captions, *settings, f"output_dir={tmp_path / 'ours'}"])
    passed = padded()
    main([*captions, *settings, f"output_dir={tmp_path / 'padded'}"])
    assert [model.skip_padding for model in passed] == [False]
    (ours, weights), (other, padded_weights) = (results_of(tmp_path / name) for name in ("ours", "padded"))
    torch.testing.assert_close(weights, padded_weights, rtol=1e-3, atol=1e-5)
    written = [(tmp_path / name / "seed-1" / "test.en-de.hypothesis.txt").read_text() for name in ("ours", "padded")]
    assert written[0] == written[1]


def test_links_are_the_same(plug_in_veco, tmp_path, padded):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("".join(f"{text} ||| {other}\n" for text, other in zip(TEXTS, TEXTS[::-1], strict=True)))
    links = []
    for name in ("ours", "padded"):
        output = tmp_path / f"{name}.txt"
        align.main(["--model", str(plug_in_veco), str(pairs), "--output", str(output), "--batch-size", "4"])
        links.append(output.read_text())
        passed = padded()
    assert links[0] == links[1] and len(links[0].split()) > len(TEXTS) and not passed


def test_vectors_are_the_same_at_every_layer(plug_in_veco):
    model = load_pretrained(AutoModel, str(plug_in_veco), "model")
    assert model.skip_padding
    tokenizer = AutoTokenizer.from_pretrained(plug_in_veco)
    found = []
    for skip in (True, False):
        model.set_skip_padding(skip)
        encoder = SentenceEncoder(model, tokenizer, batch_size=4)
        found.append(encoder.vectors(encoder.tokens(TEXTS), range(3)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


def test_models_of_other_libraries_and_of_older_code_are_taken_as_they_are(tiny_model):
    model = AutoModel.from_pretrained(tiny_model)
    assert without_padding(model) is model and not hasattr(model, "skip_padding")
