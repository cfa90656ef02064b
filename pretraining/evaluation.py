"""What a model in training has learned, measured on held-out text.

Legend: `B` sequences, `T` positions, `S` positions of the other side, `H` hidden size, `P` pairs, `L` layers
(0 = embeddings).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import nn

from modeling.attention_masks import btmlm_generation_mask, cross_stream_mask
from modeling.embeddings import position_ids_of
from pretraining.collators import pseudo_count
from pretraining.data.corpora import Corpus, held_out_batches, held_out_examples, unigram_entropy
from pretraining.data.sampling import Languages
from pretraining.data.tokenized import SPECIALS_OF_PAIR, SPECIALS_OF_TEXT, Example, text_length
from pretraining.distillation import TeacherModel
from pretraining.metrics import LossMeter
from pretraining.recipe import OBJECTIVES, Objective, Phase, Recipe, loss_names, unused_losses, with_examples
from pretraining.rows import encode_rows
from zoo_core.masking import IGNORED

# How the sides of a pair are encoded for their alignment: in one input, or each without seeing the other.
ENCODINGS = ("joint", "separate")


@torch.no_grad()
def evaluate(
    model: nn.Module,
    corpora: list[Corpus],
    phase: Phase,
    recipe: Recipe,
    tokenizer,
    accelerator,
    languages: Languages | None = None,
    teachers: Sequence[TeacherModel] = (),
) -> dict:
    """Held-out losses in nats by objective and corpus, their unigram entropies, and of translation pairs the accuracy
    of retrieval and of word alignment, and of back-translation, as the recipe asks for.

    The masks are the same at every call. A loss below the unigram entropy of the same text says that the model has
    learned more than how frequent each token is. Processes share the batches.
    """
    was_training = model.training
    model.eval()
    losses, unused = loss_names(phase.objectives), unused_losses(phase, accelerator.unwrap_model(model).objectives)
    meter = LossMeter(losses, [corpus.name for corpus in corpora], accelerator.device)
    for objective in with_examples(phase):
        batches = held_out_batches(corpora, phase, recipe, tokenizer, objective, languages)
        for number, (_, batch) in enumerate(batches):
            if number % accelerator.num_processes == accelerator.process_index:
                batch = send_to_device(batch, accelerator.device)
                with accelerator.autocast():
                    for teach in teachers:
                        teach(batch, unused)
                    meter.add(batch, model(**batch, objective_weights=unused))
    figures = {f"held_out/{key}": value for key, value in meter.means(accelerator)[0].items()}
    for objective in with_examples(phase):
        for corpus in corpora:
            if examples := held_out_examples(corpus, phase, objective, languages):
                keys = [f"{loss}/{corpus.name}" for loss in loss_names([objective])]
                entropy = unigram_entropy(examples)
                figures |= {f"unigram_entropy/{key}": entropy for key in keys if f"held_out/{key}" in figures}
    pairs = [corpus for corpus in corpora if len(corpus.languages) == 2]
    for corpus in pairs:
        if corpus.apart:  # the sides meet in one input when their joint alignment is looked at
            longest = model.config.longest_input
            corpus = corpus.with_form(min(2 * corpus.max_length, longest), False)
        arguments, by_layer = (corpus, recipe, tokenizer, accelerator), {}
        if recipe.evaluation.retrieval and len(corpus.held_out) > 1:
            by_layer["retrieval"] = retrieval_accuracy(model, *arguments)
            figures[f"retrieval_chance/{corpus.name}"] = 1 / len(corpus.held_out)
        is_aligned = recipe.evaluation.alignment and corpus.held_out
        if is_aligned:
            by_layer |= {f"alignment_{name}": alignment_accuracy(model, *arguments, name) for name in ENCODINGS}
        if is_aligned and any(OBJECTIVES[name].apart for name in phase.objectives):
            by_layer["alignment_cross"] = cross_attention_alignment(model, *arguments)
        for figure, accuracy_L in by_layer.items():
            figures[f"{figure}/{corpus.name}"] = max(accuracy_L)
            figures[f"{figure}_by_layer/{corpus.name}"] = accuracy_L
        if is_aligned and "dwa" in phase.objectives:
            right, share = self_label_accuracy(model, *arguments)
            figures |= {f"self_labels/{corpus.name}": right, f"self_labels_per_token/{corpus.name}": share}
    for corpus in pairs if recipe.evaluation.back_translation else ():
        if len(corpus.held_out) > 1:
            figures |= back_translation_overlap(model, corpus, recipe, tokenizer, accelerator, languages)
    model.train(was_training)
    return figures


@torch.no_grad()
def retrieval_accuracy(model, corpus: Corpus, recipe: Recipe, tokenizer, accelerator) -> list[float]:
    """Share of held-out sentences whose nearest neighbor in the other language is their translation, by layer.

    Each sentence is encoded alone; its vector is the mean of its states without special tokens; neighbors are by
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


