"""The user's command, in a process forked from one that has imported everything: a run starts at once."""

import gc
import multiprocessing
import os
import signal
import warnings

from transformers import XLMRobertaTokenizer  # noqa: F401

from crosslingual_zoo.modeling import modeling_ernie_m, modeling_metaxlm, modeling_veco, modeling_xlm_align  # noqa: F401
from crosslingual_zoo.pretraining import run, tracking, training  # noqa: F401


def start(arguments: list[str], environment: dict[str, str], log: str, fault: str) -> None:
    """Runs the Python code `fault`, which may change `arguments`, then the command. `log` gets what both print."""
    gc.freeze()  # a run would copy all of it only to look at it
    warnings.simplefilter("ignore")
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)  # of data-loading workers, as in a run of the shell
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    signal.alarm(300)  # what hangs ends
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1), os.dup2(output, 2)
    # drawing takes longer than all the rest of these runs
    tracking.plot_curves = lambda folder: (folder / "curves.png").write_bytes(b"drawn")
    exec(fault, {"arguments": arguments})
    run.main(arguments)
