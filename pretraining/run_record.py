"""The data of a run in run.json, and a check that a resumed run has the same."""

from pathlib import Path

from pretraining.data.corpora import Corpus
from pretraining.data.tokenized import tokenizer_fingerprint
from pretraining.start.teacher import TeacherModel
from zoo_core.provenance import read_json


def data_facts(corpora: list[Corpus], tokenizer, teacher: TeacherModel | None = None) -> dict:
    """Returns the data of a run with fingerprints, for run.json."""
    return {
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer),
        "corpora": [corpus.facts() for corpus in corpora],
        "teachers": [teacher.facts()] if teacher else [],
    }


def check_same_data(folder: Path, now: dict) -> None:
    """Raises `ValueError` if a resumed run would have other text, tokens or another teacher than at its start."""

    def fingerprints(facts: dict) -> dict[str, list[str]]:
        found = {"the tokenizer": [facts["tokenizer_fingerprint"]]}
        for corpus in facts["corpora"]:
            found[f"corpus {corpus['name']}"] = [table["fingerprint"] for table in corpus["tables"]]
        for teacher in facts["teachers"]:
            found[f"the teacher {teacher['path']}"] = [teacher["fingerprint"], teacher["tokenizer_fingerprint"]]
        return found

    path = folder / "run.json"
    before = fingerprints(read_json(path, needs=now)) if path.exists() else None
    if before and (changed := [what for what, of in fingerprints(now).items() if of != before.get(what)]):
        raise ValueError(
            f"{', '.join(changed)} changed since the run in {str(folder)!r} was started. Restore it, or start a new "
            "run in another output_dir with model.start_from=<this run>/checkpoints/step-N/model."
        )
