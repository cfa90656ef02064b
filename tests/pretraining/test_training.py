"""The training loop: a step is the same with any split; phases; resuming in the middle of a phase."""

import itertools
import json
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from crosslingual_zoo.pretraining import training
from crosslingual_zoo.pretraining.checkpoints import checkpoints_of, newest_checkpoint
from crosslingual_zoo.pretraining.data.batches import load_corpora, training_batches
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.start.initialization import Start
from crosslingual_zoo.pretraining.start.pretrained import tokenizer_of
from crosslingual_zoo.pretraining.tracking import read_events
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.pretraining.run_folders import adam_of, changed_weights, losses_of, weights_of


def norm_of(tensors) -> float:
    return torch.nn.utils.get_total_norm(tensors).item()


def test_run_gradient_is_that_of_the_mean_over_all_predictions(train, recipe_file, tmp_path):
    """Its norm before clipping: Adam and clipping would hide a gradient that is too small by any factor. Adam's first
    moment, (1 - beta) g, has the norm after clipping."""
    settings = ["phases.0.steps=1", "gradient_accumulation_steps=2", "optimizer.max_grad_norm=0.5"]
    settings.append("phases.0.objectives.dwa={}")  # its predictions are counted after the forward pass
    train(*settings)
    recipe = load_recipe(Recipe, str(recipe_file), settings)
    start = Start(recipe)
    tokenizer = tokenizer_of(recipe)
    model = start.build_model(start.build_config(tokenizer))
    corpora = load_corpora(recipe, tokenizer)
    loss_sum = 0.0
    num_predictions = 0
    for batch in training_batches(recipe, 0, corpora, tokenizer):
        aligned = model(**batch, objective_weights={"dwa": 1.0, "mlm": 0.0, "tlm": 0.0})
        loss_sum += aligned.loss_sum
        num_predictions += len(aligned.token_losses["dwa"])
        for fields in batch.values():
            labels = fields["labels"]
            states = model.roberta(fields["input_ids"], attention_mask=fields["attention_mask"]).last_hidden_state
            loss_sum += cross_entropy(model.lm_head(states).flatten(0, 1), labels.flatten(), reduction="sum")
            num_predictions += int(labels.ne(-100).sum())
    (loss_sum / num_predictions).backward()
    norm = norm_of([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert norm > 0.5
    (event,) = read_events(tmp_path / "run")
    assert event["predictions"] == num_predictions
    assert event["grad_norm"] == pytest.approx(norm, rel=1e-4)
    moments = [entry["exp_avg"] for entry in adam_of(tmp_path / "run", 1)["state"].values()]
    assert norm_of(moments) == pytest.approx((1 - recipe.optimizer.betas[0]) * 0.5, rel=1e-4)


def test_run_step_that_predicts_nothing_counts_and_changes_no_weights(train, difference, files, tmp_path):
    """Texts of two words in batches of two: a step has a masked token or not."""
    words = "the house is small and we go home today with many people".split()
    path = files.lines("short.txt", [" ".join(pair) for pair in itertools.pairwise(words)] * 4)
    objective = "{mlm: {batch_size: 2, max_length: 16}}"
    settings = [f"monolingual=[{{language: en, path: {path}}}]", "bitext=[]", f"phases.0.objectives={objective}"]
    settings += ["phases.0.steps=8", "phases.0.schedule=linear", "optimizer.weight_decay=0.1"]
    settings += ["save_every_steps=1", "keep_checkpoints=0", "evaluation.held_out_fraction=0"]
    train(*settings)
    events = read_events(tmp_path / "run")
    assert [event["step"] for event in events] == list(range(1, 9))
    empty = [event["step"] for event in events if not event["predictions"]]
    assert 2 <= len(empty) <= 6
    assert 1 not in empty
    rates = [event["learning_rate"] for event in events]
    assert rates == pytest.approx([1e-3 * (1 - step / 8) for step in range(8)])  # also with empty steps

    checkpoints = tmp_path / "run" / "checkpoints"
    for event in events[1:]:
        step = event["step"]
        is_empty = step in empty
        assert ("loss" in event) != is_empty
        assert (event["grad_norm"] is None) == is_empty
        change = difference(checkpoints / f"step-{step}", checkpoints / f"step-{step - 1}")
        assert (change == 0) == is_empty
    optimizer = adam_of(tmp_path / "run", 8)
    assert [group["weight_decay"] for group in optimizer["param_groups"]] == [0.1, 0.0]  # matrices; biases, LayerNorms
    assert {int(entry["step"]) for entry in optimizer["state"].values()} == {8 - len(empty)}


def test_run_with_a_held_out_figure_that_is_not_finite(fails, monkeypatch, tmp_path):
    """The state is saved, that before it is kept, and one line names the step and the figure."""
    evaluate = training.evaluate
    monkeypatch.setattr(training, "evaluate", lambda *arguments: evaluate(*arguments) | {"link_aer/en-de": math.nan})
    evaluation = "evaluation={held_out_fraction: 0.1, every_steps: 3, max_examples: 8}"
    message = fails("phases.0.steps=6", "save_every_steps=2", "keep_checkpoints=1", evaluation)
    assert "link_aer/en-de" in message
    assert "step 3" in message
    assert "Traceback" not in message
    assert [path.name for path in checkpoints_of(tmp_path / "run")] == ["step-2", "step-3"]


def test_newest_checkpoint_is_that_of_most_steps(tmp_path):
    for step in (9, 10):
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    assert newest_checkpoint(tmp_path).name == "step-10"


MLM_TLM = {name: {"batch_size": 4, "max_length": 64, "mask_probability": 1e-9} for name in ("mlm", "tlm")}
EMPTY = {  # model type -> objectives in addition to these, or in their place
    "veco": dict.fromkeys(("ca_mlm_segments", "ca_mlm_pairs"), MLM_TLM["mlm"]),
    "ernie_m": dict.fromkeys(("camlm", "btmlm"), MLM_TLM["mlm"]),
    "xlm_align": {"dwa": {}},
    "metaxlm": {"kd": {}},
}


@pytest.mark.parametrize("model_type", EMPTY)
def test_run_in_which_no_objective_predicts_anything(model_type, train, teacher_dir, tmp_path):
    """Training and held-out evaluation, of every objective."""
    objectives = json.dumps(MLM_TLM | EMPTY[model_type])
    settings = [f"model.type={model_type}", f"phases.0.objectives={objectives}", "phases.0.steps=2"]
    settings += ["evaluation={held_out_fraction: 0.1, max_examples: 9}", "gradient_accumulation_steps=2"]
    if model_type == "metaxlm":
        settings.append(f"teacher={{path: {teacher_dir}, language: en}}")
    train(*settings, "evaluation.every_steps=1")
    events = read_events(tmp_path / "run")
    assert [event["predictions"] for event in events if "predictions" in event] == [0, 0]
    names = set().union(*events)
    assert not [name for name in names if name.startswith(("loss", "held_out", "unigram"))]


@pytest.mark.slow
def test_run_of_veco_s_two_phases(train, veco_phases, difference, cut_back, tmp_path):
    """Trains only cross-attention with only the cross terms, then all with all terms. A resumed run is bit-equal."""
    evaluation = "evaluation={held_out_fraction: 0.1, max_examples: 8}"
    settings = [*veco_phases, "model.config.hidden_dropout_prob=0.1", evaluation]
    train(*settings)
    run = tmp_path / "run"
    rates = [event["learning_rate"] for event in read_events(run) if "learning_rate" in event]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])  # one schedule of both phases
    between = run / "checkpoints" / "step-2"
    trained_first = changed_weights(run / "checkpoints" / "step-1", between)
    assert trained_first
    assert all(".crossattention." in name for name in trained_first)
    trained_second = changed_weights(between, run)
    assert any(".crossattention." in name for name in trained_second)
    assert any("embeddings" in name for name in trained_second)
    losses_of_first = losses_of(read_events(run)[0])
    assert losses_of_first == {"ca_mlm_segments.cross", "ca_mlm_pairs.cross"}
    assert losses_of(read_events(run)[-2]) == losses_of_first | {"ca_mlm_segments.inner", "ca_mlm_pairs.inner"}
    for step in (2, 3):  # between the phases, and in the second
        resumed = cut_back(run, step, tmp_path / f"resumed-{step}")
        train(*settings, f"output_dir={resumed}", "--resume")
        assert difference(resumed, run) == 0


