"""Plug-in question answering: windows beside those of the translation, whose answers count once, and a run."""

import json
import random
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

from finetuning.results.table import read_results
from finetuning.run import main
from finetuning.tasks.question_answering import task as question_answering
from finetuning.tasks.question_answering.recipe import QuestionAnsweringRecipe
from finetuning.tasks.question_answering.windows import BEHIND
from finetuning.trainer import load_model, translated_labels
from zoo_core.recipes import load_recipe

X = {"text_columns": ["question", "context"], "label_column": "answers", "languages": ["de"]}
TEXTS = {"translation_columns": ["question_en", "context_en"]}
BOTH = {"translation_columns": ["question_en", "context_en", "answers_en"]}
COMMON = [
    "kind=question_answering",
    "task=t",
    "setting=translate_train_all",
    "translations_from=Anna",
    "plug_in=true",
    "selection=last",
    "max_length=40",
    "doc_stride=12",
    "max_question_length=8",
]


def answers(context, *texts):
    return {"text": list(texts), "answer_start": [context.find(text) for text in texts]}


def rows_of(sample_corpus_dir, count=8):
    """Which word follows a number, in contexts of different lengths, in German and English."""
    draw = random.Random(0)
    texts = {}
    for language in ("de", "en"):
        lines = (sample_corpus_dir / language / "train.jsonl").read_text(encoding="utf-8").splitlines()
        texts[language] = [json.loads(line)["text"] for line in lines]
    rows = []
    for number in range(count):
        row = {"id": f"q{number}"}
        for language, suffix, length in (("de", "", 1 + number % 4), ("en", "_en", 1 + number % 3)):
            words = " ".join(draw.sample(texts[language], length)).split()
            words.insert(draw.randrange(len(words)), f"{number} {10 * number}")
            context = " ".join(words)
            row |= {f"question{suffix}": f"{number} ?", f"context{suffix}": context}
            row[f"answers{suffix}"] = answers(context, str(10 * number))
        rows.append(row)
    rows[-1]["answers_en"] = {"text": ["nowhere to be found"], "answer_start": [-1]}  # lost in translation
    return rows


@pytest.fixture
def write_rows(tmp_path):
    def write(name, rows):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


def recipe_of(train, evaluation, *more):
    tables = [
        f"{part}={json.dumps([{**X, **table}])}" for part, table in (("train", train), ("evaluation", evaluation))
    ]
    return [*COMMON, "model=m", "output_dir=o", "training.learning_rate=1", *tables, *more]


def read(train, evaluation):
    return question_answering.read(load_recipe(QuestionAnsweringRecipe, None, recipe_of(train, evaluation)))


def test_translations_are_columns_or_another_table_with_the_same_ids(sample_corpus_dir, write_rows):
    rows = rows_of(sample_corpus_dir)
    path = write_rows("rows", rows)
    english = [
        {"id": row["id"], **{name: row[f"{name}_en"] for name in ("question", "context", "answers")}} for row in rows
    ]
    other = write_rows("english", english[::-1])
    test = write_rows("test", [{key: row[key] for key in row if key != "answers_en"} for row in rows])
    columns = read({"path": path, **BOTH}, {"path": test, **TEXTS})
    joined = {"translations": {"path": other, "text_columns": ["question", "context", "answers"]}}
    data = read({"path": path, **joined}, {"path": test, **TEXTS})
    assert columns.train.to_list() == data.train.to_list()
    assert data.train["translation_answers"][:] == [row["answers_en"]["text"] for row in rows]
    assert data.train["translation_start"][-1] == -1
    assert any("1 of 8 translations have no answer that is in the context" in text for text in data.warnings)
    assert data.evaluation["de"]["translation_context"][:] == [row["context_en"] for row in rows]


@pytest.mark.parametrize(
    ("changes", "train", "test", "message"),
    [
        ({}, TEXTS, TEXTS, "train.0 names 2 columns of translations.*Both sides.*question and context and then their"),
        ({}, BOTH, BOTH, "evaluation.0 names 3 columns.*Only answers of the text itself are scored"),
        ({"context_en": " "}, BOTH, TEXTS, "row 1 .*its context is empty"),
        ({"question_en": ""}, BOTH, TEXTS, "row 1 .*its question is empty"),
        ({"answers_en": {"text": [], "answer_start": []}}, BOTH, TEXTS, "row 1 .*it has no answer"),
        ({}, {"translation_columns": ["question_en", "context_en", "answer"]}, TEXTS, "no column answer.text"),
    ],
)
def test_translations_that_cannot_be_read_are_named(sample_corpus_dir, write_rows, changes, train, test, message):
    rows = rows_of(sample_corpus_dir, 4)
    path = write_rows("test", rows)
    rows[1] = {**rows[1], **changes}
    with pytest.raises(ValueError, match=message):
        read({"path": write_rows("train", rows), **train}, {"path": path, **test})


