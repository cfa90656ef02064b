"""Runs in two processes, one after another, are those of one process."""

import json

import pytest
import torch
from datasets import Dataset

from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.zoo_core.provenance import read_json, write_json
from crosslingual_zoo.zoo_core.run_folders import run_lock
from tests.finetuning.feature_recipes import retrieval
from tests.finetuning.labeled_rows import read_rows
from tests.finetuning.plug_in_kinds import KINDS
from tests.finetuning.tasks import evaluations, main_in, record_of, run_in, weights
from tests.finetuning.test_translation_run import ONE_UPDATE

# three epochs of four steps; the last step of an epoch has one row, and all processes but one have none
RAGGED = ["training.batch_size=12", "training.epochs=3"]
TOPICS = ["seeds=[1]", "selection=last", "max_train_examples=37", "training.weight_decay=0.1", *RAGGED]
CAPTIONS = [*ONE_UPDATE, "dev_bleu_examples=4", "generation.max_tokens=60"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plug_in_recipe(plug_in_veco, tmp_path_factory):
    """plug_in_recipe(kind, folder) -> overrides: texts with their translations; the last step has fewer rows."""
    tables = tmp_path_factory.mktemp("tables")

    def recipe(kind, folder):
        table = str(tables / f"{kind}.parquet")
        Dataset.from_list(KINDS[kind].rows(9)).to_parquet(table)
        # epsilon: the gradients of the keys' biases are rounding errors, which Adam makes steps of the learning rate
        training = ["training.batch_size=4", "training.epochs=3", "training.epsilon=1e-4"]
        folders = [f"model={plug_in_veco}", f"output_dir={folder}"]
        return KINDS[kind].overrides(table, table, *folders, "seeds=[1]", "max_length=64", *training)

    return recipe


@pytest.fixture(scope="module")
def runs(topics_recipe, captions_recipe, plug_in_recipe, sample_corpus_dir, tiny_model, tmp_path_factory):
    """Folder of a run of each kind, in folders of their names, and what was printed."""
    folder = tmp_path_factory.mktemp("two")
    pairs = json.loads(retrieval(sample_corpus_dir, folder)[0].removeprefix("pairs="))
    write_json(folder / "retrieval.yaml", {"kind": "retrieval", "task": "t", "output_dir": "unused", "pairs": pairs})
    fails = {"name": "fails", "recipe": "retrieval.yaml", "overrides": ["max_length=2"]}
    works = {"name": "works", "recipe": "retrieval.yaml"}
    write_json(folder / "suite.yaml", {"name": "one fails", "tasks": [fails, works]})
    arguments = [
        [*topics_recipe(folder / "busy"), *TOPICS],
        [*topics_recipe(folder / "topics"), *TOPICS],
        [*captions_recipe(folder / "captions"), *CAPTIONS],
        *(plug_in_recipe(kind, folder / kind) for kind in KINDS),
        ["--suite", str(folder / "suite.yaml"), f"model={tiny_model}", f"output_dir={folder / 'suite'}"],
    ]
    with run_lock(folder / "busy"):
        return folder, main_in(2, arguments, folder)


def predictions(folder):
    """The rows of all languages, without probabilities, which differ in their last digits."""
    rows = []
    for file in sorted((folder / "seed-1" / "predictions").iterdir()):
        rows += read_rows(file)
    for row in rows:
        row.pop("probability", None)
    return rows


def assert_same_update(alone, together):
    """The weights of two runs are equal but for rounding; returns the records of both."""
    ours = weights(alone / "seed-1")
    others = weights(together / "seed-1")
    torch.testing.assert_close(ours, others, atol=1e-5, rtol=1e-5)
    return record_of(alone / "seed-1"), record_of(together / "seed-1")


def test_run_in_two_processes_trains_as_one(runs, topics, tmp_path):
    main([*topics, *TOPICS])
    alone, together = assert_same_update(tmp_path / "out", runs[0] / "topics")
    assert alone["scores"] == together["scores"]
    assert alone["steps"] == together["steps"] == 12
    assert predictions(tmp_path / "out") == predictions(runs[0] / "topics")
    assert read_results(tmp_path / "out")["processes"] == [1]
    assert read_results(runs[0] / "topics")["processes"] == [2]


def test_run_in_three_processes_accumulated_trains_as_one(runs, topics_recipe, tmp_path):
    accumulated = "training.gradient_accumulation_steps=2"
    main_in(3, [[*topics_recipe(tmp_path / "three"), *TOPICS, accumulated]], tmp_path)
    main([*topics_recipe(tmp_path / "two"), *TOPICS, accumulated])
    for name in ("two", "three"):
        assert_same_update(tmp_path / name, runs[0] / "topics")


@pytest.mark.parametrize("kind", KINDS)
def test_run_in_two_processes_trains_plug_in_as_one(kind, runs, plug_in_recipe, tmp_path):
    main(plug_in_recipe(kind, tmp_path / "one"))
    alone, together = assert_same_update(tmp_path / "one", runs[0] / kind)
    assert alone["scores"] == together["scores"]


def test_run_in_two_processes_translates_as_one(runs, dev_captions, tmp_path):
    main([*dev_captions, *CAPTIONS])
    alone, together = assert_same_update(tmp_path / "out", runs[0] / "captions")
    assert alone["all_scores"] == together["all_scores"]
    assert predictions(tmp_path / "out") == predictions(runs[0] / "captions")
    of_two = evaluations(runs[0] / "captions" / "seed-1")
    for step, evaluation in evaluations(tmp_path / "out" / "seed-1").items():
        assert of_two[step]["eval_loss"] == pytest.approx(evaluation["eval_loss"], abs=1e-5)
        assert of_two[step]["eval_bleu"] == evaluation["eval_bleu"]


def test_run_in_two_processes_ends_in_both(runs):
    """Otherwise it would wait forever."""
    folder, printed = runs
    assert "fails failed" in printed
    assert printed.count("in use by another run") == 2
    assert printed.count("ended with 2") == 4, printed
    (scores,) = read_json(folder / "suite" / "results.json")["scores"].values()
    assert "works" in scores
    assert "fails" not in scores
    assert read_results(folder / "suite" / "works")["processes"] == [2]


VECTORS_AND_MINED_PAIRS = """
import json, sys
import torch
from accelerate import PartialState
from transformers import AutoModel, AutoTokenizer
from crosslingual_zoo.finetuning.tasks.vectors.encoder import SentenceEncoder, vectors_by_layer
from crosslingual_zoo.finetuning.tasks.vectors.search import mine
from crosslingual_zoo.zoo_core.processes import start_processes

start_processes()
model, folder = json.loads(sys.argv[1])
generator = torch.Generator().manual_seed(1)
results = []
for sources, targets in ((2, 2), (50, 31), (7, 120)):
    source = torch.randn(sources, 16, generator=generator).round() + 3
    target = torch.randn(targets, 16, generator=generator).round() + 3
    results.append([torch.from_numpy(column) for column in mine(source, target, size=8)])
encoder = SentenceEncoder(AutoModel.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model), batch_size=2)
for texts in (["Anna", "Otto"], ["a b c d e", "f", "g h i j", "k", "l m", "", "n o p"]):
    _, by_layer = vectors_by_layer(encoder, [texts, texts[:1]], [0, 2])
    results += by_layer
torch.save(results, f"{folder}/{PartialState().num_processes}-{PartialState().process_index}.pt")
"""


def test_processes_divide_texts_and_searches(tiny_model, tmp_path):
    """Every process has the results of one process, to the last bit, also where it has no text or source."""
    for processes in (1, 2, 3):
        codes, printed = run_in(processes, VECTORS_AND_MINED_PAIRS, [str(tiny_model), str(tmp_path)], tmp_path)
        assert codes == [0] * processes, printed
    expected = torch.load(tmp_path / "1-0.pt")
    for file in ("2-0", "2-1", "3-0", "3-1", "3-2"):
        torch.testing.assert_close(torch.load(tmp_path / f"{file}.pt"), expected, rtol=0, atol=0)
