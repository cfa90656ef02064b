"""Training of only those rows of the word embeddings whose tokens are in the training data.

At |V| = 250,002 the word embeddings are most of a base model, and a fine-tuning run sees a tenth of the tokens. The
other rows get a gradient of zero in every step: AdamW only applies its decoupled weight decay to them,
which multiplies all of them by the same number. So the Trainer trains a matrix of the used rows, with a gradient and
optimizer state of this size, and multiplies the other rows by the product of these numbers before they are read. The
model that is saved, evaluated and returned is an ordinary one, with the weights that training all rows would give.

Legend: `V` vocabulary, `U` rows that are used, `H` hidden size, `B` sequences, `T` positions.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from accelerate import DistributedType
from datasets import Dataset
from torch import nn
from torch.nn import functional as F

from finetuning.data.task_tables import TRANSLATION

FIELDS = ("input_ids", TRANSLATION + "input_ids")  # fields of a training row with tokens
# In addition to the frozen matrix there are weights, gradient and two moments of the used rows, instead of gradient and
# moments of all rows: 4 U instead of 3 V.
WORTH_IT = 3 / 4
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


class UsedRows(nn.Embedding):
    """Word embeddings with the parameters `rows` (U, H), which are trained, and `weight` (V, H), which is frozen.

    In training mode every token must be a used one. In evaluation mode any token is read from `weight`, which is
    brought up to date when that mode begins. The state dict is that of `nn.Embedding`: only `weight`, up to date.
    """

    def __init__(self, embedding: nn.Embedding, ids_U: torch.Tensor):
        full_VH = embedding.weight.detach()
        super().__init__(*full_VH.shape, padding_idx=embedding.padding_idx, _weight=full_VH, _freeze=True)
        ids_U = ids_U.to(full_VH.device)
        row_of_V = torch.full((len(full_VH),), -1, device=full_VH.device)  # -1: no row; looking one up is an error
        row_of_V[ids_U] = torch.arange(len(ids_U), device=full_VH.device)
        self.register_buffer("ids_U", ids_U, persistent=False)
        self.register_buffer("row_of_V", row_of_V, persistent=False)
        self.rows = nn.Parameter(full_VH[ids_U])
        # its row gets no gradient
        self.padding_row = None if self.padding_idx is None else int(row_of_V[self.padding_idx])
        self.decay = 1.0  # of the other rows since `weight` was up to date

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(B, T) ids of tokens -> (B, T, H)."""
        if not self.training:
            return super().forward(input)
        return F.embedding(self.row_of_V[input], self.rows, self.padding_row)

    def train(self, mode: bool = True) -> "UsedRows":
        """As `nn.Module.train`; evaluation reads `weight`."""
        if not mode:
            self.write_back()
        return super().train(mode)

    @torch.no_grad()
    def write_back(self) -> None:
        """Brings all of `weight` (V, H) up to date."""
        if self.decay != 1.0:
            self.weight.mul_(self.decay)
            self.decay = 1.0
        self.weight[self.ids_U] = self.rows

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes the unused rows decay with every step of this optimizer, an AdamW."""

        def decay_others(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            found_inf = getattr(optimizer, "found_inf", None)  # set by fp16's loss scaling: the step was skipped
            if found_inf is not None and found_inf.item():
                return
            for group in optimizer.param_groups:
                if any(parameter is self.rows for parameter in group["params"]):
                    self.decay *= 1 - group["lr"] * group["weight_decay"]

        optimizer.register_step_post_hook(decay_others)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.write_back()
        destination[prefix + "weight"] = self.weight if keep_vars else self.weight.detach()

    def _load_from_state_dict(self, state_dict: dict, prefix: str, metadata: dict, strict: bool, missing: list, *rest):
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *rest)
        if prefix + "rows" in missing:
            missing.remove(prefix + "rows")
        self.decay = 1.0
        with torch.no_grad():
            self.rows.copy_(self.weight[self.ids_U])


class TrainsUsedRows:
    """Mixin of a Trainer: trains only the used rows of the word embeddings, if that gives the same model."""

    used_rows_only: bool = True

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's method; before and after it the model has its ordinary embeddings."""
        if not self.used_rows_only:
            return super().train(*args, **kwargs)
        size = getattr(_embedding_of(self.model), "num_embeddings", 0)
        if not size:
            return super().train(*args, **kwargs)
        used_V = self.used_tokens(size)
        special_ids = np.array(self.processing_class.all_special_ids)  # padding among them
        used_V[special_ids[special_ids < size]] = True
        why_not = cannot_apply(self.model, self.accelerator.distributed_type, used_V.mean())
        if why_not:
            if self.is_world_process_zero():
                print(f"all rows of the word embeddings are trained: {why_not}")
            return super().train(*args, **kwargs)
        with only_rows(self.model, torch.from_numpy(used_V.nonzero()[0])):
            return super().train(*args, **kwargs)

    def used_tokens(self, size: int) -> np.ndarray:
        """(V,) whether a token is in the training rows; V is `size`."""
        return used_tokens(self.train_dataset, size)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As the Trainer's method; the rows that the optimizer does not hold then decay with it."""
        optimizer = super().create_optimizer(model)
        if isinstance(embedding := _embedding_of(self.model), UsedRows):
            embedding.follow(optimizer)
        return optimizer


def used_tokens(rows: Dataset, size: int) -> np.ndarray:
    """(V,) whether a token is in any of the rows, translations included."""
    used_V = np.zeros(size, dtype=bool)
    for field in FIELDS:
        if field in rows.column_names:
            for batch in rows.select_columns(field).with_format("arrow").iter(10_000):
                used_V[batch[field].combine_chunks().flatten().to_numpy()] = True
    return used_V


def _embedding_of(model: nn.Module) -> nn.Module | None:
    """The word embeddings; None if the model says that it has none, such as a model of characters."""
    try:
        return model.get_input_embeddings()
    except NotImplementedError:
        return None


def cannot_apply(model: nn.Module, distributed_type: Any, share: float) -> str | None:
    """Returns why all rows of a model's word embeddings must be trained, or None; a `share` of them is used."""
    embedding = model.get_input_embeddings()
    if not _looks_up(embedding):
        return f"{type(embedding).__name__} does more than look up rows"
    if not embedding.weight.requires_grad:
        return "they are frozen"
    if sum(parameter is embedding.weight for _, parameter in model.named_parameters(remove_duplicate=False)) > 1:
        return "another layer shares them, and has a gradient for each row"
    if distributed_type in SHARDED:
        return f"{distributed_type.value} divides them among the processes"
    if share > WORTH_IT:
        return "training fewer rows would save no memory"
    return None


def _looks_up(embedding: nn.Module) -> bool:
    """Whether a layer returns the rows of its matrix unchanged; a model's own class may do so, too."""
    if not isinstance(embedding, nn.Embedding):
        return False
    some = torch.arange(min(8, embedding.num_embeddings), device=embedding.weight.device)
    with torch.no_grad():
        return torch.equal(embedding(some), embedding.weight[some])


@contextlib.contextmanager
def only_rows(model: nn.Module, ids_U: torch.Tensor) -> Iterator[UsedRows]:
    """Gives the model `UsedRows` as its word embeddings in this block; after it, they hold what was learned."""
    ordinary = model.get_input_embeddings()
    used = UsedRows(ordinary, ids_U)
    model.set_input_embeddings(used)
    try:
        yield used
    finally:
        used.write_back()
        ordinary.weight = nn.Parameter(used.weight.detach())  # on the device that the Trainer has moved it to
        ordinary.train(used.training)
        model.set_input_embeddings(ordinary)
