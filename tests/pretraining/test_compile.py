"""`model.compile`: the same losses as without it, no new code after the first steps, the same names of weights, and
kill and resume. Each layer is compiled for some seconds, so runs are small and few.
"""

import json

import pytest
import torch
from torch._dynamo.utils import counters

from crosslingual_zoo.modeling.configuration_metaxlm import MetaXlmConfig
from crosslingual_zoo.modeling.modeling_metaxlm import MetaXlmForPreTraining
from crosslingual_zoo.pretraining.start.initialization import compile_layers, compiler_errors
from crosslingual_zoo.pretraining.tracking import read_events
from crosslingual_zoo.pretraining.training import Training
from tests.architectures import ARCHITECTURES
from tests.modeling.tiny import PAD, SIZES, far_from_initial, gradients
from tests.pretraining.run_folders import CA_MLM

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor that is not a leaf:UserWarning"),  # of the compiler
]


@pytest.fixture(autouse=True)
def fresh_code(monkeypatch, tmp_path):
    """No test finds code of another one, in memory or on disk."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def losses_of(folder) -> list[dict[str, float]]:
    """The losses, norms and held-out figures of a run."""
    figures = []
    for event in read_events(folder):
        named = {name: value for name, value in event.items() if name.startswith(("loss", "held_out", "grad_norm"))}
        figures.append(named)
    return figures


def two_phases(**objectives) -> str:
    """The phases of smoke, in short: MLM and TLM, then with `objectives` too."""
    common = {"mlm": {"batch_size": 8, "max_length": 64}, "tlm": {"batch_size": 8, "max_length": 128}}
    first = {"name": "first", "steps": 6, "learning_rate": 1e-3, "objectives": common}
    second = {"name": "second", "steps": 5, "learning_rate": 1e-3, "objectives": common | objectives}
    return f"phases={json.dumps([first, second])}"


def test_run_has_the_losses_of_one_that_is_not_compiled_and_no_new_code_later(train, difference, monkeypatch, tmp_path):
    graphs = []
    step = Training._step

    def counted_step(training, *arguments):
        graphs.append((training.phase.name, counters["stats"]["unique_graphs"]))
        return step(training, *arguments)

    monkeypatch.setattr(Training, "_step", counted_step)
    evaluation = "evaluation={held_out_fraction: 0.1, max_examples: 9, every_steps: 2}"
    settings = [two_phases(dwa={}), evaluation, "log_every_steps=1"]
    train(*settings, f"output_dir={tmp_path / 'plain'}")
    assert {count for _, count in graphs} == {0}
    graphs.clear()
    train(*settings, "model.compile=true", f"output_dir={tmp_path / 'compiled'}")
    assert not counters["graph_break"]
    # one of the training, and one of the evaluation after step 2
    assert [count for name, count in graphs if name == "first"] == [1, 1, 2, 2, 2, 2]
    assert {count for name, count in graphs if name == "second"} == {2}
    assert difference(tmp_path / "plain", tmp_path / "compiled") < 1e-4  # of weights with the same names
    for plain, compiled in zip(losses_of(tmp_path / "plain"), losses_of(tmp_path / "compiled"), strict=True):
        assert compiled == pytest.approx(plain, rel=1e-4, abs=1e-4)


def cache_of(folder) -> str:
    """Code that lets a run keep its compiled code in a folder of its own."""
    return f"import os; os.environ['TORCHINDUCTOR_CACHE_DIR'] = {str(folder)!r}"


def test_run_that_is_killed_and_resumed_is_bit_equal(finished, difference, cut_back, tmp_path):
    """With dropout and recomputed activations. Every run compiles anew, as on another machine."""
    settings = [two_phases(), "model.compile=true", "model.gradient_checkpointing=true", "save_every_steps=1"]
    settings += ["model.config.hidden_dropout_prob=0.1", "model.config.attention_probs_dropout_prob=0.1"]
    settings.append("keep_checkpoints=0")
    finished(*settings, f"output_dir={tmp_path / 'whole'}", fault=cache_of(tmp_path / "first"))
    cut_back(tmp_path / "whole", 3, tmp_path / "resumed")
    finished(*settings, f"output_dir={tmp_path / 'resumed'}", "--resume", fault=cache_of(tmp_path / "second"))
    assert difference(tmp_path / "resumed", tmp_path / "whole") == 0


@pytest.mark.parametrize("more", [["model.type=metaxlm"], ["model.type=veco", *CA_MLM]], ids=["tlm", "ca-mlm"])
def test_run_of_two_processes_is_that_of_one_that_is_not_compiled(more, finished, difference, tmp_path):
    finished(*more, f"output_dir={tmp_path / 'one'}")
    finished(*more, f"output_dir={tmp_path / 'two'}", "model.compile=true", processes=2)
    assert difference(tmp_path / "one", tmp_path / "two") < 1e-4


def padded_batch(seed: int) -> dict[str, dict]:
    """An MLM batch of five rows of random lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 20, (5,), generator=generator).tolist()
    input_ids = torch.full((5, max(lengths)), PAD)
    labels = torch.full_like(input_ids, -100)
    for row, length in enumerate(lengths):
        input_ids[row, :length] = torch.randint(4, 60, (length,), generator=generator)
        labels[row, 1] = 7
    mask = (input_ids != PAD).long()
    return {"mlm": {"input_ids": input_ids, "attention_mask": mask, "labels": labels, "text_lengths": lengths}}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_of_other_architectures(name):
    from transformers import AutoConfig

    special = dict(pad_token_id=PAD, bos_token_id=0, cls_token_id=0, eos_token_id=2, sep_token_id=2, mask_token_id=60)
    backbone = AutoConfig.for_model(name, **SIZES | special | ARCHITECTURES[name])
    model = far_from_initial(MetaXlmForPreTraining(MetaXlmConfig(backbone_config=backbone)))
    model.set_skip_padding(True)  # in evaluation mode, which has no dropout
    batches = [padded_batch(seed) for seed in range(4)]
    plain = [gradients(model, model(**batch).loss_sum) for batch in batches]
    compile_layers(model)
    for number, batch in enumerate(batches):
        compiled = gradients(model, model(**batch).loss_sum)
        if number == 0:
            graphs = counters["stats"]["unique_graphs"]
            assert graphs >= 1
        torch.testing.assert_close(compiled, plain[number], atol=1e-4, rtol=1e-3)
    assert counters["stats"]["unique_graphs"] == graphs  # other shapes, the same code


def test_a_compiler_that_fails_is_one_line():
    with pytest.raises(ValueError, match=r"cannot compile.*: backend='x' raised: NoCompiler: none. Set it to false"):
        with compiler_errors():
            raise RuntimeError("backend='x' raised:\nNoCompiler: none.\n\nSet TORCHDYNAMO_VERBOSE=1")
    with pytest.raises(RuntimeError, match="shapes"):
        with compiler_errors(is_compiled=False):
            raise RuntimeError("shapes")
    with pytest.raises(torch.OutOfMemoryError):
        with compiler_errors():
            raise torch.OutOfMemoryError("none left")
