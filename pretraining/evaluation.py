"""Losses by corpus, and evaluation of a model in training on held-out text.

Legend: `B` sequences, `T` positions, `H` hidden size, `P` pairs, `K` losses by corpus, `L` layers (0 = embeddings).
"""

import math
import resource
import time
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from modeling.positions import longest_input
from pretraining.data.batches import Feed, phase_corpora
from pretraining.data.corpora import Corpus, unigram_entropy
from pretraining.data.examples import Example
from pretraining.objectives import OBJECTIVES
from pretraining.recipe import Phase
from pretraining.rows import encode_rows, inputs_of
from pretraining.start.teacher import TeacherModel


class Meter:
    """Sums of token losses by loss (an objective or one of its terms) and corpus, on the device until they are read."""

    def __init__(self, losses: list[str], corpora: list[Corpus], accelerator: Accelerator, phase_step: int = 0):
        """`losses`: `Phase.losses`; `phase_step`: the number of steps already done in the phase."""
        self.accelerator = accelerator
        self.slots = {key: slot for slot, key in enumerate(product(losses, (one.name for one in corpora)))}
        # row 0: sum of losses in nats, row 1: number of predictions
        self.sums_2K = torch.zeros(2, len(self.slots), dtype=torch.float64, device=accelerator.device)
        self.tokens = self.sums_2K.new_zeros(())
        self.restart(phase_step)

    def restart(self, phase_step: int) -> None:
        """Starts the clock of a line again after evaluating and saving, which do not count as training time."""
        self.since, self.seconds = phase_step, time.perf_counter()

    def add(self, batch: dict, output) -> None:
        """Adds a micro-batch on the device and its `PreTrainingOutput`. `languages` of a sub-batch names each row's
        corpus."""
        for loss, losses_N in output.token_losses.items():
            objective = loss.partition(".")[0]
            names = batch[OBJECTIVES[objective].reads or objective]["languages"]
            slots_B = torch.tensor([self.slots[loss, name] for name in names], device="cpu")
            slots_N = slots_B.to(losses_N.device, non_blocking=True)[output.batch_rows[loss]]
            self.sums_2K[0].index_add_(0, slots_N, losses_N.double())
            self.sums_2K[1].index_add_(0, slots_N, torch.ones_like(losses_N, dtype=torch.float64))
        for sub_batch in batch.values():
            self.tokens += sum((fields["segment_ids"] >= 0).sum() for fields in inputs_of(sub_batch))

    def means(self) -> tuple[dict[str, float], float | None]:
        """Returns means by `<objective>/<corpus>` and the mean of all, over all processes, and starts again.

        Without predictions there is no mean.
        """
        sums, counts = self.accelerator.reduce(self.sums_2K).tolist()
        self.sums_2K.zero_()
        rows = zip(self.slots, sums, counts, strict=True)
        means = {f"{loss}/{corpus}": total / count for (loss, corpus), total, count in rows if count}
        return means, sum(sums) / sum(counts) if any(counts) else None

    def line(self, phase_step: int, predictions: float, grad_norm: float) -> dict:
        """Returns the figures of events.jsonl up to `phase_step`. All processes must call this together."""
        device, (means, loss) = self.accelerator.device, self.means()
        tokens, seconds = float(self.accelerator.reduce(self.tokens)), time.perf_counter() - self.seconds
        # the peak, of the GPU or, on a CPU, of this process; Linux counts in KiB
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        line = {} if loss is None else {"loss": loss}
        line |= {f"loss/{key}": value for key, value in means.items()} | {
            # fp16 skips a step whose norm is not finite; a step without predictions has none
            "grad_norm": grad_norm if math.isfinite(grad_norm) else None,
            "predictions": int(predictions),
            "tokens_per_second": tokens / seconds,
            "steps_per_second": (phase_step - self.since) / seconds,
            "memory_gib": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else memory,
        }
        self.tokens.zero_()
        return line


@dataclass
class Evaluator:
    """A model in training, and the settings to evaluate it."""

    model: Any
    tokenizer: Any
    accelerator: Any
    batch_size: int


