"""Loads the aligner of the options; what the commands print on stderr."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any


def load_aligner(options: Namespace, screen: Any, all_layers: bool = False, **rule: Any) -> Any:
    """Loads the aligner, and prints its layer and precision; `rule` are arguments of `WordAligner.from_pretrained`.

    Raises ValueError for a model or a device that cannot be used.
    """
    import torch
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging

    from finetuning.models import find_model, readable_errors
    from modeling.checkpoints import check_vocabulary
    from modeling.word_alignment import WordAligner
    from zoo_core.processes import main_first
    from zoo_core.provenance import model_files

    logging.set_verbosity_error()
    logging.disable_progress_bar()  # of loading; that of a download is shown
    if not options.quiet:
        enable_progress_bars()
    with main_first(), readable_errors(options.model):
        device, path = _device(options.device), find_model(options.model)
        if Path(path).is_dir():
            model_files(Path(path))
        aligner = WordAligner.from_pretrained(
            path,
            all_layers=all_layers,
            device=device,
            dtype=torch.bfloat16 if options.precision == "bf16" else torch.float32,
            trust_remote_code=options.trust_remote_code,
            batch_size=options.batch_size or (256 if device.type == "cuda" else 16),
            **rule,
        )
    check_vocabulary(aligner.tokenizer, aligner.states.model.config, path)
    # bfloat16 keeps 8 bits, and products of matrices add in an order that depends on the shape of the batch
    effect = ": about 1 link in 200 depends on the other pairs of the batch" if options.precision == "bf16" else ""
    screen.print(f"layer {aligner.layer} of {aligner.depth}, precision {options.precision}{effect}")
    return aligner


def _device(name: str | None) -> Any:
    import torch
    from accelerate import PartialState

    state = PartialState()
    if state.num_processes > 1:
        if name not in (None, state.device.type):
            raise ValueError(f"--device is {name}, and each process takes its own {state.device.type}. Leave it out.")
        return state.device
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"--device {name} cannot be used: {reason}.") from None


def make_screen(quiet: bool) -> Any:
    """The console of stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True, quiet=quiet)


def make_progress(screen: Any, to_stdout: bool = False) -> Any:
    """A bar on stderr: pairs done, pairs a second and what is left."""
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    return Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        redirect_stdout=False,  # links go there
        disable=screen.quiet or not screen.is_terminal or (to_stdout and sys.stdout.isatty()),  # links scroll by
    )


def report_unspaced(unspaced: int, screen: Any) -> None:
    """Prints how many pairs have a side without blanks, and what to do."""
    if unspaced:
        screen.print(
            f"{unspaced:,} pairs have no blanks between the words of a side (Chinese, Japanese, Thai, ...), and each "
            "run of characters counts as one word. --split splits running text."
        )
