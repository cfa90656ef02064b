"""The weights of the aligner's rule, fitted to links made by hand: `python -m bench.word_logits --model ENCODER ...`.

  python -m bench.word_logits --model intfloat/multilingual-e5-small --gold_set ru ru.tsv --gold_set da da.tsv

Leaves out each gold set in turn: fits `CONTEXT_WEIGHTS` of modeling/optimal_transport.py to the others, by the
cross-entropy of every word pair, and evaluates the set that is left out. All sets count equally. Prints AER, precision,
recall, expected calibration error of the links, and the share of right links among those with a probability near 0.5,
0.7 and 0.9. Last, it prints the weights fitted to all sets. Of sets that `--half` names, the fits use every other
sentence, and the weights fitted to all sets are evaluated on the rest. Writes bench/results/word_logits.json.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModel

from bench._common import make_parser, show, write_results
from bench.word_alignment import GoldSet, add_gold_sets, read_gold_sets
from finetuning.align.gold import Gold
from finetuning.align.score import Confidence
from finetuning.models import describe_model, load_pretrained
from finetuning.tasks.vectors.word_alignment import score
from modeling.evaluation_mode import without_dropout
from modeling.word_alignment import WordAligner, WordAlignment, words_of_tokens
from modeling.word_probabilities import CONTEXT_WEIGHTS, context_logits, word_shares
from modeling.word_tokens import cut_into_tokens
from zoo_core.command_line import user_errors

NAME = "word_logits"
NEAR = {"0.5": (0.5, 0.6), "0.7": (0.65, 0.75), "0.9": (0.85, 0.95)}
COLUMNS = {"gold": "gold", "aer": "AER", "precision": "precision", "recall": "recall", "calibration": "calibration"}
COLUMNS |= {f"near {value}": f"right near {value}, %" for value in NEAR} | {"weights": "weights"}
STEPS = 40


class Batch(NamedTuple):
    """Sentence pairs: their numbers in the set, their word pairs' shares, where word pairs are, and which are right."""

    numbers: list[int]
    shares_BST: torch.Tensor
    cells_BST: torch.Tensor
    right_BST: torch.Tensor


def batches_of(aligner: WordAligner, gold_set: GoldSet) -> Iterator[Batch]:
    """The sentences with links that fit into the model and whose words all have tokens."""
    sentences = [list(side) for pair in gold_set.pairs for side in pair]
    tokens = cut_into_tokens(aligner.tokenizer, sentences)
    rows_R5 = aligner.windows(tokens)
    has_one_R = rows_R5[:, 0].bincount(minlength=len(gold_set.pairs))[rows_R5[:, 0]] == 1
    rows_R5 = rows_R5[has_one_R & torch.tensor([pair in gold_set.gold for pair in rows_R5[:, 0].tolist()])]
    for numbers_B, vectors, masks in aligner.batches(tokens, rows_R5, [aligner.layer]):
        rows_B5 = rows_R5[numbers_B]
        shares = word_shares(
            *vectors[aligner.layer], *masks, words_of_tokens(tokens.words_F, rows_B5[:, [1, 3]], masks)
        )
        right_BST = torch.zeros_like(shares.shares_BST)
        for row, pair in enumerate(rows_B5[:, 0].tolist()):
            for i, j in gold_set.gold[pair].possible:
                right_BST[row, i, j] = 1
        yield Batch(rows_B5[:, 0].tolist(), shares.shares_BST, shares.cells_BST, right_BST)


def fit(sets: list[list[Batch]]) -> torch.Tensor:
    """(5,) the weights with the least cross-entropy, in which each set counts as much as another one."""
    weights_5 = torch.tensor(CONTEXT_WEIGHTS, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights_5], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for batches in sets:
            links = sum(batch.right_BST.sum() for batch in batches)
            for batch in batches:
                logits_BST = context_logits(batch.shares_BST, batch.cells_BST, weights_5)
                losses_BST = binary_cross_entropy_with_logits(logits_BST, batch.right_BST, reduction="none")
                of_batch = losses_BST[batch.cells_BST].sum() / links / len(sets)
                of_batch.backward()
                total += of_batch.detach()
        return total

    optimizer.step(loss)
    return weights_5.detach()


