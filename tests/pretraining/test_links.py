"""The objective `word_links`: rows of words and links, and a loss on the aligner's own probabilities."""

import itertools
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch.nn.functional import binary_cross_entropy

from crosslingual_zoo.modeling.configuration_xlm_align import XlmAlignConfig
from crosslingual_zoo.modeling.modeling_xlm_align import XlmAlignForPreTraining
from crosslingual_zoo.modeling.word_alignment import WordAligner
from crosslingual_zoo.pretraining.data.batches import load_corpora, training_batches
from crosslingual_zoo.pretraining.objectives.links import LinksCollator
from crosslingual_zoo.pretraining.objectives.mlm import MlmCollator

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, alignment_layer=1)


@pytest.fixture(scope="module")
def examples(sample_corpus_dir):
    """English and German sentences with links made by hand."""
    stem = sample_corpus_dir / "alignments" / "en-de"
    columns = (Path(f"{stem}.{end}").read_text(encoding="utf-8").splitlines() for end in ("txt", "gold"))
    lines = zip(*columns, strict=True)
    sides = ((*pair.split(" ||| "), links) for pair, links in lines)
    return [dict(zip(("source", "target", "links"), example, strict=True)) for example in sides]


@pytest.fixture(scope="module")
def model(sample_tokenizer):
    torch.manual_seed(0)
    config = XlmAlignConfig(vocab_size=len(sample_tokenizer), max_position_embeddings=130, **SIZES)
    return XlmAlignForPreTraining(config).eval()


def links_of(example, kind):
    """{(source word, target word)} of an example's links with the sign `-` or `p`."""
    return {tuple(map(int, link.split(kind))) for link in example["links"].split() if kind in link}


def test_link_losses_are_those_of_the_aligner_s_probabilities(examples, model, sample_tokenizer):
    """The loss sums over all word pairs except possible links. Other rows of the batch do not change it."""
    output = model(**LinksCollator(sample_tokenizer)(examples))
    aligner = WordAligner(model, sample_tokenizer, layer=1, threshold=1e-9)
    pairs = [(example["source"].split(), example["target"].split()) for example in examples]
    expected, words = [], []
    for example, (source, target), found in zip(examples, pairs, aligner.align(pairs, probabilities=True), strict=True):
        probabilities = dict(zip(found.links, found.probabilities, strict=True))
        cells = set(itertools.product(range(len(source)), range(len(target)))) - links_of(example, "p")
        assert cells <= probabilities.keys()
        order = sorted(cells)
        right = torch.tensor([float(cell in links_of(example, "-")) for cell in order])
        found = torch.tensor([probabilities[cell] for cell in order])
        expected.append(float(binary_cross_entropy(found, right, reduction="sum")))
        words.append(len(source))
    assert output.loss_sum.item() == pytest.approx(sum(expected), rel=1e-4)
    losses_N, rows_N = output.token_losses["word_links"], output.batch_rows["word_links"]
    assert rows_N.bincount().tolist() == words  # a prediction for each word of the source
    by_row = torch.zeros(len(examples)).index_add(0, rows_N, losses_N)
    torch.testing.assert_close(by_row, torch.tensor(expected), rtol=1e-4, atol=1e-4)
    assert output.loss.item() == pytest.approx(sum(expected) / sum(words), rel=1e-4)
    output.loss.backward()
    layers = model.roberta.encoder.layer
    assert layers[0].output.dense.weight.grad.any() and layers[1].output.dense.weight.grad is None


def test_link_losses_of_rows_that_the_model_labels(examples, model, sample_tokenizer):
    """Its confident links are the labels, and the rest has no loss. Losses of other rows do not change."""
    given = [{**example, "links": "" if number % 2 else example["links"]} for number, example in enumerate(examples)]
    output = model(**LinksCollator(sample_tokenizer)(given))
    with_links = model(**LinksCollator(sample_tokenizer)(examples))
    aligner = WordAligner(model, sample_tokenizer, layer=1, threshold=1e-9)
    pairs = [(example["source"].split(), example["target"].split()) for example in examples]
    confident = 0
    for row, found in enumerate(aligner.align(pairs, probabilities=True)):
        loss = output.token_losses["word_links"][output.batch_rows["word_links"] == row].sum().item()
        expected = with_links.token_losses["word_links"][with_links.batch_rows["word_links"] == row].sum().item()
        if row % 2:
            probabilities = torch.tensor(found.probabilities)
            sure = torch.cat([probabilities[probabilities >= 0.8], 1 - probabilities[probabilities < 0.2]])
            expected, confident = -sure.log().sum().item(), confident + int((probabilities >= 0.8).sum())
        assert loss == pytest.approx(expected, rel=1e-3)
    assert confident


@pytest.mark.parametrize("links", ["7-7 6-6", "0-7"])
def test_links_collator_of_a_pair_whose_links_are_all_cut_off(links, model, sample_tokenizer):
    """The model does not label it: each pair of the words that are left is none."""
    example = {"source": "a b c d e f g h", "target": "i j k l m n o p", "links": links}
    batch = LinksCollator(sample_tokenizer, max_length=8)([example, {**example, "links": ""}])
    logits_BST, cells_BST = model.word_logits(batch["word_links"])
    output = model(**batch)
    losses_N = output.token_losses["word_links"][output.batch_rows["word_links"] == 0]
    expected = binary_cross_entropy(logits_BST[0].sigmoid(), torch.zeros_like(logits_BST[0]), reduction="none")
    torch.testing.assert_close(losses_N, (expected * cells_BST[0]).sum(1)[: len(losses_N)])
    assert len(batch["word_links"]["links"]) == 0 and losses_N.sum() > 0


