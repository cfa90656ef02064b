"""What is shown while a seed is trained and evaluated: bars on a terminal, and lines in a file."""

import contextlib
from collections.abc import Iterator
from typing import Any

from accelerate import PartialState
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState

from crosslingual_zoo.zoo_core.console import CONSOLE, RunBar

SCORES = ("eval_selection", "eval_bleu")  # of the held-out rows, in the Trainer's logs


def say(text: str) -> None:
    """Prints a line on stderr, above a bar; of several processes, the first prints it."""
    if PartialState().is_main_process:
        CONSOLE.print(text)


def say_evaluation(seed: int, rows: dict[str, int]) -> None:
    """Says that the rows of all languages, or pairs, are evaluated now."""
    say(f"seed {seed}: evaluating {sum(rows.values()):,} rows in {', '.join(rows)}")


@contextlib.contextmanager
def shown_progress(trainer: Trainer, score_name: str) -> Iterator[None]:
    """Shows what the Trainer does in the block, in place of its own callback, which prints dictionaries.

    `score_name` is the name of the score of the held-out rows.
    """
    trainer.remove_callback(PrinterCallback)
    progress = SeedProgress(trainer.args.seed, score_name)
    trainer.add_callback(progress)
    try:
        with progress.bar:
            yield
    finally:
        trainer.remove_callback(progress)


class SeedProgress(TrainerCallback):
    """A bar of the steps and one of the batches that are predicted; a line for each evaluation, and in a file for each
    log. The steps and the loss are those of pre-training's lines."""

    def __init__(self, seed: int, score_name: str):
        self.name = f"seed {seed}"
        self.score_name = score_name
        self.bar = RunBar(PartialState().is_main_process)
        self.prediction: Any = None  # id of the bar of predicted batches

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.bar.begin(state.max_steps, state.global_step)
        self.bar.has_begun = state.global_step == 0  # the Trainer logs step 1, and not that after a resume

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.bar.step(state.global_step, self.name)

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if logs and "loss" in logs:  # else of an evaluation, or of the end of the training
            self.bar.note(f"epoch {logs['epoch']:.1f}/{state.num_train_epochs}  loss {logs['loss']:.3f}")

    def on_evaluate(
        self, args: Any, state: TrainerState, control: Any, metrics: dict[str, float], **kwargs: Any
    ) -> None:
        self._end_prediction()
        figures = [f"{self.score_name} {metrics[name]:.1f}" for name in SCORES if name in metrics]
        figures.append(f"loss {metrics['eval_loss']:.3f}")
        self.bar.say(f"{self.name}  step {state.global_step}/{state.max_steps}  held-out rows: {', '.join(figures)}")

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: Any, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        if self.prediction is None:
            self.prediction = self.bar.add_task("predicting", total=len(eval_dataloader), note="")
        self.bar.advance(self.prediction)

    def on_predict(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._end_prediction()

    def _end_prediction(self) -> None:
        if self.prediction is not None:
            self.bar.remove_task(self.prediction)
        self.prediction = None
