"""Without computing at padding, the numbers are those of the padded batch: every model, objective, mask and layout."""

import pytest
import torch

from crosslingual_zoo.modeling.attention_masks import Packing, btmlm_generation_mask, camlm_mask
from crosslingual_zoo.modeling.modeling_veco import VecoForConditionalGeneration
from tests.modeling.tiny import LAYOUTS, MASK, batch_of, gradients, made, pair_row

PAIRS = [(5, 7), (12, 3), (6, 6), (2, 14), (9, 8), (1, 1), (5, 7)]  # tokens of both sides
MODELS = {
    "metaxlm": {},
    "veco": {},
    "veco causal": {"cross_stream": "causal"},
    "ernie_m": {"languages": ["en", "de"], "mask_token_id": MASK},
    "xlm_align": {"alignment_layer": 2},
    "xlm_align lower": {"alignment_layer": 2, "dwa_layer": 2},
}
OBJECTIVES = {
    "metaxlm": ["mlm", "tlm"],
    "veco": ["mlm", "tlm", "ca_mlm_pairs", "ca_mlm_segments"],
    "veco causal": ["ca_mlm_pairs"],
    "ernie_m": ["tlm", "camlm", "btmlm"],
    "xlm_align": ["tlm"],
    "xlm_align lower": ["tlm"],
}
CASES = [(model, objective) for model, names in OBJECTIVES.items() for objective in names]


def build(name, attention="sdpa", head="ForPreTraining", **config):
    return made(name.split()[0], head, attention, **MODELS[name] | config)


def row(seed, *sides, predicted=2):
    """Every third token of the first `predicted` sides is masked, except for a side of one token."""
    masked, start = [], 1
    for side in sides[:predicted]:
        masked += range(start, start + side, 3) if side > 1 else ()
        start += side + 2
    pseudo = [[MASK] * side for side in sides[predicted:]]
    return pair_row(seed, [*sides[:predicted], *pseudo], masked, languages=(0, 1))


def sub_batch(objective, layout, seed=0):
    if objective.startswith("ca_mlm"):
        x, y = (
            batch_of([row(10 * seed + i, pair[side]) for i, pair in enumerate(PAIRS[:5], 5 * side)], layout)
            for side in (0, 1)
        )
        return {"x": x, "y": y}
    sides = [[sum(pair)] for pair in PAIRS] if objective == "mlm" else PAIRS
    if objective == "camlm":  # every side keeps a token to be read
        sides = [pair for pair in sides if min(pair) > 1]
    predicted = 1 if objective == "btmlm" else 2
    batch = batch_of([row(10 * seed + i, *pair, predicted=predicted) for i, pair in enumerate(sides)], layout)
    if objective == "camlm":
        batch["attention_mask"] = camlm_mask(batch["attention_mask"], batch["segment_ids"], batch["labels"] != -100)
    if objective == "btmlm":
        batch["generation_mask"] = btmlm_generation_mask(batch["attention_mask"], batch["segment_ids"])
    return batch


def run(model, **batches):
    """Loss, token losses and gradients."""
    output = model(**batches)
    return {"loss": output.loss_sum.detach(), **output.token_losses}, gradients(model, output.loss_sum)


