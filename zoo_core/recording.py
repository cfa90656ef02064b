"""Sends a run's checkpoints to a Hub repository during training, and checks its experiment tracker."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from accelerate import PartialState
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import disable_progress_bars

from crosslingual_zoo.zoo_core.provenance import forget_machine

NOT_OF_THE_MODEL = ["*.pt", "*.pth", "trainer_state.json"]


def check_recording(tracker: str | None, push_to_hub: str | None) -> None:
    """Creates the repository. Raises ValueError if that fails, and for a tracker that is not installed."""
    if tracker and not find_spec(tracker):
        raise ValueError(f"tracker is {tracker}, which is not installed. Run `pip install {tracker}`, or leave it out.")
    if push_to_hub and PartialState().is_main_process:
        try:
            HfApi().create_repo(push_to_hub, exist_ok=True)
        except (OSError, HTTPError, HFValidationError) as error:
            raise ValueError(f"push_to_hub is {push_to_hub!r}: {' '.join(str(error).split())}") from error


class CheckpointUploads:
    """Uploads model folders, if there is a `repo`, from the main process. A failed upload is a line."""

    def __init__(self, repo: str | None, say: Callable[[str], None]):
        self.repo = repo if PartialState().is_main_process else None
        self.say = say
        if self.repo:
            disable_progress_bars()  # the run shows its own

    def push(self, folder: Path, what: str) -> None:
        """Uploads the model in `folder`, without traces of this machine; `what` is in the title of the commit."""
        if not self.repo:
            return
        try:
            forget_machine(folder)
            options = {"ignore_patterns": NOT_OF_THE_MODEL, "commit_message": f"Training: {what}"}
            HfApi().upload_folder(repo_id=self.repo, folder_path=folder, **options)
        except (OSError, HTTPError, ValueError) as error:
            self.say(f"{what} was not uploaded to {self.repo}: {' '.join(str(error).split())}")
