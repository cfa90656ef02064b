"""The training loop: a step is the same with any split; phases; resuming in the middle of a phase."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from crosslingual_zoo.pretraining import training
from crosslingual_zoo.pretraining.checkpoints import checkpoints_of, newest_checkpoint
from crosslingual_zoo.pretraining.data.batches import load_corpora, training_batches
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.start.initialization import Start
from crosslingual_zoo.pretraining.start.pretrained import tokenizer_of
from crosslingual_zoo.pretraining.tracking import read_events
from crosslingual_zoo.zoo_core.recipes import load_recipe


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
    loss_sum, count = 0.0, 0
    for batch in training_batches(recipe, 0, corpora, tokenizer):
        aligned = model(**batch, objective_weights={"dwa": 1.0, "mlm": 0.0, "tlm": 0.0})
        loss_sum, count = loss_sum + aligned.loss_sum, count + len(aligned.token_losses["dwa"])
        for fields in batch.values():
            labels = fields["labels"]
            states = model.roberta(fields["input_ids"], attention_mask=fields["attention_mask"]).last_hidden_state
            losses = cross_entropy(model.lm_head(states).flatten(0, 1), labels.flatten(), reduction="sum")
            loss_sum, count = loss_sum + losses, count + int(labels.ne(-100).sum())
    (loss_sum / count).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    (event,) = (event for event in read_events(tmp_path / "run") if "grad_norm" in event)
    assert event["predictions"] == count
    assert event["grad_norm"] == pytest.approx(norm.item(), rel=1e-4) and norm > 0.5
    adam = torch.load(tmp_path / "run" / "checkpoints" / "step-1" / "optimizer.bin", weights_only=True)
    moments = torch.nn.utils.get_total_norm([entry["exp_avg"] for entry in adam["state"].values()])
    assert moments.item() == pytest.approx((1 - recipe.optimizer.betas[0]) * 0.5, rel=1e-4)


def test_run_step_that_predicts_nothing_counts_and_changes_no_weights(train, difference, files, tmp_path):
    """Texts of two words in batches of two: a step has a masked token or not."""
    words = "the house is small and we go home today with many people".split()
    path = files.lines("short.txt", [" ".join(words[i : i + 2]) for i in range(len(words) - 1)] * 4)
    objective = "{mlm: {batch_size: 2, max_length: 16}}"
    settings = [f"monolingual=[{{language: en, path: {path}}}]", "bitext=[]", f"phases.0.objectives={objective}"]
    settings += ["phases.0.steps=8", "phases.0.schedule=linear", "optimizer.weight_decay=0.1"]
    settings += ["save_every_steps=1", "keep_checkpoints=0", "evaluation.held_out_fraction=0"]
    train(*settings)
    events = read_events(tmp_path / "run")
    assert [event["step"] for event in events] == list(range(1, 9))
    empty = [event["step"] for event in events if not event["predictions"]]
    assert 2 <= len(empty) <= 6 and empty[0] > 1
    rates = [event["learning_rate"] for event in events]
    assert rates == pytest.approx([1e-3 * (1 - step / 8) for step in range(8)])  # also with empty steps

    def checkpoint(step):
        return tmp_path / "run" / "checkpoints" / f"step-{step}"

    for event in events[1:]:
        is_empty, step = event["step"] in empty, event["step"]
        assert ("loss" in event) != is_empty and (event["grad_norm"] is None) == is_empty
        assert (difference(checkpoint(step), checkpoint(step - 1)) == 0) == is_empty
    optimizer = torch.load(checkpoint(8) / "optimizer.bin", weights_only=True)
    assert [group["weight_decay"] for group in optimizer["param_groups"]] == [0.1, 0.0]  # matrices; biases, LayerNorms
    assert {int(entry["step"]) for entry in optimizer["state"].values()} == {8 - len(empty)}


def test_run_with_a_held_out_figure_that_is_not_finite(fails, monkeypatch, tmp_path):
    """The state is saved, that before it is kept, and one line names the step and the figure."""
    evaluate = training.evaluate
    monkeypatch.setattr(training, "evaluate", lambda *given: evaluate(*given) | {"link_aer/en-de": math.nan})
    evaluation = "evaluation={held_out_fraction: 0.1, every_steps: 3, max_examples: 8}"
    said = fails("phases.0.steps=6", "save_every_steps=2", "keep_checkpoints=1", evaluation)
    assert "link_aer/en-de" in said and "step 3" in said and "Traceback" not in said
    kept = checkpoints_of(tmp_path / "run")
    assert [path.name for path in kept] == ["step-2", "step-3"]


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
    assert not [key for event in events for key in event if key.startswith(("loss", "held_out", "unigram"))]


@pytest.mark.slow
def test_run_of_veco_s_two_phases(train, veco_phases, difference, cut_back, tmp_path):
    """Trains only cross-attention with only the cross terms, then all with all terms. A resumed run is bit-equal."""
    evaluation = "evaluation={held_out_fraction: 0.1, max_examples: 8}"
    settings = [*veco_phases, "model.config.hidden_dropout_prob=0.1", evaluation]
    train(*settings)
    run = tmp_path / "run"
    rates = [event["learning_rate"] for event in read_events(run) if "learning_rate" in event]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])  # one schedule of both phases
    before, between, after = (
        load_file(folder / "model" / "model.safetensors")
        for folder in (run / "checkpoints" / "step-1", run / "checkpoints" / "step-2", run)
    )
    moved = {name for name in before if not torch.equal(before[name], between[name])}
    assert moved and all(".crossattention." in name for name in moved)
    moved = {name for name in after if not torch.equal(between[name], after[name])}
    assert any(".crossattention." in name for name in moved) and any("embeddings" in name for name in moved)
    of_first, of_second = (
        {key.split("/")[1] for key in event if key.startswith("loss/")}
        for event in (read_events(run)[0], read_events(run)[-2])
    )
    assert of_first == {"ca_mlm_segments.cross", "ca_mlm_pairs.cross"}
    assert of_second == of_first | {"ca_mlm_segments.inner", "ca_mlm_pairs.inner"}
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

    def state(run, step):
        file = tmp_path / run / "checkpoints" / f"step-{step}" / "optimizer.bin"
        return list(torch.load(file, weights_only=True)["state"].values())

    (before,) = state("carried", 2)  # the table of the vocabulary alone
    shape = before["exp_avg"].shape
    of_both = {run: [entry for entry in state(run, 3) if entry["exp_avg"].shape == shape] for run in runs}
    (carried,), (fresh,) = of_both.values()
    assert (int(before["step"]), int(carried["step"]), int(fresh["step"])) == (2, 3, 1)
    for moment, beta in (("exp_avg", 0.9), ("exp_avg_sq", 0.98)):
        assert fresh[moment].any() and not torch.equal(carried[moment], fresh[moment])
        torch.testing.assert_close(carried[moment], beta * before[moment] + fresh[moment])
    for run in runs:  # what the first phase did not train begins anew in both
        others = [entry for entry in state(run, 3) if entry["exp_avg"].shape != shape]
        assert others and {int(entry["step"]) for entry in others} == {1}


@pytest.mark.slow
def test_run_in_bfloat16_and_with_gradient_checkpointing(train, difference, tmp_path):
    train(f"output_dir={tmp_path / 'fp32'}")
    train(f"output_dir={tmp_path / 'checkpointed'}", "model.gradient_checkpointing=true")
    train(f"output_dir={tmp_path / 'bf16'}", "precision=bf16")
    assert difference(tmp_path / "fp32", tmp_path / "checkpointed") < 1e-6
    assert 0 < difference(tmp_path / "fp32", tmp_path / "bf16") < 0.01
    rounded = load_file(tmp_path / "bf16" / "model" / "model.safetensors")
    assert all(tensor.dtype == torch.float32 for tensor in rounded.values())
    first, second = (read_events(tmp_path / name)[0]["loss"] for name in ("fp32", "bf16"))
    assert abs(first - second) < 0.01 * first


def test_dry_run_plans_and_writes_nothing(train, teacher_dir, tmp_path, capsys):
    pairs = "phases.0.objectives.ca_mlm_pairs={batch_size: 8, max_length: 48}"
    train("--dry_run", "model.type=veco", pairs)
    printed = capsys.readouterr().out
    assert "en-zh" in printed and "<mask>" in printed and not (tmp_path / "run").exists()
    start = ["model.type=metaxlm", "model.config={}", f"model.meta_pretrained.path={teacher_dir}"]
    train("--dry_run", *start, "phases.0.objectives={mlm: {batch_size: 8, max_length: 32}}")
    assert {"LATIN", "CJK", "normalized"} <= set(capsys.readouterr().out.split())  # rows of the vocabulary


def test_run_step_is_the_same_for_1x8_and_2x4_accumulated(train, difference, tmp_path):
    """Those of two processes, of all models: test_processes.py."""
    settings = ["phases.0.steps=2", "phases.0.objectives.dwa={}", "model.config.query_positions=all_aligned"]
    train(*settings, f"output_dir={tmp_path / 'one'}")
    train(*settings, f"output_dir={tmp_path / 'two'}", "gradient_accumulation_steps=2")
    assert difference(tmp_path / "one", tmp_path / "two") < 1e-5
    for a, b in zip(read_events(tmp_path / "one"), read_events(tmp_path / "two"), strict=True):
        assert a["predictions"] == b["predictions"]
        assert abs(a["loss"] - b["loss"]) < 1e-5 and abs(a["grad_norm"] - b["grad_norm"]) < 1e-4