def test_run_carries_an_optimizer(train, tmp_path):
    """Both second phases begin with the same weights and the same gradient g: Adam's moments are b m + (1 - b) g if the
    moments m are carried, and (1 - b) g if they are fresh."""
    common = "objectives: {mlm: {batch_size: 8, max_length: 64}}"
    schedule = "learning_rate: 1.0e-3, schedule: constant"
    first = f"{{name: a, trainable: ['*word_embeddings.weight'], steps: 2, {schedule}, {common}}}"
    runs = {"carried": "optimizer: carried", "fresh": schedule}
    every = ["optimizer.betas=[0.9, 0.98]", "save_every_steps=1", "keep_checkpoints=0"]
    for name, settings in runs.items():
        second = f"{{name: b, steps: 1, {settings}, {common}}}"
        train(f"phases=[{first}, {second}]", f"output_dir={tmp_path / name}", *every)

    (before,) = adam_of(tmp_path / "carried", 2)["state"].values()  # the table of the vocabulary alone
    tables = {}
    for name in runs:
        is_table = {True: [], False: []}
        for entry in adam_of(tmp_path / name, 3)["state"].values():
            is_table[entry["exp_avg"].shape == before["exp_avg"].shape].append(entry)
        (tables[name],) = is_table[True]
        # what the first phase did not train begins anew in both runs
        assert {int(entry["step"]) for entry in is_table[False]} == {1}
    carried = tables["carried"]
    fresh = tables["fresh"]
    assert (int(before["step"]), int(carried["step"]), int(fresh["step"])) == (2, 3, 1)
    for moment, beta in (("exp_avg", 0.9), ("exp_avg_sq", 0.98)):
        assert fresh[moment].any()
        assert not torch.equal(carried[moment], fresh[moment])
        torch.testing.assert_close(carried[moment], beta * before[moment] + fresh[moment])


