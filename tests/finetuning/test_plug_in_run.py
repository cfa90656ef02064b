"""Translate-train-all, plug-out and plug-in: the tables, what is refused, and runs of a few steps."""

import inspect
import itertools

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from transformers.trainer_pt_utils import nested_numpify

from crosslingual_zoo.finetuning.recipe import Recipe, TaggingRecipe
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer, TwoSidedCollator, join
from crosslingual_zoo.zoo_core.masking import IGNORED
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
    data = read([gold, one_each, mixed], [{"path": gold["path"], "languages": ["de"]}], *ALL)
    assert len(data.train) == 20
    assert {"gold 0", "fr 3"} <= set(data.train["text"])
    assert [table["languages"] for table in data.protocol["training_data"]] == [["en"], ["de"], ["fr"], ["sw", "zh"]]
    assert data.protocol["plug_in"] is False
    assert data.protocol["translations"] == "Anna"


def test_read_translations_of_columns(write, sample_tokenizer):
    pairs = [{**row, "other": f"hypothesis {i}", "other_en": f"en hypothesis {i}"} for i, row in enumerate(texts())]
    table = {"path": write("pairs", pairs), "languages": ["de"]}
    table |= {"text_columns": ["text", "other"], "translation_columns": ["text_en", "other_en"]}
    data = read([table], [table], *PLUG_IN)
    translation = {"translation_text": "en text 1", "translation_pair": "en hypothesis 1"}
    assert data.train[1] == {"text": "text 1", "pair": "hypothesis 1", **translation, "labels": 1, "row": 1}
    assert data.protocol["plug_in"] is True
    assert data.warnings == []
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
    task_kind = KINDS[kind]
    rows = task_kind.rows(6)
    path = write("rows", rows)
    english = []
    for row in reversed(rows):  # joined by id, not by position
        translation = {name: row[f"{name}_en"] for name in task_kind.columns(is_trained=True)}
        english.append({"id": row["id"], **translation})
    other = write("english", english)

    def joined(is_trained):
        translations = {"path": other, "text_columns": task_kind.columns(is_trained)}
        return task_kind.table(path, is_trained, translation_columns=None, translations=translations)

    data = task_kind.read(joined(True), joined(False))
    expected = task_kind.read(path, path)
    assert data.train.to_list() == expected.train.to_list()
    assert data.evaluation["de"].to_list() == expected.evaluation["de"].to_list()
    assert data.protocol["training_data"][0]["translations"]["join_on"] == "id"


def recipe_of(kind, folder, model):
    """Overrides of a run of a few steps."""
    train = str(folder / "train.parquet")
    test = str(folder / "test.parquet")
    Dataset.from_list(KINDS[kind].rows(48)).to_parquet(train)
    Dataset.from_list(KINDS[kind].rows(9)).to_parquet(test)
    short = ["training.batch_size=16", "training.max_steps=12"]
    return KINDS[kind].overrides(train, test, f"model={model}", f"output_dir={folder / 'out'}", *short)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_plug_in_scores_are_those_of_the_saved_model(kind, plug_in_veco, tmp_path):
    main(recipe_of(kind, tmp_path, plug_in_veco))
    out = tmp_path / "out"
    folder = out / "seed-1" / "model"
    recipe = load_recipe(KINDS[kind].recipe, str(out / "recipe.yaml"), [])
    task = task_with(recipe, AutoTokenizer.from_pretrained(folder, trust_remote_code=True))
    model = task.auto_class.from_pretrained(folder, trust_remote_code=True).eval()
    assert model.config.plug_in
    assert model.config.fine_tuned_on[0].endswith("(translate_train_all, plug-in)")
    data = task.encode(task.read())
    rows = data.evaluation["de"].to_list()

    def logits_of(row, other):
        """Logits of a single row, with the translation of another one."""
        inputs = {}
        for name in ("input_ids", "attention_mask"):
            inputs[name] = torch.tensor([row[name]])
            inputs[f"translation_{name}"] = torch.tensor([other[f"translation_{name}"]])
        with torch.no_grad():
            return model(**inputs).to_tuple()

    batches = []
    for row in rows:
        logits = logits_of(row, row)
        output = task.preprocess_logits(logits[0], None) if task.preprocess_logits else logits
        batches.append(nested_numpify(output))
    outcome = task.outcome(data, "evaluation", "de", join(batches, np.arange(len(rows))))
    assert outcome.scores == pytest.approx(record_of(out / "seed-1")["all_scores"]["de"])
    for row, record in zip(predictions(out / "seed-1", "de"), outcome.records, strict=True):
        if "probability" in record:
            assert row.pop("probability") == pytest.approx(record.pop("probability"), abs=1e-5)
        assert row == {"language": "de", **record}
    first = rows[0]
    other = next(row for row in rows if row["translation_input_ids"] != first["translation_input_ids"])
    assert not torch.allclose(logits_of(first, other)[0], logits_of(first, first)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_compute_loss_of_both_sides(kind, plug_in_veco, write, sample_tokenizer, tmp_path):
    path = write("rows", KINDS[kind].rows(9))
    task = task_with(KINDS[kind].load(path, path), sample_tokenizer)
    data = task.encode(task.read())
    model = task.load_model(str(plug_in_veco), 1, data).eval()
    trainer = FineTuningTrainer(task, model, data, task.arguments(1, tmp_path / "trainer"))
    fields = [*inspect.signature(model.forward).parameters, "labels"]
    collate = TwoSidedCollator(task.collator(sample_tokenizer), fields)
    rows = data.train.to_list()
    whole = collate(rows)

    def loss(*cuts):
        """Loss of micro-batches, which are padded to one width: question answering reads padding too."""
        parts = [rows[begin:end] for begin, end in itertools.pairwise((0, *cuts, None))]
        batches, items = trainer.get_batch_samples(map(collate, parts), len(parts), "cpu")
        return sum(trainer.compute_loss(model, batch, num_items_in_batch=items) for batch in batches)

    inputs = dict(whole)
    for side in ("", "translation_"):
        label_fields = task.label_fields(inputs.pop(f"{side}labels"))
        inputs |= {side + name: values for name, values in label_fields.items()}
    expected = model(**inputs).loss
    torch.testing.assert_close(loss(), expected)
    torch.testing.assert_close(loss(1, 5), expected)
    unlabeled = {name: torch.full_like(whole[name], IGNORED) for name in ("labels", "translation_labels")}
    nothing = trainer.compute_loss(model, whole | unlabeled, num_items_in_batch=9)
    nothing.backward()
    assert nothing == 0
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)


