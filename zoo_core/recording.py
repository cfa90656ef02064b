"""Sends a run's checkpoints to a Hub repository during training, and checks its experiment tracker."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path

from accelerate import PartialState
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import disable_progress_bars

from zoo_core.provenance import forget_machine

PROJECT = "crosslingual-zoo"  # of wandb and trackio
NOT_OF_THE_MODEL = shutil.ignore_patterns("*.pt", "*.pth", "trainer_state.json")


def check_recording(tracker: str | None, push_to_hub: str | None) -> None:
    """Creates the repository if it does not exist.

    Raises ValueError for a tracker that is not installed, and a repository that cannot be created.
    """
    if tracker and not find_spec(tracker):
        raise ValueError(f"tracker is {tracker}, which is not installed. Run `pip install {tracker}`, or leave it out.")
    if push_to_hub and PartialState().is_main_process:
        try:
            HfApi().create_repo(push_to_hub, exist_ok=True)
        except (OSError, HTTPError, HFValidationError) as error:
            raise ValueError(f"push_to_hub is {push_to_hub!r}: {' '.join(str(error).split())}") from error


class CheckpointUploads:
    """Uploads model folders to a repository in the background, one at a time: others are skipped meanwhile.

    A failed upload is reported in a line, and the run continues. All methods do nothing if `repo` is None, and in
    processes other than the main one.
    """

    def __init__(self, repo: str | None, run: Path, say: Callable[[str], None]):
        """`run` is the run's folder. Uploads are made from a copy in it, as the run may remove the checkpoint."""
        self.repo = repo if PartialState().is_main_process else None
        self.copy, self.say = run / ".push.tmp", say
        self.upload: Future | None = None
        if self.repo:
            disable_progress_bars()  # the run shows its own

    def push(self, folder: Path, what: str) -> None:
        """Uploads the model in `folder`; `what` is in the title of the commit."""
        if not self.repo or (self.upload and not self.upload.done()):
            return

        def failed(error: BaseException | None) -> None:
            if error:
                self.say(f"{what} was not uploaded to {self.repo}: {' '.join(str(error).split())}")

        try:
            shutil.rmtree(self.copy, ignore_errors=True)
            shutil.copytree(folder, self.copy, ignore=NOT_OF_THE_MODEL)
            forget_machine(self.copy)
        except OSError as error:
            return failed(error)
        self.upload = HfApi().upload_folder(
            repo_id=self.repo, folder_path=self.copy, commit_message=f"Training: {what}", run_as_future=True
        )
        self.upload.add_done_callback(lambda upload: failed(upload.exception()))

    def finish(self, folder: Path, what: str) -> None:
        """Waits for the running upload, then uploads `folder` and waits for that."""
        self.wait()
        self.push(folder, what)
        self.wait()
        shutil.rmtree(self.copy, ignore_errors=True)

    def wait(self) -> None:
        """Waits until no upload is running."""
        if self.upload:
            self.upload.exception()