@pytest.mark.slow
def test_run_in_bfloat16_and_with_gradient_checkpointing(train, difference, tmp_path):
    train(f"output_dir={tmp_path / 'fp32'}")
    train(f"output_dir={tmp_path / 'checkpointed'}", "model.gradient_checkpointing=true")
    train(f"output_dir={tmp_path / 'bf16'}", "precision=bf16")
    assert difference(tmp_path / "fp32", tmp_path / "checkpointed") < 1e-6
    assert 0 < difference(tmp_path / "fp32", tmp_path / "bf16") < 0.01
    assert {tensor.dtype for tensor in weights_of(tmp_path / "bf16").values()} == {torch.float32}
    loss = read_events(tmp_path / "fp32")[0]["loss"]
    assert read_events(tmp_path / "bf16")[0]["loss"] == pytest.approx(loss, rel=0.01)


def test_dry_run_plans_and_writes_nothing(train, teacher_dir, tmp_path, capsys):
    pairs = "phases.0.objectives.ca_mlm_pairs={batch_size: 8, max_length: 48}"
    evaluation = "evaluation={held_out_fraction: 0.1, every_steps: 13}"
    train("--dry_run", "model.type=veco", pairs, evaluation)
    printed = capsys.readouterr().out
    assert "en-zh" in printed
    assert "13" in printed.split()  # steps between evaluations
    assert "<mask>" in printed
    assert not (tmp_path / "run").exists()
    start = ["model.type=metaxlm", "model.config={}", f"model.meta_pretrained.path={teacher_dir}"]
    train("--dry_run", *start, "phases.0.objectives={mlm: {batch_size: 8, max_length: 32}}")
    assert {"LATIN", "CJK", "normalized"} <= set(capsys.readouterr().out.split())  # rows of the vocabulary


def test_run_step_is_the_same_for_1x8_and_2x4_accumulated(train, difference, tmp_path):
    """Those of two processes, of all models: test_processes.py."""
    settings = ["phases.0.steps=2", "phases.0.objectives.dwa={}", "model.config.query_positions=all_aligned"]
    whole = tmp_path / "whole"
    accumulated = tmp_path / "accumulated"
    train(*settings, f"output_dir={whole}")
    train(*settings, f"output_dir={accumulated}", "gradient_accumulation_steps=2")
    assert difference(whole, accumulated) < 1e-5
    for event, expected in zip(read_events(accumulated), read_events(whole), strict=True):
        assert event["predictions"] == expected["predictions"]
        assert event["loss"] == pytest.approx(expected["loss"], rel=0, abs=1e-5)
        assert event["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0, abs=1e-4)