@torch.no_grad()
def alignment_accuracy(model, corpus: Corpus, recipe: Recipe, tokenizer, accelerator, encoding: str) -> list[float]:
    """Share of the tokens of held-out pairs whose nearest token on the other side is their translation, by layer.

    Token i of one side is translated by token i of the other, as in the controlled pair. Neighbors are by cosine,
    among the tokens of the same pair, special tokens left out; both directions count. Chance is the mean of 1/length.

    encoding: `joint`, both sides in one input `<s> x </s></s> y </s>`; `separate`, each side on its own, at the
    positions it has in the joint input: were both counted from the start, equal position embeddings would align even
    untrained vectors. `corpus` is of the form in which both sides fit into one input.

    Raises ValueError for pairs whose sides differ in length.
    """
    right_L, count = 0, 0
    for chunk in _one_to_one_chunks(corpus, recipe):
        if encoding == "joint":
            batch, states = _encode(model, chunk, tokenizer, accelerator)
            encoded = [(_ordinary(batch) & (batch["segment_ids"] == side), states) for side in (0, 1)]
        else:
            encoded = []
            for side in (0, 1):
                rows = [[sides[side]] for sides in chunk]
                # y begins where `<s> x </s>` ends, which is as long
                first = [side * (len(tokens) + SPECIALS_OF_TEXT) for (tokens,) in rows]
                batch, states = _encode(model, rows, tokenizer, accelerator, first)
                encoded.append((_ordinary(batch), states))
        (x_BT, x_states), (y_BS, y_states) = encoded
        layers = zip(x_states, y_states, strict=True)
        right_L = right_L + torch.stack([aligned_tokens(x_BTH, y_BSH, x_BT, y_BS) for x_BTH, y_BSH in layers])
        count += int(x_BT.sum() + y_BS.sum())
    return (right_L / count).tolist()


@torch.no_grad()
def self_label_accuracy(model, corpus: Corpus, recipe: Recipe, tokenizer, accelerator) -> tuple[float, float]:
    """Of the links that XLM-Align labels held-out pairs with, the share that are right, and links for each source
    token. Pairs and errors are those of `alignment_accuracy`."""
    right, found, tokens = 0, 0, 0
    for chunk in _one_to_one_chunks(corpus, recipe):
        batch = send_to_device(encode_rows(chunk, tokenizer), accelerator.device)
        with accelerator.autocast():
            labels = model.self_label(batch | {"labels": torch.full_like(batch["input_ids"], IGNORED)})
        links_N3 = labels.links_PST.nonzero()
        right += int((links_N3[:, 1] == links_N3[:, 2]).sum())
        found += len(links_N3)
        tokens += int(labels.source_mask_PS.sum())
    return right / max(1, found), found / tokens


