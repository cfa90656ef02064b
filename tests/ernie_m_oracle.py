"""What ErnieM of transformers 4 gives, from a file."""

import json
from pathlib import Path

import numpy as np
import safetensors.torch
import torch


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
