import json
import logging
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pretraining.data.corpora import held_out_batches, load_corpora, phase_corpora, training_batches
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


def batches_of(corpora, recipe, tokenizer, start=0, processes=1, process=0):
    phase = recipe.phases[0]
    return list(training_batches(phase_corpora(corpora, phase), phase, recipe, 0, tokenizer, start, processes, process))


def rows_of(batches):
    """{(objective, corpus, example): (input ids, labels)} without padding; no example twice."""
    rows = {}
    for batch in batches:
        for name, fields in batch.items():
            for row, (corpus, example) in enumerate(zip(fields["languages"], fields["examples"].tolist(), strict=True)):
                length = int(fields["attention_mask"][row].sum())
                assert (name, corpus, example) not in rows
                rows[name, corpus, example] = [fields[key][row, :length].tolist() for key in ("input_ids", "labels")]
    return rows


def test_bins_hold_all_texts_and_little_room_is_left():
    lengths = np.random.default_rng(0).lognormal(3.4, 0.5, 5000).astype(int).clip(3, 256)
    bins = best_fit(lengths, 256)
    filled = np.bincount(bins, weights=lengths)
    assert len(bins) == 5000 and filled.max() <= 256 and filled.min() > 0
    assert len(filled) < 1.015 * lengths.sum() / 256
    assert best_fit(np.array([8, 3, 10, 2, 5]), 10).tolist() == [1, 2, 0, 1, 2]  # 2 goes where it fits best
    assert best_fit(np.array([10, 10]), 10).tolist() == [0, 1]
    assert best_fit(np.array([], dtype=int), 10).tolist() == []


def test_every_text_once_an_epoch_with_the_masks_it_has_alone(sample, recipe_of, sample_tokenizer):
    corpora, recipe = corpora_and_recipe(sample, recipe_of, sample_tokenizer)
    by_name = {corpus.name: corpus for corpus in corpora}
    packed = by_name["en-de"].with_form(128).packed(recipe.seed)
    assert sorted(packed.texts.tolist()) == list(range(len(by_name["en-de"].lengths)))
    # an epoch of one corpus: as many steps as its bins fill
    recipe.phases[0].objectives["tlm"].batch_size = len(packed.lengths)
    recipe.phases[0].steps = 2
    first, second = batches_of(corpora, recipe, sample_tokenizer)
    rows, again = rows_of([{"tlm": first["tlm"]}]), rows_of([{"tlm": second["tlm"]}])
    assert len(rows) == len(by_name["en-de"].lengths) and rows.keys() == again.keys()
    assert sum(rows[key] == again[key] for key in rows) < 0.1 * len(rows)  # the second epoch has masks of its own

    corpora, plain = corpora_and_recipe(sample, recipe_of, sample_tokenizer, packed=False)
    plain.phases[0].objectives["tlm"].batch_size = len(rows)
    plain.phases[0].steps = 1
    (batch,) = batches_of(corpora, plain, sample_tokenizer)
    assert rows_of([{"tlm": batch["tlm"]}]) == rows


def test_rows_of_an_update_are_the_same_however_it_is_split(sample, recipe_of, sample_tokenizer):
    corpora, recipe = corpora_and_recipe(sample, recipe_of, sample_tokenizer)
    whole = batches_of(corpora, recipe, sample_tokenizer)
    for batch in whole:
        for fields in batch.values():
            lengths = fields["attention_mask"].sum(1)
            assert len(lengths) > 4 and (lengths.diff() >= 0).all()  # several rows a bin, alike ones together
    recipe.gradient_accumulation_steps = 2
    accumulated = batches_of(corpora, recipe, sample_tokenizer)
    recipe.gradient_accumulation_steps = 1
    shared = [batches_of(corpora, recipe, sample_tokenizer, 0, 2, process) for process in (0, 1)]
    for update, batch in enumerate(whole):
        assert rows_of(accumulated[2 * update : 2 * update + 2]) == rows_of([batch])
        assert rows_of([part[update] for part in shared]) == rows_of([batch])
    assert [rows_of([b]) for b in batches_of(corpora, recipe, sample_tokenizer, 4)] == [rows_of([b]) for b in whole[4:]]
    recipe.num_workers = 2
    for one, other in zip(whole, batches_of(corpora, recipe, sample_tokenizer), strict=True):
        assert all(torch.equal(one["mlm"][key], other["mlm"][key]) for key in ("input_ids", "labels", "examples"))


def test_bins_are_drawn_by_the_sizes_of_the_corpora(sample, recipe_of, sample_tokenizer):
    """Two corpora of 216 texts each, one of which needs more bins: as many draws of either."""
    corpora, recipe = corpora_and_recipe(sample, recipe_of, sample_tokenizer, batch_size=100)
    fields = batches_of(corpora, recipe, sample_tokenizer)[0]["mlm"]
    tokens = Counter()
    for name, length in zip(fields["languages"], fields["attention_mask"].sum(1).tolist(), strict=True):
        tokens[name] += length
    assert tokens["en"] / tokens["zh"] == pytest.approx(1, abs=0.35)


def test_held_out_text_is_not_packed(sample, recipe_of, sample_tokenizer):
    seen = []
    for packed in (False, True):
        corpora, recipe = corpora_and_recipe(sample, recipe_of, sample_tokenizer, packed)
        batches = held_out_batches(corpora, recipe.phases[0], recipe, sample_tokenizer, "mlm")
        seen.append([batch["mlm"]["input_ids"].tolist() for _, batch in batches])
    assert seen[0] == seen[1] and seen[0]


def test_what_was_packed_is_logged(sample, recipe_of, sample_tokenizer, caplog):
    with caplog.at_level(logging.INFO):
        corpora_and_recipe(sample, recipe_of, sample_tokenizer)
    assert "en-de: packed for tlm (phase a): " in caplog.text and " bins of 96 positions, 94.0% full" in caplog.text


def test_what_will_be_packed_is_planned(train, capsys):
    train("--dry_run", "phases.0.objectives.mlm.packed=true")
    planned = capsys.readouterr().out
    assert "packed for mlm: zh, 240 texts in " in planned and "8 bins" in planned and "packed for tlm" not in planned


@pytest.mark.slow
def test_a_run_is_the_same_in_one_and_in_two_micro_batches(train, tmp_path):
    packed = [f"phases.0.objectives.{name}.packed=true" for name in ("mlm", "tlm")]
    packed += [f"phases.0.objectives.{name}.batch_size=4" for name in ("mlm", "tlm")]
    weights, losses = [], []
    for accumulation in (1, 2):
        folder = tmp_path / f"run{accumulation}"
        train(*packed, f"output_dir={folder}", f"gradient_accumulation_steps={accumulation}")
        weights.append(load_file(folder / "model" / "model.safetensors"))
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        losses.append([(event["predictions"], event["loss"]) for event in events if "predictions" in event])
    for (count, loss), (other_count, other_loss) in zip(*losses, strict=True):
        assert count == other_count > 50 and loss == pytest.approx(other_loss, rel=1e-5)
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=2e-5) for name in weights[0])


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
