"""Translate-train-all, plug-out and plug-in: the tables, what is refused, and runs of a few steps."""

import inspect
import itertools

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from crosslingual_zoo.finetuning.recipe import Recipe, TaggingRecipe
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer, TwoSidedCollator, join
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.plug_in_kinds import KINDS, PLUG_IN, questions, sentences, texts
from tests.finetuning.tasks import encode, predictions, read_alike, recipe_with, record_of, task_with

ALL = PLUG_IN[:2]


def read(train, evaluation, *overrides):
    return read_alike(recipe_with(Recipe, train, evaluation, *overrides))


def test_read_every_table_and_language(write, tmp_path):
    gold = {"path": write("gold", texts(prefix="gold"))}
    for language in ("de", "fr"):
        write(f"train.{language}", texts(prefix=language))
    one_each = {"path": str(tmp_path / "train.{language}.parquet"), "languages": ["de", "fr"]}
    mixed = {"path": write("mixed", texts(language="sw") + texts(language="zh")), "language_column": "language"}
    test = [{"path": write("test", texts()), "languages": ["de"]}]
    data = read([gold, one_each, mixed], test, *ALL)
    assert len(data.train) == 20 and "gold 0" in data.train["text"][:] and "fr 3" in data.train["text"][:]
    assert [table["languages"] for table in data.protocol["training_data"]] == [["en"], ["de"], ["fr"], ["sw", "zh"]]
    assert data.protocol["plug_in"] is False and data.protocol["translations"] == "Anna"


def test_read_translations_of_columns(write, sample_tokenizer):
    pairs = [{**row, "other": f"hypothesis {i}", "other_en": f"en hypothesis {i}"} for i, row in enumerate(texts())]
    columns = {"text_columns": ["text", "other"], "translation_columns": ["text_en", "other_en"]}
    train = {"path": write("train", pairs), "languages": ["de"], **columns}
    data = read([train], [{"path": write("test", pairs), "languages": ["de"], **columns}], *PLUG_IN)
    translation = {"translation_text": "en text 1", "translation_pair": "en hypothesis 1"}
    assert data.train[1] == {"text": "text 1", "pair": "hypothesis 1", **translation, "labels": 1, "row": 1}
    assert data.protocol["plug_in"] is True and data.warnings == []
    encoded = encode(Recipe(max_length=12), data, sample_tokenizer)
    row = encoded.train[1]
    alone = sample_tokenizer("en text 1", "en hypothesis 1", truncation=True, max_length=12)
    assert row["translation_input_ids"] == alone["input_ids"]
    assert row["length"] == len(row["input_ids"]) + len(row["translation_input_ids"])
    assert row["labels"] == row["translation_labels"] == 1
    # an evaluated translation has no label: only x is scored
    assert set(encoded.evaluation["de"].column_names) == set(encoded.train.column_names) - {"translation_labels"}


@pytest.mark.parametrize("kind", KINDS)
def test_read_joined_translations(kind, write):
    of = KINDS[kind]
    rows = of.rows(6)
    path, test = write("train", rows), write("test", rows)
    english = [{"id": row["id"], **{name: row[f"{name}_en"] for name in of.columns(True)}} for row in rows]
    other = write("english", english[::-1])  # joined by id, not by position

    def joined(path, is_trained):
        translations = {"path": other, "text_columns": of.columns(is_trained)}
        return of.table(path, is_trained, translation_columns=None, translations=translations)

    found, expected = of.read(joined(path, True), joined(test, False)), of.read(path, test)
    assert found.train.to_list() == expected.train.to_list()
    assert found.evaluation["de"].to_list() == expected.evaluation["de"].to_list()
    assert found.protocol["training_data"][0]["translations"]["join_on"] == "id"


