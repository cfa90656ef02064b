"""Collators as data collators: in a DataLoader and in transformers' Trainer."""

import json
import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from crosslingual_zoo import (
    BtmlmCollator,
    CamlmCollator,
    CaMlmPairsCollator,
    Collators,
    MlmCollator,
    TlmCollator,
    picture,
)
from modeling.configuration_ernie_m import ErnieMConfig
from modeling.modeling_ernie_m import ErnieMForPreTraining
from pretraining.data.examples import cut_pair, encode_texts
from pretraining.objectives import OBJECTIVES
from pretraining.rows import inputs_of
from zoo_core.masking import IGNORED

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
COLLATORS = [found for name, found in OBJECTIVES.items() if name not in ("dwa", "kd", "word_links")]


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


def made(collator_class, tokenizer, **options):
    """A collator of any objective, for a model with languages."""
    return collator_class(tokenizer, languages=["de", "en", "zh"], **options)


def gold(fields):
    """The rows before they were masked, without padding."""
    ids = torch.where(fields["labels"] == IGNORED, fields["input_ids"], fields["labels"])
    return [row[segments >= 0].tolist() for row, segments in zip(ids, fields["segment_ids"], strict=True)]


def test_camlm_and_ernie_m_in_transformers_own_trainer(pairs, sample_tokenizer, tmp_path):
    torch.manual_seed(0)
    config = ErnieMConfig(vocab_size=len(sample_tokenizer), max_position_embeddings=130, **SIZES, **NO_DROPOUT)
    options = dict(
        learning_rate=1e-2, num_train_epochs=6, eval_strategy="epoch", logging_strategy="epoch", use_cpu=True
    )
    options |= dict(per_device_train_batch_size=8, gradient_accumulation_steps=2, report_to=[], disable_tqdm=True)
    options |= dict(remove_unused_columns=False)  # the collator reads the texts
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


def test_several_collators_make_one_batch_of_what_each_reads(pairs, sample_tokenizer):
    collators = {"mlm": MlmCollator(sample_tokenizer), "tlm": TlmCollator(sample_tokenizer)}
    texts = [{"text": pair["text"]} for pair in pairs[:3]]
    bitext = [{key: pair[key] for key in ("source", "target")} for pair in pairs[3:5]]
    batch = Collators(**collators)([texts[0], bitext[0], *texts[1:], bitext[1]])
    assert list(batch) == ["mlm", "tlm"]
    for name, examples in (("mlm", texts), ("tlm", bitext)):
        assert gold(batch[name]) == gold(collators[name](examples)[name])
    with pytest.raises(ValueError, match="words"):
        Collators(**collators)([texts[0], {"words": "x"}])


@pytest.mark.parametrize("collator_class", COLLATORS)
def test_masks_change_with_each_call_and_are_repeated_by_torchs_seed(collator_class, pairs, sample_tokenizer):
    collate = made(collator_class, sample_tokenizer)

    def labels(seed=None):
        if seed is not None:
            torch.manual_seed(seed)
        (sub_batch,) = collate(pairs).values()
        return [fields["labels"] for fields in inputs_of(sub_batch)]

    def same(one, other):
        return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True))

    first, second = labels(seed=1), labels()
    assert not same(first, second)
    assert same(first, labels(seed=1)) and same(second, labels())


@pytest.mark.parametrize("collator_class", COLLATORS)
def test_texts_and_ids_give_the_same_rows_and_fit(collator_class, pairs, sample_tokenizer):
    collate = made(collator_class, sample_tokenizer, max_length=16)
    tokens = {key: encode_texts([pair[key] for pair in pairs], sample_tokenizer) for key in collate.keys}
    ids = [pair | {key: tokens[key][number] for key in collate.keys} for number, pair in enumerate(pairs)]
    found = []
    for examples in (pairs, ids):
        torch.manual_seed(0)
        (sub_batch,) = collate(examples).values()
        found.append([gold(fields) for fields in inputs_of(sub_batch)])
        assert max(fields["input_ids"].shape[1] for fields in inputs_of(sub_batch)) == 16
    assert found[0] == found[1]


