"""The aligner that the options ask for, and its layer."""

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from finetuning.align.pairs import Side
from finetuning.align.screen import count_of

PAIRS_FOR_LAYER, LEAST_PAIRS_FOR_LAYER = 200, 20


def load_aligner(flags: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The aligner, and what decides about its links and how they are written, for the file of state."""
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    from finetuning.checkpoints import describe_model, load_pretrained
    from modeling.word_alignment import WordAligner

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    device = _device(flags.device)
    path, _, tokenizer, identity = describe_model(
        flags.model, flags.tokenizer, trust_remote_code=flags.trust_remote_code
    )
    model = load_pretrained(
        AutoModel,
        path,
        flags.model,
        flags.trust_remote_code,
        dtype=torch.bfloat16 if flags.precision == "bf16" else torch.float32,
    )
    given = {"symmetrization": flags.symmetrization, "threshold": flags.threshold}
    matching = {name: value for name, value in given.items() if value is not None}
    given = {name: getattr(flags, name) for name in ("method", "layer", "encoding")}
    given["batch_size"] = flags.batch_size or (256 if device.type == "cuda" else 64)
    aligner = WordAligner(model.to(device), tokenizer, **given, **matching)
    settings = {
        "model": identity["fingerprint"],
        "tokenizer": flags.tokenizer,
        **{name: getattr(aligner, name) for name in ("method", "layer", "encoding", "window", "overlap")},
        "matching": matching,
        **{name: getattr(flags, name) for name in ("precision", "output_format", "probabilities", "languages")},
    }
    return aligner, settings


def _device(name: str | None) -> Any:
    import torch

    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"--device {name} cannot be used: {reason}.") from None


def report_precision(flags: argparse.Namespace, screen: Any) -> None:
    """Says in which precision the encoder runs, and what follows from it."""
    if not flags.sentences:
        # bfloat16 keeps 8 bits, and products of matrices add in an order that depends on the shape of the batch
        effect = ": about 1 link in 200 depends on the other pairs of the batch" if flags.precision == "bf16" else ""
        screen.print(f"precision {flags.precision}{effect} (--precision)")


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """A batch that the device has no room for, as an error of the user's."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"The device ran out of memory: {reason} Lower --batch-size.") from None


def choose_layer(
    aligner: Any, pairs: Iterable[tuple[Side, Side]], earlier: int | None, flags: argparse.Namespace, screen: Any
) -> Iterator[tuple[Side, Side]]:
    """Sets the aligner's layer by the first pairs, or to that of an earlier run, and says so. Returns all pairs."""
    pairs = iter(pairs)
    if flags.sentences:  # of one pair nothing else was to be expected
        return pairs
    of = f"of {aligner.num_layers}"
    if aligner.recommended_layer is not None:
        screen.print(f"layer {aligner.layer} {of}: the model's configuration recommends it (--layer auto)")
        return pairs
    if earlier is not None and earlier <= aligner.num_layers:
        aligner.layer = earlier
        return pairs
    first = list(islice(pairs, PAIRS_FOR_LAYER))
    usable = [pair for pair in first if all("".join(side).strip() for side in pair)]
    if len(usable) < LEAST_PAIRS_FOR_LAYER:
        few = f"{count_of(len(usable), 'pair')} cannot tell the best"
        screen.print(f"layer {aligner.layer} {of}, at two thirds: {few} (--layer auto)")
    else:
        with screen.status("comparing layers"), memory_errors():
            values = aligner.compare_layers(usable)
        aligner.layer = max(values, key=values.get)
        why = f"it best tells {len(usable):,} pairs from sentences that do not belong together"
        screen.print(f"layer {aligner.layer} {of}: {why} (--layer auto)")
    return chain(first, pairs)
