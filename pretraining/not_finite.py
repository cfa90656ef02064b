"""Where a loss or gradient that is not finite came from: the objective, corpus and examples, to be looked at.

Legend: `B` rows of a sub-batch, `N` predictions.
"""

from collections import defaultdict

import torch

from pretraining.recipe import OBJECTIVES

SHOWN = 5  # examples in the message; the file has them all
REPORT = "not_finite.json"


class LossTrace:
    """What the forward passes of one step of this process gave, kept on the device until it is asked for."""

    def __init__(self):
        self.micro_batches: list[list[tuple]] = []

    def add(self, batch: dict, output) -> None:
        """Remember a micro-batch and its `PreTrainingOutput`."""
        losses = []
        for loss, losses_N in output.token_losses.items():
            objective = loss.partition(".")[0]
            sub_batch = batch[OBJECTIVES[objective].reads or objective]
            where = (output.batch_rows[loss], sub_batch["languages"], sub_batch["examples"])
            losses.append((loss, losses_N.detach(), *where))
        self.micro_batches.append(losses)

    def clear(self) -> None:
        """The step is done."""
        self.micro_batches.clear()

    def report(self) -> dict:
        """`first`: the first loss that is not finite, its value and rows, or None; `examples`: all of the step.

        Rows are {corpus: [example ids]}.
        """
        first = None
        for micro, losses in enumerate(self.micro_batches):
            for loss, losses_N, rows_N, languages, examples_B in losses:
                bad_N = ~torch.isfinite(losses_N)
                if first is None and bad_N.any():
                    rows = rows_N[bad_N].unique().tolist()
                    first = {"loss": loss, "micro_batch": micro, "value": str(losses_N[bad_N][0].item())}
                    first["examples"] = _by_corpus(rows, languages, examples_B)
        return {
            "first": first,
            "examples": [
                {loss: _by_corpus(range(len(names)), names, ids_B) for loss, _, _, names, ids_B in losses}
                for losses in self.micro_batches
            ],
        }


def _by_corpus(rows, languages: list[str], examples_B: torch.Tensor) -> dict[str, list[int]]:
    ids, found = examples_B.tolist(), defaultdict(list)
    for row in rows:
        found[languages[row]].append(ids[row])
    return dict(found)


def describe_first(reports: list[dict]) -> str:
    """A phrase that says where it began, from the `report` of each process, in their order."""
    begun = [(number, report["first"]) for number, report in enumerate(reports) if report["first"]]
    if not begun:
        return f"every single loss is finite; the examples of the step are listed in {REPORT}"
    number, first = begun[0]
    examples = [(corpus, example) for corpus, ids in first["examples"].items() for example in ids]
    named = ", ".join(f"{corpus} {example}" for corpus, example in examples[:SHOWN])
    more = f" and {len(examples) - SHOWN} more" if len(examples) > SHOWN else ""
    process = f", in process {number}" if len(reports) > 1 else ""
    return (
        f"the first loss that is not finite is {first['loss']} ({first['value']}) of example {named}{more}{process}; "
        f"all are listed in {REPORT}"
    )


def random_state(device: torch.device) -> list[torch.Tensor]:
    """What dropout's next numbers follow from."""
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def set_random_state(state: list[torch.Tensor], device: torch.device) -> None:
    """Back to a `random_state`: a checkpoint after a step that was not made is one before it."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
