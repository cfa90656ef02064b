"""Tiny models of every type, and sentences and pairs of them in every layout of a batch, for several files."""

import importlib

import torch
from tokenizers import processors
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerFast

from tests.conftest import PREFIXES

PAD = 1
MASK = 60
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
VECTOR_SIZE = 24  # of the vectors of `ragged`
SIZES = dict(vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64)
SIZES |= dict(max_position_embeddings=60, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
SIZES |= dict(type_vocab_size=1, layer_norm_eps=1e-5)
LAYOUTS = ["padded left", "padded right"]
PADDING = {"input_ids": PAD, "labels": -100, "segment_ids": -1, "special_tokens_mask": 1, "language_ids": 0, "draws": 0}


def class_of(model_type, head="ForPreTraining"):
    """The class of a model type and a head, such as `Model` or `ForMaskedLM`."""
    module = importlib.import_module(f"crosslingual_zoo.modeling.modeling_{model_type}")
    return getattr(module, PREFIXES[model_type] + head)


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


def fast_tokenizer(backend):
    """A tokenizer of a backend that begins with SPECIAL_TOKENS; it makes `<s> x </s>` and `<s> x </s></s> y </s>`."""
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=512, **names)


def pair_row(seed, sides, masked=(), languages=(0, 0)):
    """Fields of `<s> x </s></s> y </s>` or `<s> x </s>`; sides are lengths or tokens, `masked` what is predicted."""
    generator = torch.Generator().manual_seed(seed)
    gold = []
    segments = []
    is_special = []
    for segment, side in enumerate(sides):
        if isinstance(side, int):
            side = torch.randint(4, MASK, (side,), generator=generator).tolist()
        gold += [2 if segment else 0, *side, 2]
        segments += [segment] * (len(side) + 2)
        is_special += [1, *[0] * len(side), 1]
    gold = torch.tensor(gold)
    segments = torch.tensor(segments)
    is_special = torch.tensor(is_special)
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


def batch_of(rows, layout):
    """The rows as a sub-batch."""
    longest = max(len(fields["labels"]) for fields in rows)
    stacks = {name: [] for name in [*PADDING, "attention_mask"]}
    for fields in rows:
        missing = longest - len(fields["labels"])
        sides = (missing, 0) if layout == "padded left" else (0, missing)
        for name, value in PADDING.items():
            stacks[name].append(pad(fields[name], sides, value=value))
        stacks["attention_mask"].append(pad(torch.ones_like(fields["labels"]), sides))
    return {name: torch.stack(padded) for name, padded in stacks.items()}


def sources(padding="right"):
    """Four rows `<s> x </s>` of different lengths, padded on one side: (input_ids, attention_mask)."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for length in (7, 5, 3, 1):
        side = torch.randint(4, 24, (length,), generator=generator).tolist()
        rows.append(pair_row(0, [side]))
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
    parameters = dict(model.named_parameters())
    return {name: parameter.grad.clone() for name, parameter in parameters.items() if parameter.grad is not None}


def starts_of(rows, layout):
    """The first column of each row in a batch of this layout."""
    lengths = [len(fields["input_ids"]) for fields in rows]
    return [max(lengths) - length if layout == "padded left" else 0 for length in lengths]


def whole(*shape):
    """Masks that let every token of matrices of this shape, (S, T) or (B, S, T), be linked."""
    pairs, sources, targets = (1, *shape)[-3:]
    return torch.ones(pairs, sources, dtype=torch.bool), torch.ones(pairs, targets, dtype=torch.bool)


def cells(links):
    """Links as a set of (row, column)."""
    return {tuple(cell) for cell in torch.as_tensor(links).nonzero().tolist()}


def parsed(links):
    """{(source, target)} of links such as `0-0 1-2`."""
    return {tuple(map(int, link.split("-"))) for link in links.split()}


def scattered(sequences, generator):
    """Sequences of vectors in the columns of a batch, with NaN before, between and behind: (vectors, mask)."""
    padded_BNH = torch.full((len(sequences), 34, VECTOR_SIZE), torch.nan)
    mask_BN = torch.zeros(len(sequences), 34, dtype=torch.bool)
    for row, vectors in enumerate(sequences):
        columns = torch.randperm(34, generator=generator)[: len(vectors)].sort().values
        padded_BNH[row, columns] = vectors
        mask_BN[row, columns] = True
    return padded_BNH, mask_BN


def ragged(generator, pairs=40):
    """Vectors of pairs with lengths from 0 to 30, as they are, and padded: (x, y, mask of x, mask of y)."""
    lengths_B2 = torch.randint(0, 31, (pairs, 2), generator=generator).tolist()
    alone = []
    for source_length, target_length in lengths_B2:
        x = torch.randn(source_length, VECTOR_SIZE, generator=generator)
        y = torch.randn(target_length, VECTOR_SIZE, generator=generator)
        alone.append((x, y))
    x_BSH, source_mask_BS = scattered([x for x, _ in alone], generator)
    y_BTH, target_mask_BT = scattered([y for _, y in alone], generator)
    return alone, (x_BSH, y_BTH, source_mask_BS, target_mask_BT)
