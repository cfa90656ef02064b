"""Collators: rows and masks, as data collators of a DataLoader and in transformers' Trainer."""

import json
import math
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from bench.masked_lm_step import made_up_tokenizer
from crosslingual_zoo.modeling.configuration_ernie_m import ErnieMConfig
from crosslingual_zoo.modeling.modeling_ernie_m import ErnieMForPreTraining
from crosslingual_zoo.pretraining.data.examples import cut_pair, encode_texts, random_window
from crosslingual_zoo.pretraining.data.languages import Languages
from crosslingual_zoo.pretraining.objectives import OBJECTIVES, Collator
from crosslingual_zoo.pretraining.objectives.btmlm import BtmlmCollator
from crosslingual_zoo.pretraining.objectives.ca_mlm import CaMlmPairsCollator
from crosslingual_zoo.pretraining.objectives.camlm import CamlmCollator
from crosslingual_zoo.pretraining.objectives.mlm import MlmCollator
from crosslingual_zoo.pretraining.objectives.tlm import TlmCollator
from crosslingual_zoo.pretraining.rows import inputs_of, lay_out
from crosslingual_zoo.zoo_core.masking import IGNORED
from tests.pretraining.made_texts import Example, texts_of

COLLATORS = {name: kind for name, kind in OBJECTIVES.items() if issubclass(kind, Collator) and kind.text != "linked"}
ROW_FIELDS = {"input_ids", "labels", "attention_mask", "special_tokens_mask", "segment_ids"}
CODES = ["zh", "en", "de"]
CORPORA = [
    SimpleNamespace(name=name, languages=name.split("-"), size=100) for name in ("en", "en-de", "en-zh", "de-zh")
]
LANGUAGES = Languages.of(SimpleNamespace(languages=CODES), CORPORA, alpha=0.5)
HALF = 0.5  # mask_probability
GOOD = {"source": "The house is small.", "target": "Das Haus ist klein."}


@pytest.fixture(scope="module")
def pairs(sample_corpus_dir):
    """English and German sentences as a user may have them: texts with the codes of their languages."""
    rows = {}
    for code in ("en", "de"):
        with (sample_corpus_dir / code / "train.jsonl").open(encoding="utf-8") as lines:
            rows[code] = [json.loads(line) for line in lines]
    codes = {"source_language": "en", "target_language": "de", "language": "en"}
    examples = []
    for english, german in zip(rows["en"][:64], rows["de"], strict=False):
        assert english["id"] == german["id"]
        examples.append({"source": english["text"], "target": german["text"], "text": english["text"], **codes})
    return examples


def gold(fields):
    """The rows before they were masked, without padding."""
    ids = torch.where(fields["labels"] == IGNORED, fields["input_ids"], fields["labels"])
    return [row[segments >= 0].tolist() for row, segments in zip(ids, fields["segment_ids"], strict=True)]


def test_collate_rows_have_xlm_r_s_form(sample_tokenizer):
    english = ["Anna bakes fresh bread.", "The train is late.", "Rain."]
    german = ["Anna backt frisches Brot.", "Der Zug ist spät.", "Es regnet heute den ganzen Tag."]
    mlm = MlmCollator(sample_tokenizer)([{"text": text} for text in english])["mlm"]
    assert gold(mlm) == sample_tokenizer(english)["input_ids"]
    examples = [{"source": source, "target": target} for source, target in zip(english, german, strict=True)]
    tlm = TlmCollator(sample_tokenizer)(examples)["tlm"]
    assert gold(tlm) == sample_tokenizer(english, german)["input_ids"]


