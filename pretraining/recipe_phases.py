"""A phase of a pre-training recipe: its fields, its checks, and what the loop asks it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Annotated, Any, Literal

from annotated_types import Gt
from omegaconf import MISSING

from crosslingual_zoo.pretraining.objectives import OBJECTIVES, Collator, Objective, Objectives
from crosslingual_zoo.pretraining.recipe_corpora import Corpora, is_selected
from crosslingual_zoo.zoo_core.recipes import Count, Positive, nearest, option

# the Transformer layers without cross-attention, which no model of one language has
BODY = re.compile(r"roberta\.(encoder|backbone(?!\.embed))\.(?!.*\.crossattention\.)")


@dataclass
class Phase:
    """A stage of training with its own objectives, parameters, schedule and optimizer."""

    name: str = option(MISSING, "name of the phase in the logs")
    steps: Positive = option(MISSING, "number of optimizer steps")
    objectives: Objectives = option(
        {},
        "objectives by name, at least one, each with its options. Objectives that read the same kind of text with the "
        "same batch_size and max_length get the same examples",
    )
    trainable: list[str] = option(["*"], "glob patterns of parameter names; the other parameters are frozen")
    freeze_body: bool = option(False, "freeze the Transformer layers (MetaXLM, section 5.4)")
    corpora: list[str] = option(
        ["*"],
        "text that this phase reads: glob patterns of languages and pairs (`en`, `en-*`), each with all its corpora, "
        "or with a slash of single corpora by name (`en-de/ntrex`, `*/ntrex`)",
    )
    learning_rate: Annotated[float, Gt(0)] | None = option(None, "peak learning rate; required for a fresh optimizer")
    warmup_steps: Count = option(0, "steps of linear warm-up")
    schedule: Literal["linear", "constant", "cosine", "inverse_sqrt"] = option(
        "linear", "learning-rate schedule after the warm-up"
    )
    optimizer: Literal["fresh", "carried"] = option(
        "fresh",
        "start Adam's moments and the schedule again, or continue those of the phase before (carried). Such phases "
        "share one warm-up and one decay, which the first of them sets",
    )

    def check(self, phases: Sequence["Phase"], index: int, corpora: Corpora, teacher_language: str | None) -> None:
        """Raises ValueError if the fields contradict each other or the rest of the recipe. It is number `index` of the
        phases. `teacher_language`: None if the recipe has no teacher."""
        self._check_schedule(phases, index)
        if not any(objective.weight for objective in self.objectives.values()):
            names = ", ".join(OBJECTIVES)
            raise ValueError(f"phases.{index}.objectives has none with a weight. Choose from {names}.")
        corpora_read = list(self.read(corpora).values())
        for name, objective in self.objectives.items():
            field = f"phases.{index}.objectives.{name}"
            if all(corpus.kind != objective.text for corpus in corpora_read):
                raise ValueError(f"{field} reads `{objective.text}`, but the phase has no such corpus. Add one.")
            if objective.reads and objective.reads not in self.objectives:
                raise ValueError(f"{field} reads the rows of {objective.reads}. Add it to the phase.")
            if not objective.has_teacher:
                continue
            if teacher_language is None:
                raise ValueError(f"{field} learns from a teacher. Set teacher.path.")
            if all(corpus.codes != (teacher_language,) for corpus in corpora_read):
                raise ValueError(f"{field} has no text of teacher.language {teacher_language!r}. Add it.")

    def _check_schedule(self, phases: Sequence["Phase"], index: int) -> None:
        field = f"phases.{index}"
        if self.optimizer == "carried":
            if index == 0:
                raise ValueError(f"{field}.optimizer is carried, but no phase is before it. Set it to fresh.")
            for name in ("learning_rate", "warmup_steps", "schedule"):
                if getattr(self, name) != getattr(Phase, name):
                    raise ValueError(f"{field}.{name} is set, but optimizer: carried continues the schedule before.")
        elif self.learning_rate is None:
            raise ValueError(f"{field}.learning_rate is not set. Set the peak learning rate, such as 5e-5.")
        steps = sum(phase.steps for phase in scheduled_together(phases, index))
        if self.warmup_steps > steps:
            raise ValueError(f"{field}.warmup_steps is {self.warmup_steps:,}, but the schedule has {steps:,} steps.")

    def read(self, corpora: Corpora) -> Corpora:
        """Returns the corpora of a recipe that it reads. Raises ValueError for a pattern that matches none."""
        for pattern in self.corpora:
            if not any(is_selected(name, [pattern]) for name in corpora):
                problem = f"phase {self.name}: the pattern {pattern!r} matches no corpus"
                raise ValueError(f"{problem}. {nearest(pattern, corpora)}")
        return {name: corpus for name, corpus in corpora.items() if is_selected(name, self.corpora)}

    def trains(self, name: str) -> bool:
        """Returns whether a parameter trains in the phase; others are frozen."""
        if self.freeze_body and BODY.match(name):
            return False
        return any(fnmatchcase(name, pattern) for pattern in self.trainable)

    def check_trainable(self, names: Sequence[str]) -> None:
        """Raises ValueError if a pattern of `trainable` matches none of a model's parameters, and if none trains."""
        for pattern in self.trainable:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"phase {self.name!r}: no parameter is called {pattern!r}. {nearest(pattern, names)}")
        if not any(self.trains(name) for name in names):
            patterns = ", ".join(self.trainable) or "empty"
            raise ValueError(
                f"phase {self.name!r} trains nothing: trainable is {patterns}, freeze_body {self.freeze_body}."
            )

    @property
    def with_examples(self) -> dict[str, Collator]:
        """The objectives that read their own examples, each in its sub-batch."""
        return {name: objective for name, objective in self.objectives.items() if isinstance(objective, Collator)}

    @property
    def masked_lm(self) -> dict[str, Objective]:
        """Its objectives that train an LM head: those with masked-LM loss."""
        items = self.objectives.items()
        return {name: objective for name, objective in items if objective.is_masked_lm and objective.weight}

    def losses(self, model: Any) -> list[str]:
        """Returns the names of its objectives' losses in the logs and the model: `mlm`, `ca_mlm_pairs.inner`, ..."""
        return [loss for name in self.objectives for loss in model.losses_of_objective(name)]

    def loss_weights(self, model: Any) -> dict[str, float]:
        """Returns the weight of each loss, for a model's forward. The model does not compute losses of weight 0."""
        weights = self.unused_losses(model)
        for loss in self.losses(model):
            name, _, term = loss.partition(".")
            objective = self.objectives[name]
            is_chosen = not objective.terms or term in objective.terms
            weights[loss] = objective.weight if is_chosen else 0.0
        return weights

    def predictions(self, batch: dict, weights: Mapping[str, float]) -> int:
        """Returns the number of predictions that the labels of a batch give, before the model has read it."""
        collators = self.with_examples
        count = 0
        for loss, weight in weights.items():
            name = loss.partition(".")[0]
            if weight and name in batch:
                count += collators[name].predictions(batch[name])
        return count

    def unused_losses(self, model: Any) -> dict[str, float]:
        """Returns weight 0 for each loss of the model whose objective is not in the phase."""
        weights = {}
        for name in model.objectives:
            if name not in self.objectives:
                weights |= dict.fromkeys(model.losses_of_objective(name), 0.0)
        return weights


def scheduled_together(phases: Sequence[Phase], index: int) -> list[Phase]:
    """Returns the phases that share a learning-rate schedule with phase `index`.

    The first of them defines the schedule, and the others continue it.
    """
    first = max(number for number, phase in enumerate(phases[: index + 1]) if phase.optimizer == "fresh")
    return [phases[first], *takewhile(lambda phase: phase.optimizer == "carried", phases[first + 1 :])]