def test_read_refuses_to_hold_out_translated_rows_and_translations_that_do_not_fit(write):
    table = {"path": write("de", texts()), "languages": ["de"]}
    with pytest.raises(ValueError, match="source_dev.*translate_train_all"):
        read([table], [table], *ALL, "selection=source_dev")
    blank = {"path": write("blank", texts(text_en=" ")), "translation_columns": ["text_en"]}
    cases = {
        "row 0 .*column text_en": blank,
        "column id": {"translations": {"path": write("fewer", texts("aba"))}},
        "row 4 .* column id": {"translations": {"path": write("twice", texts("abab") + texts("a"))}},
    }
    for message, fields in cases.items():
        with pytest.raises(ValueError, match=message):
            read([table | fields], [table | fields], *PLUG_IN)


def test_windows_of_with_the_whole_translation(write, sample_tokenizer):
    rows = sentences(12)
    path = write("rows", rows)
    data = KINDS["tagging"].read(path, path)
    encoded = encode(TaggingRecipe(max_length=32, label_subword="first"), data, sample_tokenizer)
    assert "translation_labels" not in encoded.evaluation["de"].column_names
    assert max(map(len, encoded.train["input_ids"])) <= 32
    counts = np.bincount(encoded.train["sentence"][:])
    assert np.flatnonzero(counts > 1).tolist() == [0, 4, 8]
    for number, row in enumerate(rows):
        whole = sample_tokenizer(row["tokens_en"], is_split_into_words=True)
        ids = whole["input_ids"]
        if len(ids) > 32:
            ids = [*ids[:31], 2]
        labels = [IGNORED] * len(ids)
        for word, tag in enumerate(row["labels_en"]):
            token = whole.word_ids().index(word)
            if token < 31:
                labels[token] = data.label_names.index(tag)
        windows = [window for window in encoded.train if window["sentence"] == number]
        nothing = [IGNORED] * len(ids)
        expected = [labels] + [nothing] * (len(windows) - 1)  # it is learned once
        assert [window["translation_labels"] for window in windows] == expected
        for window in windows:
            assert window["translation_input_ids"] == ids
            assert set(window["translation_attention_mask"]) == {1}
            assert window["length"] == len(window["input_ids"]) + len(ids)
    assert encoded.protocol["cut_translations"] == {"train": {"all": 4}, "evaluation": {"de": 4}}
    assert encoded.protocol["split_texts"]["train"] == {"all": 3}


def by_row(windows):
    return {row: list(group) for row, group in itertools.groupby(windows, key=lambda window: window["row"])}


def test_encode_windows_with_those_of_the_translation(write, sample_tokenizer):
    task_kind = KINDS["question_answering"]
    rows = questions(8)
    path = write("rows", rows)
    recipe = task_kind.load(path, path)
    encoded = encode(recipe, task_of(recipe).read(), sample_tokenizer)

    def alone(suffix):
        """The windows by row of the columns of a side, read as a text of its own."""
        columns = ["question", "context", "answers"]
        path = write(f"side{suffix}", [{name: row[name + suffix] for name in columns} for row in rows])
        train = task_kind.table(path, True, translation_columns=columns)
        test = task_kind.table(path, True, translation_columns=columns[:2])
        windows = encode(recipe, task_kind.read(train, test), sample_tokenizer).evaluation["de"]
        return by_row(windows)

    x = alone("")
    y = alone("_en")
    windows = by_row(encoded.evaluation["de"])
    trained_windows = iter(encoded.train)
    assert "translation_labels" not in encoded.evaluation["de"].column_names
    for row, others in y.items():
        assert [window["input_ids"] for window in windows[row]] == [window["input_ids"] for window in x[row]]
        for number, window in enumerate(windows[row]):
            other = others[min(number, len(others) - 1)]
            assert window["translation_input_ids"] == other["input_ids"]
            assert window["length"] == len(window["input_ids"]) + len(other["input_ids"])
            trained = next(trained_windows)
            assert trained["translation_input_ids"] == other["input_ids"]
            is_learned = row < len(rows) - 1 and number < len(others)  # known, and not learned before
            assert trained["translation_labels"] == (other["labels"] if is_learned else [IGNORED, IGNORED])
    unread = sum(len(y[row]) > len(windows[row]) for row in y)
    assert unread
    assert any(len(others) > 1 for others in y.values())
    assert encoded.protocol["cut_translations"]["evaluation"] == {"de": unread}
