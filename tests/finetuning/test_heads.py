"""The head of a model that is fine-tuned again: rows follow the names of the labels, and other labels draw it again."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
)

from crosslingual_zoo.finetuning.models import fine_tuned_on
from crosslingual_zoo.finetuning.recipe import QuestionAnsweringRecipe, Recipe, TaggingRecipe
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.zoo_core.provenance import read_json, write_json
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.tasks import weights

CLASSES = ["no", "unclear", "yes"]
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
IDS = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 10, 2, 1, 1]])
# layers of the head for texts, of architectures that differ in them
HEADS = {
    "veco": ["classifier.dense", "classifier.out_proj"],
    "ernie_m": ["classifier"],  # below it, the encoder's pooler
    "metaxlm on modernbert": ["classifier.dense", "classifier.out_proj"],
    "deberta-v2": ["classifier", "pooler.dense"],
}


@pytest.fixture(scope="module")
def encoder(zoo_model_dir, tmp_path_factory):
    """encoder(name) -> folder of an encoder without a head for labels."""

    def folder_of(name):
        if name != "deberta-v2":
            return zoo_model_dir(name)
        folder = tmp_path_factory.mktemp("encoder")
        sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, vocab_size=50)
        config = AutoConfig.for_model(name, **sizes, pooler_hidden_size=32)
        AutoModelForQuestionAnswering.from_config(config).save_pretrained(folder)
        return folder

    return folder_of


def load(folder, labels, recipe_class=Recipe, seed=1, **fields):
    """The model that a task with these labels starts from."""
    task = task_of(recipe_class(**fields))
    return task.load_model(str(folder), seed, SimpleNamespace(label_names=labels)).eval()


def fine_tune(start, labels, folder, recipe_class=Recipe, **fields):
    """Saves a model with a head of these labels, whose rows differ, as fine-tuning leaves it."""
    model = load(start, labels, recipe_class, seed=7, **fields)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith(model.base_model_prefix):
                parameter.add_(torch.arange(parameter.numel()).view_as(parameter).cos())
    model.save_pretrained(folder)
    return folder


def rename_labels(folder, labels):
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", config | {"id2label": dict(enumerate(labels))})


def logits_by_label(model):
    with torch.no_grad():
        logits = model(IDS, attention_mask=IDS.ne(1).long()).logits
    return {label: logits[..., row] for row, label in model.config.id2label.items()}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(("recipe_class", "labels"), [(Recipe, CLASSES), (TaggingRecipe, TAGS)])
def test_rows_of_a_kept_head_follow_the_names_of_its_labels(name, recipe_class, labels, encoder, tmp_path):
    folder = fine_tune(encoder(name), labels, tmp_path / "tuned", recipe_class)
    saved = load(folder, labels, recipe_class)
    assert saved.fresh_parameters == {"count": 0, "names": [], "head": ""}
    expected = logits_by_label(saved)
    for order in (labels[::-1], [*labels[2:], *labels[:2]], labels):
        model = load(folder, order, recipe_class)
        logits = logits_by_label(model)
        assert list(logits) == order
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
        assert model.fresh_parameters["count"] == 0
        assert model.fresh_parameters["head"]
        folder = tmp_path / "again"  # the next order is another one than the saved one
        model.save_pretrained(folder)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("no unclear yes", "no unclear"),
        ("no unclear yes", "no unclear yes maybe"),
        ("no unclear yes", "No Unclear Yes"),
        ("no no yes", "no unclear yes"),
        ("LABEL_0 LABEL_1 LABEL_2", "no unclear yes"),
        ("LABEL_0 LABEL_1 LABEL_2", "LABEL_0 LABEL_1 LABEL_2"),
    ],
)
def test_head_of_other_labels_is_drawn_again_as_a_whole(name, before, now, encoder, tmp_path):
    folder = fine_tune(encoder(name), CLASSES, tmp_path / "tuned")
    rename_labels(folder, before.split())
    checkpoint = load_file(folder / "model.safetensors")
    first = load(folder, now.split(), seed=1)
    other = load(folder, now.split(), seed=2)
    again = load(folder, now.split(), seed=1)
    head = sorted(f"{layer}.{kind}" for layer in HEADS[name] for kind in ("bias", "weight"))
    parameters = dict(first.named_parameters())
    assert first.fresh_parameters["names"] == head
    assert first.fresh_parameters["head"]
    assert first.fresh_parameters["count"] == sum(parameters[name].numel() for name in head)
    assert list(first.config.id2label.values()) == now.split()
    for name, parameter in parameters.items():
        assert torch.equal(parameter, again.get_parameter(name))
        is_as_before = parameter.shape == checkpoint[name].shape and torch.equal(parameter, checkpoint[name])
        assert is_as_before != (name in head)
        if name in head and name.endswith("weight"):
            assert not torch.equal(parameter, other.get_parameter(name))


@pytest.mark.parametrize("recipe_class", [Recipe, TaggingRecipe])
def test_head_that_reads_a_translation_is_drawn_again_without_one(recipe_class, encoder, tmp_path):
    folder = fine_tune(encoder("veco"), TAGS, tmp_path / "tuned", recipe_class, plug_in=True)
    assert load(folder, TAGS[::-1], recipe_class, plug_in=True).fresh_parameters["names"] == []
    model = load(folder, TAGS, recipe_class)
    head = [name for name, _ in model.named_parameters() if not name.startswith("roberta.")]
    assert model.fresh_parameters["names"] == sorted(head)
    assert model.fresh_parameters["head"]


def test_head_without_names_of_labels_is_kept(encoder, tmp_path):
    folder = fine_tune(encoder("veco"), [], tmp_path / "tuned", QuestionAnsweringRecipe)
    model = load(folder, [], QuestionAnsweringRecipe)
    assert model.fresh_parameters == {"count": 0, "names": [], "head": ""}
    assert torch.equal(model.qa_outputs.weight, load_file(folder / "model.safetensors")["qa_outputs.weight"])


def test_new_head_of_an_encoder_says_nothing_of_labels(encoder):
    assert load(encoder("veco"), CLASSES).fresh_parameters["head"] == ""


@pytest.mark.parametrize(
    ("fields", "tasks"),
    [
        ({"fine_tuned_on": ["a", "b"], "architectures": ["XForTokenClassification"]}, ["a", "b"]),
        ({"architectures": ["BertForSequenceClassification"]}, ["an unknown task (BertForSequenceClassification)"]),
        ({"architectures": ["BertForMaskedLM"]}, []),
        ({"architectures": None}, []),
    ],
)
def test_fine_tuned_on(fields, tasks):
    assert fine_tuned_on(SimpleNamespace(**fields)) == tasks


def test_run_moves_the_rows_of_a_head_to_the_order_of_its_labels(topics, tiny_model, tmp_path):
    labels = task_of(load_recipe(Recipe, None, topics)).read().label_names
    folder = fine_tune(tiny_model, labels[::-1], tmp_path / "tuned")
    for file in tiny_model.glob("tokenizer*"):
        shutil.copy(file, folder)
    # too small a learning rate to change a row
    short = ["training.learning_rate=1e-12", "training.max_steps=1", "seeds=[1]", "selection=last"]
    main([*topics, f"model={folder}", *short])
    name = "classifier.out_proj.weight"
    expected = load_file(folder / "model.safetensors")[name].flip(0)
    torch.testing.assert_close(weights(tmp_path / "out" / "seed-1")[name], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("value", "kind"), [(float("nan"), "topics"), (float("inf"), "captions")])
def test_run_refuses_weights_that_are_not_finite(value, kind, request, zoo_model_dir, refused, tmp_path):
    folder = zoo_model_dir("veco", copy=True, max_position_embeddings=66)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "roberta.encoder.layer.1.output.dense.weight"
    tensors[name][3, 4] = value
    save_file(tensors, file, {"format": "pt"})
    message = refused([*request.getfixturevalue(kind), f"model={folder}"])
    assert name in message
    assert str(folder) in message
    assert not (tmp_path / "out").exists()
