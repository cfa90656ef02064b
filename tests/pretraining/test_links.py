"""The objective `word_links`: rows of words and links, and a loss on the aligner's own probabilities."""

import itertools

import pytest
import torch
from accelerate import Accelerator
from torch.nn.functional import binary_cross_entropy

from crosslingual_zoo.modeling.configuration_xlm_align import XlmAlignConfig
from crosslingual_zoo.modeling.modeling_xlm_align import XlmAlignForPreTraining
from crosslingual_zoo.modeling.word_alignment import WordAligner
from crosslingual_zoo.pretraining.data.batches import load_corpora, training_batches
from crosslingual_zoo.pretraining.objectives.links import LinksCollator

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, alignment_layer=1)


@pytest.fixture(scope="module")
def examples(sample_corpus_dir):
    """English and German sentences with links made by hand."""
    folder = sample_corpus_dir / "alignments"
    pairs = (folder / "en-de.txt").read_text(encoding="utf-8").splitlines()
    links = (folder / "en-de.gold").read_text(encoding="utf-8").splitlines()
    rows = []
    for pair, links_of_pair in zip(pairs, links, strict=True):
        source, target = pair.split(" ||| ")
        rows.append({"source": source, "target": target, "links": links_of_pair})
    return rows


@pytest.fixture(scope="module")
def model(sample_tokenizer):
    """A tiny XLM-Align with random weights."""
    torch.manual_seed(0)
    config = XlmAlignConfig(vocab_size=len(sample_tokenizer), max_position_embeddings=130, **SIZES)
    return XlmAlignForPreTraining(config).eval()


def links_of(example, kind):
    """{(source word, target word)} of an example's links with the sign `-` or `p`."""
    return {tuple(map(int, link.split(kind))) for link in example["links"].split() if kind in link}


def words_of(examples):
    return [(example["source"].split(), example["target"].split()) for example in examples]


def all_probabilities(examples, model, tokenizer):
    """What the aligner gives if it links every pair of words."""
    aligner = WordAligner(model, tokenizer, layer=1, threshold=1e-9)
    return aligner.align(words_of(examples), probabilities=True)


def losses_of(output, row):
    """The losses of a row of the batch."""
    return output.token_losses["word_links"][output.batch_rows["word_links"] == row]


def test_link_losses_are_those_of_the_aligner_s_probabilities(examples, model, sample_tokenizer):
    """The loss sums over all word pairs except possible links. Other rows of the batch do not change it."""
    output = model(**LinksCollator(sample_tokenizer)(examples))
    loss_sum = 0.0
    num_words = 0
    for row, alignment in enumerate(all_probabilities(examples, model, sample_tokenizer)):
        example = examples[row]
        source, target = words_of([example])[0]
        cells = sorted(set(itertools.product(range(len(source)), range(len(target)))) - links_of(example, "p"))
        probabilities = dict(zip(alignment.links, alignment.probabilities, strict=True))
        probabilities_N = torch.tensor([probabilities[cell] for cell in cells])
        labels_N = torch.tensor([float(cell in links_of(example, "-")) for cell in cells])
        expected = binary_cross_entropy(probabilities_N, labels_N, reduction="sum")
        losses_N = losses_of(output, row)
        assert len(losses_N) == len(source)  # a prediction for each word of the source
        torch.testing.assert_close(losses_N.sum(), expected, rtol=1e-4, atol=1e-4)
        loss_sum += expected.item()
        num_words += len(source)
    assert output.loss_sum.item() == pytest.approx(loss_sum, rel=1e-4)
    assert output.loss.item() == pytest.approx(loss_sum / num_words, rel=1e-4)
    output.loss.backward()
    lower, upper = model.roberta.encoder.layer
    assert lower.output.dense.weight.grad.any()
    assert upper.output.dense.weight.grad is None


def test_link_losses_of_rows_that_the_model_labels(examples, model, sample_tokenizer):
    """Its confident links are the labels, and the rest has no loss. Losses of other rows do not change."""
    half_labeled = [dict(example) for example in examples]
    for example in half_labeled[1::2]:
        example["links"] = ""
    output = model(**LinksCollator(sample_tokenizer)(half_labeled))
    with_links = model(**LinksCollator(sample_tokenizer)(examples))
    num_confident = 0
    for row, alignment in enumerate(all_probabilities(examples, model, sample_tokenizer)):
        expected = losses_of(with_links, row).sum()
        if row % 2:
            probabilities = torch.tensor(alignment.probabilities)
            links = probabilities[probabilities >= 0.8]
            none = probabilities[probabilities < 0.2]
            expected = -links.log().sum() - (1 - none).log().sum()
            num_confident += len(links)
        assert losses_of(output, row).sum().item() == pytest.approx(expected.item(), rel=1e-3)
    assert num_confident


