"""CAMLM and BTMLM from recipe to checkpoint: masks of rows, languages of pseudo tokens, and both stages."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from crosslingual_zoo.pretraining.data.languages import Languages
from crosslingual_zoo.pretraining.objectives.btmlm import BtmlmCollator, length_of_text, pseudo_count
from crosslingual_zoo.pretraining.objectives.camlm import CamlmCollator
from crosslingual_zoo.pretraining.objectives.mlm import MlmCollator
from crosslingual_zoo.pretraining.objectives.tlm import TlmCollator
from crosslingual_zoo.pretraining.tracking import read_events
from crosslingual_zoo.zoo_core.masking import IGNORED
from tests.pretraining.made_texts import Example, texts_of
from tests.pretraining.run_folders import losses_of, weights_of

CORPORA = [
    SimpleNamespace(name="en", languages=["en"], size=100, kind="monolingual"),
    SimpleNamespace(name="is", languages=["is"], size=100, kind="monolingual"),
    SimpleNamespace(name="en-de", languages=["en", "de"], size=900, kind="bitext"),
    SimpleNamespace(name="en-zh", languages=["en", "zh"], size=100, kind="bitext"),
]
LANGUAGES = Languages.of(SimpleNamespace(languages=["zh", "en", "de", "is"]), CORPORA, alpha=0.5)
CAMLM = CamlmCollator(mask_probability=0.3)
TLM = TlmCollator(mask_probability=0.3)
BTMLM = BtmlmCollator(max_length=40)


def pair(number, lengths, tokenizer, name="en-de"):
    """A pair, or a text, of random ordinary tokens."""
    rng = np.random.default_rng(number)
    sides = [rng.integers(10, len(tokenizer) - 5, length).astype(np.int32) for length in lengths]
    return Example(sides, name, number)


def sub_batch_of(tokenizer, examples, objective, training=True):
    collator = replace(objective, tokenizer=tokenizer, languages=LANGUAGES)
    return collator.sub_batch(texts_of(examples), (1, 0), training)


def rows_of(tokenizer, examples, objective):
    """The fields (B, T) of the examples, as arrays."""
    fields = sub_batch_of(tokenizer, examples, objective)
    return {key: field.numpy() for key, field in fields.items() if key.endswith(("_ids", "mask", "labels"))}


def test_camlm_collator_predicts_masks_only_and_leaves_a_token_of_each_side(sample_tokenizer):
    english_lengths = 1 + np.arange(300) % 4
    examples = [pair(number, (length, 20), sample_tokenizer) for number, length in enumerate(english_lengths)]
    rows = rows_of(sample_tokenizer, examples, CAMLM)
    predicted = rows["labels"] != IGNORED
    assert (rows["input_ids"][predicted] == sample_tokenizer.mask_token_id).all()
    assert not predicted[rows["special_tokens_mask"] == 1].any()
    masked_english = (predicted & (rows["language_ids"] == LANGUAGES.rows["en"])).sum(1)
    masked_german = (predicted & (rows["language_ids"] == LANGUAGES.rows["de"])).sum(1)
    assert (masked_english < english_lengths).all()
    assert (masked_german < 20).all()
    assert masked_german.mean() / 20 == pytest.approx(0.3, abs=0.01)


def test_camlm_collator_predicts_nothing_from_unknown_tokens(sample_tokenizer):
    """A side of only unknown tokens says nothing about the other one."""
    examples = [pair(number, (4, 20), sample_tokenizer) for number in range(20)]
    for example in examples:
        example.sides[0][:] = sample_tokenizer.unk_token_id
    assert (rows_of(sample_tokenizer, examples, CAMLM)["labels"] == IGNORED).all()


def segments_of(rows):
    """The ordinary tokens of each row's two segments, before they were masked."""
    gold = np.where(rows["labels"] == IGNORED, rows["input_ids"], rows["labels"])
    segments = np.where(rows["special_tokens_mask"] == 0, rows["segment_ids"], -1)
    return [(ids[of_row == 0].tolist(), ids[of_row == 1].tolist()) for ids, of_row in zip(gold, segments, strict=True)]


def test_tlm_collator_keeps_the_order_of_pairs_of_which_half_say_their_languages(sample_tokenizer):
    examples = [pair(number, (5, 6), sample_tokenizer) for number in range(400)]
    rows = rows_of(sample_tokenizer, examples, TLM)
    for segments, example in zip(segments_of(rows), examples, strict=True):
        english, german = example.sides
        assert segments == (english.tolist(), german.tolist())
    is_none = (rows["language_ids"] == -1).all(1)
    assert is_none.sum() == pytest.approx(200, abs=40)
    assert (rows["language_ids"][~is_none] == [1] * 7 + [2] * 8).all()
    assert "language_ids" not in sub_batch_of(sample_tokenizer, examples, TLM, training=False)


def test_camlm_collator_reads_pairs_in_either_order(sample_tokenizer):
    """Tokens and languages belong to their side."""
    examples = [pair(number, (5, 6), sample_tokenizer) for number in range(400)]
    rows = rows_of(sample_tokenizer, examples, CAMLM)
    languages = rows["language_ids"][:, [0, -1]].tolist()
    in_order = 0
    for row, segments in enumerate(segments_of(rows)):
        english, german = examples[row].sides
        if len(segments[0]) == len(english):
            in_order += 1
            assert segments == (english.tolist(), german.tolist())
            assert languages[row] == [LANGUAGES.rows["en"], LANGUAGES.rows["de"]]
        else:
            assert segments == (german.tolist(), english.tolist())
            assert languages[row] == [LANGUAGES.rows["de"], LANGUAGES.rows["en"]]
    assert in_order == pytest.approx(200, abs=40)


