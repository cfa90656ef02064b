"""Evaluation of a model in training on held-out text.

Legend: `B` sequences, `T` positions, `S` positions of the other side, `H` hidden size, `P` pairs, `L` layers
(0 = embeddings).
"""

from collections.abc import Sequence
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import nn

from pretraining.data.batches import Feed, phase_corpora
from pretraining.data.corpora import unigram_entropy
from pretraining.data.examples import SPECIALS_OF_TEXT, Example
from pretraining.held_out import Evaluator, HeldOutPairs, ordinary, right_tokens
from pretraining.metrics import LossMeter
from pretraining.objectives import OBJECTIVES
from pretraining.recipe import Evaluation, Phase
from pretraining.start.teacher import TeacherModel

# How the sides of a pair are encoded for their alignment: in one input, or separately.
ENCODINGS = ("joint", "separate")


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
    accuracies of retrieval and word alignment, if the recipe turns them on, and the objectives' own figures.

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
    evaluator = Evaluator(
        model,
        feed.tokenizer,
        accelerator,
        settings.batch_size,
        objectives=list(phase.objectives.values()),
        languages=feed.languages,
        alignment=settings.alignment,
        back_translation=settings.back_translation,
    )
    # objectives with the same measurement: measure once
    measures = dict.fromkeys(objective.measure for objective in OBJECTIVES.values())
    for corpus in corpora:
        if len(corpus.languages) < 2 or not corpus.held_out:
            continue
        if corpus.apart:  # for the joint alignment, both sides are in one input
            corpus = corpus.with_form(min(2 * corpus.max_length, model.config.longest_input), False)
        if settings.retrieval and len(corpus.held_out) > 1:
            figures |= evaluator.best_layer("retrieval", corpus, retrieval_accuracy(evaluator, corpus))
            figures[f"retrieval_chance/{corpus.name}"] = 1 / len(corpus.held_out)
        for encoding in ENCODINGS if settings.alignment else ():
            accuracy_L = alignment_accuracy(evaluator, corpus, encoding)
            figures |= evaluator.best_layer(f"alignment_{encoding}", corpus, accuracy_L)
        for measure in measures:
            figures |= measure(evaluator, corpus)
    model.train(was_training)
    return figures


@torch.no_grad()
def retrieval_accuracy(evaluator: Evaluator, corpus: HeldOutPairs) -> list[float]:
    """Returns by layer the share of held-out sentences whose nearest neighbor in the other language is the translation.

    Each sentence is encoded by itself. Its vector is the mean of its states without special tokens. The nearest
    neighbor has the highest cosine, and the share is the mean of both directions. Chance is 1/P.
    """
    vectors = [_sentence_vectors(evaluator, corpus.held_out, side) for side in (0, 1)]
    accuracy_L = []
    for source_PH, target_PH in zip(*vectors, strict=True):
        similarity_PP = nn.functional.normalize(source_PH, dim=-1) @ nn.functional.normalize(target_PH, dim=-1).T
        gold_P = torch.arange(len(similarity_PP), device=similarity_PP.device)
        right = [(similarity_PP.argmax(axis) == gold_P).double().mean() for axis in (0, 1)]
        accuracy_L.append(float(sum(right) / 2))
    return accuracy_L


@torch.no_grad()
def alignment_accuracy(evaluator: Evaluator, corpus: HeldOutPairs, encoding: str) -> list[float]:
    """Returns by layer the share of tokens of held-out pairs whose nearest token on the other side is the translation.

    Token i of one side is the translation of token i of the other, as in the controlled pair. The nearest token has the
    highest cosine among the ordinary tokens of the same pair; both directions count. Chance is the mean of 1/length.

    encoding: `joint`, both sides in one input `<s> x </s></s> y </s>`; `separate`, each side by itself, at its
    positions in the joint input. With positions from the start for both, equal position embeddings would align even
    untrained vectors. `corpus` has the form in which both sides fit into one input.

    Raises ValueError for pairs whose sides differ in length.
    """
    right_L, count = 0, 0
    for chunk in evaluator.one_to_one_pairs(corpus):
        if encoding == "joint":
            batch, states = evaluator.encode(chunk)
            encoded = [(ordinary(batch) & (batch["segment_ids"] == side), states) for side in (0, 1)]
        else:
            encoded = []
            for side in (0, 1):
                rows = [[sides[side]] for sides in chunk]
                # y begins where `<s> x </s>` ends, which is as long
                first = [side * (len(tokens) + SPECIALS_OF_TEXT) for (tokens,) in rows]
                batch, states = evaluator.encode(rows, first)
                encoded.append((ordinary(batch), states))
        (x_BT, x_states), (y_BS, y_states) = encoded
        layers = zip(x_states, y_states, strict=True)
        right_L = right_L + torch.stack([aligned_tokens(x_BTH, y_BSH, x_BT, y_BS) for x_BTH, y_BSH in layers])
        count += int(x_BT.sum() + y_BS.sum())
    return (right_L / count).tolist()


def aligned_tokens(x_BTH, y_BSH, x_BT, y_BS) -> torch.Tensor:
    """Counts tokens of both sides whose nearest token by cosine has the same number.

    x_BT, y_BS: boolean, True at the tokens of that side; every row has the same number of them on both sides.
    """
    normalize = nn.functional.normalize
    similarity_BTS = normalize(x_BTH.float(), dim=-1) @ normalize(y_BSH.float(), dim=-1).transpose(1, 2)
    return right_tokens(similarity_BTS, x_BT, y_BS) + right_tokens(similarity_BTS.transpose(1, 2), y_BS, x_BT)


def _sentence_vectors(evaluator: Evaluator, examples: Sequence[Example], side: int) -> list[torch.Tensor]:
    """Returns mean-pooled states (P, H) for each layer."""
    size = evaluator.batch_size
    order = sorted(range(len(examples)), key=lambda index: len(examples[index].sides[side]))
    chunks = []
    for start in range(0, len(order), size):
        batch, states = evaluator.encode([[examples[index].sides[side]] for index in order[start : start + size]])
        keep_BT1 = ordinary(batch).unsqueeze(-1)
        chunks.append([(layer * keep_BT1).sum(1).float() / keep_BT1.sum(1) for layer in states])
    back = torch.tensor(order, device=evaluator.accelerator.device).argsort()
    return [torch.cat(layer)[back] for layer in zip(*chunks, strict=True)]
