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

Legend: `P` pairs and `F` tokens of a chunk, `R` its windows, `G` of them whose states are in memory, `B` of them in a
batch; `S` tokens of the source, `N` of the target or of one side; `T` positions of an input; `L` token links, `M` word
links; `2` source and target; `K` windows of a pair; `H` hidden size.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .encoder import without_dropout
from .layer_states import LayerStates, default_layer, is_finite
from .optimal_transport import METHOD_OPTIONS, Links, align
from .word_tokens import InputFormat, Offsets, Tokens, Words, cut_into_tokens, cut_into_windows, split_words

DEFAULT_METHOD = "ot_words"
BATCHES_PER_CHUNK = 32  # pairs are sorted by length within a chunk: little padding
BATCHES_HELD = 8  # each side of so many batches is sorted by its own length; the states of all are in memory
MOST_WORDS = 200_000  # whose tokens are remembered: about 40 MB
NO_LIMIT = 2**31

Pair = tuple[Words, Words]
Methods = dict[str, dict[str, Any]]  # the options of each method, by its name


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


class Windows(NamedTuple):
    """The windows of all pairs of a chunk. Those of a pair follow one another.

    pair_R: the pair's number. starts_R2, ends_R2: which tokens of the chunk a window shows, from and up to.
    """

    pair_R: Tensor
    starts_R2: Tensor
    ends_R2: Tensor


class SideOfBatch(NamedTuple):
    """One side of a batch: the states (B, N, H) of its tokens by layer, and their words, -1 for padding."""

    states: dict[int, Tensor]
    words_BN: Tensor


class EncodedSide(NamedTuple):
    """One side of several batches: the states (N, H) of its tokens by layer and number, and their words."""

    states: dict[int, dict[int, Tensor]]
    words: list[Tensor]

    def batch(self, span: slice, device: torch.device) -> SideOfBatch:
        """Those of a batch, padded."""
        numbers = range(len(self.words))[span]
        words_BN = pad_sequence(self.words[span], batch_first=True, padding_value=-1)
        states = {}
        for layer, by_number in self.states.items():
            states[layer] = pad_sequence([by_number[number] for number in numbers], batch_first=True)
        return SideOfBatch(states, words_BN.to(device))


class TokenLinks(NamedTuple):
    """Links of tokens: the window that has them, source and target token in it, and the probability."""

    window_L: Tensor
    tokens_L2: Tensor
    probability_L: Tensor


class WordLinks(NamedTuple):
    """The links of a pair, sorted, and the probability of each."""

    links: list[tuple[int, int]]
    probabilities: list[float]