@pytest.mark.parametrize("links", ["7-7 6-6", "0-7"])
def test_links_collator_of_a_pair_whose_links_are_all_cut_off(links, model, sample_tokenizer):
    """The model does not label it: each pair of the words that are left is none."""
    example = {"source": "a b c d e f g h", "target": "i j k l m n o p", "links": links}
    batch = LinksCollator(sample_tokenizer, max_length=8)([example, {**example, "links": ""}])
    logits_BST, cells_BST = model.word_logits(batch["word_links"])
    losses_N = losses_of(model(**batch), 0)
    expected_ST = binary_cross_entropy(logits_BST[0].sigmoid(), torch.zeros_like(logits_BST[0]), reduction="none")
    torch.testing.assert_close(losses_N, (expected_ST * cells_BST[0]).sum(1)[: len(losses_N)])
    assert losses_N.sum() > 0
    assert len(batch["word_links"]["links"]) == 0


def test_links_of_are_numbered_by_words_with_tokens(sample_tokenizer):
    """Links to what was cut off, or has no token, are left out."""
    example = {"source": "a \u200b unbelievably b", "target": "a b c d e f g h i j", "links": "0-0 1-1 2p2 3-3 0-9"}
    batch = LinksCollator(sample_tokenizer, max_length=8)([example])["word_links"]
    for column, side in ((1, "x"), (2, "y")):
        words = batch[side]["words"][0]
        assert len(words) <= 8
        assert torch.equal(words >= 0, batch[side]["special_tokens_mask"][0] == 0)
        numbers = words[words >= 0].tolist()
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(max(numbers) + 1))
        assert batch["links"][:, column].max() <= max(numbers)
    assert [0, 0, 0, 1] in batch["links"].tolist()


def test_links_collator_measures_the_aligner_s_aer(examples, files, recipe_of, model, sample_tokenizer):
    table = {"path": files.jsonl("gold.jsonl", examples), "source_language": "en", "target_language": "de"}
    evaluation = {"held_out_fraction": 0.5}
    recipe = recipe_of({"word_links": {"batch_size": 4, "max_length": 128}}, linked=[table], evaluation=evaluation)
    (corpus,) = load_corpora(recipe, sample_tokenizer)
    held_out = [examples[number] for number in corpus.held_out.ids]
    assert 4 < len(held_out) < 16
    with torch.no_grad():
        measured = LinksCollator(sample_tokenizer, max_length=128).measure(model, Accelerator(cpu=True), corpus, 3)
    hits = 0
    total = 0
    alignments = WordAligner(model, sample_tokenizer, layer=1).align(words_of(held_out))
    for example, alignment in zip(held_out, alignments, strict=True):
        links = set(alignment.links)
        sure = links_of(example, "-")
        possible = links_of(example, "p")
        hits += len(links & sure) + len(links & (sure | possible))
        total += len(links) + len(sure)
    assert measured == {"link_aer/en-de": pytest.approx(100 - 100 * hits / total)}


def test_links_collator_of_a_table_without_links(examples, files, recipe_of, sample_tokenizer):
    languages = {"source_language": "en", "target_language": "de", "size": 1}
    with_links = languages | {"path": files.jsonl("gold.jsonl", examples), "name": "a"}
    without = with_links | {"name": "b", "links_column": None}
    recipe = recipe_of({"word_links": {"batch_size": 64, "max_length": 128}}, linked=[with_links, without])
    corpora = load_corpora(recipe, sample_tokenizer)
    batch = next(iter(training_batches(recipe, 0, corpora, sample_tokenizer)))["word_links"]
    has_links = torch.zeros(64, dtype=torch.bool)
    has_links[batch["links"][:, 0]] = True
    assert has_links.tolist() == [name == "en-de/a" for name in batch["corpus_names"]]
    assert 16 < has_links.sum() < 48  # half of the rows, as the sizes are equal
