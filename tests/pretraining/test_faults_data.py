"""Losses that are not finite, text that is damaged, and sources that go away while they are read."""

import json
import random
import shutil

import httpx
import pytest
import torch
import yaml
from safetensors.torch import load_file

from pretraining import retry
from pretraining.checkpoints import newest_checkpoint
from pretraining.checksums import damage
from pretraining.retry import SourceGone, retried
from pretraining.tracking import read_events

STEPS = 6
SETTINGS = [
    f"phases.0.steps={STEPS}",
    "phases.0.objectives={mlm: {batch_size: 4, max_length: 48}, tlm: {batch_size: 4, max_length: 64}}",
    "model.config.hidden_dropout_prob=0.1",
]


def assert_same_run(folder, whole):
    ours, reference = (load_file(path / "model" / "model.safetensors") for path in (folder, whole))
    assert all(torch.equal(ours[key], reference[key]) for key in reference)
    assert [event["step"] for event in read_events(folder)] == [event["step"] for event in read_events(whole)]


@pytest.fixture
def whole(started, tmp_path):
    def make(*settings):
        run = started(*settings, f"output_dir={tmp_path / 'whole'}")
        assert run.wait() == 0, run.printed()[-3000:]
        return tmp_path / "whole"

    return make


# From micro-batch `at` on, the loss (`loss`) of the first row with a prediction, or the gradient alone, is not finite.
POISON = """
from pretraining import training
build, calls = training.build_model, 0
def poisoned(*arguments):
    model = build(*arguments)
    forward = model.forward
    def spoilt(**batch):
        global calls
        output = forward(**batch)
        calls += model.training
        if model.training and calls == {at}:
            rows = output.batch_rows["mlm"]
            row = int(rows[0])
            print("spoilt:", batch["mlm"]["languages"][row], int(batch["mlm"]["examples"][row]), flush=True)
            if {loss}:
                output.token_losses["mlm"][rows == row] = float("nan")
                output.loss = output.loss * float("nan")
            else:
                weight = model.get_input_embeddings().weight
                output.loss = output.loss + (weight.sum() * 0).sqrt() * 0  # 0, of a slope that is none
        return output
    model.forward = spoilt
    return model
training.build_model = poisoned
"""