def test_btmlm_collator_gives_pseudo_positions_in_another_language(sample_tokenizer):
    example = pair(3, (20,), sample_tokenizer, "en")
    row = {key: field[0] for key, field in rows_of(sample_tokenizer, [example], BTMLM).items()}
    is_second = row["segment_ids"] == 1
    is_pseudo = is_second & (row["special_tokens_mask"] == 0)
    assert is_pseudo.tolist() == [False] * 23 + [True] * 4 + [False]  # <s> 20 </s></s> 4 </s>, 20% of 20
    assert (row["input_ids"][is_pseudo] == sample_tokenizer.mask_token_id).all()
    assert (row["labels"][is_second] == IGNORED).all()
    assert (row["labels"] != IGNORED).sum() == 3  # 15% of the text, not of the row
    assert set(row["language_ids"][~is_second]) == {1}
    assert len(set(row["language_ids"][is_second])) == 1
    assert "temperature" not in sub_batch_of(sample_tokenizer, [example], BTMLM, training=False)


def test_btmlm_collator_draws_target_languages_by_the_size_of_their_pairs(sample_tokenizer):
    """900 and 100 pairs, alpha 0.5: 3 to 1."""
    examples = [pair(number, (6,), sample_tokenizer, "en") for number in range(2000)]
    drawn = rows_of(sample_tokenizer, examples, BTMLM)["language_ids"][:, -1]
    assert set(drawn) == {0, 2}
    assert (drawn == 2).mean() == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(
    "collator, options, reads",
    [(BtmlmCollator, {}, False), (BtmlmCollator, {"target_languages": "all"}, True), (MlmCollator, {}, True)],
)
def test_collator_reads_a_language_without_pairs(collator, options, reads, sample_tokenizer):
    assert collator(sample_tokenizer, languages=LANGUAGES, **options).reads_corpus(CORPORA[1]) == reads


def test_languages_target_of_a_language_are_all_or_those_of_its_own_pairs():
    codes, shares = LANGUAGES.targets("is", "all")  # which has no pairs
    assert codes == ["de", "en", "zh"]
    assert shares == pytest.approx(np.sqrt([900, 1000, 100]) / 71.62, abs=1e-3)
    languages = replace(LANGUAGES, pairs=[*LANGUAGES.pairs, (9000, ("de", "zh"))])
    codes, shares = languages.targets("en", "paired")
    assert codes == ["de", "zh"]
    assert shares == pytest.approx([0.75, 0.25])  # by the pairs with English


@pytest.mark.parametrize("share", [0.05, 0.1, 0.15, 0.2, 1.0])
def test_btmlm_collator_keeps_room_for_the_pseudo_tokens(share):
    for max_length in range(8, 200):
        objective = BtmlmCollator(max_length=max_length, pseudo_share=share)
        assert objective.text_length == length_of_text(max_length, share)
        tokens = objective.text_length - 2
        assert tokens > 0
        assert tokens + pseudo_count(tokens, share) + 4 <= max_length
        with_a_token_more = tokens + 1 + pseudo_count(tokens + 1, share) + 4
        assert with_a_token_more >= max_length  # no more than a position is wasted
    assert MlmCollator(max_length=50).text_length == 50


MLM = {"batch_size": 4, "max_length": 48}
PAIRS = {"batch_size": 4, "max_length": 96}
RATE = {"steps": 2, "learning_rate": 3e-2}  # at which the language embeddings matter
STAGES = [
    RATE | {"name": "camlm", "objectives": {"mlm": MLM, "tlm": PAIRS, "camlm": PAIRS}},
    RATE | {"name": "btmlm", "objectives": {"mlm": MLM, "btmlm": MLM}},
]
TWO_STAGES = ["model.type=ernie_m", "model.config.hidden_dropout_prob=0.1", f"phases={json.dumps(STAGES)}"]
TWO_STAGES += ["save_every_steps=1", "keep_checkpoints=0", "evaluation={held_out_fraction: 0.1, max_examples: 8}"]


@pytest.mark.slow
def test_run_of_ernie_m_s_two_stages(train, difference, cut_back, tmp_path):
    """Also resumed."""
    train(*TWO_STAGES)
    run = tmp_path / "run"
    events = read_events(run)
    objectives = [losses_of(event) for event in events if "loss" in event]
    assert objectives == [{"mlm", "tlm", "camlm"}] * 2 + [{"mlm", "btmlm"}] * 2
    first, second = [event for event in events if "held_out/mlm/en" in event]
    assert "held_out/camlm/en-de" in first
    assert "held_out/btmlm/zh" in second
    config = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["languages"] == ["en", "de", "zh"]
    assert weights_of(run)["roberta.language_embeddings.weight"].abs().sum(1).gt(0).all()

    resumed = cut_back(run, 3, tmp_path / "resumed")
    train(*TWO_STAGES, f"output_dir={resumed}", "--resume")
    assert difference(resumed, run) == 0
