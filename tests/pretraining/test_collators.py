import subprocess
import sys
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch

from pretraining.data.examples import Example, Texts, encode_texts
from pretraining.data.languages import Languages
from pretraining.objectives import OBJECTIVES, Collator
from pretraining.recipe import ModelStart
from pretraining.rows import encode_rows, inputs_of
from pretraining.start.initialization import learnable, model_class
from zoo_core.masking import IGNORED

COLLATORS = {
    name: found for name, found in OBJECTIVES.items() if issubclass(found, Collator) and found.text != "linked"
}
ROW_FIELDS = {"input_ids", "labels", "attention_mask", "special_tokens_mask", "segment_ids"}


@pytest.fixture(scope="module")
def examples(sample_tokenizer):
    def tokens(text):
        return np.array(encode_texts([text], sample_tokenizer)[0], dtype=np.int32)

    texts = ["Anna bakes fresh bread every Sunday morning.", "The train is late.", "Rain."]
    return [Example([tokens(text)], "en", number) for number, text in enumerate(texts)] + [
        Example([tokens("The train is late."), tokens("Der Zug hat Verspätung.")], "en-de", 5),
        Example([tokens("Rain."), tokens("Es regnet heute den ganzen Tag.")], "en-de", 6),
    ]


HALF = 0.5  # mask_probability
CORPORA = [
    SimpleNamespace(name=name, languages=name.split("-"), size=100) for name in ("en", "de", "en-de", "en-zh", "de-zh")
]
LANGUAGES = Languages.of(SimpleNamespace(languages=["zh", "en", "de"]), CORPORA, alpha=0.5)


def collate(examples, tokenizer, probability=0.15, seed=1):
    own = {"mlm": [e for e in examples if len(e.sides) == 1], "tlm": [e for e in examples if len(e.sides) == 2]}
    return {
        name: COLLATORS[name](tokenizer, mask_probability=probability).sub_batch(Texts.of(some), (seed, 0))
        for name, some in own.items()
        if some
    }


def gold(fields):
    return torch.where(fields["labels"] == IGNORED, fields["input_ids"], fields["labels"])


def test_rows_have_xlm_rs_form(examples, sample_tokenizer):
    batch = collate(examples, sample_tokenizer)
    texts = ["Anna bakes fresh bread every Sunday morning.", "The train is late.", "Rain."]
    wanted = sample_tokenizer(texts, padding=True, return_tensors="pt")
    assert torch.equal(gold(batch["mlm"]), wanted["input_ids"])
    assert torch.equal(batch["mlm"]["attention_mask"], wanted["attention_mask"])
    pairs = [["The train is late.", "Rain."], ["Der Zug hat Verspätung.", "Es regnet heute den ganzen Tag."]]
    wanted = sample_tokenizer(*pairs, padding=True, return_tensors="pt", return_special_tokens_mask=True)
    assert torch.equal(gold(batch["tlm"]), wanted["input_ids"])


