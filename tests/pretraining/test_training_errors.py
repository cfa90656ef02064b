"""What a training run refuses, when it stops, and what it then leaves."""

import shutil

import pytest

from pretraining.tools.train_tokenizer import train_tokenizer
from pretraining.tracking import read_events


@pytest.mark.slow
def test_run_folder_errors(train, fails, recipe_file, tmp_path):
    assert "nothing to resume" in fails("--resume")
    train()
    assert "is not empty" in fails()
    assert "is finished" in fails("--resume")
    message = fails("--resume", "phases.0.learning_rate=0.5", "seed=3")
    assert "phases.0.learning_rate" in message and "seed" in message
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    for arguments in ([], ["--resume"]):
        assert "mine" in fails(f"output_dir={tmp_path / 'mine'}", *arguments)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    assert "recipe.yaml" in fails(f"output_dir={recipe_file}")


MLM = "learning_rate: 0.1, steps: 2, objectives: {mlm: {batch_size: 4}}"
CARRIED = f"phases=[{{name: a, {MLM}}}, {{name: b, optimizer: carried, {MLM}}}]"
VECO = ["model.type=veco", "phases.0.objectives.ca_mlm_pairs={batch_size: 4}"]
DOCUMENTS = "monolingual.0.document_column=id"


@pytest.mark.parametrize(
    "overrides, named",
    [
        (["phases.0.objectives={mlmm: {batch_size: 4}}"], "'mlmm'"),
        (["phases.0.objectives={}"], "objectives"),
        (["bitext=[]"], "`bitext`"),
        (["phases.0.warmup_steps=10"], "warmup_steps"),
        (["phases.0.optimizer=carried"], "phases.0.optimizer"),
        ([CARRIED], "phases.1.learning_rate"),
        (["optimizer.betas=[2, 3]"], "betas"),
        (["monolingual.0.size=0"], "monolingual.0.size"),
        (["tokenizer=runs/no/such/folder"], "tokenizer"),
        (["phases.0.objectives.mlm.mask_probability=1.5"], "mask_probability"),
        (["phases.0.objectives={mlm: {batch_size: 1, max_length: 64, mask_probability: 1e-7}}"], "predicts no"),
        (["model.config.hiden_size=32"], "'hidden_size'"),
        (["phases.0.trainable=['*crosattention*']"], "*crosattention*"),
        (["model.type=veco", "phases.0.trainable=['*.crossattention.*']"], "(mlm, tlm)"),
        (["phases.0.freeze_body=true", "phases.0.trainable=[roberta.encoder.*]"], "freeze_body"),
        (["phases.0.objectives.mlm.max_length=500"], "max_length is 500"),
        (["precision=fp16"], "precision"),
        (["model.attention=flash_attention_2"], "model.attention"),
        (["gradient_accumulation_steps=9"], "gradient_accumulation_steps"),
        (["evaluation.alignment=true", "evaluation.held_out_fraction=0"], "held_out_fraction"),
        (["phases.0.objectives.ca_mlm_pairs={batch_size: 4}"], "objectives.ca_mlm_pairs"),
        ([*VECO, "model.config.cross_attention=false"], "cross_attention"),
        (["phases.0.objectives.tlm.terms=[cross]"], "terms"),
        ([*VECO, "phases.0.objectives.ca_mlm_pairs.terms=[crosss]"], "terms"),
        (["monolingual.0.document_pattern=x"], "document_column"),
        ([DOCUMENTS, "monolingual.0.document_pattern='('"], "document_pattern"),
        ([DOCUMENTS, "monolingual.0.document_pattern='^zz'"], "^zz"),
    ],
)
def test_recipe_errors_name_the_field(fails, overrides, named):
    assert named in " ".join(fails(*overrides).split())


@pytest.mark.slow
def test_a_translation_model_is_no_start(train, fails, tmp_path):
    from modeling.modeling_veco import VecoForConditionalGeneration

    train("model.type=veco", "phases.0.steps=1")
    folder = tmp_path / "translation"
    VecoForConditionalGeneration.from_encoder(tmp_path / "run" / "model").save_pretrained(folder)
    start = [f"model.start_from={folder}", "model.type=veco", f"output_dir={tmp_path / 'never'}"]
    for config in ("{}", "{cross_attention: true}"):
        assert "translation model" in fails(*start, f"model.config={config}")


@pytest.mark.slow
def test_another_tokenizer_or_architecture_is_refused(train, fails, tmp_path):
    train()
    start = [f"model.start_from={tmp_path / 'run' / 'model'}", f"output_dir={tmp_path / 'never'}"]
    assert "'xlm_align'" in fails(*start, "model.type=veco")
    train_tokenizer((f"word {number}" for number in range(200)), tmp_path / "small", 40)
    assert "vocab_size" in fails(*start, f"tokenizer={tmp_path / 'small'}", "model.config={}")
    assert "another shape" in fails(*start, "model.config={intermediate_size: 48}")
    assert "model/" in fails(f"model.start_from={tmp_path / 'run'}", start[1])
    damaged = shutil.copytree(tmp_path / "run" / "model", tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:1000])
    assert str(damaged) in fails(f"model.start_from={damaged}", "model.config={}", start[1])
    assert not (tmp_path / "never").exists()
    train(start[0], "model.config={}", f"output_dir={tmp_path / 'continued'}")
    first = read_events(tmp_path / "run")[0]["loss"]
    assert read_events(tmp_path / "continued")[0]["loss"] < first


@pytest.mark.slow
def test_resuming_on_changed_text_is_refused(train, fails, tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("one line of text\nand another line\n", encoding="utf-8")
    settings = [f"monolingual=[{{language: en, path: {text}}}]", "bitext=[]", "save_every_steps=1"]
    settings.append("phases.0.objectives={mlm: {batch_size: 2, max_length: 64}}")
    train(*settings)
    shutil.rmtree(tmp_path / "run" / "model")
    text.write_text("one line of text\nand another one\n", encoding="utf-8")
    assert "corpus en changed since" in fails(*settings, "--resume")
