"""The page of arithmetic: its counts are those of the model, and it is what the command writes."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench import large_recipe
from bench._flops import Size
from modeling.configuration_veco import VecoConfig
from modeling.modeling_veco import VecoForPreTraining

D, VOCABULARY, N = 32, 50, 16


def model_of(layers, **config):
    size = Size(layers, D, VOCABULARY)
    sizes = size.config(512, **config) | {"num_attention_heads": 4}
    return VecoForPreTraining._from_config(VecoConfig(**sizes), attn_implementation="eager")


@pytest.mark.parametrize("name", large_recipe.SIZES)
def test_parameters_are_those_of_the_model(name):
    size = large_recipe.SIZES[name]
    with torch.device("meta"):
        model = VecoForPreTraining(VecoConfig(**size.config(512)))
    assert large_recipe.parameters(size) == model.num_parameters()
    of_cross = sum(p.numel() for key, p in model.named_parameters() if ".crossattention." in key)
    assert large_recipe.parameters(size, cross_alone=True) == of_cross


def pairs(predicted):
    def side():
        ids = torch.randint(5, VOCABULARY, (1, N))
        labels = torch.where(torch.arange(N) < predicted, ids, -100)
        return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}

    return {"x": side(), "y": side()}


@pytest.mark.parametrize("predicted", [1, 9])
def test_flops_of_cross_attention_alone_are_those_that_run(predicted):
    """By layers: in the lowest there is nothing to learn below cross-attention, and its gradients end there."""

    def counted(layers):
        model = model_of(layers)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(".crossattention." in name)
        with FlopCounterMode(display=False) as counter:
            weights = {"ca_mlm_pairs.inner": 0.0}
            model(ca_mlm_pairs=pairs(predicted), objective_weights=weights).loss.backward()
        return counter.get_total_flops()

    def formula(layers):
        return large_recipe.cross_alone(Size(layers, D, VOCABULARY), N, predicted / N)

    assert counted(5) - counted(3) == formula(5) - formula(3)
    # what the lowest layer has not to compute: gradients of the inputs of self-attention and of the cross-attention's
    # query, and of self-attention's scores
    lowest = 2 * N * (2 * 5 * D * D + 8 * N * D)
    assert counted(3) == formula(3) - lowest


@pytest.mark.parametrize("crosses", [False, True])
def test_the_bytes_that_layers_keep_are_those_that_autograd_keeps(crosses):
    def kept(layers, length):
        model = model_of(layers, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0)
        model.set_attn_implementation("sdpa")
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        storages = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                storages[storage.data_ptr()] = storage  # held, so that its address is not given away again
            return tensor

        ids = torch.randint(5, VOCABULARY, (2, length))
        other = {"encoder_hidden_states": torch.randn(2, length, D)} if crosses else {}
        with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
            output = model.roberta(ids, attention_mask=torch.ones_like(ids), **other).last_hidden_state
        assert output.requires_grad
        return sum(storage.nbytes() for storage in storages.values()) / 2

    # of a position, and of a layer: what does not grow with either falls out
    grown = [kept(layers, 128) - kept(layers, 64) for layers in (4, 2)]
    counted = (grown[0] - grown[1]) / 2 / 64 / D
    expected = large_recipe.KEPT + large_recipe.KEPT_BY_CROSS * crosses
    assert counted == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_the_page_is_what_the_command_writes(pytestconfig, tmp_path, monkeypatch):
    monkeypatch.chdir(pytestconfig.rootpath)
    large_recipe.main(["--markdown", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page == large_recipe.PAGE.read_text(encoding="utf-8")
    large_recipe.main(["--markdown", str(tmp_path / "page.md"), "--mfu", "0.2"])
    assert (tmp_path / "page.md").read_text(encoding="utf-8") != page
