"""Runs in two processes, one after another, are those of one process."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch

from finetuning.run import main
from tests.finetuning.tasks import record_of, weights
from zoo_core.run_folders import run_lock

# all rows at once, so that one process and two see the same examples in a step
TOPICS = ["seeds=[1]", "selection=last", "max_train_examples=40", "training.batch_size=40", "training.max_steps=2"]
TOPICS += ["training.weight_decay=0.1"]
CAPTIONS = ["training.max_steps=2", "training.max_grad_norm=0.01", "training.label_smoothing=0.2"]
CAPTIONS += ["training.dropout=0", "training.attention_dropout=0", "training.warmup_steps=0", "training.epsilon=1e-6"]
CAPTIONS += ["dev_bleu_examples=4", "generation.max_tokens=60"]
RETRIEVAL = """
kind: retrieval
task: retrieval
output_dir: unused
pairs:
- {path: CORPUS, config: de, source_column: text, source_language: de, target: {path: CORPUS, config: en},
   target_column: text, target_language: en, join_on: id}
"""
SUITE = """
name: one fails
tasks:
- {name: fails, category: retrieval, recipe: retrieval.yaml, overrides: [max_length=2]}
- {name: works, category: retrieval, recipe: retrieval.yaml}
"""
PROGRAM = """
import json, sys
from finetuning.run import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as stopped:
        print("ended with", stopped.code)
"""


@pytest.fixture(scope="module")
def runs(topics_recipe, captions_recipe, sample_corpus_dir, tiny_model, tmp_path_factory):
    """Folder of a run of each kind, in folders of their names, and what was said."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "retrieval.yaml").write_text(RETRIEVAL.replace("CORPUS", str(sample_corpus_dir)), encoding="utf-8")
    (folder / "suite.yaml").write_text(SUITE, encoding="utf-8")
    arguments = [
        [*topics_recipe(folder / "busy"), *TOPICS],
        [*topics_recipe(folder / "topics"), *TOPICS],
        [*captions_recipe(folder / "captions"), *CAPTIONS],
        ["--suite", str(folder / "suite.yaml"), f"model={tiny_model}", f"output_dir={folder / 'suite'}"],
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    with run_lock(folder / "busy"), (folder / "said").open("w+", encoding="utf-8") as said:
        started = []
        for rank in ("0", "1"):
            own = {"RANK": rank, "LOCAL_RANK": rank, "ACCELERATE_USE_CPU": "true"}
            started.append(subprocess.Popen(command, env=os.environ | shared | own, stdout=said, stderr=said))
        try:
            codes = [process.wait(timeout=600) for process in started]
        finally:
            for process in started:
                process.kill()
        said.seek(0)
        text = said.read()
    assert codes == [0, 0], text
    return folder, text


def predictions(folder):
    """The rows of all languages, without probabilities, which differ in their last digits."""
    files = sorted((folder / "seed-1" / "predictions").iterdir())
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in row.items() if name != "probability"} for row in rows]


def assert_same_update(one, two):
    ours, others = weights(one / "seed-1"), weights(two / "seed-1")
    assert all(torch.allclose(ours[name], others[name], atol=1e-5) for name in ours)
    return [record_of(folder / "seed-1") for folder in (one, two)]


@pytest.mark.slow
def test_an_update_is_that_of_one_process_that_trains_all_rows_of_the_embeddings(runs, topics, tmp_path):
    main([*topics, *TOPICS, "training.used_rows_only=false"])
    one, two = assert_same_update(tmp_path / "out", runs[0] / "topics")
    assert one["scores"] == two["scores"] and one["steps"] == two["steps"]
    assert predictions(tmp_path / "out") == predictions(runs[0] / "topics")
    facts = json.loads((runs[0] / "topics" / "run.json").read_text(encoding="utf-8"))
    assert facts["sessions"][0]["hardware"]["processes"] == 2


@pytest.mark.slow
def test_translations_are_trained_and_scored_as_in_one_process(runs, dev_captions, tmp_path):
    main([*dev_captions, *CAPTIONS])
    one, two = assert_same_update(tmp_path / "out", runs[0] / "captions")
    assert one["all_scores"] == two["all_scores"]
    assert predictions(tmp_path / "out") == predictions(runs[0] / "captions")
    for first, second in zip(one["curve"], two["curve"], strict=True):
        assert first["loss"] == pytest.approx(second["loss"], abs=1e-5) and first["bleu"] == second["bleu"]


@pytest.mark.slow
def test_what_the_main_process_alone_finds_out_the_other_one_knows(runs):
    """Or it would wait for ever."""
    folder, said = runs
    assert "fails failed" in said and said.count("in use by another run") == 2
    assert said.count("ended with 2") == 4
    (run,) = json.loads((folder / "suite" / "results.json").read_text(encoding="utf-8"))["runs"].values()
    assert list(run["tasks"]) == ["works"]
