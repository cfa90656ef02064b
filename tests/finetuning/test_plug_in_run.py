"""Translate-train-all, plug-out and plug-in: the tables, what is refused, and runs of a few steps."""

import functools
import inspect
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoTokenizer, DataCollatorWithPadding

from finetuning.recipe import Recipe
from finetuning.run import main
from finetuning.trainer import FineTuningTrainer, TwoSidedCollator, join
from tests.finetuning.plug_in_kinds import CORPUS, KINDS, PLUG_IN, texts
from tests.finetuning.tasks import encode, read_alike, recipe_with, record_of, task_with
from zoo_core.recipes import load_recipe

RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes" / "veco"
ALL = PLUG_IN[:2]


def read(train, evaluation, *overrides):
    return read_alike(recipe_with(Recipe, train, evaluation, *overrides))


# --- translate-train-all, plug-out ---


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
    data = read([{**mixed, "languages": ["sw"]}], test, *ALL)
    assert len(data.train) == 4
    with pytest.raises(ValueError, match="train.en.parquet does not exist"):
        read([gold, {"path": one_each["path"]}], test, *ALL)
    with pytest.raises(ValueError, match="setting is translate_train_all"):
        read([gold], test, *ALL)
    with pytest.raises(ValueError, match="train.0.languages"):
        read([one_each], test)


def test_read_refuses_to_hold_out_translated_rows(tmp_path, write):
    gold, test = {"path": write("gold", texts())}, {"path": write("test", texts()), "languages": ["de"]}
    translated = {"path": write("de", texts()), "languages": ["de"]}
    with pytest.raises(ValueError, match="source_dev.*translate_train_all"):
        read([gold, translated], [test], *ALL, "selection=source_dev")
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "validation"):
        Dataset.from_list(texts(language="en") + texts(language="de")).to_parquet(folder / f"{split}.parquet")
    # a translated table's dev_split is not the source language's
    other = {"path": str(folder), "dev_split": "validation", "languages": ["de"], "language_column": "language"}
    with pytest.raises(ValueError, match="source_dev.* of en"):
        read([gold, other], [test], *ALL, "selection=source_dev")
    data = read([{**other, "languages": []}], [test], *ALL, "selection=source_dev")
    assert list(data.dev) == ["en"] and len(data.dev["en"]) == 4 and len(data.train) == 8


# --- plug-in: where the translations come from ---


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
    long = encode(Recipe(max_length=len(row["input_ids"])), data, sample_tokenizer)
    assert long.protocol["cut_texts"]["train"]["all"] == sum(
        len(sample_tokenizer(*sides)["input_ids"]) > len(row["input_ids"])
        for text in data.train
        for sides in ((text["text"], text["pair"]), (text["translation_text"], text["translation_pair"]))
    )


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


WITH = {"translation_columns": ["question_en", "context_en", "answers_en"]}


@pytest.mark.parametrize(
    ("kind", "train", "test", "changes", "named"),
    [
        ("classification", {"translation_columns": None}, {}, {}, "train.0.*translation_columns"),
        ("classification", {"translations": {"path": "x"}}, {}, {}, "train.0.*translations"),
        ("classification", {"translation_columns": ["text_en", "text"]}, {}, {}, "train.0.*text_en, text .*Name 1"),
        ("classification", {}, {}, {"text_en": " "}, "row 1 .*column text_en"),
        ("tagging", {}, {}, {"tokens_en": [], "labels_en": []}, "row 1 .*translation"),
        ("question_answering", {}, WITH, {}, "evaluation.0.*Name 2"),
    ],
)
def test_read_refuses_missing_translations(kind, train, test, changes, named, write):
    of = KINDS[kind]
    rows = of.rows(6)
    evaluated = of.table(write("test", rows), False, **test)
    rows[1] |= changes
    with pytest.raises(ValueError, match=named):
        of.read(of.table(write("train", rows), True, **train), evaluated)


@pytest.mark.parametrize(
    ("other", "fields", "named"),
    [
        (texts("aba"), {}, "1 of 4 rows .* column id"),
        (texts("abab") + texts("a"), {}, "row 4 .* column id"),
    ],
)
def test_read_refuses_what_cannot_be_joined(write, other, fields, named):
    table = {"languages": ["de"], "translations": {"path": write("other", other), **fields}}
    with pytest.raises(ValueError, match=named):
        read([{"path": write("train", texts()), **table}], [{"path": write("test", texts()), **table}], *PLUG_IN)


def test_check_refuses_contradictory_settings():
    for overrides in ("plug_in=true", "setting=translate_train_all", "translations_from=Anna"):
        recipe = load_recipe(Recipe, str(RECIPES / "sample.yaml"), ["model=x", overrides])
        with pytest.raises(ValueError, match="plug_in|translations_from"):
            recipe.check()


