"""The formulas that bench/veco_step.py sets beside its measurements, against counted FLOPs and bytes."""

import json
import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from bench.veco_step import STEPS, Size, floats_kept, flops_per_token, main, make_batches, peak_bytes
from modeling.configuration_veco import VecoConfig
from modeling.modeling_veco import VecoForPreTraining

SIZE, PAIRS = Size(layers=3, hidden=64, vocab=400, length=16), 5


@pytest.fixture(scope="module")
def batches():
    torch.manual_seed(0)
    return make_batches(SIZE, PAIRS, "cpu")


def model(attention):
    torch.manual_seed(0)
    config = VecoConfig(
        vocab_size=SIZE.vocab,
        hidden_size=SIZE.hidden,
        num_hidden_layers=SIZE.layers,
        num_attention_heads=2,
        intermediate_size=4 * SIZE.hidden,
        max_position_embeddings=2 * SIZE.length + 2,
        attn_implementation=attention,
    )
    return VecoForPreTraining(config).eval()


@pytest.mark.parametrize("objective", ["tlm", "ca_mlm_pairs", "ca_mlm_segments"])
def test_flops_are_those_that_torch_counts(batches, objective):
    """Exactly, once the head's part is that of the pieces that were drawn for prediction."""
    batch = batches[objective]
    sides = [batch] if objective == "tlm" else [batch["x"], batch["y"]]
    predicted = sum(int(side["labels"].ne(-100).sum()) for side in sides) * (1 if objective == "tlm" else 2)
    with FlopCounterMode(display=False) as counter:
        model("eager")(**{objective: batch}).loss.backward()
    tokens = PAIRS * 2 * SIZE.length
    formula = flops_per_token(SIZE)[objective] * tokens
    shares = {"tlm": 0.25, "ca_mlm_pairs": 2 * 0.25, "ca_mlm_segments": 2 * 0.15}
    head = 6 * SIZE.hidden * SIZE.vocab + 6 * SIZE.hidden**2
    formula += head * (predicted - shares[objective] * tokens)
    # torch may have no formula for addmm_, with which the head adds up its gradient: 2 of the 6 d V
    uncounted = 0 if torch.ops.aten.addmm_ in flop_registry else 2 * SIZE.hidden * SIZE.vocab * predicted
    assert counter.get_total_flops() == pytest.approx(formula - uncounted, rel=1e-9)


def test_memory_is_what_the_count_predicts(batches):
    trained = model("sdpa")
    count = floats_kept(SIZE, PAIRS)
    for name, objectives in STEPS.items():

        def step(objectives=objectives):
            trained(**{objective: batches[objective] for objective in objectives}).loss.backward()

        step()
        assert peak_bytes(step, "cpu") == pytest.approx(4 * count[name], rel=0.15)


def test_it_prints_and_writes_and_each_h_is_computed_once(tmp_path, capfd):
    output = tmp_path / "results" / "step.json"
    sizes = ["--layers", "2", "--hidden", "64", "--vocab", "300", "--pairs", "3", "--length", "8", "--rounds", "1"]
    main([*sizes, "--output", str(output)])
    steps = json.loads(output.read_text())["steps"]
    assert list(steps) == list(STEPS)
    assert steps["tlm"]["layer_calls"] == [{"calls": 2, "rows": 3, "cross_attention": False}]
    h, s = ({"calls": 2, "rows": 6, "cross_attention": cross} for cross in (False, True))
    assert steps["ca_mlm_pairs"]["layer_calls"] == steps["ca_mlm_segments"]["layer_calls"] == [h, s]
    assert steps["ca_mlm_pairs + tlm"]["times_each_h_is_computed"] == 1
    printed = capfd.readouterr().out
    assert "ca_mlm_pairs: encoder layers ran 2 on 6 rows without cross-attention" in printed
    assert printed.count("each H computed 1 time(s)") == 3


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--rounds", "0", "--rounds is 0. Nothing would be measured. Give 1 or more"),
        ("--hidden", "32", "--hidden is 32. A head has 64 dimensions. Give 64 or more"),
        ("--hidden", "100", "--hidden is 100, no multiple of 64.*Give 64 or 128"),
        ("--layers", "-1", "--layers is -1"),
        ("--vocab", "6", "--vocab is 6"),
        ("--pairs", "0", "--pairs is 0"),
        ("--length", "2", "--length is 2"),
    ],
)
def test_sizes_that_cannot_be_measured_are_refused(tmp_path, capsys, flag, value, message):
    with pytest.raises(SystemExit) as stopped:
        main([flag, value, "--output", str(tmp_path / "step.json")])
    assert stopped.value.code == 2 and re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "step.json").exists()
