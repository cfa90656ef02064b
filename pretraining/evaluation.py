"""What a model in training has learnt, measured on held-out text.

Legend: `B` sequences, `T` positions, `H` hidden size, `P` pairs, `L` layers (0 = embeddings).
"""

import torch
from torch import nn

from pretraining.collators import encode_side, pad_rows
from pretraining.corpora import Corpus, held_out_batches, unigram_entropy
from pretraining.recipe import OBJECTIVES, Phase, Recipe
from pretraining.tracking import LossMeter


@torch.no_grad()
def evaluate(model: nn.Module, corpora: list[Corpus], phase: Phase, recipe: Recipe, tokenizer, accelerator) -> dict:
    """Held-out losses in nats by objective and corpus, their unigram entropies, and retrieval accuracy of the pairs.

    The masks are the same at every call. A loss below the unigram entropy of the same text says that the model has
    learnt more than how frequent each piece is. Processes share the batches.
    """
    was_training = model.training
    model.eval()
    meter = LossMeter(list(phase.objectives), [corpus.name for corpus in corpora], accelerator.device)
    figures = {}
    for objective in phase.objectives:
        batches = held_out_batches(corpora, phase, recipe, tokenizer, objective)
        for number, (_, batch) in enumerate(batches):
            if number % accelerator.num_processes == accelerator.process_index:
                batch = _to(batch, accelerator.device)
                with accelerator.autocast():
                    meter.add(batch, model(**batch))
    means, _ = meter.means(accelerator)
    figures |= {f"held_out/{key}": value for key, value in means.items()}
    for objective in phase.objectives:
        for corpus in corpora:
            if f"held_out/{objective}/{corpus.name}" in figures:
                figures[f"unigram_entropy/{objective}/{corpus.name}"] = unigram_entropy(corpus.held_out)
    if recipe.evaluation.retrieval and any(OBJECTIVES[name] == "bitext" for name in phase.objectives):
        for corpus in corpora:
            if len(corpus.languages) == 2 and len(corpus.held_out) > 1:
                accuracy_L = retrieval_accuracy(model, corpus, recipe, tokenizer, accelerator)
                figures[f"retrieval/{corpus.name}"] = max(accuracy_L)
                figures[f"retrieval_by_layer/{corpus.name}"] = accuracy_L
    model.train(was_training)
    return figures


@torch.no_grad()
def retrieval_accuracy(model, corpus: Corpus, recipe: Recipe, tokenizer, accelerator) -> list[float]:
    """Share of held-out sentences whose nearest neighbour in the other language is their translation, by layer.

    Each sentence is encoded alone; its vector is the mean of its states without special tokens; neighbours are by
    cosine; both directions are averaged. Chance is 1/P.
    """
    vectors = [_sentence_vectors(model, corpus.held_out, side, recipe, tokenizer, accelerator) for side in (0, 1)]
    accuracy_L = []
    for source_PH, target_PH in zip(*vectors, strict=True):
        similarity_PP = nn.functional.normalize(source_PH, dim=-1) @ nn.functional.normalize(target_PH, dim=-1).T
        gold_P = torch.arange(len(similarity_PP), device=similarity_PP.device)
        right = [(similarity_PP.argmax(axis) == gold_P).double().mean() for axis in (0, 1)]
        accuracy_L.append(float(sum(right) / 2))
    return accuracy_L


def _sentence_vectors(model, examples, side, recipe, tokenizer, accelerator) -> list[torch.Tensor]:
    """Mean-pooled states (P, H) for each layer."""
    size = recipe.evaluation.batch_size
    order = sorted(range(len(examples)), key=lambda index: len(examples[index].sides[side]))
    chunks = []
    for start in range(0, len(order), size):
        rows = [encode_side(examples[index].sides[side], tokenizer) for index in order[start : start + size]]
        batch = _to(pad_rows(rows, tokenizer), accelerator.device)
        with accelerator.autocast():
            states = model.roberta(
                batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
            ).hidden_states
        keep_BT1 = (batch["attention_mask"].bool() & ~batch["special_tokens_mask"].bool()).unsqueeze(-1)
        chunks.append([(layer * keep_BT1).sum(1).float() / keep_BT1.sum(1) for layer in states])
    back = torch.tensor(order, device=accelerator.device).argsort()
    return [torch.cat(layer)[back] for layer in zip(*chunks, strict=True)]


def _to(batch, device):
    from accelerate.utils import send_to_device

    return send_to_device(batch, device)