def test_collate_segments_of_a_pair(sample_tokenizer):
    sides = [[np.array([10, 11]), np.array([], dtype=int)], [np.array([20]), np.array([21])]]
    rows = lay_out(sides, sample_tokenizer).fields()
    assert rows["input_ids"].tolist() == [[0, 10, 11, 2, 2, 20, 2], [0, 2, 2, 21, 2, 1, 1]]
    assert rows["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, -1, -1]]
    assert rows["special_tokens_mask"].tolist() == [[1, 0, 0, 1, 1, 0, 1], [1, 1, 1, 0, 1, 1, 1]]
    assert rows["attention_mask"].tolist() == [[1] * 7, [1] * 5 + [0] * 2]


def random_examples(kind) -> list[Example]:
    """Examples of the kind of text that a collator reads, of lengths from 1 to 39."""
    rng = np.random.default_rng(0)
    num_sides = 2 if kind.text == "bitext" or kind.apart else 1
    corpus = "en" if kind.text == "monolingual" else "en-de"
    examples = []
    for number in range(30):
        sides = [rng.integers(10, 1900, rng.integers(1, 40)) for _ in range(num_sides)]
        examples.append(Example(sides, corpus, number, epoch=number % 3))
    return examples


def assert_row_is(alone, batch, row, names) -> None:
    """A row of the batch holds the only row of `alone`, and padding."""
    length = alone["input_ids"].shape[1]
    assert int((batch["segment_ids"][row] >= 0).sum()) == length
    for name in names:
        assert torch.equal(alone[name][0], batch[name][row, :length]), name
    for name in {"attention_mask", "generation_mask"} & alone.keys():
        mask = batch[name][row]
        unpadded = mask[tuple(slice(length) for _ in mask.shape)]
        assert torch.equal(alone[name][0], unpadded)
        assert mask.sum() == unpadded.sum()


@pytest.mark.parametrize("name", COLLATORS)
def test_mask_does_not_depend_on_the_company(name, sample_tokenizer):
    """Alone and in a batch: all fields of every objective."""
    kind = COLLATORS[name]
    options = {"mask_probability": HALF}
    row_fields = set(ROW_FIELDS)
    if kind.language_share > 0:
        options["languages"] = LANGUAGES
        row_fields.add("language_ids")
    if name == "tlm":
        options["draws"] = True
        row_fields.add("draws")
    collator = kind(sample_tokenizer, **options)
    examples = random_examples(kind)
    together = collator.sub_batch(texts_of(examples), (1, 0))
    for inputs in inputs_of(together):
        names = {key for key, field in inputs.items() if torch.is_tensor(field) and field.dim() == 2}
        assert names | {"attention_mask"} == row_fields
        assert (inputs["labels"] != IGNORED).any()
    for row, example in enumerate(examples):
        alone = collator.sub_batch(texts_of([example]), (1, 0))
        for inputs, batch in zip(inputs_of(alone), inputs_of(together), strict=True):
            assert_row_is(inputs, batch, row, row_fields - {"attention_mask"})


def test_mask_depends_on_seed_epoch_objective_corpus_and_example(sample_tokenizer):
    def labels(key=(1, 0), corpus="en", number=0, epoch=0, name="mlm"):
        texts = texts_of([Example([np.arange(10, 30)], corpus, number, epoch=epoch)])
        return COLLATORS[name](sample_tokenizer, mask_probability=HALF).sub_batch(texts, key)["labels"]

    assert torch.equal(labels(), labels())
    for change in ({"key": (2, 0)}, {"key": (1, 1)}, {"epoch": 1}, {"number": 1}, {"corpus": "de"}, {"name": "tlm"}):
        assert not torch.equal(labels(**change), labels()), change


def test_mask_of_the_two_sides_is_their_own(sample_tokenizer):
    side = np.arange(10, 200)
    texts = texts_of([Example([side, side], "en-de", 0)])
    batch = COLLATORS["ca_mlm_pairs"](sample_tokenizer, mask_probability=HALF).sub_batch(texts, (1, 0))
    assert (batch["x"]["labels"] != batch["y"]["labels"]).any()
    assert set(batch) == {"x", "y", "corpus_names", "examples"}
    camlm = COLLATORS["camlm"](sample_tokenizer, mask_probability=HALF, languages=LANGUAGES)
    labels = camlm.sub_batch(texts, (1, 0))["labels"][0]
    assert (labels[1:191] != labels[193:383]).any()


def test_mask_never_takes_unknown_and_special_tokens(sample_tokenizer):
    collate = COLLATORS["mlm"](sample_tokenizer, mask_probability=0.999)
    ordinary = set(range(len(sample_tokenizer))) - set(sample_tokenizer.all_special_ids)
    assert sorted(collate.vocabulary.tolist()) == sorted(ordinary)
    unknown = sample_tokenizer.unk_token_id
    texts = texts_of([Example([np.array([unknown, 50, unknown], dtype=np.int32)], "en", 0)])
    fields = collate.sub_batch(texts, (1,))
    assert fields["labels"].tolist() == [[IGNORED, IGNORED, 50, IGNORED, IGNORED]]
    assert fields["special_tokens_mask"].tolist() == [[1, 0, 0, 0, 1]]  # but it is a token of the text


def test_collators_in_transformers_own_trainer(pairs, sample_tokenizer, tmp_path):
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    sizes |= dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = ErnieMConfig(vocab_size=len(sample_tokenizer), max_position_embeddings=130, **sizes)
    options = dict(learning_rate=1e-2, num_train_epochs=6, eval_strategy="epoch", logging_strategy="epoch")
    options |= dict(per_device_train_batch_size=8, gradient_accumulation_steps=2, report_to=[], disable_tqdm=True)
    options |= dict(use_cpu=True, remove_unused_columns=False)  # the collator reads the texts
    arguments = TrainingArguments(output_dir=str(tmp_path), **options)
    dataset = Dataset.from_list(pairs)
    collate = CamlmCollator(sample_tokenizer, max_length=128)
    trainer = Trainer(ErnieMForPreTraining(config), arguments, collate, dataset, dataset)
    trainer.train()

    def logged(name):
        return [line[name] for line in trainer.state.log_history if name in line]

    losses = logged("loss")
    evaluated = logged("eval_loss")
    assert losses[0] == pytest.approx(math.log(len(sample_tokenizer)), abs=1.0)  # a mean, accumulated or not
    assert losses[-1] < losses[0] - 0.5
    assert evaluated[-1] < evaluated[0] - 0.3
    assert max(logged("grad_norm")) < 20  # a sum's would be hundreds


def test_collators_masks_change_with_call_and_process_and_are_repeated_by_torch_s_seed(
    pairs, sample_tokenizer, monkeypatch
):
    """The Trainer seeds all processes alike."""
    collate = MlmCollator(sample_tokenizer)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)

    def labels_of(rank):
        """The labels of the process's first two calls."""
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
        torch.manual_seed(1)
        return [collate(pairs)["mlm"]["labels"] for _ in range(2)]

    first, second = labels_of(rank=0)
    first_of_other, _ = labels_of(rank=1)
    first_again, second_again = labels_of(rank=0)
    assert torch.equal(first, first_again)
    assert torch.equal(second, second_again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, first_of_other)


