"""Lists the models and objectives that work with an encoder: `python -m pretraining.supported CHECKPOINT`.

  python -m pretraining.supported jhu-clsp/mmBERT-base
  python -m pretraining.supported runs/xlm_align-smoke/model

CHECKPOINT is a folder or a Hub id. The command loads its weights and trains nothing. A dry run of a recipe prints the
same table for its model.start_from.
"""

from rich.console import Console
from transformers.utils import logging

from pretraining.plan import print_supported
from pretraining.start.pretrained import Pretrained, listed
from zoo_core.command_line import TRUST_REMOTE_CODE, CommandParser, user_errors
from zoo_core.console import quiet_libraries


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder or a Hub id")
    parser.add_argument("--trust-remote-code", action="store_true", help=TRUST_REMOTE_CODE)
    parser.add_argument("--hub_root", metavar="DIR", help="folder with copies of Hub repositories")
    flags = parser.parse_args(argv)
    with user_errors():
        quiet_libraries()
        logging.set_verbosity_error()
        checkpoint = Pretrained(flags.checkpoint, "CHECKPOINT", flags.hub_root, flags.trust_remote_code)
        config, _ = checkpoint.config(), checkpoint.tokenizer()
        console = Console(soft_wrap=True, highlight=False, markup=False)
        print_supported(console, checkpoint)
        _, fresh = checkpoint.masked_lm(config)
        console.print(f"newly initialized: {listed(fresh)}")


if __name__ == "__main__":
    main()
