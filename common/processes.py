"""The processes of one run, as `accelerate launch` started them."""

import os

from accelerate import PartialState
from accelerate.utils import parse_flag_from_env


def start_processes() -> PartialState:
    """Joins the processes that `accelerate launch` started, before anything else asks for them.

    Raises ValueError where they do not find each other: each would then train alone, on every row, and write the same
    files.
    """
    # accelerate reads this variable only when an Accelerator is made, too late for what comes first here
    state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
    launched = int(os.environ.get("WORLD_SIZE", 1))
    if launched != state.num_processes:
        raise ValueError(
            f"{launched} processes were launched, and accelerate joined {state.num_processes}. Each would run alone. "
            "On CPU, launch with ACCELERATE_USE_CPU=true and --multi_gpu; on GPUs, check `accelerate env`."
        )
    return state