class PairAligner:
    """Aligns the words of sentence pairs with a loaded model; see `word_alignment.WordAligner`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        method: str = DEFAULT_METHOD,
        layer: int | None = None,
        batch_size: int = 64,
        **matching: Any,
    ):
        self.states = LayerStates(model)
        self.tokenizer = tokenizer
        self.method = method
        self.matching = matching
        self.num_layers = self.states.num_layers
        self.depth = self.num_layers  # layers of the checkpoint, read or not
        if layer is None:
            layer = getattr(model.config, "word_alignment_layer", None)
        self.layer = default_layer(self.num_layers) if layer is None else layer
        self.batch_size = batch_size
        calibration = getattr(model.config, "word_alignment_calibration", None)
        if calibration and method == "ot_words":
            slope, offset = calibration
            self.matching = {"slope": slope, "offset": offset} | matching
        check_method(method, self.matching)
        self.check_layer(self.layer)
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: give 1 or more.")
        self.format = InputFormat.of(tokenizer)
        self.ids_by_word: dict[str, list[int]] = {}  # see `cut_into_tokens`
        # a tokenizer without a limit of its own says 1e30, which is no length of a tensor
        self.window = self.states.longest_input or min(tokenizer.model_max_length, NO_LIMIT)

    def check_layer(self, layer: int) -> None:
        """Raises `ValueError` for a layer that the model does not have, or that was not read."""
        if type(layer) is not int or not 0 <= layer <= self.num_layers:
            more = f", or load all {self.depth} with all_layers=True" if self.depth > self.num_layers else ""
            raise ValueError(f"layer is {layer!r}: give a number from 0 (the embeddings) to {self.num_layers}{more}.")

    def align(
        self,
        pairs: Iterable[Pair],
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
        methods = {self.method: self.matching}
        for alignments in self.chunks(pairs, [self.layer], methods, probabilities, after_batch):
            yield alignments[self.layer][self.method]

    def chunks(
        self,
        pairs: Iterable[Pair],
        layers: list[int],
        methods: Methods,
        probabilities: bool = False,
        after_batch: Callable[[], None] = lambda: None,
    ) -> Iterator[dict[int, dict[str, WordAlignment]]]:
        """{layer: {method: WordAlignment}} of each pair, in order; a chunk of pairs is held at a time."""
        checked_pairs = (as_pair(number, pair) for number, pair in enumerate(pairs))
        while chunk := list(islice(checked_pairs, BATCHES_PER_CHUNK * self.batch_size)):
            with torch.inference_mode(), without_dropout(self.states.model):
                alignments = self._align_chunk(chunk, layers, methods, probabilities, after_batch)
            yield from alignments

    def _align_chunk(
        self,
        pairs: list[Pair],
        layers: list[int],
        methods: Methods,
        probabilities: bool,
        after_batch: Callable[[], None],
    ) -> list[dict[int, dict[str, WordAlignment]]]:
        """What `chunks` yields, for the pairs of a chunk."""
        sentences, offsets = split_words(list(chain.from_iterable(pairs)))
        if len(self.ids_by_word) > MOST_WORDS:
            self.ids_by_word.clear()
        tokens = cut_into_tokens(self.tokenizer, sentences, offsets, self.ids_by_word)
        windows = self._windows(tokens)
        windows_P = windows.pair_R.bincount(minlength=len(pairs)).tolist()
        is_cut = max(windows_P) > 1
        token_links = self._link_tokens(tokens, windows, is_cut, layers, methods, after_batch)
        alignments: list[dict[int, dict[str, WordAlignment]]] = [{} for _ in pairs]
        for (layer, method), batches in token_links.items():
            word_links = join_words(batches, windows, tokens.words_F, len(pairs))
            options: dict[str, Any] = METHOD_OPTIONS[method] | methods[method]
            for pair, links in enumerate(word_links):
                if is_cut and options.get("link_all"):  # each window has linked all of its words
                    links = likely_links(links, options["threshold"])
                source = 2 * pair
                target = source + 1
                alignment = WordAlignment(
                    sentences[source],
                    sentences[target],
                    links.links,
                    links.probabilities if probabilities else None,
                    windows_P[pair],
                    offsets[source],
                    offsets[target],
                )
                alignments[pair].setdefault(layer, {})[method] = alignment
        return alignments

    def _link_tokens(
        self,
        tokens: Tokens,
        windows: Windows,
        is_cut: bool,
        layers: list[int],
        methods: Methods,
        after_batch: Callable[[], None],
    ) -> dict[tuple[int, str], list[TokenLinks]]:
        """The links of each batch of windows, by layer and method. `is_cut`: some pair has several windows."""
        token_links: dict[tuple[int, str], list[TokenLinks]] = {key: [] for key in product(layers, methods)}
        if not len(windows.pair_R):
            return token_links
        # the longest first: what does not fit into memory fails at once
        sizes_R = (windows.ends_R2 - windows.starts_R2).sum(1)
        order_R = sizes_R.argsort(descending=True, stable=True)
        held = max(1, BATCHES_HELD // len(layers)) * self.batch_size
        for window_G in order_R.split(held):
            starts_G2 = windows.starts_R2[window_G]
            ends_G2 = windows.ends_R2[window_G]
            sources = self._encode(tokens, starts_G2[:, 0], ends_G2[:, 0], layers)
            targets = self._encode(tokens, starts_G2[:, 1], ends_G2[:, 1], layers, after_batch)
            for start in range(0, len(window_G), self.batch_size):
                batch = slice(start, start + self.batch_size)
                source = sources.batch(batch, self.states.device)
                target = targets.batch(batch, self.states.device)
                source_mask_BS = source.words_BN >= 0
                target_mask_BN = target.words_BN >= 0
                words = (source.words_BN, target.words_BN)
                window_B = window_G[batch]
                cells_BSN = decided_cells(window_B, source_mask_BS, target_mask_BN, windows) if is_cut else None
                for layer in layers:
                    x_BSH = source.states[layer]
                    y_BNH = target.states[layer]
                    if not (is_finite(x_BSH) and is_finite(y_BNH)):
                        raise ValueError(
                            f"The states of layer {layer} are not finite: weights of the model are damaged, or too "
                            "large for its precision."
                        )
                    for method, options in methods.items():
                        links = align(x_BSH, y_BNH, source_mask_BS, target_mask_BN, method, words, cells_BSN, **options)
                        token_links[layer, method].append(linked_tokens(links, window_B))
        return token_links

    def _encode(
        self,
        tokens: Tokens,
        starts_G: Tensor,
        ends_G: Tensor,
        layers: list[int],
        after_batch: Callable[[], None] = lambda: None,
    ) -> EncodedSide:
        """One side of several batches, in the model's inputs; texts of similar length are encoded together."""
        spans = [slice(start, end) for start, end in zip(starts_G.tolist(), ends_G.tolist(), strict=True)]
        texts = [tokens.ids_F[span].tolist() for span in spans]
        states: dict[int, dict[int, Tensor]] = {layer: {} for layer in layers}
        begin = len(self.format.before)
        order_G = (ends_G - starts_G).argsort(descending=True, stable=True)
        for number_B in order_G.split(self.batch_size):
            numbers = number_B.tolist()
            batch = [texts[number] for number in numbers]
            inputs = self.format.inputs(batch, self.tokenizer.pad_token_id or 0, self.states.device)
            for layer, states_BTH in self.states(inputs, layers).items():
                for number, states_TH in zip(numbers, states_BTH, strict=True):
                    states[layer][number] = states_TH[begin : begin + len(texts[number])]
            after_batch()
        return EncodedSide(states, [tokens.words_F[span] for span in spans])

    def _windows(self, tokens: Tokens) -> Windows:
        """The windows of all pairs with tokens on both sides."""
        bounds = tokens.bounds.tolist()
        room = self.window - self.format.size
        pairs: list[int] = []
        starts: list[tuple[int, int]] = []
        ends: list[tuple[int, int]] = []
        for pair in range(len(bounds) // 2):
            source_start, target_start, target_end = bounds[2 * pair : 2 * pair + 3]
            if not source_start < target_start < target_end:
                continue
            for window in cut_into_windows(target_start - source_start, target_end - target_start, room):
                pairs.append(pair)
                starts.append((source_start + window.source_start, target_start + window.target_start))
                ends.append((source_start + window.source_end, target_start + window.target_end))
        return Windows(
            torch.tensor(pairs, dtype=torch.long),
            torch.tensor(starts, dtype=torch.long).view(-1, 2),
            torch.tensor(ends, dtype=torch.long).view(-1, 2),
        )


def as_pair(number: int, pair: Any) -> Pair:
    """The pair, unchanged. Raises `ValueError` for what is none, with its number in the input."""
    is_pair = isinstance(pair, list | tuple) and len(pair) == 2 and all(map(_is_sentence, pair))
    if not is_pair:
        raise ValueError(
            f"input {number} (from 0) is {repr(pair)[:80]}: give (source, target), each a text or a list of words."
        )
    source, target = pair
    return source, target


def _is_sentence(side: Any) -> bool:
    if isinstance(side, str):
        return True
    return isinstance(side, list | tuple) and all(isinstance(word, str) for word in side)


def check_method(method: str, options: dict[str, Any]) -> None:
    """Raises the `ValueError` of `align` for an unknown method, and for options that the method does not have."""
    vector_BNH = torch.ones(1, 1, 1)
    mask_BN = torch.ones(1, 1, dtype=torch.bool)
    align(vector_BNH, vector_BNH, mask_BN, mask_BN, method, **options)


def linked_tokens(links: Links, window_B: Tensor) -> TokenLinks:
    """The links of a batch of windows, `window_B`."""
    cells_L3 = links.links_BST.nonzero()
    row_L, source_L, target_L = cells_L3.unbind(1)
    probability_L = links.probabilities_BST[row_L, source_L, target_L].float().cpu()
    cells_L3 = cells_L3.cpu()
    return TokenLinks(window_B[cells_L3[:, 0]], cells_L3[:, 1:], probability_L)


def join_words(batches: list[TokenLinks], windows: Windows, words_F: Tensor, pairs: int) -> list[WordLinks]:
    """The links of words of each pair, from the links of tokens of a chunk's batches: the likeliest of their tokens."""
    if not batches:
        return [WordLinks([], []) for _ in range(pairs)]
    window_L = torch.cat([batch.window_L for batch in batches])
    tokens_L2 = torch.cat([batch.tokens_L2 for batch in batches])
    probability_L = torch.cat([batch.probability_L for batch in batches])
    words_L2 = words_F[windows.starts_R2[window_L] + tokens_L2]
    # pair, source word, target word
    rows_L3 = torch.cat([windows.pair_R[window_L, None], words_L2], 1)
    links_M3, link_L = rows_L3.unique(dim=0, return_inverse=True)
    probabilities = torch.zeros(len(links_M3)).scatter_reduce(0, link_L, probability_L, "amax").tolist()
    links = [(source, target) for _, source, target in links_M3.tolist()]
    ends_P = links_M3[:, 0].bincount(minlength=pairs).cumsum(0).tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends_P], ends_P, strict=False)]
    return [WordLinks(links[span], probabilities[span]) for span in spans]


