# SPDX-License-Identifier: Apache-2.0
"""Which word of a sentence is which of its translation: any encoder of XLM-R's or BERT's kind as a word aligner.

Words are cut into pieces, a layer of the encoder gives each token a vector, and `optimal_transport` links words, or
tokens: then two words are linked if any of their tokens are (XLM-Align, Chi et al., ACL 2021, section 4.3).

Long sentences are cut into windows, both sides into the same number K, evenly spread. Window k shows the k-th part of
the source and of the target, and shares half of its positions with each neighbor: a translation may be half a window
ahead of its place or behind it, and some window shows both. Tokens that are further apart are not linked: at the edges
of windows, tokens whose partners are not shown would find each other. If several windows show a pair of tokens, the one
whose middle is between them decides (their distances from it, in window lengths, add up to the least). This does not
depend on the direction, and no pair is decided twice. A side that is less than a quarter of its window next to a longer
one is shown whole in each window, and its words may be linked anywhere. Cost and memory grow with the length. The
alternative, every window of the source with every window of the target, grows with its square, and links words of
unrelated places. A sentence that fits is one window, without a limit: the same code, and K = 1.

Legend: `P` pairs and `F` tokens of a chunk, `R` its windows, `B` of them in a batch; `S` tokens of the source, `N` of
the target or of one side; `L` token links, `M` word links; `K` windows of a pair; `H` hidden size.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import torch
from torch.nn.utils.rnn import pad_sequence

from .encoder import without_dropout
from .layer_states import LayerStates, default_layer
from .optimal_transport import METHOD_OPTIONS, Links, align
from .word_tokens import InputFormat, Offsets, Tokens, Words, cut_into_tokens, cut_into_windows, split_words

DEFAULT_METHOD = "ot_words"
BATCHES_PER_CHUNK = 32  # pairs are sorted by length within a chunk: little padding
NO_LIMIT = 2**31


@dataclass
class WordAlignment:
    """A pair and its links.

    Attributes:
        source, target: the words.
        links: (source word, target word), both from 0, sorted.
        probabilities: one a link: of `ot_words`, that it is right; of others, the highest among the linked tokens of
            the two words, see `optimal_transport.align`.
        windows: how many windows the pair was cut into; 1 if it fits the model, 0 if a side has no tokens.
        source_offsets, target_offsets: (begin, end) of each word, in characters from 0, where a text was given.

    Example:
        >>> aligned = WordAlignment(["the", "house"], ["das", "Haus"], links=[(0, 0), (1, 1)])
        >>> [(aligned.source[i], aligned.target[j]) for i, j in aligned.links]
        [('the', 'das'), ('house', 'Haus')]

    Source: the links of fast_align's and simalign's output (Pharaoh's format), from 0.
    """

    source: list[str]
    target: list[str]
    links: list[tuple[int, int]]
    probabilities: list[float] | None = None
    windows: int = 1
    source_offsets: Offsets | None = None
    target_offsets: Offsets | None = None


class PairAligner:
    """Aligns the words of sentence pairs with a loaded model; see `word_alignment.WordAligner`."""

    def __init__(
        self, model, tokenizer, method: str = DEFAULT_METHOD, layer: int | None = None, batch_size: int = 64, **matching
    ):
        self.states = LayerStates(model)
        self.tokenizer, self.method, self.matching = tokenizer, method, matching
        self.depth = self.num_layers = self.states.num_layers  # depth: layers of the checkpoint, read or not
        wanted = layer, getattr(model.config, "word_alignment_layer", None), default_layer(self.num_layers)
        self.layer = next(one for one in wanted if one is not None)
        self.batch_size = batch_size
        calibration = getattr(model.config, "word_alignment_calibration", None)
        if calibration and method == "ot_words":
            self.matching = dict(zip(("slope", "offset"), calibration, strict=True)) | matching
        check_method(method, self.matching)
        self.check_layer(self.layer)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: give 1 or more.")
        self.format = InputFormat.of(tokenizer)
        # a tokenizer without a limit of its own says 1e30, which is no length of a tensor
        self.window = self.states.longest_input or min(tokenizer.model_max_length, NO_LIMIT)

    def check_layer(self, layer: int) -> None:
        """Raises `ValueError` for a layer that the model does not have, or that was not read."""
        if type(layer) is not int or not 0 <= layer <= self.num_layers:
            more = f", or load all {self.depth} with all_layers=True" if self.depth > self.num_layers else ""
            raise ValueError(f"layer is {layer!r}: give a number from 0 (the embeddings) to {self.num_layers}{more}.")

    def align(
        self,
        pairs: Iterable[tuple[Words, Words]],
        probabilities: bool = False,
        after_batch: Callable[[], None] = lambda: None,
    ) -> Iterator[WordAlignment]:
        """The links of each pair, in the order of the input.

        Args:
            pairs: (source, target), each a list of words or a plain text (see `split_words`). May be endless: a chunk
                of `BATCHES_PER_CHUNK` batches is read at a time.
            probabilities: whether to fill in this field.
            after_batch: called after each batch.

        Raises `ValueError` for what is no pair, naming its number from 0.
        """
        chosen = {self.method: self.matching}
        for by_layer in self.chunks(pairs, [self.layer], chosen, probabilities, after_batch):
            yield by_layer[self.layer][self.method]

    def chunks(self, pairs, layers, methods, probabilities=False, after_batch=lambda: None):
        """{layer: {method: WordAlignment}} of each pair, in order; a chunk of pairs is held at a time."""
        numbered = enumerate(pairs)
        while chunk := [as_pair(*item) for item in islice(numbered, BATCHES_PER_CHUNK * self.batch_size)]:
            with torch.inference_mode(), without_dropout(self.states.model):
                found = list(self._chunk(chunk, layers, methods, probabilities, after_batch))
            yield from found

    def _chunk(self, pairs: list[tuple[Words, Words]], layers, methods, probabilities, after_batch):
        """What `chunks` yields, for the pairs of a chunk."""
        sentences, offsets = split_words(list(chain.from_iterable(pairs)))
        tokens = cut_into_tokens(self.tokenizer, sentences, offsets)
        rows_R5 = self._windows(tokens)
        windows_P = rows_R5[:, 0].bincount(minlength=len(pairs))
        found = {(layer, method): [] for layer in layers for method in methods}
        is_cut = bool((windows_P > 1).any())
        # the longest first: what does not fit into memory fails at once
        order_R = (rows_R5[:, 2] - rows_R5[:, 1] + rows_R5[:, 4] - rows_R5[:, 3]).argsort(descending=True, stable=True)
        for numbers_B in order_R.split(self.batch_size) if len(order_R) else ():
            batch_B5 = rows_R5[numbers_B]
            (x, source_BS), (y, target_BN) = (self._encode(tokens, batch_B5[:, of], layers) for of in ([1, 2], [3, 4]))
            masks = source_BS >= 0, target_BN >= 0
            cells_BSN = decided_cells(numbers_B, masks, rows_R5) if is_cut else None
            for layer in layers:
                if not (x[layer].isfinite().all() and y[layer].isfinite().all()):
                    raise ValueError(
                        f"The states of layer {layer} are not finite: weights of the model are damaged, or too large "
                        "for its precision."
                    )
                for method, options in methods.items():
                    links = align(x[layer], y[layer], *masks, method, (source_BS, target_BN), cells_BSN, **options)
                    found[layer, method].append(linked_tokens(links, numbers_B))
            after_batch()
        links = {key: join_words(parts, rows_R5, tokens.words_F, len(pairs)) for key, parts in found.items()}
        for (layer, method), of_pairs in links.items() if is_cut else ():
            options = METHOD_OPTIONS[method] | methods[method]
            if options.get("link_all"):  # each window has linked all of its words
                links[layer, method] = [likely_links(*of, options["threshold"]) for of in of_pairs]

        def alignment(pair, links, chances):
            both = slice(2 * pair, 2 * pair + 2)
            chances = chances if probabilities else None
            return WordAlignment(*sentences[both], links, chances, windows[pair], *offsets[both])

        windows = windows_P.tolist()
        for pair in range(len(pairs)):
            yield {
                layer: {method: alignment(pair, *links[layer, method][pair]) for method in methods} for layer in layers
            }

    def _encode(self, tokens: Tokens, spans_B2: torch.Tensor, layers):
        """{layer: (B, N, H)} states of one side of a batch, and the words (B, N) of its tokens, -1 for padding."""
        spans = [slice(*span) for span in spans_B2.tolist()]
        inputs = self.format.inputs(
            [tokens.ids_F[span].tolist() for span in spans], self.tokenizer.pad_token_id or 0, self.states.device
        )
        words_BN = pad_sequence([tokens.words_F[span] for span in spans], True, -1).to(self.states.device)
        begin = len(self.format.before)
        states = self.states(inputs, layers)
        return {layer: states[layer][:, begin : begin + words_BN.shape[1]] for layer in layers}, words_BN

    def _windows(self, tokens: Tokens) -> torch.Tensor:
        """(R, 5): the windows of all pairs with tokens on both sides, one after the other.

        Columns: the pair's number; which tokens of the chunk the window shows, source from, up to, target from, up to.
        """
        bounds, rows = tokens.bounds.tolist(), []
        for pair, (x, y, end) in enumerate(zip(bounds[:-1:2], bounds[1::2], bounds[2::2], strict=True)):
            if x < y < end:
                shown = cut_into_windows([y - x, end - y], self.window - self.format.size)
                rows += [(pair, x + begin, x + stop, y + from_, y + to) for begin, stop, from_, to in shown]
        return torch.tensor(rows, dtype=torch.long).view(-1, 5)


def as_pair(number: int, pair) -> tuple[Words, Words]:
    """The pair, unchanged. Raises `ValueError` for what is none, with its number in the input."""
    is_pair = isinstance(pair, list | tuple) and len(pair) == 2
    sides = [[side] if isinstance(side, str) else side for side in pair] if is_pair else [None]
    if not all(isinstance(side, list | tuple) and all(isinstance(word, str) for word in side) for side in sides):
        raise ValueError(
            f"input {number} (from 0) is {repr(pair)[:80]}: give (source, target), each a text or a list of words."
        )
    return pair[0], pair[1]


def check_method(method: str, options: dict) -> None:
    """Raises `ValueError` for a method that there is not, and for options that it does not take: as `align`, now."""
    align(*torch.ones(2, 1, 1, 1), *torch.ones(2, 1, 1, dtype=torch.bool), method, **options)


def linked_tokens(found: Links, numbers_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(L, 3) number of the row, source token and target token in it; (L,) probabilities."""
    places_L3 = found.links_BST.nonzero()
    probabilities_L = found.probabilities_BST[places_L3.unbind(1)].float().cpu()
    places_L3 = places_L3.cpu()
    places_L3[:, 0] = numbers_B[places_L3[:, 0]]
    return places_L3, probabilities_L


def join_words(
    found: list[tuple[torch.Tensor, torch.Tensor]], rows_R5: torch.Tensor, words_F: torch.Tensor, pairs: int
) -> list[tuple[list[tuple[int, int]], list[float]]]:
    """Word links of each pair, sorted, with their probabilities, from the token links of a chunk's batches."""
    if not found:
        return [([], []) for _ in range(pairs)]
    places_L3, probabilities_L = (torch.cat(parts) for parts in zip(*found, strict=True))
    rows_L5 = rows_R5[places_L3[:, 0]]
    words_L2 = words_F[places_L3[:, 1:] + rows_L5[:, [1, 3]]]
    # one number for pair, source word and target word, in the order in which they are sorted
    base = int(words_F.max()) + 1
    code_M, which_L = torch.unique((rows_L5[:, 0] * base + words_L2[:, 0]) * base + words_L2[:, 1], return_inverse=True)
    best = torch.zeros(len(code_M)).scatter_reduce(0, which_L, probabilities_L, "amax").tolist()
    links = list(zip((code_M // base % base).tolist(), (code_M % base).tolist(), strict=True))
    ends = (code_M // base**2).bincount(minlength=pairs).cumsum(0).tolist()
    return [(links[begin:end], best[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def likely_links(
    links: list[tuple[int, int]], probabilities: list[float], threshold: float
) -> tuple[list[tuple[int, int]], list[float]]:
    """The links with at least this probability, and the likeliest of each source word, the first of equals."""
    likeliest: dict[int, int] = {}
    for number in sorted(range(len(links)), key=lambda number: -probabilities[number]):
        likeliest.setdefault(links[number][0], number)
    kept = [n for n, (source, _) in enumerate(links) if probabilities[n] >= threshold or likeliest[source] == n]
    return [links[number] for number in kept], [probabilities[number] for number in kept]


def decided_cells(numbers_B: torch.Tensor, masks: tuple[torch.Tensor, torch.Tensor], rows_R5: torch.Tensor):
    """(B, S, N): which pairs of tokens the windows of a batch decide."""
    row_B11 = numbers_B[:, None, None]
    source_BS1 = rows_R5[row_B11, 1] + torch.arange(masks[0].shape[1])[:, None]
    target_B1N = rows_R5[row_B11, 3] + torch.arange(masks[1].shape[1])
    return is_decided_here(row_B11, source_BS1, target_B1N, rows_R5).to(masks[0].device)


def is_decided_here(row_L, source_L, target_L, rows_R5: torch.Tensor) -> torch.Tensor:
    """(L,): whether a link of two tokens counts that a window, a row, found: see the module.

    Rows and tokens may have any shapes that broadcast. The windows of a pair follow one another, and a pair of tokens
    comes nearer to their middles, then goes away: it is enough to look at the windows before and after.
    """
    pair_R2 = rows_R5[:, :1].expand(-1, 2)
    starts_R2, ends_R2 = rows_R5[:, [1, 3]], rows_R5[:, [2, 4]]
    nothing_P2 = torch.zeros(int(pair_R2.max()) + 1, 2, dtype=torch.long)
    first_P2, last_P2 = (
        nothing_P2.scatter_reduce(0, pair_R2, starts_R2, which, include_self=False) for which in ("amin", "amax")
    )
    # a side that is shown whole does not say where a window is
    moves_R2 = first_P2.ne(last_P2)[rows_R5[:, 0]]
    sizes_R2 = ends_R2 - starts_R2
    middles_R2 = (starts_R2 + ends_R2 - 1).double() / 2
    sides = tuple(enumerate((source_L, target_L)))

    def from_middles(row_L):
        return [(of - middles_R2[row_L, side]) / sizes_R2[row_L, side] * moves_R2[row_L, side] for side, of in sides]

    source_here_L, target_here_L = from_middles(row_L)
    is_apart_L = moves_R2[row_L].all(-1) & ((source_here_L - target_here_L).abs() > 0.5)
    here_L, counts_L = (source_here_L + target_here_L).abs(), ~is_apart_L
    for step in (-1, 1):
        other_L = (row_L + step).clamp(0, len(rows_R5) - 1)
        is_neighbor_L = (rows_R5[other_L, 0] == rows_R5[row_L, 0]) & (other_L != row_L)
        shows = [(of_L >= starts_R2[other_L, side]) & (of_L < ends_R2[other_L, side]) for side, of_L in sides]
        there_L = sum(from_middles(other_L)).abs()
        # of equal ones the first
        is_nearer_L = (there_L <= here_L) if step < 0 else (there_L < here_L)
        counts_L &= ~(is_neighbor_L & shows[0] & shows[1] & is_nearer_L)
    return counts_L
