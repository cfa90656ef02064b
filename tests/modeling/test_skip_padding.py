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
    """A row with sides of these lengths. Of the first `predicted` sides every third token is masked, except for a side
    of one token; the others are <mask> only."""
    masked = []
    tokens = []
    start = 1
    for number, length in enumerate(sides):
        if number >= predicted:
            tokens.append([MASK] * length)
            continue
        tokens.append(length)
        if length > 1:
            masked += range(start, start + length, 3)
        start += length + 2
    return pair_row(seed, tokens, masked, languages=(0, 1))


def rows_of(lengths, layout, seed=0, **options):
    """A sub-batch of rows with sides of these lengths."""
    return batch_of([row(seed + number, *sides, **options) for number, sides in enumerate(lengths)], layout)


def sub_batch(objective, layout):
    """What the objective's collator makes of PAIRS."""
    if objective.startswith("ca_mlm"):
        x = rows_of([[source] for source, _ in PAIRS[:5]], layout)
        y = rows_of([[target] for _, target in PAIRS[:5]], layout, seed=5)
        return {"x": x, "y": y}
    if objective == "mlm":
        return rows_of([[sum(pair)] for pair in PAIRS], layout)
    if objective == "camlm":  # every side keeps a token to be read
        batch = rows_of([pair for pair in PAIRS if min(pair) > 1], layout)
        mask = camlm_mask(batch["attention_mask"], batch["segment_ids"], batch["labels"] != -100)
        return batch | {"attention_mask": mask}
    if objective == "btmlm":
        batch = rows_of(PAIRS, layout, predicted=1)
        mask = btmlm_generation_mask(batch["attention_mask"], batch["segment_ids"])
        return batch | {"generation_mask": mask}
    return rows_of(PAIRS, layout)


def run(model, **batches):
    """Loss, token losses and gradients."""
    output = model(**batches)
    return {"loss": output.loss_sum.detach(), **output.token_losses}, gradients(model, output.loss_sum)


def inputs(layout="padded right"):
    batch = sub_batch("mlm", layout)
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


