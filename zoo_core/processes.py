"""The processes of one run, as `accelerate launch` started them."""

import os
import time
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import gather_object, parse_flag_from_env

SECONDS_TO_APPEAR = 60  # what one machine wrote, in the folder that another looks at: network storage takes its time


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
            f"{launched} processes were launched, and accelerate joined {state.num_processes}. On CPU, launch with "
            "ACCELERATE_USE_CPU=true and --multi_gpu; on GPUs, check `accelerate env`."
        )
    return state


def check_shared_folder(file: Path, field: str) -> None:
    """Waits for `file`, which the main process has written, to be seen by all.

    Raises ValueError, on all of them, where one does not see it: it would write its part of a checkpoint elsewhere.
    """
    state = PartialState()
    state.wait_for_everyone()
    until = time.monotonic() + SECONDS_TO_APPEAR
    while not (seen := file.exists()) and time.monotonic() < until:
        time.sleep(1)
    if blind := [rank for rank, sees in enumerate(gather_object([seen])) if not sees]:
        raise ValueError(
            f"{field} is {str(file.parent)!r}, and process(es) {', '.join(map(str, blind))} of {state.num_processes} "
            f"do not see what the first one wrote there: checkpoints would be in tokens on several machines. Give a "
            f"folder on storage that all machines share, under the same path."
        )