def recipe_of(kind, folder, model):
    """Overrides of a run of a few steps."""
    paths = [str(folder / f"{part}.parquet") for part in ("train", "test")]
    for path, count in zip(paths, (48, 9), strict=True):
        Dataset.from_list(KINDS[kind].rows(count)).to_parquet(path)
    short = ["training.batch_size=16", "training.max_steps=12"]
    return KINDS[kind].overrides(*paths, f"model={model}", f"output_dir={folder / 'out'}", *short)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_plug_in_scores_are_those_of_the_saved_model(kind, plug_in_veco, tmp_path):
    main(recipe_of(kind, tmp_path, plug_in_veco))
    out = tmp_path / "out"
    folder = out / "seed-1" / "model"
    recipe = load_recipe(KINDS[kind].recipe, str(out / "recipe.yaml"), [])
    task = task_with(recipe, AutoTokenizer.from_pretrained(folder, trust_remote_code=True))
    model = task.auto_class.from_pretrained(folder, trust_remote_code=True).eval()
    assert model.config.plug_in and model.config.fine_tuned_on[0].endswith("(translate_train_all, plug-in)")
    data = task.encode(task.read())

    def logits_of(row, other):
        """Logits of a single row, with the translation of another one."""
        names = ("input_ids", "attention_mask")
        fields = {name: row[name] for name in names} | {f"translation_{n}": other[f"translation_{n}"] for n in names}
        with torch.no_grad():
            return model(**{name: torch.tensor([values]) for name, values in fields.items()}).to_tuple()

    scores = record_of(out / "seed-1")["all_scores"]
    for language, rows in data.evaluation.items():
        rows = rows.to_list()
        found = [logits_of(row, row) for row in rows]
        batches = [tuple(values.numpy() for values in logits) for logits in found]
        if task.kept:
            kept = [task.kept(torch.tensor(logits[0]), None) for logits in batches]
            batches = [ids.numpy() if torch.is_tensor(ids) else tuple(part.numpy() for part in ids) for ids in kept]
        outcome = task.outcome(data, "evaluation", language, join(batches, np.arange(len(rows))))
        assert outcome.scores == pytest.approx(scores[language])
        for row, own in zip(predictions(out / "seed-1", language), outcome.records, strict=True):
            close = {"probability": pytest.approx(own["probability"], abs=1e-5)} if "probability" in own else {}
            assert row == {"language": language, **own} | close
        elsewhere = logits_of(
            rows[0], next(row for row in rows if row["translation_input_ids"] != rows[0]["translation_input_ids"])
        )
        assert not torch.allclose(elsewhere[0], found[0][0])


@pytest.mark.parametrize("kind", KINDS)
def test_compute_loss_of_both_sides(kind, plug_in_veco, write, sample_tokenizer, tmp_path):
    of = KINDS[kind]
    recipe = of.load(write("train", of.rows(9)), write("test", of.rows(9)))
    task = task_with(recipe, sample_tokenizer)
    data = task.encode(task.read())
    model = task.load_model(str(plug_in_veco), 1, data).eval()
    trainer = FineTuningTrainer(task, model, data, task.arguments(1, tmp_path / "trainer"))
    fields = [*inspect.signature(model.forward).parameters, "labels"]
    collate = TwoSidedCollator(task.collator(sample_tokenizer), fields)
    rows = data.train.to_list()
    whole = collate(rows)

    def loss(*cuts):
        """Loss of micro-batches, which are padded to one width: question answering reads padding too."""
        parts = [slice(*ends) for ends in itertools.pairwise((0, *cuts, None))]
        batches = iter([collate(rows[part]) for part in parts])
        batches, items = trainer.get_batch_samples(batches, len(parts), "cpu")
        return sum(trainer.compute_loss(model, batch, num_items_in_batch=items) for batch in batches)

    inputs = {name: values for name, values in whole.items() if "labels" not in name}
    for side in ("", "translation_"):
        inputs |= {side + name: of for name, of in task.label_fields(whole[side + "labels"]).items()}
    expected = model(**inputs).loss
    torch.testing.assert_close(loss(), expected)
    torch.testing.assert_close(loss(1, 5), expected)
    filler = {name: torch.full_like(values, -100) if "labels" in name else values for name, values in whole.items()}
    nothing = trainer.compute_loss(model, filler, num_items_in_batch=9)
    nothing.backward()
    assert nothing == 0 and not any(p.grad.any() for p in model.parameters() if p.grad is not None)