# --- runs ---


def topics():
    """German and Chinese of the sample corpus with its English, three steps."""
    table = f"path: {CORPUS}, config: '{{language}}', label_column: topic, languages: [de, zh]"
    table += f", translations: {{path: {CORPUS}, config: en}}"
    return [
        f"--config={RECIPES / 'sample_plug_in.yaml'}",
        f"train=[{{{table}, split: 'train[:200]'}}]",
        f"evaluation=[{{{table}, split: test, dev_split: 'train[200:]'}}]",
        *("selection=mean_dev", "evaluate_every_steps=2", "max_length=24"),
        *("training.batch_size=48", "training.max_steps=3", "seeds=[1]"),
    ]


def recipe_of(kind, folder, model):
    """Overrides of a run of a few steps."""
    places = [f"model={model}", f"output_dir={folder / 'out'}"]
    if kind == "classification":
        return [*topics(), *places]
    paths = [str(folder / f"{part}.parquet") for part in ("train", "test")]
    for path, count in zip(paths, (48, 9), strict=True):
        Dataset.from_list(KINDS[kind].rows(count)).to_parquet(path)
    return KINDS[kind].overrides(*paths, *places, "training.batch_size=16", "training.max_steps=12")


@pytest.fixture(scope="module")
def plug_in_run(plug_in_veco, tmp_path_factory):
    """plug_in_run(kind) -> folder of a run, for reading alone."""

    @functools.cache
    def run(kind):
        folder = tmp_path_factory.mktemp(kind)
        main(recipe_of(kind, folder, plug_in_veco))
        return folder / "out"

    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_plug_in_scores_are_those_of_the_saved_model(kind, plug_in_run):
    out = plug_in_run(kind)
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
            ids = [batch[0] if isinstance(batch, tuple) else batch for batch in batches]
            assert len(np.unique(np.concatenate(ids, axis=None))) > 1
        predictions = join(batches, np.arange(len(rows)))
        outcome = task.score(data, "evaluation", language, predictions)
        assert outcome.scores == pytest.approx(scores[language])
        assert [record["row"] for record in outcome.records()] == data.as_read[language]["row"][:]
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
    whole = collate(data.train.to_list())

    def loss(*cuts):
        """Loss of micro-batches, padded to one width: question answering reads padding too."""
        parts = [slice(*ends) for ends in itertools.pairwise((0, *cuts, None))]
        batches = iter([{name: values[part] for name, values in whole.items()} for part in parts])
        batches, items = trainer.get_batch_samples(batches, len(parts), "cpu")
        return sum(trainer.compute_loss(model, batch, num_items_in_batch=items) for batch in batches)

    gold = {"labels": whole["labels"]}
    if kind == "question_answering":
        gold = dict(zip(("start_positions", "end_positions"), whole["labels"].unbind(-1), strict=True))
    expected = model(**{name: values for name, values in whole.items() if name != "labels"}, **gold).loss
    torch.testing.assert_close(loss(), expected)
    torch.testing.assert_close(loss(1, 5), expected)


@pytest.mark.slow
def test_step_of_both_sides_accumulated(plug_in_veco, tmp_path):
    one = [*recipe_of("tagging", tmp_path, plug_in_veco), "training.max_steps=2", "training.max_grad_norm=0.01"]
    main(one)
    main([*one, f"output_dir={tmp_path / 'four'}", "training.gradient_accumulation_steps=4"])
    whole, split = (load_file(tmp_path / name / "seed-1" / "model" / "model.safetensors") for name in ("out", "four"))
    assert all(torch.allclose(whole[name], split[name], atol=1e-5) for name in whole)


def test_two_sided_collator(sample_tokenizer):
    fields = ["input_ids", "attention_mask", "labels"]
    collate = TwoSidedCollator(DataCollatorWithPadding(sample_tokenizer), fields)
    lengths = [(3, 5), (4, 2)]
    rows = [
        {"input_ids": [7] * x, "attention_mask": [1] * x, "labels": n, "length": x + y}
        for n, (x, y) in enumerate(lengths)
    ]
    for row, (_, y) in zip(rows, lengths, strict=True):
        row |= {"translation_input_ids": [8] * y, "translation_attention_mask": [1] * y}
    batch = collate(rows)
    assert batch["input_ids"].tolist() == [[7, 7, 7, 1], [7, 7, 7, 7]]
    assert batch["translation_input_ids"].tolist() == [[8] * 5, [8, 8, 1, 1, 1]]
    assert batch["translation_attention_mask"].sum(1).tolist() == [5, 2]
    assert batch["labels"].tolist() == [0, 1] and "length" not in batch
