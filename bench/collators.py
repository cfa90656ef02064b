"""Our collators against transformers' `DataCollatorForLanguageModeling`: `python -m bench.collators`.

Both make masked batches of the same sentences of the sample corpus, on one thread: MLM of English texts, and TLM of
English texts with their German translations. They start from texts, or from token ids that were made before. Ours adds
the special tokens itself and draws keyed random numbers; the peer gets rows that the tokenizer made, with its mask of
special tokens. Times are milliseconds a batch.
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from bench._common import interleaved, make_parser, median_ratio, seconds_of, show, write_results
from crosslingual_zoo.finetuning.align.common import DEFAULT_MODEL
from crosslingual_zoo.modeling.checkpoints import load_tokenizer
from crosslingual_zoo.pretraining.objectives.base import Collator
from crosslingual_zoo.pretraining.objectives.mlm import MlmCollator
from crosslingual_zoo.pretraining.objectives.tlm import TlmCollator
from crosslingual_zoo.zoo_core.command_line import user_errors

OURS, PEER = "ours", "transformers"
LANGUAGES = ("en", "de")


def read_sentences(count: int) -> list[list[str]]:
    """English sentences of the sample corpus, and their German translations."""
    corpus = str(Path(__file__).parents[1] / "sample_corpus")
    texts_of_ids = []
    for language in LANGUAGES:
        rows = datasets.load_dataset(corpus, language, split="train")
        texts_of_ids.append(dict(zip(rows["id"], rows["text"], strict=True)))
    english, german = texts_of_ids
    translated = [number for number in english if number in german][:count]
    return [[english[number] for number in translated], [german[number] for number in translated]]


def peer_rows(tokenizer: PreTrainedTokenizerBase, max_length: int, sides: Sequence[list[str]]) -> list[dict[str, Any]]:
    """The rows that the peer masks: of texts, or of pairs."""
    encoded = tokenizer(*sides, truncation=True, max_length=max_length, return_special_tokens_mask=True)
    return [dict(zip(encoded, values, strict=True)) for values in zip(*encoded.values(), strict=True)]


def our_examples(keys: Sequence[str], sides: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The examples that our collators read: of texts, or of lists of ids."""
    return [dict(zip(keys, values, strict=True)) for values in zip(*sides, strict=True)]


def ways_of(collate: Collator, sides: Sequence[list[str]]) -> dict[tuple[str, str], Callable[[], Any]]:
    """The work of (ours or the peer, texts or ids): one batch of all examples."""
    tokenizer = collate.tokenizer
    peer = DataCollatorForLanguageModeling(tokenizer, mlm_probability=collate.mask_probability)
    rows = peer_rows(tokenizer, collate.max_length, sides)
    ids = [tokenizer(side, add_special_tokens=False)["input_ids"] for side in sides]
    examples_of_texts = our_examples(collate.keys, sides)
    examples_of_ids = our_examples(collate.keys, ids)
    return {
        (OURS, "texts"): lambda: collate(examples_of_texts),
        (PEER, "texts"): lambda: peer(peer_rows(tokenizer, collate.max_length, sides)),
        (OURS, "ids"): lambda: collate(examples_of_ids),
        (PEER, "ids"): lambda: peer(rows),
    }


def compare(collate: Collator, sides: Sequence[list[str]], rounds: int) -> list[dict[str, Any]]:
    """A row each for texts and ids: median milliseconds of both, and how many times as long ours takes."""
    runs = {}
    for way, work in ways_of(collate, sides).items():
        runs[way] = lambda _, work=work: seconds_of(work)
    seconds = interleaved(runs, rounds)
    rows = []
    for kind in ("texts", "ids"):
        ours = seconds[OURS, kind]
        peer = seconds[PEER, kind]
        row = {"objective": collate.name, "from": kind}
        row[OURS] = 1e3 * statistics.median(ours)
        row[PEER] = 1e3 * statistics.median(peer)
        row["times as long"] = median_ratio(ours, peer)
        rows.append(row)
    return rows


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = make_parser(__doc__, "collators")
    parser.add_argument("--rounds", type=int, default=25, help="interleaved rounds (default %(default)s)")
    parser.add_argument("--examples", type=int, default=64, help="texts or pairs of a batch (default %(default)s)")
    parser.add_argument("--model", metavar="DIR|ID", default=DEFAULT_MODEL, help="its tokenizer (default %(default)s)")
    flags = parser.parse_args(argv)
    torch.set_num_threads(1)
    with user_errors():
        tokenizer = load_tokenizer(flags.model)
        english, german = read_sentences(flags.examples)
        rows = compare(MlmCollator(tokenizer), [english], flags.rounds)
        rows += compare(TlmCollator(tokenizer), [english, german], flags.rounds)
        show(f"A batch of {len(english)} examples, {len(tokenizer):,} tokens in the vocabulary", rows)
        write_results(flags, {"rows": rows})


if __name__ == "__main__":
    main()