@torch.no_grad()
def evaluate(evaluator: Evaluator, feed: Feed, phase: Phase, teacher: TeacherModel | None = None) -> dict:
    """Returns held-out losses in nats by objective and corpus, with unigram entropies; on translation pairs also the
    accuracy of retrieval at every layer, and the objectives' own figures.

    The masks are the same at every call. If a loss is below the unigram entropy of the same text, the model has
    learned more than the frequency of each token. The batches are divided among the processes.
    """
    model, accelerator, collators = evaluator.model, evaluator.accelerator, feed.collators(phase).values()
    was_training, corpora = model.training, phase_corpora(feed.corpora, phase)
    model.eval()
    unused, meter = phase.unused_losses(model), Meter(phase.losses(model), corpora, accelerator)
    for collator in collators:
        batches = feed.held_out(phase, collator, evaluator.batch_size)
        for batch in islice(batches, accelerator.process_index, None, accelerator.num_processes):
            batch = send_to_device(batch, accelerator.device)
            with accelerator.autocast():
                if teacher:
                    teacher.answer(batch, phase.objectives, unused)
                meter.add(batch, model(**batch, objective_weights=unused))
    figures = {f"held_out/{key}": value for key, value in meter.means()[0].items()}
    for corpus, collator in product(corpora, (one for one in collators if one.mask_probability)):
        losses = [f"{loss}/{corpus.name}" for loss in model.losses_of_objective(collator.name)]
        if evaluated := [loss for loss in losses if f"held_out/{loss}" in figures]:
            entropy = unigram_entropy(feed.held_out_examples(corpus, collator))
            figures |= {f"unigram_entropy/{loss}": entropy for loss in evaluated}
    for corpus in (corpus for corpus in corpora if len(corpus.languages) == 2 and corpus.held_out):
        if corpus.apart:  # the same text as for objectives that read both sides in one input
            corpus = corpus.with_form(min(2 * corpus.max_length, longest_input(model.config)), False)
        if (pairs := len(corpus.held_out)) > 1:
            accuracy_L, name = retrieval_accuracy(evaluator, corpus.held_out), corpus.name
            figures |= {f"retrieval/{name}": max(accuracy_L), f"retrieval_by_layer/{name}": accuracy_L}
            figures[f"retrieval_chance/{name}"] = 1 / pairs
        for collator in collators:
            figures |= collator.measure(evaluator, corpus)
    model.train(was_training)
    return figures


@torch.no_grad()
def retrieval_accuracy(evaluator: Evaluator, examples: list[Example]) -> list[float]:
    """Returns by layer the share of held-out sentences whose nearest neighbor in the other language is the
    translation.

    Each sentence is encoded alone. Its vector is the mean of its states without special tokens. The nearest neighbor
    has the highest cosine, and the share is the mean of both directions. Chance is 1/P.
    """
    accuracy_L = []
    sides = (_sentence_vectors(evaluator, [example.sides[side] for example in examples]) for side in (0, 1))
    for source_PH, target_PH in zip(*sides, strict=True):
        similarity_PP = nn.functional.normalize(source_PH, dim=-1) @ nn.functional.normalize(target_PH, dim=-1).T
        gold_P = torch.arange(len(similarity_PP), device=similarity_PP.device)
        accuracy_L.append(float(sum((similarity_PP.argmax(axis) == gold_P).double().mean() for axis in (0, 1)) / 2))
    return accuracy_L


def _sentence_vectors(evaluator: Evaluator, texts: list[np.ndarray]) -> list[torch.Tensor]:
    """Returns mean-pooled states (P, H) for each layer."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    device, chunks = evaluator.accelerator.device, []
    for start in range(0, len(order), evaluator.batch_size):
        rows = [[texts[index]] for index in order[start : start + evaluator.batch_size]]
        batch = send_to_device(encode_rows(rows, evaluator.tokenizer), device)
        with evaluator.accelerator.autocast():
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            states = evaluator.model.roberta(**inputs, output_hidden_states=True).hidden_states
        keep_BT1 = ~batch["special_tokens_mask"].bool().unsqueeze(-1)
        chunks.append([(layer * keep_BT1).sum(1).float() / keep_BT1.sum(1) for layer in states])
    back = torch.tensor(order, device=device).argsort()
    return [torch.cat(layer)[back] for layer in zip(*chunks, strict=True)]
