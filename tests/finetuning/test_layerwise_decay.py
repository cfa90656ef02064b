"""Layer-wise decay against the formula's rates: every parameter of every model and head, also resumed."""

import importlib
import re

import pytest
import torch
from transformers import Trainer, TrainingArguments

from crosslingual_zoo.finetuning.layerwise_decay import LayerwiseDecay, layer_scales
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.tasks.translation.trainer import TranslationTrainer
from crosslingual_zoo.finetuning.trainer import FineTuningTrainer

MODELS = {"veco": "Veco", "ernie_m": "ErnieM", "xlm_align": "XlmAlign", "metaxlm": "MetaXlm"}
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
EACH = list(zip(MODELS, (*HEADS, HEADS[0]), strict=True))  # every model, and every head
DECAY, DEPTH = 0.8, 12


def build(name, head=HEADS[0], **fields):
    """A model with random weights; `fields` are those of its configuration."""
    sizes = dict(vocab_size=60, hidden_size=8, num_attention_heads=2, intermediate_size=16, max_position_embeddings=20)
    if name == "ernie_m":
        sizes |= {"languages": ["en", "de", "fr"], "mask_token_id": 49}
    module = importlib.import_module(f"crosslingual_zoo.modeling.modeling_{name}")
    cls = getattr(module, MODELS[name] + head)
    return cls(cls.config_class(**sizes | {"num_labels": 3, "num_hidden_layers": DEPTH} | fields))


class DecayTrainer(LayerwiseDecay, Trainer):
    layerwise_decay = DECAY


def expected_scale(name):
    """The formula, by the names of the layout; an unknown name fails."""
    if match := re.match(r"roberta\.encoder\.layer\.(\d+)\.", name):
        return DECAY ** (DEPTH - int(match[1]))
    # "embedding" in the authors' names, where this LayerNorm is `pre_encoder_layer_norm`
    if "_embeddings." in name:
        return DECAY ** (DEPTH + 1)
    others = ("roberta.embeddings.LayerNorm.", "roberta.pooler.", "classifier.", "qa_outputs.")
    assert name.startswith(others), name
    return 1.0


def trainer_of(model, folder, **fields):
    arguments = dict(learning_rate=1e-3, weight_decay=0.01, warmup_steps=4, use_cpu=True, report_to=[])
    return DecayTrainer(model=model, args=TrainingArguments(output_dir=str(folder), **arguments | fields))


def rates(trainer):
    """Learning rate and weight decay of each parameter by its name; each is in one group."""
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    listed = [(names[id(p)], group) for group in trainer.optimizer.param_groups for p in group["params"]]
    rate_by_name = {name: (group["lr"], group["weight_decay"]) for name, group in listed}
    assert len(listed) == len(rate_by_name) == len(names)
    return rate_by_name


@pytest.mark.parametrize(("name", "head"), EACH)
def test_create_optimizer_has_the_formulas_rates(name, head, tmp_path):
    trainer = trainer_of(build(name, head), tmp_path)
    plain = Trainer(model=trainer.model, args=trainer.args)
    trainer.create_optimizer_and_scheduler(num_training_steps=10)
    plain.create_optimizer_and_scheduler(num_training_steps=10)
    for step in range(11):
        head_rate = 1e-3 * (step / 4 if step < 4 else (10 - step) / 6)  # linear warm-up, linear decay
        undecayed = rates(plain)
        for parameter, (rate, weight_decay) in rates(trainer).items():
            assert rate == pytest.approx(head_rate * expected_scale(parameter)), (step, parameter)
            assert weight_decay == undecayed[parameter][1]
        for made_trainer in (trainer, plain):
            made_trainer.optimizer.step()
            made_trainer.lr_scheduler.step()
    rate_by_name = rates(trainer)
    assert {weight_decay for _, weight_decay in rate_by_name.values()} == {0.0, 0.01}
    assert ("roberta.language_embeddings.weight" in rate_by_name) == (name == "ernie_m")


@pytest.mark.parametrize(
    ("decoder", "indices"),
    [
        (dict(decoder_layers=3, decoder_layer_selection="last", tie_decoder=True), [9, 10, 11]),
        (dict(decoder_layers=3, decoder_layer_selection="last", tie_decoder=False), [9, 10, 11]),
        (dict(decoder_layers=2, decoder_layer_selection="first", tie_decoder=False), [0, 1]),
    ],
)
def test_layer_scales_of_a_decoder(decoder, indices, tmp_path):
    build("veco", "ForPreTraining").save_pretrained(tmp_path)
    from crosslingual_zoo.modeling.modeling_veco import VecoForConditionalGeneration

    model = VecoForConditionalGeneration.from_encoder(str(tmp_path), **decoder)
    scales = layer_scales(model, DECAY)
    seen = set()
    for name, parameter in model.named_parameters():
        if match := re.match(r"decoder\.layer\.(\d+)\.", name):
            expected = DECAY ** (DEPTH - indices[int(match[1])])
            seen.add(int(match[1]))
        else:
            expected = 1.0 if name.startswith("lm_head.") else expected_scale(name)
        assert scales[id(parameter)] == pytest.approx(expected), name
    assert seen == set(range(len(indices)))
    # tied to the embeddings: one weight, one rate
    tied = model.get_output_embeddings().weight
    assert scales[id(tied)] == pytest.approx(DECAY ** (DEPTH + 1))


@pytest.mark.parametrize("backbone", ["modernbert", "eurobert", "deberta-v2"])
def test_layer_scales_of_other_architectures(backbone, zoo_model_dir):
    from crosslingual_zoo.modeling.modeling_metaxlm import MetaXlmForTokenClassification

    model = MetaXlmForTokenClassification.from_pretrained(zoo_model_dir(f"metaxlm on {backbone}"))
    scales = layer_scales(model, DECAY)
    seen = set()
    for name, parameter in model.named_parameters():
        layer = re.search(r"\.layers?\.(\d)\.", name)
        is_decayed = "embed" in name and "norm" not in name.lower()  # other norms learn with the head
        depth = int(layer[1]) if layer else -1 if is_decayed else 2
        assert scales[id(parameter)] == pytest.approx(DECAY ** (2 - depth)), name
        seen.add(depth)
    assert seen == {-1, 0, 1, 2}


def test_layer_scales_refuses_unknown_names():
    flat = torch.nn.Linear(2, 2)
    flat.config = build("veco", num_hidden_layers=1).config
    with pytest.raises(ValueError, match="layerwise_decay is 0.8, and Linear"):
        layer_scales(flat, DECAY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "trainer_class", "name", "expected"),
    [
        ("captions", TranslationTrainer, "decoder.layer.0.crossattention.output.dense.weight", 0.25e-2),
        ("topics", FineTuningTrainer, "classifier.out_proj.weight", 1e-2),
    ],
)
def test_run_decays(kind, trainer_class, name, expected, request, monkeypatch):
    seen = []
    create = trainer_class.create_optimizer

    def watched(self, model=None):
        optimizer = create(self, model)
        seen.append(rates(self))
        return optimizer

    monkeypatch.setattr(trainer_class, "create_optimizer", watched)
    short = "max_steps=1 layerwise_decay=0.5 weight_decay=0.1 learning_rate=1e-2".split()
    main([*request.getfixturevalue(kind), "seeds=[1]", *(f"training.{field}" for field in short)])
    assert seen[0][name] == (pytest.approx(expected), 0.1)
    assert seen[0]["roberta.embeddings.word_embeddings.weight"] == (pytest.approx(0.125e-2), 0.1)