def real_positions(model):
    """How many positions each feed-forward block is given, from now on."""
    seen = []
    for layer in model.roberta.encoder.layer:
        layer.intermediate.register_forward_hook(lambda _, args, __: seen.append(args[0].numel() // args[0].shape[-1]))
    return seen


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name, objective", CASES)
def test_skip_padding_losses_and_gradients_are_those_of_the_padded_batch(name, objective, layout):
    model, batch = build(name), sub_batch(objective, layout)
    losses, learned = run(model, **{objective: batch})
    model.set_skip_padding(True)
    seen = real_positions(model)
    skipped_losses, skipped_gradients = run(model, **{objective: batch})
    torch.testing.assert_close(skipped_losses, losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(skipped_gradients, learned, rtol=1e-4, atol=1e-5)
    fields = [batch["x"], batch["y"]] if "x" in batch else [batch]
    masks = [side["attention_mask"] for side in fields]
    real = sum(int((mask if mask.dim() == 2 else mask.any(1)).sum()) for mask in masks)
    assert real <= min(seen) and max(seen) <= len(masks) * len(masks[0]) * max(mask.shape[1] for mask in masks)


@pytest.mark.parametrize("attention", ["eager", "flex_attention"])
@pytest.mark.parametrize("name, objective", [case for case in CASES if case[0] != "veco causal"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_skip_padding_attention_implementations_agree(name, objective, layout, attention):
    batch = {objective: sub_batch(objective, layout)}
    with torch.no_grad():
        expected = build(name)(**batch).token_losses
        model = build(name, attention)
        model.set_skip_padding(True)
        torch.testing.assert_close(model(**batch).token_losses, expected, rtol=1e-5, atol=1e-5)


def inputs(layout="padded right"):
    batch = sub_batch("mlm", layout)
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_skip_padding_same_states_and_zero_at_padding(layout):
    model, batch = build("metaxlm", head="Model"), inputs(layout)
    ids, real = batch["input_ids"], batch["attention_mask"].bool()
    holes, no_tokens, no_padding = (real.clone() for _ in range(3))
    no_padding[:] = holes[:] = True
    holes[0, 5] = no_tokens[1] = False  # rows cannot be fewer, and span heads read the state at padding; an empty row
    for mask in (real, holes, no_tokens, no_padding):
        model.set_skip_padding(False)
        expected = model(ids, attention_mask=mask.long(), output_hidden_states=True)
        model.set_skip_padding(True)
        found = model(ids, attention_mask=mask.long(), output_hidden_states=True)
        assert len(found.hidden_states) == 4 and found.hidden_states[-1] is found.last_hidden_state
        for state, other in zip(found.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(state[mask], other[mask], rtol=1e-5, atol=1e-5)
            assert not state[~mask].any()
    assert torch.equal(model(ids).last_hidden_state, found.last_hidden_state)
    lower = model(ids, attention_mask=no_padding, num_layers=1, return_dict=False)
    assert isinstance(lower, tuple)
    torch.testing.assert_close(lower[0], found.hidden_states[1])
    # weights of attention have no place among flat positions: the padded way is taken
    model.set_attn_implementation("eager")
    assert model(**batch, output_attentions=True).attentions[0].shape[-1] == real.shape[1]


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (3, 10), (3, 1, 1, 6), (3, 6, 7)])
def test_skip_padding_refuses_masks_of_other_shapes(shape, skip):
    """They would select other positions, without an error."""
    model = build("metaxlm", head="Model")
    model.set_skip_padding(skip)
    mask = torch.ones(shape, dtype=torch.bool if len(shape) > 2 else torch.long)
    mask[1, ..., 3:] = 0
    with pytest.raises((ValueError, RuntimeError)):
        model(torch.randint(5, MASK, (3, 6)), attention_mask=mask)


def test_skip_padding_heads_and_translation_are_the_same(tmp_path):
    build("veco").save_pretrained(tmp_path)
    x, y = inputs(), sub_batch("tlm", "padded right")
    masked_lm = build("metaxlm", head="ForMaskedLM")
    plugged = build("veco", head="ForTokenClassification", plug_in=True)
    translator = VecoForConditionalGeneration.from_encoder(tmp_path, decoder_layers=2).eval()
    real = x["attention_mask"].bool()
    other = {"translation_input_ids": y["input_ids"], "translation_attention_mask": y["attention_mask"]}
    calls = {
        "masked_lm": lambda: masked_lm(**x).logits[real],
        "plugged": lambda: plugged(**x, **other).logits[real],
        "translation": lambda: translator(**x, labels=y["labels"].clamp(min=-100)).loss,
    }
    expected = {name: call().detach() for name, call in calls.items()}
    for model in (masked_lm, plugged, translator):
        model.set_skip_padding(True)
    found = {name: call().detach() for name, call in calls.items()}
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    generated = translator.generate(**x, max_new_tokens=6, num_beams=2)
    translator.set_skip_padding(False)
    assert torch.equal(generated, translator.generate(**x, max_new_tokens=6, num_beams=2))


@torch.no_grad()
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["metaxlm", "ernie_m", "veco"])
def test_first_states_of_the_first_real_position(name, layout, skip):
    """ERNIE-M's through its pooler, VECO's plugged in."""
    model = build(name, head="ForSequenceClassification", **{"plug_in": True} if name == "veco" else {})
    sides = {"": [row(length, length) for length in (3, 8, 5)]}
    if name == "veco":
        sides["translation_"] = [row(length, length) for length in (6, 2, 4)]
    read = ("input_ids", "attention_mask")

    def fields(layout, rows=slice(None)):
        batches = {prefix: batch_of(examples[rows], layout) for prefix, examples in sides.items()}
        return {prefix + field: batch[field] for prefix, batch in batches.items() for field in read if field in batch}

    alone = torch.cat([model(**fields("padded right", slice(text, text + 1))).logits for text in range(3)])
    batch = fields(layout)
    model.set_skip_padding(skip)
    torch.testing.assert_close(model(**batch).logits, alone, atol=1e-5, rtol=0)
    assert alone.std(0).min() > 1e-3, "all texts have the same logits"


def test_skip_padding_gradient_checkpointing_and_bf16_autocast():
    for name, objective in (("veco", "ca_mlm_pairs"), ("xlm_align", "tlm")):
        model, batch = build(name).train(), {objective: sub_batch(objective, "padded right")}
        model.set_skip_padding(True)
        expected = run(model, **batch)
        # renamed in transformers 5.2x; the lower end of our range knows the old names only
        for switch in ("enable", "disable"):
            name = f"activation_checkpointing_{switch}"
            getattr(model, name if hasattr(model, name) else f"gradient_checkpointing_{switch}")()
            torch.testing.assert_close(run(model, **batch), expected, rtol=1e-5, atol=1e-6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = run(model, **batch)[0]["loss"]
        assert abs(low / expected[0]["loss"] - 1) < 0.02


def test_packing_rows_are_nearly_full():
    generator = torch.Generator().manual_seed(0)
    for longest in (12, 60, 200):
        is_real = torch.arange(longest) < torch.randint(3, longest, (16, 1), generator=generator)
        is_real[3] = is_real[3].flip(0)
        rows, width = Packing(is_real.numpy(), is_real.device).shape
        assert rows * width < 1.1 * is_real.sum() and width < 4 * longest
