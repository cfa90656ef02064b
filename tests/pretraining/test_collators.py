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

COLLATORS = {name: of for name, of in OBJECTIVES.items() if issubclass(of, Collator) and of.text != "linked"}
ROW_FIELDS = {"input_ids", "labels", "attention_mask", "special_tokens_mask", "segment_ids"}
CODES = ["zh", "en", "de"]
CORPORA = [
    SimpleNamespace(name=name, languages=name.split("-"), size=100) for name in ("en", "en-de", "en-zh", "de-zh")
]
LANGUAGES = Languages.of(SimpleNamespace(languages=CODES), CORPORA, alpha=0.5)
HALF = 0.5  # mask_probability
GOOD = {"source": "The house is small.", "target": "Das Haus ist klein."}
BOTH = {"languages": ["en", "de"]}


@pytest.fixture(scope="module")
def pairs(sample_corpus_dir):
    """English and German sentences as a user may have them: texts with the codes of their languages."""
    sides = []
    for code in ("en", "de"):
        lines = (sample_corpus_dir / code / "train.jsonl").read_text(encoding="utf-8").splitlines()
        sides.append({row["id"]: row["text"] for row in map(json.loads, lines)})
    common = [key for key in sides[0] if key in sides[1]][:64]
    codes = {"source_language": "en", "target_language": "de", "language": "en"}
    return [{"source": sides[0][key], "target": sides[1][key], "text": sides[0][key], **codes} for key in common]


def gold(fields):
    """The rows before they were masked, without padding."""
    ids = torch.where(fields["labels"] == IGNORED, fields["input_ids"], fields["labels"])
    return [row[segments >= 0].tolist() for row, segments in zip(ids, fields["segment_ids"], strict=True)]


def test_collate_rows_have_xlm_r_s_form(sample_tokenizer):
    texts = ["Anna bakes fresh bread.", "The train is late.", "Rain."]
    others = ["Anna backt frisches Brot.", "Der Zug ist spät.", "Es regnet heute den ganzen Tag."]
    mlm = MlmCollator(sample_tokenizer)([{"text": text} for text in texts])["mlm"]
    assert gold(mlm) == sample_tokenizer(texts)["input_ids"]
    tlm = TlmCollator(sample_tokenizer)([{"source": x, "target": y} for x, y in zip(texts, others, strict=True)])["tlm"]
    assert gold(tlm) == sample_tokenizer(texts, others)["input_ids"]


