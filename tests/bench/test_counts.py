"""The counts that the benchmarks set beside their measurements, against what torch counts."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from bench import large_recipe
from bench._common import peak_bytes
from bench._flops import BASE, Size
from bench._lengths import PAIRS as NTREX_PAIRS
from bench._lengths import from_texts, lengths_of, read_lengths
from bench.paper_steps import STEPS, floats_kept, flops_of, make_batches, make_model, predictions, ratio_at_large, run
from modeling.configuration_veco import VecoConfig
from modeling.modeling_veco import VecoForPreTraining

SIZE, PAIRS, SIDE = Size(layers=2, hidden=64, vocab=200), 3, 14
EVEN = np.full((PAIRS, 2), SIDE)  # without padding


@pytest.fixture(scope="module")
def batches():
    return make_batches(EVEN, SIZE.vocab, "cpu")


@pytest.mark.parametrize("name", STEPS)
def test_useful_flops_are_those_that_torch_counts(name, batches):
    model = make_model(name, SIZE, 64, attn_implementation="eager")
    for key, step in STEPS[name].items():
        with FlopCounterMode(display=False) as counter:
            losses = run(model, step, batches)
        found, queries = counter.get_total_flops(), len(losses.get("dwa", ()))
        if torch.ops.aten.addmm_ not in flop_registry:  # with which the head adds up its gradient
            predicted = sum(len(values) for loss, values in losses.items() if loss != "dwa")
            found += 2 * SIZE.hidden * SIZE.vocab * predicted
        if name == "xlm_align" and key != "tlm":  # queries are padded to those of the pair that has most
            counted = flops_of(key, SIZE, batches, model.config.labeling_layer, queries)
            assert counted == pytest.approx(found, rel=0.03), key
        else:
            assert flops_of(key, SIZE, batches) == pytest.approx(found, rel=1e-9), key


def test_published_counts():
    """At 512 positions, 15% predicted; at the papers' sizes, 164 / 72 of the layers and twice the predictions."""
    assert BASE.mlm([512] * 4, 0.15 * 4 * 512) / (4 * 512) == pytest.approx(740e6, rel=0.005)
    assert ratio_at_large("ca_mlm_pairs", "tlm") == pytest.approx(2.20, abs=0.01)
    assert ratio_at_large("ca_mlm_pairs + tlm", "tlm") == pytest.approx(3.20, abs=0.01)
    assert ratio_at_large("camlm", "tlm") is None


def test_memory_is_what_the_count_predicts():
    size = Size(3, 64, 8000)  # of which logits are a good part
    pairs = np.full((5, 2), SIDE)
    batches, model = make_batches(pairs, size.vocab, "cpu"), make_model("veco", size, 64, attn_implementation="sdpa")
    predicted = {name: predictions(batch) for name, batch in batches.items()}
    for name, step in STEPS["veco"].items():
        run(model, step, batches)
        count = 4 * floats_kept(name, size, 5 * 2 * (SIDE + 2), predicted)
        assert peak_bytes(lambda step=step: run(model, step, batches), "cpu") == pytest.approx(count, rel=0.1), name


# the page of arithmetic


def test_parameters_of_large_recipes_are_those_of_the_model():
    for size in large_recipe.SIZES.values():
        with torch.device("meta"):
            model = VecoForPreTraining(VecoConfig(**size.config(512)))
        assert large_recipe.parameters(size) == model.num_parameters()
        of_cross = sum(p.numel() for key, p in model.named_parameters() if ".crossattention." in key)
        assert large_recipe.parameters(size, cross_alone=True) == of_cross


def test_flops_of_cross_attention_alone_are_those_that_run():
    """By layers: in the lowest there is nothing to learn below cross-attention, and its gradients end there."""
    D, V, N, predicted = 32, 50, 16, 9
    ids = torch.randint(5, V, (1, N))
    labels = torch.where(torch.arange(N) < predicted, ids, -100)
    side = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}

    def counted(layers):
        config = VecoConfig(**Size(layers, D, V).config(512) | {"num_attention_heads": 4})
        model = VecoForPreTraining._from_config(config, attn_implementation="eager")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".crossattention." in name)
        with FlopCounterMode(display=False) as counter:
            batch = {"x": side, "y": side}
            model(ca_mlm_pairs=batch, objective_weights={"ca_mlm_pairs.inner": 0.0}).loss.backward()
        return counter.get_total_flops()

    def formula(layers):
        return large_recipe.cross_alone(Size(layers, D, V), N, predicted / N)

    assert counted(5) - counted(3) == formula(5) - formula(3)


@pytest.mark.parametrize("crosses", [False, True])
def test_the_bytes_that_layers_keep_are_those_that_autograd_keeps(crosses):
    def kept(layers, length):
        rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0}
        sizes = Size(layers, 32, 50).config(512, **rates) | {"num_attention_heads": 4}
        model = VecoForPreTraining._from_config(VecoConfig(**sizes), attn_implementation="sdpa")
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        storages = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage  # held, so that its address is not given away again
            return tensor

        ids = torch.randint(5, 50, (2, length))
        other = {"encoder_hidden_states": torch.randn(2, length, 32)} if crosses else {}
        with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
            output = model.roberta(ids, attention_mask=torch.ones_like(ids), **other).last_hidden_state
        assert output.requires_grad
        return sum(storage.nbytes() for storage in storages.values()) / 2

    # of a position, and of a layer: what does not grow with either falls out
    grown = [kept(layers, 128) - kept(layers, 64) for layers in (4, 2)]
    counted = (grown[0] - grown[1]) / 2 / 64 / 32
    expected = large_recipe.KEPT + large_recipe.KEPT_BY_CROSS * crosses
    assert counted == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_the_page_is_what_the_command_writes(pytestconfig, tmp_path, monkeypatch):
    monkeypatch.chdir(pytestconfig.rootpath)
    large_recipe.main(["--markdown", str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == large_recipe.PAGE.read_text(encoding="utf-8")


# lengths


def test_the_shipped_lengths_are_those_of_news(tmp_path):
    pairs_M2, texts_K = lengths_of(None, None, tmp_path)
    assert pairs_M2.shape == (5 * 1997, 2) and texts_K.shape == (6 * 1997,)
    assert 30 < pairs_M2.mean() < 40 and 30 < texts_K.mean() < 40
    assert np.corrcoef(pairs_M2.T)[0, 1] > 0.8  # of translations: a side's length tells the other's


def test_lengths_are_counted_from_texts(tmp_path, sample_tokenizer_dir):
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(ValueError, match="local/ntrex/de"):
        from_texts(tmp_path, None, tmp_path)
    for code in {code for pair in NTREX_PAIRS for code in pair.split("-")}:
        (tmp_path / "local/ntrex" / code).mkdir(parents=True)
        rows = {"text": ["a b c", "a"] if code == "en" else ["a b", "a b"]}
        pq.write_table(pa.table(rows), tmp_path / "local/ntrex" / code / "test.parquet")
    counted = tmp_path / "lengths.json"
    counted.write_text(from_texts(tmp_path, str(sample_tokenizer_dir), tmp_path), encoding="utf-8")
    pairs_M2, texts_K = read_lengths(counted)
    one, two, three = sorted(set(texts_K))
    expected = [[three, two], [one, two]] * 3 + [[two, three], [two, one]] + [[two, two]] * 2
    assert sorted(pairs_M2.tolist()) == sorted(expected)
