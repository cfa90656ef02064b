"""Blocks of the input: pairs that one process of the run encodes together."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from accelerate import PartialState

from finetuning.align.formats import Format
from finetuning.align.loading import memory_errors
from finetuning.align.pairs import PairReader, Row
from finetuning.align.screen import Tally
from modeling.word_alignment import BATCHES_PER_CHUNK
from zoo_core.processes import from_all, stop_if_told


def check_pairs(reader: PairReader) -> int | None:
    """Returns the number of pairs after reading all, each process its share; None for a pipe.

    Raises ValueError for a pipe and several processes.
    """
    state = PartialState()

    def check() -> tuple[int | None, int]:
        total = reader.check(state.process_index, state.num_processes)
        if total is None and state.num_processes > 1:
            raise ValueError(
                f"{reader.name} can be read only once, and {state.num_processes} processes were launched. Name files."
            )
        return total, reader.unspaced

    found = from_all(check)
    reader.unspaced = sum(unspaced for _, unspaced in found)
    return found[0][0]


def align_blocks(
    aligner: Any, reader: PairReader, rows: Iterator[Row], start: int, form: Format, advance: Callable[[float], None]
) -> Iterator[tuple[list[Row], str, Tally]]:
    """Yields each block of rows with the text of its links and its counts, in the order of the input, in every process.

    Blocks and their links do not depend on the number of processes: each block is aligned separately. `start` is the
    number of the first row; `advance` is called with the approximate number of pairs that all processes have finished
    since. Memory holds one block per process. Raises `Stopped` in all processes after a signal to one of them, between
    two batches.
    """
    state, size = PartialState(), BATCHES_PER_CHUNK * aligner.batch_size
    while given := list(islice(rows, state.num_processes * size)):
        blocks = [given[begin : begin + size] for begin in range(0, len(given), size)]
        own = blocks[state.process_index] if state.process_index < len(blocks) else []
        first = start + state.process_index * size

        def progress(pairs: float, others: int = len(blocks)) -> None:
            advance(pairs * others)
            stop_if_told()

        def work(rows: list[Row] = own, first: int = first, progress: Callable[[float], None] = progress) -> Any:
            stop_if_told()
            return align_block(aligner, reader, rows, first, form, progress)

        found = from_all(work)
        for block, (text, tally) in zip(blocks, found, strict=False):  # there may be fewer blocks than processes
            yield block, text, tally
        start += len(given)


def align_block(
    aligner: Any, reader: PairReader, rows: list[Row], first: int, form: Format, progress: Callable[[float], None]
) -> tuple[str, Tally]:
    """Returns the text of the links of some rows, and counts; `first` is the number of the first row."""
    pairs = [reader.parse(row, number) for number, row in enumerate(rows, first)]
    texts, tally = [], Tally()
    with memory_errors():
        found = aligner.align(pairs, probabilities=form.has_probabilities, progress=progress)
        for number, alignment in enumerate(found, first):
            texts.append(form.record(number, alignment))
            tally.add(alignment)
    return "".join(texts), tally