def test_collate_segments_of_a_pair(sample_tokenizer):
    sides = [[np.array([10, 11]), np.array([], dtype=int)], [np.array([20]), np.array([21])]]
    rows = lay_out(sides, sample_tokenizer).fields()
    assert rows["input_ids"].tolist() == [[0, 10, 11, 2, 2, 20, 2], [0, 2, 2, 21, 2, 1, 1]]
    assert rows["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, -1, -1]]
    assert rows["special_tokens_mask"].tolist() == [[1, 0, 0, 1, 1, 0, 1], [1, 1, 1, 0, 1, 1, 1]]
    assert rows["attention_mask"].tolist() == [[1] * 7, [1] * 5 + [0] * 2]


@pytest.mark.parametrize("name", COLLATORS)
def test_mask_does_not_depend_on_the_company(name, sample_tokenizer):
    """Alone and in a batch: all fields of every objective."""
    rng = np.random.default_rng(0)
    kind = COLLATORS[name]
    sides = 2 if kind.text == "bitext" or kind.apart else 1
    corpus = "en" if kind.text == "monolingual" else "en-de"
    examples = [
        Example([rng.integers(10, 1900, rng.integers(1, 40)) for _ in range(sides)], corpus, number, epoch=number % 3)
        for number in range(30)
    ]
    has_languages = kind.language_share > 0
    options = {"mask_probability": HALF, "languages": LANGUAGES if has_languages else None, "draws": name == "tlm"}
    collator = kind(sample_tokenizer, **options)

    def collate(some):
        return collator.sub_batch(texts_of(some), (1, 0))

    together = collate(examples)
    wanted = ROW_FIELDS | ({"language_ids"} if has_languages else set()) | ({"draws"} if name == "tlm" else set())
    for fields in inputs_of(together):
        of_rows = {key for key, field in fields.items() if torch.is_tensor(field) and field.dim() == 2}
        assert of_rows | {"attention_mask"} == wanted
        assert (fields["labels"] != IGNORED).any()
    for row, example in enumerate(examples):
        alone = collate([example])
        for one, other in zip(inputs_of(alone), inputs_of(together), strict=True):
            length = one["input_ids"].shape[1]
            assert int((other["segment_ids"][row] >= 0).sum()) == length
            assert all(torch.equal(one[key][0], other[key][row, :length]) for key in wanted - {"attention_mask"})
            for key in {"attention_mask", "generation_mask"} & one.keys():
                real = other[key][row, :length, :length] if other[key].dim() == 3 else other[key][row, :length]
                assert torch.equal(one[key][0], real) and other[key][row].sum() == real.sum()


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
    assert not set(collate.vocabulary.tolist()) & set(sample_tokenizer.all_special_ids)
    assert len(collate.vocabulary) == len(sample_tokenizer) - len(set(sample_tokenizer.all_special_ids))
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
    dataset, collate = Dataset.from_list(pairs), CamlmCollator(sample_tokenizer, max_length=128)
    trainer = Trainer(ErnieMForPreTraining(config), arguments, collate, dataset, dataset)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    evaluated = [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
    assert losses[0] == pytest.approx(math.log(len(sample_tokenizer)), abs=1.0)  # a mean, accumulated or not
    assert losses[-1] < losses[0] - 0.5 and evaluated[-1] < evaluated[0] - 0.3
    norms = [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line]
    assert all(norm < 20 for norm in norms)  # a sum's would be hundreds


def test_collators_masks_change_with_call_and_process_and_are_repeated_by_torch_s_seed(
    pairs, sample_tokenizer, monkeypatch
):
    """The Trainer seeds all processes alike."""
    collate, found = MlmCollator(sample_tokenizer), []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in (0, 1, 0):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(1)
        found.append([collate(pairs)["mlm"]["labels"] for _ in range(2)])
    first, of_other, again = found
    assert all(map(torch.equal, first, again))
    assert not torch.equal(*first) and not torch.equal(first[0], of_other[0])


def test_collators_cut_pairs_as_the_loop_and_texts_to_windows(pairs, sample_tokenizer):
    sides = [encode_texts([pair[key] for pair in pairs], sample_tokenizer) for key in ("source", "target")]
    kept = cut_pair(np.array([[len(ids) for ids in side] for side in sides]), 16 - 4)
    rows = gold(TlmCollator(sample_tokenizer, max_length=16)(pairs)["tlm"])
    for number, row in enumerate(rows):
        x, y = (side[number][: kept[of, number]] for of, side in enumerate(sides))
        assert row == [0, *x, 2, 2, *y, 2]
    ids = [{"source": x, "target": y} for x, y in zip(*sides, strict=True)]
    assert gold(TlmCollator(sample_tokenizer, max_length=16)(ids)["tlm"]) == rows
    (apart,) = CaMlmPairsCollator(sample_tokenizer, max_length=8)(pairs).values()
    assert gold(apart["y"]) == [[0, *ids[:6], 2] for ids in sides[1]]
    offsets = set()
    for _ in range(20):
        (row,) = gold(MlmCollator(sample_tokenizer, max_length=8)(pairs[:1])["mlm"])
        begins = [n for n in range(len(sides[0][0]) - 5) if sides[0][0][n : n + 6] == row[1:-1]]
        assert begins
        offsets.update(begins)
    assert len(offsets) > 2  # every part of a long text is seen
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


@pytest.mark.parametrize("ids", [[10, 3, 11], np.array([10], np.uint8), [1900]])
def test_collators_take_ids_of_texts(ids, sample_tokenizer):
    assert gold(MlmCollator(sample_tokenizer)([{"text": ids}])["mlm"]) == [[0, *np.asarray(ids).tolist(), 2]]


def test_collators_languages_are_those_of_the_model(pairs, sample_tokenizer):
    codes = ["zh", "de", "en"]
    fields = CamlmCollator(sample_tokenizer, languages=codes)(pairs)["camlm"]
    assert set(fields["language_ids"].unique().tolist()) <= {0, 1, 2} and fields["corpus_names"] == ["en-de"] * len(
        pairs
    )
    first = fields["language_ids"][:, 0]  # en or de, as either side may be first
    assert set(first.tolist()) == {1, 2}
    written = BtmlmCollator(sample_tokenizer, languages=codes)(pairs)["btmlm"]
    assert set(written["language_ids"][written["segment_ids"] == 1].unique().tolist()) == {0, 1}  # not its own
    assert "language_ids" not in CamlmCollator(sample_tokenizer)(pairs)["camlm"]


MISTAKES = [  # collator, options, examples, what is named
    (CamlmCollator, {}, [GOOD | {"target": ""}], "'target'.* 0"),
    (CamlmCollator, {}, [GOOD | {"target": [10, 10**6]}], "1000000"),
    (CamlmCollator, {}, [GOOD | {"target": [0, 50, 2]}], "special"),
    (CamlmCollator, {}, [GOOD, GOOD | {"source": [50, -1]}], "'source' of example 1 .*-1"),
    (MlmCollator, {}, [{"text": [10]}, {"text": []}, {"text": [10]}], "example 1"),
    (MlmCollator, {}, [{"text": [10.0, 11.0]}], "10.0"),
    (CamlmCollator, BOTH, [GOOD | {"source_language": "en", "target_language": "fr"}], "'fr'"),
    (BtmlmCollator, {"languages": ["en"]}, [GOOD], "languages"),
]


@pytest.mark.parametrize(("collator_class", "options", "examples", "named"), MISTAKES)
def test_collators_refuse(collator_class, options, examples, named, sample_tokenizer):
    with pytest.raises(ValueError, match=named):
        collator_class(sample_tokenizer, **options)(examples)
