"""Helpers for tests of tasks: programs in processes, reading without a run, and reading the files of a run."""

import json
import os
import socket
import subprocess
import sys

import torch
from safetensors.torch import load_file

from crosslingual_zoo.finetuning.models import Start
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.zoo_core.provenance import read_json
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.labeled_rows import read_rows


def run_in(processes, program, argument, folder):
    """(exit codes, what all printed) of a Python program that reads `argument` as JSON from its first argument."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    shared |= {"WORLD_SIZE": str(processes), "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, "-c", program, json.dumps(argument)]
    with (folder / "printed").open("w+", encoding="utf-8") as printed:
        started = []
        for rank in map(str, range(processes)):
            environment = os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank}
            started.append(subprocess.Popen(command, env=environment, stdout=printed, stderr=printed))
        try:
            codes = [process.wait(timeout=600) for process in started]
        finally:
            for process in started:
                process.kill()
        printed.seek(0)
        return codes, printed.read()


RUNS = """
import json, sys
from crosslingual_zoo.finetuning.run import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as stopped:
        sys.stdout.write(f"ended with {stopped.code}\\n")
"""


def main_in(processes, arguments, folder):
    """Runs of finetuning/run.py one after another in so many processes; returns what was said."""
    codes, printed = run_in(processes, RUNS, arguments, folder)
    assert codes == [0] * processes, printed
    return printed


def recipe_with(recipe_class, train, evaluation, *overrides):
    """A recipe of tables, given as lists of dictionaries of their fields; JSON is YAML."""
    base = ["model=m", "output_dir=o", "task=t", "selection=last", "training.learning_rate=1"]
    tables = [f"train={json.dumps(train)}", f"evaluation={json.dumps(evaluation)}"]
    return load_recipe(recipe_class, None, [*base, *tables, *overrides])


def task_with(recipe, tokenizer, path=""):
    """The task of a recipe, as if a model with this tokenizer had been opened."""
    task = task_of(recipe)
    task.start = Start(str(path), None, tokenizer, {})
    return task


def encode(recipe, data, tokenizer):
    """The data, encoded as the recipe says."""
    return task_with(recipe, tokenizer).encode(data)


def read_alike(recipe):
    """The data of a recipe whose tables have the same texts, without the warning that says so."""
    data = task_of(recipe).read()
    data.warnings = [warning for warning in data.warnings if "whose text" not in warning]
    return data


class Killed(BaseException):
    """Raised in place of a signal that ends the process."""


def weights(seed):
    """The model that a seed left in its folder."""
    return load_file(seed / "model" / "model.safetensors")


def record_of(seed):
    """What a finished seed left in its folder; `scores` by language, of the main metric, and `all_scores`."""
    record = read_json(seed / "scores.json")
    record["all_scores"] = {row["language"]: {} for row in record["scores"]}
    for row in record["scores"]:
        record["all_scores"][row["language"]][row["metric"]] = row["value"]
    main = record["metric"]["name"]
    return record | {"scores": {language: scores[main] for language, scores in record["all_scores"].items()}}


def evaluations(seed):
    """The evaluations of a seed while it trained, by their steps."""
    return {entry["step"]: entry for entry in record_of(seed)["history"] if "eval_loss" in entry}


def assert_same_seed(seed, expected, tolerance=0.0):
    """Two folders of a seed have the same weights, scores and choice; without a tolerance, bit for bit."""
    torch.testing.assert_close(weights(seed), weights(expected), rtol=0, atol=tolerance)
    record = record_of(seed)
    expected_record = record_of(expected)
    for name in ("scores", "selected_step", "selection_score", "steps"):
        assert record[name] == expected_record[name], name


def labels_of_words(model, tokenizer, words):
    """What a tagger says of each word, at its first subword with text."""
    batch = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        predicted = model.eval()(**batch).logits[0].argmax(-1).tolist()
    label_of_word = {}
    for word, token, number in zip(batch.word_ids(0), batch.tokens(), predicted, strict=True):
        if word is not None and token.strip("▁"):
            label_of_word.setdefault(word, model.config.id2label[number])
    return list(label_of_word.values())


def predictions(seed, language):
    """The rows of a language that a seed predicted."""
    return read_rows(seed / "predictions" / f"{language}.jsonl")
