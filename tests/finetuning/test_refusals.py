"""What finetuning/ refuses: the input, and the place and value that the error names."""

import pytest

from crosslingual_zoo.finetuning.metrics import load_metric
from crosslingual_zoo.finetuning.recipe import QuestionAnsweringRecipe, Recipe, TaggingRecipe
from crosslingual_zoo.finetuning.runs import main as runs
from crosslingual_zoo.finetuning.tasks.question_answering.scores import mlqa_tokens, score_answers, squad_tokens
from crosslingual_zoo.finetuning.tasks.question_answering.windows import windowing
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.finetuning.tasks.tagging import chunk_scores
from crosslingual_zoo.finetuning.tools.label_text import main as label_text
from crosslingual_zoo.finetuning.tools.translations import main as convert
from crosslingual_zoo.zoo_core.recipes import load_recipe, save_recipe
from tests.finetuning.labeled_rows import row_of, write_rows
from tests.finetuning.tasks import recipe_with


@pytest.mark.parametrize(
    ("fixture", "changes", "named"),
    [
        ("topics", "training.batch_size=10 training.gradient_accumulation_steps=4", "multiple of 4"),
        ("topics", "training.precision=fp16", "training.precision is fp16"),
        ("topics", "--config x.yaml --suite xtreme", "--config or --suite"),
        ("topics", 'selection=last sweep={"max_length":[16,24]} --sweep', "selection"),
        ("number_questions", "doc_stride=40", "doc_stride is 40"),
        ("captions", "--sweep", "sweep"),
        ("captions", "decoder_layers=3", "decoder_layers is 3"),
        ("captions", "dev_bleu_examples=4", "dev_bleu_examples is 4"),
    ],
)
def test_run_refuses(fixture, changes, named, request, refused, tmp_path):
    assert named in " ".join(refused([*request.getfixturevalue(fixture), *changes.split()]).split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("retrieval", "layer=3", "3"),
        ("retrieval", "layer=middle layers=[0,2]", "reported is 1"),
        ("mining", "pairs.0.dev=null", "dev_fraction"),
        ("mining", "pairs.0.gold.source_column=t", "['21'] in gold"),
        ("word_alignment", "methods=[otter]", "otter"),
        ("word_alignment", "pairs.0.gold=zh-en.gold", "10 lines"),
    ],
)
def test_vector_run_refuses(kind, changes, named, feature_recipe, tmp_path, refused):
    assert named in " ".join(refused([*feature_recipe(kind, tmp_path), *changes.split()]).split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--vary max_length=24,4000", "4000"),
        ("--vary max_lenght=24", "max_lenght"),
        ("--model M={model}-none", "{model}-none"),
        ("--model M={model} --model M={model}", "step"),
    ],
)
def test_runs_refuses(arguments, named, topics, refused, tiny_model, tmp_path):
    save_recipe(load_recipe(Recipe, None, topics), tmp_path / "recipe.yaml")
    command = f"--config {tmp_path}/recipe.yaml --output {tmp_path}/runs {arguments.format(model=tiny_model)}"
    assert named.format(model=tiny_model) in " ".join(refused(command.split(), runs).split())


CLASSES = [{"text": f"text {label}", "label": label} for label in ("yes", "no", "unclear")]
TAGGED = [{"tokens": ["a", "b"], "labels": ["O", "B-PER"]}, {"tokens": ["a", "b"], "labels": ["B-LOC", "O"]}]
ASKED = [row_of("q", "a b", "b")]
KINDS = {
    "classification": (Recipe, CLASSES, {"text_columns": ["text"], "label_column": "label"}),
    "tagging": (TaggingRecipe, TAGGED, {"text_columns": ["tokens"], "label_column": "labels"}),
    "answers": (QuestionAnsweringRecipe, ASKED, {"text_columns": ["question", "context"], "label_column": "answers"}),
}