def test_segments_of_a_pair(sample_tokenizer):
    rows = encode_rows(
        [[np.array([10, 11]), np.array([20])], [np.array([], dtype=int), np.array([21])]], sample_tokenizer
    )
    assert rows["input_ids"].tolist() == [[0, 10, 11, 2, 2, 20, 2], [0, 2, 2, 21, 2, 1, 1]]
    assert rows["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, -1, -1]]
    assert rows["special_tokens_mask"].tolist() == [[1, 0, 0, 1, 1, 0, 1], [1, 1, 1, 0, 1, 1, 1]]
    assert rows["attention_mask"].tolist() == [[1] * 7, [1] * 5 + [0] * 2]


@pytest.mark.parametrize("name", COLLATORS)
def test_masks_do_not_depend_on_the_company(name, sample_tokenizer):
    """Alone and in a batch: all fields of every objective."""
    rng = np.random.default_rng(0)
    kind = COLLATORS[name]
    sides = 2 if kind.text == "bitext" or kind.apart else 1
    corpus = "en" if kind.text == "monolingual" else "en-de"
    if name == "ca_mlm_segments":
        corpus = "en"
    examples = [
        Example([rng.integers(10, 1900, rng.integers(1, 40)) for _ in range(sides)], corpus, number, epoch=number % 3)
        for number in range(30)
    ]
    has_languages = kind.language_share > 0
    options = {"mask_probability": HALF, "languages": LANGUAGES if has_languages else None, "draws": name == "tlm"}
    collator = kind(sample_tokenizer, **options)

    def collate(some):
        return collator.sub_batch(Texts.of(some), (1, 0))

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


def test_masks_depend_on_seed_epoch_objective_corpus_and_example(examples, sample_tokenizer):
    sides = examples[0].sides
    kinds = [
        ((1, 0), Example(sides, "en", 0), "mlm"),
        ((2, 0), Example(sides, "en", 0), "mlm"),
        ((1, 1), Example(sides, "en", 0), "mlm"),
        ((1, 0), Example(sides, "en", 0, epoch=1), "mlm"),
        ((1, 0), Example(sides, "en", 1), "mlm"),
        ((1, 0), Example(sides, "de", 0), "mlm"),
        ((1, 0), Example(sides, "en", 0), "tlm"),
    ]
    first, *others = [
        COLLATORS[name](sample_tokenizer, mask_probability=HALF).sub_batch(Texts.of([example]), key)["labels"]
        for key, example, name in kinds
    ]
    for labels in others:
        assert (labels != first).any()


def test_the_two_sides_have_masks_of_their_own(sample_tokenizer):
    side = np.arange(10, 200)
    texts = Texts.of([Example([side, side], "en-de", 0)])
    batch = COLLATORS["ca_mlm_pairs"](sample_tokenizer, mask_probability=HALF).sub_batch(texts, (1, 0))
    assert (batch["x"]["labels"] != batch["y"]["labels"]).any()
    assert set(batch) == {"x", "y", "languages", "examples"}
    camlm = COLLATORS["camlm"](sample_tokenizer, mask_probability=HALF, languages=LANGUAGES)
    labels = camlm.sub_batch(texts, (1, 0))["labels"][0]
    assert (labels[1:191] != labels[193:383]).any()


def test_unknown_and_special_tokens_are_never_predicted_nor_drawn(sample_tokenizer):
    collate = COLLATORS["mlm"](sample_tokenizer, mask_probability=0.999)
    assert not set(collate.vocabulary.tolist()) & set(sample_tokenizer.all_special_ids)
    assert len(collate.vocabulary) == len(sample_tokenizer) - len(set(sample_tokenizer.all_special_ids))
    unknown = sample_tokenizer.unk_token_id
    texts = Texts.of([Example([np.array([unknown, 50, unknown], dtype=np.int32)], "en", 0)])
    fields = collate.sub_batch(texts, (1,))
    assert fields["labels"].tolist() == [[IGNORED, IGNORED, 50, IGNORED, IGNORED]]
    assert fields["special_tokens_mask"].tolist() == [[1, 0, 0, 0, 1]]  # but it is a token of the text


def test_the_lists_of_objectives_agree():
    """A new objective has a line in OBJECTIVES, a collator or the rows of another one, and a model that learns it."""
    assert all(bool(objective.reads) != issubclass(objective, Collator) for objective in OBJECTIVES.values())
    models = [model_class(name) for name in get_args(ModelStart.__dataclass_fields__["type"].type)]
    assert {name for model in models for name in learnable(model)} == OBJECTIVES.keys()
    for model in models:
        assert {name: OBJECTIVES[name].reads for name in model.objectives if OBJECTIVES[name].reads} == model.reads


def test_recipes_are_read_without_the_libraries_that_take_seconds():
    code = "import sys, pretraining.recipe; print(sorted({'torch', 'transformers', 'datasets'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