@torch.no_grad()
def cross_attention_alignment(model, corpus: Corpus, recipe: Recipe, tokenizer, accelerator) -> list[float]:
    """Share of the tokens that look most at their translation through VECO's cross-attention, by layer (L - 1,).

    The weights are the mean over heads, in the stream that reads the last states of the other side, nothing masked;
    special tokens are left out, both directions count. Pairs and errors are those of `alignment_accuracy`. Where a
    token and its translation stand at equal positions, as in the controlled pair, looking straight across is right too.
    """
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the one that hands its weights out
    right_L, count = 0, 0
    try:
        for chunk in _one_to_one_chunks(corpus, recipe):
            encoded = [_encode(model, [[sides[side]] for sides in chunk], tokenizer, accelerator) for side in (0, 1)]
            for (own, _), (other, states) in (encoded, encoded[::-1]):
                with accelerator.autocast():
                    output = model.roberta(
                        own["input_ids"],
                        attention_mask=cross_stream_mask(model.config, own["attention_mask"]),
                        encoder_hidden_states=states[-1],
                        encoder_attention_mask=other["attention_mask"],
                        output_attentions=True,
                    )
                own_BT, other_BS = _ordinary(own), _ordinary(other)
                weights = [layer_BATS.float().mean(1) for layer_BATS in output.cross_attentions]
                right_L = right_L + torch.stack([_right(weights_BTS, own_BT, other_BS) for weights_BTS in weights])
                count += int(own_BT.sum())
    finally:
        model.set_attn_implementation(attention)
    return (right_L / count).tolist()


@torch.no_grad()
def back_translation_overlap(model, corpus: Corpus, recipe: Recipe, tokenizer, accelerator, languages) -> dict:
    """Of the pseudo tokens that BTMLM's first step writes to held-out sentences, the share that their translation holds
    (as a bag of tokens), less the share that another sentence's translation holds, in each direction.

    The other sentence is the next one by length. Commas and articles occur in both, and count for nothing; a model that
    knows nothing of translation gets 0. `..._own` and `..._other` are the two shares.
    """
    figures, size, share = {}, recipe.evaluation.batch_size, recipe.evaluation.back_translation
    whole = Objective(batch_size=size, max_length=model.config.longest_input, pseudo_share=share)
    room = text_length("btmlm", whole) - SPECIALS_OF_TEXT
    for source, target in ((0, 1), (1, 0)):
        pairs = sorted(
            (example.sides for example in corpus.held_out), key=lambda sides: (len(sides[target]), len(sides[source]))
        )
        translations = [frozenset(sides[target].tolist()) for sides in pairs]
        codes = [corpus.languages[side] for side in (source, target)]
        rows_2 = torch.tensor([languages.rows[code] for code in codes])
        hits, count = np.zeros(2), 0
        for start in range(0, len(pairs), size):
            rows = []
            for sides in pairs[start : start + size]:
                text = sides[source][:room]
                slots = np.full(pseudo_count(len(text), share), tokenizer.mask_token_id)
                rows.append([text, slots])
            batch = encode_rows(rows, tokenizer)
            batch["language_ids"] = rows_2[batch["segment_ids"].clamp(min=0)]
            batch["generation_mask"] = btmlm_generation_mask(batch["attention_mask"], batch["segment_ids"])
            batch = send_to_device(batch, accelerator.device)
            with accelerator.autocast():
                filled_BT = model.back_translate(batch)
            is_pseudo_BT = (batch["segment_ids"] == 1) & _ordinary(batch)
            for number, (tokens_T, is_pseudo_T) in enumerate(zip(filled_BT, is_pseudo_BT, strict=True)):
                pseudo = tokens_T[is_pseudo_T].tolist()
                own, other = start + number, (start + number + 1) % len(pairs)
                hits += [sum(token in translations[index] for token in pseudo) for index in (own, other)]
                count += len(pseudo)
        own, other = hits / count
        key = "->".join(codes) + corpus.name.removeprefix("-".join(corpus.languages))
        figures[f"back_translation/{key}"] = own - other
        figures |= {f"back_translation_own/{key}": own, f"back_translation_other/{key}": other}
    return figures