def test_collators_and_encodings_do_not_depend_on_what_read_before(sample_tokenizer):
    """Texts that hold names of special tokens: corpora and words of the aligner are text, and the library's own call,
    which encodes labeled texts, goes on to find special tokens in them."""
    text = "the <mask> house </s> is small"
    example = {"source": "the </s> house <mask>", "target": "das <pad> Haus", "links": "0-0 2-2 3-1"}
    collate = LinksCollator(sample_tokenizer)

    def links_of_pair() -> dict:
        return collate([example])["word_links"]

    labeled = sample_tokenizer(text, text, truncation=True, max_length=12, padding="max_length")
    before = links_of_pair()
    torch.manual_seed(0)
    rows = MlmCollator(sample_tokenizer)([{"text": text}])["mlm"]
    after = links_of_pair()
    for name in ("x", "y"):
        assert after[name].keys() == before[name].keys()
        for key, values in before[name].items():
            assert torch.equal(torch.as_tensor(after[name][key]), torch.as_tensor(values)), key
    assert torch.equal(after["links"], before["links"]) and before["links"][:, 1:3].tolist() == [[0, 0], [2, 2], [3, 1]]
    again = sample_tokenizer(text, text, truncation=True, max_length=12, padding="max_length")
    assert again["input_ids"] == labeled["input_ids"] and sample_tokenizer.mask_token_id in labeled["input_ids"]
    links_of_pair()
    torch.manual_seed(0)
    assert torch.equal(MlmCollator(sample_tokenizer)([{"text": text}])["mlm"]["input_ids"], rows["input_ids"])


def test_links_of_are_numbered_by_words_with_tokens(sample_tokenizer):
    """Links to what was cut off, or has no token, are left out."""
    example = {"source": "a \u200b unbelievably b", "target": "a b c d e f g h i j", "links": "0-0 1-1 2p2 3-3 0-9"}
    batch = LinksCollator(sample_tokenizer, max_length=8)([example])["word_links"]
    for side in ("x", "y"):
        words, is_special = batch[side]["words"][0], batch[side]["special_tokens_mask"][0].bool()
        assert torch.equal(words >= 0, ~is_special) and len(words) <= 8
        numbers = words[words >= 0].tolist()
        assert numbers == sorted(numbers) and set(numbers) == set(range(max(numbers) + 1))
    assert (batch["links"][:, 1] <= batch["x"]["words"].max()).all()
    assert (batch["links"][:, 2] <= batch["y"]["words"].max()).all()
    assert [0, 0, 0, 1] in batch["links"].tolist()


def test_links_collator_measures_the_aligner_s_aer(examples, files, recipe_of, model, sample_tokenizer):
    table = {"path": files.jsonl("gold.jsonl", examples), "source_language": "en", "target_language": "de"}
    evaluation = {"held_out_fraction": 0.5}
    recipe = recipe_of({"word_links": {"batch_size": 4, "max_length": 128}}, linked=[table], evaluation=evaluation)
    (corpus,) = load_corpora(recipe, sample_tokenizer)
    held_out = [examples[number] for number in corpus.held_out.ids]
    assert 4 < len(held_out) < 16
    with torch.no_grad():
        found = LinksCollator(sample_tokenizer, max_length=128).measure(model, Accelerator(cpu=True), corpus, 3)
    pairs = [(example["source"].split(), example["target"].split()) for example in held_out]
    links = [set(of.links) for of in WordAligner(model, sample_tokenizer, layer=1).align(pairs)]
    sure = [links_of(example, "-") for example in held_out]
    right = [of & (gold | links_of(example, "p")) for of, gold, example in zip(links, sure, held_out, strict=True)]
    hits = sum(len(of) for of in right) + sum(len(of & gold) for of, gold in zip(links, sure, strict=True))
    aer = 100 - 100 * hits / (sum(map(len, links)) + sum(map(len, sure)))
    assert found == {"link_aer/en-de": pytest.approx(aer)}


def test_links_collator_of_a_table_without_links(examples, files, recipe_of, sample_tokenizer):
    languages = {"source_language": "en", "target_language": "de", "size": 1}
    path = files.jsonl("gold.jsonl", examples)
    tables = [languages | {"path": path, "name": "a"}, languages | {"path": path, "name": "b", "links_column": None}]
    recipe = recipe_of({"word_links": {"batch_size": 64, "max_length": 128}}, linked=tables)
    corpora = load_corpora(recipe, sample_tokenizer)
    batch = next(iter(training_batches(recipe, 0, corpora, sample_tokenizer)))["word_links"]
    has_links = torch.zeros(64, dtype=torch.bool)
    has_links[batch["links"][:, 0]] = True
    assert has_links.tolist() == [name == "en-de/a" for name in batch["corpus_names"]]
    assert 16 < has_links.sum() < 48  # half of the rows, as the sizes are equal
