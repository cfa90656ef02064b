"""Programs as users write them: of this zoo, they import only `crosslingual_zoo`."""

from transformers import Trainer, TrainingArguments

from crosslingual_zoo import CamlmCollator, ErnieMForPreTraining

ENGLISH = ["The house is small.", "The garden is green.", "I see the house.", "The bread is good."]
GERMAN = ["Das Haus ist klein.", "Der Garten ist grün.", "Ich sehe das Haus.", "Das Brot ist gut."]
PAIRS = [{"source": source, "target": target} for source, target in zip(ENGLISH, GERMAN, strict=True)]


def test_user_program_ernie_m_learns_camlm_in_a_trainer(zoo_model_dir, sample_tokenizer, tmp_path):
    model = ErnieMForPreTraining.from_pretrained(zoo_model_dir("ernie_m"))
    options = dict(max_steps=60, per_device_train_batch_size=4, learning_rate=3e-3, logging_steps=10)
    arguments = TrainingArguments(tmp_path, **options, remove_unused_columns=False, report_to="none", use_cpu=True)
    data = dict(train_dataset=PAIRS, eval_dataset=PAIRS, data_collator=CamlmCollator(sample_tokenizer))
    trainer = Trainer(model=model, args=arguments, **data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 6 and losses[-1] < losses[0] - 1
    assert 0 < trainer.evaluate()["eval_loss"] < losses[0]
