"""Question answering from tables to results: what is read, what is refused, and that a model learns what is scored."""

import json

import pytest

from finetuning.recipe import QuestionAnsweringRecipe
from finetuning.results import read_results
from finetuning.run import main
from finetuning.tasks.question_answering.task import place
from finetuning.tasks.registry import task_of
from tests.finetuning.labeled_rows import ANSWERS, row_of, write_rows
from tests.finetuning.tasks import record_of
from zoo_core.recipes import load_recipe


@pytest.mark.slow
def test_run_reports_f1_and_exact_match(places, tmp_path, zoo_model_dir):
    # num_labels: left over from a classifier
    model = zoo_model_dir("ernie_m", num_hidden_layers=1, max_position_embeddings=66, num_labels=3)
    rows = [
        f"model={model}",
        f"train=[{{path: {tmp_path}/zh.jsonl, languages: [en], {ANSWERS}}}]",
        f"evaluation=[{{path: '{tmp_path}/{{language}}.jsonl', languages: [en, de], {ANSWERS}}}]",
        *("selection=source_dev", "dev_fraction=0.3", "evaluate_every_steps=1"),
        *("training.max_steps=3", "training.layerwise_decay=0.8"),
    ]
    main([*places, *rows])
    out = tmp_path / "out"
    results = read_results(out)
    assert list(results.languages) == ["en", "de"] and results.metrics == ["f1", "exact_match"]
    protocol = results["protocol"]
    assert protocol["metric"]["name"] == "f1" and protocol["evaluated_rows"] == {"en": 12, "de": 12}
    assert protocol["split_texts"]["evaluation"]["de"] > 0
    record = record_of(out / "seed-1")
    looked_at = {entry["step"]: entry["eval_en_f1"] for entry in record["history"] if "eval_en_f1" in entry}
    assert set(looked_at) == {1, 2, 3}
    assert record["selection_score"] == max(looked_at.values()) == looked_at[record["selected_step"]]
    assert protocol["selection"]["rows"] == {"en": 4}

    tuned = out / "seed-1" / "model"
    assert json.loads((tuned / "config.json").read_text())["architectures"] == ["ErnieMForQuestionAnswering"]
    assert {"modeling_ernie_m.py", "task_heads.py"} <= {path.name for path in tuned.iterdir()}


def test_read_leaves_out_rows_without_answer(places, tmp_path):
    translated = [row_of("5 ?", "fünf 5 50 da", "50"), row_of("6 ?", "sechs da", "60"), row_of("7 ?", "7 70", "70")]
    translated[2]["answers"]["answer_start"] = [1]
    write_rows(tmp_path / "translated.jsonl", translated)
    german = f"{{path: {tmp_path}/translated.jsonl, languages: [de], {ANSWERS}}}"
    train = f"train=[{{path: {tmp_path}/en-dev.jsonl, {ANSWERS}}}, {german}]"
    setting = ["setting=translate_train_all", "translations_from=ours"]
    data = task_of(load_recipe(QuestionAnsweringRecipe, None, [*places, train, *setting])).read()
    assert len(data.train) == data.protocol["training_rows"] == 5 and data.protocol["left_out_rows"] == {"de": 1}
    warnings = "\n".join(data.warnings)
    assert "1 training rows" in warnings and "language de: of 3 rows, 1 have" in warnings and ", 1 none in" in warnings


@pytest.mark.parametrize(
    ("answer", "start", "found"),
    [
        ("ab", 0, 0),
        ("ab", 6, 6),
        ("ab", 2, 3),  # 0 and 3 hold it
        ("ab", 7, 6),
        ("ab", 99, 6),
        ("ab", -1, 0),
        ("x", 0, -1),
    ],
)
def test_place_is_the_nearest(answer, start, found):
    assert place("ab ab ab", answer, start) == found


def read_rows(tmp_path, *rows, **table):
    """What `read` gives for these rows of English, with one row to evaluate."""
    path = write_rows(tmp_path / "rows.jsonl", rows)
    evaluated = write_rows(tmp_path / "evaluated.jsonl", [row_of("q", "a b", "b")])
    fields = {"text_columns": "[question, context]", "label_column": "answers", **table}
    text = ", ".join(f"{name}: {value}" for name, value in fields.items())
    recipe = [
        f"train=[{{path: {path}, {text}}}]",
        f"evaluation=[{{path: {evaluated}, languages: [en], {ANSWERS}}}]",
        *("model=x", "output_dir=y", "task=t", "selection=last", "training.learning_rate=1"),
    ]
    recipe = load_recipe(QuestionAnsweringRecipe, None, recipe)
    recipe.check()
    return task_of(recipe).read()


def test_read_answers_without_white_space(tmp_path):
    plain = row_of("q", "ما هي العاصمة", "العاصمة")
    spaced = row_of("q", "a b c", " b ")
    second = {**row_of("q", "a b", "x", "b")}
    data = read_rows(tmp_path, plain, spaced, second)
    assert list(zip(data.train["start"], data.train["end"], strict=True)) == [(6, 13), (2, 3), (2, 3)]
    of_rows = [
        zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True) for row in (plain, spaced, second)
    ]
    answers = [{"answers": [{"text": text, "answer_start": start} for text, start in of]} for of in of_rows]
    objects = [row | own for row, own in zip((plain, spaced, second), answers, strict=True)]
    assert read_rows(tmp_path, *objects).train.to_list() == data.train.to_list()  # as in SQuAD's own file


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (row_of("q", " ", " "), "row 1 .*context"),
        (row_of("q", "a b"), "row 1 .*answer"),
        ({**row_of("q", "a b", "b"), "question": None}, "row 1 .*question"),
        (
            {**row_of("q", "a b"), "answers": {"text": ["b"], "answer_start": [0, 2]}},
            r"answer_start \[0, 2\]",
        ),
    ],
)
def test_read_refuses_rows(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        read_rows(tmp_path, row_of("q", "a b", "b"), row)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"text_columns": "[context]"}, "text_columns .'context'"),
        ({"label_column": "gold"}, "has no column gold.text.*answers.answer_start"),
        ({"text_columns": "[question, answers.text]"}, "column answers.text holds .*, not text"),
    ],
)
def test_read_refuses_tables(tmp_path, table, message):
    row = {**row_of("q", "a b", "b")}
    with pytest.raises(ValueError, match=message):
        read_rows(tmp_path, row, **table)


def test_open_refuses_a_long_stride(places, refused):
    assert "doc_stride is 40" in refused([*places, "doc_stride=40"])
