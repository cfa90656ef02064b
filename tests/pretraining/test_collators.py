import numpy as np
import pytest
import torch

from common.masking import IGNORED
from pretraining.collators import Collator, Masker, encode_pieces, encode_side, pad_rows
from pretraining.recipe import Objective
from pretraining.tokenised import Example, encode_texts

MLM_FIELDS = {"input_ids", "labels", "attention_mask", "special_tokens_mask", "segment_ids", "languages"}


@pytest.fixture(scope="module")
def examples(sample_tokenizer):
    def pieces(text):
        return np.array(encode_texts([text], sample_tokenizer)[0], dtype=np.int32)

    texts = ["Anna bakes fresh bread every Sunday morning.", "The train is late.", "Rain."]
    return [Example([pieces(text)], "en", number) for number, text in enumerate(texts)] + [
        Example([pieces("The train is late."), pieces("Der Zug hat Verspätung.")], "en-de", 0),
        Example([pieces("Rain."), pieces("Es regnet heute den ganzen Tag.")], "en-de", 1),
    ]


HALF = Objective(batch_size=1, mask_probability=0.5)


def collate(examples, tokenizer, probability=0.15, seed=1):
    masker = Masker(tokenizer, (seed, 0))
    objective = Objective(batch_size=1, mask_probability=probability)
    masked = [masker(e, "mlm" if len(e.sides) == 1 else "tlm", objective) for e in examples]
    return Collator(tokenizer)(masked)


def gold(fields):
    return torch.where(fields["labels"] == IGNORED, fields["input_ids"], fields["labels"])


def test_a_batch_has_the_fields_of_the_design(examples, sample_tokenizer):
    batch = collate(examples, sample_tokenizer, probability=0.5)
    assert list(batch) == ["mlm", "tlm"]
    for name, rows in (("mlm", 3), ("tlm", 2)):
        fields = batch[name]
        assert set(fields) == MLM_FIELDS
        longest = int(fields["attention_mask"].sum(1).max())
        for key in MLM_FIELDS - {"languages"}:
            assert fields[key].shape == (rows, longest) and fields[key].dtype == torch.int64
        padding = fields["attention_mask"] == 0
        assert (fields["input_ids"][padding] == sample_tokenizer.pad_token_id).all()
        assert (fields["labels"][padding] == IGNORED).all()
        assert (fields["special_tokens_mask"][padding] == 1).all()
        assert (fields["segment_ids"][padding] == -1).all()
        assert (fields["labels"][fields["special_tokens_mask"] == 1] == IGNORED).all()
        assert (fields["labels"] != IGNORED).any()
        # padding is on the right
        assert (fields["attention_mask"].diff(dim=1) <= 0).all()
    assert batch["mlm"]["languages"] == ["en"] * 3
    assert batch["tlm"]["languages"] == ["en-de"] * 2


def test_rows_have_xlm_rs_form(examples, sample_tokenizer):
    batch = collate(examples, sample_tokenizer)
    texts = ["Anna bakes fresh bread every Sunday morning.", "The train is late.", "Rain."]
    wanted = sample_tokenizer(texts, padding=True, return_tensors="pt")
    assert torch.equal(gold(batch["mlm"]), wanted["input_ids"])
    assert torch.equal(batch["mlm"]["attention_mask"], wanted["attention_mask"])
    pairs = [["The train is late.", "Rain."], ["Der Zug hat Verspätung.", "Es regnet heute den ganzen Tag."]]
    wanted = sample_tokenizer(*pairs, padding=True, return_tensors="pt", return_special_tokens_mask=True)
    assert torch.equal(gold(batch["tlm"]), wanted["input_ids"])


def test_segments_of_a_pair():
    class Tokenizer:
        cls_token_id, sep_token_id = 0, 2

    row = encode_pieces([np.array([10, 11]), np.array([20])], Tokenizer())
    assert row["input_ids"].tolist() == [0, 10, 11, 2, 2, 20, 2]
    assert row["segment_ids"].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert row["special_tokens_mask"].tolist() == [1, 0, 0, 1, 1, 0, 1]


def test_a_batch_that_predicts_nothing_is_valid(examples, sample_tokenizer):
    batch = collate([*examples, Example([np.array([], dtype=np.int32)], "en", 9)], sample_tokenizer, probability=0.0)
    assert (batch["mlm"]["labels"] == IGNORED).all() and (batch["tlm"]["labels"] == IGNORED).all()
    assert batch["mlm"]["attention_mask"][-1].sum() == 2


def test_masks_do_not_depend_on_the_company(examples, sample_tokenizer):
    together = collate(examples, sample_tokenizer, probability=0.5)
    for number, example in enumerate(examples):
        objective, row = ("mlm", number) if number < 3 else ("tlm", number - 3)
        alone = collate([example], sample_tokenizer, probability=0.5)[objective]
        length = alone["input_ids"].shape[1]
        for name in ("input_ids", "labels"):
            assert torch.equal(together[objective][name][row, :length], alone[name][0])


def test_masks_depend_on_seed_epoch_objective_corpus_and_example(examples, sample_tokenizer):
    sides = examples[0].sides
    first = Masker(sample_tokenizer, (1, 0))(Example(sides, "en", 0), "mlm", HALF)[2][0]["labels"]
    others = [
        Masker(sample_tokenizer, (2, 0))(Example(sides, "en", 0), "mlm", HALF),
        Masker(sample_tokenizer, (1, 1))(Example(sides, "en", 0), "mlm", HALF),
        Masker(sample_tokenizer, (1, 0))(Example(sides, "en", 0, epoch=1), "mlm", HALF),
        Masker(sample_tokenizer, (1, 0))(Example(sides, "en", 1), "mlm", HALF),
        Masker(sample_tokenizer, (1, 0))(Example(sides, "de", 0), "mlm", HALF),
        Masker(sample_tokenizer, (1, 0))(Example(sides, "en", 0), "tlm", HALF),
    ]
    for _, _, (row,) in others:
        assert (row["labels"] != first).any()


def test_unknown_and_special_pieces_are_never_predicted_nor_drawn(sample_tokenizer):
    masker = Masker(sample_tokenizer, (1,))
    assert not set(masker.vocabulary.tolist()) & set(sample_tokenizer.all_special_ids)
    assert len(masker.vocabulary) == len(sample_tokenizer) - len(set(sample_tokenizer.all_special_ids))
    unknown = sample_tokenizer.unk_token_id
    row = masker(
        Example([np.array([unknown, 50, unknown], dtype=np.int32)], "en", 0),
        "mlm",
        Objective(batch_size=1, mask_probability=1.0),
    )[2][0]
    assert row["labels"].tolist() == [IGNORED, IGNORED, 50, IGNORED, IGNORED]
    assert row["special_tokens_mask"].tolist() == [1, 0, 0, 0, 1]  # but it is a piece of the text


def test_sides_on_their_own(examples, sample_tokenizer):
    batch = pad_rows([encode_side(e.sides[1], sample_tokenizer) for e in examples[3:]], sample_tokenizer)
    wanted = sample_tokenizer(
        ["Der Zug hat Verspätung.", "Es regnet heute den ganzen Tag."], padding=True, return_tensors="pt"
    )
    assert torch.equal(batch["input_ids"], wanted["input_ids"])
    assert torch.equal(batch["attention_mask"], wanted["attention_mask"])
    assert "labels" not in batch
