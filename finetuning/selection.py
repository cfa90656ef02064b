"""Which checkpoint of a seed is kept: the best one on the held-out rows. Of equal scores, the one with the lower loss
on these rows; of equal losses, the later one."""

import math
from typing import Any

from transformers import TrainerCallback, TrainerState

Evaluation = dict[str, Any]  # an entry of the Trainer's history: `eval_selection`, `eval_loss`, `epoch`, `step`


class EqualScores(TrainerCallback):
    """Decides between equal scores, of which the Trainer would keep the first."""

    def on_evaluate(
        self, args: Any, state: TrainerState, control: Any, metrics: dict[str, float], **kwargs: Any
    ) -> None:
        """The Trainer compares after this call: without a best score, it takes the new one."""
        if state.best_metric is None:
            return
        score = metrics[args.metric_for_best_model]
        # not by ==: a mean over languages is rounded
        if not math.isclose(score, state.best_metric):
            return
        lowest_loss = best_evaluation(state)["eval_loss"]
        if metrics["eval_loss"] <= lowest_loss or math.isnan(lowest_loss):
            state.best_metric = None
        else:
            state.best_metric = max(score, state.best_metric)


def best_evaluation(state: TrainerState) -> Evaluation:
    """Returns the evaluation of the best step; empty where nothing was selected."""
    for entry in reversed(state.log_history):
        if entry["step"] == state.best_global_step and "eval_loss" in entry:
            return entry
    return {}


def kept_checkpoint(state: TrainerState, steps: int | list[int], score_name: str) -> str:
    """Describes the checkpoint that is kept, or those whose mean is."""
    if isinstance(steps, list):
        return f"kept the mean of the weights at steps {', '.join(map(str, steps))}"
    where = f"step {steps} of {state.global_step}"
    best = best_evaluation(state)
    if not best:
        return f"kept the last checkpoint, {where}"
    if best["epoch"].is_integer():
        where = f"epoch {best['epoch']:.0f} of {state.num_train_epochs} ({where})"
    return f"kept {where}; held-out rows: {score_name} {best['eval_selection']:.1f}, loss {best['eval_loss']:.3f}"
