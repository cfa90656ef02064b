import numpy as np
import pytest

from pretraining.data.batches import Feed
from pretraining.data.corpora import load_corpora
from pretraining.data.stored import best_fit

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

EN_DE = {"source_language": "en", "target_language": "de"}
SETTINGS = {"mlm": {"batch_size": 4, "max_length": 96}, "tlm": {"batch_size": 4, "max_length": 128}}


def objectives(packed=True, **changes):
    return {name: settings | {"packed": packed} | changes for name, settings in SETTINGS.items()}


def corpora_and_recipe(sample, recipe_of, tokenizer, packed=True, **changes):
    recipe = recipe_of(
        objectives(packed, **changes),
        monolingual=[{"language": language, **sample(language)} for language in ("en", "zh")],
        bitext=[EN_DE | dict(source=sample("en"), target=sample("de"), join_on="id")],
        evaluation={"held_out_fraction": 0.1},
    )
    return load_corpora(recipe, tokenizer), recipe


def test_bins_hold_all_texts_and_little_room_is_left():
    lengths = np.random.default_rng(0).lognormal(3.4, 0.5, 5000).astype(int).clip(3, 256)
    bins = best_fit(lengths, 256)
    filled = np.bincount(bins, weights=lengths)
    assert len(bins) == 5000 and filled.max() <= 256 and filled.min() > 0
    assert len(filled) < 1.015 * lengths.sum() / 256
    assert best_fit(np.array([8, 3, 10, 2, 5]), 10).tolist() == [1, 2, 0, 1, 2]  # 2 goes where it fits best
    assert best_fit(np.array([10, 10]), 10).tolist() == [0, 1]
    assert best_fit(np.array([], dtype=int), 10).tolist() == []


def test_every_text_once_an_epoch_with_the_masks_it_has_alone(sample, recipe_of, sample_tokenizer, batches_of, rows_of):
    corpora, recipe = corpora_and_recipe(sample, recipe_of, sample_tokenizer)
    (corpus,) = (corpus for corpus in corpora if corpus.name == "en-de")
    packed = corpus.with_form(128).packed(recipe.seed)
    assert sorted(packed.texts.tolist()) == list(range(len(corpus.lengths)))
    # an epoch of one corpus: as many steps as its bins fill
    recipe.phases[0].objectives["tlm"].batch_size = len(packed.lengths)
    recipe.phases[0].steps = 2
    first, second = (rows_of([{"tlm": batch["tlm"]}]) for batch in batches_of(recipe, corpora))
    assert len(first) == len({row[:3] for row in first}) == len(corpus.lengths)
    assert [row[:3] for row in first] == [row[:3] for row in second]
    # the second epoch has masks of its own
    assert sum(row == other for row, other in zip(first, second, strict=True)) < 0.1 * len(first)

    corpora, plain = corpora_and_recipe(sample, recipe_of, sample_tokenizer, packed=False)
    plain.phases[0].objectives["tlm"].batch_size = len(first)
    plain.phases[0].steps = 1
    (batch,) = batches_of(plain, corpora)
    assert rows_of([{"tlm": batch["tlm"]}]) == first


def test_held_out_text_is_not_packed(sample, recipe_of, sample_tokenizer):
    seen = []
    for packed in (False, True):
        corpora, recipe = corpora_and_recipe(sample, recipe_of, sample_tokenizer, packed)
        phase = recipe.phases[0]
        batches = Feed.of(recipe, corpora, sample_tokenizer).held_out(phase, phase.objectives["mlm"], 32)
        seen.append([batch["mlm"]["input_ids"].tolist() for batch in batches])
    assert seen[0] == seen[1] and seen[0]


def test_what_cannot_be_packed_is_refused(sample, recipe_of):
    one, packed = {"batch_size": 4}, {"batch_size": 4, "packed": True}
    stream = {"language": "zh", **sample("zh"), "streaming": True, "size": 9}
    texts = [{"language": "en", **sample("en")}, stream]
    bitext = [EN_DE | dict(source=sample("en"), target=sample("de"), join_on="id")]
    for objectives, field in (
        ({"btmlm": packed}, "btmlm.packed"),
        ({"ca_mlm_segments": packed}, "ca_mlm_segments.packed"),
        ({"mlm": packed}, "mlm.packed is True: zh"),
        ({"tlm": packed, "ca_mlm_pairs": one}, "tlm.packed is True: tlm and ca_mlm_pairs"),
        ({"tlm": one, "dwa": {"packed": True}}, "dwa.packed"),
    ):
        with pytest.raises(ValueError, match=field):
            recipe_of(objectives, monolingual=texts, bitext=bitext)
    recipe_of({"mlm": packed}, corpora=["en"], monolingual=texts)  # the phase does not read the stream
