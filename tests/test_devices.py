"""Every tensor that a model, the training loop or the aligner makes names its device.

The tests have no GPU, which would need the names: they look at the calls that make tensors, see tests/devices.py.
"""

import pytest
import torch
from transformers import AttentionInterface

from modeling.optimal_transport import METHOD_OPTIONS, align
from modeling.symmetrization import SYMMETRIZATIONS
from modeling.word_alignment import WordAligner
from modeling.word_probabilities import word_probabilities
from pretraining import run, tracking
from pretraining.objectives import OBJECTIVES, Collator
from pretraining.training import Training
from tests.architectures import ARCHITECTURES
from tests.conftest import PREFIXES
from tests.devices import WithoutDevice, devices_are_named
from tests.modeling.tiny import MASK, batch_of, class_of, made, pair_row
from tests.pretraining.conftest import Files, write_recipe


def test_devices_are_named_finds_calls_without_a_device():
    x = torch.ones(3, device="cpu")
    with WithoutDevice((__file__,)) as mode:
        torch.arange(3, device="cpu"), torch.as_tensor(x), torch.nn.Linear(3, 3)(x)  # the last is a call of torch's own
        assert not mode.places
        torch.arange(3)
        torch.as_tensor([1])
    assert len(mode.places) == 2


# models


CODES = {"source_language": "en", "target_language": "de", "language": "en"}
TEXTS = [("The house is small .", "Das Haus ist klein .", "0-0 1-1 2-2 3-3"), ("Yes we do", "Ja .", "0-0 1p1")]
EXAMPLES = [CODES | dict(source=x, target=y, text=x, links=links) for x, y, links in TEXTS]  # of all collators


def flash_stand_in(module, query, key, value, attention_mask, scaling, dropout, **kwargs):
    """Replaces flash attention, which needs a GPU. The test covers the code before it, not its result."""
    return (query + 0 * (key.sum() + value.sum())).transpose(1, 2), None


AttentionInterface.register("flash_stand_in", flash_stand_in)
CONFIG = {
    "ernie_m": {"languages": ["en", "de"], "mask_token_id": MASK},
    "xlm_align": {"query_positions": "all_aligned"},
}
ATTENTIONS = ("eager", "sdpa", "flex_attention", "flash_stand_in")
# the last two get the lengths of sequences where padding is skipped
CASES = [(name, attention, skip) for name in PREFIXES for attention in ATTENTIONS[:2] for skip in (False, True)]
CASES += [(name, attention, True) for name in PREFIXES for attention in ATTENTIONS[2:]]
CASES += [(f"xlm_align on {name}", "sdpa", name != "deberta-v2") for name in ARCHITECTURES]
CASES += [("xlm_align on modernbert", "flex_attention", True)]


@pytest.mark.parametrize("name, attention, skip_padding", CASES)
def test_devices_of_pretraining(name, attention, skip_padding, zoo_model_dir, sample_tokenizer):
    cls = class_of(name.split()[0])
    model = cls.from_pretrained(zoo_model_dir(name, **CONFIG.get(name, {})))
    model.config._attn_implementation = attention
    model.set_skip_padding(skip_padding)
    torch.manual_seed(0)
    # kd, which needs a teacher, is in the loop below
    options = {
        "tlm": {"draws": True, "languages": ["de", "en"]},
        "btmlm": {"languages": ["de", "en"]},
        "camlm": {"languages": ["de", "en"]},
    }
    batches = {}
    for key in cls.objectives:
        if issubclass(OBJECTIVES[key], Collator):
            batches |= OBJECTIVES[key](sample_tokenizer, **options.get(key, {}))(EXAMPLES)
    if attention == "flash_stand_in":
        batches = {key: batch for key, batch in batches.items() if not OBJECTIVES[key].own_mask}
    learns = attention != "flex_attention"  # on a CPU
    model.train(learns)
    with torch.compiler.set_stance("force_eager"), torch.set_grad_enabled(learns), devices_are_named():
        output = model(**batches)
        if learns:
            output.loss.backward()
    assert set(output.token_losses) >= {"mlm", "tlm"}