@pytest.mark.parametrize(
    ("kind", "part", "rows", "fields", "named"),
    [
        ("classification", "test", [*CLASSES, {"text": "x", "label": "nuetral"}], {}, "row 3 .*'nuetral'"),
        ("classification", "test", [{"text": " ", "label": "yes"}, *CLASSES], {}, "row 0 .*column text"),
        ("classification", "test", [{"text": "x", "label": -1}], {"label_names": ["yes", "no"]}, "1"),
        ("classification", "train", CLASSES[:1], {"label_names": ["yes", "no", "unclear"]}, "training rows .*'yes'"),
        ("classification", "test", CLASSES[:1], {}, "language de: .*'yes'"),
        ("classification", "test", CLASSES, {"languages": []}, "`languages`"),
        ("classification", "test", CLASSES, {"where": {"text": "x"}}, "'x' in column text"),
        ("tagging", "test", [*TAGGED, {"tokens": ["a", "b"], "labels": ["O"]}], {}, "row 2 .*2 words and 1 labels"),
        ("tagging", "test", [*TAGGED, {"tokens": ["a"], "labels": ["B-PRE"]}], {}, "row 2 .*'B-PRE'"),
        ("tagging", "train", [*TAGGED, {"tokens": ["a"], "labels": ["PER"]}], {}, "train.*'PER'"),
        ("tagging", "test", [{"tokens": ["a"], "labels": ["O"]}], {}, "language de: .*'O'"),
        ("answers", "train", [*ASKED, row_of("q", " ", " ")], {}, "row 1 .*context"),
        ("answers", "train", [*ASKED, row_of("q", "a b")], {}, "row 1 .*answer"),
        ("answers", "train", ASKED, {"text_columns": ["context"]}, "text_columns"),
    ],
)
def test_read_refuses(kind, part, rows, fields, named, tmp_path):
    recipe_class, good, columns = KINDS[kind]
    contents = {"train": good, "test": good, part: rows}
    tables = {"train": dict(columns), "test": columns | {"languages": ["de"]}}
    for name, table in tables.items():
        table["path"] = str(write_rows(tmp_path / f"{name}.jsonl", contents[name]))
    tables[part] |= fields
    with pytest.raises(ValueError, match=named):
        recipe = recipe_with(recipe_class, [tables["train"]], [tables["test"]])
        recipe.check()
        task_of(recipe).read()


class SlowTokenizer:
    is_fast = False


@pytest.mark.parametrize(
    ("metric", "fields", "named"),
    [
        ("aer", {"predictions": [[[1, 2, 3]]], "references": [{"sure": [[0, 0]], "possible": []}]}, r"\[1, 2, 3\]"),
        ("aer", {"predictions": [[]], "references": [{"sure": [], "possible": []}]}, "gold"),
        ("bleu", {"predictions": [], "references": []}, "0 sentences"),
        ("mining_f1", {"predictions": [1.0] * 2, "references": [True] * 2, "gold": 1}, "gold is 1"),
    ],
)
def test_metrics_refuse(metric, fields, named):
    with pytest.raises(ValueError, match=named):
        load_metric(metric).compute(**fields)


@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        (mlqa_tokens, ["a", "ru"], "'ru'"),
        (score_answers, [["a"], [[]], squad_tokens], "gold"),
        (chunk_scores, [[["O"], ["B-PER"]], [["O"], ["PER"]]], "'PER'"),
        (windowing, [SlowTokenizer(), QuestionAnsweringRecipe()], "SlowTokenizer"),
    ],
)
def test_scores_and_windows_refuse(function, arguments, named):
    with pytest.raises(ValueError, match=named):
        function(*arguments)


def test_label_text_and_convert_refuse(tmp_path, tiny_model, refused):
    table = tmp_path / "de.jsonl"
    table.write_text('{"tokens": ["a"]}\n')
    command = f"--model {tiny_model} --input {table} --languages de --max_length 40 --output"
    assert "classifier" in refused([*command.split(), f"{tmp_path}/out.jsonl"], label_text)
    assert "exists" in refused([*command.split(), str(table)], label_text)
    damaged = tmp_path / "in" / "squad.translate.train.en-de.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    assert damaged.name in refused(["--input", str(damaged.parent), "--output", str(tmp_path / "out")], convert)
