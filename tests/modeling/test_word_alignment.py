"""The word aligner: on encoders whose states make the links known, and on tiny ones of every kind."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import AutoConfig, AutoModel

from crosslingual_zoo.modeling import pair_aligner
from crosslingual_zoo.modeling.optimal_transport import METHODS
from crosslingual_zoo.modeling.word_alignment import WordAligner
from crosslingual_zoo.modeling.word_tokens import cut_into_tokens
from tests.conftest import PREFIXES
from tests.modeling.tiny import SPECIAL_TOKENS, fast_tokenizer, made, parsed

MEANINGS = 200  # of the hand-made language


@pytest.fixture(scope="module")
def tokenizer():
    """Of a language pair in which s7 and t7 mean the same, and s7s8 is two tokens; `Knowing` knows it."""
    vocabulary = [*SPECIAL_TOKENS]
    for side in "st":
        vocabulary += [f"{side}{number}." for number in range(MEANINGS)]
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(vocabulary)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(".", "merged_with_previous")
    return fast_tokenizer(backend)


class Knowing(nn.Module):
    """State of a token: its meaning, in layer 1; in layer 2 the meaning of the next but one. Keeps its inputs."""

    def __init__(self, positions=512, scale=4):
        super().__init__()
        self.config = SimpleNamespace(model_type="bert", num_hidden_layers=2, max_position_embeddings=positions)
        self.table = nn.Parameter(torch.zeros(4 + 2 * MEANINGS, MEANINGS))
        with torch.no_grad():
            self.table[4:] = scale * torch.eye(MEANINGS).repeat(2, 1)
        self.inputs = []

    def forward(self, input_ids, attention_mask, output_hidden_states, return_dict):
        assert input_ids.shape[1] <= (self.config.max_position_embeddings or 10**6)
        self.inputs.append(input_ids)
        states = self.table[input_ids]
        layers = (0 * states, states, states.roll(2, -1))
        return SimpleNamespace(hidden_states=layers, last_hidden_state=layers[-1])


def words(side, *meanings):
    """Words of one token, or of several where a tuple of meanings is passed."""
    texts = []
    for meaning in meanings:
        tokens = meaning if isinstance(meaning, tuple) else (meaning,)
        texts.append("".join(f"{side}{token % MEANINGS}." for token in tokens))
    return texts


def links(aligner, pairs):
    return [alignment.links for alignment in aligner.align(pairs)]


@pytest.mark.parametrize("method", METHODS)
def test_word_aligner_links_of_known_states(method, tokenizer):
    aligner = WordAligner(Knowing(), tokenizer, method=method, layer=1, batch_size=2)
    pairs = [
        (words("s", (1, 2, 3), 4, 5), words("t", 5, (6, 4), 2)),
        (words("s", 1, 2, 3, 4, 5), words("t", 3, 2, 1, 5, 4)),
        (words("s", 7, 8, 9), words("t", 8, 7, 9)),
        (words("s", 1, 2), words("t", 1, 2)),
    ]
    expected = [
        parsed("0-2 1-1 2-0"),
        parsed("0-2 1-1 2-0 3-4 4-3"),
        parsed("0-1 1-0 2-2"),
        parsed("0-0 1-1"),
    ]
    if method not in ("mutual", "ot_words"):
        # 1 and 3 of the first word have no partner, nor has 6 of the second, the only one that has not: all but mutual
        # argmaxes, of which the first of equal cells is another, give it to them
        expected[0].add((0, 1))
    alignments = list(aligner.align(pairs))
    assert [(alignment.source, alignment.target) for alignment in alignments] == pairs
    for alignment, expected_links in zip(alignments, expected, strict=True):
        assert alignment.links == sorted(expected_links)
        assert alignment.windows == 1
        assert alignment.probabilities is None


def test_word_aligner_probability_is_the_highest_of_tokens(tokenizer):
    aligner = WordAligner(Knowing(), tokenizer, method="softmax", layer=1, threshold=0.5)
    source = words("s", (1, 2), 3)
    target = [*words("t", (9, 2), 1), ""]
    [alignment] = aligner.align([(source, target)], probabilities=True)
    assert alignment.links == [(0, 0), (0, 1)]
    assert len(alignment.probabilities) == 2
    assert all(0.9 < value <= 1 for value in alignment.probabilities)


def test_word_aligner_words_without_tokens_and_names_of_special_tokens(tokenizer):
    aligner = WordAligner(Knowing(), tokenizer, method="mutual", layer=1)
    source = ["", *words("s", 1), "</s>", *words("s", 2), "<pad>", "", *words("s", 3)]
    assert links(aligner, [(source, words("t", 3, 2, 1))]) == [[(1, 2), (3, 1), (6, 0)]]
    padding_and_end = {1, 2}
    assert padding_and_end.isdisjoint(aligner.states.model.inputs[0][0, 1:-1].tolist())

    tokens = cut_into_tokens(tokenizer, [source, [], ["x", *words("s", 9)]])
    assert tokens.words_F.tolist() == [1, 2, 3, 4, 6, 0, 1]
    assert tokens.bounds.tolist() == [0, 5, 5, 7]
    # a name of a special token is an unknown word, which may be linked
    assert tokens.ids_F[[1, 3, 5]].tolist() == [tokenizer.unk_token_id] * 3


def test_word_aligner_an_empty_side_gives_no_links(tokenizer):
    aligner = WordAligner(Knowing(), tokenizer, layer=1)
    full = words("t", 1, 2)
    pairs = [("", ""), ([], full), ("  ", full), (full, [""]), (full, full)]
    *empty, last = aligner.align(pairs, probabilities=True)
    for alignment in empty:
        assert alignment.links == []
        assert alignment.windows == 0
    assert last.links
    assert last.windows == 1
    assert list(aligner.align([])) == []
    assert links(aligner, [("", "")]) == [[]]


HEADS = {"veco": "Model", "ernie_m": "ForMaskedLM", "xlm_align": "ForTokenClassification", "metaxlm": "Model"}
SIZES = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, initializer_range=0.5)
OTHERS = {  # distilbert has no list encoder.layer
    "xlm-roberta": SIZES | dict(max_position_embeddings=82),
    "bert": SIZES | dict(max_position_embeddings=80, type_vocab_size=1),
    "distilbert": dict(dim=32, n_layers=3, n_heads=4, hidden_dim=48, initializer_range=0.5, max_position_embeddings=80),
}


def tiny(name, **fields):
    """An encoder of three layers and 80 positions, with the vocabulary of the sample tokenizer."""
    if name in PREFIXES:
        return made(name, HEADS[name], vocab_size=2000, max_position_embeddings=82)
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, vocab_size=2000, **fields | OTHERS.get(name, {}))
    return AutoModel.from_config(config).eval()


@pytest.fixture(scope="module", params=[*HEADS, *OTHERS])
def encoder(request):
    return tiny(request.param)


PAIRS = [
    ("Does a model know which word is which?", "Weiß ein Modell, welches Wort welches ist?"),
    ("One two three", "Eins zwei"),
    ("", "nothing"),
    ("The cat sat on the mat and looked at the other cat for a long time", "Die Katze saß da"),
    ("我喜欢猫", "I like cats a lot"),
] * 3


def test_layer_states_are_the_model_s(encoder, sample_tokenizer):
    inputs = sample_tokenizer(*PAIRS[0], return_tensors="pt")
    expected = encoder(**inputs, output_hidden_states=True).hidden_states
    aligner = WordAligner(encoder, sample_tokenizer)
    for layer in range(4):
        assert torch.equal(aligner.states(dict(inputs), [layer])[layer], expected[layer])
    assert aligner.num_layers == 3
    assert aligner.layer == 2
    assert aligner.window == 80


def test_align_layers_at_once_gives_what_one_by_one_gives(encoder, sample_tokenizer):
    layers = [0, 2, 3]
    methods = {method: {} for method in METHODS} | {"softmax": {"threshold": 0.2}}
    together = list(WordAligner(encoder, sample_tokenizer, batch_size=4).align_layers(PAIRS, layers, methods))
    for layer, method in itertools.product(layers, METHODS):
        alone = WordAligner(encoder, sample_tokenizer, layer=layer, method=method, batch_size=4, **methods[method])
        assert [by_layer[layer][method] for by_layer in together] == list(alone.align(PAIRS))
    assert any(by_layer[0]["ot"].links != by_layer[2]["ot"].links for by_layer in together)


def test_word_aligner_of_a_translation_model_reads_its_encoder(sample_tokenizer):
    decoder = dict(decoder_layers=2, decoder_layer_indices=[1, 2])
    model = made("veco", "ForConditionalGeneration", vocab_size=2000, max_position_embeddings=82, **decoder)
    expected = WordAligner(model.get_encoder(), sample_tokenizer)
    assert links(WordAligner(model, sample_tokenizer), PAIRS) == links(expected, PAIRS)


def test_word_aligner_dropout_is_off_and_comes_back(sample_tokenizer):
    model = made("xlm_align", "Model", vocab_size=2000, hidden_dropout_prob=0.5)
    expected = links(WordAligner(model, sample_tokenizer), PAIRS)
    model.train()
    model.encoder.layer[0].eval()
    assert links(WordAligner(model, sample_tokenizer), PAIRS) == expected
    assert model.training
    assert not model.encoder.layer[0].training
    assert model.encoder.layer[1].training


@pytest.mark.parametrize("method", METHODS)
def test_word_aligner_a_very_long_pair_is_linked_all_along(method, tokenizer):
    """1,500 words, 128 positions, in pairs of unequal length, in both directions, ahead and behind."""
    options = {"threshold": 0.4} if method == "softmax" else {}
    aligner = WordAligner(Knowing(128), tokenizer, method, 1, batch_size=8, **options)
    assert aligner.window == 128
    source = words("s", *range(1500))
    target = words("t", *range(1500))
    doubled = words("t", *((meaning, meaning) for meaning in range(1500)))
    diagonal = {(i, i) for i in range(1500)}
    cases = [
        (source, target, diagonal),
        (source, target[12:], {(i, i - 12) for i in range(12, 1500)}),
        (doubled, source, diagonal),
        (source, doubled, diagonal),
    ]
    alignments = aligner.align((x, y) for x, y, _ in cases)
    for alignment, (_, _, certain) in zip(alignments, cases, strict=True):
        assert alignment.windows > 20
        assert certain <= set(alignment.links)
        if "itermax" not in method:
            assert set(alignment.links) == certain


def test_word_aligner_a_sentence_that_just_fits(tokenizer):
    pair = (words("s", *range(30)), words("t", *range(20, 0, -1)))
    [expected] = WordAligner(Knowing(512), tokenizer, "ot", 1).align([pair], True)
    [fits] = WordAligner(Knowing(32), tokenizer, "ot", 1).align([pair], True)
    assert fits == expected
    assert fits.windows == 1
    [cut] = WordAligner(Knowing(31), tokenizer, "ot", 1).align([pair], True)
    assert cut.windows == 2
    assert cut.links


def likeliest_links(alignment):
    """Each source word's (probability, link), the first of equal ones."""
    likeliest = {}
    for link, probability in zip(alignment.links, alignment.probabilities, strict=True):
        if probability > likeliest.get(link[0], (0, None))[0]:
            likeliest[link[0]] = (probability, link)
    return likeliest