def likely_links(linked: WordLinks, threshold: float) -> WordLinks:
    """The links with at least this probability, and the likeliest of each source word, the first of equals."""
    links, probabilities = linked
    likeliest: dict[int, int] = {}
    for number in sorted(range(len(links)), key=lambda number: -probabilities[number]):
        source, _ = links[number]
        likeliest.setdefault(source, number)
    numbers = [n for n in range(len(links)) if probabilities[n] >= threshold or likeliest[links[n][0]] == n]
    return WordLinks([links[n] for n in numbers], [probabilities[n] for n in numbers])


def decided_cells(window_B: Tensor, source_mask_BS: Tensor, target_mask_BN: Tensor, windows: Windows) -> Tensor:
    """(B, S, N): which pairs of tokens the windows of a batch decide."""
    window_B11 = window_B[:, None, None]
    source_BS1 = windows.starts_R2[window_B11, 0] + torch.arange(source_mask_BS.shape[1])[:, None]
    target_B1N = windows.starts_R2[window_B11, 1] + torch.arange(target_mask_BN.shape[1])
    return is_decided_here(window_B11, source_BS1, target_B1N, windows).to(source_mask_BS.device)


def is_decided_here(window_L: Tensor, source_L: Tensor, target_L: Tensor, windows: Windows) -> Tensor:
    """(L,): whether the window decides about the two tokens, so that its link of them counts: see the module.

    Windows and tokens may have any shapes that broadcast. The windows of a pair follow one another, and a pair of
    tokens comes nearer to their middles, then goes away: it is enough to look at the windows before and after.
    """
    pair_R, starts_R2, ends_R2 = windows
    sizes_R2 = ends_R2 - starts_R2
    middles_R2 = (starts_R2 + ends_R2 - 1).double() / 2
    moves_R2 = moving_sides(windows)

    def distances(window_L: Tensor) -> tuple[Tensor, Tensor]:
        """From the middle of a window, in its lengths, of source and target token."""
        source_distance_L = (source_L - middles_R2[window_L, 0]) / sizes_R2[window_L, 0] * moves_R2[window_L, 0]
        target_distance_L = (target_L - middles_R2[window_L, 1]) / sizes_R2[window_L, 1] * moves_R2[window_L, 1]
        return source_distance_L, target_distance_L

    source_distance_L, target_distance_L = distances(window_L)
    distance_L = (source_distance_L + target_distance_L).abs()
    is_apart_L = moves_R2[window_L].all(-1) & ((source_distance_L - target_distance_L).abs() > 0.5)
    is_decided_L = ~is_apart_L
    for step in (-1, 1):
        other_L = (window_L + step).clamp(0, len(pair_R) - 1)
        is_neighbor_L = (pair_R[other_L] == pair_R[window_L]) & (other_L != window_L)
        shows_source_L = (source_L >= starts_R2[other_L, 0]) & (source_L < ends_R2[other_L, 0])
        shows_target_L = (target_L >= starts_R2[other_L, 1]) & (target_L < ends_R2[other_L, 1])
        source_distance_L, target_distance_L = distances(other_L)
        other_distance_L = (source_distance_L + target_distance_L).abs()
        is_nearer_L = other_distance_L < distance_L
        if step < 0:  # of equal ones the first
            is_nearer_L = other_distance_L <= distance_L
        is_decided_L &= ~(is_neighbor_L & shows_source_L & shows_target_L & is_nearer_L)
    return is_decided_L


def moving_sides(windows: Windows) -> Tensor:
    """(R, 2): whether the windows of the pair begin at different tokens. A side that is shown whole does not say where
    a window is."""
    pair_R2 = windows.pair_R[:, None].expand(-1, 2)
    nothing_P2 = torch.zeros(int(windows.pair_R.max()) + 1, 2, dtype=torch.long)
    first_P2 = nothing_P2.scatter_reduce(0, pair_R2, windows.starts_R2, "amin", include_self=False)
    last_P2 = nothing_P2.scatter_reduce(0, pair_R2, windows.starts_R2, "amax", include_self=False)
    return (first_P2 != last_P2)[windows.pair_R]