@pytest.fixture(scope="module")
def encoded_pairs(pairs, sample_tokenizer):
    """The same pairs as token ids."""
    sources = encode_texts([pair["source"] for pair in pairs], sample_tokenizer)
    targets = encode_texts([pair["target"] for pair in pairs], sample_tokenizer)
    return [{"source": source, "target": target} for source, target in zip(sources, targets, strict=True)]


def test_collators_cut_pairs_as_the_loop(pairs, encoded_pairs, sample_tokenizer):
    lengths = np.array([[len(pair["source"]), len(pair["target"])] for pair in encoded_pairs])
    expected = []
    for pair, (source, target) in zip(encoded_pairs, cut_pair(lengths.T, 16 - 4).T, strict=True):
        expected.append([0, *pair["source"][:source], 2, 2, *pair["target"][:target], 2])
    collate = TlmCollator(sample_tokenizer, max_length=16)
    assert gold(collate(pairs)["tlm"]) == expected
    assert gold(collate(encoded_pairs)["tlm"]) == expected


def test_collators_cut_sides_that_are_apart(pairs, encoded_pairs, sample_tokenizer):
    fields = CaMlmPairsCollator(sample_tokenizer, max_length=8)(pairs)["ca_mlm_pairs"]
    assert gold(fields["y"]) == [[0, *pair["target"][:6], 2] for pair in encoded_pairs]


def test_collators_cut_texts_to_random_windows(pairs, encoded_pairs, sample_tokenizer):
    text = encoded_pairs[0]["source"]
    windows = [text[start : start + 6] for start in range(len(text) - 5)]
    collate = MlmCollator(sample_tokenizer, max_length=8)
    starts = set()
    for _ in range(20):
        (row,) = gold(collate(pairs[:1])["mlm"])
        starts.add(windows.index(row[1:-1]))
    assert len(starts) > 2  # every part of a long text is seen
    assert {random_window(np.arange(7), 6, number)[0] for number in range(20)} == {0, 1}  # also the last


def test_collators_do_not_read_the_vocabulary_for_each_example():
    """Of a large vocabulary, a batch of one short text needs less memory than one byte a token."""
    tokenizer = made_up_tokenizer(50_000)
    collate = MlmCollator(tokenizer)
    examples = [{"text": [10, 11, 12]}]
    collate(examples)  # what the collator keeps of the vocabulary
    tracemalloc.start()
    try:
        collate(examples)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(tokenizer)


def test_collators_languages_are_those_of_the_model(pairs, sample_tokenizer):
    codes = ["zh", "de", "en"]
    camlm = CamlmCollator(sample_tokenizer, languages=codes)(pairs)["camlm"]
    assert camlm["corpus_names"] == ["en-de"] * len(pairs)
    assert set(camlm["language_ids"].unique().tolist()) <= {0, 1, 2}
    assert set(camlm["language_ids"][:, 0].tolist()) == {1, 2}  # en or de, as either side may be first
    btmlm = BtmlmCollator(sample_tokenizer, languages=codes)(pairs)["btmlm"]
    languages_of_pseudo_tokens = btmlm["language_ids"][btmlm["segment_ids"] == 1]
    assert set(languages_of_pseudo_tokens.tolist()) == {0, 1}  # not its own
    assert "language_ids" not in CamlmCollator(sample_tokenizer)(pairs)["camlm"]


MISTAKES = [  # collator, options, examples, what is named
    (CamlmCollator, {}, [GOOD | {"target": ""}], "'target'.* 0"),
    (CamlmCollator, {}, [GOOD | {"target": [10, 10**6]}], "1000000"),
    (CamlmCollator, {}, [GOOD | {"target": [0, 50, 2]}], "special"),
    (CamlmCollator, {}, [GOOD, GOOD | {"source": [50, -1]}], "'source' of example 1 .*-1"),
    (MlmCollator, {}, [{"text": [10]}, {"text": []}, {"text": [10]}], "example 1"),
    (MlmCollator, {}, [{"text": [10.0, 11.0]}], "10.0"),
    (CamlmCollator, {"languages": CODES}, [GOOD | {"source_language": "en", "target_language": "fr"}], "'fr'"),
    (BtmlmCollator, {"languages": ["en"]}, [GOOD], "languages"),
]


@pytest.mark.parametrize(("collator_class", "options", "examples", "named"), MISTAKES)
def test_collators_refuse(collator_class, options, examples, named, sample_tokenizer):
    with pytest.raises(ValueError, match=named):
        collator_class(sample_tokenizer, **options)(examples)