def test_read_refuses_to_hold_out_translated_rows_and_translations_that_do_not_fit(write):
    gold, test = {"path": write("gold", texts())}, {"path": write("test", texts()), "languages": ["de"]}
    translated = {"path": write("de", texts()), "languages": ["de"]}
    with pytest.raises(ValueError, match="source_dev.*translate_train_all"):
        read([gold, translated], [test], *ALL, "selection=source_dev")
    for other, named in ((texts("aba"), "column id"), (texts("abab") + texts("a"), "row 4 .* column id")):
        table = {"path": gold["path"], "languages": ["de"], "translations": {"path": write("other", other)}}
        with pytest.raises(ValueError, match=named):
            read([table], [table | {"path": test["path"]}], *PLUG_IN)
    blank = {**translated, "path": write("blank", texts(text_en=" ")), "translation_columns": ["text_en"]}
    with pytest.raises(ValueError, match="row 0 .*column text_en"):
        read([blank], [blank | {"path": test["path"]}], *PLUG_IN)


def test_windows_of_with_the_whole_translation(write, sample_tokenizer):
    rows = sentences(12)
    data = KINDS["tagging"].read(write("train", rows), write("test", rows))
    encoded = encode(TaggingRecipe(max_length=32, label_subword="first"), data, sample_tokenizer)
    assert "translation_labels" not in encoded.evaluation["de"].column_names
    split = [number for number in range(12) if encoded.train["sentence"][:].count(number) > 1]
    cut = 0
    for number, row in enumerate(rows):
        windows = [window for window in encoded.train if window["sentence"] == number]
        whole = sample_tokenizer(row["tokens_en"], is_split_into_words=True)
        kept = whole["input_ids"] if len(whole["input_ids"]) <= 32 else [*whole["input_ids"][:31], 2]
        cut += kept != whole["input_ids"]
        words = whole.word_ids()
        firsts = {words.index(word): tag for word, tag in enumerate(row["labels_en"])}
        expected = [
            data.label_names.index(firsts[place]) if place in firsts and place < 31 else -100
            for place in range(len(kept))
        ]
        for place, window in enumerate(windows):
            assert window["translation_input_ids"] == kept and set(window["translation_attention_mask"]) == {1}
            assert window["translation_labels"] == (expected if place == 0 else [-100] * len(kept))
            assert window["length"] == len(window["input_ids"]) + len(kept)
            assert len(window["input_ids"]) <= 32
    assert split == [0, 4, 8] and cut == 4
    assert encoded.protocol["cut_translations"]["train"] == {"all": 4}
    assert encoded.protocol["cut_translations"]["evaluation"] == {"de": 4}
    assert encoded.protocol["split_texts"]["train"] == {"all": 3}


def test_encode_windows_with_those_of_the_translation(write, sample_tokenizer):
    of, rows = KINDS["question_answering"], questions(8)
    recipe = of.load(write("train", rows), write("test", rows))
    encoded = encode(recipe, task_of(recipe).read(), sample_tokenizer)

    def alone(suffix):
        """The windows of the columns of a side, read as a text of its own."""
        swapped = [{name: row[name + suffix] for name in ("question", "context", "answers")} for row in rows]
        names = (
            {"translation_columns": ["question", "context", "answers"]},
            {"translation_columns": ["question", "context"]},
        )
        paths = write(f"train{suffix}2", swapped), write(f"test{suffix}2", swapped)
        own = [of.table(path, True, **fields) for path, fields in zip(paths, names, strict=True)]
        return encode(recipe, of.read(*own), sample_tokenizer).evaluation["de"].to_list()

    x, y = alone(""), alone("_en")
    found = encoded.evaluation["de"].to_list()
    assert [window["input_ids"] for window in found] == [window["input_ids"] for window in x]
    assert "translation_labels" not in encoded.evaluation["de"].column_names
    unread = 0
    place = 0
    for row in range(len(rows)):
        own, others = ([window for window in side if window["row"] == row] for side in (found, y))
        unread += len(others) > len(own)
        for number, window in enumerate(own):
            other = others[min(number, len(others) - 1)]
            assert window["translation_input_ids"] == other["input_ids"]
            assert window["length"] == len(window["input_ids"]) + len(other["input_ids"])
            trained = encoded.train[place]
            place += 1
            assert trained["translation_input_ids"] == other["input_ids"]
            is_learned = row < len(rows) - 1 and number < len(others)  # known, and not learned before
            assert trained["translation_labels"] == (other["labels"] if is_learned else [-100, -100])
    assert unread and any(len([w for w in y if w["row"] == row]) > 1 for row in range(8))
    assert encoded.protocol["cut_translations"]["evaluation"] == {"de": unread}