def count_positions(model):
    """A list to which each feed-forward block adds how many positions it computes."""
    counts = []

    def count(module, inputs, output):
        [states] = inputs
        counts.append(states[..., 0].numel())

    for layer in model.roberta.encoder.layer:
        layer.intermediate.register_forward_hook(count)
    return counts


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name, objective", CASES)
def test_skip_padding_losses_and_gradients_are_those_of_the_padded_batch(name, objective, layout):
    model = build(name)
    batch = sub_batch(objective, layout)
    losses, learned = run(model, **{objective: batch})
    model.set_skip_padding(True)
    computed = count_positions(model)
    skipped_losses, skipped_gradients = run(model, **{objective: batch})
    torch.testing.assert_close(skipped_losses, losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(skipped_gradients, learned, rtol=1e-4, atol=1e-5)
    sides = [batch["x"], batch["y"]] if "x" in batch else [batch]
    tokens = sum(int((side["segment_ids"] >= 0).sum()) for side in sides)
    longest = max(side["segment_ids"].shape[1] for side in sides)
    assert min(computed) >= tokens
    assert max(computed) <= len(sides) * len(sides[0]["segment_ids"]) * longest


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


def mask_of(name, is_real):
    """A mask of that kind, made of the mask of a padded batch."""
    mask = is_real.clone()
    if name in ("no padding", "a hole"):
        mask[:] = True
    if name == "a hole":
        mask[0, 5] = False
    if name == "a row without tokens":
        mask[1] = False
    return mask


@torch.no_grad()
@pytest.mark.parametrize("name", ["padding", "no padding", "a hole", "a row without tokens"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_skip_padding_same_states_and_zero_at_padding(layout, name):
    """Also where rows cannot be fewer, because span heads read the state at padding."""
    model = build("metaxlm", head="Model")
    batch = inputs(layout)
    mask = mask_of(name, batch["attention_mask"].bool())
    batch |= {"attention_mask": mask.long(), "output_hidden_states": True}
    expected = model(**batch).hidden_states
    model.set_skip_padding(True)
    output = model(**batch)
    assert len(output.hidden_states) == 4
    assert output.hidden_states[-1] is output.last_hidden_state
    for states_BTH, expected_BTH in zip(output.hidden_states, expected, strict=True):
        torch.testing.assert_close(states_BTH[mask], expected_BTH[mask], rtol=1e-5, atol=1e-5)
        assert not states_BTH[~mask].any()


@torch.no_grad()
def test_skip_padding_with_the_other_arguments_of_the_encoder():
    model = build("metaxlm", head="Model")
    model.set_skip_padding(True)
    batch = inputs()
    no_padding = torch.ones_like(batch["attention_mask"])
    output = model(batch["input_ids"], attention_mask=no_padding, output_hidden_states=True)
    assert torch.equal(model(batch["input_ids"]).last_hidden_state, output.last_hidden_state)
    lower = model(batch["input_ids"], attention_mask=no_padding, num_layers=1, return_dict=False)
    assert isinstance(lower, tuple)
    torch.testing.assert_close(lower[0], output.hidden_states[1])
    # weights of attention have no column among flat positions: the padded way is taken
    model.set_attn_implementation("eager")
    weights = model(**batch, output_attentions=True).attentions[0]
    assert weights.shape[-1] == no_padding.shape[1]


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


def assert_same_when_skipping(model, compute):
    expected = compute()
    model.set_skip_padding(True)
    torch.testing.assert_close(compute(), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_skip_padding_heads_are_the_same():
    batch = inputs()
    is_real = batch["attention_mask"].bool()
    masked_lm = build("metaxlm", head="ForMaskedLM")
    assert_same_when_skipping(masked_lm, lambda: masked_lm(**batch).logits[is_real])
    translation = sub_batch("tlm", "padded right")
    batch["translation_input_ids"] = translation["input_ids"]
    batch["translation_attention_mask"] = translation["attention_mask"]
    tagger = build("veco", head="ForTokenClassification", plug_in=True)
    assert_same_when_skipping(tagger, lambda: tagger(**batch).logits[is_real])


@torch.no_grad()
def test_skip_padding_translation_is_the_same(tmp_path):
    build("veco").save_pretrained(tmp_path)
    translator = VecoForConditionalGeneration.from_encoder(tmp_path, decoder_layers=2).eval()
    batch = inputs()
    labels = sub_batch("tlm", "padded right")["labels"]
    expected = translator.generate(**batch, max_new_tokens=6, num_beams=2)
    assert_same_when_skipping(translator, lambda: translator(**batch, labels=labels).loss)
    assert torch.equal(translator.generate(**batch, max_new_tokens=6, num_beams=2), expected)


@torch.no_grad()
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["metaxlm", "ernie_m", "veco"])
def test_first_states_of_the_first_real_position(name, layout, skip):
    """ERNIE-M's through its pooler, VECO's plugged in."""
    options = {"plug_in": True} if name == "veco" else {}
    model = build(name, head="ForSequenceClassification", **options)
    texts = [row(length, length) for length in (3, 8, 5)]
    translations = [row(length, length) for length in (6, 2, 4)]

    def logits(layout, first, last):
        batch = batch_of(texts[first:last], layout)
        fields = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        if name == "veco":
            batch = batch_of(translations[first:last], layout)
            fields["translation_input_ids"] = batch["input_ids"]
            fields["translation_attention_mask"] = batch["attention_mask"]
        return model(**fields).logits

    alone = torch.cat([logits("padded right", text, text + 1) for text in range(3)])
    assert alone.std(0).min() > 1e-3, "all texts have the same logits"
    model.set_skip_padding(skip)
    torch.testing.assert_close(logits(layout, 0, 3), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name, objective", [("veco", "ca_mlm_pairs"), ("xlm_align", "tlm")])
def test_skip_padding_gradient_checkpointing_and_bf16_autocast(name, objective):
    model = build(name).train()
    batches = {objective: sub_batch(objective, "padded right")}
    model.set_skip_padding(True)
    losses, learned = run(model, **batches)
    # renamed in transformers 5.2x; the lower end of our range knows the old names only
    prefix = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    for switch in ("enable", "disable"):
        getattr(model, f"{prefix}_checkpointing_{switch}")()
        torch.testing.assert_close(run(model, **batches), (losses, learned), rtol=1e-5, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss_of_bfloat16 = model(**batches).loss_sum
    assert abs(loss_of_bfloat16 / losses["loss"] - 1) < 0.02


def test_packing_rows_are_nearly_full():
    generator = torch.Generator().manual_seed(0)
    for longest in (12, 60, 200):
        is_real = torch.arange(longest) < torch.randint(3, longest, (16, 1), generator=generator)
        is_real[3] = is_real[3].flip(0)
        rows, width = Packing(is_real.numpy(), is_real.device).shape
        assert rows * width < 1.1 * is_real.sum()
        assert width < 4 * longest
