"""run.json: what a run was started with and what it read, one entry a session; and whether that is still so."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from pretraining.data.corpora import Corpus
from pretraining.data.tokenized import tokenizer_fingerprint
from pretraining.distillation import TeacherModel
from pretraining.recipe import Recipe
from pretraining.start.meta_pretrained import start_facts
from zoo_core.provenance import run_facts, write_json


class RunRecord:
    """The run.json of a run folder, with an entry for this session."""

    def __init__(self, recipe: Recipe, argv: list[str], checkpoint: Path | None, parameters: int, data: dict):
        """Adds this session and writes. `parameters` of the model; `data` are the `data_facts`."""
        self.path = Path(recipe.output_dir) / "run.json"
        before = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        session = run_facts(argv) | {"resumed_from": checkpoint.name if checkpoint else None}
        self.content = {
            "sessions": [*before.get("sessions", []), session],
            "model_type": recipe.model.type,
            "start_from": recipe.model.start_from,
            # what is resumed has read it when it was started
            "meta_pretrained": before.get("meta_pretrained") if checkpoint else start_facts(recipe),
            "parameters": parameters,
            **data,
        }
        self.started = time.time()
        write_json(self.path, self.content)

    def finish(self, step: int, stopped_by: str | None = None) -> None:
        """Writes how long the session took and where it ended; `stopped_by` where that is not the end of the run."""
        session = self.content["sessions"][-1]
        session["seconds"] = round(time.time() - self.started, 1)
        if stopped_by:
            session |= {"stopped_by": stopped_by, "stopped_at": step}
        else:
            self.content["steps"] = step
        write_json(self.path, self.content)


def data_facts(corpora: list[Corpus], tokenizer, teachers: Sequence[TeacherModel] = ()) -> dict:
    """What a run reads and learns from, with fingerprints, as run.json keeps it."""
    return {
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer),
        "corpora": [corpus.facts() for corpus in corpora],
        "teachers": [teacher.facts() for teacher in teachers],
    }


def check_same_data(recipe: Recipe, now: dict) -> None:
    """Raises `ValueError` where a resumed run would read other text, or other tokens, than it was started with, or
    learn from another teacher."""
    path = Path(recipe.output_dir) / "run.json"
    if not path.exists():
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = [] if before["tokenizer_fingerprint"] == now["tokenizer_fingerprint"] else ["the tokenizer"]
    fingerprints = {
        corpus["name"]: [table["fingerprint"] for table in corpus["tables"]] for corpus in before["corpora"]
    }
    for corpus in now["corpora"]:
        if fingerprints[corpus["name"]] != [table["fingerprint"] for table in corpus["tables"]]:
            changed.append(f"corpus {corpus['name']}")
    for teacher, was in zip(now["teachers"], before.get("teachers", []), strict=True):
        changed += [
            f"{what} {teacher['path']}"
            for what, key in (("the teacher", "fingerprint"), ("the tokenizer of the teacher", "tokenizer_fingerprint"))
            if teacher[key] != was[key]
        ]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} changed since the run in {recipe.output_dir!r} was started: what it has learned and "
            "what it would learn now belong to different data. Restore it, or start a new run in another output_dir "
            "with model.start_from=<this run>/checkpoints/step-N/model."
        )
