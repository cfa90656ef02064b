"""Programs as users write them: of this zoo, they import only `crosslingual_zoo`."""

import torch
from transformers import AutoModelForMaskedLM, Trainer, TrainingArguments

from crosslingual_zoo import CamlmCollator, ErnieMForPreTraining, TlmCollator, dwa_labels, dwa_losses

PAIRS = [
    {"source": "The house is small.", "target": "Das Haus ist klein."},
    {"source": "The garden is green.", "target": "Der Garten ist grün."},
    {"source": "I see the house.", "target": "Ich sehe das Haus."},
    {"source": "The bread is good.", "target": "Das Brot ist gut."},
]


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


def test_user_program_modernbert_learns_tlm_and_dwa_in_a_plain_loop(zoo_model_dir, sample_tokenizer):
    """The encoder and its masked-LM head are the library's; the links come from its own states."""
    torch.manual_seed(0)
    folder = zoo_model_dir("xlm_align on modernbert")
    model = AutoModelForMaskedLM.from_config(ErnieMForPreTraining.config_class.from_pretrained(folder).backbone_config)
    q_linear, k_linear = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
    parameters = [*model.parameters(), *q_linear.parameters(), *k_linear.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    collate = TlmCollator(sample_tokenizer)
    history = []
    for _ in range(60):
        batch = collate(PAIRS)["tlm"]
        text = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
        with torch.no_grad():
            unmasked = model.base_model.eval()(text, attention_mask=batch["attention_mask"])
        model.train()
        labels = dwa_labels(unmasked.last_hidden_state, batch)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
        outputs = model(**inputs, output_hidden_states=True)
        found = dwa_losses(outputs.hidden_states[-1], labels, batch, q_linear, k_linear)
        dwa = found.total / max(1, len(found.losses_N))
        (outputs.loss + dwa).backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append((outputs.loss.item(), dwa.item()))
    first, last = torch.tensor(history[:10]).mean(0), torch.tensor(history[-10:]).mean(0)
    assert last[0] < first[0] - 1 and last[1] < first[1]