HEADS = {
    "ForMaskedLM": lambda ids: {"labels": ids},
    "ForSequenceClassification": lambda ids: {"labels": ids[:, 0] % 2},
    "ForTokenClassification": lambda ids: {"labels": ids % 2},
    "ForQuestionAnswering": lambda ids: {"start_positions": ids[:, 0] % 3, "end_positions": ids[:, 1] % 3},
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("model_type", [*PREFIXES, "veco plugged in"])
def test_devices_of_heads(model_type, head, attention):
    plugged = {"plug_in": True} if "plugged" in model_type and head != "ForMaskedLM" else {}
    model = made(model_type.split()[0], head, attention, **plugged).train()
    batch = batch_of([pair_row(seed, (3 + seed, 4)) for seed in range(3)], "padded right")
    x = {name: batch[name] for name in ("input_ids", "attention_mask")}
    labels = HEADS[head](x["input_ids"])
    y = {f"translation_{name}": values for name, values in (x | labels).items()} if plugged else {}
    for skip in (False, True):
        model.set_skip_padding(skip)
        with devices_are_named():
            model(**x, **labels, **y).loss.backward()
            embedded = {"inputs_embeds": model.get_input_embeddings()(x["input_ids"])}
            model(**embedded, **labels, **{name: of for name, of in y.items() if "mask" not in name}).loss.backward()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_devices_of_generation(num_beams, attention):
    model = made("veco", "ForConditionalGeneration", attention, decoder_layers=2, decoder_layer_indices=[1, 2])
    batch = batch_of([pair_row(seed, (3 + seed, 4)) for seed in range(3)], "padded right")
    x = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with devices_are_named():
        model(**x, labels=x["input_ids"]).loss.backward()
        model.generate(**x, num_beams=num_beams)
        model.generate(encoder_outputs=model.roberta(**x), num_beams=num_beams)


# the loop


ROWS = "{batch_size: 4, max_length: 48}"
RUNS = {  # objectives, settings
    "xlm_align": (
        f"{{mlm: {ROWS}, tlm: {ROWS}, dwa: {{}}, word_links: {ROWS}}}",
        ["linked=[{source_language: en, target_language: de, path: LINKS}]", "model.skip_padding=true"],
    ),
    "metaxlm": (
        f"{{mlm: {ROWS}, tlm: {ROWS}, kd: {{}}}}",
        ["teacher={path: TEACHER, language: en}", "model.gradient_checkpointing=true"],
    ),
}


@pytest.mark.parametrize("model_type", RUNS)
def test_devices_of_steps_and_measurements_of_pretraining(
    model_type, sample_tokenizer_dir, sample_corpus_dir, zoo_model_dir, tmp_path, monkeypatch
):
    """From the first batch of a phase to its last checkpoint. What comes before is made on the CPU, and moved."""
    monkeypatch.setattr(Training, "_run_phase", devices_are_named()(Training._run_phase))
    monkeypatch.setattr(tracking, "plot_curves", lambda folder: None)
    links = Files(tmp_path).jsonl("links.jsonl", EXAMPLES * 4)
    teacher = zoo_model_dir("xlm_align", head="ForMaskedLM")
    objectives, own = RUNS[model_type]
    table = f"{{path: {sample_corpus_dir / 'en' / 'train.jsonl'}}}"
    pair = f"{{source_language: en, target_language: de, join_on: id, source: {table}, target: {table}}}"
    settings = [f"model.type={model_type}", f"bitext=[{pair}]", f"phases.0.objectives={objectives}"]
    settings += ["phases.0.steps=2", "gradient_accumulation_steps=2", "save_every_steps=1"]
    settings += ["evaluation={held_out_fraction: 0.02, max_examples: 6, every_steps: 1}"]
    settings += [setting.replace("LINKS", links).replace("TEACHER", str(teacher)) for setting in own]
    run.main(["--config", str(write_recipe(tmp_path, sample_tokenizer_dir, sample_corpus_dir)), *settings])


# the aligner


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("method", METHOD_OPTIONS)
def test_devices_of_matching(method, autocast):
    generator = torch.Generator().manual_seed(0)
    x_BSH, y_BTH = (torch.randn(3, size, 8, generator=generator) for size in (5, 6))
    masks = [torch.arange(size) < torch.tensor([[size], [2], [1]]) for size in (5, 6)]
    words = [torch.arange(size).expand(3, -1) // 2 for size in (5, 6)]
    cells_BST = torch.ones(3, 5, 6, dtype=torch.bool)
    options = [{}, {"link_all": True}, *({"symmetrization": name} for name in SYMMETRIZATIONS)]
    options = [chosen for chosen in options if chosen.keys() <= METHOD_OPTIONS[method].keys()]
    of_words = {"words": words, "cells_BST": cells_BST} if method == "ot_words" else {}
    with devices_are_named(), torch.autocast("cpu", enabled=autocast):
        for chosen in options:
            align(x_BSH, y_BTH, *masks, method, **of_words, **chosen)
            align(x_BSH.bfloat16(), y_BTH.bfloat16(), *masks, method, **chosen)
        word_probabilities(x_BSH, y_BTH, *masks, words)


@pytest.mark.parametrize("model_type", [*PREFIXES, "xlm_align on modernbert"])
def test_devices_of_the_aligner_s_vectors(model_type, zoo_model_dir, sample_tokenizer):
    """`_encode`: what comes before it is made on the CPU, by intent, as is what joins links to words after it."""
    model = class_of(model_type.split()[0]).from_pretrained(zoo_model_dir(model_type))
    aligner = WordAligner(model, sample_tokenizer)
    aligner._encode = devices_are_named()(aligner._encode)
    pairs = [("The house is small.", "Das Haus ist klein."), ("Yes", "Ja, das ist so.")]
    for layers in ([0, 1], [2]):
        assert len(list(aligner.align_layers(pairs, layers, {"mutual": {}}))) == 2
