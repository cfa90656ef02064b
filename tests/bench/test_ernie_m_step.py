"""The formula that bench/ernie_m_step.py sets beside its measurements, and what its steps have in common."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from bench.ernie_m_step import AGAINST, flops_ratio, main, make_batches, shares
from modeling.configuration_ernie_m import ErnieMConfig
from modeling.modeling_ernie_m import ErnieMForPreTraining

LAYERS, HIDDEN, VOCAB, LENGTH, PAIRS = 3, 64, 400, 16, 5


@pytest.fixture(scope="module")
def batches():
    torch.manual_seed(0)
    return make_batches(PAIRS, LENGTH, VOCAB, "cpu")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = ErnieMConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=4 * HIDDEN,
        max_position_embeddings=3 * LENGTH,
        num_languages=2,
        mask_token_id=VOCAB - 1,
        attn_implementation="eager",
    )
    return ErnieMForPreTraining(config).eval()


def flops(model, **sub_batches):
    """As torch counts them; it may have no formula for addmm_, with which the head adds up its gradient."""
    with FlopCounterMode(display=False) as counter:
        model(**sub_batches).loss.backward()
    predicted = sum(int(batch["labels"].ne(-100).sum()) for batch in sub_batches.values())
    uncounted = 0 if torch.ops.aten.addmm_ in flop_registry else 2 * HIDDEN * VOCAB * predicted
    return counter.get_total_flops() + uncounted


def test_the_ratio_by_flops_is_what_torch_counts(model, batches):
    batch = batches["btmlm"]
    shape = (LAYERS, HIDDEN, VOCAB, batch["labels"].shape[1])
    predicted, written = shares(batch, VOCAB - 1)
    assert 0.05 < predicted < 0.2 and 0.08 < written < 0.2  # a fifth of the text is written behind it; there is padding
    expected = flops_ratio(*shape, predicted, written)
    assert flops(model, btmlm=batch) / flops(model, tlm=batches["tlm of btmlm's rows"]) == pytest.approx(expected)
    assert flops(model, camlm=batches["camlm"]) == flops(model, tlm=batches["tlm"])


def test_steps_that_are_compared_predict_the_same_pieces(batches):
    for name, other in AGAINST.items():
        assert torch.equal(batches[name]["labels"], batches[other]["labels"])
        assert torch.equal(batches[name]["attention_mask"], batches[other]["attention_mask"])
    assert torch.equal(batches["camlm"]["input_ids"], batches["tlm"]["input_ids"])
    assert 0 < batches["tlm"]["attention_mask"].float().mean() < 1  # there is padding


def test_the_command_writes_its_figures(tmp_path, capsys):
    output = tmp_path / "results" / "step.json"
    sizes = ["--layers", "1", "--hidden", "64", "--vocab", "60", "--pairs", "2", "--length", "8", "--rounds", "2"]
    main([*sizes, "--output", str(output)])
    steps = json.loads(output.read_text(encoding="utf-8"))["steps"]
    assert {(row["step"], row["attention"]) for row in steps.values()} == {
        (name, attention) for name in (*AGAINST, *AGAINST.values()) for attention in ("eager", "sdpa")
    }
    assert all(row["ratio"] > 0 and row["ratio_by_flops"] >= 1 for row in steps.values() if "ratio" in row)
    assert "camlm, sdpa" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--hidden", "65"])
