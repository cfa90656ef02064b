"""Training on the used rows of the word embeddings gives the model, the folder and the scores of training on all."""

import pytest
import torch
from accelerate import DistributedType
from datasets import Dataset
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from finetuning.layerwise_decay import LayerwiseDecay
from finetuning.used_rows import TrainsUsedRows, UsedRows, cannot_apply, only_rows, used_tokens
from tests.finetuning import small_models
from tests.finetuning.small_models import EACH, HEADS

VOCAB, USED, PADDING = 60, [0, 1, 2, 5, 6, 7, 9, 30, 31], 1
EMBEDDINGS = "roberta.embeddings.word_embeddings.weight"


def build(name, head=HEADS[0]):
    set_seed(3)
    return small_models.build(name, head, num_hidden_layers=3, initializer_range=0.2)


class Tokenizer:
    """The parts of a tokenizer that a Trainer uses."""

    all_special_ids = [0, PADDING, 2]

    def save_pretrained(self, folder):
        pass


class SmallTrainer(TrainsUsedRows, LayerwiseDecay, Trainer):
    """Composed like the Trainer of a run."""


def rows_of(head):
    """Training rows of the tokens USED, in two of which one side is padded."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(12):
        ids = [USED[i] for i in torch.randint(3, len(USED), (5 + number % 2,), generator=generator)]
        ids = [0, *ids, 2] + [PADDING] * (1 - number % 2)
        row = {"input_ids": ids, "attention_mask": [int(token != PADDING) for token in ids]}
        if head == HEADS[0]:
            row |= {"labels": number % 3}
        elif head == HEADS[1]:
            row |= {"labels": [token % 3 if token != PADDING else -100 for token in ids]}
        else:
            row |= {"start_positions": 1 + number % 3, "end_positions": 2 + number % 3}
        rows.append(row)
    return Dataset.from_list(rows)


def trainer_of(folder, head=HEADS[0], used_rows_only=True, model=None, decay=1.0, **arguments):
    settings = dict(
        output_dir=str(folder),
        max_steps=6,
        per_device_train_batch_size=4,
        learning_rate=3e-2,
        warmup_steps=2,
        adam_epsilon=1e-3,  # a gradient of nothing but rounding error, as of what softmax does not see, moves nothing
        save_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = SmallTrainer(
        model=model or build("veco", head),
        args=TrainingArguments(**settings | arguments),
        train_dataset=rows_of(head),
        processing_class=Tokenizer(),
        data_collator=lambda rows: {name: torch.tensor([row[name] for row in rows]) for name in rows[0]},
    )
    trainer.used_rows_only, trainer.layerwise_decay = used_rows_only, decay
    return trainer


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "head"), EACH)
def test_checkpoints_and_model_are_those_of_training_all_rows(name, head, tmp_path):
    settings = dict(weight_decay=0.1, max_grad_norm=0.5, gradient_accumulation_steps=2, decay=0.8)
    models = {}
    for only in (True, False):
        model = models[only] = build(name, head)
        embedding = model.get_input_embeddings()
        before = model.roberta.embeddings.word_embeddings.weight.detach().clone()
        trainer = trainer_of(tmp_path / str(only), head, only, model, **settings)
        trainer.train()
        trainer.save_model(str(tmp_path / str(only) / "model"))
        assert model.get_input_embeddings() is embedding
        assert all(parameter.requires_grad for parameter in model.parameters())
    for folder in ("checkpoint-3", "checkpoint-6", "model"):
        ours, full = (weights(tmp_path / str(only) / folder) for only in (True, False))
        torch.testing.assert_close(ours, full, rtol=2e-5, atol=1e-6)
        assert ours.keys() == full.keys()
    unused = [row for row in range(VOCAB) if row not in USED]
    # those without gradient have decayed, and are no fixed share of the used ones, which have moved
    shares = ours[EMBEDDINGS][unused] / before[unused]
    assert 0.9 < shares.min() and shares.max() < 1 - 1e-4 and shares.max() - shares.min() < 1e-5
    assert (ours[EMBEDDINGS][USED[3:]] / before[USED[3:]] - shares.mean()).abs().max() > 0.1
    state = torch.load(tmp_path / "True" / "checkpoint-6" / "optimizer.pt", weights_only=True)["state"]
    shapes = {tuple(values["exp_avg"].shape) for values in state.values()}
    assert (len(USED), 8) in shapes and (VOCAB, 8) not in shapes
    same = [model.state_dict().keys() for model in models.values()]
    assert same[0] == same[1]


def test_without_clipping_and_weight_decay_every_weight_is_equal_to_the_last_bit(tmp_path):
    for only in (True, False):
        trainer_of(tmp_path / str(only), used_rows_only=only, max_grad_norm=0.0).train()
    ours, full = (weights(tmp_path / str(only) / "checkpoint-6") for only in (True, False))
    assert all(torch.equal(ours[name], full[name]) for name in full)


def test_a_run_that_is_resumed_ends_with_the_same_weights(tmp_path):
    trainer_of(tmp_path / "whole", weight_decay=0.1).train()
    whole = weights(tmp_path / "whole" / "checkpoint-6")
    trainer_of(tmp_path / "again", weight_decay=0.1).train(
        resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3")
    )
    again = weights(tmp_path / "again" / "checkpoint-6")
    torch.testing.assert_close(again, whole, rtol=0, atol=1e-7)  # the others' decay is rounded where it is saved


def test_what_is_not_trained_on_is_evaluated_as_with_all_rows(tmp_path):
    """Tokens of other languages, in the middle of training."""

    class Read(TrainerCallback):
        def __init__(self):
            self.logits = []

        def on_step_end(self, args, state, control, model, **kwargs):
            was_training = model.training
            model.eval()
            with torch.no_grad():
                self.logits.append(model(torch.tensor([[0, 50, 30, 51, 2]])).logits)
            model.train(was_training)

    found = []
    for only in (True, False):
        trainer, read = trainer_of(tmp_path, used_rows_only=only, weight_decay=0.3, save_strategy="no"), Read()
        trainer.add_callback(read)
        trainer.train()
        found.append(torch.stack(read.logits))
    torch.testing.assert_close(*found, rtol=2e-5, atol=1e-6)
    assert found[0].std(0).max() > 1e-3, "they change from step to step"


def test_a_token_that_is_not_used_is_an_error_in_training_and_read_in_evaluation():
    model = build("veco")
    unused = torch.tensor([[0, 50, 2]])
    with only_rows(model, torch.tensor(USED)):
        expected = model.eval()(unused).logits
        with pytest.raises(IndexError):
            model.train()(unused)
    torch.testing.assert_close(model.eval()(unused).logits, expected, rtol=0, atol=0)


def test_an_update_that_loss_scaling_leaves_out_decays_nothing():
    used = UsedRows(torch.nn.Embedding(4, 2), torch.tensor([1]))
    optimizer = torch.optim.AdamW([{"params": [used.rows], "lr": 0.5, "weight_decay": 0.5}], fused=True)
    used.follow(optimizer)
    used.rows.grad = torch.ones_like(used.rows)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert used.decay == 1.0
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert used.decay == 0.75
    first = used.weight[0].clone()
    used.eval()
    torch.testing.assert_close(used.weight[0], first * 0.75, rtol=0, atol=0)
    assert used.decay == 1.0


def test_the_state_is_that_of_ordinary_embeddings_and_strictly_loaded():
    ordinary = torch.nn.Embedding(4, 2, padding_idx=1)
    used = UsedRows(torch.nn.Embedding(4, 2, padding_idx=1), torch.tensor([1, 3]))
    used.load_state_dict(ordinary.state_dict())
    torch.testing.assert_close(used.rows.detach(), ordinary.weight[[1, 3]].detach(), rtol=0, atol=0)
    assert list(used.state_dict()) == ["weight"]
    with pytest.raises(RuntimeError, match="Missing key.*weight"):
        used.load_state_dict({})
    with torch.no_grad():
        used.rows[1] = 7.0
    assert used.state_dict()["weight"][3].tolist() == [7.0, 7.0]
    used(torch.tensor([[1, 3]])).sum().backward()
    assert used.rows.grad.tolist() == [[0.0, 0.0], [1.0, 1.0]], "padding learns nothing"


def test_tokens_of_rows_and_of_their_translations_are_found_also_of_a_selection():
    rows = [{"input_ids": [1, 2], "translation_input_ids": [7]}, {"input_ids": [3], "translation_input_ids": [8, 9]}]
    dataset = Dataset.from_list(rows)
    assert used_tokens(dataset, 11).nonzero()[0].tolist() == [1, 2, 3, 7, 8, 9]
    assert used_tokens(dataset.select([1]), 11).nonzero()[0].tolist() == [3, 8, 9]


def test_where_it_cannot_apply_all_rows_are_trained_and_it_is_said_why():
    alone, share = DistributedType.NO, 0.1
    model = build("veco")
    assert cannot_apply(model, alone, share) is None
    assert "divides them" in cannot_apply(model, DistributedType.FSDP, share)
    assert "would save no memory" in cannot_apply(model, alone, 0.8)
    model.get_input_embeddings().weight.requires_grad = False
    assert "frozen" in cannot_apply(model, alone, share)
    tied = build("veco", "ForMaskedLM")
    assert "another layer shares them" in cannot_apply(tied, alone, share)

    class Scaled(torch.nn.Embedding):
        def forward(self, input):
            return 3 * super().forward(input)

    model.set_input_embeddings(Scaled(VOCAB, 8))
    assert "Scaled does more than look up rows" in cannot_apply(model, alone, share)


def test_a_model_without_rows_for_tokens_and_special_tokens_without_rows_are_trained_as_ever(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path, save_strategy="no")
    monkeypatch.setattr(trainer.processing_class, "all_special_ids", [0, PADDING, 2, VOCAB])
    trainer.train()

    def none(self):
        raise NotImplementedError

    other = trainer_of(tmp_path, save_strategy="no")
    monkeypatch.setattr(type(other.model), "get_input_embeddings", none)
    other.train()
    ours, full = (dict(of.model.named_parameters()) for of in (trainer, other))
    torch.testing.assert_close(ours, full, rtol=2e-5, atol=1e-6)
