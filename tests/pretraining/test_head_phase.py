"""`head_phase`: a checkpoint without LM head trains one first, alone, in a phase like any other."""

import json
import shutil

import pytest
from transformers import AutoModel

from crosslingual_zoo.pretraining.checkpoints import open_run_folder, start_run_folder
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.pretraining.tracking import read_events
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.pretraining.run_folders import changed_weights, losses_of

OBJECTIVES = {
    "mlm": {"batch_size": 8, "max_length": 40},
    "tlm": {"batch_size": 8, "max_length": 60, "weight": 2.0, "mask_probability": 0.2},
    "dwa": {},
}
LAYERS = {"name": "layers", "steps": 2, "objectives": OBJECTIVES, "learning_rate": 1e-4, "corpora": ["en", "en-de"]}


@pytest.fixture
def settings(library_model_dir):
    """A run of four steps that continues a BERT without LM head: two of the head, two of all."""
    encoder_dir = library_model_dir("bert", AutoModel)
    phases = json.dumps([LAYERS])
    start = ["model.type=xlm_align", f"model.start_from={encoder_dir}", "model.config={hidden_dropout_prob: 0.1}"]
    evaluation = "evaluation={held_out_fraction: 0.1, max_examples: 8}"
    return [*start, f"phases={phases}", "head_phase.steps=2", evaluation, "save_every_steps=1", "keep_checkpoints=0"]


def recipe_in(folder) -> Recipe:
    return load_recipe(Recipe, folder / "recipe.yaml", [])


def test_head_phase_trains_the_head_on_the_masked_words_of_the_first_phase(recipe_file, settings):
    recipe = load_recipe(Recipe, recipe_file, [*settings, "head_phase={steps: 90, learning_rate: 0.01}"])
    recipe.check()
    changed = recipe.with_head_phase()
    head, layers = changed.phases
    assert (head.name, head.steps, head.learning_rate, head.warmup_steps) == ("head", 90, 0.01, 3)
    assert head.trainable == ["lm_head.*"]
    assert head.corpora == ["en", "en-de"]
    assert head.objectives == {name: layers.objectives[name] for name in ("mlm", "tlm")}
    assert layers == recipe.phases[0]
    assert changed.head_phase is None
    assert recipe.head_phase.steps == 90
    changed.check()


@pytest.mark.parametrize(
    "override",
    ["model.start_from=null", "phases.0.name=head", "phases.0.objectives={tlm: {batch_size: 8, weight: 0}, dwa: {}}"],
)
def test_head_phase_refuses_recipes(recipe_file, settings, override):
    recipe = load_recipe(Recipe, recipe_file, [*settings, "tokenizer=unused", override])
    with pytest.raises(ValueError, match="head_phase"):
        recipe.check()


def test_open_run_folder_keeps_to_the_phases_with_which_a_run_began(recipe_file, settings, tmp_path):
    recipe = load_recipe(Recipe, recipe_file, [*settings, f"output_dir={tmp_path / 'with'}"])
    start_run_folder(recipe.with_head_phase())
    resumed, _ = open_run_folder(recipe, resume=True)
    assert resumed == recipe.with_head_phase()
    assert open_run_folder(recipe_in(tmp_path / "with"), resume=True)[0] == resumed
    for override in ("head_phase.steps=3", "head_phase.learning_rate=1.0", "head_phase=null"):
        other = load_recipe(Recipe, recipe_file, [*settings, f"output_dir={tmp_path / 'with'}", override])
        with pytest.raises(ValueError, match=r"phases\.0"):
            open_run_folder(other, resume=True)
    recipe.output_dir = str(tmp_path / "without")
    start_run_folder(recipe)
    assert open_run_folder(recipe, resume=True)[0] == recipe


@pytest.mark.slow
def test_run_trains_a_missing_head_first_and_resumes(train, settings, cut_back, assert_same_run, tmp_path, capsys):
    train(*settings, "--dry_run")
    printed = capsys.readouterr().out
    assert printed.index("'head'") < printed.index("'layers'")
    train(*settings)
    run = tmp_path / "run"
    assert [phase.name for phase in recipe_in(run).phases] == ["head", "layers"]
    objectives = [losses_of(event) for event in read_events(run) if "loss" in event]
    assert objectives == [{"mlm", "tlm"}] * 2 + [{"mlm", "tlm", "dwa"}] * 2
    checkpoints = run / "checkpoints"
    between = checkpoints / "step-2"
    trained_first = changed_weights(checkpoints / "step-1", between)
    assert trained_first
    assert all(name.startswith("lm_head.") for name in trained_first)
    assert any(".encoder." in name for name in changed_weights(between, run))
    for step in (1, 2, 3):
        resumed = cut_back(run, step, tmp_path / f"resumed-{step}")
        train(*settings, f"output_dir={resumed}", "--resume")
        assert_same_run(resumed, run)
    again = tmp_path / "again"
    train(*settings, f"model.start_from={run / 'model'}", f"output_dir={again}")  # it has a head
    assert [phase.name for phase in recipe_in(again).phases] == ["layers"]
    assert read_events(again)[-1]["step"] == 2
    shutil.rmtree(again / "model")
    shutil.rmtree(again / "checkpoints" / "step-2")
    train(*settings, f"model.start_from={run / 'model'}", f"output_dir={again}", "--resume")
