"""The word aligner's command line, `word-align`: sentence pairs in, word links out."""

import os
import signal
import sys

from finetuning.align.adapt import adapt
from finetuning.align.inputs import as_sentences
from finetuning.align.labels import project_labels
from finetuning.align.links import align
from finetuning.align.options import check_flags, fill_in, make_parser
from finetuning.align.sweep import sweep_layers
from zoo_core.command_line import user_errors


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line. Exit code 2 where the user has to act, 130 for Ctrl-C."""
    flags = make_parser().parse_args(argv)
    with user_errors():
        flags.sentences = as_sentences(flags.files)
        if flags.sentences:
            flags.files = []
        check_flags(flags)
        flags.is_drawn = flags.sentences and not (flags.output or flags.output_format) and sys.stdout.isatty()
        fill_in(flags)
        try:
            chosen = (adapt, flags.adapt), (sweep_layers, flags.sweep_layers), (project_labels, flags.project)
            run = next((mode for mode, is_asked in chosen if is_asked), align)
            run(flags)
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
            sys.exit(128 + signal.SIGPIPE)


if __name__ == "__main__":
    main()