def test_windows_stand_beside_those_of_the_translation_and_each_answer_counts_once(
    sample_corpus_dir, write_rows, sample_tokenizer
):
    rows = rows_of(sample_corpus_dir)
    path, test = write_rows("train", rows), write_rows("test", rows)
    data = read({"path": path, **BOTH}, {"path": test, **TEXTS})
    recipe = load_recipe(QuestionAnsweringRecipe, None, recipe_of({"path": path, **BOTH}, {"path": test, **TEXTS}))
    encoded = question_answering.encode(data, sample_tokenizer, recipe)

    def alone(names):
        """The windows of some columns, read as a text of its own."""
        swapped = [{"question": row[names[0]], "context": row[names[1]], "answers": row[names[2]]} for row in rows]
        table = {"path": write_rows(names[0], swapped), "translation_columns": ["question", "context", "answers"]}
        evaluated = {"path": write_rows(f"{names[0]}-2", swapped), "translation_columns": ["question", "context"]}
        own = question_answering.read(load_recipe(QuestionAnsweringRecipe, None, recipe_of(table, evaluated)))
        return question_answering.encode(own, sample_tokenizer, recipe).evaluation["de"].to_list()

    x, y = alone(["question", "context", "answers"]), alone(["question_en", "context_en", "answers_en"])
    found = encoded.evaluation["de"].to_list()
    assert [window["input_ids"] for window in found] == [window["input_ids"] for window in x]
    assert not any("positions" in name for name in encoded.evaluation["de"].column_names)
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
            positions = [trained["translation_start_positions"], trained["translation_end_positions"]]
            if row == len(rows) - 1 or number >= len(others):
                assert min(positions) > 40  # ignored: not known, or learned before
            else:
                assert positions == other["labels"]
    assert unread and any(len([w for w in y if w["row"] == row]) > 1 for row in range(8))
    assert encoded.protocol["cut_translations"]["evaluation"] == {"de": unread}


@pytest.mark.slow
def test_a_run_leaves_a_model_that_reads_texts_beside_their_translations(
    sample_corpus_dir, plug_in_veco, write_rows, tmp_path
):
    rows = rows_of(sample_corpus_dir, 4)  # the same under two names
    tables = {"train": {"path": write_rows("train", rows), **BOTH}}
    tables["evaluation"] = {"path": write_rows("test", rows), **TEXTS}
    main(
        [
            *COMMON,
            f"model={plug_in_veco}",
            f"output_dir={tmp_path / 'out'}",
            *(f"{part}={json.dumps([{**X, **table}])}" for part, table in tables.items()),
            "training.batch_size=8",
            "training.learning_rate=1e-2",
            "training.epochs=1",
        ]
    )
    results = read_results(tmp_path / "out")
    assert results["protocol"]["plug_in"] is True
    folder = tmp_path / "out" / "seed-1" / "model"
    model = AutoModelForQuestionAnswering.from_pretrained(folder, trust_remote_code=True).eval()
    assert model.config.plug_in
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    row = rows[0]  # one window
    x = tokenizer(row["question"], row["context"], return_tensors="pt")
    y = tokenizer(row["question_en"], row["context_en"], return_tensors="pt")
    with torch.no_grad():
        outputs = model(**x, **{f"translation_{name}": values for name, values in y.items()})
    assert outputs.start_logits.shape == outputs.end_logits.shape == x["input_ids"].shape
    with pytest.raises(ValueError, match="plug-in without y"):
        model(**x)


def test_the_loss_is_the_mean_of_both_sides_over_the_whole_update(plug_in_veco):
    kind, data = question_answering.KIND, SimpleNamespace(label_names=[], protocol={})
    model = load_model(kind, data, str(plug_in_veco), 1, [], plug_in=True).eval()
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(5, 100, (6, length), generator=generator) for length in (7, 9))
    labels = torch.tensor([[0, 0], [1, 2], [3, 3], [2, 6], [0, 0], [4, 5]])
    starts, ends = torch.tensor([0, 3, BEHIND, 8, BEHIND, 1]), torch.tensor([0, 4, BEHIND, 8, BEHIND, 2])

    def fields(part):
        sides = {"input_ids": y, "start_positions": starts, "end_positions": ends}
        return {f"translation_{name}": values[part] for name, values in sides.items()}

    everything = slice(0, 6)
    assert translated_labels(fields(everything)).tolist() == [0, 3, -100, 8, -100, 1]
    assert translated_labels({"input_ids": x}) is None
    x_alone = {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
    expected = model(x, **x_alone, **fields(everything)).loss
    torch.testing.assert_close(kind.loss(model(x, **fields(everything)), labels), expected)
    parts = []
    for part in (slice(0, 1), slice(1, 5), slice(5, 6)):
        share = translated_labels(fields(part)).ne(-100).sum() / 4
        parts.append(kind.loss(model(x[part], **fields(part)), labels[part], torch.tensor(12), share))
    torch.testing.assert_close(sum(parts), expected)
