"""The word aligner's command line, `word-align`: sentence pairs in, word links out."""

import os
import signal
import sys

from finetuning.align.labels import project_labels
from finetuning.align.links import align
from finetuning.align.options import LINES_ON_PAGE, check_flags, make_parser
from finetuning.align.sweep import sweep_layers
from zoo_core.recipes import user_errors


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exit code 2 where the user has to act, 130 for Ctrl-C."""
    flags = make_parser().parse_args(argv)
    with user_errors():
        check_flags(flags)
        flags.html_limit = flags.html_limit or LINES_ON_PAGE
        flags.output_format = flags.output_format or "pharaoh"
        try:
            run = sweep_layers if flags.sweep_layers else project_labels if flags.project else align
            run(flags)
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
            sys.exit(128 + signal.SIGPIPE)


if __name__ == "__main__":
    main()
