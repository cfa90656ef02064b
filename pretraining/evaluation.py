"""Evaluation of a model in training on held-out text.

Legend: `B` sequences, `T` positions, `H` hidden size, `P` pairs, `L` layers (0 = embeddings).
"""

from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import nn

from pretraining.data.batches import Feed, phase_corpora
from pretraining.data.corpora import unigram_entropy
from pretraining.data.examples import Example
from pretraining.held_out import Evaluator
from pretraining.metrics import LossMeter
from pretraining.recipe import Evaluation, Phase
from pretraining.start.teacher import TeacherModel


@torch.no_grad()
def evaluate(
    model: nn.Module,
    feed: Feed,
    phase: Phase,
    settings: Evaluation,
    accelerator: Any,
    teacher: TeacherModel | None = None,
) -> dict:
    """Returns held-out losses in nats by objective and corpus, with unigram entropies; on translation pairs also the
    accuracy of retrieval at every layer, and the objectives' own figures.

    The masks are the same at every call. If a loss is below the unigram entropy of the same text, the model has learned
    more than the frequency of each token. The batches are divided among the processes.
    """
    was_training, corpora = model.training, phase_corpora(feed.corpora, phase)
    model.eval()
    unused = phase.unused_losses(accelerator.unwrap_model(model))
    meter = LossMeter(phase.losses, [corpus.name for corpus in corpora], accelerator.device)
    for objective in phase.with_examples.values():
        for number, batch in enumerate(feed.held_out(phase, objective, settings.batch_size)):
            if number % accelerator.num_processes == accelerator.process_index:
                batch = send_to_device(batch, accelerator.device)
                with accelerator.autocast():
                    if teacher:
                        teacher.answer(batch, phase.objectives, unused)
                    meter.add(batch, model(**batch, objective_weights=unused))
    figures = {f"held_out/{key}": value for key, value in meter.means(accelerator)[0].items()}
    for objective in phase.with_examples.values():
        for corpus in corpora:
            if objective.predicts_tokens and (examples := feed.held_out_examples(corpus, objective)):
                keys = [f"{loss}/{corpus.name}" for loss in objective.losses()]
                entropy = unigram_entropy(examples)
                figures |= {f"unigram_entropy/{key}": entropy for key in keys if f"held_out/{key}" in figures}
    evaluator = Evaluator(model, feed.tokenizer, accelerator, settings.batch_size)
    for corpus in (corpus for corpus in corpora if len(corpus.languages) == 2 and corpus.held_out):
        if corpus.apart:  # the same text as for objectives that read both sides in one input
            corpus = corpus.with_form(min(2 * corpus.max_length, model.config.longest_input), False)
        if len(corpus.held_out) > 1:
            accuracy_L = retrieval_accuracy(evaluator, corpus.held_out)
            figures |= {f"retrieval/{corpus.name}": max(accuracy_L), f"retrieval_by_layer/{corpus.name}": accuracy_L}
            figures[f"retrieval_chance/{corpus.name}"] = 1 / len(corpus.held_out)
        for objective in phase.objectives.values():
            figures |= objective.measure(evaluator, corpus)
    model.train(was_training)
    return figures


@torch.no_grad()
def retrieval_accuracy(evaluator: Evaluator, examples: Sequence[Example]) -> list[float]:
    """Returns by layer the share of held-out sentences whose nearest neighbor in the other language is the translation.

    Each sentence is encoded by itself. Its vector is the mean of its states without special tokens. The nearest
    neighbor has the highest cosine, and the share is the mean of both directions. Chance is 1/P.
    """
    accuracy_L = []
    for source_PH, target_PH in zip(*(_sentence_vectors(evaluator, examples, side) for side in (0, 1)), strict=True):
        similarity_PP = nn.functional.normalize(source_PH, dim=-1) @ nn.functional.normalize(target_PH, dim=-1).T
        gold_P = torch.arange(len(similarity_PP), device=similarity_PP.device)
        right = [(similarity_PP.argmax(axis) == gold_P).double().mean() for axis in (0, 1)]
        accuracy_L.append(float(sum(right) / 2))
    return accuracy_L


def _sentence_vectors(evaluator: Evaluator, examples: Sequence[Example], side: int) -> list[torch.Tensor]:
    """Returns mean-pooled states (P, H) for each layer."""
    size = evaluator.batch_size
    order = sorted(range(len(examples)), key=lambda index: len(examples[index].sides[side]))
    chunks = []
    for start in range(0, len(order), size):
        batch, states = evaluator.encode([[examples[index].sides[side]] for index in order[start : start + size]])
        keep_BT1 = ~batch["special_tokens_mask"].bool().unsqueeze(-1)
        chunks.append([(layer * keep_BT1).sum(1).float() / keep_BT1.sum(1) for layer in states])
    back = torch.tensor(order, device=evaluator.accelerator.device).argsort()
    return [torch.cat(layer)[back] for layer in zip(*chunks, strict=True)]