def scores_of(batches: list[Batch], gold: dict[int, Gold], weights_5: Sequence[float]) -> dict[str, float]:
    """AER, precision and recall in percent, the calibration error of the links, and how many of the links with a
    probability near some values are right, in percent."""
    links, confidence = {}, Confidence()
    for batch in batches:
        logits_BST = context_logits(batch.shares_BST, batch.cells_BST, weights_5)
        for number, probability_ST, cells_ST in zip(batch.numbers, logits_BST.sigmoid(), batch.cells_BST, strict=True):
            places = ((probability_ST >= 0.5) & cells_ST).nonzero()
            links[number] = list(map(tuple, places.tolist()))
            probabilities = probability_ST[places.unbind(1)].tolist()
            confidence.add(WordAlignment([], [], links[number], probabilities), gold[number])
    near = {}
    for name, (lowest, highest) in NEAR.items():
        right = [is_right for probability, is_right in confidence.candidates if lowest <= probability < highest]
        near[f"near {name}"] = 100 * sum(right) / max(1, len(right))
    return score(links, {number: gold[number] for number in links}) | {"calibration": confidence.error()} | near


def half(batches: list[Batch], part: int) -> list[Batch]:
    """Every other sentence: part 0 has the first of the set."""
    found = []
    for batch in batches:
        rows = [row for row, number in enumerate(batch.numbers) if number % 2 == part]
        if rows:
            found.append(Batch([batch.numbers[row] for row in rows], *(of[rows] for of in batch[1:])))
    return found


def read_flags(argv: list[str] | None) -> argparse.Namespace:
    """The encoder, the gold sets, and of which of them half is fitted to."""
    parser = make_parser(__doc__, NAME, {})
    parser.add_argument("--model", required=True, metavar="DIR|ID", help="encoder")
    parser.add_argument(
        "--half", nargs="+", default=[], metavar="NAME", help="sets that are fitted to a half of their sentences"
    )
    add_gold_sets(parser, required=True)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    with user_errors():
        flags = read_flags(argv)
        path, _, tokenizer, _ = describe_model(flags.model, None)
        aligner = WordAligner(load_pretrained(AutoModel, path, flags.model, False), tokenizer)
        sets = {of.name: of for of in read_gold_sets(flags.gold_set)}
        with torch.inference_mode(), without_dropout(aligner.states.model):
            batches = {name: list(batches_of(aligner, of)) for name, of in sets.items()}
        # out of inference mode, for the gradients of the weights
        batches = {name: [Batch(b.numbers, *(t.clone() for t in b[1:])) for b in of] for name, of in batches.items()}
        fitted = {name: half(of, 1) if name in flags.half else of for name, of in batches.items()}
        rows = []
        for name, of in sets.items():
            left = fit([of_set for key, of_set in fitted.items() if key != name])
            for kind, weights_5 in (("left out", left.tolist()), ("as they are", CONTEXT_WEIGHTS)):
                shown = ", ".join(f"{weight:.2f}" for weight in weights_5)
                found = scores_of(batches[name], of.gold, weights_5)
                rows.append({"gold": f"{name}, {kind}", "weights": shown, **found})
                print(rows[-1], file=sys.stderr)
        whole = fit(list(fitted.values())).tolist()
        for name in flags.half:
            found = scores_of(half(batches[name], 0), sets[name].gold, whole)
            rows.append({"gold": f"{name}, other half", **found})
        notes = [f"fitted to all sets: {', '.join(f'{weight:.2f}' for weight in whole)}"]
        show("Weights of word pairs, left-out gold sets", COLUMNS, rows, notes)
        write_results(flags, NAME, argv, {"rows": rows, "weights": whole})


if __name__ == "__main__":
    main()