def test_pairs_are_cut_as_in_the_loop_and_texts_to_windows(pairs, sample_tokenizer):
    sides = [encode_texts([pair[key] for pair in pairs], sample_tokenizer) for key in ("source", "target")]
    kept = cut_pair(np.array([[len(ids) for ids in side] for side in sides]), 16 - 4)
    rows = gold(TlmCollator(sample_tokenizer, max_length=16)(pairs)["tlm"])
    for number, row in enumerate(rows):
        x, y = (side[number][: kept[of, number]] for of, side in enumerate(sides))
        assert row == [0, *x, 2, 2, *y, 2]
    (apart,) = CaMlmPairsCollator(sample_tokenizer, max_length=8)(pairs).values()
    assert gold(apart["y"]) == [[0, *ids[:6], 2] for ids in sides[1]]
    offsets = set()
    for _ in range(20):
        (row,) = gold(MlmCollator(sample_tokenizer, max_length=8)(pairs[:1])["mlm"])
        begins = [n for n in range(len(sides[0][0]) - 5) if sides[0][0][n : n + 6] == row[1:-1]]
        assert begins
        offsets.update(begins)
    assert len(offsets) > 2  # every part of a long text is seen


def test_languages_are_those_of_the_model(pairs, sample_tokenizer):
    codes = ["zh", "de", "en"]
    fields = CamlmCollator(sample_tokenizer, languages=codes)(pairs)["camlm"]
    assert set(fields["language_ids"].unique().tolist()) <= {0, 1, 2} and fields["languages"] == ["en-de"] * len(pairs)
    first = fields["language_ids"][:, 0]  # en or de, as either side may be first
    assert set(first.tolist()) == {1, 2}
    written = BtmlmCollator(sample_tokenizer, languages=codes)(pairs)["btmlm"]
    assert set(written["language_ids"][written["segment_ids"] == 1].unique().tolist()) == {0, 1}  # not its own
    assert "language_ids" not in CamlmCollator(sample_tokenizer)(pairs)["camlm"]


GOOD = {"source": "The house is small.", "target": "Das Haus ist klein."}
BOTH = {"languages": ["en", "de"]}
MISTAKES = [  # collator, options, examples, what is named
    (CamlmCollator, {}, [GOOD, {"source": "A", "trget": "B"}], "'target'"),
    (CamlmCollator, {}, [GOOD | {"target": ""}], "'target' of example 0"),
    (CamlmCollator, {}, [GOOD | {"target": [10, 10**6]}], "1000000"),
    (CamlmCollator, {}, [GOOD | {"target": [0, 50, 2]}], "special"),
    (CamlmCollator, BOTH, [GOOD | {"source_language": "en", "target_language": "fr"}], "'fr'"),
    (CamlmCollator, {"mask_probability": 15}, [GOOD], "mask_probability"),
    (BtmlmCollator, {"languages": ["en"]}, [GOOD], "languages"),
]


@pytest.mark.parametrize(("collator_class", "options", "examples", "named"), MISTAKES)
def test_collators_refuse(collator_class, options, examples, named, sample_tokenizer):
    with pytest.raises(ValueError, match=named):
        collator_class(sample_tokenizer, **options)(examples)


def test_processes_draw_other_masks_of_one_seed(pairs, sample_tokenizer, monkeypatch):
    """The Trainer seeds all processes alike."""
    collate, labels = MlmCollator(sample_tokenizer), []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank in (0, 1, 0):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(1)
        labels.append(collate(pairs)["mlm"]["labels"])
    assert torch.equal(labels[0], labels[2])
    assert labels[0].shape != labels[1].shape or not torch.equal(labels[0], labels[1])


def test_pictures(sample_tokenizer, capsys):
    picture(CamlmCollator(sample_tokenizer, mask_probability=0.5)([GOOD]))
    name, head, *lines = capsys.readouterr().out.splitlines()
    assert name == "camlm" and len(lines) == len(head.split())
    sees = {"a": {"a"}, "b": {"b"}, "m": {"m", "b"}, "m'": {"m'", "a"}}
    for sign, *row in (line.split() for line in lines):
        assert row == ["x" if other in sees[sign] else "." for other in head.split()]
