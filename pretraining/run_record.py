"""run.json: the facts of a run and its data, one entry per session; and a check that the data has not changed."""

import time
from pathlib import Path

from pretraining.data.corpora import Corpus
from pretraining.data.tokenized import tokenizer_fingerprint
from pretraining.recipe import Recipe
from pretraining.start.initialization import Start
from pretraining.start.teacher import TeacherModel
from zoo_core.provenance import read_json, run_facts, write_json


class RunRecord:
    """The run.json of a run folder, with an entry for this session."""

    def __init__(self, recipe: Recipe, argv: list[str], checkpoint: Path | None, facts: dict):
        """Adds this session and writes. `facts`: `parameters` of the model and the `data_facts`."""
        self.path, self.started = Path(recipe.output_dir) / "run.json", time.time()
        before, source = read_json(self.path, {}), Start.of(recipe).source
        session = run_facts(argv) | {"resumed_from": checkpoint.name if checkpoint else None}
        self.content = {
            "sessions": [*before.get("sessions", []), session],
            "model_type": recipe.model.type,
            "start_from": recipe.model.start_from,
            # a resumed run has read it at its start
            "meta_pretrained": before.get("meta_pretrained") if checkpoint else source and source.facts(),
            **facts,
        }
        write_json(self.path, self.content)

    def finish(self, step: int, stopped_by: str | None = None) -> None:
        """Writes the duration and the last step of the session; `stopped_by`: the signal that stopped it, if any."""
        session = self.content["sessions"][-1]
        session["seconds"] = round(time.time() - self.started, 1)
        if stopped_by:
            session |= {"stopped_by": stopped_by, "stopped_at": step}
        else:
            self.content["steps"] = step
        write_json(self.path, self.content)


def data_facts(corpora: list[Corpus], tokenizer, teacher: TeacherModel | None = None) -> dict:
    """Returns the data of a run with fingerprints, for run.json."""
    return {
        "tokenizer_fingerprint": tokenizer_fingerprint(tokenizer),
        "corpora": [corpus.facts() for corpus in corpora],
        "teachers": [teacher.facts()] if teacher else [],
    }


def check_same_data(recipe: Recipe, now: dict) -> None:
    """Raises `ValueError` if a resumed run would have other text, tokens or another teacher than at its start."""

    def fingerprints(facts: dict) -> dict[str, list[str]]:
        found = {"the tokenizer": [facts["tokenizer_fingerprint"]]}
        for corpus in facts["corpora"]:
            found[f"corpus {corpus['name']}"] = [table["fingerprint"] for table in corpus["tables"]]
        for teacher in facts["teachers"]:
            found[f"the teacher {teacher['path']}"] = [teacher["fingerprint"], teacher["tokenizer_fingerprint"]]
        return found

    path = Path(recipe.output_dir) / "run.json"
    before = fingerprints(read_json(path, needs=now)) if path.exists() else None
    if before and (changed := [what for what, of in fingerprints(now).items() if of != before.get(what)]):
        raise ValueError(
            f"{', '.join(changed)} changed since the run in {recipe.output_dir!r} was started. Restore it, or start a "
            "new run in another output_dir with model.start_from=<this run>/checkpoints/step-N/model."
        )