@pytest.mark.parametrize(("window", "windows"), [(512, 1), (64, 5)])
def test_word_aligner_link_all(window, windows, tokenizer):
    """Every third word has no partner, and the first word no token."""
    source = words("s", *((i, i + 1) if i % 3 else i + 90 for i in range(90)))
    pairs = [
        (["", *source], words("t", *range(88, 8, -1), *range(90))),
        (source, words("t", *range(90))),
        (words("s", 1, 2), [""]),
        (words("s", 1, 2), words("t", 9)),
    ]

    def align(**options):
        aligner = WordAligner(Knowing(window), tokenizer, layer=1, batch_size=2, **options)
        return list(aligner.align(pairs, probabilities=True))

    of_threshold = align()
    of_all_cells = align(threshold=1e-9)
    assert max(alignment.windows for alignment in of_threshold) == windows
    for linked, plain, every_cell in zip(align(link_all=True), of_threshold, of_all_cells, strict=True):
        expected = dict(zip(plain.links, plain.probabilities, strict=True))
        linked_words = {i for i, _ in plain.links}
        for word, (probability, link) in likeliest_links(every_cell).items():
            if word not in linked_words:
                assert probability < 0.5
                expected[link] = probability
        assert linked.links == sorted(expected)
        assert linked.probabilities == pytest.approx([expected[link] for link in linked.links])
        if linked.windows:
            assert {i for i, _ in linked.links} == {i for i, word in enumerate(linked.source) if word}


