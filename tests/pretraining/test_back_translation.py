"""CAMLM and BTMLM from recipe to checkpoint: masks of rows, languages of pseudo tokens, and both stages."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

from crosslingual_zoo.pretraining.data.batches import held_out_batches, load_corpora, phase_collators
from crosslingual_zoo.pretraining.data.languages import Languages
from crosslingual_zoo.pretraining.objectives.btmlm import BtmlmCollator, length_of_text, pseudo_count
from crosslingual_zoo.pretraining.objectives.camlm import CamlmCollator
from crosslingual_zoo.pretraining.objectives.mlm import MlmCollator
from crosslingual_zoo.pretraining.objectives.tlm import TlmCollator
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.tracking import read_events
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.pretraining.made_texts import Example, texts_of

CORPORA = [
    SimpleNamespace(name="en", languages=["en"], size=100, kind="monolingual"),
    SimpleNamespace(name="is", languages=["is"], size=100, kind="monolingual"),
    SimpleNamespace(name="en-de", languages=["en", "de"], size=900, kind="bitext"),
    SimpleNamespace(name="en-zh", languages=["en", "zh"], size=100, kind="bitext"),
]
LANGUAGES = Languages.of(SimpleNamespace(languages=["zh", "en", "de", "is"]), CORPORA, alpha=0.5)
CAMLM, TLM = (collator(mask_probability=0.3) for collator in (CamlmCollator, TlmCollator))
BTMLM = BtmlmCollator(max_length=40)


def pair(number, lengths, tokenizer, name="en-de"):
    rng = np.random.default_rng(number)
    return Example([rng.integers(10, len(tokenizer) - 5, length).astype(np.int32) for length in lengths], name, number)


def sub_batch_of(tokenizer, examples, objective, training=True):
    collator = replace(objective, tokenizer=tokenizer, languages=LANGUAGES)
    return collator.sub_batch(texts_of(examples), (1, 0), training)


def rows_of(tokenizer, examples, objective):
    """The fields (B, T) of the examples, as arrays."""
    fields = sub_batch_of(tokenizer, examples, objective)
    return {key: field.numpy() for key, field in fields.items() if key.endswith(("_ids", "mask", "labels"))}


def test_camlm_collator_predicts_masks_only_and_leaves_a_token_of_each_side(sample_tokenizer):
    lengths = np.array([(1 + number % 4, 20) for number in range(300)])
    examples = [pair(number, of, sample_tokenizer) for number, of in enumerate(lengths)]
    rows = rows_of(sample_tokenizer, examples, CAMLM)
    predicted = rows["labels"] != IGNORED
    assert (rows["input_ids"][predicted] == sample_tokenizer.mask_token_id).all()
    assert not predicted[rows["special_tokens_mask"] == 1].any()
    masked = {code: (predicted & (rows["language_ids"] == LANGUAGES.rows[code])).sum(1) for code in ("en", "de")}
    assert (masked["en"] < lengths[:, 0]).all() and (masked["de"] < lengths[:, 1]).all()
    assert masked["de"].mean() / 20 == pytest.approx(0.3, abs=0.01)


def test_camlm_collator_predicts_nothing_from_unknown_tokens(sample_tokenizer):
    """A side of only unknown tokens says nothing about the other one."""
    examples = [pair(number, (4, 20), sample_tokenizer) for number in range(20)]
    for example in examples:
        example.sides[0][:] = sample_tokenizer.unk_token_id
    assert (rows_of(sample_tokenizer, examples, CAMLM)["labels"] == IGNORED).all()


def test_tlm_collator_half_of_the_pairs_say_their_languages_in_training(sample_tokenizer):
    pairs = [pair(number, (5, 6), sample_tokenizer) for number in range(400)]
    ids = sub_batch_of(sample_tokenizer, pairs, TLM)["language_ids"]
    is_none = ids.eq(-1).all(1)
    assert is_none.sum() == pytest.approx(200, abs=40)
    assert (ids[~is_none] == torch.tensor([1] * 7 + [2] * 8)).all()
    assert "language_ids" not in sub_batch_of(sample_tokenizer, pairs, TLM, training=False)


def test_camlm_collator_reads_pairs_in_either_order(sample_tokenizer):
    """TLM keeps their order. Tokens, and in CAMLM languages, belong to their side."""
    examples = [pair(number, (5, 6), sample_tokenizer) for number in range(400)]
    for objective, in_order in ((TLM, 400), (CAMLM, pytest.approx(200, abs=40))):
        rows = rows_of(sample_tokenizer, examples, objective)
        gold = np.where(rows["labels"] == IGNORED, rows["input_ids"], rows["labels"])
        english_first = (rows["segment_ids"] == 0).sum(1) == 7
        assert english_first.sum() == in_order
        for row, example in enumerate(examples):
            order = (0, 1) if english_first[row] else (1, 0)
            if objective is CAMLM:
                wanted = [LANGUAGES.rows[("en", "de")[side]] for side in order]
                assert rows["language_ids"][row, [0, -1]].tolist() == wanted
            for segment, side in enumerate(order):
                of_side = (rows["segment_ids"][row] == segment) & (rows["special_tokens_mask"][row] == 0)
                assert gold[row][of_side].tolist() == example.sides[side].tolist()


def test_btmlm_collator_gives_pseudo_positions_in_another_language(sample_tokenizer):
    example = pair(3, (20,), sample_tokenizer, "en")
    row = {key: field[0] for key, field in rows_of(sample_tokenizer, [example], BTMLM).items()}
    is_pseudo = (row["segment_ids"] == 1) & (row["special_tokens_mask"] == 0)
    assert is_pseudo.tolist() == [False] * 23 + [True] * 4 + [False]  # <s> 20 </s></s> 4 </s>, 20% of 20
    assert (row["input_ids"][is_pseudo] == sample_tokenizer.mask_token_id).all()
    assert (row["labels"][row["segment_ids"] == 1] == IGNORED).all()
    assert (row["labels"] != IGNORED).sum() == 3  # 15% of the text, not of the row
    assert set(row["language_ids"][row["segment_ids"] == 0]) == {1}
    assert len(set(row["language_ids"][row["segment_ids"] == 1])) == 1
    assert "temperature" not in sub_batch_of(sample_tokenizer, [example], BTMLM, training=False)


def test_btmlm_collator_draws_target_languages_by_the_size_of_their_pairs(sample_tokenizer):
    """900 and 100 pairs, alpha 0.5: 3 to 1."""
    examples = [pair(number, (6,), sample_tokenizer, "en") for number in range(2000)]
    drawn = rows_of(sample_tokenizer, examples, BTMLM)["language_ids"][:, -1]
    assert set(drawn) == {0, 2} and (drawn == 2).mean() == pytest.approx(0.75, abs=0.03)


def test_btmlm_collator_of_a_language_without_pairs(sample_tokenizer):
    cases = [(BtmlmCollator, {}, False), (BtmlmCollator, {"target_languages": "all"}, True), (MlmCollator, {}, True)]
    for collator, options, reads in cases:
        assert collator(sample_tokenizer, languages=LANGUAGES, **options).reads_corpus(CORPORA[1]) == reads
    codes, shares = LANGUAGES.targets("is", "all")
    assert codes == ["de", "en", "zh"] and shares == pytest.approx(np.sqrt([900, 1000, 100]) / 71.62, abs=1e-3)
    codes, shares = replace(LANGUAGES, pairs=[*LANGUAGES.pairs, (9000, ("de", "zh"))]).targets("en", "paired")
    assert codes == ["de", "zh"] and shares == pytest.approx([0.75, 0.25])  # by the pairs with English


@pytest.mark.parametrize("share", [0.05, 0.1, 0.15, 0.2, 1.0])
def test_btmlm_collator_keeps_room_for_the_pseudo_tokens(share):
    for max_length in range(8, 200):
        objective = BtmlmCollator(max_length=max_length, pseudo_share=share)
        tokens = objective.text_length - 2
        assert objective.text_length == length_of_text(max_length, share)
        assert tokens > 0 and tokens + pseudo_count(tokens, share) + 4 <= max_length
        one_more = tokens + 1 + pseudo_count(tokens + 1, share) + 4
        assert one_more >= max_length  # no more than a position is wasted
    assert MlmCollator(max_length=50).text_length == 50


MLM, PAIRS = ({"batch_size": 4, "max_length": length} for length in (48, 96))
RATE = {"steps": 2, "learning_rate": 3e-2}  # at which the language embeddings matter
STAGES = [
    RATE | {"name": "camlm", "objectives": {"mlm": MLM, "tlm": PAIRS, "camlm": PAIRS}},
    RATE | {"name": "btmlm", "objectives": {"mlm": MLM, "btmlm": MLM}},
]
TWO_STAGES = ["model.type=ernie_m", "model.config.hidden_dropout_prob=0.1", f"phases={json.dumps(STAGES)}"]
TWO_STAGES += ["save_every_steps=1", "keep_checkpoints=0", "evaluation={held_out_fraction: 0.1, max_examples: 8}"]


@pytest.mark.slow
def test_run_of_ernie_m_s_two_stages(train, recipe_file, difference, cut_back, tmp_path, sample_tokenizer):
    """Also resumed; and the masked LM in use, to which the pipeline `fill-mask` gives no language_ids, has the loss
    that training reports."""
    train(*TWO_STAGES)
    run = tmp_path / "run"
    events = read_events(run)
    losses = [[key for key in event if key.startswith("loss/")] for event in events if "loss" in event]
    objectives = [{key.split("/")[1] for key in keys} for keys in losses]
    assert objectives == [{"mlm", "tlm", "camlm"}] * 2 + [{"mlm", "btmlm"}] * 2
    evaluated = [event for event in events if "held_out/mlm/en" in event]
    assert "held_out/camlm/en-de" in evaluated[0] and "held_out/btmlm/zh" in evaluated[1]
    config = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["languages"] == ["en", "de", "zh"]
    weights = load_file(run / "model" / "model.safetensors")
    assert weights["roberta.language_embeddings.weight"].abs().sum(1).gt(0).all()

    recipe = load_recipe(Recipe, str(recipe_file), TWO_STAGES)
    corpora = {corpus.name: corpus for corpus in load_corpora(recipe, sample_tokenizer)}
    for objective, name, number, folder in (("tlm", "en-de", 0, "checkpoints/step-2/model"), ("mlm", "zh", 1, "model")):
        model = AutoModelForMaskedLM.from_pretrained(run / folder, trust_remote_code=True)
        assert model.roberta.language_embeddings.weight.abs().mean() > 1e-2
        phase, size = recipe.phases[number], recipe.evaluation.batch_size
        languages = Languages.of(model.config, [corpora[name]], recipe.alpha)
        collator = phase_collators(phase, sample_tokenizer, languages)[objective]
        batch = next(held_out_batches([corpora[name]], collator, size))
        fields = {field: batch[objective][field] for field in ("input_ids", "attention_mask", "labels")}
        with torch.no_grad():
            loss = model(**fields).loss.item()
        assert loss == pytest.approx(evaluated[number][f"held_out/{objective}/{name}"], abs=1e-5)

    resumed = cut_back(run, 3, tmp_path / "resumed")
    train(*TWO_STAGES, f"output_dir={resumed}", "--resume")
    assert difference(resumed, run) == 0
