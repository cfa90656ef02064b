"""Training on only those rows of the word embeddings that the training rows' tokens name.

At |V| = 250,002 the word embeddings are most of a base model, and a fine-tuning run sees a tenth of the tokens. The
other rows get a gradient of zero in every step: AdamW leaves them as they are but for its decoupled weight decay,
which multiplies all of them by the same number. So a matrix of the used rows is trained, with a gradient and an
optimizer state of its size, and the others take the product of these numbers whenever somebody reads them. What is
saved, evaluated and returned is the ordinary model, with the weights that training all rows gives.

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

FIELDS = ("input_ids", TRANSLATION + "input_ids")  # of a training row, that hold tokens
# Weights, gradient and two moments of the used rows stand beside the frozen matrix, in place of gradient and moments of
# all rows: 4 U against 3 V.
WORTH_IT = 3 / 4
SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


class UsedRows(nn.Embedding):
    """Word embeddings with the parameters `rows` (U, H), which are trained, and `weight` (V, H), which is frozen.

    In training mode every token has to be a used one. In evaluation mode any token is read, from `weight`, which is
    brought up to date when that mode begins. The state is that of `nn.Embedding`, `weight` alone, up to date.
    """

    def __init__(self, embedding: nn.Embedding, ids_U: torch.Tensor):
        full_VH = embedding.weight.detach()
        super().__init__(*full_VH.shape, padding_idx=embedding.padding_idx, _weight=full_VH, _freeze=True)
        ids_U = ids_U.to(full_VH.device)
        row_of_V = torch.full((len(full_VH),), -1, device=full_VH.device)  # -1: no row, an error where one is looked up
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
        """As everywhere; evaluation reads `weight`."""
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
        """From now on the rows that are not used decay with every step of this optimizer, an AdamW."""

        def decay_others(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            found_inf = getattr(optimizer, "found_inf", None)  # of fp16's loss scaling: the step was left out
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
    """Mixin of a Trainer: trains the used rows of the word embeddings alone, where that gives the same model."""

    used_rows_only: bool = True

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's; before and after it the model has its ordinary embeddings."""
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
        """(V,) whether a token stands in the training rows; V is `size`."""
        return used_tokens(self.train_dataset, size)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The Trainer's, followed by the rows that it does not hold."""
        optimizer = super().create_optimizer(model)
        if isinstance(embedding := _embedding_of(self.model), UsedRows):
            embedding.follow(optimizer)
        return optimizer


def used_tokens(rows: Dataset, size: int) -> np.ndarray:
    """(V,) whether a token stands in any of the rows, translations included."""
    used_V = np.zeros(size, dtype=bool)
    for field in FIELDS:
        if field in rows.column_names:
            for batch in rows.select_columns(field).with_format("arrow").iter(10_000):
                used_V[batch[field].combine_chunks().flatten().to_numpy()] = True
    return used_V


def _embedding_of(model: nn.Module) -> nn.Module | None:
    """The word embeddings; None of a model that has none, as one of characters, and says so."""
    try:
        return model.get_input_embeddings()
    except NotImplementedError:
        return None


def cannot_apply(model: nn.Module, distributed_type: Any, share: float) -> str | None:
    """Why a model has to be trained on all rows of its word embeddings, of which a `share` is used; None if not."""
    embedding = model.get_input_embeddings()
    if not _looks_up(embedding):
        return f"{type(embedding).__name__} does more than look rows up"
    if not embedding.weight.requires_grad:
        return "they are frozen"
    if sum(parameter is embedding.weight for _, parameter in model.named_parameters(remove_duplicate=False)) > 1:
        return "another layer shares them, and has a gradient for each row"
    if distributed_type in SHARDED:
        return f"{distributed_type.value} divides them among the processes"
    if share > WORTH_IT:
        return "nothing would be saved by leaving the others out"
    return None


def _looks_up(embedding: nn.Module) -> bool:
    """Whether a layer gives the rows of its matrix as they are; a class of its own, as in a model's code, may do so."""
    if not isinstance(embedding, nn.Embedding):
        return False
    some = torch.arange(min(8, embedding.num_embeddings), device=embedding.weight.device)
    with torch.no_grad():
        return torch.equal(embedding(some), embedding.weight[some])


@contextlib.contextmanager
def only_rows(model: nn.Module, ids_U: torch.Tensor) -> Iterator[UsedRows]:
    """The model with `UsedRows` as its word embeddings, for this block; behind it, all that was learned is in them."""
    ordinary = model.get_input_embeddings()
    used = UsedRows(ordinary, ids_U)
    model.set_input_embeddings(used)
    try:
        yield used
    finally:
        used.write_back()
        ordinary.weight = nn.Parameter(used.weight.detach())  # on the device to which the Trainer has moved it
        ordinary.train(used.training)
        model.set_input_embeddings(ordinary)
