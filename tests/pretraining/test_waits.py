"""What the collators hand over, the model does not ask a GPU for: it would wait for all that the GPU has to do before.

Counted on a CPU: operations whose result has a size that depends on values, and values that Python or numpy reads.
"""

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from crosslingual_zoo.pretraining.data.examples import Texts
from crosslingual_zoo.pretraining.objectives import OBJECTIVES
from crosslingual_zoo.pretraining.rows import inputs_of
from tests.modeling.tiny import gradients, made

HANDED_OVER = {"text_lengths", "prediction_positions", "pseudo_positions"}
# operations with a result whose size depends on values, or that is a number of Python
DATA_DEPENDENT = {"nonzero", "masked_select", "_local_scalar_dense", "is_nonzero", "equal", "bincount"}
DATA_DEPENDENT |= {"_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
# functions of tensors that read them on the CPU, or send them from memory that is not pinned
READING = {"tolist", "numpy", "cpu", "__array__"}
SENDING = {"tensor", "as_tensor"}
EXAMPLES = 7
CODES = {1: ("en",), 2: ("en", "de")}


class DispatchedWaits(TorchDispatchMode):
    """Counts the operations for which a GPU would be waited for."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in DATA_DEPENDENT:
            self.waits.append(name)
        if name in INDEXING:
            if any(torch.is_tensor(index) and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
                self.waits.append(name)
        if name == "repeat_interleave" and "output_size" not in (kwargs or {}):
            self.waits.append(name)
        return function(*args, **(kwargs or {}))


class CalledWaits(TorchFunctionMode):
    """Counts the functions that a dispatch mode does not see on a CPU."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in READING or (name in SENDING and (kwargs or {}).get("device") != "cpu"):
            self.waits.append(name)
        if name in ("__getitem__", "__setitem__") and has_list(args[1]):
            self.waits.append(name)
        return function(*args, **(kwargs or {}))


def has_list(index) -> bool:
    """Whether an index has a list of numbers, which is sent to the device."""
    return isinstance(index, list) or (isinstance(index, tuple) and any(isinstance(part, list) for part in index))


def waits_of(model, batch) -> list[str]:
    """What forward and backward wait for."""
    with CalledWaits() as called, DispatchedWaits() as dispatched:
        model(**batch, return_loss=False).loss_sum.backward()
    return called.waits + dispatched.waits


def batch_of(name, tokenizer, equal_lengths=False, **options):
    """A sub-batch of some examples, on its way through a worker and to a device."""
    rng = np.random.default_rng(0)
    kind = OBJECTIVES[name]
    languages = ["en", "de"] if options.pop("languages", False) and kind.language_share else None
    collator = kind(tokenizer, languages=languages, mask_probability=0.3, max_length=56, **options)
    sides = 2 if kind.text == "bitext" or kind.apart else 1
    columns = []
    for _ in range(sides):
        lengths = [9] * EXAMPLES if equal_lengths else rng.integers(1, 16, EXAMPLES)
        columns.append([rng.integers(10, 1900, length).astype(np.int32) for length in lengths])
    ids = np.arange(EXAMPLES)
    texts = Texts(columns, ["en-de"] * EXAMPLES, ids, np.zeros_like(ids))
    codes = [CODES[sides]] * EXAMPLES if languages else None
    dataset = [{name: collator.sub_batch(texts, (1, 0), codes=codes)}]
    (batch,) = DataLoader(dataset, batch_size=None, num_workers=0)
    return send_to_device(batch, torch.device("cpu"), non_blocking=True)


def without(fields: dict, names: set[str]) -> dict:
    """The sub-batch without some fields, of both sides."""
    others = {}
    for name, value in fields.items():
        if name not in names:
            others[name] = without(value, names) if isinstance(value, dict) else value
    return others


MODELS = {
    "metaxlm": {},
    "veco": {},
    "veco causal": {"cross_stream": "causal"},
    "ernie_m": {"languages": ["en", "de"]},
    "xlm_align": {"alignment_layer": 2},
    "xlm_align lower": {"alignment_layer": 2, "dwa_layer": 2},
}
MOST_WAITS = {  # model, objective: how often forward and backward may wait
    ("metaxlm", "mlm"): 0,
    ("metaxlm", "tlm"): 0,
    ("veco", "ca_mlm_segments"): 0,
    ("veco", "ca_mlm_pairs"): 0,
    ("veco causal", "ca_mlm_pairs"): 0,
    ("ernie_m", "tlm"): 0,
    ("ernie_m", "camlm"): 0,
    ("ernie_m", "btmlm"): 0,
    ("xlm_align", "tlm"): 2,  # dwa: the words of the longest sides, and the linked masks
    ("xlm_align lower", "tlm"): 2,
}


def model_of(name, tokenizer, attention="sdpa", skip_padding=True, **config):
    config |= MODELS[name] | {"vocab_size": len(tokenizer)}
    if name == "ernie_m":
        config["mask_token_id"] = tokenizer.mask_token_id
    model = made(name.split()[0], "ForPreTraining", attention, **config)
    model.set_skip_padding(skip_padding)
    return model.train()


@pytest.mark.parametrize("equal_lengths", [False, True])
@pytest.mark.parametrize(("attention", "skip_padding"), [("sdpa", True), ("sdpa", False), ("eager", False)])
@pytest.mark.parametrize(("name", "objective"), MOST_WAITS)
def test_what_is_handed_over_saves_waits_and_changes_no_numbers(
    name, objective, attention, skip_padding, equal_lengths, sample_tokenizer
):
    """Losses and gradients are equal to the last bit, with dropout."""
    batch = batch_of(objective, sample_tokenizer, equal_lengths, languages=name == "ernie_m")
    without_it = {objective: without(batch[objective], HANDED_OVER)}
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    model = model_of(name, sample_tokenizer, attention, skip_padding, **dropout)
    waits = waits_of(model, batch)
    assert len(waits) <= MOST_WAITS[name, objective], waits
    assert len(waits_of(model, without_it)) > MOST_WAITS[name, objective]  # the model asks
    results = []
    for sub_batches in (batch, without_it):
        torch.manual_seed(0)
        output = model(**sub_batches)
        results.append((output, gradients(model, output.loss_sum)))
    (output, learned), (expected, expected_gradients) = results
    assert torch.equal(output.loss, expected.loss)
    for loss, losses_N in expected.token_losses.items():
        assert torch.equal(output.token_losses[loss], losses_N)
        assert torch.equal(output.batch_rows[loss], expected.batch_rows[loss])
    torch.testing.assert_close(learned, expected_gradients, rtol=0, atol=0)


@pytest.mark.parametrize("skip_padding", [True, False])
@pytest.mark.parametrize("name", ["veco", "xlm_align"])
def test_waits_with_gradient_checkpointing(name, skip_padding, sample_tokenizer):
    objective = "ca_mlm_pairs" if name == "veco" else "mlm"
    model = model_of(name, sample_tokenizer, skip_padding=skip_padding)
    # renamed in transformers 5.2x; the lower end of our range knows the old name only
    name = "activation_checkpointing_enable"
    getattr(model, name if hasattr(model, name) else "gradient_checkpointing_enable")()
    assert waits_of(model, batch_of(objective, sample_tokenizer)) == []


def positions_of(mask: torch.Tensor) -> list[int]:
    """The positions of what is true, in the flattened mask."""
    return mask.flatten().nonzero()[:, 0].tolist()


@pytest.mark.parametrize("name", ["mlm", "tlm", "camlm", "btmlm", "ca_mlm_pairs"])
def test_what_is_handed_over(name, sample_tokenizer):
    """Numbers stay on the CPU, tensors go to a device; each set of inputs has its own."""
    batch = batch_of(name, sample_tokenizer, languages=True)
    on_device = send_to_device(batch, torch.device("meta"))
    for inputs, elsewhere in zip(inputs_of(batch[name]), inputs_of(on_device[name]), strict=True):
        assert inputs["text_lengths"] == (inputs["segment_ids"] >= 0).sum(1).tolist()
        assert inputs["prediction_positions"].tolist() == positions_of(inputs["labels"] != -100)
        assert elsewhere["text_lengths"] == inputs["text_lengths"]
        assert elsewhere["prediction_positions"].is_meta
    if name == "btmlm":
        is_pseudo = (batch[name]["segment_ids"] == 1) & (batch[name]["special_tokens_mask"] == 0)
        assert batch[name]["pseudo_positions"].tolist() == positions_of(is_pseudo)


@pytest.mark.parametrize("lengths", [[3], [3, 3, 99]])
def test_text_lengths_of_other_texts_are_refused(lengths, sample_tokenizer):
    model = model_of("metaxlm", sample_tokenizer).roberta
    with pytest.raises(ValueError, match="text_lengths"):
        model(torch.full((3, 4), 10), text_lengths=lengths)


def test_the_loop_waits_once_a_step(train, tmp_path):
    """Two more steps of two micro-batches each: two more waits. Workers make the batches."""
    counts = []
    for steps in (2, 4):
        with CalledWaits() as called, DispatchedWaits() as dispatched:
            train(
                f"phases.0.steps={steps}",
                f"output_dir={tmp_path / str(steps)}",
                "gradient_accumulation_steps=2",
                "num_workers=1",
                "log_every_steps=100",
                "save_every_steps=0",
            )
        counts.append(called.waits + dispatched.waits)
    fewer, more = counts
    assert len(more) == len(fewer) + 2, set(more)
