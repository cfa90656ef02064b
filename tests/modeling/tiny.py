"""Tiny models of every type, and sentences and pairs of them in every layout of a batch, for several files."""

import importlib

import torch
from torch.nn.functional import pad

PREFIXES = {"veco": "Veco", "ernie_m": "ErnieM", "xlm_align": "XlmAlign", "metaxlm": "MetaXlm"}
PAD, MASK = 1, 60
VECTOR_SIZE = 24  # of the vectors of `ragged`
SIZES = dict(vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64)
SIZES |= dict(max_position_embeddings=60, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
SIZES |= dict(type_vocab_size=1, layer_norm_eps=1e-5)
LAYOUTS = ["padded left", "padded right"]
PADDING = {"input_ids": PAD, "labels": -100, "segment_ids": -1, "special_tokens_mask": 1, "language_ids": 0, "draws": 0}


def class_of(model_type, head="ForPreTraining"):
    """The class of a model type and a head, such as `Model` or `ForMaskedLM`."""
    return getattr(
        importlib.import_module(f"crosslingual_zoo.modeling.modeling_{model_type}"), PREFIXES[model_type] + head
    )


def far_from_initial(model, scale=0.15):
    """Weights far from their initial values, so that no term of the computation vanishes; in evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1.0 if name.endswith("orm.weight") else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale + mean)
    return model.eval()


def made(model_type, head="ForPreTraining", attention="sdpa", **config):
    """A model of `SIZES`, changed by `config`, with weights far from their initial values."""
    cls = class_of(model_type, head)
    torch.manual_seed(0)
    model = cls._from_config(cls.config_class(**SIZES | config), attn_implementation=attention)
    return far_from_initial(model)


def sources(padding="right"):
    """Four rows `<s> x </s>` of different lengths, padded on one side: (input_ids, attention_mask)."""
    generator = torch.Generator().manual_seed(1)
    sides = [torch.randint(4, 24, (length,), generator=generator).tolist() for length in (7, 5, 3, 1)]
    rows = [pair_row(0, [side]) for side in sides]
    batch = batch_of(rows, f"padded {padding}")
    return batch["input_ids"], batch["attention_mask"]


def targets():
    """Four rows `y </s>` of different lengths, -100 behind."""
    rows = [torch.tensor([*range(5 + 9 * row, 11 + 8 * row), 2]) for row in range(4)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)


def gradients(model, loss):
    """name -> the gradient of the loss alone, of every parameter that has one."""
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def pair_row(seed, sides, masked=(), languages=(0, 0)):
    """Fields of `<s> x </s></s> y </s>` or `<s> x </s>`; sides are lengths or tokens, `masked` what is predicted."""
    generator = torch.Generator().manual_seed(seed)
    sides = [
        torch.randint(4, MASK, (side,), generator=generator).tolist() if isinstance(side, int) else list(side)
        for side in sides
    ]
    gold = torch.tensor([token for index, side in enumerate(sides) for token in (2 if index else 0, *side, 2)])
    segments = torch.tensor([index for index, side in enumerate(sides) for _ in range(len(side) + 2)])
    is_special = torch.tensor([flag for side in sides for flag in (1, *[0] * len(side), 1)])
    is_masked = torch.zeros(len(gold), dtype=torch.bool)
    is_masked[list(masked)] = True
    assert not is_special[is_masked].any()
    return {
        "input_ids": torch.where(is_masked, MASK, gold),
        "labels": torch.where(is_masked, gold, -100),
        "segment_ids": segments,
        "special_tokens_mask": is_special,
        "language_ids": torch.tensor(languages)[segments],
        "draws": torch.randint(2**31, (len(gold),), generator=generator),
    }


def places_of(rows, layout):
    """The row and the first column of each example in a batch of this layout."""
    lengths = [len(fields["input_ids"]) for fields in rows]
    return [(index, max(lengths) - n if layout == "padded left" else 0) for index, n in enumerate(lengths)]


def batch_of(rows, layout):
    """The rows as a sub-batch."""
    longest, batch = max(len(fields["labels"]) for fields in rows), {}
    for fields in rows:
        missing = longest - len(fields["labels"])
        sides = (missing, 0) if layout == "padded left" else (0, missing)
        for name, value in PADDING.items():
            batch.setdefault(name, []).append(pad(fields[name], sides, value=value))
        batch.setdefault("attention_mask", []).append(pad(torch.ones_like(fields["labels"]), sides))
    return {name: torch.stack(values) for name, values in batch.items()}


def whole(*shape):
    """Masks that let every token of matrices of this shape be linked."""
    pairs, sources, targets = (1, *shape) if len(shape) == 2 else shape
    return torch.ones(pairs, sources, dtype=torch.bool), torch.ones(pairs, targets, dtype=torch.bool)


def cells(links):
    """Links as a set of (row, column)."""
    return {tuple(cell) for cell in torch.as_tensor(links).nonzero().tolist()}


def ragged(generator, pairs=40):
    """Vectors of pairs with lengths from 0 to 30, as they are and padded with NaN, in a pattern of their own."""
    alone = [
        [torch.randn(int(size), VECTOR_SIZE, generator=generator) for size in sizes]
        for sizes in torch.randint(0, 31, (pairs, 2), generator=generator)
    ]
    batch = []
    for side in (0, 1):
        padded_BNH = torch.full((pairs, 34, VECTOR_SIZE), torch.nan)
        mask_BN = torch.zeros(pairs, 34, dtype=torch.bool)
        for row, vectors in enumerate(pair[side] for pair in alone):
            where_N = torch.randperm(34, generator=generator)[: len(vectors)].sort().values
            padded_BNH[row, where_N], mask_BN[row, where_N] = vectors, True
        batch.append((padded_BNH, mask_BN))
    (x_BSH, source_mask_BS), (y_BTH, target_mask_BT) = batch
    return alone, (x_BSH, y_BTH, source_mask_BS, target_mask_BT)
