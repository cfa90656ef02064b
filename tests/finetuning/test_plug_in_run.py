"""Translate-train-all, plug-out and plug-in: the tables, what is refused, and runs of a few steps."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

from finetuning.recipe import Recipe
from finetuning.results.table import read_results
from finetuning.run import main
from finetuning.tasks.classification import task as classification
from finetuning.tasks.kind import mean_cross_entropy
from finetuning.trainer import FineTuningTrainer, TwoSidedCollator, check_setting, load_model
from zoo_core.recipes import load_recipe

RECIPES = Path(__file__).parents[2] / "finetuning" / "recipes" / "veco"
ALL = ["setting=translate_train_all", "translations_from=Anna"]
PLUG_IN = [*ALL, "plug_in=true"]
BASE = ["model=m", "output_dir=o", "task=t", "selection=last", "training.learning_rate=1"]


def rows(labels="abab", prefix="text", **more):
    return [
        {"id": i, "text": f"{prefix} {i}", "en": f"en {prefix} {i}", "label": label, **more}
        for i, label in enumerate(labels)
    ]


def read(train, evaluation, *overrides):
    """Reads the tables given as lists of dictionaries of fields; JSON is YAML."""
    tables = [f"train={json.dumps(train)}", f"evaluation={json.dumps(evaluation)}"]
    return classification.read(load_recipe(Recipe, None, [*BASE, *tables, *overrides]))


# --- translate-train-all, plug-out ---


def test_plug_out_trains_on_the_rows_of_every_table_and_language(write, tmp_path):
    gold = {"path": write("gold", rows(prefix="gold"))}
    for language in ("de", "fr"):
        write(f"train.{language}", rows(prefix=language))
    one_each = {"path": str(tmp_path / "train.{language}.parquet"), "languages": ["de", "fr"]}
    mixed = {"path": write("mixed", rows(language="sw") + rows(language="zh")), "language_column": "language"}
    test = [{"path": write("test", rows()), "languages": ["de"]}]
    data = read([gold, one_each, mixed], test, *ALL)
    assert len(data.train) == 20 and "gold 0" in data.train["text"][:] and "fr 3" in data.train["text"][:]
    assert [table["languages"] for table in data.protocol["training_data"]] == [["en"], ["de"], ["fr"], ["sw", "zh"]]
    assert data.protocol["plug_in"] is False and data.protocol["translations"] == "Anna"
    data = read([{**mixed, "languages": ["sw"]}], test, *ALL)
    assert len(data.train) == 4
    with pytest.raises(ValueError, match="place for the language, and `languages` is empty"):
        read([gold, {"path": one_each["path"]}], test, *ALL)
    with pytest.raises(ValueError, match="all training rows are en"):
        read([gold], test, *ALL)
    with pytest.raises(ValueError, match=r"train.0.languages is \['de', 'fr'\], and setting is zero_shot"):
        read([one_each], test)


def test_translations_of_held_out_rows_would_stay_in_training(tmp_path, write):
    gold, test = {"path": write("gold", rows())}, {"path": write("test", rows()), "languages": ["de"]}
    translated = {"path": write("de", rows()), "languages": ["de"]}
    with pytest.raises(ValueError, match="selection=source_dev finds no dev_split .*translations would stay"):
        read([gold, translated], [test], *ALL, "selection=source_dev")
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "validation"):
        Dataset.from_list(rows(language="en") + rows(language="de")).to_parquet(folder / f"{split}.parquet")
    # a translated table's dev_split is not the source language's
    other = {"path": str(folder), "dev_split": "validation", "languages": ["de"], "language_column": "language"}
    with pytest.raises(ValueError, match="finds no dev_split of the source language en"):
        read([gold, other], [test], *ALL, "selection=source_dev")
    data = read([{**other, "languages": []}], [test], *ALL, "selection=source_dev")
    assert list(data.dev) == ["en"] and len(data.dev["en"]) == 4 and len(data.train) == 8


def test_nothing_is_trained_on_evaluated_rows_in_any_language(tmp_path, write):
    for language in ("de", "fr"):
        write(f"x.{language}", rows())
    both = {"path": str(tmp_path / "x.{language}.parquet"), "languages": ["de", "fr"]}
    with pytest.raises(ValueError, match="train.1 reads .*evaluated by evaluation.0"):
        test = {"path": str(tmp_path / "x.fr.parquet"), "languages": ["fr"]}
        read([{"path": write("gold", rows())}, both], [test], *ALL)
    # nor the text of which an evaluated one is read as the translation, nor the other way round
    joined = {"translations": {"path": str(tmp_path / "x.fr.parquet"), "join_on": "id"}}
    columns = {"translation_columns": ["en"]}
    one, fr = {"path": write("one", rows()), "languages": ["de"]}, {"path": both["path"], "languages": ["fr"]}
    with pytest.raises(ValueError, match="evaluated by evaluation.0"):
        read([{**fr, **columns}], [{**one, **joined}], *PLUG_IN)
    with pytest.raises(ValueError, match="evaluated by evaluation.0"):
        read([{**one, **joined}], [{**fr, **columns}], *PLUG_IN)


# --- plug-in: where the translations come from ---


def test_translations_are_columns_of_the_same_rows(write, sample_tokenizer):
    pairs = [{**row, "other": f"hypothesis {i}", "other_en": f"en hypothesis {i}"} for i, row in enumerate(rows())]
    columns = {"text_columns": ["text", "other"], "translation_columns": ["en", "other_en"]}
    train = {"path": write("train", pairs), "languages": ["de"], **columns}
    data = read([train], [{"path": write("test", pairs), "languages": ["de"], **columns}], *PLUG_IN)
    assert data.train[1] == {
        "text": "text 1",
        "pair": "hypothesis 1",
        "translation_text": "en text 1",
        "translation_pair": "en hypothesis 1",
        "labels": 1,
    }
    assert data.protocol["plug_in"] is True and data.warnings == []
    encoded = classification.encode(data, sample_tokenizer, max_length=12)
    row = encoded.train[1]
    alone = sample_tokenizer("en text 1", "en hypothesis 1", truncation=True, max_length=12)
    assert row["translation_input_ids"] == alone["input_ids"]
    assert row["length"] == len(row["input_ids"]) + len(row["translation_input_ids"])
    assert row["labels"] == row["translation_labels"] == 1
    # an evaluated translation has no label: only x is scored
    assert set(encoded.evaluation["de"].column_names) == set(encoded.train.column_names) - {"translation_labels"}
    long = classification.encode(data, sample_tokenizer, max_length=len(row["input_ids"]))
    assert long.protocol["cut_texts"]["train"]["all"] == sum(
        len(sample_tokenizer(*texts)["input_ids"]) > len(row["input_ids"])
        for text in data.train
        for texts in ((text["text"], text["pair"]), (text["translation_text"], text["translation_pair"]))
    )


def test_translations_are_rows_of_another_table_with_the_same_id(tmp_path, write):
    folder = tmp_path / "set"
    for language in ("de", "en"):
        (folder / language).mkdir(parents=True)
        for split, labels in (("train", "abab"), ("validation", "ab"), ("test", "aab")):
            made = rows(labels, prefix=f"{language} {split}")
            Dataset.from_list(made[::-1] if language == "en" else made).to_parquet(
                folder / language / f"{split}.parquet"
            )
    table = {"path": str(folder / "{language}"), "languages": ["de"], "translations": {"path": str(folder / "en")}}
    test = {**table, "split": "test", "dev_split": "validation"}
    data = read([table], [test], *PLUG_IN, "selection=mean_dev")
    # joined by id, not by position, and split by split
    assert data.train["translation_text"][:] == [f"en train {i}" for i in range(4)]
    assert data.dev["de"]["translation_text"][:] == [f"en validation {i}" for i in range(2)]
    assert data.evaluation["de"]["translation_text"][:] == [f"en test {i}" for i in range(3)]
    (entry,) = data.protocol["evaluation_data"]
    assert entry["translations"]["path"] == str(folder / "en") and entry["translations"]["split"] == "test"
    assert entry["translations"]["fingerprint"].startswith("sha256:") and entry["translations"]["join_on"] == "id"
    # a slice of the texts meets the whole of the translations; a file holds those of every split
    data = read([{**table, "split": "train[2:]"}], [{**test, "split": "test"}], *PLUG_IN)
    assert data.train["translation_text"][:] == ["en train 2", "en train 3"]
    file = write("all", [{"id": i, "english": f"e {i}"} for i in range(9)])
    joined = {"translations": {"path": file, "text_columns": ["english"]}}
    data = read([{**table, **joined}], [{**test, **joined}], *PLUG_IN)
    assert data.train["translation_text"][:] == ["e 0", "e 1", "e 2", "e 3"]
    assert data.evaluation["de"]["translation_text"][:] == ["e 0", "e 1", "e 2"]


EN = {"translation_columns": ["en"]}


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({}, EN, "train.0 says no translations, and plug_in is true"),
        (EN, {}, "evaluation.0 says no translations.*translate-test texts"),
        ({**EN, "translations": {"path": "x"}}, EN, "train.0 says its translations twice"),
        ({"translation_columns": ["en", "text"]}, EN, "1 text_columns and 2 of translations"),
        ({"translation_columns": ["eng"]}, EN, "no column eng.*Did you mean 'en'"),
        ({"translation_columns": ["id"]}, EN, "column id holds int64, not text"),
        (EN, {"translation_columns": ["hole"]}, "language de, row 1 .*hole has no translation"),
        ({"translation_columns": ["blank"]}, EN, "row 2 .*blank has no translation. Plug-in reads both sides"),
        ({**EN, "text_columns": ["blank"]}, EN, "row 2 .*blank has no text. Plug-in reads both sides"),
    ],
)
def test_missing_translations_are_named(write, train, test, message):
    holes = [{**row, "hole": None if i == 1 else "h", "blank": " " if i == 2 else "b"} for i, row in enumerate(rows())]
    train = {"path": write("train", holes), "languages": ["de"], **train}
    test = {"path": write("test", holes), "languages": ["de"], **test}
    with pytest.raises(ValueError, match=message):
        read([train], [test], *PLUG_IN)


@pytest.mark.parametrize(
    ("other", "fields", "message"),
    [
        (rows("aba"), {}, "1 of 4 rows have no translation in .*has 3 in column id"),
        (rows("abab") + rows("a"), {}, "rows 0 and 4 .*both have 0 in column id.*without repetitions"),
        (rows("abab"), {"join_on": "key"}, "no column key"),
        ([{"id": i} for i in range(4)], {}, "no column text"),
        ([{**row, "id": str(row["id"])} for row in rows()], {}, "4 of 4 rows have no translation"),
    ],
)
def test_translations_that_cannot_be_joined_are_named(write, other, fields, message):
    table = {"languages": ["de"], "translations": {"path": write("other", other), **fields}}
    with pytest.raises(ValueError, match=message):
        read([{"path": write("train", rows()), **table}], [{"path": write("test", rows()), **table}], *PLUG_IN)


@pytest.mark.parametrize("fields", [{"translation_columns": ["en"]}, {"translations": {"path": "x"}}])
def test_translations_are_not_ignored_plug_out(write, fields):
    name = next(iter(fields))
    with pytest.raises(ValueError, match=f"train.0.{name} is given, and plug_in is false.*would be ignored"):
        read([{"path": write("train", rows()), **fields}], [{"path": write("test", rows()), "languages": ["de"]}])


def labeled(*names):
    """What a head is made from of the data."""
    return SimpleNamespace(label_names=list(names), protocol={})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["plug_in=true"], "plug_in is true, and setting is zero_shot"),
        (["setting=translate_train_all"], "translations_from is None.*Set translations_from"),
        (["translations_from=Anna"], "setting is zero_shot, and translations_from is 'Anna'.*Leave"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides, message):
    recipe = load_recipe(Recipe, str(RECIPES / "sample.yaml"), ["model=x", *overrides])
    with pytest.raises(ValueError, match=message):
        check_setting(recipe, classification.KIND)


# --- runs ---


@pytest.fixture(scope="module")
def plug_in_run(sample_corpus_dir, plug_in_veco, tmp_path_factory):
    """Folder of a run on German and Chinese with English, of three steps, and the fields of each batch."""
    out, seen, step = tmp_path_factory.mktemp("plug_in") / "out", [], FineTuningTrainer.training_step
    table = f"path: {sample_corpus_dir}, config: '{{language}}', label_column: topic, languages: [de, zh]"
    table += f", translations: {{path: {sample_corpus_dir}, config: en}}"

    def watched(self, model, inputs, *args):
        seen.append({name: tuple(value.shape) for name, value in inputs.items()})
        assert torch.equal(inputs["labels"], inputs["translation_labels"])
        return step(self, model, inputs, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FineTuningTrainer, "training_step", watched)
        main(
            [
                f"--config={RECIPES / 'sample_plug_in.yaml'}",
                f"model={plug_in_veco}",
                f"output_dir={out}",
                f"train=[{{{table}, split: 'train[:200]'}}]",
                f"evaluation=[{{{table}, split: test, dev_split: 'train[200:]'}}]",
                "selection=mean_dev",
                "evaluate_every_steps=2",
                "max_length=24",
                "training.batch_size=48",
                "training.max_steps=3",
                "seeds=[1]",
            ]
        )
    return out, seen


@pytest.mark.slow
def test_a_plug_in_run_from_recipe_to_results(plug_in_run, sample_corpus_dir):
    out, seen = plug_in_run
    assert len(seen) == 3 and all(
        batch["input_ids"] == batch["attention_mask"]
        and batch["translation_input_ids"] == batch["translation_attention_mask"]
        and batch["input_ids"][0] == 48
        for batch in seen
    )
    results = read_results(out)
    assert results["setting"] == "translate_train_all" and results["protocol"]["plug_in"] is True
    assert results["protocol"]["training_rows"] == 400 and list(results.languages) == ["de", "zh"]
    page = (out / "results.md").read_text(encoding="utf-8")
    assert page.startswith("# sample_topics, translate_train_all, plug-in\n")
    for fact in (
        "setting: translate_train_all, trained on de, zh",
        "plug-in: heads read [H:S] of a text and its translation",
        "translations: the sample corpus, whose sentences were translated",
    ):
        assert fact in page
    with (out / "results.csv").open(encoding="utf-8", newline="") as stream:
        assert {row["setting"] for row in csv.DictReader(stream)} == {"translate_train_all, plug-in"}

    recorded = json.loads((out / "seed-1" / "scores.json").read_text(encoding="utf-8"))
    scores = {
        language: [entry[name] for entry in recorded["history"] if (name := f"eval_{language}_accuracy") in entry]
        for language in ("de", "zh")
    }
    means = [sum(both) / 2 for both in zip(*scores.values(), strict=True)]
    assert means and recorded["selection_score"] == pytest.approx(max(means))

    # the scores are those of the saved model, x beside its translation; without one it says so
    folder = out / "seed-1" / "model"
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).eval()
    assert model.config.plug_in and model.config.fine_tuned_on == ["sample_topics (translate_train_all, plug-in)"]
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)

    def encoded(language):
        lines = (sample_corpus_dir / language / "test.jsonl").read_text(encoding="utf-8").splitlines()
        texts = [json.loads(line) for line in lines]
        options = dict(padding=True, truncation=True, max_length=24, return_tensors="pt")
        return tokenizer([row["text"] for row in texts], **options), [row["topic"] for row in texts]

    (batch, labels), (english, _) = encoded("zh"), encoded("en")
    with torch.no_grad():
        logits = model(**batch, **{f"translation_{name}": value for name, value in english.items()}).logits
    assert len(logits.argmax(-1).unique()) > 1  # a constant answer would be scored alike with any translation
    right = sum(model.config.id2label[i] == label for i, label in zip(logits.argmax(-1).tolist(), labels, strict=True))
    assert results.languages["zh"]["mean"] == pytest.approx(100 * right / len(labels))
    with pytest.raises(ValueError, match="plug-in without y"):
        model(**batch)


@pytest.mark.slow
def test_runs_of_one_kind_start_from_models_of_the_other(plug_in_run, topics, tmp_path):
    first = plug_in_run[0] / "seed-1" / "model"
    main([*topics, f"model={first}", "task=plain", "seeds=[1]", "selection=last", "training.max_steps=1"])
    plain = tmp_path / "out" / "seed-1" / "model"
    config = json.loads((plain / "config.json").read_text())
    assert config["plug_in"] is False
    assert config["fine_tuned_on"] == ["sample_topics (translate_train_all, plug-in)", "plain (zero_shot)"]
    assert load_file(plain / "model.safetensors")["classifier.dense.weight"].shape == (32, 32)
    model = load_model(classification.KIND, labeled("a", "b"), str(plain), 1, [], plug_in=True)
    assert model.config.plug_in and model.classifier.dense.weight.shape == (32, 64)


def test_the_loss_is_the_mean_of_both_sides_over_the_whole_update(plug_in_veco):
    model = load_model(classification.KIND, labeled("a", "b", "c"), str(plug_in_veco), 1, [], plug_in=True).eval()
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(5, 100, (6, length), generator=generator) for length in (7, 9))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    expected = model(x, labels=labels, translation_input_ids=y, translation_labels=labels).loss
    whole = mean_cross_entropy(model(x, translation_input_ids=y, translation_labels=labels), labels)
    torch.testing.assert_close(whole, expected)
    parts = [
        mean_cross_entropy(
            model(x[a:b], translation_input_ids=y[a:b], translation_labels=labels[a:b]), labels[a:b], torch.tensor(6)
        )
        for a, b in ((0, 2), (2, 6))
    ]
    torch.testing.assert_close(sum(parts), expected)


def test_batches_pad_each_side_by_itself(sample_tokenizer):
    fields = ["input_ids", "attention_mask", "labels"]
    collate = TwoSidedCollator(DataCollatorWithPadding(sample_tokenizer), fields)
    lengths = [(3, 5, 0), (4, 2, 1)]
    batch = collate(
        [
            {
                "input_ids": [7] * x,
                "attention_mask": [1] * x,
                "translation_input_ids": [8] * y,
                "translation_attention_mask": [1] * y,
                "labels": label,
                "length": x + y,
            }
            for x, y, label in lengths
        ]
    )
    assert batch["input_ids"].tolist() == [[7, 7, 7, 1], [7, 7, 7, 7]]
    assert batch["translation_input_ids"].tolist() == [[8] * 5, [8, 8, 1, 1, 1]]
    assert batch["translation_attention_mask"].sum(1).tolist() == [5, 2]
    assert batch["labels"].tolist() == [0, 1] and "length" not in batch
