"""What a training run refuses, when it stops, and what it then leaves."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from pretraining.checkpoints import newest_checkpoint
from pretraining.tracking import read_events


def test_run_folder_errors(train, fails, recipe_file, tmp_path):
    assert "nothing to resume" in fails("--resume")
    train()
    assert "is not empty" in fails()
    assert "is finished" in fails("--resume")
    message = fails("--resume", "phases.0.learning_rate=0.5", "seed=3")
    assert "phases.0.learning_rate: 0.001 -> 0.5" in message and "seed: 1 -> 3" in message
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert "is not empty" in fails(f"output_dir={tmp_path / 'mine'}")
    assert "not a run folder" in fails(f"output_dir={tmp_path / 'mine'}", "--resume")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    assert "is a file" in fails(f"output_dir={recipe_file}")


def test_recipe_errors(fails):
    def message(*arguments):
        return fails(*arguments)

    assert "learning_rate" in message("phases.0.learning_rat=1")
    assert "phases.0.steps" in message("phases.0.steps=ten")
    assert "no objective 'mlmm'" in message("phases.0.objectives={mlmm: {batch_size: 4}}")
    assert "lists no corpus" in message("bitext=[]")
    assert "evaluation.batch_size" in message("evaluation.batch_size=0")
    assert "keep_checkpoints" in message("keep_checkpoints=-1")
    assert "peak rate would never be reached" in message("phases.0.warmup_steps=10")
    assert "phases.0.learning_rate" in message("phases.0.learning_rate=null")
    assert "phases.0.optimizer" in message("phases.0.optimizer=carried")
    body = "steps: 2, objectives: {mlm: {batch_size: 4}}"
    for field in ("learning_rate: 0.1", "warmup_steps: 1", "schedule: cosine"):
        second = f"{{name: b, optimizer: carried, {field}, {body}}}"
        named = message(f"phases=[{{name: a, learning_rate: 0.001, {body}}}, {second}]")
        assert f"phases.1.{field.partition(':')[0]}" in named
    assert "betas" in message("optimizer.betas=[2, 3]")
    assert "seed" in message("seed=-1")
    assert "monolingual.0.size" in message("monolingual.0.size=0")
    assert "is not there" in message("tokenizer=runs/no/such/folder")
    assert "nothing would be learned" in message("phases.0.objectives={}")
    assert "phases is empty" in message("phases=[]")
    assert "mask_probability" in message("phases.0.objectives.mlm.mask_probability=1.5")
    assert "'hidden_size'" in message("model.config.hiden_size=32")
    assert "matches no parameter" in message("phases.0.trainable=['*crosattention*']")
    assert "128 positions" in message("phases.0.objectives.mlm.max_length=500")
    assert "no GPU" in message("precision=fp16")
    assert "no backward pass on a CPU" in message("model.attention=flex_attention")
    assert "use sdpa" in message("model.attention=flash_attention_2")
    assert "names no tokenizer" in message("tokenizer=null")
    assert "Lower it" in message("model.config.max_position_embeddings=60")
    assert "gradient_accumulation_steps" in message("gradient_accumulation_steps=9")
    assert "held_out_fraction keeps none" in message("evaluation.alignment=true", "evaluation.held_out_fraction=0")
    only_text = ("bitext=[]", "phases.0.objectives={mlm: {batch_size: 4}}")
    assert "`bitext` lists none" in message("evaluation.alignment=true", *only_text)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["phases.0.objectives.ca_mlm_pairs={batch_size: 4}"], "a 'xlm_align' model does not have this objective"),
        (
            [
                "phases.0.objectives.ca_mlm_pairs={batch_size: 4}",
                "model.type=veco",
                "model.config.cross_attention=false",
            ],
            "needs cross-attention",
        ),
        (["phases.0.objectives.tlm.terms=[cross]"], "tlm has no terms to choose from"),
        (
            ["phases.0.objectives.ca_mlm_pairs={batch_size: 4, terms: [crosss]}", "model.type=veco"],
            "the terms of ca_mlm_pairs are inner, cross",
        ),
        (["monolingual.0.document_pattern=x"], "it needs document_column"),
        (["monolingual.0.document_column=id", "monolingual.0.document_pattern='('"], "no regular expression"),
        (["monolingual.0.document_column=id", "monolingual.0.document_pattern='^zz'"], "matches nothing in"),
        (
            ["model.type=veco", "phases.0.trainable=['*.crossattention.*']"],
            "its losses (mlm, tlm) pass through none of these parameters",
        ),
    ],
)
def test_veco_recipe_errors(fails, overrides, message):
    assert message in " ".join(fails(*overrides).split())


def test_a_translation_model_is_no_start(train, fails, tmp_path):
    from modeling.modeling_veco import VecoForConditionalGeneration

    train("model.type=veco", "phases.0.steps=1")
    folder = tmp_path / "translation"
    VecoForConditionalGeneration.from_encoder(tmp_path / "run" / "model").save_pretrained(folder)
    start = [f"model.start_from={folder}", "model.type=veco", f"output_dir={tmp_path / 'never'}"]
    for config in ("{}", "{cross_attention: true}"):
        assert "is a translation model" in fails(*start, f"model.config={config}")


def test_another_tokenizer_or_architecture_is_refused(train, fails, tmp_path, sample_tokenizer_dir):
    train()
    start = f"model.start_from={tmp_path / 'run' / 'model'}"
    message = fails(start, "model.type=veco", f"output_dir={tmp_path / 'other'}")
    assert "is a checkpoint of 'xlm_align'" in message
    from pretraining.tools.train_tokenizer import train_tokenizer

    train_tokenizer((f"word {number}" for number in range(200)), tmp_path / "small", 40)
    message = fails(start, f"tokenizer={tmp_path / 'small'}", "model.config={}", f"output_dir={tmp_path / 'o'}")
    assert "tokens and the checkpoint" in message
    message = fails(start, "model.config={intermediate_size: 48}", f"output_dir={tmp_path / 'shape'}")
    assert "other shapes than model.config asks for" in message
    run_folder = [f"model.start_from={tmp_path / 'run'}", f"output_dir={tmp_path / 'never'}"]
    assert "keeps its model in model/" in fails(*run_folder)
    damaged = shutil.copytree(tmp_path / "run" / "model", tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:1000])
    message = fails(f"model.start_from={damaged}", "model.config={}", f"output_dir={tmp_path / 'never'}")
    assert "damaged or incomplete" in message and not (tmp_path / "never").exists()
    train(start, "model.config={}", f"output_dir={tmp_path / 'continued'}")
    first = read_events(tmp_path / "run")[0]["loss"]
    assert read_events(tmp_path / "continued")[0]["loss"] < first


def test_divergence_stops_and_keeps_the_last_good_checkpoint(fails, tmp_path):
    message = fails(
        "phases.0.learning_rate=1e30",
        "phases.0.steps=8",
        "log_every_steps=8",
        "save_every_steps=1",
        "phases.0.warmup_steps=1",
    )
    assert "diverged" in message and "model.start_from=" in message
    assert all(
        torch.isfinite(tensor).all()
        for tensor in load_file(newest_checkpoint(tmp_path / "run") / "model" / "model.safetensors").values()
    )


def test_resuming_on_changed_text_is_refused(train, fails, tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("one line of text\nand another line\n", encoding="utf-8")
    corpus = f"monolingual=[{{language: en, path: {text}}}]"
    only = "phases.0.objectives={mlm: {batch_size: 2, max_length: 64}}"
    train(corpus, only, "save_every_steps=1", "bitext=[]")
    shutil.rmtree(tmp_path / "run" / "model")
    text.write_text("one line of text\nand another one\n", encoding="utf-8")
    message = fails(corpus, only, "save_every_steps=1", "bitext=[]", "--resume")
    assert "corpus en changed since" in message


def test_an_update_that_predicts_nothing_is_an_error(fails, tmp_path):
    message = fails(
        "phases.0.objectives={mlm: {batch_size: 1, max_length: 64, mask_probability: 0.0000001}}",
    )
    assert "predicts nothing" in message and "mask_probability" in message
