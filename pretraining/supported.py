"""Lists the models and objectives that work with an encoder: `python -m pretraining.supported CHECKPOINT`.

  python -m pretraining.supported jhu-clsp/mmBERT-base
  python -m pretraining.supported runs/xlm_align-smoke/model

CHECKPOINT is a folder or a Hub id. The command loads its weights and trains nothing.
"""

import contextlib
import io

from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from modeling.backbone import honors_block_masks
from modeling.checkpoints import check_weights, readable
from modeling.fresh_weights import fresh_weights
from modeling.model_types import MODEL_TYPES
from pretraining.objectives import OBJECTIVES
from pretraining.rows import specials_of
from pretraining.start.initialization import learnable, model_class
from pretraining.start.pretrained import Pretrained, listed
from zoo_core.command_line import CommandParser, user_errors
from zoo_core.console import quiet_libraries
from zoo_core.recipes import TRUST_REMOTE_CODE


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder or a Hub id")
    parser.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    parser.add_argument(
        "--hub_root",
        metavar="DIR",
        help="folder with copies of Hub repositories (DIR/owner/name); other ids are read from the Hub",
    )
    flags = parser.parse_args(argv)
    with user_errors():
        quiet_libraries()
        show(Pretrained(flags.checkpoint, "CHECKPOINT", flags.hub_root, flags.trust_remote_code))


def show(checkpoint: Pretrained) -> None:
    """Prints facts of the checkpoint and a table of models and objectives. Raises ValueError if it cannot be loaded."""
    name, path, tokenizer, config = checkpoint.name, checkpoint.path, checkpoint.tokenizer(), checkpoint.config()
    rows = {model: objectives_of(model, checkpoint) for model in MODEL_TYPES}
    if all(isinstance(found, str) for found in rows.values()):
        raise ValueError(next(iter(rows.values())))
    logging.set_verbosity_error()
    check_weights(path)
    with readable(path), contextlib.redirect_stderr(io.StringIO()):  # the library's bars
        own = config.model_type if config.model_type in MODEL_TYPES else "metaxlm"
        model, report = model_class(own, checkpoint).from_pretrained(
            path, output_loading_info=True, ignore_mismatched_sizes=True
        )
    config, fresh = model.config, fresh_weights(model, report, repr(name))
    encoder = "XLM-R's shape" if config.backbone_config is None else type(model.roberta.backbone).__name__
    depth = f"{config.num_hidden_layers} layers of {config.hidden_size}, up to {config.longest_input:,} positions"
    print(f"{name}: {encoder}, {depth}, {config.vocab_size:,} rows for {len(tokenizer):,} tokens")
    begin, middle, end = (" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids in specials_of(tokenizer))
    print(f"a text: {begin} x {end}; a pair: {begin} x {middle} y {end}; mask: {tokenizer.mask_token}")
    print(f"newly initialized: {listed(fresh)}; not used: {listed(report['unexpected_keys'])}")
    table = Table("model.type", "objectives that work", "objectives that do not", title_justify="left")
    for model_type, found in rows.items():
        can, cannot = ("", found) if isinstance(found, str) else found
        table.add_row(model_type, can, cannot)
    Console().print(table)
    if not honors_block_masks(config.backbone_config):
        print("`skip_padding` does not work: it needs its own attention masks, which this encoder does not support")
    print("fine-tuning and word-align work with it, both before and after pre-training")


def objectives_of(model_type: str, checkpoint: Pretrained) -> tuple[str, str] | str:
    """Returns the objectives that work for a model of this type from the checkpoint, and those that do not, with the
    reason. Returns an error's text if there is no such model."""
    cls = model_class(model_type, checkpoint)
    try:
        config = cls.config_class.from_pretrained(checkpoint.path)
    except (OSError, ValueError) as error:
        return str(error)
    names = learnable(cls)
    needing = [name for name in names if OBJECTIVES[name].own_mask]
    if honors_block_masks(config.backbone_config) or not needing:
        return ", ".join(names), ""
    can = ", ".join(name for name in names if name not in needing)
    reason = f"need their own attention masks, which {config.backbone_config.model_type} does not support"
    return can, f"{', '.join(needing)}: {reason}"


if __name__ == "__main__":
    main()