def test_word_aligner_a_word_longer_than_the_positions(tokenizer):
    aligner = WordAligner(Knowing(64), tokenizer, "mutual", layer=1)
    long_word = tuple(range(150))
    pair = (words("s", 199, long_word, 198), words("t", long_word, 198))
    [alignment] = aligner.align([pair])
    assert alignment.windows > 3
    assert alignment.links == [(1, 0), (2, 1)]


def test_word_aligner_reads_an_endless_input_a_chunk_at_a_time(tokenizer, monkeypatch):
    monkeypatch.setattr(pair_aligner, "BATCHES_PER_CHUNK", 3)
    numbers = itertools.count()
    endless = ((words("s", number, number + 1), words("t", number, number + 1)) for number in numbers)
    aligner = WordAligner(Knowing(), tokenizer, "mutual", layer=1, batch_size=2)
    for alignment in itertools.islice(aligner.align(endless), 7):
        assert alignment.links == [(0, 0), (1, 1)]
    assert next(numbers) == 12


@pytest.mark.parametrize(
    ("options", "pair", "named"),
    [
        ({"method": "mutual", "threshold": 0.1}, None, "threshold"),
        ({"layer": 3}, None, "layer"),
        ({"model": tiny("t5", d_model=32, d_kv=8, d_ff=48, num_heads=4, num_layers=3)}, None, "T5Model"),
        ({"model": tiny("gpt2", n_embd=32, n_layer=2, n_head=4)}, None, "GPT2Model"),
        ({"model": Knowing(scale=torch.nan)}, (["s1."], ["t1."]), "layer 1 are not finite"),
        ({}, ("a", [1]), "input 0"),
    ],
)
def test_word_aligner_refuses(options, pair, named, tokenizer):
    with pytest.raises(ValueError, match=named):
        aligner = WordAligner(**{"model": Knowing(), "tokenizer": tokenizer, "layer": 1} | options)
        list(aligner.align([pair]))
