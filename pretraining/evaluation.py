"""What a model in training has learned, measured on held-out text.

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

# How the sides of a pair are encoded for their alignment: in one input, or each without seeing the other.
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
    """Held-out losses in nats by objective and corpus, their unigram entropies, and of translation pairs the accuracy
    of retrieval and of word alignment, as the recipe asks for, and what the objectives measure themselves.

    The masks are the same at every call. A loss below the unigram entropy of the same text says that the model has
    learned more than how frequent each token is. Processes share the batches.
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
    # objectives that share what they measure measure it once
    measures = dict.fromkeys(objective.measure for objective in OBJECTIVES.values())
    for corpus in corpora:
        if len(corpus.languages) < 2 or not corpus.held_out:
            continue
        if corpus.apart:  # the sides meet in one input when their joint alignment is looked at
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
    """Share of held-out sentences whose nearest neighbor in the other language is their translation, by layer.

    Each sentence is encoded alone; its vector is the mean of its states without special tokens; neighbors are by
    cosine; both directions are averaged. Chance is 1/P.
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
    """Share of the tokens of held-out pairs whose nearest token on the other side is their translation, by layer.

    Token i of one side is translated by token i of the other, as in the controlled pair. Neighbors are by cosine,
    among the tokens of the same pair, special tokens left out; both directions count. Chance is the mean of 1/length.

    encoding: `joint`, both sides in one input `<s> x </s></s> y </s>`; `separate`, each side on its own, at the
    positions it has in the joint input: were both counted from the start, equal position embeddings would align even
    untrained vectors. `corpus` is of the form in which both sides fit into one input.

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
    """How many tokens of both sides have the token of the same number as their nearest by cosine.

    x_BT, y_BS: boolean, which positions hold a token of that side; every row has as many in one as in the other.
    """
    normalize = nn.functional.normalize
    similarity_BTS = normalize(x_BTH.float(), dim=-1) @ normalize(y_BSH.float(), dim=-1).transpose(1, 2)
    return right_tokens(similarity_BTS, x_BT, y_BS) + right_tokens(similarity_BTS.transpose(1, 2), y_BS, x_BT)


def _sentence_vectors(evaluator: Evaluator, examples: Sequence[Example], side: int) -> list[torch.Tensor]:
    """Mean-pooled states (P, H) for each layer."""
    size = evaluator.batch_size
    order = sorted(range(len(examples)), key=lambda index: len(examples[index].sides[side]))
    chunks = []
    for start in range(0, len(order), size):
        batch, states = evaluator.encode([[examples[index].sides[side]] for index in order[start : start + size]])
        keep_BT1 = ordinary(batch).unsqueeze(-1)
        chunks.append([(layer * keep_BT1).sum(1).float() / keep_BT1.sum(1) for layer in states])
    back = torch.tensor(order, device=evaluator.accelerator.device).argsort()
    return [torch.cat(layer)[back] for layer in zip(*chunks, strict=True)]