def aligned_tokens(x_BTH, y_BSH, x_BT, y_BS) -> torch.Tensor:
    """How many tokens of both sides have the token of the same number as their nearest by cosine.

    x_BT, y_BS: boolean, which positions hold a token of that side; every row has as many in one as in the other.
    """
    normalize = nn.functional.normalize
    similarity_BTS = normalize(x_BTH.float(), dim=-1) @ normalize(y_BSH.float(), dim=-1).transpose(1, 2)
    return _right(similarity_BTS, x_BT, y_BS) + _right(similarity_BTS.transpose(1, 2), y_BS, x_BT)


def _right(scores_BTS, own_BT, other_BS) -> torch.Tensor:
    """How many tokens of one side have the token of the same number on the other side as their best."""
    best_BT = scores_BTS.masked_fill(~other_BS[:, None], -torch.inf).argmax(-1)
    return (own_BT & (other_BS.cumsum(1).gather(1, best_BT) == own_BT.cumsum(1))).sum()


def _one_to_one_chunks(corpus: Corpus, recipe: Recipe) -> Iterator[list[list[np.ndarray]]]:
    """Held-out pairs whose tokens correspond, by length, an evaluation batch at a time."""
    room = corpus.max_length - SPECIALS_OF_PAIR
    pairs = sorted((_one_to_one(example, room) for example in corpus.held_out), key=lambda sides: len(sides[0]))
    for start in range(0, len(pairs), recipe.evaluation.batch_size):
        yield pairs[start : start + recipe.evaluation.batch_size]


def _one_to_one(example: Example, room: int) -> list[np.ndarray]:
    """The sides of a pair whose tokens correspond one by one. Raises ValueError where they cannot."""
    lengths = sorted(len(side) for side in example.sides)
    # a pair that was cut to an odd room has one token without its partner
    if lengths[0] != lengths[1] and not (lengths[1] - lengths[0] == 1 and sum(lengths) == room):
        raise ValueError(
            f"evaluation.alignment is true, but a held-out pair of {example.name} has {len(example.sides[0])} and "
            f"{len(example.sides[1])} tokens, and only token i can be the translation of token i. Set it to false, or "
            "evaluate on pairs that `python -m pretraining.tools.controlled_pair` writes."
        )
    return [side[: lengths[0]] for side in example.sides]


def _sentence_vectors(model, examples, side, recipe, tokenizer, accelerator) -> list[torch.Tensor]:
    """Mean-pooled states (P, H) for each layer."""
    size = recipe.evaluation.batch_size
    order = sorted(range(len(examples)), key=lambda index: len(examples[index].sides[side]))
    chunks = []
    for start in range(0, len(order), size):
        rows = [[examples[index].sides[side]] for index in order[start : start + size]]
        batch, states = _encode(model, rows, tokenizer, accelerator)
        keep_BT1 = _ordinary(batch).unsqueeze(-1)
        chunks.append([(layer * keep_BT1).sum(1).float() / keep_BT1.sum(1) for layer in states])
    back = torch.tensor(order, device=accelerator.device).argsort()
    return [torch.cat(layer)[back] for layer in zip(*chunks, strict=True)]


def _encode(model, rows: list[list[np.ndarray]], tokenizer, accelerator, first: list[int] | None = None):
    """The padded batch and the states (B, T, H) of all layers of rows of one or two sides; `first`: where each row's
    positions begin, default 0."""
    batch = send_to_device(encode_rows(rows, tokenizer), accelerator.device)
    position_ids = None
    if first is not None:
        position_ids = position_ids_of(batch["input_ids"], model.config)
        position_ids += torch.tensor(first, device=accelerator.device)[:, None] * batch["attention_mask"]
    with accelerator.autocast():
        output = model.roberta(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            position_ids=position_ids,
            output_hidden_states=True,
        )
    return batch, output.hidden_states


def _ordinary(batch) -> torch.Tensor:
    """(B, T), True where a token of the text stands: neither padding nor a special token."""
    return ~batch["special_tokens_mask"].bool()
