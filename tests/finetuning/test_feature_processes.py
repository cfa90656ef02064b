"""Retrieval, mining and word alignment in several processes find what one process finds."""

import json

import pytest

from finetuning.run import main
from finetuning.tasks.vectors.base import share
from tests.finetuning.feature_recipes import FEATURE_RECIPES
from tests.finetuning.processes import run_in

PROGRAM = """
import json, sys
from finetuning.run import main
for arguments in json.loads(sys.argv[1]):
    main(arguments)
"""


def test_share_is_about_equal():
    sizes = {"a": 5, "b": 1, "c": 4, "d": 3}
    assert share(sizes, 2) == [["a", "b"], ["c", "d"]]
    assert share(sizes, 1) == [["a", "c", "d", "b"]]
    assert share({"a": 5}, 3) == [["a"], [], []]


@pytest.mark.slow
def test_processes_evaluate_vectors_as_one(tiny_model, sample_corpus_dir, tmp_path):
    def arguments(kind, processes):
        folder = tmp_path / kind
        folder.mkdir(exist_ok=True)
        given = [f"kind={kind}", f"task={kind}", f"model={tiny_model}", f"output_dir={folder}/{processes}"]
        return given + FEATURE_RECIPES[kind](sample_corpus_dir, folder)

    for kind in FEATURE_RECIPES:
        main(arguments(kind, 1))
    for processes in (2, 3):
        commands = [arguments(kind, processes) for kind in FEATURE_RECIPES]
        codes, printed = run_in(processes, PROGRAM, commands, tmp_path)
        assert codes == [0] * processes, printed
        for kind in FEATURE_RECIPES:
            one, several = (tmp_path / kind / str(number) for number in (1, processes))
            predicted = (one / "seed-1" / "predictions").glob("*")
            for name in ("results.csv", *(str(file.relative_to(one)) for file in predicted)):
                assert (several / name).read_bytes() == (one / name).read_bytes(), (kind, processes, name)
            records = [json.loads((folder / "seed-1" / "scores.json").read_text()) for folder in (one, several)]
            assert [record.pop("processes") for record in records] == [1, processes]
            assert records[0]["scores"] and records[0] == records[1]
            assert json.loads((several / "results.json").read_text())["processes"] == [processes]
