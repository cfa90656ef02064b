"""What tests of several files build on.

- VECO's original checkpoints as synthetic state dicts of exactly their layouts: the fixture `originals`.
- The folder of a tiny VECO: `veco_dir`.
- What ErnieM of transformers 4 gives, and folders as it saved them: `ernie_m_oracle`.
- Programs that load saved folders in a process of their own: `fresh_process`.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.nn import functional as F

from tests.modeling.tiny import made

TOKENS = 2000  # of the sample tokenizer
HIDDEN, HEADS, INNER, POSITIONS, LAYERS = 16, 4, 24, 40, 3
ROOT = 4.0  # of HIDDEN
SIZES = dict(hidden_size=HIDDEN, num_attention_heads=HEADS, intermediate_size=INNER, max_position_embeddings=POSITIONS)


@pytest.fixture(scope="session")
def originals():
    """This module: sizes, makers of state dicts, and a fairseq forward pass to compare with."""
    return sys.modules[__name__]


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    """Flex attention by its own eager code: its masks are what is tested, and a machine may have no C++ compiler."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def options(sample_tokenizer_dir):
    """The options that a converter of these checkpoints needs."""
    return {"tokenizer": str(sample_tokenizer_dir), "num_attention_heads": HEADS}


class Maker:
    """Random tensors far from their initial values, the LayerNorms about 1."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape, offset=0.0, scale=0.2):
        return offset + scale * torch.randn(*shape, generator=self.generator)

    def linear(self, state, name, size_out=HIDDEN, size_in=HIDDEN):
        state[f"{name}.weight"], state[f"{name}.bias"] = self(size_out, size_in), self(size_out)

    def norm(self, state, name, kinds=("weight", "bias")):
        state[f"{name}.{kinds[0]}"], state[f"{name}.{kinds[1]}"] = self(HIDDEN, offset=1.0), self(HIDDEN)


def native_state(prefix="bert.", kinds=("gamma", "beta"), cross=True, layers=LAYERS, rows=TOKENS):
    make, state = Maker(), {}
    state[f"{prefix}embeddings.word_embeddings.weight"] = make(rows, HIDDEN)
    state[f"{prefix}embeddings.position_embeddings.weight"] = make(POSITIONS, HIDDEN)
    state[f"{prefix}embeddings.token_type_embeddings.weight"] = make(1, HIDDEN)
    make.norm(state, f"{prefix}embeddings.LayerNorm", kinds)
    for layer in range(layers):
        start = f"{prefix}encoder.layer.{layer}"
        for block in ("attention", "cross_attention") if cross else ("attention",):
            for part in ("query", "key", "value"):
                make.linear(state, f"{start}.{block}.self.{part}")
            make.linear(state, f"{start}.{block}.output.dense")
            make.norm(state, f"{start}.{block}.output.LayerNorm", kinds)
        make.linear(state, f"{start}.intermediate.dense", INNER)
        make.linear(state, f"{start}.output.dense", HIDDEN, INNER)
        make.norm(state, f"{start}.output.LayerNorm", kinds)
    return state


def fairseq_attention(make, state, name):
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        make.linear(state, f"{name}.{part}")
    make.norm(state, f"{name}_layer_norm")


def fairseq_layer(make, state, name):
    fairseq_attention(make, state, f"{name}.self_attn")
    make.linear(state, f"{name}.fc1", INNER)
    make.linear(state, f"{name}.fc2", HIDDEN, INNER)
    make.norm(state, f"{name}.final_layer_norm")


def fairseq_state(layers=LAYERS, decoder=(0, 1, 2), tied=True, words=0.4):
    """`decoder`: the encoder layer that each decoder layer is (`tied`) or began as."""
    make, state = Maker(), {"encoder.version": torch.tensor([3.0])}
    state["encoder.embed_tokens.weight"] = make(TOKENS, HIDDEN, scale=words)
    state["encoder.embed_positions.weight"] = make(POSITIONS, HIDDEN)
    make.norm(state, "encoder.layernorm_embedding")
    for layer in range(layers):
        fairseq_layer(make, state, f"encoder.layers.{layer}")
    if not decoder:
        return state
    state["decoder.version"] = torch.tensor([3.0])
    state["decoder.embed_positions._float_tensor"] = torch.zeros(1)
    for name in ("embed_tokens.weight", "embed_positions.weight"):
        state[f"decoder.{name}"] = state[f"encoder.{name}"].clone()
    for kind in ("weight", "bias"):
        state[f"decoder.layernorm_embedding.{kind}"] = state[f"encoder.layernorm_embedding.{kind}"].clone()
    state["decoder.output_projection.weight"] = state["encoder.embed_tokens.weight"].clone()
    for index, layer in enumerate(decoder):
        origin = f"encoder.layers.{layer}."
        for key in [key for key in state if key.startswith(origin)]:
            moved = 0.0 if tied else make(*state[key].shape, scale=0.02)
            state[key.replace(origin, f"decoder.layers.{index}.", 1)] = state[key] + moved
        fairseq_attention(make, state, f"decoder.layers.{index}.encoder_attn")
    return state


class FairseqForward:
    """fairseq's post-LN transformer, written out on the names of its state dict."""

    def __init__(self, state, scale):
        self.state, self.scale = state, scale

    def linear(self, name, states):
        return F.linear(states, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def norm(self, name, states):
        return F.layer_norm(states, (HIDDEN,), self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def embed(self, side, ids):
        positions = torch.arange(ids.shape[1]) + 2
        words = self.scale * self.state["encoder.embed_tokens.weight"][ids]
        return self.norm(f"{side}.layernorm_embedding", words + self.state[f"{side}.embed_positions.weight"][positions])

    def attention(self, name, states, keys, is_causal=False):
        def heads(part, from_states):
            return self.linear(f"{name}.{part}", from_states).unflatten(-1, (HEADS, -1)).transpose(1, 2)

        scores = heads("q_proj", states) @ heads("k_proj", keys).transpose(2, 3) / (HIDDEN // HEADS) ** 0.5
        if is_causal:
            scores = scores + torch.full(scores.shape[2:], -torch.inf).triu(1)
        mixed = (scores.softmax(-1) @ heads("v_proj", keys)).transpose(1, 2).flatten(2)
        return self.norm(f"{name}_layer_norm", states + self.linear(f"{name}.out_proj", mixed))

    def side(self, side, ids, memory=None):
        states = self.embed(side, ids)
        layers = 1 + max(int(key.split(".")[2]) for key in self.state if key.startswith(f"{side}.layers."))
        for layer in range(layers):
            name = f"{side}.layers.{layer}"
            states = self.attention(f"{name}.self_attn", states, states, is_causal=memory is not None)
            if memory is not None:
                states = self.attention(f"{name}.encoder_attn", states, memory)
            inner = F.gelu(self.linear(f"{name}.fc1", states))
            states = self.norm(f"{name}.final_layer_norm", states + self.linear(f"{name}.fc2", inner))
        return states

    def logits(self, source, target):
        states = self.side("decoder", target, self.side("encoder", source))
        return states @ self.state["encoder.embed_tokens.weight"].T


def ids(length, seed=1, rows=2):
    return torch.randint(4, TOKENS - 1, (rows, length), generator=torch.Generator().manual_seed(seed))


def saved(tmp_path, state, args=None, name="checkpoint.pt"):
    path = tmp_path / name
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state if args is None else {"model": state, "args": argparse.Namespace(**args)}, path)
    return str(path)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


@pytest.fixture(scope="session")
def veco_dir(tmp_path_factory):
    """A pre-trained VECO's folder, cross-attention and LM head included."""
    folder = tmp_path_factory.mktemp("veco")
    made("veco", attention_scale=0.4).save_pretrained(folder)
    return folder


# ERNIE-M of transformers 4


class ErnieMOracle:
    """The content of ernie_m_oracle.npz: what tiny ErnieM models of transformers 4.57.6 give.

    By name: `config/<class>`; `weights/<class>/<key>`, in half precision, so that no generator of random numbers is
    needed (classes share those of the base model); `inputs/<case>/<field>` and `outputs/<class>/<case>/<field>` of a
    forward pass in evaluation mode, position_ids counted from 0; `tokenizer/<file>`; `tokens`, sentences of the sample
    corpus and their encodings, as JSON.
    """

    def __init__(self):
        with np.load(Path(__file__).with_name("ernie_m_oracle.npz")) as file:
            self.arrays = dict(file)
        self.tokens = json.loads(str(self.arrays["tokens"]))
        self.cases = list(dict.fromkeys(name.split("/")[1] for name in self.arrays if name.startswith("inputs/")))

    def under(self, prefix):
        """Name below `prefix` -> tensor."""
        found = {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}
        return {name: torch.from_numpy(array) for name, array in found.items()}

    def weights(self, cls):
        """The state dict of a class of transformers 4."""
        body = self.under("weights/ErnieMModel/")
        if cls == "ErnieMModel":
            return {key: tensor.float() for key, tensor in body.items()}
        has_pooler = cls == "ErnieMForSequenceClassification"
        body = {f"ernie_m.{key}": tensor for key, tensor in body.items() if has_pooler or not key.startswith("pooler")}
        return {key: tensor.float() for key, tensor in (body | self.under(f"weights/{cls}/")).items()}

    def inputs(self, case):
        return self.under(f"inputs/{case}/")

    def outputs(self, cls, case):
        return self.under(f"outputs/{cls}/{case}/")

    def config(self, cls):
        return json.loads(str(self.arrays[f"config/{cls}"]))

    def save_tokenizer(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in self.arrays.items():
            if name.startswith("tokenizer/"):
                (folder / name.removeprefix("tokenizer/")).write_bytes(array.tobytes())
        return folder

    def save(self, cls, folder, weights=None, **config):
        """A folder as transformers 4 saved it."""
        self.save_tokenizer(folder)
        (folder / "config.json").write_text(json.dumps(self.config(cls) | config))
        weights = self.weights(cls) if weights is None else weights
        safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder


@pytest.fixture(scope="session")
def ernie_m_oracle():
    """What ErnieM of transformers 4.57.6 gives on tiny models and short texts."""
    return ErnieMOracle()


# programs that load saved folders


@pytest.fixture(scope="session")
def fresh_process(tmp_path_factory):
    """`fresh_process(program, *arguments, path=None)`: what a Python program of its own leaves in a file of torch.save.

    It runs offline, in another directory, with an empty HF_HOME and warnings as errors. The arguments reach it as JSON
    in sys.argv[1:], behind the name of the file, sys.argv[1]; `path` goes first on its PYTHONPATH.
    """

    def run(program, *arguments, path=None):
        home = tmp_path_factory.mktemp("fresh_process")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
        environment |= {"HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1"}
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        command = [sys.executable, "-W", "error", "-c", program, str(home / "found.pt"), *map(json.dumps, arguments)]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return torch.load(home / "found.pt", weights_only=False)

    return run