@pytest.mark.parametrize(
    "loss, precision, accumulation", [(True, "fp32", 1), (True, "bf16", 2), (False, "fp32", 2), (False, "bf16", 1)]
)
def test_a_loss_or_gradient_that_is_not_finite(started, whole, tmp_path, loss, precision, accumulation):
    """Nothing is learnt of it, the batch is named, and the run could go on as if it had not been."""
    settings = [*SETTINGS, f"precision={precision}", f"gradient_accumulation_steps={accumulation}"]
    reference, folder = whole(*settings), tmp_path / "run"
    chance = random.Random(f"{loss} {precision}")
    for round_number in range(2):
        at = chance.randint(2, 3) * accumulation
        before = newest_checkpoint(folder) if folder.exists() else None
        done = int(before.name.removeprefix("step-")) if before else 0
        resume = ["--resume"] if before else []
        run = started(*settings, *resume, fault=POISON.format(at=at, loss=loss))
        assert run.wait() == 2
        printed = run.printed()
        step = done + at // accumulation
        kept = newest_checkpoint(folder)
        assert kept.name == f"step-{step - 1}" and damage(kept) is None and "Traceback" not in printed
        what = "the loss is nan" if loss else "the norm of the gradient is"
        assert what in printed and f"at step {step} (phase 'main')" in printed, printed[-3000:]
        assert f"The last good state is {kept}." in printed and f"model.start_from={kept / 'model'}" in printed
        corpus, example = printed.partition("spoilt: ")[2].split()[:2]
        report = json.loads((folder / "not_finite.json").read_text())
        (process,) = report["processes"]
        assert report["step"] == step and len(process["examples"]) == accumulation
        assert int(example) in process["examples"][-1]["mlm"][corpus]
        if loss:
            assert f"the first loss that is not finite is mlm (nan) of example {corpus} {example};" in printed
            assert process["first"]["micro_batch"] == accumulation - 1
            assert process["first"]["examples"] == {corpus: [int(example)]}
        else:
            assert "every single loss is finite" in printed and process["first"] is None
        assert all(torch.isfinite(weight).all() for weight in load_file(kept / "model" / "model.safetensors").values())
        if round_number:
            break
    run = started(*settings, "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    assert_same_run(folder, reference)


# The `at`-th batch that a process makes cannot be read.
DAMAGED = """
from pretraining import corpora
class CorruptShard(ValueError):
    pass
made = 0
really = corpora.MaskedExamples.__getitems__
def damaged(self, draws):
    global made
    made += 1
    if made == {at}:
        raise {error}
    return really(self, draws)
corpora.MaskedExamples.__getitems__ = damaged
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", ["CorruptShard('shard 3 is not what it was. Rebuild it.')", "OSError(5, 'gone')"])
def test_data_that_cannot_be_read_stops_the_run_resumably(started, whole, tmp_path, workers, error):
    settings = [*SETTINGS, f"num_workers={workers}"]
    reference, folder = whole(*settings), tmp_path / "run"
    at = random.Random(error).randint(1, 2) + (not workers)
    run = started(*settings, fault=DAMAGED.format(at=at, error=error))
    assert run.wait() == 2
    printed = run.printed()
    # of two workers each makes every other batch: their `at`-th are 2 at - 1 and 2 at
    step = (2 * at - 1 if workers else at) - 1
    said = "shard 3 is not what it was. Rebuild it." if "Shard" in error else "[Errno 5] gone"
    assert f"error: {said} Training has stopped at step {step}, for want of data." in printed, printed[-3000:]
    assert "Traceback" not in printed and "DataLoader worker" not in printed
    kept = newest_checkpoint(folder)
    assert (kept.name if kept else "step-0") == f"step-{step}" and "--resume" in printed
    run = started(*settings, "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    assert_same_run(folder, reference)


@pytest.fixture
def streamed(recipe_file, tmp_path):
    """The recipe on a streamed file that is read through many times; gives its path and that of where it goes."""
    path = tmp_path / "en.txt"
    path.write_text("".join(f"sentence number {number} of a small file\n" for number in range(10)), encoding="utf-8")
    recipe = yaml.safe_load(recipe_file.read_text(encoding="utf-8"))
    recipe["monolingual"] = [{"language": "en", "path": str(path), "streaming": True, "size": 10}]
    recipe["bitext"], recipe["shuffle_buffer"] = [], 4
    recipe_file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path, tmp_path / "elsewhere.txt"


OF_STREAM = ["phases.0.steps=12", "phases.0.objectives={mlm: {batch_size: 6, max_length: 32}}"]
WAITS = "from pretraining import retry\nretry.WAITS_SECONDS = {waits}\n"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_source_that_goes_away_and_comes_back(started, whole, streamed, tmp_path, workers):
    settings = [*OF_STREAM, f"num_workers={workers}"]
    reference, (path, elsewhere) = whole(*settings), streamed
    run = started(*settings, fault=WAITS.format(waits=(0.05,) * 2000))
    run.until(lambda printed: f"step {2}/" in printed)
    path.rename(elsewhere)
    run.until(lambda printed: "try 2 of 2000" in printed)
    elsewhere.rename(path)
    assert run.wait() == 0, run.printed()[-3000:]
    assert "the source of corpus en cannot be read after row" in run.printed()
    assert_same_run(tmp_path / "run", reference)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_source_that_stays_away_stops_the_run_resumably(started, whole, streamed, tmp_path, workers):
    settings = [*OF_STREAM, f"num_workers={workers}"]
    reference, (path, elsewhere) = whole(*settings), streamed
    run = started(*settings, fault=WAITS.format(waits=(0.01, 0.01)))
    run.until(lambda printed: f"step {2}/" in printed)
    path.rename(elsewhere)
    assert run.wait() == 2
    printed = run.printed()
    assert "did not come back in 2 tries" in printed and "for want of data" in printed, printed[-3000:]
    assert "Traceback" not in printed and newest_checkpoint(tmp_path / "run") is not None
    shutil.move(elsewhere, path)
    run = started(*settings, "--resume")
    assert run.wait() == 0, run.printed()[-3000:]
    assert_same_run(tmp_path / "run", reference)


@pytest.mark.parametrize(
    "error", [FileNotFoundError("x"), ConnectionError(), httpx.ReadTimeout("slow"), TimeoutError()]
)
def test_retried_gives_every_row_once(monkeypatch, error):
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0, 0, 0))
    chance = random.Random(0)
    for _ in range(20):
        failing = {chance.randrange(40) for _ in range(chance.randint(1, 6))}

        def rows(failing=failing):
            for number in range(40):
                if number in failing:
                    failing.discard(number)
                    raise error
                yield number

        assert list(retried(rows, "it")) == list(range(40))


def test_what_is_no_fault_of_a_source_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(retry, "WAITS_SECONDS", (0, 0, 0))
    opened = []

    def rows(error):
        opened.append(error)
        yield from range(5)
        raise error

    with pytest.raises(ValueError, match="not UTF-8"):
        list(retried(lambda: rows(ValueError("not UTF-8")), "it"))
    assert len(opened) == 1
    with pytest.raises(SourceGone, match="it cannot be read after row 5 .*did not come back in 3 tries"):
        list(retried(lambda: rows(OSError("away")), "it"))
    assert len(opened) == 1 + 4
