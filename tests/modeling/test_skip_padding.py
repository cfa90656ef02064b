"""Without computing at padding, the numbers are those of the padded batch: every model, objective, mask and layout."""

import pytest
import torch
from torch.nn import functional as F

from modeling.attention_masks import btmlm_generation_mask, camlm_mask
from modeling.modeling_veco import VecoForConditionalGeneration
from tests.modeling.tiny import MASK, PADDING, SIZES, gradients, made

PAIRS = [(5, 7), (12, 3), (6, 6), (2, 14), (9, 8), (1, 1), (5, 7)]  # tokens of both sides
SIZES = SIZES | dict(max_position_embeddings=80)
MODELS = {
    "metaxlm": {},
    "veco": {},
    "veco causal": {"cross_stream": "causal"},
    "ernie_m": {"num_languages": 2, "mask_token_id": MASK},
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
LAYOUTS = ("padded on the right", "padded on the left", "packed")
PLUGGED_IN = ("veco", "packed")  # takes no block masks


def build(name, attention="sdpa", head="ForPreTraining", **config):
    return made(name.split()[0], head, attention, **SIZES | MODELS[name] | config)


def row(sides, generator, pseudo=False):
    """Fields of `<s> x </s>` or `<s> x </s></s> y </s>`, every third token masked, of the first side where `pseudo`."""
    ids, segments, special = [], [], []
    for number, length in enumerate(sides):
        tokens = torch.randint(5, MASK, (length,), generator=generator).tolist()
        ids += [0 if number == 0 else 2, *tokens, 2]
        segments += [number] * (length + 2)
        special += [1, *[0] * length, 1]
    ids, segments, special = (torch.tensor(values) for values in (ids, segments, special))
    labels = torch.full_like(ids, -100)
    for number in range(len(sides)):
        words = ((segments == number) & (special == 0)).nonzero()[:, 0]
        if pseudo and number == 1:
            ids[words] = MASK
        elif len(words) > 1:
            labels[words[::3]] = ids[words[::3]]
            ids[words[::3]] = MASK
    return {
        "input_ids": ids,
        "labels": labels,
        "segment_ids": segments,
        "special_tokens_mask": special,
        "language_ids": segments.clone(),
        "draws": torch.randint(1 << 30, ids.shape, generator=generator),
    }


def batch_of(rows, layout):
    if layout == "packed":  # two examples a row, with block masks, positions of their own, and padding behind
        groups = [rows[start : start + 2] for start in range(0, len(rows), 2)]
        joined = []
        for group in groups:
            fields = {name: torch.cat([example[name] for example in group]) for name in group[0]}
            lengths = [len(example["input_ids"]) for example in group]
            fields["example_ids"] = torch.repeat_interleave(torch.arange(len(group)), torch.tensor(lengths))
            fields["position_ids"] = torch.cat([torch.arange(length) + 2 for length in lengths])
            joined.append(fields)
        rows = joined
    length = max(len(fields["input_ids"]) for fields in rows)
    left = layout == "padded on the left"

    def pad(values, fill):
        missing = length - len(values)
        return F.pad(values, (missing, 0) if left else (0, missing), value=fill)

    batch = {name: torch.stack([pad(fields[name], PADDING[name]) for fields in rows]) for name in rows[0]}
    real = torch.stack([pad(torch.ones_like(fields["input_ids"]), 0) for fields in rows])
    batch["attention_mask"] = real
    if layout == "packed":
        same = batch["example_ids"][:, :, None] == batch["example_ids"][:, None, :]
        batch["attention_mask"] = same & real.bool()[:, None, :] & real.bool()[:, :, None]
    return batch


def sub_batch(objective, layout, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if objective.startswith("ca_mlm"):
        sides = [[row([pair[side]], generator) for pair in PAIRS[:5]] for side in (0, 1)]
        x, y = (batch_of(rows, layout) for rows in sides)
        if layout == "packed":
            for own, other in ((x, y), (y, x)):
                real = own["attention_mask"].any(2)[:, :, None] & other["attention_mask"].any(2)[:, None, :]
                own["cross_attention_mask"] = (
                    own["example_ids"][:, :, None] == other["example_ids"][:, None, :]
                ) & real
        return {"x": x, "y": y}
    sides = {"mlm": [[sum(pair)] for pair in PAIRS]}.get(objective, [list(pair) for pair in PAIRS])
    if objective == "camlm":  # every side keeps a token to be read
        sides = [pair for pair in sides if min(pair) > 1]
    batch = batch_of([row(pair, generator, pseudo=objective == "btmlm") for pair in sides], layout)
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


def test_skip_padding_all_objectives_of_an_update_together():
    for name in ("veco", "ernie_m", "xlm_align"):
        model = build(name)
        batches = {objective: sub_batch(objective, LAYOUTS[1], seed) for seed, objective in enumerate(OBJECTIVES[name])}
        expected = run(model, **batches)
        model.set_skip_padding(True)
        torch.testing.assert_close(run(model, **batches), expected, rtol=1e-4, atol=1e-5)


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


def inputs(layout=LAYOUTS[0]):
    batch = sub_batch("mlm", layout)
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_skip_padding_same_states_and_zero_at_padding(layout):
    model = build("metaxlm", head="Model")
    batch = inputs(layout)
    real = batch["attention_mask"].bool()
    expected = model(**batch, output_hidden_states=True)
    model.set_skip_padding(True)
    found = model(**batch, output_hidden_states=True)
    assert len(found.hidden_states) == 4
    for state, other in zip(found.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(state[real], other[real], rtol=1e-5, atol=1e-5)
        assert not state[~real].any()
    assert found.hidden_states[-1] is found.last_hidden_state
    lower = model(**batch, num_layers=1).last_hidden_state
    torch.testing.assert_close(lower, found.hidden_states[1])
    as_tuple = model(**batch, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], found.last_hidden_state)
    # weights of attention have no place among flat positions: the padded way is taken
    model.set_attn_implementation("eager")
    assert model(**batch, output_attentions=True).attentions[0].shape[-1] == real.shape[1]


def test_skip_padding_without_padding_an_empty_row_and_masks_of_other_shapes():
    model = build("metaxlm", head="Model")
    ids = torch.randint(5, MASK, (3, 6))
    for mask in (None, torch.ones_like(ids)):
        model.set_skip_padding(False)
        expected = model(ids, attention_mask=mask).last_hidden_state
        model.set_skip_padding(True)
        assert torch.equal(model(ids, attention_mask=mask).last_hidden_state, expected)
    # rows cannot be fewer here, and the state at padding is 0 all the same: span heads read it
    mask = torch.ones_like(ids)
    mask[0, 5] = 0
    assert not model(ids, attention_mask=mask).last_hidden_state[0, 5].any()
    mask = torch.ones_like(ids)
    mask[1] = 0
    found = model(ids, attention_mask=mask).last_hidden_state
    assert found.isfinite().all() and not found[1].any()
    torch.testing.assert_close(found[::2], expected[::2], rtol=1e-5, atol=1e-5)
    # the mask says where real positions are: one of another shape would select others, without an error
    for shape in ((3, 4), (3, 10), (3, 1, 1, 6), (3, 6, 7)):
        for skip in (False, True):
            model.set_skip_padding(skip)
            mask = torch.ones(shape, dtype=torch.bool if len(shape) > 2 else torch.long)
            mask[1, ..., 3:] = 0
            with pytest.raises((ValueError, RuntimeError)):
                model(ids, attention_mask=mask)


def test_skip_padding_heads_and_translation_are_the_same(tmp_path):
    build("veco").save_pretrained(tmp_path)
    x, y = inputs(), sub_batch("tlm", LAYOUTS[0])
    masked_lm, pooled = build("metaxlm", head="ForMaskedLM"), build("ernie_m", head="ForSequenceClassification")
    plugged = build("veco", head="ForTokenClassification", plug_in=True)
    translator = VecoForConditionalGeneration.from_encoder(tmp_path, decoder_layers=2).eval()
    real = x["attention_mask"].bool()
    other = {"translation_input_ids": y["input_ids"], "translation_attention_mask": y["attention_mask"]}
    calls = {
        "masked_lm": lambda: masked_lm(**x).logits[real],
        "pooled": lambda: pooled(**x).logits,
        "plugged": lambda: plugged(**x, **other).logits[real],
        "translation": lambda: translator(**x, labels=y["labels"].clamp(min=-100)).loss,
    }
    expected = {name: call().detach() for name, call in calls.items()}
    for model in (masked_lm, pooled, plugged, translator):
        model.set_skip_padding(True)
    found = {name: call().detach() for name, call in calls.items()}
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    generated = translator.generate(**x, max_new_tokens=6, num_beams=2)
    translator.set_skip_padding(False)
    assert torch.equal(generated, translator.generate(**x, max_new_tokens=6, num_beams=2))


@torch.no_grad()
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    "name, layout",
    [(name, layout) for name in ("metaxlm", "ernie_m", "veco") for layout in LAYOUTS if (name, layout) != PLUGGED_IN],
)
def test_first_states_of_the_first_real_position(name, layout, skip):
    """ERNIE-M's through its pooler, VECO's plugged in; of packed rows, padded on the left, that of the first text."""
    model = build(name, head="ForSequenceClassification", **{"plug_in": True} if name == "veco" else {})
    generator = torch.Generator().manual_seed(0)
    sides = {"": [row([length], generator) for length in (3, 8, 5)]}
    if name == "veco":
        sides["translation_"] = [row([length], generator) for length in (6, 2, 4)]
    read = ("input_ids", "attention_mask") + (("position_ids",) if layout == "packed" else ())

    def fields(layout, rows=slice(None)):
        batches = {prefix: batch_of(examples[rows], layout) for prefix, examples in sides.items()}
        return {prefix + field: batch[field] for prefix, batch in batches.items() for field in read if field in batch}

    alone = torch.cat([model(**fields(LAYOUTS[0], slice(text, text + 1))).logits for text in range(3)])
    batch = fields(layout)
    if layout == "packed":  # texts 0 and 1 in a row, 2 in another one
        alone, padding = alone[::2], batch["input_ids"].shape[1] - int(batch["attention_mask"][1].any(0).sum())
        for values in batch.values():
            values[1] = values[1].roll((padding,) * (values.dim() - 1), tuple(range(values.dim() - 1)))
    model.set_skip_padding(skip)
    torch.testing.assert_close(model(**batch).logits, alone, atol=1e-5, rtol=0)
    assert alone.std(0).min() > 1e-3, "all texts have the same logits"


def test_skip_padding_gradient_checkpointing_and_bf16_autocast():
    for name, objective in (("veco", "ca_mlm_pairs"), ("xlm_align", "tlm")):
        model, batch = build(name).train(), {objective: sub_batch(objective, LAYOUTS[0])}
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
